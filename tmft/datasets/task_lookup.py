"""The data that a command line asks for: the task, its files, fetched where they are absent."""

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import Tensor

from tmft.data import DATA_FOLDER, PAIR, SPLITS, TASKS, Examples, Task, read_examples
from tmft.datasets.contrastive_tasks import UNLABELLED
from tmft.datasets.cs224n_tasks import COURSE
from tmft.datasets.distillation_data import TAUGHT, judges_itself, taught
from tmft.datasets.eval_tasks import GROUPS, SCORED
from tmft.datasets.releases import RELEASES, get
from tmft.errors import InputError, did_you_mean
from tmft.io.tsv import read_table
from tmft.losses.registry import OBJECTIVES
from tmft.metrics import METRICS
from tmft.training.multitask import OVERALL


def get_task(
    name: str,
    data: str | None = None,
    data_root: str | None = None,
    score_range: tuple[float, float] | None = None,
    objective: str | None = None,
    metric: str | None = None,
    settings: dict | None = None,
) -> Task:
    """The row called name, of any table of tasks, with what is given in place of what it says.

    name: or name:objective, or several of these with spaces between them, which then are the parts of one
    task. data: a folder with the splits of this one task, or with test files only; data_root: a folder of
    such folders; settings: of the objective, of several tasks of each that has them. Raises InputError if
    there is no such row, or its columns do not go together.
    """
    if " " in name:
        given = {"data": data, "score_range": score_range, "objective": objective, "metric": metric}
        if several := [option for option, value in given.items() if value is not None]:
            raise InputError(f"{several[0]}: it is of one task, here are {name}: leave it out", several[0])
        return find_tasks(name.split(), data_root, settings or {})
    name, _, own = name.partition(":")
    objective, task = own or objective, row_of(name)
    if data is not None:
        folder = Path(data).resolve()
        if not folder.is_dir():
            raise InputError(f"no folder {data}: data names a folder of canonical TSV files", "data")
        splits = any((folder / f"{split}.tsv").is_file() for split in SPLITS)
        task = replace(task, files=str(folder / ("{split}.tsv" if splits else "*.tsv")))
    elif data_root is not None:
        root = Path(data_root).resolve()
        task = replace(task, files=str(root / task.files), judge=task.judge and str(root / task.judge))
    if score_range is not None:
        low, high = score_range
        if task.classes:
            raise InputError(
                f"score_range {low:g} {high:g}: task {name} has classes, leave it out", "score_range"
            )
        if not low < high:
            raise InputError(
                f"score_range {low:g} {high:g}: the first number must be the smaller one", "score_range"
            )
        task = replace(task, min_score=low, max_score=high)
    usual = task.settings if objective in (None, task.objective) else {}
    task = replace(task, objective=objective or task.objective, metric=metric or task.metric)
    task = replace(task, settings=usual | (settings or {}))
    check_task(task)
    return task


def row_of(name: str) -> Task:
    """The row called name. Raises InputError if there is none."""
    tasks = TASKS | UNLABELLED | COURSE | SCORED | TAUGHT
    if name not in tasks:
        raise InputError(f"no task {name!r}: choose from {', '.join(tasks)}{did_you_mean(name, tasks)}")
    return tasks[name]


def find_tasks(names: list[str], data_root: str | None, settings: dict) -> Task:
    """Several as one; settings go to those whose objective has them."""
    parts = {}
    for name in names:
        plain, _, objective = name.partition(":")
        if plain in parts:
            raise InputError(f"task {plain} twice: name each once", "task")
        options = options_of(objective or row_of(plain).objective)
        known = {field.name for field in fields(options)} if options else set()
        taken = {key: value for key, value in settings.items() if key in known}
        parts[plain] = get_task(name, data_root=data_root, settings=taken)
    for key in settings:
        if not any(key in part.settings for part in parts.values()):
            raise InputError(f"{key}: none of these objectives has one, leave it out", key)
    recipe = {key: value for part in reversed(parts.values()) for key, value in part.recipe.items()}
    objectives = ", ".join(part.objective for part in parts.values())
    return Task("", objective=objectives, metric=OVERALL, recipe=recipe, parts=parts)


def options_of(objective: str) -> type | None:
    """The settings that an objective has; None, too, if there is no such objective."""
    return getattr(OBJECTIVES.get(objective), "options", None)


