"""Figures, drawn from scores by matplotlib and written as PNG, PDF or SVG, by the ending of the file name.

A function that draws a figure takes the data and the path of the file to write, or several paths. It raises
InputError if there is nothing to draw, or if matplotlib is not installed.

Lines differ in color, dash and marker, so that they can be distinguished without colors and in gray print.
The colors are those of Okabe and Ito 2008, made for all kinds of color vision. Each figure has a title, and
below it what its bands and signs mean; both are also in the file, for screen readers and search. Text stays
text in SVG and PDF, and the same figure always has the same bytes.
"""

import math
import statistics
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from tmft.errors import InputError, sanitize
from tmft.io.atomic import write_file
from tmft.pretraining.heads import objective_name
from tmft.reports.comparisons import LayerComparison
from tmft.reports.tables import defined, metric_name, run_speed
from tmft.runs.sweeps import Sweep
from tmft.training.gradient_surgery import STEPS_PER_ENTRY

FORMATS = (".png", ".pdf", ".svg")
NEEDS_MATPLOTLIB = "figures need matplotlib, which is not installed: pip install matplotlib"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
GRAY, INK = "#777777", "#111111"  # of reference lines; of numbers on light cells
MARKERS, DASHES = "osD^vPX*", ("-", "--", "-.", ":")
SMALL = {"fontsize": 6.5}  # size in points of the text in the cells of a heat map and at its ticks
CELL_SIZE = 0.32, 0.2  # width and height in inches of a cell that holds "100.0" in small type
MAX_NUMBERS = 14  # layers of a map of CKA whose cells have room for a number
MAX_LABEL, MAX_LEGEND = 36, 56  # characters of a name beside an axis, and in the legend
MAX_CURVES = 60  # runs of a sweep whose epochs are drawn
STAR_NOTE = "star: the layer that is best on dev"
STD_NOTE = "bands and bars: one sample standard deviation over the seeds to both sides"
HELD_OUT_NOTE = "on held-out text, which was not trained on"
CHARACTER_WIDTH = 0.0088  # average width of a character, in inches per point of font size
STYLE: dict[Any, Any] = {  # entries of rcParams
    "font.size": 9,
    "text.parse_math": False,  # a dollar sign in a name is printed
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,  # the grid is under the lines
    "font.family": ["DejaVu Sans", "sans-serif"],
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,  # TrueType: journals refuse the default, Type 3
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tmft",  # the same figure gives the same bytes
}

Paths = Path | Sequence[Path]


# ------------------------------------------------------------------------------------- figures of sweeps


