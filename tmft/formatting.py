"""Format numbers, names and tables for people: scores x 100, durations, text tables, Markdown, JSON."""

import json
import math
import re
import statistics

from tmft.errors import sanitize

MAX_NAME_LENGTH = 200  # characters of a name that comes from a file, such as the name of a data set

# Keys of the scores of a split that are not scores themselves; see tmft/runs/result_schema.py.
NON_SCORE_KEYS = ("pairs", "threshold", "subset_mean", "subsets", "sub_embeddings", "tasks")


def percent(value: float | None) -> str:
    """Return a score x 100 with two decimals; "nan" for an undefined score (NaN, or null in result.json)."""
    return "nan" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def mean_and_std(values: list[float]) -> str:
    """Return "mean ± std" x 100, with the sample standard deviation (n - 1).

    A single value has no standard deviation and gives the value alone. The result is "nan" if a value is NaN.
    """
    mean = statistics.mean(values)
    if len(values) == 1 or math.isnan(mean):
        return percent(mean)
    return f"{percent(mean)} ± {percent(statistics.stdev(values))}"


def format_duration(seconds: float) -> str:
    """Return a duration as h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def text_bar(values: list[float], i: int, width: int = 24) -> str:
    """Return value i of a curve as a bar of blocks: one for the smallest value, `width` for the largest.

    The bar is empty for NaN, and for all values of a curve that is constant.
    """
    defined = [value for value in values if not math.isnan(value)]
    if len(defined) < 2 or min(defined) == max(defined) or math.isnan(values[i]):
        return ""
    return "█" * (1 + round((width - 1) * (values[i] - min(defined)) / (max(defined) - min(defined))))


def text_table(lines: list[list[str]]) -> str:
    """Format a table as plain text. lines: cells of each line; the first line is the heading.

    All columns are aligned to the right, except for the last one, which is for bars and remarks.
    """
    lines = [[sanitize(cell, MAX_NAME_LENGTH) for cell in cells] for cells in lines]
    *widths, _ = [max(map(len, column)) for column in zip(*lines, strict=True)]
    formatted = []
    for *cells, last in lines:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        formatted.append("  ".join([*aligned, last]).rstrip())
    return "\n".join(formatted)


def markdown_table(lines: list[list[str]]) -> str:
    """Format the same table as Markdown: the first column is aligned to the left, the others to the right.

    If the last column is empty in all lines, it is dropped.
    """
    if not any(cells[-1] for cells in lines):
        lines = [cells[:-1] for cells in lines]
    heading, *body = [[escape_markdown(cell) for cell in cells] for cells in lines]
    rule = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heading, rule, *body]) + "\n"


def escape_markdown(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a text from a file as Markdown that displays it literally, on one line and sanitized.

    It cannot make a link, an image or HTML, and it cannot end the cell of a table.
    """
    return re.sub(r"([\\`<>|&]|\](?=[(\[:]))", r"\\\1", sanitize(text, max_length))


def to_json(content) -> str:
    """Return JSON text. Undefined numbers become null, because JSON has no NaN or infinity."""
    return json.dumps(nan_to_none(content), indent=2, ensure_ascii=False) + "\n"


def nan_to_none(value):
    """Replace NaN and infinity by None, in nested dicts, lists and tuples, too."""
    if isinstance(value, dict):
        return {key: nan_to_none(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [nan_to_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
