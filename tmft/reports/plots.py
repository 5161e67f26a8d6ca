"""Figures, from result files only: nothing here loads a model. PNG, PDF or SVG, by the name of the file.

Lines differ in colour, dash and marker, so that they can be told apart without seeing colours and in grey
print. The colours are those of Okabe and Ito 2008, made for all kinds of colour vision.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from pathlib import Path

from tmft.errors import InputError, sanitize
from tmft.io.atomic import write_file
from tmft.pretraining.heads import guessed
from tmft.runs.sweeps import Sweep
from tmft.training.multitask import NOTED

FORMATS = (".png", ".pdf", ".svg")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
MARKERS, DASHES = "osD^vPX*", ("-", "--", "-.", ":")
SMALL = {"fontsize": 6.5}  # points: in and beside the cells of a heat map
CELL = 0.32, 0.2  # inches: room for 100.0 in small type
LETTER = 0.0088  # inches: width of one, times its size in points
STYLE = {
    "font.size": 9,
    "text.parse_math": False,  # a dollar is one
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,  # TrueType: journals refuse the default, Type 3
    "svg.fonttype": "path",
    "svg.hashsalt": "tmft",  # the same figure gives the same bytes
}


# ------------------------------------------------------------------------------------- the figures


def score_by_layer(sweeps: list[Sweep], path: Path) -> None:
    """Test score x 100 by layer, a line per sweep: mean over seeds, sample deviation (n - 1) shaded.

    sweeps: on one task. Runs whose score is undefined are left out; the line breaks at a layer without one.
    """
    drawn = with_scores(sweeps)

    def draw(axes):
        for number, sweep in enumerate(drawn):
            layers, means, deviations, counts = curve(sweep)
            seeds = "–".join(str(n) for n in dict.fromkeys((min(counts), max(counts))))
            label = f"{legend_name(sweep)} ({seeds} {'seed' if seeds == '1' else 'seeds'})"
            at = {layer: i for i, layer in enumerate(layers)}
            every = range(layers[0], layers[-1] + 1)
            mean, deviation = (
                [of[at[n]] if n in at else math.nan for n in every] for of in (means, deviations)
            )
            line_in_band(axes, every, mean, deviation, label, number)
        layer_ticks(axes.xaxis)
        axes.set_xlabel("Layer l, the last one kept")
        axes.set_ylabel(f"{drawn[0].data} test, {metric_name(drawn[0].metric)} × 100")
        legend_above(axes)

    save(draw, path, lines=len(drawn))


def score_by_parameters(sweeps: list[Sweep], path: Path) -> None:
    """Test score x 100, mean over seeds, against stored parameters in millions, a point per layer.

    The line is the Pareto front: the models that no smaller one matches. sweeps as in score_by_layer.
    """
    drawn = with_scores(sweeps)

    def draw(axes):
        from matplotlib.ticker import LogLocator, NullLocator

        points = []
        for number, sweep in enumerate(drawn):
            layers, means, *_ = curve(sweep)
            sizes = [sweep.layers[layer][0]["parameters"]["stored"] / 1e6 for layer in layers]
            points += zip(sizes, means, layers, strict=True)
            axes.plot(sizes, means, label=legend_name(sweep), **look(number) | {"linestyle": "none"})
        front = pareto_front(points)
        label = "Pareto front and its layers l"
        axes.plot(*zip(*((x, y) for x, y, _ in front), strict=True), color="#777777", zorder=1, label=label)
        for size, mean, layer in with_room(front, points):
            place = {"xytext": (-3, 4), "textcoords": "offset points", "ha": "center", "fontsize": 7}
            axes.annotate(str(layer), (size, mean), **place)
        axes.margins(y=0.1)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("Parameters stored (millions)")
        axes.set_ylabel(f"{drawn[0].data} test, {metric_name(drawn[0].metric)} × 100")
        legend_above(axes)

    save(draw, path, lines=len(drawn) + 1)


def masked_loss_by_tokens(results: list[dict], path: Path) -> None:
    """Loss of the masked tokens on held-out text against millions of tokens seen, a line per run.

    results: contents of result.json of pre-training runs; of replaced-token detection it is the generator's.
    """

    def draw(axes):
        for number, result in enumerate(results):
            label = result["sweep"] + (", generator" if result["settings"]["task"] == "rtd" else "")
            loss = f"{guessed(result['held_out']['after'])}_loss"
            axes.plot(*pretraining_curve(result, loss), label=label, **look(number))
        axes.set_xlabel("Tokens seen (millions)")
        axes.set_ylabel("Held-out loss of masked tokens (nats)")
        legend_above(axes)

    save(draw, path, lines=len(results))


def replaced_by_tokens(results: list[dict], path: Path) -> None:
    """How often discriminators tell replaced tokens from original ones on held-out text, per cent, against
    millions of tokens seen; and how often saying "original" each time would be right.

    results: contents of result.json of runs of replaced-token detection.
    """

    def draw(axes):
        for number, result in enumerate(results):
            for name, label in [("rtd_accuracy", result["sweep"]), ("rtd_baseline", "always original")]:
                millions, values = pretraining_curve(result, name)
                style = look(2 * number + (name == "rtd_baseline"))
                axes.plot(millions, [100 * value for value in values], label=label, **style)
        axes.set_xlabel("Tokens seen (millions)")
        axes.set_ylabel("Held-out tokens told right (%)")
        legend_above(axes)

    save(draw, path, lines=2 * len(results))


def gradient_cosines(results: list[dict], path: Path) -> None:
    """Cosines of the gradients of each two tasks over the steps of runs that compared them.

    results: contents of result.json; the first of each sweep is drawn, a line for each two of its tasks.
    """
    first = {result["sweep"]: result for result in reversed(results)}
    lines = {}
    for name, result in reversed(first.items()):
        for epoch in result["epochs"]:
            for pair, cosines in (epoch.get("cosines") or {}).items():
                lines.setdefault(f"{name}: {pair}" if len(first) > 1 else pair, []).extend(cosines)

    def draw(axes):
        for number, (name, cosines) in enumerate(lines.items()):
            steps = [(place + 0.5) * NOTED for place in range(len(cosines))]
            axes.plot(steps, cosines, label=name, **look(number) | {"marker": ""})
        axes.axhline(0, color="#777777", linewidth=0.8)
        axes.set_xlabel(f"Step (means of {NOTED})")
        axes.set_ylabel("Cosine of two tasks' gradients")
        legend_above(axes)

    save(draw, path, lines=len(lines))


def cka_by_layer(pairs: list[dict], path: Path) -> None:
    """Linear CKA by layer of the first checkpoint, a line per pair.

    pairs: {"a", "b", "by_layer"} of each, as cka.py writes them into its --json.
    Over relative depth (per cent) if the first checkpoints of the pairs have unequal numbers of layers.
    """
    depths = {len(pair["by_layer"]) - 1 for pair in pairs}
    names = short_names([pair[side] for pair in pairs for side in ("a", "b")])

    def draw(axes):
        for number, pair in enumerate(pairs):
            last = len(pair["by_layer"]) - 1
            layers = range(last + 1)
            x = layers if len(depths) == 1 else [100 * layer / max(last, 1) for layer in layers]
            axes.plot(x, pair["by_layer"], label=f"{names[pair['a']]} – {names[pair['b']]}", **look(number))
        if len(depths) == 1:
            layer_ticks(axes.xaxis)
        axes.set_xlabel("Layer" if len(depths) == 1 else "Depth (% of the layers)")
        axes.set_ylabel(cka_label(pairs[0]))
        lowest = min(value for pair in pairs for value in pair["by_layer"])
        axes.set_ylim(min(0.0, lowest - 0.03), 1.03)
        legend_above(axes)

    save(draw, path, lines=len(pairs))


def cka_heat_map(pairs: list[dict], path: Path) -> None:
    """Heat map of the first of {"a", "b", "matrix"}: hidden states of a upwards, of b to the right."""
    pair, matrix = pairs[0], pairs[0]["matrix"]
    names = short_names([pair["a"], pair["b"]])

    def draw(axes):
        low = min(0.0, *(value for row in matrix for value in row))
        image = heat_map(axes, matrix, low, 1.0)
        axes.figure.colorbar(image, ax=axes, label=cka_label(pair))
        layer_ticks(axes.xaxis)
        layer_ticks(axes.yaxis)
        axes.set_xlabel(f"Layer of {names[pair['b']]}")
        axes.set_ylabel(f"Layer of {names[pair['a']]}")

    save(draw, path)


def curves(lines: dict[str, list[tuple[str, float, float]]], path: Path, xlabel: str, ylabel: str) -> None:
    """Scores x 100 at named places such as layers, a line per name: mean, sample deviation shaded.

    lines: name -> (place, mean, sample deviation over tasks), not x 100. The places stand in the order in
    which they first occur; a line breaks where it has no score. A name with a single point, such as a
    baseline, is a dashed line across.
    """
    drawn = {name: points for name, points in lines.items() if any(map(math.isfinite, column(points, 1)))}
    something(drawn)
    across = [name for name, points in drawn.items() if len(points) == 1]
    places = list(dict.fromkeys(place for name in drawn if name not in across for place, *_ in drawn[name]))
    shade = min(0.18, 0.4 / len(drawn))  # lighter where many bands overlap

    def draw(axes):
        for number, (name, points) in enumerate(drawn.items()):
            if name in across:
                mean = 100 * points[0][1]
                dashes = (0, (3 + 3 * across.index(name), 3))  # longer from one to the next
                style = look(number) | {"marker": "", "linestyle": dashes}
                axes.axhline(mean, label=f"{name}: {mean:.2f}", **style)
                continue
            at = {place: of for place, *of in points}
            mean, deviation = (
                [100 * at[place][i] if place in at else math.nan for place in places] for i in (0, 1)
            )
            line_in_band(axes, range(len(places)), mean, deviation, name, number, shade)
        axes.margins(x=0.03)
        name_ticks(axes, places, inches=4.1)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        legend_above(axes)

    save(draw, path, lines=len(drawn))


def by_layer(panels: dict[str, dict[str, list[float]]], path: Path, across: int = 3) -> None:
    """Several figures of merit, each in axes of its own, so many side by side; lines of values by layer, from
    0, of the same checkpoints in each.

    panels: title -> name of a checkpoint -> its values."""

    def draw(*every):
        drawn, unused = every[: len(panels)], every[len(panels) :]
        for axes in unused:
            axes.set_visible(False)
        for axes, (title, lines) in zip(drawn, panels.items(), strict=True):
            axes.set_title(title, fontsize=STYLE["font.size"])
            for number, (name, values) in enumerate(lines.items()):
                axes.plot(range(len(values)), values, label=name, **look(number))
            layer_ticks(axes.xaxis)
            axes.set_xlabel("Layer")
        handles, names = every[0].get_legend_handles_labels()
        every[0].figure.legend(handles, names, loc="outside upper left", ncols=len(names))

    save(draw, path, lines=1, widths=[2.5] * across, height=2.1, rows=math.ceil(len(panels) / across))


def scatter(points: dict[str, list[tuple[float, float]]], path: Path, xlabel: str, ylabel: str) -> None:
    """Points (x, y) as they are, a marker per name; the legend has Pearson's r of three points or more."""
    defined = {name: [pair for pair in of if all(map(math.isfinite, pair))] for name, of in points.items()}
    drawn = {name: pairs for name, pairs in defined.items() if pairs}
    something(drawn)

    def draw(axes):
        for number, (name, pairs) in enumerate(drawn.items()):
            style = look(number) | {"linestyle": "none", "alpha": 0.8, "markeredgewidth": 0}
            x, y = column(pairs, 0), column(pairs, 1)
            axes.plot(x, y, label=f"{name} ({correlation(x, y)})", **style)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        legend_above(axes)

    save(draw, path, lines=len(drawn))


