"""Figures of models that evaluate.py has scored: score by size, alignment against uniformity, and speed.

Ni et al. 2021 (arXiv:2108.08877) have such figures of Sentence-T5: 1, 4 and 5. They are made from the files
that `evaluate.py --json` has written, one for each model.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from tmft.io.files import reading
from tmft.io.formatting import percent
from tmft.reports.drawing import Line, Paths, check_not_empty, draw_lines, log_ticks, save_figure
from tmft.reports.plots import short_names
from tmft.tasks import GROUPS, TASKS

SIZE_GROUPS = ("sts", "transfer")  # the groups of tasks whose mean score is drawn by size
SPEED_KEYS = ("tokens", "batch_size", "sentences_per_second")


@dataclass
class ModelScores:
    """A model as evaluate.py has scored it, in one file or in several.

    name: short and distinct. model, pooling: as in the files. parameters: number of parameters in millions.
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

    def merge(self, other: "ModelScores") -> bool:
        """Add the scores of another file of the same model; add none and return False if a score differs."""
        for layer, tasks in other.layers.items():
            for task, scores in tasks.items():
                known = self.layers.get(layer, {}).get(task, {})
                if any(known.get(name, value) != value for name, value in scores.items()):
                    return False
        for layer, tasks in other.layers.items():
            for task, scores in tasks.items():
                self.layers.setdefault(layer, {}).setdefault(task, {}).update(scores)
        if other.speed:
            self.speed, self.device = other.speed, other.device
        return True


def read_model_scores(files: list[tuple[Path, dict[str, Any]]]) -> list[ModelScores]:
    """Return the models in those of some JSON files that evaluate.py has written for one model.

    files: (path, content). Files of older versions, without the number of parameters, are skipped. Files of
    the same model, pooling and size are one, unless they differ in a score, as with different options.
    Raises InputError if such a file has values of another kind.
    """
    models: list[ModelScores] = []
    for path, content in files:
        if not {"model", "pooling", "layers", "parameters"} <= content.keys():
            continue
        with reading(path):
            one = ModelScores(
                path.stem,
                str(content["model"]),
                str(content["pooling"]),
                float(content["parameters"]) / 1e6,
                {
                    layer: {
                        task: {name: float(v) for name, v in scores.items() if isinstance(v, int | float)}
                        for task, scores in tasks.items()
                    }
                    for layer, tasks in content["layers"].items()
                },
                [{key: float(entry[key]) for key in SPEED_KEYS} for entry in content.get("speed", [])],
                str(content.get("environment", {}).get("device", "")),
            )
            if not one.layers or not one.parameters > 0 or any(min(e.values()) <= 0 for e in one.speed):
                raise ValueError("a number is not above 0, or there are no layers")
        about = one.model, one.pooling, one.parameters
        same = (m for m in models if (m.model, m.pooling, m.parameters) == about)
        if not any(model.merge(one) for model in same):
            models.append(one)
    short = short_names([model.model for model in models])
    for model in models:
        same_model = [other for other in models if other.model == model.model]
        poolings = [other.pooling for other in same_model]
        if len(same_model) == 1:
            model.name = short[model.model]
        elif len(set(poolings)) == len(poolings):
            model.name = f"{short[model.model]}, {model.pooling}"
        else:
            model.name = f"{short[model.model]}, {model.name}"
    return models


