"""The options that name the tasks to score on; and looking up the tasks that they describe."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from tmft.cli.options import add_data_folder_options, add_split_option
from tmft.cli.parser import CommandLineParser
from tmft.cli.run_result import run_tasks
from tmft.datasets.task_lookup import expand_groups, get_task
from tmft.errors import InputError
from tmft.tasks import GROUPS, TASKS, Task


def add_task_options(p: CommandLineParser, default: str, several: bool = True, split: bool = True) -> None:
    """Add the options that name the tasks to score on: --task, --data, --data-root and --score-range.

    default: description of the tasks without --task. several: whether more than one task may be given; if
    not, it must have similarity scores. split: whether to add --split.
    """
    group = p.add_argument_group("tasks" if several else "task")
    names = describe_tasks() if several else "a task with similarity scores, such as stsb"
    group.add_argument("--task", nargs="+", help=f"{names}; default: {default}")
    if split:
        add_split_option(group)
    add_data_folder_options(group)


def describe_tasks() -> str:
    """Return the names of all tasks, by type, and of the groups of tasks."""
    names: dict[str, list[str]] = {}  # type of a task -> names
    for name, task in TASKS.items():
        names.setdefault(task.task_type, []).append(name)
    lists = [f"{task_type}: {', '.join(tasks)}" for task_type, tasks in names.items()]
    return "; ".join([*lists, f"groups of these tasks: {', '.join(GROUPS)}"])


def tasks_from_args(
    args: Namespace, default: Sequence[str], result: dict[str, Any] | None = None
) -> dict[str, Task]:
    """Return {name: Task} for the tasks chosen by --task and --data.

    If neither is given, they are the tasks recorded in `result` or, if it is None, those named in `default`.
    With --data alone, the files of its folder are scored as the task named in `default`.

    args: the parsed options of `add_task_options`. default: names of tasks or groups.
    result: content of the result.json of the run that trained the model; None if there is none.
    Raises InputError for an unknown task, or if --data is given for several tasks.
    """
    if result and args.task is None and args.data is None:
        return tasks_of_run(args, result)
    names = expand_groups(args.task or default)
    if args.data is not None and len(names) > 1:
        raise InputError("--data has the files of one task: give one --task, or use --data-root instead")
    return {name: get_task(name, args.data, args.data_root, args.score_range) for name in names}


def only_similarity_task(tasks: dict[str, Task]) -> tuple[str, Task]:
    """Return the name and the Task if there is a single task, and it has similarity scores.

    Raises InputError otherwise.
    """
    [(name, task), *more] = tasks.items()
    if more or not has_similarity_scores(task):
        message = f"task {' '.join(tasks)}: choose one task with similarity scores, such as stsb"
        raise InputError(message, "task")
    return name, task


def has_similarity_scores(task: Task) -> bool:
    """Return whether the labels of a task are similarity scores of pairs, not classes or clusters."""
    return task.task_type == "similarity" and not task.classes


def tasks_of_run(args: Namespace, result: dict[str, Any]) -> dict[str, Task]:
    """Return {name: Task} for the tasks of a run, with its objective, metric, hyperparameters and data.

    args: --data-root and --score-range replace those of the run. result: content of its result.json.
    """
    arguments = result.get("arguments", {})
    data_root = args.data_root or arguments.get("data_root")
    score_range = args.score_range or arguments.get("score_range")
    tasks = {}
    for name, task in run_tasks(result).items():
        settings = task["objective"], task["metric"], task.get("objective_args")
        tasks[name] = get_task(name, arguments.get("data"), data_root, score_range, *settings)
    return tasks
