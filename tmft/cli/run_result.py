"""What a fine-tuning run has trained: its tasks, the heads of their objectives, and their thresholds."""

from argparse import Namespace
from pathlib import Path

from torch import nn

from tmft.cli.training_free_options import is_training_free
from tmft.errors import InputError
from tmft.runs.result_schema import read_result
from tmft.runs.run_folder import load_objective
from tmft.tasks import Task


def load_run_result(model: str) -> dict:
    """Return the result.json of a fine-tuning run, or {} if `model` is not the folder of one."""
    result = read_result(Path(model)) if (Path(model) / "result.json").is_file() else {}
    return result if "test" in result else {}  # a pre-training run has no task


def run_tasks(result: dict) -> dict[str, dict]:
    """Return {name: fields of Task} for the tasks that a run was trained on, from its result.json."""
    if not result:
        return {}
    task = result["settings"]["task"]
    name = (result.get("arguments", {}).get("task") or "stsb").partition(":")[0]
    return task.get("subtasks") or {name: task}


def trained_objective(args: Namespace, task: Task, width: int, run: dict, name: str) -> nn.Module | None:
    """Return the objective of a task, with the head that the run trained; None if the task has no objective.

    width: number of dimensions of the embeddings. run: as returned by load_run_result.
    """
    if not task.objective:
        return None
    task_name = name if len(run_tasks(run)) > 1 else ""
    objective = load_objective(task, width, Path(args.model), task_name)
    if args.layer is not None and has_head(objective):
        head = f"the head of {task.objective} fits only the layer that it was trained on"
        raise InputError(f"--layer {args.layer}: {head}: remove --layer")
    return objective


def has_head(objective: nn.Module | None) -> bool:
    return objective is not None and bool(list(objective.parameters()))


def trained_threshold(args: Namespace, run: dict, name: str) -> float | None:
    """Return the threshold that the run chose on dev; None without one, or if other embeddings are scored."""
    if name not in run_tasks(run) or args.layer is not None or is_training_free(args):
        return None
    dev = run["dev"]["tasks"][name] if len(run_tasks(run)) > 1 else run["dev"]
    return dev.get("threshold")
