"""Read TSV files: UTF-8, a header line, cells separated by one TAB, no quoting."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from tmft.errors import InputError, did_you_mean
from tmft.io.files import check_regular_file
from tmft.io.text import read_lines


def read_table(path: Path, *choices: Sequence[str], encoding: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield (location, cells) for each line of a TSV file after the header.

    location: "path, line n", for messages. cells: the cells of the chosen columns, in the order of the names.
    choices: alternative lists of column names; the first list whose names are all in the header is used.
    encoding: see read_lines.
    Raises InputError if the file cannot be read, a column is missing or doubled, or a line has too few or too
    many cells.

    Example:

    >>> from pathlib import Path
    >>> location, cells = next(read_table(Path("data/sample/dev.tsv"), ["score", "sentence1"]))
    >>> cells
    ['0', 'The price of gold hardly changed on Tuesday.']
    """
    check_regular_file(path)
    lines = enumerate((line.split("\t") for line in read_lines(path, encoding)), start=1)
    first = next(lines, (1, [""]))
    header = first[1]
    if header == [""]:
        raise InputError(
            f"no header line ({path}): the file is empty, write {', '.join(choices[0])} and examples"
        )
    if len(header) == 1 and choices[0] != header and ("," in header[0] or ";" in header[0]):
        raise InputError(
            f"no TAB in the header {header[0]!r} ({path}, line 1): write a TSV file, with a TAB between "
            "two columns"
        )
    yield from select_columns(chain([first], lines), path, *choices)


def select_columns(
    lines: Iterable[tuple[int, list[str]]],
    path: Path,
    *choices: Sequence[str],
    remedy: str = "one TAB goes between two columns, none inside a sentence",
) -> Iterator[tuple[str, list[str]]]:
    """Yield (location, cells) as read_table does, for lines that are already split into cells.

    lines: the number and the cells of each line; the first line is the header. path: the file, for messages.
    choices: see read_table. remedy: the advice in the message about a line with too few or too many cells.
    Raises InputError for such a line, or if a column is missing.
    """
    lines = iter(lines)
    _, header = next(lines, (1, [""]))
    names = next((names for names in choices if set(names) <= set(header)), choices[0])
    columns = find_columns(names, header, f"{path}, line 1")
    for line_number, cells in lines:
        location = f"{path}, line {line_number}"
        if len(cells) != len(header):
            raise InputError(f"{len(cells)} fields instead of {len(header)} ({location}): {remedy}")
        yield location, [cells[column] for column in columns]


def find_columns(names: Sequence[str], header: Sequence[str], location: str) -> list[int]:
    """Return the index in a header of each of some names; raise InputError unless it is there exactly once.

    location: the file and line of the header, for the message.
    """
    for name in names:
        if name not in header:
            columns = f"{', '.join(header)}{did_you_mean(name, header)}"
            raise InputError(f"no column {name!r} ({location}): the columns are {columns}")
        if header.count(name) > 1:
            raise InputError(f"two columns {name!r} ({location}): rename one of them")
    return [header.index(name) for name in names]


def has_visible_text(cell: str) -> bool:
    """Return whether a cell has at least one visible character.

    Spaces, control characters and zero-width characters are not visible.
    """
    return any(char.isprintable() and not char.isspace() for char in cell)


def parse_number(cell: str) -> float:
    """Return float(cell). Raises ValueError if the cell is not a number.

    Unlike float(), it accepts no underscores (0_5), no spaces, no digits other than 0 to 9, no nan and inf.
    """
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", cell):
        raise ValueError(cell)
    return float(cell)
