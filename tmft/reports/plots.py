"""The figures of reports and of comparisons by CKA: what is drawn. How is told in drawing.py.

A function that draws a figure takes the data and the path of the file to write, or several paths. It raises
InputError if there is nothing to draw, or if matplotlib is not installed.
"""

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from tmft.reports.drawing import (
    GRAY,
    Paths,
    draw_line,
    figure,
    heat_map,
    layer_ticks,
    line_style,
    log_scale,
    name_points,
)
from tmft.reports.run_tables import is_defined, metric_name
from tmft.runs.sweeps import Sweep

MAX_NUMBERS = 14  # layers of a map of CKA whose cells have room for a number


# ------------------------------------------------------------------------------------- figures of sweeps


def draw_score_by_layer(sweeps: list[Sweep], path: Paths, split: str = "test") -> None:
    """Draw the score x 100 by layer, with a line per sweep: mean over seeds, sample std (n - 1) shaded.

    sweeps: all on one task. A star marks the layer that is best on dev; dotted lines are the published scores
    of the authors, with crosses where they have published only some layers. Undefined scores are left out.
    """
    on_dev = ", which chooses the layer" if split == "dev" else ""
    title = f"Score by layer on {sweeps[0].data}, {split}{on_dev}"
    note = "star: the layer that is best on dev; bands: one sample standard deviation over the seeds"
    ylabel = f"{split.capitalize()} {metric_name(sweeps[0].metric)} × 100"
    drawn = [(sweep, scores) for sweep in sweeps if (scores := score_curve(sweep, split))]
    with figure(path, title, note, "Layers kept", ylabel) as axes:
        layer_ticks(axes.xaxis)
        for number, (sweep, scores) in enumerate(drawn):
            means, stds = zip(*scores.values(), strict=True)
            counts = {len(sweep.layers[layer]) for layer in scores}
            seeds = "–".join(map(str, sorted({min(counts), max(counts)})))
            label = f"{legend_name(sweep)} ({seeds} {'seed' if seeds == '1' else 'seeds'})"
            draw_line(axes, number, label, [*scores], means, stds, opacity=min(0.18, 0.4 / len(drawn)))
            if (best := sweep.best_layer) in scores and len(sweep.layers) > 1:
                star = {"marker": "*", "s": 110, "edgecolors": "black", "linewidths": 0.6, "zorder": 4}
                axes.scatter([best], [scores[best][0]], color=line_style(number)["color"], **star)
        for number, (sweep, _) in enumerate(drawn if split == "test" else ()):
            for version, theirs in sweep.published_scores.items():
                known = [layer for layer, score in enumerate(theirs) if is_defined(score)]
                marker = "" if len(known) == len(theirs) else "x"
                style = {"marker": marker, "linewidth": 0.9, "linestyle": ":"}
                label = f"{legend_name(sweep)}, as published ({version})"
                draw_line(axes, number, label, known, [theirs[i] for i in known], style=style)


def draw_score_by_size(sweeps: list[Sweep], path: Paths) -> None:
    """Draw the test score x 100 against the number of parameters of each layer, as the paper counts them.

    These are the embeddings and layers, without pooler, projection of the embeddings and relative positions.
    The gray line is the Pareto front: the models that score higher than every smaller one.
    """
    note = "numbers: layers kept. Mean over the seeds; further left is smaller, further up is better"
    xlabel = "Millions of parameters, as the paper counts (log axis)"
    ylabel = f"Test {metric_name(sweeps[0].metric)} × 100"
    points: list[tuple[float, float, int]] = []
    with figure(path, f"Score against size on {sweeps[0].data}", note, xlabel, ylabel) as axes:
        for number, sweep in enumerate(sweep for sweep in sweeps if score_curve(sweep)):
            curve = score_curve(sweep)
            sizes = [sweep.layers[layer][0]["parameters"]["paper"] / 1e6 for layer in curve]
            scores = [mean for mean, _ in curve.values()]
            draw_line(axes, number, legend_name(sweep), sizes, scores, style={"linestyle": "none"})
            points += zip(sizes, scores, curve, strict=True)
        front = pareto_front(points)
        if front:
            x, y, _ = zip(*front, strict=True)
            style = {"color": GRAY, "marker": "", "linestyle": "-", "zorder": 1}
            draw_line(axes, 0, "Pareto front, with numbers of layers", x, y, style=style)
        name_points(axes, [(size, score, str(layer)) for size, score, layer in front])
        axes.margins(y=0.1)
        log_scale(axes.xaxis)