def heat_maps(
    maps: dict[str, tuple[list[str], list[str], list[list[float]]]], path: Path, xlabel: str, ylabel: str
) -> None:
    """Scores x 100 as heat maps side by side, the number in each cell, the best of each map in a frame.

    maps: title -> names of the rows, upwards; names of the columns; a list of scores per row, not x 100. Each
    map has colours of its own, from its lowest score to its highest. A cell without a score is white.
    """
    drawn = {title: of for title, of in maps.items() if any(map(math.isfinite, chain(*of[2])))}
    something(drawn)
    widths, heights = zip(*(room_for(title, *of[:2]) for title, of in drawn.items()), strict=True)

    def draw(*every):
        for axes, (title, (rows, columns, scores)) in zip(every, drawn.items(), strict=True):
            axes.set_title(title, fontsize=STYLE["font.size"])
            numbered_heat_map(axes, [[100 * score for score in row] for row in scores])
            name_ticks(axes, columns, CELL[0] * len(columns), **SMALL)
            axes.set_yticks(range(len(rows)), rows, **SMALL)
            axes.set_xlabel(xlabel)
        every[0].set_ylabel(ylabel)

    save(draw, path, widths=widths, height=max(heights))


# -------------------------------------------------------------------------------- what is drawn


def with_scores(sweeps: list[Sweep]) -> list[Sweep]:
    """Those with a score. Raises InputError if there are none, or they are of several tasks."""
    tasks = {(sweep.data, sweep.metric) for sweep in sweeps}
    if len(tasks) != 1:
        found = ", ".join(sorted(data for data, _ in tasks)) or "none"
        raise InputError(f"results of {found}: a figure takes the runs of one task")
    drawn = [sweep for sweep in sweeps if curve(sweep)[0]]
    if not drawn:
        raise InputError("no run has a score (result.json): there is nothing to draw")
    return drawn


