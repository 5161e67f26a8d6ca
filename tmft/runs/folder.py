"""Run folders: where a run writes, what result.json holds, and the table made from several of them."""

import json
import math
import os
import platform
import statistics
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch

from tmft.errors import InputError
from tmft.files.weights import one_line, read_json, write_file
from tmft.sentence import SentenceEncoder, model_card

PACKAGES = ("torch", "safetensors", "tokenizers", "huggingface-hub", "numpy", "scipy")


def finished_run(folder: Path, settings: dict) -> dict | None:
    """The result of a run that has finished in this folder with these settings, or None.

    Raises InputError if the folder holds a finished run with other settings: it is not overwritten.
    """
    if not (folder / "result.json").is_file():
        return None
    result = read_result(folder)
    before = result.get("settings", {})
    for key, value in settings.items():
        if before.get(key) != value:
            raise InputError(
                f"{folder} holds a finished run with {key} {before.get(key)}, now {value}: "
                "choose another --name, or remove the folder"
            )
    return result


def read_result(folder: Path) -> dict:
    return read_json(folder / "result.json")


def past_runs(where: str | os.PathLike) -> list[dict]:
    """The runs that the weights in a folder have been through, first to last: their data, settings, scores.

    Empty for a hub id and for a folder that no run wrote.
    """
    if not (Path(where) / "result.json").is_file():
        return []
    result = read_result(Path(where))
    last = {key: result.get(key) for key in ("data", "settings", "dev", "test")}
    return [*result.get("history", []), last]


def lineage(history: list[dict]) -> str:
    """'google/electra-base-discriminator, then wordsim (layer 9, seed 0)'"""
    first = history[0]["settings"]["ckpt"] or "random weights"
    steps = [f"{run['data']} (seed {run['settings']['seed']})" for run in history]
    return ", then ".join([first, *steps])


def open_run(folder: Path) -> None:
    """Make the folder of a run. Raises InputError, before any work, if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(
            f"cannot write into {folder} ({one_line(error)}): check space and permissions"
        ) from None


def write_result(folder: Path, result: dict) -> None:
    """result.json, written last: a folder that has it holds a finished run. Undefined numbers are null."""
    write_file(folder / "result.json", json.dumps(without_nan(result), indent=2, ensure_ascii=False) + "\n")


def without_nan(value):
    """JSON knows no NaN or infinity."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def environment(device: torch.device) -> dict:
    """What else a number depends on: commit of this code (None outside a checkout), versions, machine."""
    here = Path(__file__).resolve().parent
    git = ["git", "-C", str(here), "rev-parse", "HEAD"]
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


def percent(value: float | None) -> str:
    """A score x 100 with two decimals."""
    return "  nan" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def mean_and_deviation(values: list[float]) -> str:
    """Mean and sample deviation (n - 1) x 100; of a single value only itself; nan if one of them is."""
    mean = statistics.mean(values)
    if len(values) == 1 or math.isnan(mean):
        return percent(mean)
    return f"{percent(mean)} ± {percent(statistics.stdev(values))}"


def scores_of(runs: list[dict], split: str, metric: str) -> list[float]:
    """One value per run; null in result.json, an undefined score, is nan."""
    return [math.nan if run[split][metric] is None else run[split][metric] for run in runs]


def summary(results: list[dict]) -> str:
    """A table with a line per layer, mean and deviation over the seeds, and a bar of the mean on test.

    The scores are those of the task's own metric, x 100. The best layer by dev is marked. A score that is
    undefined (null in result.json) makes its mean nan.
    """
    metric = results[0]["settings"]["task"]["metric"]
    layers: dict[int, list[dict]] = {}
    for result in results:
        layers.setdefault(result["settings"]["layer"], []).append(result)

    means = {
        split: [statistics.mean(scores_of(runs, split, metric)) for runs in layers.values()]
        for split in ("dev", "test")
    }
    best = max(
        range(len(layers)), key=lambda i: -math.inf if math.isnan(means["dev"][i]) else means["dev"][i]
    )
    lines = [["layer", "seeds", f"dev {metric}", f"test {metric}", "parameters", "s/run", ""]]
    for i, (layer, runs) in enumerate(layers.items()):
        lines.append(
            [
                str(layer),
                str(len(runs)),
                mean_and_deviation(scores_of(runs, "dev", metric)),
                mean_and_deviation(scores_of(runs, "test", metric)),
                f"{runs[0]['parameters']['stored'] / 1e6:.2f} M",
                f"{statistics.mean(run['seconds'] for run in runs):.0f}",
                bar(means["test"], i) + (" * best on dev" if i == best and len(layers) > 1 else ""),
            ]
        )
    return table(lines)


def bar(values: list[float], i: int, width: int = 24) -> str:
    """Value i of a curve as a bar: one block for the smallest value, `width` for the largest."""
    defined = [value for value in values if not math.isnan(value)]
    if len(defined) < 2 or min(defined) == max(defined) or math.isnan(values[i]):
        return ""
    return "█" * (1 + round((width - 1) * (values[i] - min(defined)) / (max(defined) - min(defined))))


def table(lines: list[list[str]]) -> str:
    """Lines of cells -> text, columns set flush right but for the last; the first line is the heading."""
    *widths, _ = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = []
    for *cells, last in lines:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        rows.append("  ".join([*aligned, last]).rstrip())
    return "\n".join(rows)


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def run_card(model: SentenceEncoder, result: dict) -> str:
    """The model card of a finished run."""
    settings, dev, test = result["settings"], result["dev"], result["test"]
    origin = lineage(result["history"]) if result["history"] else f"{settings['init']} weights"
    names = [name for name in dev if name != "threshold"]  # a cut on the cosine, not a score

    def cells(scores: dict) -> str:
        return " | ".join(percent(scores[name]) for name in names)

    note = f"\nA pair is called 1 if its cosine reaches {dev['threshold']:.4f}." if "threshold" in dev else ""
    return model_card(
        model,
        f"""
Fine-tuned on {result["data"]} from {origin}: {settings["task"]["objective"]},
{settings["epochs"]} epochs of batches of {settings["batch_size"]} pairs, learning rate {settings["lr"]:g},
seed {settings["seed"]}, {result["precision"]}.

| split | {" | ".join(f"{name} x 100" for name in names)} |
|---|{"---|" * len(names)}
| dev, at epoch {result["chosen_epoch"]}, the best | {cells(dev)} |
| test, scored once, {test["pairs"]} pairs | {cells(test)} |
{note}
{result["parameters"]["stored"]:,} parameters. All settings: result.json.
""",
    )
