"""Figures of the report for browsers: SVG that is written into the page, without matplotlib.

A figure has one or several panels side by side, which wrap on a narrow screen. Colors are classes of
page.css (series0, series1, ...), so that they follow the light or dark theme; series also differ in marker
and dash. Names are in the legend above the figure, as HTML, where long ones wrap. Each point has a <title>,
which browsers show on hovering, and which page.js makes readable by arrow keys.

Coordinates are in units of the viewBox, about one pixel.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from tmft.errors import sanitize

WIDTH, HEIGHT = 400, 270
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 30, 44  # margins of a panel around its axes
NUM_COLORS = 7  # classes series0 to series6 of page.css
MAX_LABEL = 48  # characters of the name of an axis
MAX_CELLS = 13  # layers of a heat map whose cells still have room for a number
# Colors of a heat map, from the lowest to the highest value; the text on them is white or black.
HEAT_COLORS = ((0, 32, 76), (56, 73, 112), (112, 113, 115), (170, 158, 106), (255, 234, 70))


@dataclass(frozen=True)
class Point:
    """A point of a series: its coordinates, and what is shown on hovering.

    x, y: the coordinates. text: what is shown. std: standard deviation in the direction of y, drawn to both
    sides. is_best: it is drawn as a star.
    """

    x: float
    y: float
    text: str
    std: float = 0.0
    is_best: bool = False


@dataclass(frozen=True)
class Series:
    """Points with one name in the legend.

    number: selects color, marker and dash. joined: "neighbors" draws lines between points whose x differ by
    1, as those of neighboring layers; "all" between all points; "" none. style: further classes of page.css.
    has_markers: whether the points are drawn.
    """

    name: str
    points: Sequence[Point]
    number: int
    joined: str = "neighbors"
    style: str = ""
    has_markers: bool = True


@dataclass(frozen=True)
class Line:
    """A horizontal line with a name in the legend, such as the score of a baseline.

    name: in the legend. y: where it is drawn. number: selects the color of a series; None: gray. is_second:
    it has the dash of a second gray line.
    """

    name: str
    y: float
    number: int | None = None
    is_second: bool = False

    @property
    def style(self) -> str:
        """The classes of page.css."""
        color = "baseline" if self.number is None else f"series{self.number % NUM_COLORS}"
        return f"line reference {color}" + " second" * self.is_second


@dataclass(frozen=True)
class Panel:
    """Axes with their series.

    title: what distinguishes this panel from the others of the figure. xlabel, ylabel: of the axes. series:
    points, joined by lines. lines: horizontal ones. log_x: whether the x axis is logarithmic. whole_x: ticks
    at whole numbers only.
    """

    title: str
    xlabel: str
    ylabel: str
    series: Sequence[Series]
    lines: Sequence[Line] = ()
    log_x: bool = False
    whole_x: bool = True  # ticks at whole numbers only


@dataclass
class Scale:
    """Maps values of an axis to coordinates.

    low, high: the values at the ends of the axis. start, end: their coordinates. log: whether the axis is
    logarithmic. ticks: values that have a label.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    ticks: list[float] = field(default_factory=list)

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)


def panel_svg(panel: Panel) -> str:
    """Return the SVG of a panel."""
    points = [point for series in panel.series for point in series.points]
    x = axis([point.x for point in points], LEFT, WIDTH - RIGHT, panel.log_x, panel.whole_x)
    spread = [point.y + sign * point.std for point in points for sign in (-1, 1)]
    y = axis([*spread, *(line.y for line in panel.lines)], HEIGHT - BOTTOM, TOP, False, False)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [f'<text class="panel-title" x="{LEFT}" y="14">{clean(panel.title)}</text>']
    for tick in y.ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{right}"/>')
        parts.append(
            f'<text class="tick end" x="{LEFT - 7}" y="{y(tick) + 4:.1f}">{number_text(tick)}</text>'
        )
    for tick in x.ticks:
        parts.append(f'<path class="axis" d="M{x(tick):.1f} {bottom}v4"/>')
        parts.append(
            f'<text class="tick middle" x="{x(tick):.1f}" y="{bottom + 17}">{number_text(tick)}</text>'
        )
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
    middle = (LEFT + right) / 2
    parts.append(f'<text class="label middle" x="{middle:.0f}" y="{HEIGHT - 8}">{clean(panel.xlabel)}</text>')
    height = (TOP + bottom) / 2
    parts.append(
        f'<text class="label middle" transform="translate(12 {height:.0f})rotate(-90)">'
        f"{clean(panel.ylabel)}</text>"
    )
    for line in panel.lines:
        parts.append(f'<path class="{line.style}" d="M{LEFT} {y(line.y):.1f}H{right}"/>')
    elements = [element for series in panel.series for element in series_svg(series, x, y)]
    parts += sorted(elements, key=lambda element: element.startswith('<g class="point best'))  # stars on top
    summary = clean(describe(panel), 1500)
    return (
        f'<svg class="panel" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{summary}">'
        f"{''.join(parts)}</svg>"
    )


