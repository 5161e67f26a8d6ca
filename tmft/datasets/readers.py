"""Read the files of releases: tables with or without a header, and lines of a label and a text.

A row is a tuple of strings, the cells as they were published. Nothing is guessed: a file with an unknown
header, delimiter or encoding raises an InputError that names the line.
"""

import csv
import gzip
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tmft.datasets.digests import SHA256, check_sha256
from tmft.errors import InputError
from tmft.io.files import is_file, reading
from tmft.io.text import select_columns

REMEDY = "download it again"
Row = tuple[str, ...]  # the cells of one example, in the order of Release.columns
Columns = tuple[str, ...] | tuple[int, ...]

# Form of a line that belongs to no table -> its pattern; the cells are its groups in the order label, text,
# fine_label. The empty second TAB of Stack Overflow, and what follows a TAB in a title, is left out.
LINE_FORMS = {
    "text": r"(?P<text>.*)",
    "class, TAB and text": r"(?P<label>\d+)\t(?P<text>[^\t]*)(\t[^\t]*)?",
    "label, space and text": r"(?P<label>[^ ]+) (?P<text>.+)",
    "text, TAB and label": r"(?P<text>.+)\t(?P<label>[^\t]+)",
    "CLASS:fine, space and question": r"(?P<fine_label>(?P<label>[^ :]*):[^ ]*) (?P<text>.+)",
}


@dataclass(frozen=True)
class ReleaseFile:
    """Where a file of a release is, and how its rows are read.

    name: its path below the folder of the release.
    columns: the cells of a row, by their names in the header or, in a file without header, by their indices;
        or a list of such tuples, of which the first is used whose names are all in the header. Or the form of
        a line that belongs to no table, a key of LINE_FORMS.
    quotes: whether a cell may be in quotes, as in CSV, and then have the delimiter and line ends.
    num_fields: of each line of a file without header; 0: as many as the columns need, or more.
    skip_incomplete: leave out lines with too few cells, and rows with an empty cell.
    unnamed_index: lines may begin with an index that the header does not name.
    encoding: the default is UTF-8 with or without a byte-order mark.
    """

    name: str
    columns: str | Columns | list[Columns]
    delimiter: str = "\t"
    quotes: bool = False
    num_fields: int = 0
    skip_incomplete: bool = False
    unnamed_index: bool = False
    encoding: str = "utf-8-sig"


def read_rows_by_name(path: Path, files: Mapping[str, Sequence[ReleaseFile]]) -> dict[str, list[Row]]:
    """Return {name: rows} for each name of `files`; a row is read from the first of its files that is there.

    path: the folder with the files; or the file itself, if it is only one. A name such as "mr=1" says that
    all rows of the file are of class 1 of the data set mr; the class becomes their first cell.
    """
    result: dict[str, list[Row]] = {}
    for key, choices in files.items():
        name, _, label = key.partition("=")
        if len(files) == 1 and is_file(path):
            rows = read_release_file(path, choices[0])
        elif file := next((file for file in choices if is_file(path / file.name)), None):
            rows = read_release_file(path / file.name, file)
        else:
            names = " or ".join(file.name for file in choices)
            raise InputError(f"no {choices[0].name} in {path}: name the folder of the release, with {names}")
        result.setdefault(name, []).extend((label, *row) if label else row for row in rows)
    return result


def read_release_file(path: Path, file: ReleaseFile, known_sha256: Mapping[str, str] = SHA256) -> list[Row]:
    """Return the rows of a file, which is at `path` whatever file.name says."""
    text = read_text(path, file.encoding, known_sha256)
    if isinstance(file.columns, str):
        return match_lines(text, file.columns, path)
    choices = file.columns if isinstance(file.columns, list) else [file.columns]
    if file.quotes:
        with reading(path, REMEDY):
            text_lines = io.StringIO(text, newline="")
            lines = list(csv.reader(text_lines, delimiter=file.delimiter)) or [[""]]
    else:  # only \n or \r\n ends a line
        lines = [line.removesuffix("\r").split("\t") for line in text.rstrip("\r\n").split("\n")]

    if isinstance(choices[0][0], int):  # there is no header
        indices = [int(index) for index in choices[0]]
        width = file.num_fields or 1 + max(indices)
        for number, cells in enumerate(lines, start=1):
            if not file.skip_incomplete and (len(cells) < width or 0 < file.num_fields < len(cells)):
                more = "" if file.num_fields else " or more"
                problem = f"{len(cells)} fields instead of {width}{more} ({path}, line {number})"
                raise InputError(f"{problem}: {REMEDY}")
        rows = [tuple(cells[index] for index in indices) for cells in lines if len(cells) >= width]
    else:
        if file.skip_incomplete:
            width = len(lines[0])
            part = slice(-width, None) if file.unnamed_index else slice(width)
            lines = [cells[part] for cells in lines if len(cells) >= width]
        names = [[str(name) for name in names] for names in choices]
        numbered_lines = enumerate(lines, start=1)
        rows = [tuple(row) for _, row in select_columns(numbered_lines, path, *names, remedy=REMEDY)]
    return [row for row in rows if not file.skip_incomplete or all(cell.strip() for cell in row)]


def match_lines(text: str, form: str, path: Path) -> list[Row]:
    """Return the row of each line of a text, also of an empty one; a line of another form is an error."""
    pattern, rows = re.compile(LINE_FORMS[form]), []
    groups = [name for name in ("label", "text", "fine_label") if name in pattern.groupindex]
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        match = pattern.fullmatch(line.removesuffix("\r"))
        if not match:
            raise InputError(f"no {form} ({path}, line {number}): {REMEDY}")
        rows.append(tuple(match[group] for group in groups))
    return rows


def read_text(path: Path, encoding: str, known_sha256: Mapping[str, str]) -> str:
    """Return the text of a file, gzipped or not; raise InputError if its SHA-256 is known and another one."""
    with reading(path, REMEDY):
        content = path.read_bytes()
        check_sha256(path, content, known_sha256)
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        return content.decode(encoding)
