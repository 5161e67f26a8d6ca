"""The files of the course CS 224N: TAB between columns, CSV's quotes, an id for each example."""

import csv
from pathlib import Path

from tmft.datasets.parse_pairs import Row
from tmft.errors import InputError, short
from tmft.io.tsv import to_number

FILES = {"train": "train", "dev": "dev", "unlabelled": "test-student"}


def read_course(folder: Path, prefix: str, label: str) -> dict[str, list[Row]]:
    """{split: rows of label, texts, id} of the files prefix-{train,dev,test-student}.csv in a folder.

    label: its column; the rows of "unlabelled", whose labels the course keeps, have none. A row with an empty
    text is left out. Where dev alone is at hand, 8 of 10 of its rows are train, one dev, one test, in order.
    """
    paths = {split: folder / f"{prefix}-{name}.csv" for split, name in FILES.items()}
    splits = {split: read_rows(path, label) for split, path in paths.items() if path.is_file()}
    if "dev" not in splits:
        raise InputError(f"{folder} has no {prefix}-dev.csv: name the folder with the files of the course")
    if "train" not in splits:
        rows = splits["dev"]
        first, second = len(rows) * 8 // 10, len(rows) * 9 // 10
        return {"train": rows[:first], "dev": rows[first:second], "test": rows[second:]}
    return splits


def read_rows(path: Path, label: str) -> list[Row]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header, *lines = csv.reader(file, delimiter="\t")
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): get it anew") from None
    texts = ["sentence"] if "sentence" in header else ["sentence1", "sentence2"]
    columns = [*([label] if label in header else []), *texts, "id"]
    if absent := [name for name in columns if name not in header]:
        raise InputError(f"{path} has no column {absent[0]}: get it anew")
    # an index without a name stands before the columns; some files give it two cells and the header one
    places = [header.index(name) - len(header) for name in columns]
    rows = []
    for cells in lines:
        if len(cells) < len(header):
            continue
        row = tuple(cells[place].strip() for place in places)
        if all(row):
            rows.append((as_number(row[0], path), *row[1:]) if label in header else row)
    return rows


def as_number(cell: str, path: Path) -> str:
    """A class or a score, without the .0 that some files put after it."""
    try:
        return f"{to_number(cell):.15g}"
    except ValueError:
        raise InputError(f"label {short(cell)} is not a number ({path}): get it anew") from None
