"""The data that a command line asks for: the task, its files, fetched where they are absent."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tmft.data import DATA_FOLDER, PAIR, SPLITS, TASKS, Examples, Task, read_examples
from tmft.datasets.contrastive import UNLABELLED
from tmft.datasets.releases import RELEASES, get
from tmft.datasets.scored import GROUPS, SCORED
from tmft.errors import InputError, nearest
from tmft.files.tsv import read_table
from tmft.metrics import METRICS
from tmft.objectives import OBJECTIVES


def find_task(
    name: str,
    data: str | None = None,
    data_root: str | None = None,
    score_range: tuple[float, float] | None = None,
    objective: str | None = None,
    metric: str | None = None,
    settings: dict | None = None,
) -> Task:
    """The row of TASKS or SCORED called name, with what is given in place of what it says.

    data: a folder with the splits of this one task, or with test files only; data_root: a folder of such
    folders; settings: of the objective. Raises InputError if there is no such row, or its columns do not go
    together.
    """
    tasks = TASKS | UNLABELLED | SCORED
    if name not in tasks:
        known = nearest(name, tasks)
        raise InputError(f"no task {name!r}: choose from {', '.join(tasks)}{known}")
    task = tasks[name]
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


def check_task(task: Task) -> None:
    """Raises InputError if the objective cannot learn the labels of a task, or the metric not read it."""
    if not task.objective:
        return
    for kind, name, table in (("objective", task.objective, OBJECTIVES), ("metric", task.metric, METRICS)):
        if name not in table:
            known = nearest(name, table)
            raise InputError(f"no {kind} {name!r}: choose one of {', '.join(table)}{known}", kind)
    compared, texts = getattr(OBJECTIVES[task.objective], "texts", (2,)), len(task.columns)
    if texts not in compared:
        takes = " or ".join(map(str, compared))
        raise InputError(
            f"objective {task.objective}: it takes {takes} texts, the task has {texts}", "objective"
        )
    if options := getattr(OBJECTIVES[task.objective], "options", None):
        options(**task.settings)
    elif task.settings:
        name = next(iter(task.settings))
        raise InputError(f"{name}: objective {task.objective} has none, leave it out", name, "objective")
    elif not task.label:
        raise InputError(f"objective {task.objective}: the task has no labels, choose in_batch", "objective")
    predicts = getattr(OBJECTIVES[task.objective], "predicts", "cosines")
    if predicts == "classes" and not task.classes:
        raise InputError(f"objective {task.objective}: the task has scores, not classes", "objective")
    if predicts == "cosines" and len(task.classes) > 2:
        raise InputError(
            f"objective {task.objective}: a cosine cannot tell {len(task.classes)} classes", "objective"
        )
    read = getattr(METRICS[task.metric], "reads", "cosines")
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

    Of a task with a judge, dev and test are the judge's."""
    if task.judge and split != "train":
        task = Task(task.judge, metric=task.metric)
    folder = Path(task.files).parts[0]  # "/" of a folder that the user named
    known = folder in RELEASES and RELEASES[folder].urls
    if known and not (DATA_FOLDER / folder).is_dir():
        print(f"{DATA_FOLDER / folder} is absent: fetching the official release")
        print(get(folder))
    return read_examples(task, split)


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
