"""The figures of reports, comparisons by CKA and tables: what is drawn. How is told in drawing.py.

A function that draws a figure takes the data and the path of the file to write, or several paths. It raises
InputError if there is nothing to draw, or if matplotlib is not installed.
"""

import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from tmft.errors import InputError, sanitize
from tmft.reports.comparisons import LayerComparison
from tmft.reports.drawing import (
    COLORS,
    GRAY,
    MARKERS,
    Line,
    Paths,
    check_not_empty,
    draw_lines,
    heat_map,
    layer_ticks,
    line_style,
    log_ticks,
    name_ticks,
    save_figure,
)
from tmft.reports.run_tables import is_defined, metric_name, prediction_objective, run_speed
from tmft.runs.sweeps import Sweep
from tmft.training.gradient_surgery import STEPS_PER_ENTRY

MAX_NUMBERS = 14  # layers of a map of CKA whose cells have room for a number
MAX_LABEL = 36  # characters of a name beside an axis
MAX_CURVES = 60  # runs of a sweep whose epochs are drawn
STD_NOTE = "bands and bars: one sample standard deviation over the seeds to both sides"
HELD_OUT_NOTE = "on held-out text, which was not trained on"


# ------------------------------------------------------------------------------------- figures of sweeps


def draw_score_by_layer(sweeps: list[Sweep], path: Paths, split: str = "test") -> None:
    """Draw the score x 100 by layer, with a line per sweep: mean over seeds, sample std (n - 1) shaded.

    sweeps: all on one task. A star marks the layer that is best on dev; dotted lines are the published scores
    of the authors, with crosses where they have published only some layers. Undefined scores are left out.
    """
    drawn = sweeps_with_scores(sweeps)
    lines: list[Line] = []
    published, stars = [], []
    for sweep in drawn:
        if not (scores := score_curve(sweep, split)):
            continue
        color = line_style(len(lines))["color"]
        counts = [score.seeds for score in scores.values()]
        seeds = "–".join(str(n) for n in dict.fromkeys((min(counts), max(counts))))
        label = f"{legend_name(sweep)} ({seeds} {'seed' if seeds == '1' else 'seeds'})"
        layers = range(min(scores), max(scores) + 1)
        means = [scores[layer].mean if layer in scores else math.nan for layer in layers]
        stds = [scores[layer].std if layer in scores else math.nan for layer in layers]
        lines.append(Line(label, layers, means, stds))
        if sweep.best_layer in scores and len(sweep.layers) > 1:
            stars.append((sweep.best_layer, scores[sweep.best_layer].mean, color))
        for version, theirs in sweep.published_scores.items() if split == "test" else ():
            label = f"{legend_name(sweep)}, as published ({version})"
            known = [layer for layer, score in enumerate(theirs) if is_defined(score)]
            is_curve = len(known) == len(theirs)
            style = {"color": color, "marker": "" if is_curve else "x", "linewidth": 0.9, "linestyle": ":"}
            published.append(Line(label, known, [theirs[layer] for layer in known], style=style))
    lines += published

    def finish(axes: Any) -> None:
        for layer, mean, color in stars:
            axes.scatter(
                [layer], [mean], marker="*", s=110, color=color, edgecolors="black", linewidths=0.6, zorder=4
            )
        layer_ticks(axes.xaxis)

    on_dev = ", which chooses the layer" if split == "dev" else ""
    draw_lines(
        lines,
        path,
        "Layers kept",
        f"{split.capitalize()} {metric_name(drawn[0].metric)} × 100",
        f"Score by layer on {drawn[0].data}, {split}{on_dev}",
        f"star: the layer that is best on dev; {STD_NOTE}; a thin line joins layers between which none has a "
        "score",
        finish,
    )


