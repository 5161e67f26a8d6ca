"""The folder of a run. With a result.json the run has finished; this file writes it, result.py reads it.

result.json of a fine-tuning run:

    sweep, data         name of the runs that differ in layer and seed only; name of the data
    settings            all that the scores depend on: the fields of FineTuningConfig (runs/run_config.py), those of its
                        recipe among them
    arguments           the command line, option by option
    history             of the runs that the weights have been through: data, settings, dev, test of each
    num_hidden_layers   of the whole checkpoint; pooling, max_length: those of the saved model
    epochs              the fields of Epoch (training.py) for each; chosen_epoch: number of the best by dev
    dev, test           scores of that epoch, raw; undefined ones are null
    parameters          {"paper": n, "stored": n}, see checkpoint.py
    precision, seconds, environment: commit, versions, device, threads

That of a pre-training run has sweep, data (the task), settings (the fields of PretrainingConfig), arguments,
history, parameters, precision, seconds and environment as well, and

    start               which weights it began with, in words
    sentences, text_tokens: of the text; tokens_seen: in all steps
    curve               the fields of Progress (pretraining/loop.py) for each report
    held_out            {"before": ..., "after": ...} of the curve; processes: how many shared it
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

import torch
from safetensors.torch import save_file
from torch import nn

from tmft.checkpoints.model_card import SHOWN
from tmft.checkpoints.weights import open_safetensors
from tmft.data import Task
from tmft.device import choose_precision
from tmft.distributed import Processes
from tmft.errors import InputError, sanitize
from tmft.formatting import as_json
from tmft.io.atomic import locked, reason, write_file
from tmft.losses.registry import OBJECTIVES
from tmft.models.bert import BaseEncoder
from tmft.models.registry import parameter_counts
from tmft.pretraining.corpus import Sentences
from tmft.pretraining.loop import Progress
from tmft.runs.result_schema import read_result
from tmft.runs.run_config import PretrainingConfig, Run
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.checkpointing import FILE as STATE_FILE
from tmft.training.checkpointing import State
from tmft.training.loop import Epoch
from tmft.training.multitask import Lesson

LONGEST = 200  # bytes of the name of a run folder; most disks allow 255
HEAD_FILE = "head.safetensors"
PACKAGES = ("torch", "safetensors", "tokenizers", "huggingface-hub", "numpy", "scipy")


def make_folder(folder: Path) -> None:
    """Raises InputError, before any work, if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(
            f"cannot write into {folder} ({reason(error)}): check space and permissions"
        ) from None


@contextmanager
def lock_run_folder(folder: Path, settings: dict, processes: Processes) -> Iterator[State]:
    """A with block in the folder of a run, which no other process may enter -> the state that an unfinished
    one has left, with nothing in it if there is none.

    Raises InputError, before any work, if nothing can be written there, another process is at work there or
    has finished the run, or the folder holds an unfinished run with other settings.
    """
    first = processes.rank == 0
    if first:
        make_folder(folder)
    with locked(folder) if first else nullcontext():
        if first and finished_run(folder, settings):
            raise InputError(f"{folder}: another process has finished this run meanwhile")
        state = State(folder / STATE_FILE, plain(settings), processes)
        if state.content:
            check_same(folder, "an unfinished", state.content["settings"], settings)
            print(f"\n{folder}: goes on where it was stopped")
        with state:
            yield state
            state.remove()


def finished_run(folder: Path, settings: dict) -> dict | None:
    """The result of a run that has finished in this folder with these settings, or None.

    Raises InputError if the folder holds a finished run with other settings: it is not overwritten. A state
    that a process was killed before removing goes.
    """
    if not (folder / "result.json").is_file():
        return None
    result = read_result(folder)
    check_same(folder, "a finished", result.get("settings", {}), settings)
    with suppress(OSError):
        (folder / STATE_FILE).unlink(missing_ok=True)
    return result


def check_same(folder: Path, kind: str, before: dict, now: dict) -> None:
    """Raises InputError if the run of this kind in a folder had other settings."""
    if key := different(before, now):
        raise InputError(
            f"{folder} holds {kind} run with {key} {before.get(key)}, now {now[key]}: "
            "choose another name, or remove the folder",
            "name",
        )


def check_name(name: str | None) -> None:
    """Raises InputError if the name of a run is not that of one folder, beside the others."""
    if name is not None and (
        not name.strip() or name.startswith(".") or not set(name).isdisjoint("/\\\0\n\r\t")
    ):
        raise InputError(f"name {name!r}: give letters and digits, no path", "name")


def claim(folder: Path, ckpt: str | None, settings: dict, claimed: dict[Path, str | None]) -> None:
    """Note in claimed that a run of ckpt is going to write a folder; claimed: those of this command so far.

    Raises InputError if another of its runs would, too, or a finished run with other settings is there.
    """
    if len(os.fsencode(folder.name)) > LONGEST:
        raise InputError(
            f"name {folder.name[:40]}...: a folder cannot be called so, choose a shorter name", "name"
        )
    if folder in claimed:
        both = f"{claimed[folder]} and {ckpt}"
        raise InputError(f"{both} would both write {folder}: run them one by one, each with a name", "name")
    finished_run(folder, settings)
    claimed[folder] = ckpt


# settings that results of earlier versions do not have, and what they were
ADDED = {"optimizer": "adamw", "order": "round-robin", "ends": "shortest", "gradients": "sum", "share": 1.0}