def score_by_layer(
    sweeps: list[Sweep], path: Paths, split: str = "test", baselines: dict[str, float] | None = None
) -> None:
    """Draw the score x 100 by layer, with a line per sweep: mean over seeds, sample std (n - 1) shaded.

    sweeps: all on one task. A star marks the layer that is best on dev; dotted lines are the published scores
    of the authors, and {method without a model: score} in baselines. Undefined scores are left out.
    """
    drawn = sweeps_with_scores(sweeps)
    published = [sweep for sweep in drawn if split == "test" and sweep.published_scores]
    references = {name: score for name, score in (baselines or {}).items() if defined(score)}

    def draw(axes: Any) -> None:
        for number, sweep in enumerate(drawn):
            layers, means, stds, counts = score_curve(sweep, split)
            seeds = "–".join(str(n) for n in dict.fromkeys((min(counts), max(counts))))
            label = f"{legend_name(sweep)} ({seeds} {'seed' if seeds == '1' else 'seeds'})"
            scores = dict(zip(layers, zip(means, stds, strict=True), strict=True))
            every_layer = range(layers[0], layers[-1] + 1)
            mean, std = ([scores.get(layer, (math.nan,) * 2)[i] for layer in every_layer] for i in (0, 1))
            line_with_band(axes, every_layer, mean, std, label, number)
            if sweep.best_layer in scores and len(sweep.layers) > 1:
                style = {"marker": "*", "s": 110, "color": line_style(number)["color"], "edgecolors": "black"}
                axes.scatter(
                    [sweep.best_layer], scores[sweep.best_layer][:1], linewidths=0.6, zorder=4, **style
                )
        for sweep in published:
            label = f"{legend_name(sweep)}, as published by the authors"
            style = {"color": line_style(drawn.index(sweep))["color"], "linewidth": 0.9, "linestyle": ":"}
            axes.plot(sweep.published_scores, label=label, **style)
        for number, (name, score) in enumerate(references.items()):
            label = f"{name}, without any model: {100 * score:.2f}"
            style = {"color": GRAY, "linewidth": 1, "linestyle": (0, (4, 2 + 3 * number))}
            axes.axhline(100 * score, label=label, **style)
        layer_ticks(axes.xaxis)
        axes.set_xlabel("Layers kept")
        axes.set_ylabel(f"{split.capitalize()} {metric_name(drawn[0].metric)} × 100")
        legend_above(axes)

    note = f"{STAR_NOTE}; {STD_NOTE}; a thin line joins layers between which none has a score"
    lines = len(drawn) + len(published) + len(references)
    on_dev = ", which chooses the layer" if split == "dev" else ""
    save_figure(draw, path, lines, title=f"Score by layer on {drawn[0].data}, {split}{on_dev}", note=note)


def score_by_parameters(sweeps: list[Sweep], path: Paths) -> None:
    """Draw the test score x 100, mean over seeds, against millions of stored parameters."""
    xlabel = "Parameters stored (millions, logarithmic axis)"
    millions = lambda runs: runs[0]["parameters"].get("stored", 0) / 1e6  # noqa: E731
    score_against("size", millions, sweeps, path, xlabel, "further left is smaller", is_cost=True)


def score_by_speed(sweeps: list[Sweep], path: Paths) -> None:
    """Draw the test score x 100, mean over seeds, against training examples per second."""
    xlabel = "Training examples per second (logarithmic axis)"
    score_against("speed", run_speed, sweeps, path, xlabel, "further right is faster", is_cost=False)


def score_against(
    quantity: str,
    value_of: Callable[[list[dict[str, Any]]], float | None],
    sweeps: list[Sweep],
    path: Paths,
    xlabel: str,
    direction: str,
    is_cost: bool,
) -> None:
    """Draw the test score against a value of the runs of each layer, which is left out if it is unknown.

    The line is the Pareto front: the models that score higher than every one that is as good in the value.
    is_cost: a smaller value is better.
    """
    drawn = sweeps_with_scores(sweeps)
    of_sweeps: list[list[tuple[float, float, int]]] = []
    for sweep in drawn:
        layers, means, *_ = score_curve(sweep)
        values = [value_of(sweep.layers[layer]) for layer in layers]
        of_sweeps.append([(v, m, layer) for v, m, layer in zip(values, means, layers, strict=True) if v])
    points = list(chain(*of_sweeps))
    check_not_empty(points)

    def draw(axes: Any) -> None:
        for number, known in enumerate(of_sweeps):
            style = line_style(number) | {"linestyle": "none"}
            axes.plot(column(known, 0), column(known, 1), label=legend_name(drawn[number]), **style)
        front = pareto_front(points, is_cost)
        label = "Pareto front, with numbers of layers"
        axes.plot(column(front, 0), column(front, 1), color=GRAY, zorder=1, label=label)
        for value, mean, layer in labels_that_fit(front, points):
            offset = {"xytext": (-3, 4), "textcoords": "offset points", "ha": "center", "fontsize": 7}
            axes.annotate(str(layer), (value, mean), **offset)
        axes.margins(y=0.1)
        log_ticks(axes, column(points, 0))
        axes.set_xlabel(xlabel)
        axes.set_ylabel(f"Test {metric_name(drawn[0].metric)} × 100")
        legend_above(axes)

    note = f"numbers: layers kept. Mean over the seeds; {direction}, further up is better"
    save_figure(draw, path, len(drawn) + 1, title=f"Score against {quantity} on {drawn[0].data}", note=note)