def draw_score_by_quantity(sweeps: list[Sweep], path: Paths, quantity: str) -> None:
    """Draw the test score x 100 against the size or the speed of each layer, which may be unknown.

    The gray line is the Pareto front: the models that score higher than every one that is as good in the
    quantity, "size" or "speed". The size is the number of parameters as the paper counts them: embeddings and
    layers, without pooler, projection of the embeddings and relative positions.
    """
    is_size = quantity == "size"
    drawn = sweeps_with_scores(sweeps)
    lines, points = [], []
    for sweep in drawn:
        if is_size:
            values = {n: runs[0]["parameters"]["paper"] / 1e6 for n, runs in sweep.layers.items()}
        else:
            values = {n: run_speed(runs) for n, runs in sweep.layers.items()}
        known = [(v, s.mean, layer) for layer, s in score_curve(sweep).items() if (v := values[layer])]
        x, y, _ = transpose(known, 3)
        lines.append(Line(legend_name(sweep), x, y, style={"linestyle": "none"}))
        points += known
    check_not_empty(points)
    front = pareto_front(points, is_cost=is_size)
    x, y, _ = transpose(front, 3)
    style = {"color": GRAY, "marker": "", "linestyle": "-", "zorder": 1}
    lines.append(Line("Pareto front, with numbers of layers", x, y, style=style))

    def finish(axes: Any) -> None:
        for value, mean, layer in labels_that_fit(front, points):
            offset = {"xytext": (-3, 4), "textcoords": "offset points", "ha": "center", "fontsize": 7}
            axes.annotate(str(layer), (value, mean), **offset)
        axes.margins(y=0.1)
        log_ticks(axes, [value for value, *_ in points])

    xlabel = "Millions of parameters, as the paper counts" if is_size else "Training examples per second"
    ylabel = f"Test {metric_name(drawn[0].metric)} × 100"
    direction = "further left is smaller" if is_size else "further right is faster"
    note = f"numbers: layers kept. Mean over the seeds; {direction}, further up is better"
    title = f"Score against {quantity} on {drawn[0].data}"
    draw_lines(lines, path, f"{xlabel} (logarithmic axis)", ylabel, title, note, finish)


def draw_epoch_curves(sweep: Sweep, path: Paths, quantity: str) -> None:
    """Draw the loss or the score on dev by epoch, with a line per run. quantity: "loss" or "dev"."""
    best, whole, factor = sweep.best_layer, sweep.num_hidden_layers, 1 if quantity == "loss" else 100
    others: list[Line] = []  # the gray lines come first, and are below
    special: list[Line] = []
    labels = set()
    for layer, run in [(layer, run) for layer, runs in sweep.layers.items() for run in runs][:MAX_CURVES]:
        numbers = [
            epoch.get("loss") if quantity == "loss" else epoch.get("dev", {}).get(sweep.metric)
            for epoch in run.get("epochs", [])
        ]
        curve = [(n, factor * value) for n, value in enumerate(numbers, start=1) if is_defined(value)]
        if not curve:
            continue
        names = {whole: f"layer {layer}, the whole model", best: f"layer {layer}, best on dev"}
        label = names.get(layer, "other layers")
        style = line_style(0 if layer == best else 1) | {"marker": "", "linewidth": 1.8}
        if layer not in names:
            style = {"color": GRAY, "marker": "", "linestyle": "-", "linewidth": 0.7}
        epochs, values = transpose(curve, 2)
        line = Line("" if label in labels else label, epochs, values, style=style)
        labels.add(label)
        (special if layer in names else others).append(line)
    title = f"{'Loss in training' if quantity == 'loss' else 'Score on dev'}: {sweep.name}"
    ylabel = "Mean loss" if quantity == "loss" else f"Dev {metric_name(sweep.metric)} × 100"
    note = "a line for each run, that is, layer and seed"
    draw_lines([*others, *special], path, "Epoch", ylabel, title, note, lambda axes: layer_ticks(axes.xaxis))


