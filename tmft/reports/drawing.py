"""How a figure is drawn by matplotlib and written as PNG, PDF or SVG, by the ending of the file name.

Lines differ in color, dash and marker, so that they can be distinguished without colors and in gray print.
The colors are those of Okabe and Ito 2008, made for all kinds of color vision. Each figure has a title, and
below it what its bands and signs mean; both are also in the file, for screen readers and search. Text stays
text in SVG and PDF, and the same figure always has the same bytes.
"""

import math
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from tmft.errors import InputError, sanitize
from tmft.io.atomic import write_file

FORMATS = (".png", ".pdf", ".svg")
NEEDS_MATPLOTLIB = "figures need matplotlib, which is not installed: pip install matplotlib"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
GRAY, INK = "#777777", "#111111"  # of reference lines; of numbers on light cells
MARKERS, DASHES = "osD^vPX*", ("-", "--", "-.", ":")
MAX_LEGEND = 56  # characters of a name in the legend
CHARACTER_WIDTH = 0.0088  # average width of a character, in inches per point of font size
FONT_SIZE = 9  # in points
STYLE: dict[Any, Any] = {  # entries of rcParams
    "font.size": FONT_SIZE,
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


# ----------------------------------------------------------------------------------------------- lines


@dataclass(frozen=True)
class Line:
    """A line of a figure.

    label: its entry in the legend; "" for none. x, y: its points; without x it is a horizontal line at y[0].
    std: half the height of a shaded band at each point, () for no band. Where y is NaN, a line with a band
    has a gap, which a thin line crosses. style: arguments of axes.plot that replace those of `line_style`.
    """

    label: str
    x: Sequence[Any]
    y: Sequence[float]
    std: Sequence[float] = ()
    style: dict[str, Any] = field(default_factory=dict)


def draw_lines(
    lines: Sequence[Line],
    path: Paths,
    xlabel: str,
    ylabel: str,
    title: str,
    note: str,
    finish: Callable[[Any], object] = lambda axes: None,
) -> None:
    """Draw the lines that have points, and a legend. finish: what else is done with the axes."""
    lines = [line for line in lines if line.y]
    check_not_empty(lines)
    num_bands = sum(bool(line.std) for line in lines)

    def draw(axes: Any) -> None:
        for number, line in enumerate(lines):
            draw_line(axes, line, number, opacity=min(0.18, 0.4 / max(1, num_bands)))
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        finish(axes)
        legend_above(axes)

    save_figure(draw, path, sum(bool(line.label) for line in lines), title=title, note=note)


def draw_line(axes: Any, line: Line, number: int, opacity: float = 0.18) -> None:
    """Draw a line in the style of its number, and its band with this opacity.

    A point without neighbors has an error bar in place of the band.
    """
    style = line_style(number) | {"markevery": max(1, len(line.x) // 30)} | line.style
    label, color = line.label or None, style["color"]
    if not line.x:
        axes.axhline(line.y[0], label=label, **style)
        return
    axes.plot(line.x, line.y, label=label, **style)
    if not line.std:
        return
    low, high = ([m + sign * s for m, s in zip(line.y, line.std, strict=True)] for sign in (-1, 1))
    axes.fill_between(line.x, low, high, color=color, alpha=opacity, linewidth=0)
    known = [(position, m) for position, m in zip(line.x, line.y, strict=True) if not math.isnan(m)]
    if len(known) < len(line.y):
        axes.plot(*zip(*known, strict=True), color=color, linewidth=0.5, zorder=1)
    padded = [math.nan, *line.y, math.nan]
    for i, (position, m, s) in enumerate(zip(line.x, line.y, line.std, strict=True)):
        if math.isnan(padded[i]) and math.isnan(padded[i + 2]) and m == m and s > 0:
            axes.errorbar([position], [m], yerr=[s], color=color, capsize=2.5, linewidth=1)


def line_style(number: int) -> dict[str, Any]:
    """Return the arguments of axes.plot for the color, marker and dash of line number 0, 1, ...

    No two of the first 28 lines have the same color and dash.
    """
    color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
    return {"color": color, "marker": marker, "linestyle": DASHES[number % len(DASHES)]}


def legend_above(axes: Any) -> None:
    """Place the legend above the axes, where it covers no line."""
    legend = axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=1, borderaxespad=0.3)
    for text in legend.get_texts():  # a longer one would leave no room for the axes
        text.set_text(sanitize(text.get_text(), MAX_LEGEND))


def check_not_empty(drawn: Collection[Any]) -> None:
    """Raise InputError if no data is left after those without a score were removed."""
    if not drawn:
        raise InputError("no score is defined (NaN, or none given): there is nothing to draw")


# ------------------------------------------------------------------------------------------- heat maps


def heat_map(axes: Any, values: list[list[float]], number_format: str) -> Any:
    """Draw values as colors, the first row at the top, with their numbers, and return the image.

    NaN is white. number_format: of the number in each cell; "" for none.
    """
    axes.grid(False)
    finite = list(filter(math.isfinite, chain(*values)))
    image = axes.imshow(values, origin="upper", cmap="cividis", vmin=min(finite), vmax=max(finite))
    cells = ((i, j, value) for i, row in enumerate(values) for j, value in enumerate(row))
    for i, j, value in cells:
        if number_format and math.isfinite(value):
            color = "white" if image.norm(value) < 0.5 else INK
            number = number_format.format(value).replace("-", "−")
            axes.text(j, i, number, color=color, ha="center", va="center", fontsize=5)
    return image


# ----------------------------------------------------------------------------------------------- ticks


def layer_ticks(axis: Any) -> None:
    """Place the ticks of an axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=15, integer=True, min_n_ticks=1))


def log_ticks(axes: Any, values: Sequence[float]) -> None:
    """Make the x axis logarithmic, with ticks at 1, 2, 5, 10, ... or, if values differ little, others."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    low, high = min(values) / 1.15, max(values) * 1.15
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_xscale("log")
    are_several = sum(min(values) <= tick <= max(values) for tick in shown) > 1  # the others may not be seen
    axes.xaxis.set_major_locator(FixedLocator(shown) if are_several else MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def name_ticks(axes: Any, names: list[str], inches: float) -> None:
    """Label the ticks 0, 1, ... of an x axis so many inches long with names, rotated if two would overlap."""
    characters = max(((len(a) + len(b)) / 2 + 0.35 for a, b in pairwise(names)), default=0.0)
    do_overlap = CHARACTER_WIDTH * FONT_SIZE * characters > inches / max(len(names), 1)
    rotation = 90 if do_overlap else 0
    axes.set_xticks(range(len(names)), names, rotation=rotation, fontsize=FONT_SIZE)


# ----------------------------------------------------------------------------------------------- files


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
            kind, content = place.suffix.lower(), BytesIO()  # on a full disk, matplotlib's writers fail twice
            options: dict[str, Any] = {"metadata": metadata[kind], "bbox_inches": "tight"}
            figure.savefig(content, format=kind.removeprefix("."), dpi=200, **options)

            def write(new: Path, content: BytesIO = content) -> None:
                new.write_bytes(content.getvalue())

            write_file(place, write)
