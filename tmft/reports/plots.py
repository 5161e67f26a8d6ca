"""Figures, drawn from scores by matplotlib and written as PNG, PDF or SVG, by the ending of the file name.

A function that draws a figure takes the data and the path of the file to write; it raises InputError if there
is nothing to draw, or if matplotlib is not installed. No model is loaded.

Lines differ in color, dash and marker, so that they can be distinguished without colors and in gray print.
The colors are those of Okabe and Ito 2008, made for all kinds of color vision. Each figure has a title, and
below it what its bands and signs mean; both are also in the file, for screen readers and search. Text stays
text in SVG and PDF.
"""

import math
import statistics
import textwrap
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from tmft.errors import InputError, sanitize
from tmft.io.atomic import write_file
from tmft.pretraining.heads import objective_name
from tmft.reports.charts import axis, short_number
from tmft.runs.sweeps import Sweep
from tmft.training.gradient_surgery import STEPS_PER_ENTRY

FORMATS = (".png", ".pdf", ".svg")
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
MARKERS, DASHES = "osD^vPX*", ("-", "--", "-.", ":")
SMALL = {"fontsize": 6.5}  # size in points of the text in the cells of a heat map and at its ticks
CELL_SIZE = 0.32, 0.2  # width and height in inches of a cell that holds "100.0" in small type
MAX_NUMBERS = 14  # layers of a map of CKA whose cells have room for a number
STAR_NOTE = "star: the layer that is best on dev"
STD_NOTE = "bands and bars: one sample standard deviation over the seeds to both sides"
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


# ------------------------------------------------------------------------------------- the figures


def score_by_layer(sweeps: list[Sweep], path: Path) -> None:
    """Draw the test score x 100 by layer, with a line per sweep: mean over seeds, sample std (n - 1) shaded.

    Lines join neighboring layers only; a layer without neighbors is a point with an error bar. A star marks
    the layer that is best on dev. sweeps: all on one task. Runs with an undefined score are left out.
    """
    drawn = sweeps_with_scores(sweeps)

    def draw(axes: Any) -> None:
        for number, sweep in enumerate(drawn):
            layers, means, stds, counts = score_curve(sweep)
            seeds = "–".join(str(n) for n in dict.fromkeys((min(counts), max(counts))))
            label = f"{legend_name(sweep)} ({seeds} {'seed' if seeds == '1' else 'seeds'})"
            index = {layer: i for i, layer in enumerate(layers)}
            all_layers = range(layers[0], layers[-1] + 1)
            mean, std = (
                [values[index[layer]] if layer in index else math.nan for layer in all_layers]
                for values in (means, stds)
            )
            line_with_band(axes, all_layers, mean, std, label, number)
            if sweep.best_layer in index and len(sweep.layers) > 1:
                mark_best(axes, sweep.best_layer, means[index[sweep.best_layer]], number)
        layer_ticks(axes.xaxis)
        axes.set_xlabel("Layers kept")
        axes.set_ylabel(f"Test {metric_name(drawn[0].metric)} × 100")
        legend_above(axes)

    title = f"Score by layer on {drawn[0].data}"
    save_figure(draw, path, len(drawn), title=title, note=f"{STAR_NOTE}; {STD_NOTE}")


