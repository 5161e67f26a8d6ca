"""The interface of an objective: a loss on embeddings, and the predictions that the metric scores."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from tmft.errors import InputError
from tmft.tasks import Task


def check_temperature(temperature: float) -> None:
    """Raise InputError unless a divisor of similarities is above 0 and at most 10."""
    if not 0 < temperature <= 10:
        raise InputError(f"temperature {temperature:g}: choose above 0, up to 10", "temperature")


class Objective(nn.Module):
    """Base class of the entries of OBJECTIVES (tmft/losses/registry.py).

    dimensions: number of dimensions D of the embeddings.
    task: the task to be trained, from which the objective takes classes, range of scores and objective_args.

    Parameters that an objective creates, such as a classification head, are trained together with the encoder
    and saved next to it in the run folder (head.safetensors).

    The class attributes say which tasks the objective fits and how it must be run:

    prediction_type: what `predict` returns for each example: "cosine", "class" (the index of a class),
        "score" (a number in the range of the labels, or the index of one of two classes) or "embedding".
    allowed_num_texts: the numbers of texts that an example may have, such as (2,) for pairs.
    config_class: the dataclass of the objective's hyperparameters, which is created with the task's
        objective_args; None if it has none.
    min_batch_size: the smallest batch for which the loss is meaningful.
    needs_whole_batch: whether the loss compares the examples of a batch with each other. If it does, several
        processes share every batch of a run; otherwise each process trains runs of its own.
    """

    prediction_type: str = "cosine"
    allowed_num_texts: tuple[int, ...] = (2,)
    config_class: Any = None
    min_batch_size: int = 1
    needs_whole_batch: bool = False

    def __init__(self, dimensions: int, task: Task | None):
        super().__init__()

    @property
    def has_head(self) -> bool:
        """Whether it has parameters, which are trained with the encoder."""
        return any(True for _ in self.parameters())

    # The two methods of a subclass. They are declared by their types, because an objective has one parameter
    # for each text of an example: u and v for pairs.

    # Returns the loss of a batch, a scalar. Parameters: one tensor (P, D) for each text of an example, then
    # the target, (P, ...): the labels as `labels_to_targets` converts them.
    forward: Callable[..., Tensor]

    # Returns the predictions for N examples, (N, ...), of the kind that `prediction_type` names. Parameters:
    # one tensor (N, D) for each text of an example, on the CPU.
    predict: Callable[..., np.ndarray]
