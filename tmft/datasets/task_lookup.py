"""Look up tasks by name, change them (to another objective or data folder, for instance), read their splits.

When a split of a released data set is read that is not in the data folder, the data set is downloaded.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tmft.data import DATA_FOLDER, SPLITS, Examples
from tmft.datasets.download import download_dataset
from tmft.datasets.releases import RELEASES
from tmft.errors import InputError, check_choice, did_you_mean
from tmft.io.files import PACKAGE_DATA, is_file, is_folder, matching_paths
from tmft.loss import Objective
from tmft.losses.objectives import OBJECTIVES
from tmft.metrics import METRICS, expected_prediction, is_computed_on_text
from tmft.tasks import GROUPS, OVERALL, TASKS, Task

# ------------------------------------------------------------------------------------------------- one task


def get_task(
    name: str,
    data: str | None = None,
    data_root: str | None = None,
    score_range: tuple[float, float] | None = None,
    objective: str | None = None,
    selection_metric: str | None = None,
    objective_args: dict[str, Any] | None = None,
) -> Task:
    """Return an entry of TASKS, changed by the arguments that are not None.

    name: the name of a task, or "task:objective"; or several of these with spaces between them, which become
        the subtasks of one multi-task run.
    data: folder with train.tsv, dev.tsv and test.tsv, which replace the files of a single task. If it has
        none of these, all its TSV files are test data.
    data_root: folder that is used in place of data/.
    score_range: the lowest and the highest score, for a single task whose labels are scores.
    objective: an entry of OBJECTIVES. selection_metric: an entry of METRICS. Both for a single task.
    objective_args: hyperparameters of the objective. In a multi-task run, each task gets those that its
        objective has.

    Raises InputError if there is no such task, or if its objective, metric and labels do not fit each other.

    Example:

    >>> task = get_task("sample", objective="multiple_negatives_ranking")
    >>> task.files, task.objective, task.metric
    ('sample/{split}.tsv', 'multiple_negatives_ranking', 'spearman')
    """
    if " " in name:
        single = {"data": data, "score_range": score_range, "objective": objective}
        single["selection_metric"] = selection_metric
        if used := [option for option, value in single.items() if value is not None]:
            raise InputError(f"{used[0]} needs a single task, but there are {name}: remove it", used[0])
        return get_multitask(name.split(), data_root, objective_args or {})

    name, _, named_objective = name.partition(":")
    objective = named_objective or objective
    task = replace_files(find_task(name), name, data, data_root, score_range)
    default_args = task.objective_args if objective in (None, task.objective) else {}
    task = replace(
        task,
        objective=objective or task.objective,
        metric=selection_metric or task.metric,
        objective_args=default_args | (objective_args or {}),
    )
    validate_task(task)
    return task


def replace_files(
    task: Task,
    name: str,
    data: str | None = None,
    data_root: str | None = None,
    score_range: tuple[float, float] | None = None,
) -> Task:
    """Return a single task with other files or another range of scores; all as in `get_task`."""
    if data is not None:
        folder = Path(data).resolve()
        if not is_folder(folder):
            raise InputError(f"no folder {data}: `data` names a folder of TSV files", "data")
        if not matching_paths(folder, "*.tsv") and (csv_files := matching_paths(folder, "*.csv")):
            raise InputError(
                f"no .tsv file in {data}, but {csv_files[0].name}: convert it to train.tsv, dev.tsv and "
                "test.tsv with python -m tmft data convert"
            )
        has_splits = any(is_file(folder / f"{split}.tsv") for split in SPLITS)
        task = replace(task, files=str(folder / ("{split}.tsv" if has_splits else "*.tsv")))
    elif data_root is not None:
        root = Path(data_root).resolve()
        eval_files = str(root / task.eval_files) if task.eval_files else ""
        task = replace(task, files=str(root / task.files), eval_files=eval_files)
    if score_range is not None:
        low, high = score_range
        given = f"score_range {low:g} {high:g}"
        if task.classes:
            raise InputError(f"{given}: task {name} has classes, not scores: remove it", "score_range")
        if not low < high:
            raise InputError(f"{given}: the first number must be the smaller one", "score_range")
        task = replace(task, min_score=low, max_score=high)
    return task


def find_task(task_name: str) -> Task:
    """Return the entry of TASKS with this name."""
    if task_name not in TASKS:
        guess = did_you_mean(task_name, TASKS)
        names = f"{' The' if guess else ': the'} tasks are {', '.join(TASKS)}"
        raise InputError(f"no task {task_name!r}{guess}{names}")
    return TASKS[task_name]


def expand_groups(task_names: Iterable[str]) -> list[str]:
    """Return the names of tasks without duplicates, with each name of a group replaced by its tasks."""
    return list(dict.fromkeys(task for name in task_names for task in GROUPS.get(name, [name])))


def objective_config_class(objective: str) -> type[Any] | None:
    """Return the dataclass of the hyperparameters of an objective; None if it has none or does not exist."""
    return getattr(OBJECTIVES.get(objective), "config_class", None)


def hyperparameters(objective: str) -> list[str]:
    """Return the names of the hyperparameters of an objective: the fields of its configuration."""
    config_class = objective_config_class(objective)
    return [field.name for field in fields(config_class)] if config_class else []


def find_objective(task: Task) -> type[Objective]:
    """Return the class of the objective of a task; Objective itself if it is only scored, or has subtasks."""
    return OBJECTIVES.get(task.objective, Objective)


# -------------------------------------------------------------------------------------------- several tasks


def get_multitask(task_specs: list[str], data_root: str | None, objective_args: dict[str, Any]) -> Task:
    """Return one Task with several subtasks, for a multi-task run.

    task_specs: a "task" or "task:objective" for each subtask. objective_args: hyperparameters; each subtask
    gets those that its objective has. If the recipes of subtasks differ in a value, that of the first one is
    used.
    """
    subtasks = {}
    for name in task_specs:
        task_name, _, objective = name.partition(":")
        if task_name in subtasks:
            raise InputError(f"task {task_name} is named twice: name each task once", "task")
        known = hyperparameters(objective or find_task(task_name).objective)
        own_args = {key: value for key, value in objective_args.items() if key in known}
        subtasks[task_name] = get_task(name, data_root=data_root, objective_args=own_args)
    for key in objective_args:
        if not any(key in subtask.objective_args for subtask in subtasks.values()):
            raise InputError(f"{key} has no effect with the objectives of these tasks: remove it", key)
    recipe: dict[str, Any] = {}
    for subtask in reversed(subtasks.values()):
        recipe |= subtask.recipe
    objectives = ", ".join(subtask.objective for subtask in subtasks.values())
    return Task("", objective=objectives, metric=OVERALL, recipe=recipe, subtasks=subtasks)


# ---------------------------------------------------------------------------------------------- validation


def validate_task(task: Task) -> None:
    """Raise InputError if the labels, the objective and the metric of a task do not fit each other."""
    if not task.objective:  # the task is only scored
        return
    check_choice("objective", task.objective, OBJECTIVES)
    check_choice("selection_metric", task.metric, METRICS)
    objective, name = OBJECTIVES[task.objective], task.objective
    num_classes, predicted = len(task.classes), objective.prediction_type
    if predicted == "score":  # with two classes, its sign is the predicted class
        predicted = "class" if num_classes == 2 else "cosine"
    problem = ""
    if len(task.columns) not in objective.allowed_num_texts:
        allowed = " or ".join(map(str, objective.allowed_num_texts))
        problem = (
            f"objective {name} takes {allowed} texts, but the task has {len(task.columns)}: choose another"
        )
    elif objective.needs_teacher and not {"teacher", "text"} <= task.objective_args.keys():
        problem = f"objective {name}: name a `teacher` and a `text` with sentences"
    elif objective.needs_labels and not task.label:
        problem = f"objective {name} needs labels, but the task has none: choose multiple_negatives_ranking"
    elif predicted == "class" and not task.classes:
        remedy = "choose one for scores, such as cosine_mse"
        problem = f"objective {name} predicts classes, but the task has scores: {remedy}"
    elif predicted == "cosine" and num_classes > 2:
        remedy = "choose softmax"
        problem = (
            f"objective {name} predicts one number, which cannot separate {num_classes} classes: {remedy}"
        )
    if problem:
        raise InputError(problem, "objective", "teacher", "text")
    for key in task.objective_args:
        if key not in hyperparameters(name):
            raise InputError(f"{key} has no effect with `objective` {name}: remove it", key, "objective")
    if objective.config_class:
        objective.config_class(**task.objective_args)  # checks the values

    expected = expected_prediction(task.metric)
    if objective.needs_teacher and expected == "embedding":
        return
    if expected != predicted or (task.metric == "f1" and num_classes != 2):
        fitting = ["f1_macro", "accuracy"] if predicted == "class" else ["spearman", "pearson"]
        if predicted == "cosine" and task.classes:
            fitting.append("f1")
        raise InputError(
            f"metric {task.metric} does not fit `objective` {name} on this task: "
            f"choose {' or '.join(fitting)}",
            "objective",
        )


# ------------------------------------------------------------------------------------------------- reading


def read_split(task: Task, split: str) -> Examples:
    """Read one split of a single task; a released data set that is not there is downloaded first.

    If the task has eval_files, its dev and test splits are read from those. If its test labels are not public
    and there is no test file, dev is returned in place of test. If the objective needs a teacher, the labels
    are its embeddings, which are computed if they are not stored yet.
    """
    objective, excluded_sentences = find_objective(task), []
    if task.eval_files and not is_computed_on_text(task.metric):
        eval_task = Task(task.eval_files, metric=task.metric)
        if split != "train":
            file = task.eval_files.format(split=split)
            if not has_data_file(file):
                print(f"dev and test of this task are pairs with scores: {file} (others: --data-root FOLDER)")
            return read_split(eval_task, split)
        if objective.needs_teacher:
            try:
                excluded_sentences = [
                    text for name in ("dev", "test") for text in read_split(eval_task, name).sentences
                ]
            except InputError as error:
                remedy = "without these pairs, give `selection_metric` teacher_cosine"
                raise InputError(f"{error}; {remedy}", "selection_metric") from None
    folder = task.files.partition("/")[0]  # "" if the user has named the folder
    if folder in RELEASES and RELEASES[folder].urls and not is_folder(DATA_FOLDER / folder):
        print(f"{DATA_FOLDER / folder} is absent: downloading the official release")
        print(download_dataset(folder))
    if task.test_labels_hidden and split == "test":
        file = task.files.format(split="test")
        if not is_file(DATA_FOLDER / file):
            print(f"{file}: the labels of test are not public, dev is scored in its place")
            split = "dev"
    return objective.read_examples(task, split, excluded_sentences)


def read_available_split(split: str, data_root: str | None = None) -> tuple[str, Task, Examples]:
    """Return (name, task, examples) of stsb or, if it is absent and cannot be downloaded, of the sample.

    The sample comes with tmft, so that something can be shown without a network; why it is taken is printed.
    data_root: the folder of the data; if it is given, the sample is not taken.
    """
    task = get_task("stsb", data_root=data_root)
    try:
        return "stsb", task, read_split(task, split)
    except InputError as error:
        if data_root is not None or has_data_file(task.files.format(split=split)):
            raise  # in the second case the file is there, and wrong
        print(f"{error}\nin place of stsb, the task sample is taken, which comes with tmft")
        return "sample", TASKS["sample"], read_split(TASKS["sample"], split)


def has_data_file(file_name: str) -> bool:
    """Return whether a data file is there, among those that were downloaded or those that come with tmft."""
    return any(is_file(folder / file_name) for folder in (DATA_FOLDER, PACKAGE_DATA))


def read_all_splits(task: Task, dev_fraction: float | None = None) -> dict[str, dict[str, Examples]]:
    """Read all splits of a task; return {name of a subtask: {split: its examples}}.

    A task without subtasks has the single name "". dev_fraction: if given, dev is this fraction of the
    examples of train, and no file of dev is read.
    """
    data = {}
    for name, subtask in task.tasks_by_name.items():
        if dev_fraction is None:
            data[name] = {split: read_split(subtask, split) for split in SPLITS}
        else:
            file = subtask.files.format(split="dev")
            if subtask.eval_files or has_data_file(file):
                problem = f"dev_fraction: this task has dev data ({subtask.eval_files or file})"
                raise InputError(f"{problem}: remove dev_fraction", "dev_fraction", "dev_fraction")
            train, dev = hold_out_dev(read_split(subtask, "train"), dev_fraction)
            data[name] = {"train": train, "dev": dev, "test": read_split(subtask, "test")}
        if subtask.classes:
            check_classes(data[name], subtask)
    return data


def check_classes(splits: dict[str, Examples], task: Task) -> None:
    """Raise InputError if dev or test has a class that train does not have."""
    for split in ("dev", "test"):
        if new := set(splits[split].labels) - set(splits["train"].labels):
            class_name = next(word for word, index in task.classes.items() if index in new)
            place = f" ({task.files})" if task.files else ""
            problem = f"class {class_name}{place}: {split} has examples of it and train has none"
            raise InputError(f"{problem}: add some")


def hold_out_dev(train: Examples, dev_fraction: float) -> tuple[Examples, Examples]:
    """Return the examples that are left for train, and the share of them that is kept for dev, at least two.

    The same examples are kept in every run, whatever its seed, each part in its order.
    """
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).tolist()
    count = max(2, round(dev_fraction * len(train)))
    return hold_out_examples(train, order, count, "train", "dev")


def hold_out_examples(
    examples: Examples, order: Sequence[int], count: int, source: str, name: str
) -> tuple[Examples, Examples]:
    """Return the examples that are left for the split `source`, and those that are held out, in their order.

    order, count: as for `hold_out`; examples with equal texts stay together, so that nothing is scored that
    was trained on. name: the split that is held out, for the message.
    """
    kept, held_out = hold_out(text_keys(examples.texts), order, count)
    if len(kept) < 2:
        problem = f"{source} has {len(examples)} examples, too few different ones to hold out {count}"
        raise InputError(f"{problem}: give more, or {name}")
    return select_examples(examples, sorted(kept)), select_examples(examples, sorted(held_out))


def text_keys(columns: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return for each example a key that is equal for equal texts, whatever their case and spaces.

    columns: one list of texts for each column. The order of a pair does not matter.
    """
    keys = [
        tuple(" ".join(text.casefold().split()) for text in texts) for texts in zip(*columns, strict=True)
    ]
    return [(*sorted(key),) for key in keys] if len(columns) == 2 else keys


