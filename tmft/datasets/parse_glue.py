"""Parser of the release of GLUE (Wang et al. 2019, arXiv:1804.07461), which has one folder per data set."""

import csv
from pathlib import Path

from tmft.datasets.parse_pairs import Row
from tmft.errors import InputError
from tmft.io.files import is_folder

# Our name of a data set -> its folder in GLUE, the name of its dev file, and its columns: the label, the text
# and, for pairs, the second text. CoLA has no header, so its columns are given by index.
GLUE_SETS: dict[str, tuple[str, str, tuple[str, ...] | tuple[int, ...]]] = {
    "cola": ("CoLA", "dev", (1, 3)),
    "sst2": ("SST-2", "dev", ("label", "sentence")),
    "qqp": ("QQP", "dev", ("is_duplicate", "question1", "question2")),
    "mnli": ("MNLI", "dev_matched", ("gold_label", "sentence1", "sentence2")),
    "mnli-mm": ("MNLI", "dev_mismatched", ("gold_label", "sentence1", "sentence2")),
    "qnli": ("QNLI", "dev", ("label", "question", "sentence")),
    "rte": ("RTE", "dev", ("label", "sentence1", "sentence2")),
}
# One in 20 training examples becomes dev, to select models on, because GLUE's own dev set is our test.
DEV_EVERY = 20


def read_glue(folder: Path) -> dict[str, list[Row]]:
    """Read all data sets in the folder; return {"rte/train": rows, ...}, with a key for each set and split.

    A row is (label, text) or (label, text, text). The labels of GLUE's test sets are not public, so test is
    GLUE's dev set, and dev is every twentieth row of GLUE's train, which train then lacks.
    Raises InputError if the folder has none of the data sets.
    """
    splits = {}
    for name, (subfolder, dev_file, columns) in GLUE_SETS.items():
        if is_folder(folder / subfolder):
            train = read_rows(folder / subfolder / "train.tsv", columns)
            splits[f"{name}/train"] = [row for index, row in enumerate(train) if index % DEV_EVERY]
            splits[f"{name}/dev"] = train[::DEV_EVERY]
            splits[f"{name}/test"] = read_rows(folder / subfolder / f"{dev_file}.tsv", columns)
    if not splits:
        subfolders = ", ".join(dict.fromkeys(subfolder for subfolder, *_ in GLUE_SETS.values()))
        raise InputError(f"{folder} has none of the folders {subfolders}: name the folder that has them")
    return splits


def read_rows(path: Path, columns: tuple[str, ...] | tuple[int, ...]) -> list[Row]:
    """Return the cells of some columns, in this order, for every line of a file.

    columns: names in the header, or indices from 0 if the file has no header; the first is the label, the
        others are one text or two, so that a row is (label, text) or (label, text, text).
    Lines that lack a cell, as in QQP, are skipped, and lines of MNLI with the label "-", on which annotators
    disagreed. Raises InputError if the file cannot be read, or if a column, also the label, is absent.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}): download it again") from None
    indices = [column for column in columns if isinstance(column, int)]
    if not indices:
        header = lines.pop(0) if lines else []
        if absent := [name for name in columns if name not in header]:
            raise InputError(f"{path} has no column {absent[0]}: download it again")
        indices = [header.index(name) for name in columns if isinstance(name, str)]
    rows = [tuple(cells[index] for index in indices) for cells in lines if len(cells) > max(indices)]
    return [row for row in rows if all(cell.strip() for cell in row) and row[0] != "-"]