def epoch_curves(sweep: Sweep, path: Paths, quantity: str) -> None:
    """Draw the loss or the score on dev by epoch, with a line per run. quantity: "loss" or "dev"."""
    best, whole, factor = sweep.best_layer, sweep.num_hidden_layers, 1 if quantity == "loss" else 100
    groups: dict[str, list[list[tuple[int, float]]]] = {}
    for layer, run in [(layer, run) for layer, runs in sweep.layers.items() for run in runs][:MAX_CURVES]:
        group = f"layer {layer}, best on dev" if layer == best else "other layers"
        group = f"layer {layer}, the whole model" if layer == whole != best else group
        numbers = [
            epoch.get("loss") if quantity == "loss" else epoch.get("dev", {}).get(sweep.metric)
            for epoch in run.get("epochs", [])
        ]
        if curve := [(n, factor * value) for n, value in enumerate(numbers, start=1) if defined(value)]:
            groups.setdefault(group, []).append(curve)
    check_not_empty(groups)

    def draw(axes: Any) -> None:
        for name in sorted(groups, key=lambda name: name != "other layers"):  # the gray ones below
            number = 0 if "best" in name else 1
            style = line_style(number) | {"marker": "", "linewidth": 1.8}
            style = {"color": GRAY, "linewidth": 0.7} if name == "other layers" else style
            for i, curve in enumerate(groups[name]):
                label = name if i == 0 else None
                axes.plot(column(curve, 0), column(curve, 1), label=label, **style)
        layer_ticks(axes.xaxis)
        axes.set_xlabel("Epoch")
        axes.set_ylabel("Mean loss" if quantity == "loss" else f"Dev {metric_name(sweep.metric)} × 100")
        legend_above(axes)

    title = f"{'Loss in training' if quantity == 'loss' else 'Score on dev'}: {sweep.name}"
    save_figure(draw, path, len(groups), title=title, note="a line for each run, that is, layer and seed")


def intervals(title: str, comparisons: list[LayerComparison], path: Paths) -> None:
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
        names = [one.first if is_one_reference else f"{one.first} – {one.second}" for one in comparisons]
        axes.set_yticks(range(len(names)), [sanitize(name, MAX_LABEL) for name in names], fontsize=7)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel("Difference of the test scores × 100")

    reference = f" from {comparisons[0].second}" if is_one_reference else ""
    note = "bars: 95 % confidence intervals; gray: the interval contains 0"
    height = 0.8 + 0.24 * len(comparisons)
    save_figure(draw, path, height=height, title=f"{title}: differences{reference}", note=note)


# --------------------------------------------------------------------------- figures of pre-training runs


def mlm_loss_by_tokens(results: list[dict[str, Any]], path: Paths) -> None:
    """Draw the loss on masked tokens of held-out text against millions of tokens seen, with a line per run.

    results: contents of result.json of pre-training runs. For replaced token detection, it is the loss of the
    generator.
    """
    kinds = {"rtd": ", generator", "span": ", spans of tokens"}
    lines = []
    for result in results:
        loss = f"{objective_name(result['held_out']['after'])}_loss"
        name = result["sweep"] + kinds.get(result["settings"]["task"], "")
        lines.append((name, *pretraining_curve(result, loss)))
    labels = "Tokens seen (millions)", "Loss on masked tokens (nats)"
    draw_lines(lines, path, *labels, "Pre-training: loss on masked tokens", HELD_OUT_NOTE)


