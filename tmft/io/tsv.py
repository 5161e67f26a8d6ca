"""Read TSV files: UTF-8, a header line, cells separated by one TAB, no quoting."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tmft.errors import InputError


def read_table(path: Path, *choices: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Read the named columns of a TSV file: yield ("path, line n", cells in the order of the names) per line.

    choices: alternative lists of column names; the first list that the header contains is used.
    Raises InputError if the file cannot be read, a column is missing or doubled, or a line has too few or too
    many cells.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no ordinary file: name one")
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as lines:  # a lone \r or \x85 does not end a line
            cells = (line.rstrip("\r\n").split("\t") for line in lines)
            yield from select_columns(cells, path, *choices)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as UTF-8 text: {error} ({path})") from None


def select_columns(
    lines: Iterable[list[str]],
    path: Path,
    *choices: Sequence[str],
    remedy: str = "one TAB goes between two columns, none inside a sentence",
) -> Iterator[tuple[str, list[str]]]:
    """Do the work of read_table for lines that are already split into cells.

    remedy: the advice in the message about a line with too few or too many cells.
    """
    lines = iter(lines)
    header = next(lines, [""])
    names = next((names for names in choices if set(names) <= set(header)), None)
    if names is None:
        missing = next(name for name in choices[0] if name not in header)
        raise InputError(f"no column {missing!r} ({path}, line 1): the columns are {', '.join(header)}")
    if doubled := [name for name in names if header.count(name) > 1]:
        raise InputError(f"two columns {doubled[0]!r} ({path}, line 1): rename one of them")
    columns = [header.index(name) for name in names]
    for line_number, cells in enumerate(lines, start=2):
        location = f"{path}, line {line_number}"
        if len(cells) != len(header):
            raise InputError(f"{len(cells)} fields instead of {len(header)} ({location}): {remedy}")
        yield location, [cells[column] for column in columns]


def has_visible_text(cell: str) -> bool:
    """Return whether a cell has a visible character, not only spaces, control and zero-width characters."""
    return any(char.isprintable() and not char.isspace() for char in cell)


def parse_number(cell: str) -> float:
    """Return float(cell), but raise ValueError for what only Python accepts: 0_5, other digits, spaces."""
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", cell):
        raise ValueError(cell)
    return float(cell)
