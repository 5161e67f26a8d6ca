"""Figures of models that evaluate.py has scored: score by size, alignment against uniformity, and speed.

Ni et al. 2021 (arXiv:2108.08877) have such figures of Sentence-T5: 1, 4 and 5. They are made from the files
that `evaluate.py --json` has written, one for each model.
"""

from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from tmft.errors import InputError
from tmft.io.files import is_file, read_json, reading
from tmft.io.formatting import percent
from tmft.reports.drawing import Paths, draw_line, figure, log_scale, name_points
from tmft.reports.page import MISSING
from tmft.runs.result_json import RESULT_FILE
from tmft.tasks import GROUPS, TASKS

MAX_JSON_FILE = 2**22  # bytes
SIZE_GROUPS = ("sts", "transfer")  # the groups of tasks whose mean score is drawn by size


class ModelScores(NamedTuple):
    """A model as evaluate.py has scored it, from one file, after which it is named.

    parameters: their number in millions. means: {group of tasks: mean score at the last layer}, for groups of
    which every task has a score. isotropy: {layer: (uniformity, alignment, Spearman) on the first task that
    has them}. speed: (tokens, batch size, sentences per second) of each measurement on the device.
    """

    name: str
    pooling: str
    parameters: float
    means: dict[str, float]
    isotropy: dict[str, tuple[float, float, float]]
    speed: list[tuple[float, float, float]]
    device: str


def read_model_scores(folder: Path) -> list[ModelScores]:
    """Return the models whose scores evaluate.py has written to JSON files below a folder, a model in each.

    Files of older versions, without the number of parameters, are skipped. Raises InputError if such a file
    has values of another kind.
    """
    models = []
    for path in sorted(folder.glob("**/*.json")):
        if path.name == RESULT_FILE or not is_file(path) or path.stat().st_size > MAX_JSON_FILE:
            continue
        try:
            content = read_json(path)
        except InputError:
            continue  # not a file of ours
        if {"model", "pooling", "layers", "parameters"} <= content.keys():
            with reading(path):
                models.append(make_model_scores(path.stem, content))
    return models


def make_model_scores(name: str, content: dict[str, Any]) -> ModelScores:
    """Return what the figures show of a file of scores. content: that of the file."""
    last = [*content["layers"].values()][-1]
    by_group = {
        group: [last.get(task, {}).get(TASKS[task].metric) for task in GROUPS[group]] for group in SIZE_GROUPS
    }
    isotropy = {
        layer: (float(scores["uniformity"]), float(scores["alignment"]), float(scores["spearman"]))
        for layer, tasks in content["layers"].items()
        for scores in [*tasks.values()][::-1]  # of several the first one remains
        if None not in [scores.get(key) for key in ("uniformity", "alignment", "spearman")]
    }
    speed = [
        (float(entry["tokens"]), float(entry["batch_size"]), float(entry["sentences_per_second"]))
        for entry in content.get("speed", [])
    ]
    return ModelScores(
        name,
        str(content["pooling"]),
        float(content["parameters"]) / 1e6,
        {group: mean(scores) for group, scores in by_group.items() if None not in scores},
        isotropy,
        speed,
        str(content.get("environment", {}).get("device", "")),
    )


def draw_mean_score_by_size(models: list[ModelScores], path: Paths, group: str) -> None:
    """Draw the mean score on a group of tasks against the number of parameters, with a line per pooling."""
    by_pooling: dict[str, list[tuple[float, float, str]]] = {}
    for model in models:
        if group in model.means:
            point = model.parameters, 100 * model.means[group], model.name
            by_pooling.setdefault(model.pooling, []).append(point)
    xlabel = "Millions of parameters (logarithmic axis)"
    title = f"Mean score of {len(GROUPS[group])} tasks ({group}) by size"
    with figure(path, title, "each point is a model", xlabel, "Mean score × 100") as axes:
        for number, (pooling, points) in enumerate(by_pooling.items()):
            sizes, scores, _ = zip(*sorted(points), strict=True)
            draw_line(axes, number, f"pooling {pooling}", sizes, scores)
            name_points(axes, points)
        axes.margins(y=0.1)
        log_scale(axes.xaxis)


def draw_alignment_and_uniformity(models: list[ModelScores], path: Paths) -> None:
    """Draw alignment against uniformity of each layer of each model; the color is its Spearman × 100."""
    points = [
        (*point, f"{model.name}, {layer}") for model in models for layer, point in model.isotropy.items()
    ]
    labels = "Uniformity (lower is better)", "Alignment (lower is better)"
    note = "squared distances, as Wang and Isola 2020 define both; each point is a layer of a model"
    with figure(path, "Alignment and uniformity", note, *labels, height=3.4) as axes:
        x, y, scores, names = zip(*points, strict=True)
        image = axes.scatter(x, y, c=[100 * score for score in scores], cmap="cividis", s=36)
        axes.figure.colorbar(image, ax=axes, label="Spearman × 100")
        name_points(axes, [*zip(x, y, names, strict=True)])
        axes.margins(0.1)


def draw_speed(models: list[ModelScores], path: Paths) -> None:
    """Draw the sentences per second by the size of the batch, with a line per model and length."""
    devices = ", ".join(dict.fromkeys(model.device for model in models if model.speed))
    labels = "Sentences at once (logarithmic axis)", "Sentences per second"
    with figure(path, "Speed by size, length and batch", f"measured on {devices}", *labels) as axes:
        for model in models:
            for length in dict.fromkeys(tokens for tokens, *_ in model.speed):
                x, y = zip(*(point for tokens, *point in model.speed if tokens == length), strict=True)
                label = f"{model.name} ({model.parameters:.0f} M), {length:.0f} tokens"
                draw_line(axes, len(axes.lines), label, x, y)
        log_scale(axes.yaxis)
        log_scale(axes.xaxis)


def scores_table(models: list[ModelScores]) -> list[list[str]]:
    """Return a table with a line per model: its size, mean scores, uniformity and alignment (last layer)."""
    lines = [["model", "pooling", "million parameters", *SIZE_GROUPS, "uniformity", "alignment"]]
    for model in models:
        scores = [percent(model.means[group]) if group in model.means else MISSING for group in SIZE_GROUPS]
        measured = [*model.isotropy.values()]
        measures = [f"{value:.3f}" for value in measured[-1][:2]] if measured else [MISSING] * 2
        lines.append([model.name, model.pooling, f"{model.parameters:.2f}", *scores, *measures])
    return lines
