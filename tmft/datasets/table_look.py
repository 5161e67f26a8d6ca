"""Look at a table of the user: its columns, and all options that its conversion needs, in one command."""

import codecs
import shlex
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from tmft.data import SPLITS
from tmft.datasets.own_data import COLUMN_LISTS, SPLIT_NAMES, assign_splits
from tmft.errors import InputError, short_repr
from tmft.io.files import reading
from tmft.io.tables import read_columns, read_header
from tmft.io.text import OPENERS, parse_number
from tmft.tasks import PAIR_COLUMNS, TEXT_COLUMN

MAX_ROWS = 1000  # from which the options are guessed
MAX_CLASSES = 20  # a column with more texts than that has no classes
SHOWN_VALUES = 3


def look_at_tables(files: Sequence[str]) -> list[str]:
    """Return lines that show the columns of a table, and the command that converts the tables.

    files: paths of tables of the same columns, or "SPLIT=PATH"; the first one is looked at. The command has
    all options that they need: the columns, the encoding, what stands before the decimals, and the split.
    What a column holds is guessed from its first MAX_ROWS values.
    """
    split, equals, path = files[0].partition("=")
    table = Path(path if equals and split in SPLITS else files[0])
    encoding = find_encoding(table)
    header = read_header(table, encoding)
    unique = list(dict.fromkeys(header))
    rows = [cells for _, cells in islice(read_columns(table, unique, encoding), MAX_ROWS)]
    values = {name: [cells[n].strip() for cells in rows] for n, name in enumerate(unique)}
    lines = [f"{table}: {len(header)} columns" + (f", encoding {encoding}" if encoding else "")]
    for name, cells in values.items():
        lines.append(f"  {name}: {', '.join(short_repr(cell) for cell in cells[:SHOWN_VALUES])}")
    columns, decimal = guess_columns(values)
    if not columns:
        forms = "; ".join(",".join(form) for form in COLUMN_LISTS)
        lines.append(f"which columns are texts and labels cannot be guessed: give --columns, one of: {forms}")
        columns = {"...": "..."}
    words = ["python", "-m", "tmft", "data", "convert", *files, "--columns"]
    words.append(",".join(new if new == name else f"{new}={name}" for new, name in columns.items()))
    words += ["--encoding", encoding] if encoding else []
    words += ["--decimal", decimal] if decimal == "," else []
    words += [] if have_splits(files) else ["--split", "0.8,0.1,0.1"]
    stem = table.name.partition(".")[0]
    words += ["--out", "converted" if stem.lower() in SPLIT_NAMES else stem]
    return [*lines, f"next: {shlex.join(words)}"]


def find_encoding(path: Path) -> str:
    """Return the encoding of a table: "" for UTF-8, else "utf-16" or "cp1252", as Excel writes them."""
    try:
        header = read_header(path)
        for _ in islice(read_columns(path, list(dict.fromkeys(header))), MAX_ROWS):
            pass
        return ""
    except InputError as error:
        if "encoding" not in error.parameters:
            raise
    with reading(path), OPENERS.get(path.suffix, open)(path, "rb") as file:
        return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "cp1252"


def have_splits(files: Sequence[str]) -> bool:
    """Return whether the names of the files tell their splits."""
    try:
        assign_splits(files, divided=False)
        return True
    except InputError:
        return False


def guess_columns(values: dict[str, list[str]]) -> tuple[dict[str, str], str]:
    """Return {name in the TSV file: name in the table}, and what stands before the decimals.

    values: name of a column -> its first values. A column of the right name is taken as it is. Else numbers
    are scores, unless each row has another whole number, as a key has; a text that occurs again and again is
    a class; the other columns are texts. The result is {} if that makes no list of COLUMN_LISTS.
    """
    numbers = {name: [number_of(cell) for cell in cells if cell] for name, cells in values.items()}
    numeric = [name for name, found in numbers.items() if found and None not in found]
    decimal = "," if any("," in cell for name in numeric for cell in values[name]) else "."
    for form in COLUMN_LISTS[::-1]:
        if set(form) <= set(values):
            return {name: name for name in form}, decimal
    keys = {
        name
        for name in numeric
        if len(set(numbers[name])) == len(numbers[name]) > 2
        and all(cell.isdecimal() for cell in values[name])
    }
    scores = [name for name in numeric if name not in keys]
    others = [name for name, cells in values.items() if name not in numeric and any(cells)]
    classes = [name for name in others if len(set(values[name])) <= min(MAX_CLASSES, len(values[name]) // 2)]
    texts = [name for name in others if name not in classes]
    if len(texts) == 2 and (scores or classes):
        kind = "score" if scores else "label"
        return dict(zip((*PAIR_COLUMNS, kind), [*texts, (scores or classes)[-1]], strict=True)), decimal
    if len(texts) == 1 and (scores or classes):
        return dict(zip((*TEXT_COLUMN, "label"), [*texts, (classes or scores)[-1]], strict=True)), decimal
    return {}, decimal


def number_of(cell: str) -> float | None:
    """Return the number in a cell, whose decimals a comma may begin; None if it is none."""
    try:
        return parse_number(cell.replace(",", ".") if "." not in cell else cell)
    except ValueError:
        return None