def rtd_accuracy_by_tokens(results: list[dict[str, Any]], path: Paths) -> None:
    """Draw the accuracy of replaced token detection on held-out text, in %, against millions of tokens seen.

    Each run has two lines: its accuracy, and the baseline of predicting "original" for every token. results:
    contents of result.json of runs of replaced token detection.
    """
    lines = []
    for result in results:
        lines.append((result["sweep"], *pretraining_curve(result, "rtd_accuracy", 100)))
        lines.append(
            (f"{result['sweep']}: always “original”", *pretraining_curve(result, "rtd_baseline", 100))
        )
    labels = "Tokens seen (millions)", "Accuracy (%)"
    draw_lines(lines, path, *labels, "Pre-training: replaced token detection", HELD_OUT_NOTE)


def pretraining_curve(
    result: dict[str, Any], name: str, factor: float = 1
) -> tuple[list[float], list[float]]:
    """Return millions of tokens seen and factor x a metric on held-out text, for each entry of the log."""
    entries = [entry for entry in result["curve"] if defined(entry["held_out"].get(name))]
    return [entry["tokens"] / 1e6 for entry in entries], [
        factor * entry["held_out"][name] for entry in entries
    ]


def gradient_cosines(results: list[dict[str, Any]], path: Paths) -> None:
    """Draw the cosine similarity of the gradients of two tasks by step, with a line per pair of tasks.

    results: contents of result.json of runs that logged it (gradient_surgery "log" or "pcgrad"); of each
    sweep, the first run is drawn.
    """
    first = {result["sweep"]: result for result in reversed(results)}
    cosines: dict[str, list[float]] = {}
    for name, result in reversed(first.items()):
        for epoch in result["epochs"]:
            for pair, values in (epoch.get("gradient_cosines") or {}).items():
                cosines.setdefault(f"{name}: {pair}" if len(first) > 1 else pair, []).extend(values)
    lines = [
        (name, [(i + 0.5) * STEPS_PER_ENTRY for i in range(len(values))], values)
        for name, values in cosines.items()
    ]
    note = "cosine of the gradients of two tasks: 1 the same direction, 0 independent, −1 opposite"
    labels = f"Step (means over {STEPS_PER_ENTRY} steps)", "Cosine"
    title = "Do the tasks pull in the same direction?"
    draw_lines(lines, path, *labels, title, note, lambda axes: axes.axhline(0, color=GRAY, linewidth=0.8))


