"""Draw docs/quality-by-size.svg, the figure of docs/students.md, from its table.

    python docs/quality_by_size.py

A row of the table is a point. The SVG is written by hand, so that it needs no package and its text is text.
"""

import math
import re
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS)]

import svg  # noqa: E402
from svg import BLUE, GRAY, INK, opening  # noqa: E402

WIDTH, HEIGHT = 1000, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 976, 84, 340  # the axes
LOWEST, HIGHEST = 75.4, 80  # quality at the bottom and the top of the axes
SMALLEST, LARGEST = 0.6, 350  # megabytes at the left and the right end
SIZES = (1, 2, 5, 10, 20, 50, 100)  # marks of the horizontal axis, in MB
LINE_HEIGHT = 18
SUBTITLE = "Mean Spearman × 100 on seven similarity data sets. Open marks: made by others, measured by us."
text = partial(svg.text, size=15, color=GRAY)


class Model(NamedTuple):
    """A row of the table. is_ours: we trained it, so that the row says how."""

    name: str
    quality: float
    megabytes: float
    is_ours: bool


def main() -> None:
    (DOCS / "quality-by-size.svg").write_text(figure(read_models()), encoding="utf-8", newline="\n")


def read_models() -> list[Model]:
    """Return the rows of the table in docs/students.md; a model in another program is the same model."""
    page = (DOCS / "students.md").read_text(encoding="utf-8")
    rows = page.partition("|---|")[2].partition("\n\n")[0].split("\n")[1:]
    models: dict[tuple[str, str], Model] = {}
    for row in rows:
        name, quality, megabytes, _, how = (cell.strip() for cell in row.strip("|").split("|"))
        name = re.sub("[`*]", "", name.partition(":")[0])
        models.setdefault((quality, megabytes), Model(name, float(quality), float(megabytes), bool(how)))
    return [*models.values()]


def finding(models: list[Model]) -> str:
    """Say what the smallest good model has, and the largest of others."""
    whole = max((model for model in models if not model.is_ours), key=lambda model: model.megabytes)
    small = max((model for model in models if model.megabytes < 6), key=lambda model: model.quality)
    return (
        f"In {small.megabytes:g} MB: {small.quality:.1f} points. "
        f"The whole model, in {whole.megabytes:g} MB: {whole.quality:.1f}."
    )


def figure(models: list[Model]) -> str:
    """Return the content of quality-by-size.svg."""
    title = finding(models)
    description = "Quality by megabytes of files. " + "; ".join(
        f"{model.name}: {model.quality:.2f} with {model.megabytes:g} MB" for model in models
    )
    parts = [
        *opening(WIDTH, HEIGHT, title, description),
        text(24, 34, title, size=21, color=INK, bold=True),
        text(24, 60, SUBTITLE),
    ]
    for score in range(math.ceil(LOWEST), HIGHEST + 1):
        parts.append(f'<path d="M{LEFT} {y(score):.1f}H{RIGHT}" stroke="#e4e4e4"/>')
        parts.append(text(LEFT - 8, y(score) + 5, str(score), anchor="end"))
    for size in SIZES:
        parts.append(f'<path d="M{x(size):.1f} {BOTTOM}v6" stroke="{GRAY}"/>')
        parts.append(text(x(size), BOTTOM + 22, f"{size}", anchor="middle"))
    parts.append(text(RIGHT, HEIGHT - 12, "megabytes of files", anchor="end"))
    for model, label_y in zip(models, label_heights(models), strict=True):
        parts += point(model, label_y, models)
    return "\n".join([*parts, "</svg>"]) + "\n"


def x(megabytes: float) -> float:
    """Return where a size is, on a logarithmic axis."""
    share = math.log(megabytes / SMALLEST) / math.log(LARGEST / SMALLEST)
    return LEFT + (RIGHT - LEFT) * share


def y(quality: float) -> float:
    """Return where a quality is; below the axes are models at their lower end."""
    return BOTTOM - 12 - (BOTTOM - 12 - TOP) * (max(quality, LOWEST) - LOWEST) / (HIGHEST - LOWEST)


def label_heights(models: list[Model]) -> list[float]:
    """Return the heights of the labels, which are moved up where two would touch."""
    heights = {model: y(model.quality) for model in models}
    for lower, upper in pairwise(sorted(models, key=lambda model: model.quality)):
        is_near = abs(x(lower.megabytes) - x(upper.megabytes)) < 190
        if is_near and heights[lower] - heights[upper] < LINE_HEIGHT:
            heights[upper] = heights[lower] - LINE_HEIGHT
    return [heights[model] for model in models]


def point(model: Model, label_y: float, models: list[Model]) -> list[str]:
    """Return the mark and the label of a model, which is on the left where it would cover another mark."""
    at, height, color = x(model.megabytes), y(model.quality), BLUE if model.is_ours else GRAY
    fill = color if model.is_ours else "#ffffff"
    below = ", below ↓" if model.quality < LOWEST else ""
    label = f"{model.name}: {model.quality:.2f}{below}"
    mark = f'<circle cx="{at:.1f}" cy="{height:.1f}" r="6" fill="{fill}" stroke="{color}" stroke-width="2"/>'
    is_covered = any(
        0 < x(other.megabytes) - at < 12 + 7 * len(label) and abs(y(other.quality) - label_y) < 14
        for other in models
    )
    side, anchor = (-12, "end") if is_covered else (12, "start")
    return [mark, text(at + side, label_y + 5, label, color=color, anchor=anchor, bold=model.is_ours)]


if __name__ == "__main__":
    main()