def draw_epoch_curves(sweep: Sweep, path: Paths, quantity: str) -> None:
    """Draw the loss or the score on dev by epoch, with a line per run. quantity: "loss" or "dev"."""
    names = {sweep.num_hidden_layers: "the whole model", sweep.best_layer: "best on dev"}
    runs = [(layer, run) for layer, runs in sweep.layers.items() for run in runs]
    runs.sort(key=lambda pair: pair[0] in names)  # the gray lines come first, and are below
    title = f"{'Loss in training' if quantity == 'loss' else 'Score on dev'}: {sweep.name}"
    ylabel = "Mean loss" if quantity == "loss" else f"Dev {metric_name(sweep.metric)} × 100"
    factor = 1 if quantity == "loss" else 100
    with figure(path, title, "a line for each run, that is, layer and seed", "Epoch", ylabel) as axes:
        layer_ticks(axes.xaxis)
        for layer, run in runs:
            epochs = run.get("epochs", [])
            scores = [one.get("dev", {}).get(sweep.metric) for one in epochs]
            losses = [one.get("loss") for one in epochs]
            values = np.array(losses if quantity == "loss" else scores, dtype=float)  # None becomes NaN
            if not np.isfinite(values).any():
                continue
            style: dict[str, Any] = {"marker": "", "linewidth": 1.8}
            label = f"layer {layer}, {names.get(layer)}"
            if layer not in names:
                style |= {"color": GRAY, "linestyle": "-", "linewidth": 0.7}
                label = "other layers"
            number = 0 if layer == sweep.best_layer else 1
            label = "" if label in axes.get_legend_handles_labels()[1] else label
            draw_line(axes, number, label, range(1, len(values) + 1), (factor * values).tolist(), style=style)


# ----------------------------------------------------------------------------------------- figures of CKA


def draw_cka_by_layer(pairs: list[dict[str, Any]], path: Paths) -> None:
    """Draw linear CKA by layer, with a line per pair of checkpoints a and b.

    pairs: dicts with the keys "a", "b", "layers_of_a" and "by_layer", as cka.py writes them to JSON. The x
    axis is the layer of a; if the last layers of a are different ones, it is the relative depth in %.
    """
    are_equally_deep = len({pair["layers_of_a"][-1] for pair in pairs}) == 1
    names = short_names([pair[side] for pair in pairs for side in ("a", "b")])
    note = "1: equal up to rotation, shift and scale; 0: nothing in common"
    labels = "Layer" if are_equally_deep else "Depth (% of the layers)", cka_label(pairs[0])
    with figure(path, "Similarity of two models, layer by layer", note, *labels) as axes:
        for number, pair in enumerate(pairs):
            layers = pair["layers_of_a"]
            x = [layer if are_equally_deep else 100 * layer / max(layers[-1], 1) for layer in layers]
            draw_line(axes, number, f"{names[pair['a']]} – {names[pair['b']]}", x, pair["by_layer"])
        if are_equally_deep:
            layer_ticks(axes.xaxis)
        axes.set_ylim(min(0.0, min(min(pair["by_layer"]) for pair in pairs) - 0.03), 1.03)


def draw_cka_heat_map(pairs: list[dict[str, Any]], path: Paths) -> None:
    """Draw a heat map of the CKA of every layer of checkpoint a, on the y axis, with every layer of b.

    Layer 0 of a is at the top, as in the table that cka.py prints. The colors range from the lowest to the
    highest value, and the cells show their numbers if there are at most MAX_NUMBERS layers.
    pairs: dicts with the keys "a", "b" and "matrix", as cka.py writes them to JSON; only the first is drawn.
    """
    pair, matrix = pairs[0], pairs[0]["matrix"]
    names = short_names([pair["a"], pair["b"]])
    xlabel, ylabel = (f"Layer of {names[pair[side]]}" for side in ("b", "a"))
    title = f"{cka_label(pair)} of every layer with every layer"
    with figure(path, title, "colors from the lowest to the highest value", xlabel, ylabel, 3.6) as axes:
        has_numbers = max(len(matrix), len(matrix[0])) <= MAX_NUMBERS
        heat_map(axes, matrix, "{:.2f}" if has_numbers else "", cka_label(pair))
        layer_ticks(axes.xaxis)
        layer_ticks(axes.yaxis)


# -------------------------------------------------------------------------------- data of the figures


def score_curve(sweep: Sweep, split: str = "test") -> dict[int, tuple[float, float]]:
    """Return {layer: (mean, sample std)} of the scores x 100, for layers where no seed is undefined."""
    curve = {}
    for layer in sweep.layers:
        scores = [100 * score for score in sweep.scores(layer, split)]
        if all(map(math.isfinite, scores)):
            std = statistics.stdev(scores) if len(scores) > 1 else 0.0
            curve[layer] = statistics.mean(scores), std
    return curve


def legend_name(sweep: Sweep) -> str:
    """Return the name of a sweep without the data at its end, which is in the title."""
    return sweep.name.removesuffix(f"-{sweep.data}")


def cka_label(pair: dict[str, Any]) -> str:
    """Return the label of the axis: whether the CKA of an entry of "pairs" is debiased."""
    return "Debiased linear CKA" if pair.get("debiased") else "Linear CKA"


def pareto_front(points: list[tuple[float, float, Any]]) -> list[tuple[float, float, Any]]:
    """Return the points (size, score, ...) that score higher than all of at most their size, in order."""
    front: list[tuple[float, float, Any]] = []
    for point in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front


def short_names(checkpoints: list[str]) -> dict[str, str]:
    """Return {hub id or path: short name}: its last component, or as many as make all names distinct."""
    distinct = list(dict.fromkeys(checkpoints))
    for num_components in range(1, 9):
        names = ["/".join(Path(name).parts[-num_components:]) for name in distinct]
        if len(set(names)) == len(names):
            break
    return dict(zip(distinct, names, strict=True))
