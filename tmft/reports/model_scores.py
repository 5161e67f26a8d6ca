"""Figures of models that evaluate.py has scored: score by size, alignment against uniformity, and speed.

Ni et al. 2021 (arXiv:2108.08877) have such figures of Sentence-T5: 1, 4 and 5. They are made from the files
that `evaluate.py --json` has written, one for each model.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from tmft.errors import InputError
from tmft.io.files import is_file, read_json, reading
from tmft.io.formatting import percent
from tmft.reports.drawing import Paths, draw_line, figure, log_scale, name_points
from tmft.reports.paper_tables import MISSING
from tmft.reports.plots import short_names
from tmft.runs.result_json import RESULT_FILE
from tmft.tasks import GROUPS, TASKS

MAX_JSON_FILE = 2**22  # bytes
SIZE_GROUPS = ("sts", "transfer")  # the groups of tasks whose mean score is drawn by size
SPEED_KEYS = ("tokens", "batch_size", "sentences_per_second")


@dataclass
class ModelScores:
    """A model as evaluate.py has scored it, from one file.

    name: short and distinct. model, pooling: as in the file. parameters: number of parameters in millions.
    layers: {layer: {task: {name of a score: value}}}; undefined values are left out. speed: entries with the
    keys "tokens", "batch_size" and "sentences_per_second". device: what the speed was measured on.
    """

    name: str
    model: str
    pooling: str
    parameters: float
    layers: dict[str, dict[str, dict[str, float]]]
    speed: list[dict[str, float]]
    device: str

    def mean_score(self, group: str) -> float | None:
        """Return the mean x 100 over a group of tasks, at the last layer; None if one has no score."""
        tasks = [*self.layers.values()][-1]
        scores = [tasks.get(task, {}).get(TASKS[task].metric) for task in GROUPS[group]]
        known = [100 * score for score in scores if score is not None]
        return mean(known) if len(known) == len(scores) else None

    @property
    def isotropy(self) -> dict[str, tuple[float, float, float]]:
        """{layer: (uniformity, alignment, Spearman x 100)} on stsb, else the first task that has them."""
        found = {}
        for layer, tasks in self.layers.items():
            for scores in [tasks.get("stsb", {}), *tasks.values()]:
                if layer not in found and {"uniformity", "alignment", "spearman"} <= scores.keys():
                    found[layer] = scores["uniformity"], scores["alignment"], 100 * scores["spearman"]
        return found


def read_model_scores(folder: Path) -> list[ModelScores]:
    """Return the models whose scores evaluate.py has written to JSON files below a folder, a model in each.

    Files of older versions, without the number of parameters, are skipped. A model is named after its
    checkpoint and, if several files have the same one, after its file, too. Raises InputError if such a file
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
        if not {"model", "pooling", "layers", "parameters"} <= content.keys():
            continue
        with reading(path):
            layers = {
                layer: {
                    task: {name: float(v) for name, v in scores.items() if isinstance(v, int | float)}
                    for task, scores in tasks.items()
                }
                for layer, tasks in content["layers"].items()
            }
            speed = [{key: float(entry[key]) for key in SPEED_KEYS} for entry in content.get("speed", [])]
            device = str(content.get("environment", {}).get("device", ""))
            parameters = float(content["parameters"]) / 1e6
            if not layers or not parameters > 0 or any(min(entry.values()) <= 0 for entry in speed):
                raise ValueError("a number is not above 0, or there are no layers")
            model, pooling = str(content["model"]), str(content["pooling"])
            models.append(ModelScores(path.stem, model, pooling, parameters, layers, speed, device))
    checkpoints = [one.model for one in models]
    for one in models:
        is_single = checkpoints.count(one.model) == 1
        name = short_names(checkpoints)[one.model]
        one.name = name if is_single else f"{name}, {one.name}"
    return models


def draw_mean_score_by_size(models: list[ModelScores], path: Paths, group: str) -> None:
    """Draw the mean score on a group of tasks against the number of parameters, with a line per pooling."""
    by_pooling: dict[str, list[tuple[float, float, str]]] = {}
    for model in models:
        if (score := model.mean_score(group)) is not None:
            by_pooling.setdefault(model.pooling, []).append((model.parameters, score, model.name))
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
    """Draw alignment against uniformity of each model, or of each layer; the color is its Spearman × 100."""
    points = [
        (*measures, model.name, layer) for model in models for layer, measures in model.isotropy.items()
    ]
    labels = "Uniformity (lower is better)", "Alignment (lower is better)"
    note = "squared distances, as Wang and Isola 2020 define both"
    with figure(path, "Alignment and uniformity", note, *labels, height=3.4) as axes:
        x, y, colors, *_ = zip(*points, strict=True)
        image = axes.scatter(x, y, c=colors, cmap="cividis", s=36)
        axes.figure.colorbar(image, ax=axes, label="Spearman × 100")
        has_curves = len(models) < len(points)
        name_points(
            axes,
            [(x, y, f"{name}, {layer}" if has_curves else name) for x, y, _, name, layer in points],
        )
        axes.margins(0.1)


def draw_speed(models: list[ModelScores], path: Paths) -> None:
    """Draw the sentences per second by the size of the batch, with a line per model and length."""
    devices = ", ".join(dict.fromkeys(model.device for model in models if model.speed))
    labels = "Sentences at once (logarithmic axis)", "Sentences per second"
    with figure(path, "Speed by size, length and batch", f"measured on {devices}", *labels) as axes:
        for model in models:
            for tokens in dict.fromkeys(entry["tokens"] for entry in model.speed):
                entries = [entry for entry in model.speed if entry["tokens"] == tokens]
                x, y = ([entry[key] for entry in entries] for key in ("batch_size", "sentences_per_second"))
                label = f"{model.name} ({model.parameters:.0f} M), {tokens:.0f} tokens"
                draw_line(axes, len(axes.lines), label, x, y)
        log_scale(axes.yaxis)
        log_scale(axes.xaxis)


def scores_table(models: list[ModelScores]) -> list[list[str]]:
    """Return a table with a line per model: its size, mean scores, uniformity and alignment (last layer)."""
    lines = [["model", "pooling", "million parameters", *SIZE_GROUPS, "uniformity", "alignment"]]
    for model in models:
        means = [model.mean_score(group) for group in SIZE_GROUPS]
        measured = [*model.isotropy.values()]
        measures = [f"{value:.3f}" for value in measured[-1][:2]] if measured else [MISSING] * 2
        scores = [MISSING if score is None else percent(score / 100) for score in means]
        lines.append([model.name, model.pooling, f"{model.parameters:.2f}", *scores, *measures])
    return lines


def speed_table(models: list[ModelScores]) -> list[list[str]]:
    """Return a table with a line for each measurement of a speed."""
    lines = [["model", "device", "tokens", "sentences at once", "sentences per second"]]
    for model in models:
        for entry in model.speed:
            shape = [f"{entry['tokens']:.0f}", f"{entry['batch_size']:.0f}"]
            lines.append([model.name, model.device, *shape, f"{entry['sentences_per_second']:.1f}"])
    return lines
