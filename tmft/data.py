"""Examples from TSV files, the table of tasks, and batches.

The canonical file: UTF-8, a header line, columns split by one TAB, no quoting (a " is a character like any
other), one example per line. A task is a folder of such files, one per split: train.tsv, dev.tsv, test.tsv.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tmft.errors import InputError
from tmft.io.paths import DATA_FOLDER, SHIPPED
from tmft.io.tsv import has_text, read_table, to_number

SPLITS = ("train", "dev", "test")
PAIR = ("sentence1", "sentence2")
FOUND = {"any": 0}  # classes of a task whose file names them: a label is its name


@dataclass(frozen=True)
class Task:
    """A row of TASKS: where the files are, what their labels mean, and how they are learnt and scored.

    files: path below the data folder, {split} for train, dev or test; without it there is test data only, and
    each file that a * matches is a subset. columns: of the texts, 1 to 3; empty: what an empty text is read
    as, "": it is refused. label: the column with a score from min_score to max_score or the name of a class,
    "": there is none; classes: name -> number, from 0. objective ("": none, it is not trained), metric (which
    chooses the epoch), suite (for scoring): rows of OBJECTIVES, METRICS, SUITES. recipe, settings: values
    that differ, of it and of the objective. judge: files of pairs with scores, 0 to 5, as dev and test.
    hidden: labels of test are not public. parts: of several tasks at once, each by its name.
    """

    files: str
    min_score: float = 0.0
    max_score: float = 5.0
    columns: tuple[str, ...] = PAIR
    empty: str = ""
    label: str = "score"
    classes: dict[str, int] = field(default_factory=dict)
    objective: str = "cosine_mse"
    metric: str = "spearman"
    suite: str = "similarity"
    recipe: dict[str, float | str] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)
    judge: str = ""
    hidden: bool = False
    parts: dict[str, "Task"] = field(default_factory=dict)

    @property
    def each(self) -> dict[str, "Task"]:
        """The parts, or this one task, without a name."""
        return self.parts or {"": self}


ENTAILMENT = {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2}
# fmt: off
TASKS = {
    "stsb":    Task("stsb/{split}.tsv"),
    "stsb-de": Task("stsb-de/{split}.tsv"),
    "stsb-es": Task("stsb-es/{split}.tsv"),
    "kor-sts": Task("kor-sts/{split}.tsv"),
    "sickr":   Task("sick/{split}.tsv", min_score=1.0),
    "sicke":   Task("sick/{split}.tsv", label="label", classes=ENTAILMENT,
                    objective="softmax", metric="f1_macro"),
    "mrpc":    Task("mrpc/{split}.tsv", label="label", classes={"0": 0, "1": 1},
                    objective="cosine_bce", metric="f1"),
    "wordsim": Task("wordsim/{split}.tsv", max_score=1.0, columns=("word1", "word2"),
                    recipe={"epochs": 50, "batch_size": 128}),
    "sts12":   Task("sts12/*.tsv"),
    "sts13":   Task("sts13/*.tsv"),
    "sts14":   Task("sts14/*.tsv"),
    "sts15":   Task("sts15/*.tsv"),
    "sts16":   Task("sts16/*.tsv"),
    "sample":  Task("sample/{split}.tsv"),
}
# fmt: on


@dataclass
class Examples:
    """N examples of one split.

    texts: a list of N sentences for each column: of a text alone, of a pair, or of an anchor, a positive and
    a negative. labels: N scores, or numbers of classes, or vectors (N, D); where there are none, numbers of
    the first texts, equal ones alike. subsets: name of a part -> its slice, {} if there is only one.
    """

    texts: tuple[list[str], ...]
    labels: list[float] | Tensor
    subsets: dict[str, slice] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sentences(self) -> list[str]:
        """Column after column: text j of example i is number j * N + i."""
        return [sentence for column in self.texts for sentence in column]


def read_examples(task: Task, split: str) -> Examples:
    """One split of a task, from data/ or where task.files says; several files are read as one, by name.

    Raises InputError if a file is missing, empty or wrong; a wrong line is named by its number.
    """
    if "{split}" not in task.files and split != "test":
        raise InputError(f"no {split} split ({task.files}): this task has test data only")
    wanted = [folder / task.files.replace("{split}", split) for folder in (DATA_FOLDER, SHIPPED)]
    pattern = next((place for place in wanted if any(place.parent.glob(place.name))), wanted[0])
    paths = sorted(pattern.parent.glob(pattern.name))
    if not paths:
        remedy = "get it with data/get_data.py, or name its folder with data_root"
        raise InputError(f"no such file ({pattern}): {remedy}", "data_root")
    label = [task.label] if task.label else []
    choices = [[*task.columns, *label]] + [[*PAIR, *label]] * (len(task.columns) == 2)
    examples, anchors = Examples(tuple([] for _ in task.columns), []), {}
    for path in paths:
        start = len(examples)
        for place, cells in read_table(path, *choices):
            texts = [text if has_text(text) else task.empty for text in cells[: len(task.columns)]]
            if not all(texts):
                raise InputError(f"empty sentence ({place}): fill it in or drop the line")
            for column, text in zip(examples.texts, texts, strict=True):
                column.append(text)
            number = anchors.setdefault(texts[0], len(anchors))
            examples.labels.append(parse_label(cells[-1], task, place) if label else number)
        if len(examples) == start:
            raise InputError(f"no examples ({path}): the file has a header only")
        if len(paths) > 1:
            examples.subsets[path.stem] = slice(start, len(examples))
    return examples


def parse_label(text: str, task: Task, place: str) -> float:
    """The label of one example as a number: its score, or the number of its class."""
    if task.classes is FOUND:
        return text
    if task.classes:
        if text not in task.classes:
            raise InputError(f"label {text!r} is none of {', '.join(task.classes)} ({place}): correct it")
        return task.classes[text]
    try:
        score = to_number(text)
    except ValueError:
        raise InputError(f"score {text!r} is not a number ({place}): give a number") from None
    if not (math.isfinite(score) and task.min_score <= score <= task.max_score):
        bounds = f"{task.min_score:g} to {task.max_score:g}"
        remedy = "correct it, or see score_range"
        raise InputError(f"score {text} is outside {bounds} ({place}): {remedy}", "score_range")
    return score


def targets(labels: list[float] | Tensor, task: Task) -> Tensor:
    """What an objective compares with: scores as numbers in [0, 1], (N,) float32, so 4 of 5 is 0.8; numbers
    of classes (N,) int64; vectors (N, D) float32 as they are."""
    if isinstance(labels, Tensor):
        return labels.float()
    if task.classes or not task.label:
        return torch.tensor(labels, dtype=torch.long)
    low, high = task.min_score, task.max_score
    return (torch.tensor(labels, dtype=torch.float64) - low).div(high - low).float()


def batches(count: int, batch_size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Numbers 0..count-1 in a random order, batch_size at a time; the last batch may be smaller."""
    for batch in torch.randperm(count, generator=generator).split(batch_size):
        yield batch.tolist()