def draw_score_by_size(models: list[ModelScores], path: Paths, group: str) -> None:
    """Draw the mean score on a group of tasks against the number of parameters, with a line per pooling."""
    by_pooling: dict[str, list[tuple[float, float, str]]] = {}
    for model in models:
        if (score := model.mean_score(group)) is not None:
            by_pooling.setdefault(model.pooling, []).append((model.parameters, score, model.name))
    points = [point for line in by_pooling.values() for point in line]
    check_not_empty(points)
    lines = []
    for pooling, line in by_pooling.items():
        sizes, scores, _ = zip(*sorted(line), strict=True)
        lines.append(Line(f"pooling {pooling}", sizes, scores))

    def finish(axes: Any) -> None:
        for size, score, name in points:
            offset = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 7}
            axes.annotate(name, (size, score), **offset)
        axes.margins(y=0.1)
        log_ticks(axes, [size for size, *_ in points])

    xlabel = "Millions of parameters (logarithmic axis)"
    title = f"Mean score of {len(GROUPS[group])} tasks ({group}) by size"
    draw_lines(lines, path, xlabel, "Mean score × 100", title, "each point is a model", finish)


def draw_alignment_and_uniformity(models: list[ModelScores], path: Paths) -> None:
    """Draw alignment against uniformity of each model, or of each layer; the color is its Spearman × 100."""
    points = [
        (*measures, model.name, layer) for model in models for layer, measures in model.isotropy.items()
    ]
    check_not_empty(points)

    def draw(axes: Any) -> None:
        x, y, colors, *_ = zip(*points, strict=True)
        image = axes.scatter(x, y, c=colors, cmap="cividis", s=36)
        axes.figure.colorbar(image, ax=axes, label="Spearman × 100")
        for uniformity, alignment, _, name, layer in points:
            label = name if len(models) == len(points) else f"{name}, {layer}" if len(models) > 1 else layer
            axes.annotate(
                label, (uniformity, alignment), xytext=(4, 4), textcoords="offset points", fontsize=7
            )
        axes.margins(0.1)
        axes.set_xlabel("Uniformity (lower is better)")
        axes.set_ylabel("Alignment (lower is better)")

    note = "squared distances, as Wang and Isola 2020 define both"
    save_figure(draw, path, height=3.4, title="Alignment and uniformity", note=note)


def draw_speed(models: list[ModelScores], path: Paths) -> None:
    """Draw the sentences per second by the size of the batch, with a line per model and length."""
    lines = []
    for model in models:
        size = f" ({model.parameters:,.0f} M)"
        for tokens in dict.fromkeys(entry["tokens"] for entry in model.speed):
            entries = [entry for entry in model.speed if entry["tokens"] == tokens]
            x, y = ([entry[key] for entry in entries] for key in ("batch_size", "sentences_per_second"))
            lines.append(Line(f"{model.name}{size}, {tokens:.0f} tokens", x, y))

    def finish(axes: Any) -> None:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        log_ticks(axes, [x for line in lines for x in line.x])

    devices = ", ".join(dict.fromkeys(model.device for model in models if model.speed))
    labels = "Sentences at once (logarithmic axis)", "Sentences per second"
    draw_lines(lines, path, *labels, "Speed by size, length and batch", f"measured on {devices}", finish)


def scores_table(models: list[ModelScores]) -> list[list[str]]:
    """Return a table with a line per model: its size, mean scores, uniformity and alignment (last layer)."""
    lines = [["model", "pooling", "million parameters", *SIZE_GROUPS, "uniformity", "alignment"]]
    for model in models:
        means = [model.mean_score(group) for group in SIZE_GROUPS]
        measured = [*model.isotropy.values()]
        measures = [f"{value:.3f}" for value in measured[-1][:2]] if measured else ["", ""]
        size = f"{model.parameters:,.2f}"
        scores = [percent(score / 100) if score is not None else "" for score in means]
        lines.append([model.name, model.pooling, size, *scores, *measures])
    return lines


def speed_table(models: list[ModelScores]) -> list[list[str]]:
    """Return a table with a line for each measurement of a speed."""
    lines = [["model", "device", "tokens", "sentences at once", "sentences per second"]]
    for model in models:
        for entry in model.speed:
            shape = [f"{entry['tokens']:.0f}", f"{entry['batch_size']:.0f}"]
            lines.append([model.name, model.device, *shape, f"{entry['sentences_per_second']:,.1f}"])
    return lines