def something(drawn: dict) -> None:
    """Raises InputError if it is empty: nothing in it has a score."""
    if not drawn:
        raise InputError("no score is defined (NaN, or none given): there is nothing to draw")


def curve(sweep: Sweep) -> tuple[list[int], list[float], list[float], list[int]]:
    """Layers with a score, mean test scores x 100, sample deviations (0 for one seed), numbers of seeds."""
    scores = {
        layer: [100 * x for x in sweep.scores(layer, "test") if math.isfinite(x)] for layer in sweep.layers
    }
    scores = {layer: values for layer, values in scores.items() if values}
    means = [statistics.mean(values) for values in scores.values()]
    deviations = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in scores.values()]
    return list(scores), means, deviations, [len(values) for values in scores.values()]


def legend_name(sweep: Sweep) -> str:
    """The sweep's name without "-task": the axis says it."""
    return sweep.name.removesuffix(f"-{sweep.data}")


def pretraining_curve(result: dict, name: str) -> tuple[list[float], list[float]]:
    """Millions of tokens seen, and one of the figures on held-out text, each time the run reported."""
    return [at["tokens"] / 1e6 for at in result["curve"]], [at["held_out"][name] for at in result["curve"]]


def cka_label(pair: dict) -> str:
    return "Debiased linear CKA" if pair.get("debiased") else "Linear CKA"


