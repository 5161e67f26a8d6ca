"""The folder of a run: reserve and lock it, compare settings, write result.json, save and load trained heads.

A folder with a result.json holds a finished run; tmft/runs/result_schema.py documents and reads that file.
"""

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from tmft.checkpoints.weights import open_safetensors
from tmft.device import choose_precision
from tmft.distributed import Processes
from tmft.errors import InputError, describe_error, has_control_characters, sanitize
from tmft.formatting import MAX_NAME_LENGTH, to_json
from tmft.io.atomic import FolderInUseError, check_output_folder, folder_lock, is_same_file, write_file
from tmft.io.files import is_file, is_folder
from tmft.losses.objective import Objective
from tmft.losses.registry import OBJECTIVES
from tmft.models.base import BaseEncoder
from tmft.models.registry import parameter_counts
from tmft.pretraining.corpus import TokenizedCorpus
from tmft.pretraining.loop import PretrainingLog
from tmft.runs.result_schema import FORMAT, RESULT_FILE, read_result
from tmft.runs.run_config import PretrainingConfig, Run
from tmft.runs.run_inputs import Digests, check_same_inputs
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import Task
from tmft.training.checkpointing import STATE_FILE, TrainingCheckpoint
from tmft.training.loop_state import EpochResult

MAX_FOLDER_NAME_BYTES = 200  # length of the name of a run folder; most file systems allow 255
HEAD_FILE = "head.safetensors"
PACKAGES = ("torch", "safetensors", "tokenizers", "huggingface-hub", "numpy", "scipy")


# ------------------------------------------------------------------------------------ before the run begins


def make_folder(folder: Path) -> None:
    """Create a folder. Raises InputError, before any work, if nothing can be written there.

    That includes a folder in which a symbolic link, a pipe or a device is in the place of a file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(
            f"cannot write into {folder} ({describe_error(error)}): check space and permissions"
        ) from None
    check_output_folder(folder)


def check_run_name(name: str | None) -> None:
    """Raise InputError if the name of a run cannot be the name of a single folder."""
    if name is not None and (
        not name.strip()
        or name.startswith(".")
        or not set(name).isdisjoint("/\\")
        or has_control_characters(name)
    ):
        raise InputError(f"run_name {name!r}: use letters and digits, not a path", "run_name")


def reserve_folder(
    folder: Path, ckpt: str | None, settings: dict[str, Any], reserved: dict[Path, str | None]
) -> None:
    """Check that a run may write to a folder, and add the folder to `reserved`.

    ckpt: checkpoint of the run, for the message. settings: those of the run. reserved: {folder in small
    letters: checkpoint} of the other runs of this command. Raises InputError if one of them would write to
    the same folder, also one whose name differs only in case, which many file systems ignore; if the folder
    holds a finished run with other settings, or the checkpoint that is read; or if its name is too long.
    """
    if len(os.fsencode(folder.name)) > MAX_FOLDER_NAME_BYTES:
        raise InputError(
            f"{folder.name[:40]}... is too long for the name of a folder: choose a shorter run_name",
            "run_name",
        )
    key = Path(str(folder).casefold())
    if key in reserved:
        raise InputError(
            f"{reserved[key]} and {ckpt} would both write {folder}: run each of them alone, with run_name",
            "run_name",
        )
    for source in (ckpt, settings.get("init_from")):
        if source is not None and is_same_file(folder, Path(source)):
            raise InputError(
                f"{folder} is the folder of {source}, which is read: choose another run_name", "run_name"
            )
    if not load_finished_result(folder, settings) and is_folder(folder):
        check_output_folder(folder)
    reserved[key] = ckpt


@contextmanager
def lock_run_folder(
    folder: Path, settings: dict[str, Any], processes: Processes, digests: Digests | None = None
) -> Iterator[TrainingCheckpoint]:
    """Create and lock the folder of a run during a with block, and open its training checkpoint.

    Yields the training checkpoint: it holds the state of an interrupted run, or is empty if there is none. It
    is removed after the block, unless an error is raised there. settings: those of the run. digests: of the
    files that it reads; None compares none. Raises InputError, before any work, if nothing can be written
    into the folder, if another process works in it or has finished the run, or if it holds an interrupted run
    with other settings.
    """
    is_main = processes.rank == 0
    if is_main:
        make_folder(folder)
    with folder_lock(folder) if is_main else nullcontext():
        if is_main and load_finished_result(folder, settings, digests):
            raise FolderInUseError(f"{folder}: another process has finished this run in the meantime")
        checkpoint = TrainingCheckpoint(folder / STATE_FILE, jsonable(settings), processes, digests)
        if checkpoint.content:
            check_same_settings(folder, "an unfinished", checkpoint.content["settings"], settings)
            check_same_inputs(folder, "an unfinished", checkpoint.content.get("digests", {}), digests or {})
            print(f"\n{folder}: resuming the interrupted run")
        with checkpoint:
            yield checkpoint
            checkpoint.remove()


# -------------------------------------------------------------------------------------- comparing settings


def load_finished_result(
    folder: Path, settings: dict[str, Any], digests: Digests | None = None
) -> dict[str, Any] | None:
    """Return the content of result.json in a run folder; None if there is none, so the run is not finished.

    settings, digests: see lock_run_folder. A training checkpoint that a killed process has left next to it is
    removed. Raises InputError if the finished run had other settings, because it would be overwritten.
    """
    if not is_file(folder / RESULT_FILE):
        return None
    result = read_result(folder)
    check_same_settings(folder, "a finished", result.get("settings", {}), settings)
    check_same_inputs(folder, "a finished", result.get("digests", {}), digests or {})
    with suppress(OSError):
        (folder / STATE_FILE).unlink(missing_ok=True)
    return result


def check_same_settings(folder: Path, kind: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise InputError if the run in a folder has other settings than the run that would be written there.

    before, now: settings of the two runs. kind: "a finished" or "an unfinished", for the message.
    """
    if key := first_difference(before, now):
        old_value, value = (sanitize(str(settings.get(key)), 400) for settings in (before, now))
        raise InputError(
            f"{folder} holds {kind} run with {key} {old_value}, not {value}: "
            "choose another run_name, or remove the folder",
            "run_name",
        )


