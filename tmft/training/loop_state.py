"""What changes while the loop runs, and what callbacks may see of it."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tmft.training.best_weights import BestWeights


@dataclass
class EpochResult:
    """The result of one epoch. Scores are raw, not x 100; seconds include the evaluation on dev."""

    epoch: int  # counted from 1
    loss: float  # mean over the examples
    dev: dict[str, Any]  # the metric that selects the epoch, and what is reported with it
    is_best: bool  # better on dev than every epoch before
    lr: float  # learning rate after the last step
    pairs_per_second: float
    seconds: float
    # cosines of the gradients of each two tasks, if they are logged: means of some steps each
    gradient_cosines: dict[str, list[float]] = field(default_factory=dict)


class TrainerState:
    """Counters of the epoch in progress, and the results of the finished ones."""

    def __init__(self, device: torch.device):
        self.finished_epochs: list[EpochResult] = []
        self.gradient_cosines: dict[str, list[float]] = {}  # of the epoch in progress
        self.zero = torch.zeros((), device=device)
        self.reset()

    def reset(self) -> None:
        """Set the counters to those of an epoch that has not begun."""
        self.num_examples, self.total_loss, self.seconds = 0, self.zero, 0.0

    @property
    def epoch(self) -> int:
        """The number of the epoch in progress, from 1."""
        return len(self.finished_epochs) + 1

    def begin_epoch(self) -> None:
        """Start the clock; a resumed epoch goes on from the seconds that it had."""
        self.start = time.perf_counter() - self.seconds

    def add_loss(self, loss: Tensor, num_examples: int) -> None:
        """Count a batch. The sum of the losses stays on the device, so that no step waits for it."""
        self.total_loss = self.total_loss + loss.detach() * num_examples
        self.num_examples += num_examples

    def elapsed(self) -> float:
        """Seconds since the epoch began."""
        return time.perf_counter() - self.start

    def stop_clock(self) -> None:
        """Note how long the steps of the epoch took, without the evaluation on dev."""
        self.train_seconds = self.elapsed()

    def finish_epoch(self, dev: dict, is_best: bool, lr: float) -> EpochResult:
        """Append the result of the epoch and reset the counters for the next one."""
        result = EpochResult(
            epoch=self.epoch,
            loss=self.total_loss.item() / self.num_examples,
            dev=dev,
            is_best=is_best,
            lr=lr,
            pairs_per_second=self.num_examples / self.train_seconds,
            seconds=self.elapsed(),
            gradient_cosines=self.gradient_cosines,
        )
        self.finished_epochs.append(result)
        self.gradient_cosines = {}
        self.reset()
        return result


@dataclass
class LoopContext:
    """Everything of the training loop that a callback may read or change."""

    state: TrainerState
    trainable: nn.ModuleList  # the model and the objectives
    encoder_parameters: list[nn.Parameter]  # trained weights that all tasks share, inside `with occurring`
    occurring: Any  # context manager: only word embeddings that occur
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    scaler: torch.amp.GradScaler
    steps: Iterable  # iterating gives the steps of one epoch, each a list of batches
    embed: Any
    best_weights: BestWeights
    callbacks: Any = None  # the CallbackList itself, whose members may have state, too
