"""Tables: UTF-8, a header line, columns split by one TAB, no quoting."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tmft.errors import InputError


def read_table(path: Path, *choices: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The named columns of a TSV file: yield "path, line n" and the cells, in the order of the names.

    choices: lists of names; the first that the header has is read. Every line is checked.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no ordinary file: name one")
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as lines:  # a lone \r or \x85 does not end a line
            yield from select((line.rstrip("\r\n").split("\t") for line in lines), path, *choices)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as UTF-8 text: {error} ({path})") from None


def select(
    lines: Iterable[list[str]],
    path: Path,
    *choices: Sequence[str],
    remedy: str = "one TAB goes between two columns, none inside a sentence",
) -> Iterator[tuple[str, list[str]]]:
    """As read_table, of lines that were split; remedy: what to do about a line with more or fewer fields."""
    lines = iter(lines)
    header = next(lines, [""])
    names = next((names for names in choices if set(names) <= set(header)), None)
    if names is None:
        absent = next(name for name in choices[0] if name not in header)
        raise InputError(f"no column {absent!r} ({path}, line 1): the columns are {', '.join(header)}")
    if doubled := [name for name in names if header.count(name) > 1]:
        raise InputError(f"two columns {doubled[0]!r} ({path}, line 1): rename one of them")
    where = [header.index(name) for name in names]
    for number, fields in enumerate(lines, start=2):
        place = f"{path}, line {number}"
        if len(fields) != len(header):
            raise InputError(f"{len(fields)} fields instead of {len(header)} ({place}): {remedy}")
        yield place, [fields[column] for column in where]


def has_text(cell: str) -> bool:
    """Whether anything in it can be seen: not only spaces, control characters and marks of no width."""
    return any(letter.isprintable() and not letter.isspace() for letter in cell)


def to_number(cell: str) -> float:
    """As float(), without what only Python takes: 0_5, digits of other scripts, spaces around. ValueError."""
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", cell):
        raise ValueError(cell)
    return float(cell)