def different(before: dict, now: dict) -> str | None:
    """The first setting that is not as it was, None if all are. Of a task only what both say is compared, as
    an earlier version said less; a checkpoint is the same by another path."""
    for key, value in plain(now).items():
        was = before.get(key, ADDED.get(key))
        if isinstance(was, dict) and isinstance(value, dict):
            both = was.keys() & value.keys()
            was, value = ({name: side[name] for name in both} for side in (was, value))
        if key == "ckpt" and was and value:
            was, value = (os.path.realpath(name) if os.path.isdir(name) else name for name in (was, value))
        if was != value:
            return key
    return None


def write_result(folder: Path, result: dict, card: str | None = None) -> None:
    """The model card, if there is one, and result.json, last: a folder that has it holds a finished run."""
    if card is not None:
        write_file(folder / "README.md", card)
    write_file(folder / "result.json", as_json(result))


def provenance_of(where: str | os.PathLike) -> list[dict]:
    """The runs that the weights in a folder have been through, first to last: their data, settings, scores.

    Empty for a hub id and for a folder that no run wrote.
    """
    if not (Path(where) / "result.json").is_file():
        return []
    result = read_result(Path(where))
    last = {key: result[key] for key in ("data", "settings")}
    last |= {key: result.get(key) for key in ("dev", "test")}  # which pre-training has not
    return [*result.get("history", []), last]


def lineage(history: list[dict]) -> str:
    """'google/electra-base-discriminator, then wordsim (seed 0)', or 'rtd from scratch (seed 0)'"""
    checkpoint = history[0]["settings"]["ckpt"]
    names = [sanitize(run["data"], SHOWN) for run in history]
    steps = [f"{name} (seed {run['settings']['seed']})" for name, run in zip(names, history, strict=True)]
    if checkpoint is None:
        return ", then ".join([steps[0].replace(" (", " from scratch ("), *steps[1:]])
    return ", then ".join([sanitize(checkpoint, SHOWN), *steps])


def environment(device: torch.device) -> dict:
    """What else a number depends on: commit of this code (None outside a checkout), versions, machine."""
    git = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "commit": commit,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
    }


def fine_tuning_result(
    run: Run, model: SentenceEncoder, epochs: list[Epoch], test: dict, arguments: dict
) -> dict:
    """result.json of a run whose chosen epoch scores `test`. Raises InputError if its weights are gone."""
    if not any(run.folder.rglob("*.safetensors")):
        raise InputError(f"{run.folder} was removed or emptied while the run was on: start it again")
    chosen = max(epoch.number for epoch in epochs if epoch.best)
    return {
        "sweep": run.sweep,
        "settings": plain(run.what.settings),
        "arguments": plain(arguments),
        "data": run.data,
        "history": run.history,
        "num_hidden_layers": run.num_hidden_layers,
        "pooling": model.pooling,
        "max_length": model.max_length,
        "epochs": [asdict(epoch) for epoch in epochs],
        "chosen_epoch": chosen,
        "dev": epochs[chosen - 1].dev,
        "test": test,
        "parameters": parameter_counts(model.encoder.config, run.what.layer),
        "precision": choose_precision(run.what.recipe.precision, model.device),
        "seconds": sum(epoch.seconds for epoch in epochs),
        "environment": environment(model.device),
    }


def pretraining_result(
    what: PretrainingConfig,
    name: str,
    encoder: BaseEncoder,
    start: str,
    sentences: Sentences,
    curve: list[Progress],
    processes: Processes,
    arguments: dict,
) -> dict:
    """result.json of a run that began with `start`, the weights in words."""
    return {
        "sweep": name,
        "data": what.task,
        "history": provenance_of(what.ckpt) if what.ckpt else [],
        "settings": what.settings,
        "arguments": plain(arguments),
        "start": start,
        "sentences": len(sentences),
        "text_tokens": len(sentences.tokens),
        "curve": [asdict(record) for record in curve],
        "tokens_seen": curve[-1].tokens,
        "held_out": {"before": curve[0].held_out, "after": curve[-1].held_out},
        "parameters": parameter_counts(encoder.config),
        "precision": choose_precision(what.recipe.precision, processes.device),
        "processes": processes.world_size,
        "seconds": curve[-1].seconds,
        "environment": environment(processes.device),
    }


def plain(arguments: dict) -> dict:
    """Options as JSON has them: a path is its text."""
    return json.loads(json.dumps(arguments, default=str))


def save_heads(lessons: dict[str, Lesson], folder: Path) -> None:
    """Write the weights of objectives into a run folder, with the names of their tasks; nothing if there are
    none."""
    weights = {
        ".".join(filter(None, [task, name])): weight.detach().cpu()
        for task, lesson in lessons.items()
        for name, weight in lesson.objective.state_dict().items()
    }
    if weights:
        write_file(folder / HEAD_FILE, lambda path: save_file(weights, path))


def load_objective(task: Task, width: int, folder: Path, of: str = "") -> nn.Module:
    """The objective of a task, with the head that the run in folder learnt for it if it has one; of: its name
    in a run of several tasks.

    Raises InputError if the folder has no head, or one of another shape.
    """
    objective = OBJECTIVES[task.objective](width, task).eval()
    for name, weight in objective.named_parameters():
        path, saved = folder / HEAD_FILE, ".".join(filter(None, [of, name]))
        if not path.is_file():
            raise InputError(
                f"{folder} has no {HEAD_FILE}, and {task.objective} needs a trained head: "
                "name a run of train.py on this task, at the layer that it trained"
            )
        with open_safetensors(path) as file:
            shape = tuple(file.get_slice(saved).get_shape()) if saved in file.keys() else None
            if shape != tuple(weight.shape):
                raise InputError(
                    f"{path} has {saved} of shape {shape} instead of {tuple(weight.shape)}: "
                    "it belongs to another task or layer"
                )
            weight.data.copy_(file.get_tensor(saved))
    return objective