def series_svg(series: Series, x: Scale, y: Scale) -> list[str]:
    """Return the lines, bands, error bars and markers of a series, one SVG element each."""
    color = f"series{series.number % NUM_COLORS} dash{series.number // NUM_COLORS % 3} {series.style}".strip()
    ordered = sorted(series.points, key=lambda point: point.x)
    parts = []
    for run in connected(ordered, series.joined):
        if len(run) > 1:
            if any(point.std for point in run):
                upper = [f"{x(p.x):.1f} {y(p.y + p.std):.1f}" for p in run]
                lower = [f"{x(p.x):.1f} {y(p.y - p.std):.1f}" for p in reversed(run)]
                parts.append(f'<path class="band {color}" d="M{"L".join(upper + lower)}Z"/>')
            d = "L".join(f"{x(point.x):.1f} {y(point.y):.1f}" for point in run)
            parts.append(f'<path class="line {color}" d="M{d}"/>')
        elif run[0].std:
            p = run[0]
            parts.append(
                f'<path class="line bar {color}" d="M{x(p.x):.1f} {y(p.y - p.std):.1f}V{y(p.y + p.std):.1f}'
                f'm-3 0h6M{x(p.x) - 3:.1f} {y(p.y - p.std):.1f}h6"/>'
            )
    for point in ordered:
        place = f'cx="{x(point.x):.1f}" cy="{y(point.y):.1f}"'
        target = f'<circle class="target" {place} r="{9 if series.has_markers else 5}"/>'
        shape = marker(STAR if point.is_best else series.number, x(point.x), y(point.y))
        outline = f'<path d="{shape}"/>' if series.has_markers else ""
        best = " best" if point.is_best else ""
        title = f"<title>{lines_of(point.text)}</title>"
        parts.append(f'<g class="point{best} {color}">{outline}{target}{title}</g>')
    return parts


def connected(points: list[Point], joined: str) -> list[list[Point]]:
    """Divide points, sorted by x, into runs that are drawn with a line; a lone point is a run of its own.

    joined: which points a line joins, see `Series`.
    """
    if joined == "all":
        return [points] if points else []
    runs: list[list[Point]] = []
    for point in points:
        if joined and runs and point.x == runs[-1][-1].x + 1:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


STAR = -1  # number of the marker of the layer that is best on dev


def marker(number: int, x: float, y: float) -> str:
    """Return the outline of a marker with its center at x, y: circle, square, triangle, ... or a star.

    number: selects the shape; STAR is the star.
    """
    if number == STAR:
        corners = [(7.0 if i % 2 == 0 else 3.0, 36 * i - 90) for i in range(10)]
    else:
        corners = [
            [(3.6, angle) for angle in range(0, 360, 30)],  # nearly a circle
            [(4.4, angle) for angle in (45, 135, 225, 315)],
            [(4.8, angle) for angle in (-90, 30, 150)],
            [(4.6, angle) for angle in (0, 90, 180, 270)],
            [(4.8, angle) for angle in (90, 210, 330)],
            [(4.4, angle) for angle in range(-90, 270, 72)],
            [(4.8 if i % 2 == 0 else 1.9, 45 * i) for i in range(8)],
        ][number % NUM_COLORS]
    return (
        "M"
        + "L".join(
            f"{x + r * math.cos(math.radians(a)):.1f} {y + r * math.sin(math.radians(a)):.1f}"
            for r, a in corners
        )
        + "Z"
    )