def score_by_parameters(sweeps: list[Sweep], path: Path) -> None:
    """Draw the test score x 100, mean over seeds, against millions of stored parameters, a point per layer.

    The line is the Pareto front: it joins the models that score higher than every smaller model. sweeps: all
    on one task.
    """
    drawn = sweeps_with_scores(sweeps)

    def draw(axes: Any) -> None:
        points: list[tuple[float, float, int]] = []
        for number, sweep in enumerate(drawn):
            layers, means, *_ = score_curve(sweep)
            sizes = [sweep.layers[layer][0]["parameters"]["stored"] / 1e6 for layer in layers]
            points += zip(sizes, means, layers, strict=True)
            axes.plot(sizes, means, label=legend_name(sweep), **line_style(number) | {"linestyle": "none"})
        front = pareto_front(points)
        label = "Pareto front, with numbers of layers"
        axes.plot(*zip(*((x, y) for x, y, _ in front), strict=True), color="#777777", zorder=1, label=label)
        for size, mean, layer in labels_that_fit(front, points):
            offset = {"xytext": (-3, 4), "textcoords": "offset points", "ha": "center", "fontsize": 7}
            axes.annotate(str(layer), (size, mean), **offset)
        axes.margins(y=0.1)
        log_ticks(axes, [size for size, *_ in points])
        axes.set_xlabel("Parameters stored (millions, logarithmic axis)")
        axes.set_ylabel(f"Test {metric_name(drawn[0].metric)} × 100")
        legend_above(axes)

    note = "numbers: layers kept. Mean over the seeds; further left is smaller, further up is better"
    title = f"Score against size on {drawn[0].data}"
    save_figure(draw, path, len(drawn) + 1, title=title, note=note)


def mlm_loss_by_tokens(results: list[dict[str, Any]], path: Path) -> None:
    """Draw the loss on masked tokens of held-out text against millions of tokens seen, with a line per run.

    results: contents of result.json of pre-training runs. For replaced token detection, it is the loss of the
    generator.
    """

    def draw(axes: Any) -> None:
        for number, result in enumerate(results):
            kind = {"rtd": ", generator", "span": ", spans of tokens"}.get(result["settings"]["task"], "")
            label = result["sweep"] + kind
            loss = f"{objective_name(result['held_out']['after'])}_loss"
            axes.plot(*pretraining_curve(result, loss), label=label, **line_style(number))
        axes.set_xlabel("Tokens seen (millions)")
        axes.set_ylabel("Loss on masked tokens (nats)")
        legend_above(axes)

    note = "on held-out text, which was not trained on"
    save_figure(draw, path, len(results), title="Pre-training: loss on masked tokens", note=note)


def rtd_accuracy_by_tokens(results: list[dict[str, Any]], path: Path) -> None:
    """Draw the accuracy of replaced token detection on held-out text, in %, against millions of tokens seen.

    Each run has two lines: its accuracy, and the baseline of predicting "original" for every token. results:
    contents of result.json of runs of replaced token detection.
    """

    def draw(axes: Any) -> None:
        for number, result in enumerate(results):
            names = {"rtd_accuracy": result["sweep"], "rtd_baseline": f"{result['sweep']}: always “original”"}
            for name, label in names.items():
                millions, values = pretraining_curve(result, name)
                style = line_style(2 * number + (name == "rtd_baseline"))
                axes.plot(millions, [100 * value for value in values], label=label, **style)
        axes.set_xlabel("Tokens seen (millions)")
        axes.set_ylabel("Accuracy (%)")
        legend_above(axes)

    title, note = "Pre-training: replaced token detection", "on held-out text, which was not trained on"
    save_figure(draw, path, 2 * len(results), title=title, note=note)


def gradient_cosines(results: list[dict[str, Any]], path: Path) -> None:
    """Draw the cosine similarity of the gradients of two tasks by step, with a line per pair of tasks.

    results: contents of result.json of runs that logged it (gradient_surgery "log" or "pcgrad"); of each
    sweep, the first run is drawn.
    """
    first = {result["sweep"]: result for result in reversed(results)}
    lines: dict[str, list[float]] = {}
    for name, result in reversed(first.items()):
        for epoch in result["epochs"]:
            for pair, cosines in (epoch.get("gradient_cosines") or {}).items():
                lines.setdefault(f"{name}: {pair}" if len(first) > 1 else pair, []).extend(cosines)

    def draw(axes: Any) -> None:
        for number, (name, cosines) in enumerate(lines.items()):
            steps = [(i + 0.5) * STEPS_PER_ENTRY for i in range(len(cosines))]
            axes.plot(steps, cosines, label=name, **line_style(number) | {"marker": ""})
        axes.axhline(0, color="#777777", linewidth=0.8)
        axes.set_xlabel(f"Step (means over {STEPS_PER_ENTRY} steps)")
        axes.set_ylabel("Cosine")
        legend_above(axes)

    title = "Do the tasks pull in the same direction?"
    note = "cosine of the gradients of two tasks: 1 the same direction, 0 independent, −1 opposite"
    save_figure(draw, path, len(lines), title=title, note=note)