def draw_lines(
    lines: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    path: Paths,
    xlabel: str,
    ylabel: str,
    title: str,
    note: str,
    finish: Callable[[Any], object] = lambda axes: None,
) -> None:
    """Draw lines of (name, x, y). finish: what else is done with the axes."""

    def draw(axes: Any) -> None:
        for number, (name, x, y) in enumerate(lines):
            axes.plot(x, y, label=name, **line_style(number) | {"markevery": max(1, len(x) // 30)})
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        finish(axes)
        legend_above(axes)

    save_figure(draw, path, len(lines), title=title, note=note)


# ----------------------------------------------------------------------------------------- figures of CKA


def cka_by_layer(pairs: list[dict[str, Any]], path: Paths) -> None:
    """Draw linear CKA by layer, with a line per pair of checkpoints a and b.

    pairs: dicts with the keys "a", "b" and "by_layer", as cka.py writes them to JSON. The x axis is the layer
    of a; if the checkpoints a have different numbers of layers, it is their relative depth in %.
    """
    are_equally_deep = len({len(pair["by_layer"]) for pair in pairs}) == 1
    names = short_names([pair[side] for pair in pairs for side in ("a", "b")])
    lines = []
    for pair in pairs:
        last = len(pair["by_layer"]) - 1
        x = [layer if are_equally_deep else 100 * layer / max(last, 1) for layer in range(last + 1)]
        lines.append((f"{names[pair['a']]} – {names[pair['b']]}", x, pair["by_layer"]))

    def finish(axes: Any) -> None:
        if are_equally_deep:
            layer_ticks(axes.xaxis)
        axes.set_ylim(min(0.0, min(min(y) for _, _, y in lines) - 0.03), 1.03)

    labels = "Layer" if are_equally_deep else "Depth (% of the layers)", cka_label(pairs[0])
    note = "1: equal up to rotation, shift and scale; 0: nothing in common"
    draw_lines(lines, path, *labels, "Similarity of two models, layer by layer", note, finish)


def cka_heat_map(pairs: list[dict[str, Any]], path: Paths) -> None:
    """Draw a heat map of the CKA of every layer of checkpoint a, on the y axis, with every layer of b.

    Layer 0 of a is at the top, as in the table that cka.py prints. The colors range from the lowest to the
    highest value, and the cells show their numbers if there are at most MAX_NUMBERS layers.
    pairs: dicts with the keys "a", "b" and "matrix", as cka.py writes them to JSON; only the first is drawn.
    """
    pair, matrix = pairs[0], pairs[0]["matrix"]
    names = short_names([pair["a"], pair["b"]])

    def draw(axes: Any) -> None:
        image = heat_map(axes, matrix, origin="upper", aspect="equal")
        if max(len(matrix), len(matrix[0])) <= MAX_NUMBERS:
            numbers = [[f"{v:.2f}".replace("0.", ".", 1).replace("-", "−") for v in row] for row in matrix]
            write_numbers(axes, image, matrix, numbers, fontsize=5.5)
        axes.figure.colorbar(image, ax=axes, label=cka_label(pair))
        layer_ticks(axes.xaxis)
        layer_ticks(axes.yaxis)
        axes.set_xlabel(f"Layer of {sanitize(names[pair['b']], MAX_LABEL)}")
        axes.set_ylabel(f"Layer of {sanitize(names[pair['a']], MAX_LABEL)}")

    title = f"{cka_label(pair)} of every layer with every layer"
    save_figure(draw, path, height=3.6, title=title, note="colors from the lowest to the highest value")


# --------------------------------------------------------------------------- figures of scores by position


def score_curves(
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
    drawn = {name: points for name, points in lines.items() if any(map(math.isfinite, column(points, 1)))}
    check_not_empty(drawn)
    baselines = [name for name, points in drawn.items() if len(points) == 1]
    positions = list(dict.fromkeys(p for name in drawn if name not in baselines for p, *_ in drawn[name]))
    shade = min(0.18, 0.4 / len(drawn))  # lighter where many bands overlap

    def draw(axes: Any) -> None:
        for number, (name, points) in enumerate(drawn.items()):
            if name in baselines:
                mean = 100 * points[0][1]
                dashes = (0, (3 + 3 * baselines.index(name), 3))  # longer for each further baseline
                style = line_style(number) | {"marker": "", "linestyle": dashes}
                axes.axhline(mean, label=f"{name}: {mean:.2f}", **style)
                continue
            scores = {position: mean_and_std for position, *mean_and_std in points}
            means, stds = (
                [100 * scores[position][i] if position in scores else math.nan for position in positions]
                for i in (0, 1)
            )
            line_with_band(axes, range(len(positions)), means, stds, name, number, shade)
        axes.margins(x=0.03)
        name_ticks(axes, positions, inches=4.1)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        legend_above(axes)

    note = f"bands: one sample standard deviation over the {over} to both sides"
    save_figure(draw, path, len(drawn), title=f"Mean {ylabel} by {xlabel}", note=note)


def scatter(points: dict[str, list[tuple[float, float]]], path: Paths, xlabel: str, ylabel: str) -> None:
    """Draw points (x, y), with a marker per name; the legend shows Pearson's r for three points or more.

    points: {name: [(x, y), ...]}; a point with NaN is left out.
    """
    finite = {
        name: [pair for pair in pairs if all(map(math.isfinite, pair))] for name, pairs in points.items()
    }
    drawn = {name: pairs for name, pairs in finite.items() if pairs}
    check_not_empty(drawn)

    def draw(axes: Any) -> None:
        for number, (name, pairs) in enumerate(drawn.items()):
            style = line_style(number) | {"linestyle": "none", "alpha": 0.8, "markeredgewidth": 0}
            x, y = column(pairs, 0), column(pairs, 1)
            has_correlation = len(x) > 2 and len(set(x)) > 1 and len(set(y)) > 1
            r = f"r = {statistics.correlation(x, y):.2f}, " if has_correlation else ""
            axes.plot(x, y, label=f"{name} ({r}n = {len(x)})", **style)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        legend_above(axes)

    save_figure(draw, path, len(drawn), title=f"{ylabel} against {xlabel}", note="r: Pearson's correlation")


def heat_maps(
    maps: dict[str, tuple[list[str], list[str], list[list[float]]]], path: Paths, xlabel: str, ylabel: str
) -> None:
    """Draw heat maps of scores side by side; each cell shows its score x 100, and the best one has a frame.

    maps: {title: (row names, column names, scores)}. Rows are drawn from bottom to top, in this order. NaN is
    a missing cell, drawn white, and a map without any score is left out. The colors of a map range from its
    lowest to its highest score.
    """
    drawn = {title: data for title, data in maps.items() if any(map(math.isfinite, chain(*data[2])))}
    check_not_empty(drawn)
    widths, heights = zip(*(heat_map_size(title, *data[:2]) for title, data in drawn.items()), strict=True)

    def draw(*all_axes: Any) -> None:
        from matplotlib.patches import Rectangle

        for axes, (title, (rows, columns, scores)) in zip(all_axes, drawn.items(), strict=True):
            axes.set_title(title, fontsize=STYLE["font.size"])
            values = [[100 * score for score in row] for row in scores]
            image = heat_map(axes, values, aspect="auto")
            write_numbers(axes, image, values, [[f"{value:.1f}" for value in row] for row in values], **SMALL)
            cells = {(i, j): v for i, row in enumerate(values) for j, v in enumerate(row) if math.isfinite(v)}
            i, j = max(cells, key=lambda cell: cells[cell])
            frame: dict[str, Any] = {
                "fill": False,
                "edgecolor": COLORS[1],
                "linewidth": 1.8,
                "clip_on": False,
                "zorder": 3,
            }
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, **frame))
            name_ticks(axes, columns, CELL_SIZE[0] * len(columns), **SMALL)
            axes.set_yticks(range(len(rows)), rows, **SMALL)
            axes.set_xlabel(xlabel)
        all_axes[0].set_ylabel(ylabel)

    note = "colors: from the lowest to the highest score of each map; frame: the highest"
    words = f"Scores: {ylabel} by {xlabel}"
    save_figure(draw, path, widths=widths, height=max(heights), note=note, description=words)


# -------------------------------------------------------------------------------- data of the figures


def sweeps_with_scores(sweeps: list[Sweep]) -> list[Sweep]:
    """Return the sweeps that have a defined score. Raises InputError if none has, or if they mix tasks."""
    tasks = {(sweep.data, sweep.metric) for sweep in sweeps}
    if len(tasks) != 1:
        names = ", ".join(sorted(data for data, _ in tasks)) or "none"
        raise InputError(f"results of {names}: a figure takes the runs of one task")
    drawn = [sweep for sweep in sweeps if score_curve(sweep)[0]]
    if not drawn:
        raise InputError("no run has a score (result.json): there is nothing to draw")
    return drawn


def check_not_empty(drawn: Iterable[Any]) -> None:
    """Raise InputError if no data is left after those without a score were removed."""
    if not drawn:
        raise InputError("no score is defined (NaN, or none given): there is nothing to draw")


def score_curve(sweep: Sweep, split: str = "test") -> tuple[list[int], list[float], list[float], list[int]]:
    """Return the layers with a score and, for each, mean x 100, sample std (0 for one seed), and seeds."""
    scores = {
        layer: [100 * x for x in sweep.scores(layer, split) if math.isfinite(x)] for layer in sweep.layers
    }
    scores = {layer: values for layer, values in scores.items() if values}
    means = [statistics.mean(values) for values in scores.values()]
    stds = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in scores.values()]
    return list(scores), means, stds, [len(values) for values in scores.values()]


def legend_name(sweep: Sweep) -> str:
    """Return the name of a sweep without the data at its end, which is in the title."""
    return sweep.name.removesuffix(f"-{sweep.data}")


def cka_label(pair: dict[str, Any]) -> str:
    """Return the label of the axis: whether the CKA of an entry of "pairs" is debiased."""
    return "Debiased linear CKA" if pair.get("debiased") else "Linear CKA"


def column(points: Sequence[tuple[Any, ...]], i: int) -> list[Any]:
    """Return component i of each of the points."""
    return [point[i] for point in points]


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


# ------------------------------------------------------------------------------ elements of figures


def line_style(number: int) -> dict[str, Any]:
    """Return the arguments of axes.plot for the color, marker and dash of line number 0, 1, ...

    No two of the first 28 lines have the same color and dash.
    """
    color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
    return {"color": color, "marker": marker, "linestyle": DASHES[number % len(DASHES)]}


def line_with_band(
    axes, x: Sequence[Any], mean: list[float], std: list[float], label: str, number: int, shade: float = 0.18
) -> None:
    """Draw a line with a shaded band of one std to both sides; NaN leaves a gap, which a thin line crosses.

    A point without neighbors has an error bar in place of the band. shade: opacity of the band.
    """
    (line,) = axes.plot(x, mean, label=label, **line_style(number))
    low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=line.get_color(), alpha=shade, linewidth=0)
    known = [(position, m) for position, m in zip(x, mean, strict=True) if not math.isnan(m)]
    if len(known) < len(mean):
        axes.plot(column(known, 0), column(known, 1), color=line.get_color(), linewidth=0.5, zorder=1)
    padded = [math.nan, *mean, math.nan]
    for i, (position, m, s) in enumerate(zip(x, mean, std, strict=True)):
        if math.isnan(padded[i]) and math.isnan(padded[i + 2]) and m == m and s > 0:
            axes.errorbar([position], [m], yerr=[s], color=line.get_color(), capsize=2.5, linewidth=1)


