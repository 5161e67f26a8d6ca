"""Read TSV files: UTF-8, a header line, cells separated by one TAB, no quoting."""

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from tmft.errors import InputError
from tmft.io.files import file_mode, is_file


def read_table(path: Path, *choices: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (location, cells) for each line of a TSV file after the header.

    location: "path, line n", for messages. cells: the cells of the chosen columns, in the order of the names.
    choices: alternative lists of column names; the first list whose names are all in the header is used.
    Raises InputError if the file cannot be read, a column is missing or doubled, or a line has too few or too
    many cells.

    Example:

    >>> from pathlib import Path
    >>> location, cells = next(read_table(Path("data/sample/dev.tsv"), ["score", "sentence1"]))
    >>> cells
    ['0', 'The price of gold hardly changed on Tuesday.']
    """
    if file_mode(path) and not is_file(path):
        raise InputError(f"{path} is no ordinary file: name one")
    with utf8_errors(path), open(path, encoding="utf-8-sig", newline="\n") as lines:
        # a lone \r or \x85 does not end a line
        cells = (line.rstrip("\r\n").split("\t") for line in lines)
        header = next(cells, [""])
        check_header(header, path, choices[0])
        yield from select_columns(chain([header], cells), path, *choices)


def check_header(header: list[str], path: Path, columns: Sequence[str]) -> None:
    """Raise InputError if a file is empty, or has the header of a CSV file.

    columns: the names that the header should have.
    """
    if header == [""]:
        raise InputError(
            f"no header line ({path}): the file is empty, write {', '.join(columns)} and examples"
        )
    if len(header) == 1 and columns != header and ("," in header[0] or ";" in header[0]):
        raise InputError(
            f"no TAB in the header {header[0]!r} ({path}, line 1): write a TSV file, with a TAB between "
            "two columns"
        )


@contextmanager
def utf8_errors(path: Path) -> Iterator[None]:
    """Turn the errors of reading a text file into an InputError that guesses the encoding of the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        guess = f"byte 0x{error.object[error.start]:02x}; perhaps it is Latin-1 or Windows-1252"
        with open(path, "rb") as file:
            if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                guess = "it begins like UTF-16"
        raise InputError(f"{path} is not UTF-8 text ({guess}): save it as UTF-8") from None
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): check its name and permissions"
        ) from None


def select_columns(
    lines: Iterable[list[str]],
    path: Path,
    *choices: Sequence[str],
    remedy: str = "one TAB goes between two columns, none inside a sentence",
) -> Iterator[tuple[str, list[str]]]:
    """Yield (location, cells) as read_table does, for lines that are already split into cells.

    lines: the cells of each line; the first line is the header. path: the file, for messages. choices: see
    read_table. remedy: the advice in the message about a line with too few or too many cells. Raises
    InputError for such a line, or if a column is missing.
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
