"""Format numbers, names and tables for people: scores x 100, durations, text tables, Markdown, JSON."""

import json
import math
import re
import statistics
import unicodedata

from tmft.errors import sanitize

MAX_NAME_LENGTH = 200  # printed characters of a name that comes from a file, such as that of a data set
DIRECTION_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

# Keys of the scores of a split that are not scores themselves; see docs/commands.md.
NON_SCORE_KEYS = ("pairs", "threshold", "subset_mean", "subsets", "sub_embeddings", "tasks")


def percent(value: float | None) -> str:
    """Return a score x 100 with two decimals, such as "84.12" for the value 0.84123.

    An undefined score gives "nan": it is NaN, or None where it was read from result.json, which has null.
    """
    return "nan" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def mean_and_std(values: list[float]) -> str:
    """Return the mean and the sample standard deviation (n - 1) of scores, x 100: "84.12 ± 0.35".

    A single value has no deviation, so the mean is returned alone. The result is "nan" if a value is NaN.
    """
    mean = statistics.mean(values)
    if len(values) == 1 or math.isnan(mean):
        return percent(mean)
    return f"{percent(mean)} ± {percent(statistics.stdev(values))}"


def format_duration(seconds: float) -> str:
    """Return a duration as h:mm:ss, rounded to whole seconds: "1:02:03" for 3723.4."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def text_bar(values: list[float], i: int, width: int = 24) -> str:
    """Return a bar of "█" for values[i]: one block for the smallest of the values, `width` for the largest.

    The bar is empty, "", if values[i] is NaN or if all values are equal.
    """
    defined = [value for value in values if not math.isnan(value)]
    if len(defined) < 2 or min(defined) == max(defined) or math.isnan(values[i]):
        return ""
    return "█" * (1 + round((width - 1) * (values[i] - min(defined)) / (max(defined) - min(defined))))


def text_table(lines: list[list[str]]) -> str:
    """Return a table as plain text, without a line end after the last line.

    lines: the cells of each line; all lines have equally many, and the first line is the heading. All columns
    are aligned to the right, except for the last one, which is for bars and remarks.
    """
    lines = [[sanitize(cell, MAX_NAME_LENGTH) for cell in cells] for cells in lines]
    *widths, _ = [max(map(len, column)) for column in zip(*lines, strict=True)]
    formatted = []
    for *cells, last in lines:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        formatted.append("  ".join([*aligned, last]).rstrip())
    return "\n".join(formatted)


def markdown_table(lines: list[list[str]]) -> str:
    """Return a table in Markdown: the first column is aligned to the left, the others to the right.

    lines: as in text_table. If the last column, for remarks, is empty in all lines, it is dropped.
    """
    if not any(cells[-1] for cells in lines):
        lines = [cells[:-1] for cells in lines]
    heading, *body = [[escape_markdown(cell) for cell in cells] for cells in lines]
    rule = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heading, rule, *body]) + "\n"


def escape_markdown(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return Markdown that displays a text from a file literally and on one line.

    Characters are escaped so that the text cannot make a link, an image or HTML, and cannot end the cell of a
    table. Control characters are replaced, and texts are shortened to max_length characters, see sanitize.
    """
    return re.sub(r"([\\`<>|&]|\](?=[(\[:]))", r"\\\1", sanitize(text, max_length))


def to_json(content: object) -> str:
    """Return content, a value that JSON can express, as JSON text that ends with a line end.

    NaN and infinity become null, because JSON has no such numbers.
    """
    return json.dumps(nan_to_none(content), indent=2, ensure_ascii=False) + "\n"


def without_control_characters(text: str) -> str:
    """Return a line of text as it may be printed to a terminal, which would obey its control characters.

    Each of them, also those that change the direction of writing, is replaced by "?", a tab by a space.
    Letters, signs and spaces of all languages are kept, unlike in tmft.errors.sanitize.
    """
    text = text.replace("\t", " ")
    return "".join(
        "?" if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in DIRECTION_CONTROLS else char
        for char in text
    )


def nan_to_none(value: object) -> object:
    """Return a copy of a value in which NaN and infinity are None, also in nested dicts, lists and tuples.

    Tuples become lists, as in JSON.
    """
    if isinstance(value, dict):
        return {key: nan_to_none(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [nan_to_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