def cka_by_layer(pairs: list[dict[str, Any]], path: Path) -> None:
    """Draw linear CKA by layer, with a line per pair of checkpoints a and b.

    pairs: dicts with the keys "a", "b" and "by_layer", as cka.py writes them to JSON. The x axis is the layer
    of a; if the checkpoints a have different numbers of layers, it is their relative depth in %.
    """
    depths = {len(pair["by_layer"]) - 1 for pair in pairs}
    names = short_names([pair[side] for pair in pairs for side in ("a", "b")])

    def draw(axes: Any) -> None:
        for number, pair in enumerate(pairs):
            last = len(pair["by_layer"]) - 1
            layers = range(last + 1)
            x = layers if len(depths) == 1 else [100 * layer / max(last, 1) for layer in layers]
            label = f"{names[pair['a']]} – {names[pair['b']]}"
            axes.plot(x, pair["by_layer"], label=label, **line_style(number))
        if len(depths) == 1:
            layer_ticks(axes.xaxis)
        axes.set_xlabel("Layer" if len(depths) == 1 else "Depth (% of the layers)")
        axes.set_ylabel(cka_label(pairs[0]))
        lowest = min(value for pair in pairs for value in pair["by_layer"])
        axes.set_ylim(min(0.0, lowest - 0.03), 1.03)
        legend_above(axes)

    note = "1: equal up to rotation, shift and scale; 0: nothing in common"
    save_figure(draw, path, len(pairs), title="Similarity of two models, layer by layer", note=note)


def cka_heat_map(pairs: list[dict[str, Any]], path: Path) -> None:
    """Draw a heat map of the CKA of every layer of checkpoint a, on the y axis, with every layer of b.

    Layer 0 of a is at the top, as in the table that cka.py prints. The colors range from the lowest to the
    highest value, and the cells show their numbers if there are at most MAX_NUMBERS layers.
    pairs: dicts with the keys "a", "b" and "matrix", as cka.py writes them to JSON; only the first is drawn.
    """
    pair, matrix = pairs[0], pairs[0]["matrix"]
    names = short_names([pair["a"], pair["b"]])

    def draw(axes: Any) -> None:
        low, high = (pick(value for row in matrix for value in row) for pick in (min, max))
        image = heat_map(axes, matrix, low, high, origin="upper", aspect="equal")
        if max(len(matrix), len(matrix[0])) <= MAX_NUMBERS:
            for (i, j), value in {
                (i, j): v for i, row in enumerate(matrix) for j, v in enumerate(row)
            }.items():
                color = "white" if image.norm(value) < 0.5 else "black"
                axes.text(j, i, short_number(value), color=color, ha="center", va="center", fontsize=5.5)
        axes.figure.colorbar(image, ax=axes, label=cka_label(pair))
        layer_ticks(axes.xaxis)
        layer_ticks(axes.yaxis)
        axes.set_xlabel(f"Layer of {names[pair['b']]}")
        axes.set_ylabel(f"Layer of {names[pair['a']]}")

    title = f"{cka_label(pair)} of every layer with every layer"
    save_figure(draw, path, height=3.6, title=title, note="colors from the lowest to the highest value")


