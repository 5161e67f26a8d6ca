"""Read from the folder of a fine-tuning run what it has trained: tasks, heads and decision thresholds."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from tmft.checkpoints.hub import is_hub_id
from tmft.checkpoints.model_folder import ModelFolder
from tmft.errors import InputError
from tmft.io.files import is_file
from tmft.losses.objective import Objective
from tmft.runs.result_schema import read_result
from tmft.runs.run_result import load_objective
from tmft.tasks import Task


def load_run_result(model: str) -> dict[str, Any]:
    """Return the content of result.json of a fine-tuning run; {} if `model` is not the folder of one.

    Raises InputError if `model` is a path and no folder of a model, before anything else is read for it.
    """
    if not is_hub_id(model):
        ModelFolder.open(model)
    result = read_result(Path(model)) if is_file(Path(model) / "result.json") else {}
    return result if "test" in result else {}  # a pre-training run has no task


def run_tasks(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return {name: {field of Task: value}} for the tasks that a run was trained on; {} without a result."""
    if not result:
        return {}
    task = result["settings"]["task"]
    name = (result.get("arguments", {}).get("task") or "stsb").partition(":")[0]
    return task.get("subtasks") or {name: task}


def trained_objective(
    args: Namespace, task: Task, width: int, run: dict[str, Any], name: str
) -> Objective | None:
    """Return the objective of a task, with the head that the run has trained; None if it has no objective.

    width: number of dimensions of the embeddings. run: as returned by `load_run_result`.
    """
    if not task.objective:
        return None
    task_name = name if len(run_tasks(run)) > 1 else ""
    objective = load_objective(task, width, Path(args.model), task_name)
    if args.layer is not None and has_head(objective):
        head = f"the head of {task.objective} fits only the layer that it was trained on"
        raise InputError(f"--layer {args.layer}: {head}: remove --layer")
    return objective


def has_head(objective: Objective | None) -> bool:
    """Return whether there is an objective and it has trained parameters."""
    return objective is not None and bool(list(objective.parameters()))


def trained_threshold(args: Namespace, run: dict[str, Any], name: str) -> float | None:
    """Return the threshold on the cosine that the run chose for a task on dev.

    None if there is none, or if --layer changes the embeddings, so that it no longer fits.
    """
    if name not in run_tasks(run) or args.layer is not None:
        return None
    dev = run["dev"]["tasks"][name] if len(run_tasks(run)) > 1 else run["dev"]
    return dev.get("threshold")
