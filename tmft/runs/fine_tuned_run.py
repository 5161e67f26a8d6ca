"""What a fine-tuning run has trained: its tasks, heads and decision thresholds, read from its folder."""

from pathlib import Path
from typing import Any

from tmft.checkpoints.hub import is_hub_id
from tmft.checkpoints.model_folder import ModelFolder
from tmft.datasets.task_lookup import get_task
from tmft.io.files import is_file
from tmft.losses.objective import Objective
from tmft.runs.result_schema import RESULT_FILE, read_result
from tmft.runs.run_result import load_objective
from tmft.tasks import Task


class FineTunedRun:
    """The fine-tuning run in the folder of a model. A model that no run has trained has no result, no tasks.

    Raises InputError if `model` is a path and no folder of a model, before anything else is read for it.
    result: the content of result.json, {} without one.
    task_settings: {name of a task: {field of Task: value}}.
    """

    def __init__(self, model: str):
        if not is_hub_id(model):
            ModelFolder.open(model)
        self.folder = Path(model)
        result = read_result(self.folder) if is_file(self.folder / RESULT_FILE) else {}
        self.result: dict[str, Any] = result if "test" in result else {}  # a pre-training run has no task
        self.arguments: dict[str, Any] = self.result.get("arguments", {})
        self.task_settings: dict[str, dict[str, Any]] = {}
        if self.result:
            task = self.result["settings"]["task"]
            name = (self.arguments.get("task") or "stsb").partition(":")[0]
            self.task_settings = task.get("subtasks") or {name: task}

    def tasks(
        self, data_root: str | None = None, score_range: tuple[float, float] | None = None
    ) -> dict[str, Task]:
        """Return {name: Task}, each with the objective, metric, hyperparameters and data of the run.

        data_root, score_range: replace those of the run.
        """
        data = self.arguments.get("data")
        data_root = data_root or self.arguments.get("data_root")
        score_range = score_range or self.arguments.get("score_range")
        tasks = {}
        for name, task in self.task_settings.items():
            settings = task["objective"], task["metric"], task.get("objective_args")
            tasks[name] = get_task(name, data, data_root, score_range, *settings)
        return tasks

    def load_objective(self, name: str, task: Task, width: int) -> Objective:
        """Return the objective of a task for embeddings of this width, with the head that the run trained."""
        return load_objective(task, width, self.folder, name if len(self.task_settings) > 1 else "")

    def threshold(self, name: str) -> float | None:
        """Return the threshold on the cosine that the run chose for a task on dev; None if there is none."""
        if name not in self.task_settings:
            return None
        dev = self.result["dev"]
        return (dev["tasks"][name] if len(self.task_settings) > 1 else dev).get("threshold")