def first_difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Return the name of the first setting in `now` that has another value in `before`; None if all agree.

    Two paths to the same folder count as the same checkpoint.
    """
    for key, value in jsonable(now).items():
        old_value = before.get(key)
        if key == "ckpt" and isinstance(old_value, str) and value:
            paths = (os.path.realpath(name) if os.path.isdir(name) else name for name in (old_value, value))
            old_value, value = paths
        if old_value != value:
            return key
    return None


# -------------------------------------------------------------------------------------------- result.json


def fine_tuning_result(
    run: Run,
    model: SentenceEncoder,
    epochs: list[EpochResult],
    test: dict[str, Any],
    arguments: dict[str, Any],
    digests: Digests,
) -> dict[str, Any]:
    """Return the content of result.json for a fine-tuning run; result_schema.py describes its keys.

    epochs: results of all epochs. test: scores of the best epoch on test. arguments: the command line.
    digests: those of the data and the checkpoint, see run_inputs.py. Raises InputError if the weights in the
    run folder have been removed in the meantime.
    """
    if not any(run.folder.rglob("*.safetensors")):
        raise InputError(f"{run.folder} was removed or emptied during the run: start the run again")
    chosen = max(epoch.epoch for epoch in epochs if epoch.is_best)
    return {
        "sweep": run.sweep,
        "settings": jsonable(run.config.to_flat_dict()),
        "digests": digests,
        "arguments": jsonable(arguments),
        "data": run.data,
        "provenance": run.provenance,
        "num_hidden_layers": run.num_hidden_layers,
        "pooling": model.pooling,
        "max_length": model.max_length,
        "epochs": [asdict(epoch) for epoch in epochs],
        "chosen_epoch": chosen,
        "dev": epochs[chosen - 1].dev,
        "test": test,
        "parameters": parameter_counts(model.encoder.config, run.config.layer),
        "precision": choose_precision(run.config.recipe.precision, model.device),
        "seconds": sum(epoch.seconds for epoch in epochs),
        "environment": describe_environment(model.device),
    }


def pretraining_result(
    config: PretrainingConfig,
    name: str,
    encoder: BaseEncoder,
    start: str,
    corpus: TokenizedCorpus,
    log: list[PretrainingLog],
    processes: Processes,
    arguments: dict[str, Any],
    digests: Digests,
) -> dict[str, Any]:
    """Return the content of result.json for a pre-training run; result_schema.py describes its keys.

    name: name of the sweep. start: description of the initial weights. corpus: the text. log: all entries of
    the training log. arguments: the command line. digests: those of the text and the checkpoint.
    """
    return {
        "sweep": name,
        "data": config.task,
        "provenance": provenance_of(config.ckpt) if config.ckpt else [],
        "settings": config.to_flat_dict(),
        "digests": digests,
        "arguments": jsonable(arguments),
        "start": start,
        "sentences": len(corpus),
        "text_tokens": len(corpus.tokens),
        "curve": [asdict(entry) for entry in log],
        "tokens_seen": log[-1].tokens,
        "held_out": {"before": log[0].held_out, "after": log[-1].held_out},
        "parameters": parameter_counts(encoder.config),
        "precision": choose_precision(config.recipe.precision, processes.device),
        "processes": processes.world_size,
        "seconds": log[-1].seconds,
        "environment": describe_environment(processes.device),
    }


def write_result(folder: Path, result: dict[str, Any], card: str | None = None) -> None:
    """Write result.json, which marks the run as finished. card: text of README.md, written before it."""
    if card is not None:
        write_file(folder / "README.md", card)
    write_file(folder / RESULT_FILE, to_json({"format": FORMAT} | result))


def provenance_of(checkpoint: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the runs that trained the weights in a folder, oldest first: [] if no run has written it.

    checkpoint: a folder or hub id. Each run is a dict with the keys data, settings, dev and test; the last
    two are the scores, None for a pre-training run.
    """
    folder = Path(checkpoint)
    if not is_file(folder / RESULT_FILE):
        return []
    result = read_result(folder)
    last_run = {key: result[key] for key in ("data", "settings")}
    last_run |= {split: result.get(split) for split in ("dev", "test")}  # a pre-training run has neither
    return [*result.get("provenance", []), last_run]


