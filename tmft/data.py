"""Read the examples of a task from TSV files, convert labels to targets, and draw random batches.

A file is UTF-8 with a header line, columns separated by one TAB, no quoting (a " is a character like any
other) and one example per line. A task has one file per split: train.tsv, dev.tsv and test.tsv.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tmft.errors import InputError
from tmft.io.files import DATA_FOLDER, DIGEST_LENGTH, PACKAGE_DATA, is_file, is_utf8_string, matching_paths
from tmft.io.tables import shortest_number
from tmft.io.text import has_visible_text, join_lines, parse_number, read_table
from tmft.tasks import BINARY, BOOLEANS, CLASSES_FROM_FILE, PAIR_COLUMNS, Task

SPLITS = ("train", "dev", "test")
MAX_DIGEST_BYTES = 2**26  # of embeddings that are read for a digest
DIGEST_BLOCK = 4096  # texts that are read for a digest at a time


@dataclass
class Examples:
    """The N examples of one split.

    texts: one list of N sentences per text column, so that texts[1][i] is the second text of example i. The
        columns are (sentence,), (sentence1, sentence2), (anchor, positive) or (anchor, positive, negative).
    labels: N scores, N class indices, or N target embeddings, a tensor (N, D). In a task without labels, the
        numbers of the texts of each example, k of them: equal texts have the same number.
    subsets: name of a subset, such as MSRpar of STS12 -> slice of its examples; {} if there are none.

    Raises InputError unless there are as many labels as texts in each column.
    """

    texts: tuple[list[str], ...]
    labels: list[Any] | Tensor
    subsets: dict[str, slice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(len(column) != len(self) for column in self.texts):
            counts = " and ".join(str(len(column)) for column in self.texts)
            raise InputError(f"examples have {counts} texts, but {len(self)} labels: give one label for each")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sentences(self) -> list[str]:
        """All texts in one list: the N texts of the first column, then those of the next one, and so on."""
        return [sentence for column in self.texts for sentence in column]

    @cached_property
    def digest(self) -> str:
        """A digest of all texts and labels, by which a run knows whether its data has changed.

        Of embeddings (N, D) that take more than MAX_DIGEST_BYTES, only every k-th is read.
        """
        sha = hashlib.sha256(json.dumps([len(self), *map(len, self.texts)]).encode())
        for column in self.texts:
            for start in range(0, len(column), DIGEST_BLOCK):  # a copy of much text is large
                block = "\0" * bool(start) + "\0".join(column[start : start + DIGEST_BLOCK])
                sha.update(block.encode(errors="surrogatepass"))
        if isinstance(self.labels, Tensor):
            step = 1 + self.labels.numel() * self.labels.element_size() // MAX_DIGEST_BYTES
            sha.update(self.labels[::step].contiguous().numpy().tobytes())
        else:
            sha.update(json.dumps(self.labels).encode())
        return sha.hexdigest()[:DIGEST_LENGTH]


def read_examples(task: Task, split: str) -> Examples:
    """Read one split of a task from `task.files`, which is below data/ or an absolute path.

    If `task.files` has a *, the files that match are read in the order of their names; if they are several,
    each of them is one subset.
    Raises InputError if a file is missing, has no examples or has a wrong line, which is named by its number.

    Example:

    >>> from tmft.tasks import TASKS
    >>> examples = read_examples(TASKS["sample"], "test")
    >>> len(examples), examples.labels[0]
    (121, 4.5)
    >>> examples.texts[1][1]
    'Shares in the bank fell sharply.'
    """
    if "{split}" not in task.files and split != "test":
        raise InputError(f"no {split} split ({task.files}): this task has test data only")
    candidates = [folder / task.files.replace("{split}", split) for folder in (DATA_FOLDER, PACKAGE_DATA)]
    pattern = next((path for path in candidates if matching_paths(path.parent, path.name)), candidates[0])
    paths = matching_paths(pattern.parent, pattern.name)
    if not paths:
        if split == "dev" and is_file(pattern.parent / "train.tsv"):
            remedy = "add it; to train, set dev_fraction to keep a part of train for dev, such as 0.1"
            raise InputError(f"no such file ({pattern}): {remedy}", "dev_fraction")
        if split == "test" and is_file(pattern.parent / "train.tsv"):
            remedy = "add it, with examples that are not in train or dev: the best epoch is scored on them"
            raise InputError(f"no such file ({pattern}): {remedy}")
        remedy = "download it with python -m tmft data, or name the folder that has it with data_root"
        raise InputError(f"no such file ({pattern}): {remedy}", "data_root")

    # A file of pairs may have the task's own column names or sentence1 and sentence2.
    label_column = [task.label] if task.label else []
    column_choices = [[*task.columns, *label_column]]
    if len(task.columns) == 2:
        column_choices.append([*PAIR_COLUMNS, *label_column])

    labels: list[Any] = []  # numbers, or texts if the classes are read from the file
    examples = Examples(texts=tuple([] for _ in task.columns), labels=labels)
    text_ids: dict[str, int] = {}  # text -> its number among the distinct ones
    for path in paths:
        start = len(examples)
        for place, cells in read_table(path, *column_choices):
            texts = [
                text if has_visible_text(text) else task.empty_text for text in cells[: len(task.columns)]
            ]
            if not all(texts):
                raise InputError(f"empty sentence ({place}): fill it in or remove the line")
            for column, text in zip(examples.texts, texts, strict=True):
                column.append(text)
            labels.append(
                parse_label(cells[-1], task, place) if task.label else number_texts(texts, text_ids)
            )
        if len(examples) == start:
            raise InputError(f"no examples ({path}): the file has only a header line")
        if len(paths) > 1:
            examples.subsets[path.stem] = slice(start, len(examples))
    return examples


def number_texts(texts: list[str], text_ids: dict[str, int]) -> list[int]:
    """Return the number of each text, and add new texts to text_ids. text_ids: text -> its number, from 0."""
    return [text_ids.setdefault(text, len(text_ids)) for text in texts]


def label_text(value: Any) -> str:
    """Return a label, the name of a class or a score, as text; "" if a value is missing or is no label.

    A label is the same text wherever it is read from. Text is in one line, with no spaces around it. A whole
    number has no decimals, also if it is text: a column with gaps has 1.0 for 1 in a CSV file of pandas. A
    boolean is True or False. A scalar of NumPy or torch and a member of an enumeration are their values.
    """
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, np.floating):
        value = float(str(value))  # 0.1, not 0.10000000149011612
    elif getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, str):
        text = join_lines(value) if is_utf8_string(value) else ""
        return text.removesuffix(".0") if re.fullmatch(r"-?(0|[1-9][0-9]*)\.0", text) else text
    if isinstance(value, bool):
        return str(value)
    try:
        number = float(value) if isinstance(value, Real | Decimal) else math.nan
    except (OverflowError, ValueError):  # a number of more than 308 digits, a signaling NaN
        number = math.nan
    if not math.isfinite(number):
        return ""
    return str(int(value)) if number.is_integer() else shortest_number(number)


def parse_label(value: str, task: Task, place: str) -> float | str:
    """Return the label of one example as a number: its score, or the index of its class.

    If the classes of the task are read from its file (CLASSES_FROM_FILE), the text itself is returned.
    place: file and line, which the InputError names if the text is no class, no number or out of range.
    """
    text = label_text(value)
    if task.classes is CLASSES_FROM_FILE:
        if not text:
            raise InputError(f"empty label ({place}): fill it in or remove the line")
        return text
    if task.classes:
        if value in task.classes:  # also a name that label_text changes, in a result.json of version 0.25.0
            return task.classes[value]
        if task.classes.keys() == BINARY.keys():
            text = BOOLEANS.get(text, text)
        index = next((i for name, i in task.classes.items() if label_text(name) == text), None)
        if index is None:
            raise InputError(f"label {value!r} is none of {', '.join(task.classes)} ({place}): correct it")
        return index
    try:
        score = parse_number(value)
    except ValueError:
        raise InputError(f"score {value!r} is not a number ({place}): correct it") from None
    if not (math.isfinite(score) and task.min_score <= score <= task.max_score):
        bounds = f"{task.min_score:g} to {task.max_score:g}"
        remedy = "correct it, or set score_range to the range of the scores"
        raise InputError(f"score {value} is outside {bounds} ({place}): {remedy}", "score_range")
    return score


def labels_to_targets(labels: list[Any] | Tensor, task: Task) -> Tensor:
    """Convert N labels to the target that the loss needs, a tensor with one entry per example.

    Scores are rescaled to [0, 1]: a score of 4 in the range 0 to 5 becomes 0.8. The result is (N,) float32.
    Class indices become (N,) int64, the numbers of texts (N, k) int64. Embeddings stay (N, D) float32.
    """
    if isinstance(labels, Tensor):
        return labels.float()
    if task.classes or not task.label:
        return torch.tensor(labels, dtype=torch.long)
    low, high = task.min_score, task.max_score
    return (torch.tensor(labels, dtype=torch.float64) - low).div(high - low).float()


def shuffle_into_batches(
    num_examples: int, batch_size: int, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """Return the indices from 0 to num_examples - 1 in random order, as batches of batch_size indices each.

    A batch is an int64 tensor; the last one may be smaller. All are parts of one tensor, which takes less
    memory than Python integers.
    generator: draws the order.
    """
    return torch.randperm(num_examples, generator=generator).split(batch_size)
