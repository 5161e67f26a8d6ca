"""Several tasks at once: which batches a step has, and one score for all.

A MultiTask has the members of a TrainingTask that the training loop uses.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import torch
from torch import nn

from tmft.data import batches
from tmft.losses.registry import OBJECTIVES
from tmft.metrics import METRICS, correlation_metrics
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import OVERALL, Task
from tmft.training.embed import Embed
from tmft.training.task import EpochSteps, EvalOutput, TrainingTask

# ----------------------------------------------------------------------------------------- steps of an epoch

Batches = Sequence[list[list[int]]]  # of each task: its batches, lists of indices of examples
StepPlan = list[list[tuple[int, list[int]]]]  # of each step: the index of a task, and indices of its examples


def joint(task_batches: Batches, stopping: Callable, generator: torch.Generator) -> StepPlan:
    """Every step has one batch of each task. stopping: `min` ends the epoch when the smallest data set is
    exhausted, `max` when the largest is; the others are then repeated."""
    num_steps = stopping(map(len, task_batches))
    return [
        [(task, own_batches[step % len(own_batches)]) for task, own_batches in enumerate(task_batches)]
        for step in range(num_steps)
    ]


def round_robin(task_batches: Batches, stopping: Callable, generator: torch.Generator) -> StepPlan:
    """The same batches, each in a step of its own: the tasks alternate."""
    return [[batch] for step in joint(task_batches, stopping, generator) for batch in step]


def sequential(task_batches: Batches, stopping: Callable, generator: torch.Generator) -> StepPlan:
    """All batches of the first task, then all of the next one."""
    return [[(task, batch)] for task, own_batches in enumerate(task_batches) for batch in own_batches]


def proportional(task_batches: Batches, stopping: Callable, generator: torch.Generator) -> StepPlan:
    """All batches of all tasks in a random order: a task has as many steps as it has batches."""
    steps = sequential(task_batches, stopping, generator)
    return [steps[index] for index in torch.randperm(len(steps), generator=generator).tolist()]


TASK_SAMPLING = {
    "joint": joint,
    "round-robin": round_robin,
    "sequential": sequential,
    "proportional": proportional,
}
STOPPING_STRATEGIES = {"first_exhausted": min, "all_exhausted": max}


# ------------------------------------------------------------------------------------------------- the tasks


class MultiTask:
    """Several tasks that are trained at once.

    tasks: by name. sampling: an entry of TASK_SAMPLING; stopping: of STOPPING_STRATEGIES, for the samplings
    joint and round-robin.
    """

    selection_metric = OVERALL

    def __init__(
        self, tasks: dict[str, TrainingTask], sampling: str = "joint", stopping: str = "first_exhausted"
    ):
        self.tasks = tasks
        self.sampling, self.stopping = TASK_SAMPLING[sampling], STOPPING_STRATEGIES[stopping]

    @property
    def objectives(self) -> list[nn.Module]:
        return [task.objective for task in self.tasks.values()]

    def tokenize(self, model: SentenceEncoder) -> None:
        for task in self.tasks.values():
            task.tokenize(model)

    @property
    def train_token_ids(self) -> Iterable[Sequence[int]]:
        return chain.from_iterable(task.train_token_ids for task in self.tasks.values())

    @property
    def dev_token_ids(self) -> Iterable[Sequence[int]]:
        return chain.from_iterable(task.dev_token_ids for task in self.tasks.values())

    def steps(self, batch_size: int, seed: int) -> EpochSteps:
        """The steps of an epoch, each with a batch of one task or of all, as the sampling has it."""
        tasks = list(self.tasks.values())

        def plan(generator: torch.Generator) -> list[list]:
            task_batches = [list(batches(task.num_examples, batch_size, generator)) for task in tasks]
            steps = self.sampling(task_batches, self.stopping, generator)
            return [[(tasks[index], indices) for index, indices in step] for step in steps]

        return EpochSteps(plan, seed)

    def evaluate(self, embed: Embed, split: str, dev_metrics: dict | None = None) -> EvalOutput:
        """Metrics of a split: {"pairs": examples of all tasks, "overall": one score for all, "tasks": {name:
        the metrics of that task}}. dev_metrics: what this function returned for dev."""
        of_dev = (dev_metrics or {}).get("tasks", {})
        outputs = {
            name: task.evaluate(embed, split, of_dev.get(name, {})) for name, task in self.tasks.items()
        }
        metrics = {name: output.metrics for name, output in outputs.items()}
        scores = [(task.selection_metric, metrics[name]) for name, task in self.tasks.items()]
        return EvalOutput(
            {
                "pairs": sum(of_task["pairs"] for of_task in metrics.values()),
                OVERALL: overall((metric, of_task[metric]) for metric, of_task in scores),
                "tasks": metrics,
            },
            {
                name: prediction
                for output in outputs.values()
                for name, prediction in output.predictions.items()
            },
        )


def overall(scores: Iterable[tuple[str, float]]) -> float:
    """The mean of task scores, given as (name of the metric, value).

    A correlation r counts as (1 + r) / 2, all others as they are. With one task of each kind this equals the
    overall score of the default project of the course CS 224N (inferred from published reports).
    """
    values = [(1 + value) / 2 if METRICS[name] is correlation_metrics else value for name, value in scores]
    return sum(values) / len(values)


def make_training_tasks(
    task: Task, width: int, examples: dict, loss_weights: Sequence[float] | None = None
) -> dict[str, TrainingTask]:
    """A TrainingTask with a new objective for each subtask of a task, by name ("" if there is only one).

    width: numbers in an embedding; examples: name of a subtask -> split -> Examples.
    """
    loss_weights = loss_weights or [1.0] * len(task.tasks_by_name)
    return {
        name: TrainingTask(
            subtask, OBJECTIVES[subtask.objective](width, subtask), examples[name], weight, name
        )
        for (name, subtask), weight in zip(task.tasks_by_name.items(), loss_weights, strict=True)
    }