def metric_name(metric: str) -> str:
    return {"f1": "F1", "f1_macro": "macro F1"}.get(metric, metric.replace("_", " ").capitalize())


def column(points: list[tuple], i: int) -> list:
    return [point[i] for point in points]


def correlation(x: list[float], y: list[float]) -> str:
    """'r = 0.61, n = 24': Pearson's r, number of points; no r of fewer than three, or of a constant."""
    number = f"n = {len(x)}"
    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return number
    return f"r = {statistics.correlation(x, y):.2f}, {number}"


def pareto_front(points: list[tuple]) -> list[tuple]:
    """Of points (size, score, ...) those that score more than every smaller or equally small one, by size."""
    front: list[tuple] = []
    for point in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front


def with_room(front: list[tuple], points: list[tuple]) -> list[tuple]:
    """Those of the front, best first, whose labels do not run into each other among all points drawn."""
    width = math.log(max(x for x, *_ in points) / min(x for x, *_ in points)) or 1
    height = (max(y for _, y, *_ in points) - min(y for _, y, *_ in points)) or 1
    labelled: list[tuple] = []
    for point in reversed(front):
        x, y = labelled[-1][:2] if labelled else (math.inf, math.inf)
        if math.log(x / point[0]) > 0.05 * width or y - point[1] > 0.04 * height:
            labelled.append(point)
    return labelled


def short_names(checkpoints: list[str]) -> dict[str, str]:
    """{hub id or path: its last part, or as many parts as tell it from the others}"""
    distinct = list(dict.fromkeys(checkpoints))
    for parts in range(1, 9):
        names = ["/".join(Path(name).parts[-parts:]) for name in distinct]
        if len(set(names)) == len(names):
            break
    return dict(zip(distinct, names, strict=True))


# ------------------------------------------------------------------------------ how it is drawn


def look(number: int) -> dict:
    """Colour, marker and dash of line `number`; no two of the first 28 have colour and dash in common."""
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    return {"color": colour, "marker": marker, "linestyle": DASHES[number % len(DASHES)]}


