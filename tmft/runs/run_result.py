"""The result of a fine-tuning run: its result.json, its predictions on test, and its model card."""

import math
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tmft.callbacks import EpochResult
from tmft.checkpoints.model_card import ModelCardData, display_name, sentence_model_card
from tmft.device import choose_precision
from tmft.errors import InputError
from tmft.io.atomic import write_file
from tmft.io.files import is_file, reading
from tmft.io.formatting import escape_markdown, percent, to_json
from tmft.metrics import METRICS, expected_prediction, is_computed_on_text
from tmft.models.families import parameter_counts
from tmft.runs.result_json import (
    FORMAT,
    RESULT_FILE,
    find_score,
    format_provenance,
    list_score_names,
    to_json_types,
)
from tmft.runs.run_config import Run
from tmft.runs.sweeps import Sweep
from tmft.sentence_encoder import SentenceEncoder

MAX_PROVENANCE_LENGTH = 1000  # characters of the origin of the weights in a card
PREDICTIONS_FILE = "predictions.npz"
PACKAGES = ("torch", "safetensors", "tokenizers", "huggingface-hub", "numpy", "scipy")


def fine_tuning_result(
    run: Run,
    model: SentenceEncoder,
    epochs: list[EpochResult],
    test: dict[str, Any],
    arguments: dict[str, Any],
    digests: dict[str, dict[str, str]],
) -> dict[str, Any]:
    """Return the content of result.json for a fine-tuning run; docs/commands.md has its keys."""
    if not any(run.folder.rglob("*.safetensors")):
        raise InputError(f"{run.folder} was removed or emptied during the run: start the run again")
    chosen = max(epoch.epoch for epoch in epochs if epoch.is_best)
    return {
        "sweep": run.sweep,
        "settings": to_json_types(run.config.to_flat_dict()),
        "digests": digests,
        "arguments": to_json_types(arguments),
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


def write_result(folder: Path, result: dict[str, Any], model: SentenceEncoder | None = None) -> None:
    """Write result.json, which marks the run as finished. model: its card, README.md, is written before."""
    if model is not None:
        card_data = card_data_from_result(result)
        card = sentence_model_card(model, card_data)
        write_file(folder / "README.md", card)
    write_file(folder / RESULT_FILE, to_json({"format": FORMAT} | result))


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return what scores may depend on beyond the settings: commit, versions, device and threads."""
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


# --------------------------------------------------------------------------- predictions: N test examples


def save_predictions(predictions: Mapping[str, tuple[np.ndarray, object]], folder: Path) -> None:
    """Write the predictions and the labels of the test split, (N,) each, to predictions.npz in a run folder.

    predictions: {task: (predictions from which the metric was computed, labels)}. Nothing is written if there
    are several tasks, or if the predictions are not one number per example.
    """
    [(predicted, labels), *other_tasks] = predictions.values()
    if other_tasks or predicted.ndim > 1:
        return

    def write(path: Path) -> None:
        with open(path, "wb") as file:  # given a path, np.savez would change its ending
            np.savez(file, predicted=predicted, labels=np.asarray(labels))

    write_file(folder / PREDICTIONS_FILE, write)


def read_predictions(folder: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Read the predictions and the labels of test from a run folder, (N,) each; None if it has none."""
    path = folder / PREDICTIONS_FILE
    if not is_file(path):
        return None
    with reading(path, "remove it"):  # the file may be anything; nothing in it is run as code
        with np.load(path, allow_pickle=False) as arrays:
            predicted, labels = arrays["predicted"], arrays["labels"]
        are_vectors = predicted.ndim == 1 and 0 < len(predicted) and predicted.shape == labels.shape
        are_numbers = all(array.dtype.kind in "biuf" for array in (predicted, labels))
        if not (are_vectors and are_numbers and np.isfinite(labels).all()):
            raise ValueError("it does not hold two arrays of numbers of equal length")
        return predicted, labels


def read_sweep_predictions(sweep: Sweep, layer: int) -> list[tuple[np.ndarray, np.ndarray, float | None]]:
    """Return [(predictions (N,), labels (N,), threshold)] with an entry for each seed at a layer.

    threshold: the one that the run chose on dev, None if its metric has none. The list is empty if a seed
    has no predictions, if the labels of two seeds differ, or if the metric is not computed from one number
    per example.
    """
    if sweep.metric not in METRICS or expected_prediction(sweep.metric) == "embedding":
        return []
    runs = []
    for result in sweep.layers[layer]:
        if (predictions := read_predictions(result["folder"])) is None:
            return []
        runs.append((*predictions, result["dev"].get("threshold")))
    return runs if all(np.array_equal(labels, runs[0][1]) for _, labels, _ in runs) else []


# ------------------------------------------------------------------------------------------ the model card


def card_data_from_result(result: dict[str, Any]) -> ModelCardData:
    """Return the part of a model card that describes a run."""
    runs = [*result["provenance"], result]
    task, scored_data = result["settings"]["task"], result["data"]
    if task.get("eval_files") and not is_computed_on_text(task["metric"]):
        scored_data = Path(task["eval_files"]).parent.name  # such as stsb/{split}.tsv
    defined = tuple(
        (scored_data, split, name, score)
        for split in ("dev", "test")
        for name in list_score_names(result["test"])
        if name in list_score_names(result[split])
        if (score := find_score(result[split], name)) is not None and not math.isnan(score)
    )
    is_random = runs[0]["settings"].get("init") == "random"
    checkpoints = filter(None, (run["settings"]["ckpt"] for run in runs))  # pre-training may have had none
    task_options = task.get("objective_args") or {}
    return ModelCardData(
        fine_tuning_to_markdown(result),
        "" if is_random else next(checkpoints, ""),
        defined,
        teachers=find_teachers(task_options),
        kept_layers=kept_layers(result),
    )


def find_teachers(task_options: dict[str, Any]) -> tuple[str, ...]:
    """Return the models whose embeddings a task learns, by its options; () for most tasks."""
    names = (task_options.get(option) for option in ("teacher", "second_teacher"))
    return tuple(name for name in names if name)


def kept_layers(result: dict[str, Any]) -> tuple[int, ...] | None:
    """Return which layers of the first checkpoint are left after all runs; None: the first ones."""
    kept: tuple[int, ...] | None = None
    for run in (*result["provenance"], result):
        indices = run["settings"].get("keep_layers")
        if indices and (kept is None or max(indices) < len(kept)):
            kept = tuple(index if kept is None else kept[index] for index in indices)
        elif kept is not None:
            kept = kept[: run["settings"].get("layer")]
    return kept


def fine_tuning_to_markdown(result: dict[str, Any]) -> str:
    """Return Markdown about a fine-tuning run: its training, its scores and the number of parameters."""
    settings, dev, test = result["settings"], result["dev"], result["test"]
    provenance = result["provenance"]
    if provenance:
        initial_weights = f"the weights of {format_provenance(provenance)}"
    else:
        initial_weights = f"{settings['init']} weights"
    initial_weights = escape_markdown(initial_weights, MAX_PROVENANCE_LENGTH)
    names = list_score_names(dev)
    data, objective = escape_markdown(result["data"]), escape_markdown(settings["task"]["objective"])

    def cells(scores: dict[str, Any]) -> str:
        return " | ".join(percent(find_score(scores, name)) for name in names)

    note = ""
    if "threshold" in dev:
        note = f"\nA pair is classified as 1 if its cosine is at least {dev['threshold']:.4f}."
    trained = f"Fine-tuned on {data}"
    task_options = settings["task"].get("objective_args") or {}
    if teachers := find_teachers(task_options):
        lines = escape_markdown(", ".join(Path(name).name for name in task_options["text"]))
        embeddings = escape_markdown(" and ".join(map(display_name, teachers)))
        trained = f"Trained to give the lines of {lines} the embeddings of {embeddings}"
    return f"""
{trained}, starting from {initial_weights}: objective {objective},
{settings["epochs"]} epochs of batches of {settings["batch_size"]} examples, learning rate {settings["lr"]:g},
seed {settings["seed"]}, {escape_markdown(result["precision"])}.

| split | {" | ".join(f"{escape_markdown(name)} x 100" for name in names)} |
|---|{"---|" * len(names)}
| dev, at the best epoch, {result["chosen_epoch"]} | {cells(dev)} |
| test, scored once, {test["pairs"]} pairs | {cells(test)} |
{note}{sub_embeddings_table(dev, test)}
{result["parameters"]["stored"]:,} parameters. All settings: result.json.
"""


def sub_embeddings_table(dev: dict[str, Any], test: dict[str, Any]) -> str:
    """Return a Markdown table of the scores of trained layers and truncated dimensions; "" without any."""
    rows = []
    for task, dev_scores in [("", dev), *dev.get("tasks", {}).items()]:
        test_scores = test["tasks"][task] if task else test
        for name, score in dev_scores.get("sub_embeddings", {}).items():
            label = escape_markdown(f"{task} {name}".strip())
            rows.append(f"| {label} | {percent(score)} | {percent(test_scores['sub_embeddings'][name])} |")
    return "\n| truncated to | dev | test |\n|---|---:|---:|\n" + "\n".join(rows) + "\n" if rows else ""