def hold_out(keys: Sequence[Hashable], order: Sequence[int], count: int) -> tuple[list[int], list[int]]:
    """Divide N examples so that equal ones are in the same part, and return the indices of both parts.

    keys: N keys, which are equal for equal examples. order: the indices in the order in which examples are
    held out, each with all that are equal to it, until there are at least `count`; they may be fewer than N.
    Returns the indices that are left of `order`, and those that are held out, equal ones next to each other.
    """
    indices_by_key: dict[Hashable, list[int]] = {}
    for index in order:
        indices_by_key.setdefault(keys[index], []).append(index)
    held_out: list[int] = []
    kept: list[int] = []
    for indices in indices_by_key.values():
        (held_out if len(held_out) < count else kept).extend(indices)
    return kept, held_out


def select_examples(examples: Examples, indices: list[int]) -> Examples:
    """Return the examples with these indices, in this order."""
    labels = examples.labels
    labels = labels[indices] if isinstance(labels, Tensor) else [labels[i] for i in indices]
    return Examples(tuple([column[i] for i in indices] for column in examples.texts), labels)


def subsample_train(
    data: dict[str, dict[str, Examples]], train_fraction: float, seed: int
) -> dict[str, dict[str, Examples]]:
    """Return data with a random fraction of the train examples of each task, and all of dev and test.

    data: as `read_all_splits` returns it. The seed determines which examples are kept, at least two, in their
    order.
    """
    if train_fraction == 1:
        return data
    result = {}
    for name, splits in data.items():
        train, generator = splits["train"], torch.Generator().manual_seed(seed)
        count = max(2, round(train_fraction * len(train)))
        kept = torch.randperm(len(train), generator=generator)[:count].sort().values.tolist()
        result[name] = splits | {"train": select_examples(train, kept)}
    return result