def draw_intervals(title: str, comparisons: list[LayerComparison], path: Paths) -> None:
    """Draw the differences x 100 with their 95 % confidence intervals, the first one at the top."""
    check_not_empty(comparisons)
    is_one_reference = len({one.second for one in comparisons}) == 1

    def draw(axes: Any) -> None:
        for i, one in enumerate(comparisons):
            low, middle, high = (100 * value for value in (one.low, one.difference, one.high))
            color = COLORS[0] if one.is_significant else GRAY
            bar = {"xerr": [[max(0.0, middle - low)], [max(0.0, high - middle)]], "color": color}
            axes.errorbar([middle], [i], fmt=MARKERS[0], capsize=2.5, linewidth=1.2, **bar)
        axes.axvline(0, color=GRAY, linewidth=0.8)
        names = [sanitize(one.first, MAX_LABEL) for one in comparisons]
        if not is_one_reference:
            seconds = [sanitize(one.second, MAX_LABEL) for one in comparisons]
            names = [f"{first}\n– {second}" for first, second in zip(names, seconds, strict=True)]
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel("Difference of the test scores × 100")

    reference = f" from {comparisons[0].second}" if is_one_reference else ""
    note = "bars: 95 % confidence intervals; gray: the interval contains 0"
    height = 0.8 + (0.24 if is_one_reference else 0.36) * len(comparisons)
    save_figure(draw, path, height=height, title=f"{title}: differences{reference}", note=note)


# --------------------------------------------------------------------------- figures of pre-training runs


def draw_mlm_loss(results: list[dict[str, Any]], path: Paths) -> None:
    """Draw the loss on masked tokens, with replaced token detection that of the generator, by tokens seen."""
    kinds = {"rtd": ", generator", "span": ", spans of tokens"}
    lines = []
    for result in results:
        loss = f"{prediction_objective(result['held_out']['after'])}_loss"
        name = result["sweep"] + kinds.get(result["settings"]["task"], "")
        lines.append(held_out_line(name, result, loss))
    labels = "Tokens seen (millions)", "Loss on masked tokens (nats)"
    draw_lines(lines, path, *labels, "Pre-training: loss on masked tokens", HELD_OUT_NOTE)


def draw_rtd_accuracy(results: list[dict[str, Any]], path: Paths) -> None:
    """Draw the accuracy of replaced token detection, and that of predicting "original" for every token."""
    metrics = {"rtd_accuracy": "", "rtd_baseline": ": always “original”"}
    lines = [
        held_out_line(f"{result['sweep']}{suffix}", result, metric, 100)
        for result in results
        for metric, suffix in metrics.items()
    ]
    labels = "Tokens seen (millions)", "Accuracy (%)"
    draw_lines(lines, path, *labels, "Pre-training: replaced token detection", HELD_OUT_NOTE)


def held_out_line(label: str, result: dict[str, Any], metric: str, factor: float = 1) -> Line:
    """Return factor x a metric on held-out text by millions of tokens seen, for each entry of the log."""
    entries = [entry for entry in result["curve"] if is_defined(entry["held_out"].get(metric))]
    tokens = [entry["tokens"] / 1e6 for entry in entries]
    return Line(label, tokens, [factor * entry["held_out"][metric] for entry in entries])


def draw_gradient_cosines(results: list[dict[str, Any]], path: Paths) -> None:
    """Draw the cosine of the gradients of every two tasks by step, for the first run of each sweep."""
    first = {result["sweep"]: result for result in reversed(results)}
    cosines: dict[str, list[float]] = {}
    for name, result in reversed(first.items()):
        for epoch in result["epochs"]:
            for pair, values in (epoch.get("gradient_cosines") or {}).items():
                cosines.setdefault(f"{name}: {pair}" if len(first) > 1 else pair, []).extend(values)
    lines = [
        Line(name, [(i + 0.5) * STEPS_PER_ENTRY for i in range(len(values))], values)
        for name, values in cosines.items()
    ]
    note = "cosine of the gradients of two tasks: 1 the same direction, 0 independent, −1 opposite"
    labels = f"Step (means over {STEPS_PER_ENTRY} steps)", "Cosine"
    title = "Do the tasks pull in the same direction?"
    draw_lines(lines, path, *labels, title, note, lambda axes: axes.axhline(0, color=GRAY, linewidth=0.8))


# ----------------------------------------------------------------------------------------- figures of CKA