def line_in_band(
    axes, x: Sequence, mean: list[float], deviation: list[float], label: str, number: int, shade: float = 0.18
) -> None:
    """Line `number`, with the deviation to both sides of it shaded; NaN is a gap in both."""
    (line,) = axes.plot(x, mean, label=label, **look(number))
    low, high = ([m + sign * d for m, d in zip(mean, deviation, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=line.get_color(), alpha=shade, linewidth=0)


def heat_map(axes, values: list[list[float]], low: float, high: float, **how):
    """The values as colours from low to high, the first row at the bottom; how: of imshow."""
    axes.grid(False)
    return axes.imshow(values, origin="lower", cmap="cividis", vmin=low, vmax=high, **how)


def numbered_heat_map(axes, values: list[list[float]]) -> None:
    """Colours from the lowest value to the highest, each in its cell, the (first) best in a frame."""
    from matplotlib.patches import Rectangle

    cells = {(i, j): value for i, row in enumerate(values) for j, value in enumerate(row)}
    defined = {cell: value for cell, value in cells.items() if math.isfinite(value)}
    image = heat_map(axes, values, min(defined.values()), max(defined.values()), aspect="auto")
    for (i, j), value in defined.items():
        colour = "white" if image.norm(value) < 0.5 else "black"
        axes.text(j, i, f"{value:.1f}", color=colour, ha="center", va="center", **SMALL)
    i, j = max(defined, key=defined.get)
    frame = {"fill": False, "edgecolor": COLOURS[1], "linewidth": 1.8, "clip_on": False, "zorder": 3}
    axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, **frame))


def room_for(title: str, rows: list[str], columns: list[str]) -> tuple[float, float]:
    """Width and height in inches of a numbered heat map with its title and all that stands beside it."""
    wide, high = CELL[0] * len(columns), CELL[1] * len(rows)
    letter = LETTER * SMALL["fontsize"]
    below = letter * max(map(len, columns)) if touching(columns, wide, **SMALL) else 0.0
    beside = letter * max(map(len, rows))
    above = LETTER * STYLE["font.size"] * len(title)
    return max(wide, above) + beside + 0.35, high + below + 0.8


def layer_ticks(axis) -> None:
    """Ticks at whole layers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=15, integer=True))


def name_ticks(axes, names: list[str], inches: float, fontsize: float = STYLE["font.size"]) -> None:
    """A tick on the x axis for each name, 0, 1, ...; upright where two would touch on an axis so long."""
    turn = 90 if touching(names, inches, fontsize) else 0
    axes.set_xticks(range(len(names)), names, rotation=turn, fontsize=fontsize)


def touching(names: list[str], inches: float, fontsize: float) -> bool:
    """Whether two neighbours would touch, evenly spaced over so many inches."""
    letters = max(((len(a) + len(b)) / 2 + 0.35 for a, b in pairwise(names)), default=0.0)
    return LETTER * fontsize * letters > inches / max(len(names), 1)


def legend_above(axes) -> None:
    """Above the axes, so that it never covers a line."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=1, borderaxespad=0.3)


def check_figure(path: Path) -> None:
    """Raises InputError if the name of a figure ends in no known format."""
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"{path} is no figure that can be written: end its name in {', '.join(FORMATS)}")


def save(
    draw: Callable,
    path: Path,
    lines: int = 0,
    widths: Sequence[float] = (4.8,),
    height: float = 3.0,
    rows: int = 1,
) -> None:
    """Make axes, draw on them, write the figure. InputError without matplotlib.

    lines: of its legend; widths: of the axes side by side; height: of a row of them; in inches. `draw` is
    given all axes one by one, row after row.
    """
    path = Path(path)
    check_figure(path)
    try:
        import matplotlib
        from matplotlib.figure import Figure  # and no pyplot: no windows, no global state
        from matplotlib.text import Text
    except ImportError:
        raise InputError("figures need matplotlib, which is not installed: pip install matplotlib") from None
    date = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}[path.suffix.lower()]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(sum(widths), rows * height + 0.18 * lines), layout="constrained")
        draw(*figure.subplots(rows, len(widths), width_ratios=widths, squeeze=False).flat)
        for text in figure.findobj(Text):  # names of strangers are among them
            text.set_text(sanitize(text.get_text(), 80))
        write_file(path, lambda place: figure.savefig(place, dpi=200, metadata=date, bbox_inches="tight"))