def format_provenance(provenance: list[dict[str, Any]]) -> str:
    """Describe the origin of weights: "google/electra-base-discriminator, then wordsim (seed 0)".

    Weights that were first pre-trained from scratch are described as "rtd from scratch (seed 0)". provenance:
    as returned by `provenance_of`, not empty.
    """
    checkpoint = provenance[0]["settings"]["ckpt"]
    names = [sanitize(run["data"], MAX_NAME_LENGTH) for run in provenance]
    steps = [f"{name} (seed {run['settings']['seed']})" for name, run in zip(names, provenance, strict=True)]
    if checkpoint is None:
        return ", then ".join([steps[0].replace(" (", " from scratch ("), *steps[1:]])
    return ", then ".join([sanitize(checkpoint, MAX_NAME_LENGTH), *steps])


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return the commit of this code (None without git), the versions of packages, the device and threads.

    Scores may depend on these beyond the settings. device: the device on which the model runs.
    """
    git = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(git, capture_output=True, encoding="utf-8", check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "commit": commit,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
    }


def jsonable(values: dict[str, Any]) -> dict[str, Any]:
    """Return a dict as it would be after writing and reading JSON: tuples become lists, paths strings.

    values: any dict that JSON can express with these changes.
    """
    return json.loads(json.dumps(values, default=str))


# -------------------------------------------------------------------------------------------- trained heads


def save_heads(objectives: dict[str, nn.Module], folder: Path) -> None:
    """Write the trained weights of the objectives to head.safetensors in a run folder, if they have any.

    objectives: {task: objective}; the name of a single task is "". A tensor is called TASK.PARAMETER, or
    PARAMETER for a single task.
    """
    weights = {
        ".".join(filter(None, [task, name])): weight.detach().cpu()
        for task, objective in objectives.items()
        for name, weight in objective.state_dict().items()
    }
    if weights:
        write_file(folder / HEAD_FILE, lambda path: save_file(weights, path))


def load_objective(task: Task, width: int, folder: Path, task_name: str = "") -> Objective:
    """Return the objective of a task; if it has a head, with the head that the run in `folder` trained.

    width: number of dimensions of the embeddings. task_name: name of the task in a run of several tasks, ""
    in a run of a single task. Raises InputError if the folder has no head for this task, or one of another
    shape.
    """
    objective = OBJECTIVES[task.objective](width, task).eval()
    for name, parameter in objective.named_parameters():
        path, saved_name = folder / HEAD_FILE, ".".join(filter(None, [task_name, name]))
        if not is_file(path):
            raise InputError(
                f"{folder} has no {HEAD_FILE}, and {task.objective} needs a trained head: "
                "name a run of train.py on this task, at the layer that it trained"
            )
        with open_safetensors(path) as file:
            shape = tuple(file.get_slice(saved_name).get_shape()) if saved_name in file.keys() else None
            if shape != tuple(parameter.shape):
                raise InputError(
                    f"{path} has {saved_name} of shape {shape} instead of {tuple(parameter.shape)}: name a "
                    "run on this task, at this layer"
                )
            parameter.data.copy_(file.get_tensor(saved_name))
    return objective
