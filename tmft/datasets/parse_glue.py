"""GLUE as it is published, Wang et al. 2019, arXiv:1804.07461: a folder with a folder for each set."""

import csv
from pathlib import Path

from tmft.datasets.parse_pairs import Row
from tmft.errors import InputError

# Ours -> their folder, their file of the dev set, its columns: label, text and, of pairs, the second text.
# CoLA has no header: its columns are numbered.
SETS = {
    "cola": ("CoLA", "dev", (1, 3)),
    "sst2": ("SST-2", "dev", ("label", "sentence")),
    "qqp": ("QQP", "dev", ("is_duplicate", "question1", "question2")),
    "mnli": ("MNLI", "dev_matched", ("gold_label", "sentence1", "sentence2")),
    "mnli-mm": ("MNLI", "dev_mismatched", ("gold_label", "sentence1", "sentence2")),
    "qnli": ("QNLI", "dev", ("label", "question", "sentence")),
    "rte": ("RTE", "dev", ("label", "sentence1", "sentence2")),
}
EVERY = 20  # one in so many of train is set aside, to choose by: the dev set is what is scored


def read_glue(folder: Path) -> dict[str, list[Row]]:
    """{"rte/train": (label, text, text), ...} of the sets that are there.

    Labels of GLUE's own test sets are not public, so test is its dev set, and dev every twentieth row of
    train."""
    splits = {}
    for name, (theirs, dev, columns) in SETS.items():
        if (folder / theirs).is_dir():
            train = read_rows(folder / theirs / "train.tsv", columns)
            splits[f"{name}/train"] = [row for number, row in enumerate(train) if number % EVERY]
            splits[f"{name}/dev"] = train[::EVERY]
            splits[f"{name}/test"] = read_rows(folder / theirs / f"{dev}.tsv", columns)
    if not splits:
        known = ", ".join(dict.fromkeys(theirs for theirs, *_ in SETS.values()))
        raise InputError(f"{folder} holds none of the folders {known}: name the one that GLUE's files are in")
    return splits


def read_rows(path: Path, columns: tuple[str | int, ...]) -> list[Row]:
    """The rows of a file that have all columns; some of QQP are cut, some of MNLI have no label that all
    agreed on, -."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}): get it anew") from None
    if isinstance(columns[0], str):
        header = lines.pop(0) if lines else []
        if absent := [name for name in columns if name not in header]:
            raise InputError(f"{path} has no column {absent[0]}: get it anew")
        columns = tuple(map(header.index, columns))
    rows = [tuple(cells[place] for place in columns) for cells in lines if len(cells) > max(columns)]
    return [row for row in rows if all(cell.strip() for cell in row) and row[0] != "-"]
