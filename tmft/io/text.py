"""Read text files line by line, and TSV files: a header line, cells separated by one TAB, no quoting.

Files .gz and .xz are decompressed; "-" stands for standard input.
"""

import gzip
import io
import lzma
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TextIO

from tmft.errors import InputError, did_you_mean
from tmft.io.files import check_regular_file, reading

OPENERS: dict[str, Callable[..., TextIO]] = {".gz": gzip.open, ".xz": lzma.open}
STDIN = Path("-")
INVISIBLE = {"Zs", "Zl", "Zp", "Cc", "Cf"}  # categories of spaces, control and zero-width characters
UTF8 = "utf-8-sig"  # with or without a byte-order mark
TEXT_REMEDY = "check the name and the file, which has to be text in UTF-8"
SENTENCE_COLUMNS = ("sentence", "sentence1", "sentence2")  # of a TSV file from which sentences are read


def read_lines(path: Path) -> Iterator[str]:
    """Yield every line of a text file without its line end ("\\n" or "\\r\\n"), empty lines included.

    path: the file; "-" means standard input. Raises InputError if the file is missing or damaged, or is not
    text in UTF-8.
    """
    with reading(path, TEXT_REMEDY):
        if path == STDIN:
            if isinstance(sys.stdin, io.TextIOWrapper):  # a notebook replaces it by another class
                sys.stdin.reconfigure(encoding="utf-8", newline="\n")
            file = nullcontext(sys.stdin)
        else:
            file = OPENERS.get(path.suffix, open)(path, "rt", encoding=UTF8, newline="\n")
        with file as lines:
            for number, line in enumerate(lines):
                if number == 0 and not line.endswith("\n") and "\r" in line.rstrip("\r"):
                    raise InputError(
                        f"{path} is one line: its lines end with \\r alone, as old programs on a Mac write "
                        "them: save it with the line ends of Unix or Windows"
                    )
                if "\0" in line:
                    raise InputError(f"{path} is not plain text: it has zero bytes; name a text file")
                yield line.removesuffix("\n").removesuffix("\r")


# ------------------------------------------------------------------------------------------------ TSV files


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
    check_regular_file(path)
    lines = enumerate((line.split("\t") for line in read_lines(path)), start=1)
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
            columns = f"the columns are {', '.join(header)}{did_you_mean(name, header)}"
            raise InputError(
                f"no column {name!r} ({location}): {columns if any(header) else 'no column has a name'}"
            )
        if header.count(name) > 1:
            raise InputError(f"two columns {name!r} ({location}): rename one of them")
    return [header.index(name) for name in names]


def read_sentences(path: Path) -> list[str]:
    """Return the sentences of a TSV file, or of a text with one sentence per line, in order.

    The file is a TSV file if its first line has a column named sentence, sentence1 or sentence2; all
    sentences of one such column come before those of the next. Otherwise each line that is not empty is a
    sentence.
    """
    lines = list(read_lines(path))
    header = lines[0].split("\t") if lines else []
    columns = [name for name in SENTENCE_COLUMNS if name in header]
    if columns:
        numbered_cells = enumerate((line.split("\t") for line in lines), start=1)
        rows = [cells for _, cells in select_columns(numbered_cells, path, columns)]
        sentences = [row[column] for column in range(len(columns)) for row in rows]
        if not all(sentence.strip() for sentence in sentences):
            raise InputError(f"empty sentence ({path}): fill it in or remove the line")
    else:
        sentences = [line for line in lines if line.strip()]
    if not sentences:
        raise InputError(f"no sentences ({path}): give a TSV file, or a text with one sentence per line")
    return sentences


def has_visible_text(cell: str) -> bool:
    """Return whether a cell has at least one visible character.

    Spaces, control characters and zero-width characters are not visible. A character that this version of
    Python does not know, such as a new emoji, is.
    """
    return any(unicodedata.category(char) not in INVISIBLE for char in cell)


def parse_number(cell: str) -> float:
    """Return float(cell). Raises ValueError if the cell is not a number.

    Unlike float(), it accepts no underscores (0_5), no spaces, no digits other than 0 to 9, no nan and inf.
    """
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", cell):
        raise ValueError(cell)
    return float(cell)


def join_lines(text: str) -> str:
    """Return the text in one line: TABs, and all characters at which Python ends a line, become spaces."""
    return " ".join(text.replace("\t", " ").splitlines()).strip()
