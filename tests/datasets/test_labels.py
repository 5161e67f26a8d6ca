"""One label is one class at every door, whatever holds it: a file of any kind or an object of Python."""

import csv
import enum
import importlib.util
import json
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import torch

from tmft.data import Examples, label_text, parse_label, read_examples
from tmft.datasets.given_examples import collect_examples
from tmft.datasets.own_data import convert_tables
from tmft.datasets.task_lookup import check_classes
from tmft.errors import InputError
from tmft.tasks import BINARY, CLASSES_FROM_FILE, TASKS, TEXT_COLUMN, Task

Answer = enum.Enum("Answer", {"YES": "yes", "NO": "no", "PAIR": (1, 2)})
Stars = enum.IntEnum("Stars", {"ONE": 1, "TWO": 2})

LABELS = {  # class -> values that are labels of it
    "yes": ["yes", "yes ", " yes", "\tyes\n", np.str_("yes"), Answer.YES],
    "1": [1, 1.0, "1", "1.0", " 1 ", np.int64(1), np.float32(1), np.array(1), torch.tensor(1), Stars.ONE],
    "-20": [-20, -20.0, "-20.0", torch.tensor(-20.0), Decimal("-20.00"), Decimal("-2E+1")],
    "0.1": [0.1, "0.1", np.float32(0.1), np.float16(0.1), np.array(0.1), Decimal("0.1")],
    "True": [True, "True", np.True_, torch.tensor(True)],
    "two words": ["two words", "two words\n", "two\twords", "two\nwords"],
    "1.10": ["1.10"],  # text of a version or a code is no number
    "01": ["01"],
    "true": ["true"],
}
NO_LABELS = ["", "  ", None, float("nan"), np.float32("inf"), 10**400, Decimal("NaN"), np.datetime64("NaT")]
NO_LABELS += [[1], b"yes", Answer.PAIR, torch.tensor([1, 2]), np.array(["a"]), "\ud800", 1j, {"a": 1}]


def write_lines(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def by_tuple(value, path):
    return collect_examples([("a text", value)], "train")[0].labels[0]


def by_dict(value, path):
    return collect_examples([{"text": "a text", "label": value}], "train")[0].labels[0]


def by_tsv(value, path):
    write_lines(path / "train.tsv", ["text\tlabel", f"a text\t{value}"])
    return collect_examples(path / "train.tsv", "train")[0].labels[0]


def by_task(value, path):
    write_lines(path / "train.tsv", ["text\tlabel", f"a text\t{value}"])
    task = Task(str(path / "{split}.tsv"), columns=TEXT_COLUMN, label="label", classes=CLASSES_FROM_FILE)
    return read_examples(task, "train").labels[0]


def converted(file, path):
    convert_tables([f"train={file}"], {"text": "t", "label": "l"}, path / "out")
    return (path / "out/train.tsv").read_text("utf-8").splitlines()[1].split("\t")[1]


def by_csv(value, path):
    with open(path / "t.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("t", "l"), ("a text", value)])
    return converted(path / "t.csv", path)


def by_jsonl(value, path):
    write_lines(path / "t.jsonl", [json.dumps({"t": "a text", "l": value})])
    return converted(path / "t.jsonl", path)


def by_parquet(value, path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"t": ["a text"], "l": [value]}), path / "t.parquet")
    return converted(path / "t.parquet", path)


IN_PYTHON = [by_tuple, by_dict]
IN_FILES = [by_csv, by_jsonl]
IN_FILES += [by_parquet] if importlib.util.find_spec("pyarrow") else []
IN_LINES = [by_tsv, by_task]


@pytest.mark.parametrize("door", IN_PYTHON + IN_FILES + IN_LINES)
def test_a_label_is_the_same_class_at_every_door(door, tmp_path):
    found = {}
    for name, values in LABELS.items():
        for number, value in enumerate(values):
            is_plain = type(value) in (str, bool, int, float, *[Decimal][: door is by_parquet])
            if not (is_plain or door in IN_PYTHON) or (door in IN_LINES and {"\t", "\n"} & {*str(value)}):
                continue
            folder = tmp_path / f"{len(found)}"
            folder.mkdir()
            found[name, number, repr(value)] = door(value, folder)
    assert {key: label for key, label in found.items() if label != key[0]} == {} and len(found) > 10


@pytest.mark.parametrize("door", IN_PYTHON)
def test_what_is_no_label_is_refused(door, tmp_path):
    for value in NO_LABELS:
        assert label_text(value) == ""
        with pytest.raises(InputError, match="it has no score or label"):
            door(value, tmp_path)


def test_an_empty_label_of_a_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"empty label .*line 2\): fill it in or remove the line"):
        by_task("", tmp_path)


def test_classes_that_version_0_25_0_wrote_are_read():
    """They had the text of a number of Python, and the spaces around a text."""
    task = replace(TASKS["sst5"], classes={"0.0": 0, "1.0": 1, "yes": 2, "yes ": 3, "no ": 4})
    given = ["0.0", "0", "1", "1.0", "yes", "yes ", "no", "no ", " yes"]
    assert [parse_label(text, task, "here") for text in given] == [0, 0, 1, 1, 2, 3, 4, 4, 2]
    binary = replace(task, classes=BINARY)
    assert [parse_label(text, binary, "here") for text in ("True", "False", "1.0", " 0")] == [1, 0, 1, 0]
    for text in ("", "2", "true"):
        with pytest.raises(InputError, match=f"label '{text}' is none of 0, 1 .here.: correct it"):
            parse_label(text, binary, "here")


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_class_that_train_does_not_have_is_an_error(split):
    splits = {name: Examples((["a", "b"],), [0, 1]) for name in ("train", "dev", "test")}
    splits["train"] = Examples((["a", "b"],), [1, 1])
    splits |= {name: splits["train"] for name in ("dev", "test") if name != split}
    with pytest.raises(InputError, match=f"class 0: {split} has examples of it and train has none: add some"):
        check_classes(splits, Task("", classes=BINARY))