def legend_html(panels: Sequence[Panel]) -> str:
    """Return the legend of panels as an HTML list; a name that occurs in several panels is listed once."""
    entries: dict[str, str] = {}
    for panel in panels:
        for series in panel.series:
            color = f"series{series.number % NUM_COLORS} dash{series.number // NUM_COLORS % 3} {series.style}"
            line = f'<path class="line {color}" d="M1 8H27"/>' if series.joined else ""
            sign = f'<g class="point {color}"><path d="{marker(series.number, 14, 8)}"/></g>'
            entries.setdefault(series.name, line + (sign if series.has_markers else ""))
        for reference in panel.lines:
            entries.setdefault(reference.name, f'<path class="{reference.style}" d="M1 8H27"/>')
        if any(point.is_best for series in panel.series for point in series.points):
            star = f'<g class="point best plain"><path d="{marker(STAR, 14, 8)}"/></g>'
            entries["the layer with the best score on dev"] = star
    items = "".join(
        f'<li><svg class="sign" viewBox="0 0 28 16" aria-hidden="true">{sign}</svg>{clean(name, 220)}</li>'
        for name, sign in entries.items()
    )
    return f'<ul class="legend">{items}</ul>'


def heat_map_svg(matrix: Sequence[Sequence[float]], xlabel: str, ylabel: str, text: str) -> str:
    """Return the SVG of a matrix of numbers as colors, the first line at the top, as in a printed table.

    Each cell shows its number if there are at most MAX_CELLS columns. The colors range from the lowest to the
    highest number. xlabel, ylabel: of the axes. text: what the map shows, for screen readers.
    """
    rows, columns = len(matrix), len(matrix[0])
    size = min(28.0, (WIDTH - LEFT - RIGHT) / columns)
    low, high = (pick(value for row in matrix for value in row) for pick in (min, max))
    width, height = LEFT + size * columns + 70, 26 + size * rows + BOTTOM
    parts = []
    for i, row in enumerate(matrix):
        parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{26 + size * (i + 0.5) + 4:.1f}">{i}</text>')
        for j, value in enumerate(row):
            share = (value - low) / (high - low) if high > low else 1.0
            left, top = LEFT + size * j, 26 + size * i
            number = ""
            if columns <= MAX_CELLS:
                ink = "#fff" if share < 0.55 else "#000"
                number = (
                    f'<text class="cell middle" fill="{ink}" x="{left + size / 2:.1f}" '
                    f'y="{top + size / 2 + 3.5:.1f}">{short_number(value)}</text>'
                )
            parts.append(
                f'<g class="point cell-group"><rect x="{left:.1f}" y="{top:.1f}" width="{size:.2f}" '
                f'height="{size:.2f}" fill="{heat_color(share)}"/>{number}<title>{clean(ylabel)} {i}, '
                f"{clean(xlabel)} {j}: {value:.4f}</title></g>"
            )
    for j in range(columns):
        if columns <= 20 or j % 2 == 0:
            place = f'x="{LEFT + size * (j + 0.5):.1f}" y="{26 + size * rows + 15:.1f}"'
            parts.append(f'<text class="tick middle" {place}>{j}</text>')
    bar = LEFT + size * columns + 14
    steps = 20
    for step in range(steps):
        top = 26 + size * rows * (1 - (step + 1) / steps)
        parts.append(
            f'<rect x="{bar:.1f}" y="{top:.2f}" width="12" height="{size * rows / steps + 0.5:.2f}" '
            f'fill="{heat_color((step + 0.5) / steps)}"/>'
        )
    for value, top in ((high, 30.0), (low, 26 + size * rows)):
        parts.append(f'<text class="tick" x="{bar + 16:.1f}" y="{top:.1f}">{value:.2f}</text>')
    middle = LEFT + size * columns / 2
    parts.append(
        f'<text class="label middle" x="{middle:.0f}" y="{height - 8:.0f}">{clean(xlabel)}</text>'
        f'<text class="label middle" transform="translate(14 {26 + size * rows / 2:.0f})rotate(-90)">'
        f"{clean(ylabel)}</text>"
    )
    return (
        f'<svg class="panel" viewBox="0 0 {width:.0f} {height:.0f}" role="img" tabindex="0" '
        f'aria-label="{clean(text, 600)}">{"".join(parts)}</svg>'
    )


