"""Read columns of a table by their names: CSV, TSV, JSONL and, if pyarrow is installed, Parquet.

Every value becomes a text: numbers as they are written, without zeros at the end, and a missing value (null,
NaN) as an empty text. A CSV file has quotes as Excel and pandas write them; its delimiter is the comma, the
semicolon or the TAB, whichever gives a header with the columns. Files .gz and .xz are decompressed, except
Parquet, which has a compression of its own.
"""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tmft.errors import InputError, describe_error, short_repr
from tmft.io.files import check_regular_file, is_utf8_string, reading
from tmft.io.text import OPENERS, TEXT_REMEDY, UTF8, find_columns, read_lines, read_table, select_columns

DELIMITERS = ",;\t"
MAX_CELL_LENGTH = 1 << 24  # characters; without quotes at its end, all of a file would be one cell
PARQUET_ROWS = 4096  # rows that are read at a time


def table_kind(path: Path) -> str:
    """Return the kind of a table by its name, a key of READERS such as ".csv"; "" if it is none of them."""
    name = Path(path.stem) if path.suffix in OPENERS else path
    suffix = name.suffix.lower()
    return suffix if suffix in READERS else ""


def read_columns(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (location, cells) for each row of a table, (str, list of str).

    location: "path, line n" or "path, row n", for messages. columns: names of the columns, in the order of
    the cells. Rows of a CSV or JSONL file without any character are skipped.
    Raises InputError if the file cannot be read, is no table, has no column of a name, or has a wrong row.
    """
    for location, values in read_values(path, columns):
        yield location, [cell_text(v, name, location) for name, v in zip(columns, values, strict=True)]


def read_values(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, Sequence[object]]]:
    """Yield (location, values) for each row of a table, like read_columns, but with the types of the file."""
    kind = table_kind(path)
    if not kind:
        raise InputError(f"{path} is no table by its name: name a {', '.join(READERS)} file")
    check_regular_file(path)
    yield from READERS[kind](path, columns)


def read_texts(path: Path, column: str | None = None) -> Iterator[str]:
    """Yield the text of each line of a text file or of each row of a table.

    column: name of the column of the texts; None: the file is no table, but has a text per line.
    Raises InputError for a table without column and the other way round, and as read_columns and read_lines
    do.
    """
    kind = table_kind(path)
    if column is not None and not kind:
        kinds = ", ".join(READERS)
        raise InputError(f"column {column!r}: {path} is no table by its name ({kinds}): remove it", "column")
    if column is not None:
        yield from (text for _, [text] in read_columns(path, [column]))
    elif kind not in ("", ".tsv"):
        raise InputError(f"{path} is a table: `column` names the one with its texts", "column")
    else:
        yield from read_lines(path)


def cell_text(value: object, column: str, location: str) -> str:
    """Return a value as a text.

    column, location: where the value is, for the message. Raises InputError if it is no text, number, true,
    false or null.
    """
    if value is None or value != value:  # NaN, which pandas writes for a missing value
        return ""
    if isinstance(value, bool | int):
        return str(value).lower()
    if isinstance(value, float | Decimal):
        return shortest_number(value)
    if not isinstance(value, str):
        problem = f"column {column!r} holds {short_repr(value)} ({location})"
        raise InputError(f"{problem}: name a column of texts or numbers")
    if "\0" in value or not is_utf8_string(value):
        problem = f"column {column!r} holds a zero byte or half a character ({location})"
        raise InputError(f"{problem}: correct the file")
    return value


def shortest_number(value: float | Decimal | str) -> str:
    """Return a finite number, or its text, without digits that do not matter: 1 for 1.0, but all that do."""
    short = f"{float(value):.15g}"
    try:
        return short if Decimal(short) == Decimal(value) else str(value)
    except ArithmeticError:  # an exponent of 19 digits
        return str(value)


def read_csv(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (location, cells) for each row of a CSV file.

    columns: names of the columns whose cells are returned. Raises InputError if the file is not valid.
    """
    opener = OPENERS.get(path.suffix, open)
    limit_before = csv.field_size_limit(MAX_CELL_LENGTH)  # it is that of the whole process
    try:
        with reading(path, TEXT_REMEDY), opener(path, "rt", encoding=UTF8, newline="") as file:
            first = file.readline()
            headers = {mark: next(csv.reader([first], delimiter=mark), []) for mark in DELIMITERS}
            delimiter = max(
                headers, key=lambda mark: (set(columns) <= set(headers[mark]), len(headers[mark]))
            )
            rows = csv.reader(chain([first], file), delimiter=delimiter, strict=True)
            lines = ((rows.line_num, cells) for cells in rows if cells)
            remedy = "put quotes around a text that has the delimiter or a line end"
            try:
                yield from select_columns(lines, path, columns, remedy=remedy)
            except csv.Error as error:
                problem = f"{path} is not CSV up to line {rows.line_num} ({error})"
                raise InputError(f"{problem}: close its quotes, and double those inside a text") from None
    finally:
        csv.field_size_limit(limit_before)


def read_jsonl(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[object]]]:
    """Yield (location, values) for each line of a file with a JSON object per line.

    columns: the keys whose values are returned. Raises InputError if the file is not valid.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        location = f"{path}, line {number}"
        try:
            record = json.loads(line, parse_float=shortest_number)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"no JSON ({location}: {describe_error(error)}): write an object per line"
            ) from None
        if not isinstance(record, dict):
            raise InputError(f"no object, but {short_repr(record)} ({location}): write an object per line")
        if not set(columns) <= record.keys():
            find_columns(columns, list(record), location)
        yield location, [record[name] for name in columns]


def read_parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[object]]]:
    """Yield (location, values) for each row of a Parquet file.

    columns: names of the columns whose values are returned. Raises InputError if the file is not valid.
    """
    if find_spec("pyarrow") is None:
        remedy = "pip install pyarrow, or use .csv or .jsonl"
        raise InputError(f"{path}: Parquet needs the package pyarrow, which is not installed: {remedy}")
    import pyarrow
    import pyarrow.parquet

    with reading(path, "check the file"), pyarrow.parquet.ParquetFile(path) as file:
        find_columns(columns, file.schema_arrow.names, str(path))
        number = 0
        for batch in file.iter_batches(PARQUET_ROWS, columns=list(columns)):
            values = [column_values(batch.column(name), pyarrow.types) for name in columns]
            for row in zip(*values, strict=True):
                number += 1
                yield f"{path}, row {number}", list(row)


def column_values(column: Any, types: Any) -> list[object]:
    """Return the values of a column of a batch. types: pyarrow.types.

    A number of 16 or 32 bits gets the fewest digits that stand for it: 0.1, not 0.100000001490116.
    """
    values = column.to_pylist()
    if types.is_float32(column.type) or types.is_float16(column.type):
        short = np.float32 if types.is_float32(column.type) else np.float16
        return [None if value is None else float(str(short(value))) for value in values]
    return values


READERS: dict[str, Callable[[Path, Sequence[str]], Iterator[tuple[str, list[Any]]]]] = {
    ".csv": read_csv,
    ".tsv": read_table,  # without quotes
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".parquet": read_parquet,
}