def draw_cka_by_layer(pairs: list[dict[str, Any]], path: Paths) -> None:
    """Draw linear CKA by layer, with a line per pair of checkpoints a and b.

    pairs: dicts with the keys "a", "b", "layers_of_a" and "by_layer", as cka.py writes them to JSON. The x
    axis is the layer of a; if the last layers of a are different ones, it is the relative depth in %.
    """
    are_equally_deep = len({pair["layers_of_a"][-1] for pair in pairs}) == 1
    names = short_names([pair[side] for pair in pairs for side in ("a", "b")])
    lines = []
    for pair in pairs:
        layers = pair["layers_of_a"]
        x = [layer if are_equally_deep else 100 * layer / max(layers[-1], 1) for layer in layers]
        lines.append(Line(f"{names[pair['a']]} – {names[pair['b']]}", x, pair["by_layer"]))

    def finish(axes: Any) -> None:
        if are_equally_deep:
            layer_ticks(axes.xaxis)
        axes.set_ylim(min(0.0, min(min(line.y) for line in lines) - 0.03), 1.03)

    labels = "Layer" if are_equally_deep else "Depth (% of the layers)", cka_label(pairs[0])
    note = "1: equal up to rotation, shift and scale; 0: nothing in common"
    draw_lines(lines, path, *labels, "Similarity of two models, layer by layer", note, finish)


def draw_cka_heat_map(pairs: list[dict[str, Any]], path: Paths) -> None:
    """Draw a heat map of the CKA of every layer of checkpoint a, on the y axis, with every layer of b.

    Layer 0 of a is at the top, as in the table that cka.py prints. The colors range from the lowest to the
    highest value, and the cells show their numbers if there are at most MAX_NUMBERS layers.
    pairs: dicts with the keys "a", "b" and "matrix", as cka.py writes them to JSON; only the first is drawn.
    """
    pair, matrix = pairs[0], pairs[0]["matrix"]
    names = short_names([pair["a"], pair["b"]])
    has_numbers = max(len(matrix), len(matrix[0])) <= MAX_NUMBERS

    def draw(axes: Any) -> None:
        number_format = "{:.2f}" if has_numbers else ""
        image = heat_map(axes, matrix, number_format)
        axes.figure.colorbar(image, ax=axes, label=cka_label(pair))
        layer_ticks(axes.xaxis)
        layer_ticks(axes.yaxis)
        axes.set_xlabel(f"Layer of {sanitize(names[pair['b']], MAX_LABEL)}")
        axes.set_ylabel(f"Layer of {sanitize(names[pair['a']], MAX_LABEL)}")

    title = f"{cka_label(pair)} of every layer with every layer"
    save_figure(draw, path, height=3.6, title=title, note="colors from the lowest to the highest value")


# --------------------------------------------------------------------------- figures of scores by position


def draw_score_curves(
    lines: dict[str, list[tuple[str, float, float]]],
    path: Paths,
    xlabel: str,
    ylabel: str,
    over: str = "tasks",
) -> None:
    """Draw scores x 100 at named positions such as layers, with a line per name: mean, sample std shaded.

    lines: {name: [(position, mean, sample std), ...]}, not x 100. The x axis has the positions in the order
    in which they first occur. A name with a single point, such as a baseline, is drawn as a dashed horizontal
    line. over: what the mean and the std are taken over.
    """
    lines = {
        name: points for name, points in lines.items() if any(math.isfinite(mean) for _, mean, _ in points)
    }
    curves = {name: points for name, points in lines.items() if len(points) != 1}
    positions = list(dict.fromkeys(position for points in curves.values() for position, *_ in points))
    drawn: list[Line] = []
    num_baselines = 0
    for name, points in lines.items():
        if name in curves:
            scores = {position: mean_and_std for position, *mean_and_std in points}
            means, stds = (
                [100 * scores[position][i] if position in scores else math.nan for position in positions]
                for i in (0, 1)
            )
            drawn.append(Line(name, range(len(positions)), means, stds))
        else:
            mean = 100 * points[0][1]
            dashes = (0, (3 + 3 * num_baselines, 3))  # longer for each further baseline
            num_baselines += 1
            drawn.append(Line(f"{name}: {mean:.2f}", (), [mean], style={"marker": "", "linestyle": dashes}))

    def finish(axes: Any) -> None:
        axes.margins(x=0.03)
        name_ticks(axes, positions, inches=4.1)

    note = f"bands: one sample standard deviation over the {over} to both sides"
    draw_lines(drawn, path, xlabel, ylabel, f"Mean {ylabel} by {xlabel}", note, finish)


