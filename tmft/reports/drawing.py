"""How a figure is drawn by matplotlib and written as PNG, PDF or SVG, by the ending of the file name.

Lines differ in color, dash and marker, so that they can be distinguished without colors and in gray print.
The colors are those of Okabe and Ito 2008, made for all kinds of color vision. Each figure has a title, and
below it what its bands and signs mean; both are also in the file, for screen readers and search. Text stays
text in SVG and PDF, and the same figure always has the same bytes.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tmft.errors import InputError, sanitize
from tmft.io.atomic import write_file

FORMATS = (".png", ".pdf", ".svg")
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
GRAY, INK = "#777777", "#111111"  # of reference lines; of numbers on light cells
MARKERS, DASHES = "osD^vPX*", ("-", "--", "-.", ":")
WIDTH = 4.8  # of the axes, in inches
MAX_TEXT, NOTE_WIDTH = (
    56,
    77,
)  # characters that fit into this width: of the longest text, of a line of the note
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


@contextmanager
def figure(
    paths: Paths, title: str, note: str, xlabel: str = "", ylabel: str = "", height: float = 3.0
) -> Iterator[Any]:
    """Yield the axes of a new figure, and write it to each path at the end of the block.

    title: shown above the figure. note: what its signs mean, shown below it. height: of the axes, in inches.
    The legend stands above the axes, where it covers no line. Raises InputError if nothing was drawn, or if
    matplotlib is not installed.
    """
    paths = [paths] if isinstance(paths, Path) else paths
    for path in paths:
        check_figure(path)
    try:
        import matplotlib
        from matplotlib.figure import Figure  # not pyplot, which opens windows and has global state
        from matplotlib.text import Text
    except ImportError:
        problem = "figures need matplotlib, which is not installed: pip install matplotlib"
        raise InputError(problem) from None
    with matplotlib.rc_context(STYLE):
        drawn = Figure(layout="constrained")
        drawn.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
        axes = drawn.subplots()
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        yield axes
        if not axes.has_data():
            raise InputError(f"no figure {title}: no score is defined (NaN, or none given)")
        labels = axes.get_legend_handles_labels()[1]
        drawn.set_size_inches(WIDTH, height + 0.18 * len(labels) + 0.25)
        if labels:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=1, borderaxespad=0.3)
        for text in drawn.findobj(Text):  # it may contain names from files; longer ones would leave no room
            text.set_text(sanitize(text.get_text(), MAX_TEXT))
        title, note = sanitize(title, 200), sanitize(note, 400)
        drawn.text(0.01, -0.01, textwrap.fill(note, NOTE_WIDTH), va="top", fontsize=7, color="#444444")
        for path in paths:
            save_figure(drawn, path, title, f"{title}. {note}")


def check_figure(path: Path) -> None:
    """Raise InputError if the name of a figure does not end with one of FORMATS."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"unknown figure format ({path}): end the name in {', '.join(FORMATS)}")


def save_figure(drawn: Any, path: Path, title: str, description: str) -> None:
    """Write a figure of matplotlib; title and description are in the file for screen readers and search."""
    kind, content = path.suffix.lower(), BytesIO()  # on a full disk, matplotlib's writers fail twice
    metadata: dict[str, str | None] = {"Title": title}
    metadata["Subject" if kind == ".pdf" else "Description"] = description
    if kind != ".png":
        metadata["CreationDate" if kind == ".pdf" else "Date"] = None
    drawn.savefig(content, format=kind[1:], dpi=200, metadata=metadata, bbox_inches="tight")

    def write(new: Path) -> None:
        new.write_bytes(content.getvalue())

    write_file(path, write)


# ----------------------------------------------------------------------------------------------- lines


def draw_line(
    axes: Any,
    number: int,
    label: str,
    x: Sequence[float],
    y: Sequence[float],
    std: Sequence[float] | None = None,
    style: Mapping[str, Any] = {},
    opacity: float = 0.18,
) -> None:
    """Draw a line in the style of its number, with a band of one std to both sides, if it is given.

    style: arguments of axes.plot that replace those of `line_style`. opacity: of the band.
    """
    style = line_style(number) | {"markevery": max(1, len(x) // 30), **style}
    axes.plot(x, y, label=label or None, **style)
    if std is not None:
        low, high = np.subtract(y, std), np.add(y, std)
        axes.fill_between(x, low, high, color=style["color"], alpha=opacity, linewidth=0)


def line_style(number: int) -> dict[str, Any]:
    """Return the arguments of axes.plot for the color, marker and dash of line number 0, 1, ...

    No two of the first 28 lines have the same color and dash.
    """
    color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
    return {"color": color, "marker": marker, "linestyle": DASHES[number % len(DASHES)]}


def name_points(axes: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Write a name beside each point (x, y, name)."""
    for x, y, name in points:
        axes.annotate(name, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)


def heat_map(axes: Any, values: list[list[float]], number_format: str, label: str) -> None:
    """Draw values as colors, the first row at the top, with their numbers and a color bar; NaN is white.

    number_format: of the number in each cell; "" for none. label: that of the color bar.
    """
    axes.grid(False)
    image = axes.imshow(values, origin="upper", cmap="cividis")
    axes.figure.colorbar(image, ax=axes, label=label)
    cells = ((i, j, value) for i, row in enumerate(values) for j, value in enumerate(row))
    for i, j, value in cells:
        if number_format and math.isfinite(value):
            color = "white" if image.norm(value) < 0.5 else INK
            number = number_format.format(value).replace("-", "−")
            axes.text(j, i, number, color=color, ha="center", va="center", fontsize=5)


# ----------------------------------------------------------------------------------------------- ticks


def layer_ticks(axis: Any) -> None:
    """Place the ticks of an axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=15, integer=True, min_n_ticks=1))


def log_scale(axis: Any) -> None:
    """Make an axis logarithmic, with ticks at 1, 2, 5, 10, ... or, if fewer than two are seen, others."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def name_ticks(axes: Any, names: list[str]) -> None:
    """Label the ticks 0, 1, ... of the x axis with names, which are rotated if there is no room for them."""
    rotation = 90 if sum(len(name) + 1 for name in names) > MAX_TEXT else 0
    axes.set_xticks(range(len(names)), names, rotation=rotation)
