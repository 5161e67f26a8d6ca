"""Parser of the data files of the course CS 224N, which are TAB-separated and have quotes as in CSV files."""

import csv
from pathlib import Path

from tmft.datasets.parse_pairs import Row
from tmft.errors import InputError, short_repr
from tmft.io.files import is_file
from tmft.io.tsv import parse_number

# Our split -> its name in the names of the files of the course.
CS224N_FILES = {"train": "train", "dev": "dev", "unlabelled": "test-student"}


def read_cs224n(folder: Path, prefix: str, label: str) -> dict[str, list[Row]]:
    """Read the files {prefix}-train.csv, {prefix}-dev.csv and {prefix}-test-student.csv of a folder.

    label: name of the label column.
    Returns {split: rows}; a row is (label, text, id), or (label, text, text, id) for pairs. The split
    "unlabelled" is the course's test set, whose labels are not published; its rows have no label. Rows with
    an empty cell are skipped. If there is only a dev file, its first 80 % become train, the next 10 % dev and
    the rest test. Raises InputError if there is no dev file.
    """
    paths = {split: folder / f"{prefix}-{name}.csv" for split, name in CS224N_FILES.items()}
    splits = {split: read_rows(path, label) for split, path in paths.items() if is_file(path)}
    if "dev" not in splits:
        raise InputError(f"{folder} has no {prefix}-dev.csv: name the folder with the files of the course")
    if "train" not in splits:
        rows = splits["dev"]
        dev_start, test_start = len(rows) * 8 // 10, len(rows) * 9 // 10
        return {"train": rows[:dev_start], "dev": rows[dev_start:test_start], "test": rows[test_start:]}
    return splits


def read_rows(path: Path, label: str) -> list[Row]:
    """Return the rows of a file: (label, text, id), or (label, text, text, id) for sentence pairs.

    The header decides: the text is the column sentence or, if there is none, the texts are sentence1 and
    sentence2; the last cell is the column id. If the header has no column named `label`, as in the course's
    test set, the rows have no label: (text, id) or (text, text, id). Rows with an empty cell are skipped.
    label: name of the label column.
    Raises InputError if the file cannot be read, another column is absent, or a label is not a number.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header, *lines = csv.reader(file, delimiter="\t")
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): download it again") from None
    texts = ["sentence"] if "sentence" in header else ["sentence1", "sentence2"]
    columns = [*([label] if label in header else []), *texts, "id"]
    if absent := [name for name in columns if name not in header]:
        raise InputError(f"{path} has no column {absent[0]}: download it again")
    # Lines begin with an index that has no name, which takes two cells in some files but one in the header.
    # Columns are therefore counted from the end.
    positions = [header.index(name) - len(header) for name in columns]
    rows = []
    for cells in lines:
        if len(cells) < len(header):
            continue
        row = tuple(cells[position].strip() for position in positions)
        if all(row):
            rows.append((format_number(row[0], path), *row[1:]) if label in header else row)
    return rows


def format_number(cell: str, path: Path) -> str:
    """Return a class or a score, which some files write with .0 at its end, as text without the .0.

    path: the file, which the InputError names if the cell is not a number.
    """
    try:
        return f"{parse_number(cell):.15g}"
    except ValueError:
        raise InputError(f"label {short_repr(cell)} is not a number ({path}): download it again") from None