# -------------------------------------------------------------------------------- data of the figures


class LayerScore(NamedTuple):
    """The score x 100 of a layer: its mean and sample std over the seeds, 0 for one seed."""

    mean: float
    std: float
    seeds: int


def score_curve(sweep: Sweep, split: str = "test") -> dict[int, LayerScore]:
    """Return {layer: score} for the layers of a sweep that have a defined score."""
    curve = {}
    for layer in sweep.layers:
        if scores := [100 * score for score in sweep.scores(layer, split) if math.isfinite(score)]:
            std = statistics.stdev(scores) if len(scores) > 1 else 0.0
            curve[layer] = LayerScore(statistics.mean(scores), std, len(scores))
    return curve


def sweeps_with_scores(sweeps: list[Sweep]) -> list[Sweep]:
    """Return the sweeps that have a defined score. Raises InputError if none has, or if they mix tasks."""
    tasks = {(sweep.data, sweep.metric) for sweep in sweeps}
    if len(tasks) != 1:
        names = ", ".join(sorted(data for data, _ in tasks)) or "none"
        raise InputError(f"results of {names}: a figure takes the runs of one task")
    drawn = [sweep for sweep in sweeps if score_curve(sweep)]
    if not drawn:
        raise InputError("no run has a score (result.json): there is nothing to draw")
    return drawn


def legend_name(sweep: Sweep) -> str:
    """Return the name of a sweep without the data at its end, which is in the title."""
    return sweep.name.removesuffix(f"-{sweep.data}")


def cka_label(pair: dict[str, Any]) -> str:
    """Return the label of the axis: whether the CKA of an entry of "pairs" is debiased."""
    return "Debiased linear CKA" if pair.get("debiased") else "Linear CKA"


def transpose(points: list[tuple[Any, ...]], num_components: int) -> list[list[Any]]:
    """Return a list of each component of the points; the lists are empty without points."""
    return [[point[i] for point in points] for i in range(num_components)]


def pareto_front(points: list[tuple[Any, ...]], is_cost: bool = True) -> list[tuple[Any, ...]]:
    """Return the points (value, score, ...) that score higher than all others of a value as good, in order.

    is_cost: a smaller value is better, such as that of a size; else a larger one, such as that of a speed.
    """
    front: list[tuple[Any, ...]] = []
    for point in sorted(points, key=lambda point: (point[0] if is_cost else -point[0], -point[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front


def labels_that_fit(front: list[tuple[Any, ...]], points: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the points of a Pareto front that can be labeled without overlap, the highest first."""
    width = math.log(max(x for x, *_ in points) / min(x for x, *_ in points)) or 1
    height = (max(y for _, y, *_ in points) - min(y for _, y, *_ in points)) or 1
    labeled: list[tuple[Any, ...]] = []
    for point in reversed(front):
        x, y = labeled[-1][:2] if labeled else (math.inf, math.inf)
        if abs(math.log(x / point[0])) > 0.05 * width or y - point[1] > 0.04 * height:
            labeled.append(point)
    return labeled


def short_names(checkpoints: list[str]) -> dict[str, str]:
    """Return {hub id or path: short name}: its last component, or as many as make all names distinct."""
    distinct = list(dict.fromkeys(checkpoints))
    for num_components in range(1, 9):
        names = ["/".join(Path(name).parts[-num_components:]) for name in distinct]
        if len(set(names)) == len(names):
            break
    return dict(zip(distinct, names, strict=True))
