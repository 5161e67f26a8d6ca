"""Sentence pairs from TSV files, the table of tasks, and batches.

The canonical file: UTF-8, a header line, columns split by one TAB, no quoting (a " is a character like any
other), one pair per line. A task is a folder of such files, one per split: train.tsv, dev.tsv, test.tsv.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from tmft.errors import InputError


@dataclass(frozen=True)
class Task:
    """A row of TASKS: where the files are, what their labels mean, and how they are learnt and scored.

    files: path below the data folder, {split} for train, dev or test. A pattern with * has test data only:
    each file it matches is one subset. label: the column with a score from min_score to max_score or, if
    there are classes, with the name of one; classes: name -> number, from 0. objective: a row of OBJECTIVES;
    metric: a row of METRICS, which chooses the epoch. recipe: values of Recipe that differ from the paper's
    for STS benchmark; the command line may change them.
    """

    files: str
    min_score: float = 0.0
    max_score: float = 5.0
    label: str = "score"
    classes: dict[str, int] = field(default_factory=dict)
    objective: str = "cosine_mse"
    metric: str = "spearman"
    recipe: dict[str, float] = field(default_factory=dict)


PARAPHRASE = {"0": 0, "1": 1}
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
    "mrpc":    Task("mrpc/{split}.tsv", label="label", classes=PARAPHRASE,
                    objective="cosine_bce", metric="f1"),
    "wordsim": Task("wordsim/{split}.tsv", max_score=1.0, recipe={"epochs": 50, "batch_size": 128}),
    "sts12":   Task("sts12/*.tsv"),
    "sts13":   Task("sts13/*.tsv"),
    "sts14":   Task("sts14/*.tsv"),
    "sts15":   Task("sts15/*.tsv"),
    "sts16":   Task("sts16/*.tsv"),
    "sample":  Task("sample/{split}.tsv"),
}
# fmt: on
SPLITS = ("train", "dev", "test")
DATA_FOLDER = Path(__file__).resolve().parent.parent / "data"


@dataclass
class Pairs:
    """N sentence pairs of one split.

    scores: of each pair its score or, in a task with classes, the number of its class. subsets: name of a
    part -> its slice, {} if there is only one.
    """

    sentence1: list[str]
    sentence2: list[str]
    scores: list[float]
    subsets: dict[str, slice] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.scores)


def find_task(
    name: str, data: str | None = None, data_root: str | None = None, score_range: list[float] | None = None
) -> Task:
    """The row of TASKS called name, with what a command line may put in place of its files and score range.

    data: a folder with the splits of this one task, or with test files only; data_root: a folder of such
    folders.
    """
    if name not in TASKS:
        raise InputError(f"no task {name!r}: choose from {', '.join(TASKS)}")
    task = TASKS[name]
    if data is not None:
        folder = Path(data).resolve()
        if not folder.is_dir():
            raise InputError(f"no folder {data}: --data names a folder of canonical TSV files")
        splits = any((folder / f"{split}.tsv").is_file() for split in SPLITS)
        task = replace(task, files=str(folder / ("{split}.tsv" if splits else "*.tsv")))
    elif data_root is not None:
        task = replace(task, files=str(Path(data_root).resolve() / task.files))
    if score_range is not None:
        low, high = score_range
        if task.classes:
            raise InputError(f"--score-range {low:g} {high:g}: task {name} has classes, leave it out")
        if not low < high:
            raise InputError(f"--score-range {low:g} {high:g}: the first number must be the smaller one")
        task = replace(task, min_score=low, max_score=high)
    return task


def read_pairs(task: Task, split: str) -> Pairs:
    """One split of a task, from data/ or where task.files says; several files are read as one, by name.

    Raises InputError if a file is missing, empty or wrong; a wrong line is named by its number.
    """
    if "*" in task.files and split != "test":
        raise InputError(f"no {split} split ({task.files}): this task has test data only")
    pattern = DATA_FOLDER / task.files.replace("{split}", split)
    paths = sorted(pattern.parent.glob(pattern.name))
    if not paths:
        raise InputError(
            f"no such file ({pattern}): get it with data/get_data.py, or name its folder with --data"
        )
    pairs = Pairs([], [], [])
    for path in paths:
        start = len(pairs)
        for sentence1, sentence2, score in read_lines(path, task):
            pairs.sentence1.append(sentence1)
            pairs.sentence2.append(sentence2)
            pairs.scores.append(score)
        if len(paths) > 1:
            pairs.subsets[path.stem] = slice(start, len(pairs))
    return pairs


def read_lines(path: Path, task: Task) -> Iterator[tuple[str, str, float]]:
    """(sentence1, sentence2, score) of each line of one canonical file, in order; every line is checked."""
    columns = ["sentence1", "sentence2", task.label]
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as lines:  # a lone \r or \x85 does not end a line
            header = next(lines, "").rstrip("\r\n").split("\t")
            missing = [column for column in columns if column not in header]
            if missing:
                raise InputError(
                    f"no column {missing[0]!r} ({path}, line 1): the columns are {', '.join(header)}"
                )
            where = [header.index(column) for column in columns]
            number = 1
            for number, line in enumerate(lines, start=2):
                fields = line.rstrip("\r\n").split("\t")
                if len(fields) != len(header):
                    raise InputError(
                        f"{len(fields)} fields instead of {len(header)} ({path}, line {number}): "
                        "one TAB goes between two columns, none inside a sentence"
                    )
                sentence1, sentence2, label = (fields[column] for column in where)
                if not sentence1.strip() or not sentence2.strip():
                    raise InputError(f"empty sentence ({path}, line {number}): fill it in or drop the line")
                yield sentence1, sentence2, check_label(label, task, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as UTF-8 text: {error} ({path})") from None
    if number == 1:
        raise InputError(f"no sentence pairs ({path}): the file has a header only")


def read_sentences(path: Path) -> list[str]:
    """The sentences of a file, in order: the sentence columns of a canonical TSV file one after the other, or
    the lines of a plain text that are not empty.

    It is a TSV file if its first line names a column sentence, sentence1 or sentence2. Raises InputError if
    the file is missing, empty, or not what it seems.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            lines = [line.rstrip("\r\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as UTF-8 text: {error} ({path})") from None
    header = lines[0].split("\t") if lines else []
    columns = [name for name in ("sentence", "sentence1", "sentence2") if name in header]
    if not columns:
        sentences = [line for line in lines if line.strip()]
    else:
        fields = [line.split("\t") for line in lines[1:]]
        for number, line in enumerate(fields, start=2):
            if len(line) != len(header):
                raise InputError(
                    f"{len(line)} fields instead of {len(header)} ({path}, line {number}): "
                    "one TAB goes between two columns, none inside a sentence"
                )
        sentences = [line[header.index(name)] for name in columns for line in fields]
        if not all(sentence.strip() for sentence in sentences):
            raise InputError(f"empty sentence ({path}): fill it in or drop the line")
    if not sentences:
        raise InputError(f"no sentences ({path}): give a TSV file, or a text with one sentence per line")
    return sentences


def check_label(text: str, task: Task, place: str) -> float:
    """The label of one pair as a number: its score, or the number of its class."""
    if task.classes:
        if text not in task.classes:
            raise InputError(f"label {text!r} is none of {', '.join(task.classes)} ({place}): correct it")
        return task.classes[text]
    try:
        score = float(text)
    except ValueError:
        raise InputError(f"score {text!r} is not a number ({place}): give a number") from None
    if not (math.isfinite(score) and task.min_score <= score <= task.max_score):
        low, high = task.min_score, task.max_score
        raise InputError(
            f"score {text} is outside {low:g} to {high:g} ({place}): correct it, or see --score-range"
        )
    return score


def scale(scores: list[float], task: Task) -> Tensor:
    """Scores to targets in [0, 1], (N,) float32: score / 5 for a task of 0 to 5. Classes stay, (N,) int64."""
    if task.classes:
        return torch.tensor(scores, dtype=torch.long)
    return (
        (torch.tensor(scores, dtype=torch.float64) - task.min_score)
        .div(task.max_score - task.min_score)
        .float()
    )


def batches(count: int, batch_size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Numbers 0..count-1 in a random order, batch_size at a time; the last batch may be smaller."""
    for batch in torch.randperm(count, generator=generator).split(batch_size):
        yield batch.tolist()