def score_curves(
    lines: dict[str, list[tuple[str, float, float]]],
    path: Path,
    xlabel: str,
    ylabel: str,
    over: str = "tasks",
) -> None:
    """Draw scores x 100 at named positions such as layers, with a line per name: mean, sample std shaded.

    lines: {name: [(position, mean, sample std), ...]}, not x 100. The x axis has the positions in the order
    in which they first occur; a line has a gap where it has no score. A name with a single point, such as a
    baseline, is drawn as a dashed horizontal line. xlabel, ylabel: labels of the axes. over: what the mean
    and the std are taken over.
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


def panels_by_layer(panels: dict[str, dict[str, list[list[float]]]], path: Path, columns: int = 2) -> None:
    """Draw several quantities by layer, each in a panel of its own with a line per model.

    A line is the mean over seeds, with a band of one sample standard deviation (n - 1) to both sides.
    panels: {title: {name of a model: values of all seeds at layers 0, 1, ...}}; the first panel has all
    models. path: the figure to write. columns: number of panels side by side.
    """
    names = list(next(iter(panels.values())))

    def draw(*all_axes: Any) -> None:
        drawn, unused = all_axes[: len(panels)], all_axes[len(panels) :]
        for axes in unused:
            axes.set_visible(False)
        for axes, (title, lines) in zip(drawn, panels.items(), strict=True):
            axes.set_title(title, fontsize=STYLE["font.size"])
            for name, values in lines.items():
                means = [statistics.mean(seeds) for seeds in values]
                stds = [statistics.stdev(seeds) if len(seeds) > 1 else 0.0 for seeds in values]
                line_with_band(axes, range(len(values)), means, stds, name, names.index(name))
            layer_ticks(axes.xaxis)
            axes.set_xlabel("Layer")
        handles, labels = all_axes[0].get_legend_handles_labels()
        all_axes[0].figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))

    rows = math.ceil(len(panels) / columns)
    title = "Several quantities by layer: " + ", ".join(panels)
    save_figure(
        draw, path, lines=2, widths=[3.6] * columns, height=2.2, rows=rows, description=title, note=STD_NOTE
    )


def scatter(points: dict[str, list[tuple[float, float]]], path: Path, xlabel: str, ylabel: str) -> None:
    """Draw points (x, y), with a marker per name; the legend shows Pearson's r for three points or more.

    points: {name: [(x, y), ...]}; a point with NaN is left out. path: the figure to write. xlabel, ylabel:
    labels of the axes. Raises InputError if no point is left.
    """
    defined = {
        name: [pair for pair in pairs if all(map(math.isfinite, pair))] for name, pairs in points.items()
    }
    drawn = {name: pairs for name, pairs in defined.items() if pairs}
    check_not_empty(drawn)

    def draw(axes: Any) -> None:
        for number, (name, pairs) in enumerate(drawn.items()):
            style = line_style(number) | {"linestyle": "none", "alpha": 0.8, "markeredgewidth": 0}
            x, y = column(pairs, 0), column(pairs, 1)
            axes.plot(x, y, label=f"{name} ({correlation(x, y)})", **style)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        legend_above(axes)

    save_figure(draw, path, len(drawn), title=f"{ylabel} against {xlabel}", note="r: Pearson's correlation")


def heat_maps(
    maps: dict[str, tuple[list[str], list[str], list[list[float]]]], path: Path, xlabel: str, ylabel: str
) -> None:
    """Draw heat maps of scores side by side, and write the figure to `path`.

    Each cell shows its score x 100, and the best cell of a map has a frame. The colors of a map range from
    its lowest to its highest score.

    maps: {title: (row names, column names, scores)}. Rows are drawn from bottom to top, in this order.
        scores: a list for each row, with a fraction such as 0.81 for each column; NaN for a missing cell,
        which is drawn white. A map without any score is left out.
    xlabel, ylabel: labels of the axes.
    Raises InputError if no map has a score.
    """
    drawn = {title: data for title, data in maps.items() if any(map(math.isfinite, chain(*data[2])))}
    check_not_empty(drawn)
    widths, heights = zip(*(figure_size(title, *data[:2]) for title, data in drawn.items()), strict=True)

    def draw(*all_axes: Any) -> None:
        for axes, (title, (rows, columns, scores)) in zip(all_axes, drawn.items(), strict=True):
            axes.set_title(title, fontsize=STYLE["font.size"])
            annotated_heat_map(axes, [[100 * score for score in row] for row in scores])
            name_ticks(axes, columns, CELL_SIZE[0] * len(columns), **SMALL)
            axes.set_yticks(range(len(rows)), rows, **SMALL)
            axes.set_xlabel(xlabel)
        all_axes[0].set_ylabel(ylabel)

    note = "colors: from the lowest to the highest score of each map; frame: the highest"
    save_figure(
        draw, path, widths=widths, height=max(heights), note=note, description=f"Scores: {ylabel} by {xlabel}"
    )


# -------------------------------------------------------------------------------- data of the figures


def sweeps_with_scores(sweeps: list[Sweep]) -> list[Sweep]:
    """Return the sweeps that have a defined score.

    Raises InputError if none has one, or if the sweeps are on several tasks.
    """
    tasks = {(sweep.data, sweep.metric) for sweep in sweeps}
    if len(tasks) != 1:
        names = ", ".join(sorted(data for data, _ in tasks)) or "none"
        raise InputError(f"results of {names}: a figure takes the runs of one task")
    drawn = [sweep for sweep in sweeps if score_curve(sweep)[0]]
    if not drawn:
        raise InputError("no run has a score (result.json): there is nothing to draw")
    return drawn


def check_not_empty(drawn: dict[str, Any]) -> None:
    """Raise InputError if no data is left after those without a score were removed. drawn: what is left."""
    if not drawn:
        raise InputError("no score is defined (NaN, or none given): there is nothing to draw")


def score_curve(sweep: Sweep) -> tuple[list[int], list[float], list[float], list[int]]:
    """Return the layers with a score and, for each, mean test score x 100, sample std, and number of seeds.

    The standard deviation of a single seed is 0.
    """
    scores = {
        layer: [100 * x for x in sweep.scores(layer, "test") if math.isfinite(x)] for layer in sweep.layers
    }
    scores = {layer: values for layer, values in scores.items() if values}
    means = [statistics.mean(values) for values in scores.values()]
    stds = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in scores.values()]
    return list(scores), means, stds, [len(values) for values in scores.values()]


def legend_name(sweep: Sweep) -> str:
    """Return the name of a sweep without the data at its end, which is in the label of the axis."""
    return sweep.name.removesuffix(f"-{sweep.data}")


def pretraining_curve(result: dict[str, Any], name: str) -> tuple[list[float], list[float]]:
    """Return, for each entry of the training log, millions of tokens seen and a metric on held-out text.

    result: content of result.json. name: the metric, such as "rtd_accuracy".
    """
    log = result["curve"]
    return [entry["tokens"] / 1e6 for entry in log], [entry["held_out"][name] for entry in log]


def cka_label(pair: dict[str, Any]) -> str:
    """Return the label of the axis: whether the CKA is debiased. pair: an entry of "pairs"."""
    return "Debiased linear CKA" if pair.get("debiased") else "Linear CKA"


def metric_name(metric: str) -> str:
    """Return the name of a metric as a figure or table shows it: "f1_macro" becomes "macro F1"."""
    return {"f1": "F1", "f1_macro": "macro F1"}.get(metric, metric.replace("_", " ").capitalize())


def column(points: list[tuple[Any, ...]], i: int) -> list[Any]:
    """Return component i of each of the points."""
    return [point[i] for point in points]


def correlation(x: list[float], y: list[float]) -> str:
    """Return Pearson's r and the number of points as text, such as "r = 0.61, n = 24".

    r is left out if there are fewer than three points, or if all x or all y are equal.
    """
    number = f"n = {len(x)}"
    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return number
    return f"r = {statistics.correlation(x, y):.2f}, {number}"


def pareto_front(points: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the points that score higher than every other point of the same or a smaller size.

    points: (size, score, ...). The result is sorted by size.
    """
    front: list[tuple[Any, ...]] = []
    for point in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front