def heat_map(axes: Any, values: list[list[float]], **imshow_args: Any) -> Any:
    """Draw values as colors, the first row at the bottom, and return the image. NaN is white."""
    finite = [value for row in values for value in row if math.isfinite(value)]
    axes.grid(False)
    shown = {"origin": "lower", "cmap": "cividis", "vmin": min(finite), "vmax": max(finite)} | imshow_args
    return axes.imshow(values, **shown)


def write_numbers(
    axes: Any, image: Any, values: list[list[float]], numbers: list[list[str]], fontsize: float
) -> None:
    """Write a number into each cell of a heat map that has a value, white on dark cells."""
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if math.isfinite(value):
                color = "white" if image.norm(value) < 0.5 else INK
                axes.text(j, i, numbers[i][j], color=color, ha="center", va="center", fontsize=fontsize)


def heat_map_size(title: str, rows: list[str], columns: list[str]) -> tuple[float, float]:
    """Return the width and height in inches that a heat map with numbers, title and tick labels needs."""
    map_width, map_height = CELL_SIZE[0] * len(columns), CELL_SIZE[1] * len(rows)
    character = CHARACTER_WIDTH * SMALL["fontsize"]
    is_rotated = labels_overlap(columns, map_width, **SMALL)
    column_labels = character * max(map(len, columns)) if is_rotated else 0.0
    row_labels = character * max(map(len, rows))
    title_width = CHARACTER_WIDTH * STYLE["font.size"] * len(title)
    return max(map_width, title_width) + row_labels + 0.35, map_height + column_labels + 0.8