def check_task(task: Task) -> None:
    """Raises InputError if the objective cannot learn the labels of a task, or the metric not read it."""
    if not task.objective:
        return
    for kind, name, table in (("objective", task.objective, OBJECTIVES), ("metric", task.metric, METRICS)):
        if name not in table:
            known = did_you_mean(name, table)
            raise InputError(f"no {kind} {name!r}: choose one of {', '.join(table)}{known}", kind)
    compared, texts = getattr(OBJECTIVES[task.objective], "texts", (2,)), len(task.columns)
    if texts not in compared:
        takes = " or ".join(map(str, compared))
        raise InputError(
            f"objective {task.objective}: it takes {takes} texts, the task has {texts}", "objective"
        )
    options = options_of(task.objective)
    if task.objective == "distill" and not {"teacher", "text"} <= task.settings.keys():
        raise InputError("distill: name the teacher and its text FILE", "teacher", "text")
    known = [field.name for field in fields(options)] if options else []
    if strange := [name for name in task.settings if name not in known]:
        name = strange[0]
        raise InputError(f"{name}: objective {task.objective} has none, leave it out", name, "objective")
    if options:
        options(**task.settings)
    if not task.label and task.objective != "multiple_negatives_ranking":
        raise InputError(
            f"objective {task.objective}: the task has no labels, choose multiple_negatives_ranking",
            "objective",
        )
    predicts = getattr(OBJECTIVES[task.objective], "predicts", "cosines")
    if predicts == "a number":  # its sign is a class, where there are two
        predicts = "classes" if len(task.classes) == 2 else "cosines"
    if predicts == "classes" and not task.classes:
        raise InputError(f"objective {task.objective}: the task has scores, not classes", "objective")
    if predicts == "cosines" and len(task.classes) > 2:
        raise InputError(
            f"objective {task.objective}: a cosine cannot tell {len(task.classes)} classes", "objective"
        )
    read = getattr(METRICS[task.metric], "reads", "cosines")
    if task.objective == "distill" and read == "vectors":
        return
    if read != predicts or (task.metric == "f1" and len(task.classes) != 2):
        fitting = ["f1_macro", "accuracy"] if predicts == "classes" else ["spearman", "pearson"]
        fitting += ["f1"] if predicts == "cosines" and task.classes else []
        what = f"metric {task.metric}: with objective {task.objective}"
        raise InputError(f"{what} on this task choose {' or '.join(fitting)}", "metric", "objective")


def names_of(names: Iterable[str]) -> list[str]:
    """Names of tasks, with those of a group in its place, each once."""
    return list(dict.fromkeys(task for name in names for task in GROUPS.get(name, [name])))


def read_split(task: Task, split: str) -> Examples:
    """As read_examples; data that belong in data/, are absent and have a known address are fetched first.

    Of a task with a judge, dev and test are the judge's; of one with a hidden test, that is dev."""
    itself = task.objective == "distill" and judges_itself(task)
    if task.judge and split != "train" and not itself:
        task = Task(task.judge, metric=task.metric)
    if task.objective == "distill":
        held = [] if itself else [text for dev in ("dev", "test") for text in read_split(task, dev).sentences]
        return taught(task, split, held)
    folder = Path(task.files).parts[0]  # "/" of a folder that the user named
    known = folder in RELEASES and RELEASES[folder].urls
    if known and not (DATA_FOLDER / folder).is_dir():
        print(f"{DATA_FOLDER / folder} is absent: fetching the official release")
        print(get(folder))
    if task.hidden and split == "test" and not (DATA_FOLDER / task.files.format(split=split)).is_file():
        print(f"{task.files.format(split=split)}: labels of test are not public, dev is scored in its place")
        split = "dev"
    return read_examples(task, split)


def read_all(task: Task) -> dict[str, dict[str, Examples]]:
    """The splits of each task that is learnt, by its name. Raises InputError if dev has a new class."""
    data = {}
    for name, part in task.each.items():
        data[name] = {split: read_split(part, split) for split in SPLITS}
        if new := part.classes and set(data[name]["dev"].labels) - set(data[name]["train"].labels):
            word = next(word for word, number in part.classes.items() if number in new)
            raise InputError(f"class {word} ({part.files}): dev has it and train has not, nobody learns it")
    return data


def with_share(
    data: dict[str, dict[str, Examples]], share: float, seed: int
) -> dict[str, dict[str, Examples]]:
    """The same with a share of the train examples of each task, drawn by the seed; at least two."""
    if share == 1:
        return data
    parts = {}
    for name, splits in data.items():
        train, generator = splits["train"], torch.Generator().manual_seed(seed)
        count = max(2, round(share * len(train)))
        drawn = torch.randperm(len(train), generator=generator)[:count].sort().values.tolist()
        labels = train.labels[drawn] if isinstance(train.labels, Tensor) else [train.labels[i] for i in drawn]
        texts = tuple([column[i] for i in drawn] for column in train.texts)
        parts[name] = splits | {"train": Examples(texts, labels)}
    return parts


def read_sentences(path: Path) -> list[str]:
    """The sentences of a file, in order: the sentence columns of a canonical TSV file one after the other, or
    the lines of a plain text that are not empty.

    It is a TSV file if its first line names a column sentence, sentence1 or sentence2. Raises InputError if
    the file is missing, empty, or not what it seems.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as file:  # a lone \r does not end a line
            lines = file.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as UTF-8 text: {error} ({path})") from None
    header = lines[0].rstrip("\r").split("\t")
    columns = [name for name in ("sentence", *PAIR) if name in header]
    if columns:
        rows = [cells for _, cells in read_table(path, columns)]
        sentences = [row[column] for column in range(len(columns)) for row in rows]
        if not all(sentence.strip() for sentence in sentences):
            raise InputError(f"empty sentence ({path}): fill it in or drop the line")
    else:
        sentences = [line.rstrip("\r") for line in lines if line.strip()]
    if not sentences:
        raise InputError(f"no sentences ({path}): give a TSV file, or a text with one sentence per line")
    return sentences