def labels_that_fit(front: list[tuple[Any, ...]], points: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the points of a Pareto front that can be labeled without overlap, largest model first.

    front: (size, score, ...) of each point, sorted by size. points: all points of the figure, which determine
    the scale of the axes.
    """
    width = math.log(max(x for x, *_ in points) / min(x for x, *_ in points)) or 1
    height = (max(y for _, y, *_ in points) - min(y for _, y, *_ in points)) or 1
    labeled: list[tuple[Any, ...]] = []
    for point in reversed(front):
        x, y = labeled[-1][:2] if labeled else (math.inf, math.inf)
        if math.log(x / point[0]) > 0.05 * width or y - point[1] > 0.04 * height:
            labeled.append(point)
    return labeled


def short_names(checkpoints: list[str]) -> dict[str, str]:
    """Return {hub id or path: short name}: its last component, or as many as make all names distinct.

    checkpoints: hub ids and paths.
    """
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
    """Draw a line with a shaded band of one std to both sides; NaN leaves a gap in both.

    A point without neighbors has an error bar in place of the band.
    axes: those of matplotlib. x, mean, std: the coordinates. label: in the legend.
    number: the line's number in the figure, for its style. shade: opacity of the band.
    """
    (line,) = axes.plot(x, mean, label=label, **line_style(number))
    low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=line.get_color(), alpha=shade, linewidth=0)
    padded = [math.nan, *mean, math.nan]
    for i, (position, m, s) in enumerate(zip(x, mean, std, strict=True)):
        if math.isnan(padded[i]) and math.isnan(padded[i + 2]) and m == m and s > 0:
            axes.errorbar([position], [m], yerr=[s], color=line.get_color(), capsize=2.5, linewidth=1)


def mark_best(axes: Any, x: float, y: float, number: int) -> None:
    """Draw a star at the point x, y of line `number`, the layer that is best on dev.

    axes: those of matplotlib.
    """
    style = {"marker": "*", "s": 110, "color": line_style(number)["color"], "edgecolors": "black"}
    axes.scatter([x], [y], linewidths=0.6, zorder=4, **style)


def heat_map(axes: Any, values: list[list[float]], low: float, high: float, **imshow_args: Any):
    """Draw values as colors and return the image; the first row is at the bottom unless told otherwise.

    axes: those of matplotlib. low, high: the values that get the first and the last color. imshow_args:
    further arguments of axes.imshow.
    """
    axes.grid(False)
    return axes.imshow(
        values, **{"origin": "lower", "cmap": "cividis", "vmin": low, "vmax": high} | imshow_args
    )


def annotated_heat_map(axes: Any, values: list[list[float]]) -> None:
    """Draw values as colors and numbers, with a frame around the (first) highest one. NaN is white.

    axes: those of matplotlib.
    """
    from matplotlib.patches import Rectangle

    cells = {(i, j): value for i, row in enumerate(values) for j, value in enumerate(row)}
    defined = {cell: value for cell, value in cells.items() if math.isfinite(value)}
    image = heat_map(axes, values, min(defined.values()), max(defined.values()), aspect="auto")
    for (i, j), value in defined.items():
        color = "white" if image.norm(value) < 0.5 else "black"
        axes.text(j, i, f"{value:.1f}", color=color, ha="center", va="center", **SMALL)
    i, j = max(defined, key=lambda cell: defined[cell])
    frame: dict[str, Any] = {
        "fill": False,
        "edgecolor": COLORS[1],
        "linewidth": 1.8,
        "clip_on": False,
        "zorder": 3,
    }
    axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, **frame))


def figure_size(title: str, rows: list[str], columns: list[str]) -> tuple[float, float]:
    """Return the width and height in inches that an annotated heat map with title and tick labels needs.

    rows, columns: tick labels of the y and x axis.
    """
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
    """Make the x axis logarithmic, with ticks at round numbers, also if the values differ little.

    axes: those of matplotlib. values: where points are.
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(axis(values, 0.0, 1.0, log=True, whole=False).ticks))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def name_ticks(axes: Any, names: list[str], inches: float, fontsize: float = STYLE["font.size"]) -> None:
    """Label the ticks 0, 1, ... of the x axis with names, rotated if two would overlap.

    axes: those of matplotlib. inches: length of the axis. fontsize: in points.
    """
    rotation = 90 if labels_overlap(names, inches, fontsize) else 0
    axes.set_xticks(range(len(names)), names, rotation=rotation, fontsize=fontsize)