def layer_ticks(axis: Any) -> None:
    """Place the ticks of an axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=15, integer=True))


def log_ticks(axes: Any, values: list[float]) -> None:
    """Make the x axis logarithmic, with ticks at 1, 2, 5, 10, ... or, if values differ little, others."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    low, high = min(values) / 1.15, max(values) * 1.15
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(shown) if len(shown) > 1 else MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def name_ticks(axes: Any, names: list[str], inches: float, fontsize: float = STYLE["font.size"]) -> None:
    """Label the ticks 0, 1, ... of an x axis so many inches long with names, rotated if two would overlap."""
    rotation = 90 if labels_overlap(names, inches, fontsize) else 0
    axes.set_xticks(range(len(names)), names, rotation=rotation, fontsize=fontsize)


def labels_overlap(names: list[str], inches: float, fontsize: float) -> bool:
    """Return whether neighboring labels would overlap if all were evenly spaced over a length in inches."""
    characters = max(((len(a) + len(b)) / 2 + 0.35 for a, b in pairwise(names)), default=0.0)
    return CHARACTER_WIDTH * fontsize * characters > inches / max(len(names), 1)


def legend_above(axes: Any) -> None:
    """Place the legend above the axes, where it covers no line."""
    legend = axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=1, borderaxespad=0.3)
    for text in legend.get_texts():  # a longer one would leave no room for the axes
        text.set_text(sanitize(text.get_text(), MAX_LEGEND))


