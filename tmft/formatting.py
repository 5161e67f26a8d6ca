"""Numbers as people read them: scores x 100, tables, bars, clocks."""

import json
import math
import statistics

from tmft.checkpoints.model_card import SHOWN, plain
from tmft.errors import sanitize
from tmft.training.loop import Epoch

NOT_SCORES = (
    "pairs",
    "threshold",
    "subset_mean",
    "subsets",
    "views",
)  # what stands beside the scores of a split


def percent(value: float | None) -> str:
    """A score x 100 with two decimals; nan for one that is undefined (null in result.json)."""
    return "nan" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def mean_and_std(values: list[float]) -> str:
    """Mean and sample deviation (n - 1) x 100; of a single value only itself; nan if one of them is."""
    mean = statistics.mean(values)
    if len(values) == 1 or math.isnan(mean):
        return percent(mean)
    return f"{percent(mean)} ± {percent(statistics.stdev(values))}"


def bar(values: list[float], i: int, width: int = 24) -> str:
    """Value i of a curve as a bar: one block for the smallest value, `width` for the largest."""
    defined = [value for value in values if not math.isnan(value)]
    if len(defined) < 2 or min(defined) == max(defined) or math.isnan(values[i]):
        return ""
    return "█" * (1 + round((width - 1) * (values[i] - min(defined)) / (max(defined) - min(defined))))


def table(lines: list[list[str]]) -> str:
    """Lines of cells -> text, columns set flush right but for the last; the first line is the heading."""
    lines = [[sanitize(cell, SHOWN) for cell in cells] for cells in lines]
    *widths, _ = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = []
    for *cells, last in lines:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        rows.append("  ".join([*aligned, last]).rstrip())
    return "\n".join(rows)


def markdown(lines: list[list[str]]) -> str:
    """The same as a Markdown table, the first column flush left, the others right; no column of no bars."""
    if not any(cells[-1] for cells in lines):
        lines = [cells[:-1] for cells in lines]
    heading, *rows = [[plain(cell) for cell in cells] for cells in lines]
    rule = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heading, rule, *rows]) + "\n"


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def as_json(content) -> str:
    """JSON text, in which undefined numbers are null: JSON knows no NaN or infinity."""
    return json.dumps(without_nan(content), indent=2, ensure_ascii=False) + "\n"


def epoch_line(done: list[Epoch], metric: str, epochs: int) -> str:
    """One line of the log, for the last of those that are done."""
    epoch, seconds = done[-1], statistics.mean(epoch.seconds for epoch in done)
    score, mark = percent(epoch.dev[metric]), "*" if epoch.best else " "
    left = clock((epochs - epoch.number) * seconds)
    return (
        f"epoch {epoch.number:2}/{epochs} | loss {epoch.loss:.4f} | dev {metric} {score} {mark} | "
        f"lr {epoch.lr:.1e} | {epoch.pairs_per_second:.0f} pairs/s | {left} left"
    )


def without_nan(value):
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