def labels_overlap(names: list[str], inches: float, fontsize: float) -> bool:
    """Return whether neighboring labels would overlap if all were evenly spaced over a length.

    names: the labels. inches: the length. fontsize: in points.
    """
    characters = max(((len(a) + len(b)) / 2 + 0.35 for a, b in pairwise(names)), default=0.0)
    return CHARACTER_WIDTH * fontsize * characters > inches / max(len(names), 1)


def legend_above(axes: Any) -> None:
    """Place the legend above the axes, where it covers no line."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=1, borderaxespad=0.3)


def check_figure(path: Path) -> None:
    """Raise InputError if the ending of the path is not one of FORMATS."""
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"unknown figure format ({path}): end the name in {', '.join(FORMATS)}")


def save_figure(
    draw: Callable[..., Any],
    path: Path,
    lines: int = 0,
    widths: Sequence[float] = (4.8,),
    height: float = 3.0,
    rows: int = 1,
    title: str = "",
    note: str = "",
    description: str = "",
) -> None:
    """Create a figure, call `draw` with its axes as arguments, row by row, and write it to a file.

    lines: number of lines of the legend. widths: width of each of the axes side by side; height: height of
    one row of axes, all in inches. rows: number of rows of axes. title: shown above the figure. note: what
    its signs mean, shown below it. description: in the file only; the default is title and note. Raises
    InputError if matplotlib is not installed.
    """
    path = Path(path)
    check_figure(path)
    try:
        import matplotlib
        from matplotlib.figure import Figure  # not pyplot, which opens windows and has global state
        from matplotlib.text import Text
    except ImportError:
        raise InputError("figures need matplotlib, which is not installed: pip install matplotlib") from None
    title_end = " " if title.endswith(("?", "!")) else ". "
    words = sanitize(description or f"{title}{title_end}{note}".strip(". "), 400)
    metadata_by_format: dict[str, dict[str, str | None]] = {
        ".png": {"Title": title or words, "Description": words},
        ".pdf": {"CreationDate": None, "Title": title or words, "Subject": words},
        ".svg": {"Date": None, "Title": title or words, "Description": words},
    }
    metadata = {
        key: value and sanitize(value, 400) for key, value in metadata_by_format[path.suffix.lower()].items()
    }
    with matplotlib.rc_context(STYLE):
        legend_height, title_height = 0.18 * lines, 0.25 * bool(title)
        figure = Figure(
            figsize=(sum(widths), rows * height + legend_height + title_height), layout="constrained"
        )
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
        draw(*figure.subplots(rows, len(widths), width_ratios=widths, squeeze=False).flat)
        for text in figure.findobj(Text):  # it may contain names from files
            text.set_text(sanitize(text.get_text(), 80))
        if note:
            width = int(sum(widths) / (CHARACTER_WIDTH * 7))
            note = "\n".join(textwrap.wrap(sanitize(note, 400), width))
            figure.text(0.01, -0.01, note, va="top", fontsize=7, color="#444444")
        write_file(
            path,
            lambda temporary: figure.savefig(temporary, dpi=200, metadata=metadata, bbox_inches="tight"),
        )
