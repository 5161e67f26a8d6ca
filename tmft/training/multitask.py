"""Training on several tasks at once: which tasks have a batch in each step, and one score for all tasks.

To the training loop a MultiTask is a TrainingTask: it answers by asking the tasks in it.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from tmft.data import shuffle_into_batches
from tmft.loss import Objective
from tmft.losses.objectives import OBJECTIVES
from tmft.metrics import METRICS, correlation_metrics
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import OVERALL, Task
from tmft.training_task import Embedder, EvalOutput, TrainingTask

# ----------------------------------------------------------------------------------------- steps of an epoch

# A sampling takes the batches of each task and returns the steps of one epoch. A batch has the indices of its
# examples; a step is a list of (index of a task, batch). progress: (number of the epoch, number of epochs).
# An epoch has as many batches of each task as the smallest data set.
Batches = Sequence[Sequence[Tensor]]
StepPlan = list[list[tuple[int, Tensor]]]


def plan_joint(task_batches: Batches, progress: tuple[int, int]) -> StepPlan:
    """Return steps with one batch of every task each, whose gradients are summed."""
    return [list(enumerate(batches)) for batches in zip(*task_batches, strict=False)]


def plan_sequential(task_batches: Batches, progress: tuple[int, int]) -> StepPlan:
    """Return steps with a single batch, over the whole run first those of one task, then those of the next.

    In all its epochs a run has as many batches of each task as with plan_joint; here all those of the first
    task come before those of the second. An epoch is a part of that order, as long as every other epoch.
    """
    (epoch, epochs), num_tasks, num_batches = progress, len(task_batches), min(map(len, task_batches))
    positions = range(epoch * num_tasks * num_batches, (epoch + 1) * num_tasks * num_batches)
    tasks = [position // (epochs * num_batches) for position in positions]
    return [
        [(task, task_batches[task][position % num_batches])]
        for task, position in zip(tasks, positions, strict=True)
    ]


TASK_SAMPLING = {"joint": plan_joint, "sequential": plan_sequential}


# ------------------------------------------------------------------------------------------------- the tasks


class MultiTask(TrainingTask):
    """Several tasks that are trained at once, as one TrainingTask.

    tasks: name -> TrainingTask.
    sampling: an entry of TASK_SAMPLING, which decides from which tasks each step takes its batches.
    epochs: number of epochs of the run, which sequential sampling divides among the tasks.
    """

    sampling: Callable[[Batches, tuple[int, int]], StepPlan]

    def __init__(self, tasks: dict[str, TrainingTask], sampling: str = "joint", epochs: int = 1):
        self.tasks, self.epochs = tasks, epochs
        self.sampling = TASK_SAMPLING[sampling]

    @property
    def selection_metric(self) -> str:
        """Name of the score over all tasks, whose value on dev selects the best epoch."""
        return OVERALL

    @property
    def objectives(self) -> list[Objective]:
        """The objectives of all tasks; their weights, if they have any, are trained with the encoder."""
        return [task.objective for task in self.tasks.values()]

    def tokenize(self, model: SentenceEncoder) -> None:
        """Tokenize the sentences of train and dev of all tasks once, for all epochs."""
        for task in self.tasks.values():
            task.tokenize(model)

    def token_ids(self, split: str) -> Iterable[Sequence[int]]:
        """Return the token ids of all sentences of train or dev, of all tasks."""
        return chain.from_iterable(task.token_ids(split) for task in self.tasks.values())

    def plan_steps(self, batch_size: int, generator: torch.Generator, epoch: int = 0) -> list[list[Any]]:
        """Draw the steps of an epoch; the sampling decides of which tasks a step has batches."""
        tasks = list(self.tasks.values())
        task_batches = [shuffle_into_batches(task.num_examples, batch_size, generator) for task in tasks]
        steps = self.sampling(task_batches, (epoch, self.epochs))
        return [[(tasks[index], indices) for index, indices in step] for step in steps]

    def evaluate(self, embed: Embedder, split: str, dev_metrics: dict[str, Any] | None = None) -> EvalOutput:
        """Evaluate all tasks on a split.

        dev_metrics: the metrics that this method returned for dev, if `split` is test. They have the decision
            thresholds of tasks whose metric is F1: a threshold is chosen on dev, never on test.
        Returns the metrics {"pairs": number of examples of all tasks, "overall": one score for all tasks, see
        `average_scores`, "tasks": {name: metrics of the task}}, and the predictions of every task by name.
        """
        dev_metrics_by_task = (dev_metrics or {}).get("tasks", {})
        outputs = {
            name: task.evaluate(embed, split, dev_metrics_by_task.get(name, {}))
            for name, task in self.tasks.items()
        }
        metrics = {name: output.metrics for name, output in outputs.items()}
        scores = [
            (task.selection_metric, metrics[name][task.selection_metric]) for name, task in self.tasks.items()
        ]
        return EvalOutput(
            {
                "pairs": sum(task_metrics["pairs"] for task_metrics in metrics.values()),
                OVERALL: average_scores(scores),
                "tasks": metrics,
            },
            {
                name: prediction
                for output in outputs.values()
                for name, prediction in output.predictions.items()
            },
        )


def average_scores(scores: Iterable[tuple[str, float]]) -> float:
    """Return the mean of the scores of several tasks, each given as (name of its metric, value).

    A correlation r counts as (1 + r) / 2, so that it is in [0, 1] like the other metrics.
    With one task of each kind this equals the overall score of the default project of the course CS 224N
    (inferred from published reports).
    """
    values = [(1 + value) / 2 if METRICS[name] is correlation_metrics else value for name, value in scores]
    return sum(values) / len(values)


def make_training_tasks(
    task: Task, width: int, examples: dict[str, Any], loss_weights: Sequence[float] | None = None
) -> dict[str, TrainingTask]:
    """Make a TrainingTask, with a new objective for embeddings of this width, for each subtask, by name."""
    loss_weights = loss_weights or [1.0] * len(task.tasks_by_name)
    return {
        name: TrainingTask(
            subtask, OBJECTIVES[subtask.objective](width, subtask), examples[name], weight, name
        )
        for (name, subtask), weight in zip(task.tasks_by_name.items(), loss_weights, strict=True)
    }