def interval_svg(difference: float, low: float, high: float, limit: float) -> str:
    """Return a small picture of a confidence interval beside 0.

    difference: drawn as a point. low, high: ends of the interval. limit: the largest value that it can show.
    """
    width, height = 160, 18
    x = Scale(-limit, limit, 6, width - 6)
    kind = "clear" if low > 0 or high < 0 else "unclear"
    return (
        f'<svg class="interval" viewBox="0 0 {width} {height}" aria-hidden="true">'
        f'<path class="axis" d="M{x(0):.1f} 1V{height - 1}"/>'
        f'<path class="line {kind}" d="M{x(low):.1f} 9H{x(high):.1f}m0 -4v8M{x(low):.1f} 5v8"/>'
        f'<circle class="{kind}" cx="{x(difference):.1f}" cy="9" r="3.5"/></svg>'
    )


# -------------------------------------------------------------------------------------------- axes and text


def axis(values: Sequence[float], start: float, end: float, log: bool, whole: bool) -> Scale:
    """Return the scale of an axis that shows all values, with its ticks.

    start, end: coordinates of its ends. log: a logarithmic axis. whole: ticks at whole numbers only.
    """
    low, high = min(values), max(values)
    if log:
        low, high = low / 1.15, high * 1.15
        ticks = [
            step * 10.0**power
            for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for step in (1, 2, 5)
        ]
        shown = [tick for tick in ticks if low <= tick <= high]
        if len(shown) < 2:  # a range of less than a factor of two
            shown = nice_ticks(low, high)
        return Scale(low, high, start, end, True, shown)
    if whole:
        step = max(1, math.ceil((high - low) / 12))
        shown = list(range(math.ceil(low), math.floor(high) + 1, step))
        pad = 0.04 * (high - low) or 0.5
        return Scale(low - pad, high + pad, start, end, False, shown)
    pad = 0.08 * (high - low) or max(abs(high) * 0.01, 1e-3)
    low, high = low - pad, high + pad
    return Scale(low, high, start, end, False, nice_ticks(low, high))


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers between low and high: multiples of 1, 2 or 5 times a power of 10."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step)
    return [round(number * step, 12) for number in range(first, math.floor(high / step) + 1)]


def number_text(value: float) -> str:
    """Return the label of a tick at value, with a minus sign and commas between thousands."""
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
    return text.replace("-", "−")


def short_number(value: float) -> str:
    """Return value, a number from -1 to 1, with two decimals and without the 0 before the point: ".98"."""
    text = f"{value:.2f}"
    return text.replace("0.", ".", 1).replace("-", "−") if abs(value) < 0.995 else text


def heat_color(share: float) -> str:
    """Return the color of a value of a heat map. share: 0 for the lowest, 1 for the highest value."""
    place = min(max(share, 0.0), 1.0) * (len(HEAT_COLORS) - 1)
    index = min(int(place), len(HEAT_COLORS) - 2)
    mixed = (
        round(a + (b - a) * (place - index))
        for a, b in zip(HEAT_COLORS[index], HEAT_COLORS[index + 1], strict=True)
    )
    return "#" + "".join(f"{part:02x}" for part in mixed)


def describe(panel: Panel) -> str:
    """Return what a panel shows in words, for those who do not see it."""
    sentences = [f"{panel.title}: {panel.ylabel} by {panel.xlabel}."]
    for series in panel.series[:12]:
        if not series.points:
            continue
        ordered = sorted(series.points, key=lambda point: point.x)
        highest = max(ordered, key=lambda point: point.y)
        sentences.append(
            f"{series.name[:60]}: {len(ordered)} points from {number_text(ordered[0].x)} to "
            f"{number_text(ordered[-1].x)}, highest {highest.y:.4g} at {number_text(highest.x)}, "
            f"last {ordered[-1].y:.4g}."
        )
    sentences += [f"{line.name[:60]}: {line.y:.4g}." for line in panel.lines[:12]]
    return " ".join(sentences) + " All numbers are in the table below."


def lines_of(text: str) -> str:
    """Return a text of several lines as HTML."""
    return "\n".join(clean(line, 120) for line in text.split("\n"))


def clean(text: str, max_length: int = MAX_LABEL) -> str:
    """Return a text that may come from a file as HTML that shows it: escaped, and on one line.

    max_length: number of characters after which it is cut.
    """
    return escape(sanitize(str(text), max_length), quote=True)