def check_figure(path: Path) -> None:
    """Raise InputError if the ending of the path is not one of FORMATS."""
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"unknown figure format ({path}): end the name in {', '.join(FORMATS)}")


def save_figure(
    draw: Callable[..., Any],
    path: Paths,
    lines: int = 0,
    widths: Sequence[float] = (4.8,),
    height: float = 3.0,
    rows: int = 1,
    title: str = "",
    note: str = "",
    description: str = "",
) -> None:
    """Create a figure, call `draw` with its axes as arguments, row by row, and write it to each path.

    lines: number of lines of the legend. widths: width of each of the axes side by side; height: height of
    one row of axes, all in inches. title: shown above the figure. note: what its signs mean, shown below it.
    description: in the file only; the default is title and note. Raises InputError if matplotlib is not
    installed.
    """
    paths = [path] if isinstance(path, str | Path) else path
    for place in paths:
        check_figure(place)
    try:
        import matplotlib
        from matplotlib.figure import Figure  # not pyplot, which opens windows and has global state
        from matplotlib.text import Text
    except ImportError:
        raise InputError(NEEDS_MATPLOTLIB) from None
    title_end = " " if title.endswith(("?", "!")) else ". "
    words = sanitize(description or f"{title}{title_end}{note}".strip(". "), 400)
    name = sanitize(title, 400) or words
    metadata: dict[str, dict[str, str | None]] = {
        ".png": {"Title": name, "Description": words},
        ".pdf": {"CreationDate": None, "Title": name, "Subject": words},
        ".svg": {"Date": None, "Title": name, "Description": words},
    }
    with matplotlib.rc_context(STYLE):
        size = sum(widths), rows * height + 0.18 * lines + 0.25 * bool(title)
        figure = Figure(figsize=size, layout="constrained")
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
        draw(*figure.subplots(rows, len(widths), width_ratios=widths, squeeze=False).flat)
        for text in figure.findobj(Text):  # it may contain names from files
            text.set_text(sanitize(text.get_text(), 80))
        if note:
            width = int(sum(widths) / (CHARACTER_WIDTH * 7))
            note = "\n".join(textwrap.wrap(sanitize(note, 400), width))
            figure.text(0.01, -0.01, note, va="top", fontsize=7, color="#444444")
        for place in map(Path, paths):
            save = partial(
                figure.savefig, dpi=200, metadata=metadata[place.suffix.lower()], bbox_inches="tight"
            )
            write_file(place, save)
