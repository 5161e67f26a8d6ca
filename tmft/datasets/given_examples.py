"""Read and split examples that are given in Python, as tuples, dicts, a table or the path of a TSV file."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any

from tmft.data import Examples, label_text, number_texts, parse_label
from tmft.datasets.task_lookup import hold_out_examples
from tmft.errors import InputError, short_repr
from tmft.io.files import is_utf8_string
from tmft.io.text import has_visible_text, read_lines, read_table
from tmft.tasks import PAIR_COLUMNS, TEXT_COLUMN, TRIPLET_COLUMNS, Task

LABEL_NAMES = ("score", "label")  # columns of a score and of the name of a class
TABLE_METHODS = {"to_dicts": (), "to_list": (), "to_dict": ("records",)}  # of polars, datasets and pandas
TEXT_COLUMNS = (TRIPLET_COLUMNS, TRIPLET_COLUMNS[:2], PAIR_COLUMNS, TEXT_COLUMN)
HELD_OUT = 0.1  # fraction of the examples that is held out for dev, and for test, if they are not given


def collect_examples(
    given: Any,
    split: str,
    has_labels: bool = True,
    label_names: Sequence[str] = LABEL_NAMES,
    names_of_train: Sequence[str] = (),
) -> tuple[Examples, list[str]]:
    """Return the examples of a split, with labels that are still text, or as `read_examples` numbers texts.

    given: a list of tuples or dicts, a table of pandas, datasets or polars, or the path of a TSV file.
    label_names: LABEL_NAMES, of which the first one that is there has the label.
    names_of_train: the names of the columns with the texts of train, which are taken by these names.
    The second part of the result are the names of the columns with texts, in order; [] for tuples.
    """
    if isinstance(given, (str, PathLike)):
        path = Path(given)
        header = next(read_lines(path), "").split("\t")
        if len(header) == 1:
            raise InputError(
                f"{path} has no tab in its first line: make TSV files of it by python -m tmft data convert"
            )
        given = [dict(zip(header, cells, strict=True)) for _, cells in read_table(path, header)]
    elif method := next((name for name in TABLE_METHODS if hasattr(given, name)), None):
        given = getattr(given, method)(*TABLE_METHODS[method])
    rows: list[list[str]] = []  # the texts of each example
    labels: list[Any] = []
    text_names: list[str] = []
    text_ids: dict[str, int] = {}
    for number, example in enumerate(given, start=1):
        place = f"example {number} of {split}, {short_repr(example)}"
        if isinstance(example, Mapping):
            text_names = text_names or order_text_names(example, place, names_of_train)
            if {*text_names} != {*example} - {*LABEL_NAMES}:
                raise InputError(f"{place}: its columns are not those of the first example")
            label = next((example[name] for name in label_names if name in example), None)
            texts = [example[name] for name in text_names]
        elif isinstance(example, Sequence) and not isinstance(example, str):
            *texts, label = example if has_labels else (*example, None)
        else:
            raise InputError(f"{place}: give a tuple such as (text, text, score), or a dict")
        if not (1 <= len(texts) <= 3 and all(is_utf8_string(one) and has_visible_text(one) for one in texts)):
            columns = ' in a column "score" or "label"' if isinstance(example, Mapping) else ""
            raise InputError(
                f"{place}: give one to three texts, none of them empty, and the label last{columns}"
            )
        rows.append(texts)
        labels.append(label_text(label) if has_labels else number_texts(texts, text_ids))
        if not labels[-1]:
            raise InputError(f"{place}: it has no score or label")
        if len(texts) != len(rows[0]):
            raise InputError(f"{place}: it has {len(texts)} texts, the first example {len(rows[0])}")
    if not rows:
        raise InputError(
            f"there are no examples in {split}: give a list of tuples such as (text, text, score)"
        )
    return Examples(tuple(map(list, zip(*rows, strict=True))), labels), text_names


def order_text_names(example: Mapping[str, Any], place: str, names_of_train: Sequence[str]) -> list[str]:
    """Return the names of the columns with texts, in the order of train or of TEXT_COLUMNS, or as they come.

    Raises InputError if only some of the names are known, or they are three: another column, such as an id,
    would be trained on as a text.
    """
    names = [name for name in example if name not in LABEL_NAMES]
    lists = [names_of_train, *TEXT_COLUMNS] if names_of_train else TEXT_COLUMNS
    for columns in lists:
        if {*columns} == {*names}:
            return list(columns)
    if len(names) > 2 or names_of_train or any({*names} & {*columns} for columns in lists):
        forms = "; ".join(", ".join(columns) for columns in lists)
        problem = f"its columns with texts are {', '.join(names)}"
        raise InputError(f"{place}: {problem}: give one of these lists, and score or label: {forms}")
    return names


def parse_labels(examples: Examples, split: str, task: Task) -> Examples:
    """Return the examples of a split of a task with numbers in place of the texts of their labels."""
    if len(examples.texts) != len(task.columns):
        raise InputError(f"{split} has {len(examples.texts)} texts in an example: give {len(task.columns)}")
    texts: Any = examples.labels
    if not (task.classes or any(map(str.isdecimal, texts[0]))):
        raise InputError(
            f"score {texts[0]!r} is not a number (example 1 of {split}): give a number, or an objective for "
            'classes, such as softmax, or metric="f1" for two classes, or for pairs without scores, '
            "multiple_negatives_ranking",
            "objective",
        )
    labels: list[Any] = [
        parse_label(text, task, f"example {number} of {split}") for number, text in enumerate(texts, start=1)
    ]
    return Examples(examples.texts, labels)


def hold_out_missing(splits: dict[str, Examples], source: str, fraction: float) -> None:
    """Take dev and test, if they are missing, out of another split, a fraction of it each."""
    for name in ("dev", "test"):
        if name not in splits:
            examples = splits[source]
            count = max(2, round(fraction * len(examples)))
            drawn = Random(0).sample(range(len(examples)), min(count, len(examples)))
            order = drawn + sorted({*range(len(examples))} - {*drawn})
            splits[source], splits[name] = hold_out_examples(examples, order, count, source, name)
