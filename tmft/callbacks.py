"""Callbacks: code that the training loop calls at certain times, such as progress bar and checkpoints.

LoopState is everything that a callback may read or change: results, counters and the best weights.
The methods of a callback have the names of transformers' TrainerCallback; each method of `Callback` says when
it is called. Several callbacks are called in the order in which they were given to `fit`.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tmft.device import progress_bar
from tmft.errors import InputError
from tmft.optimizers import TrainedWeights
from tmft.training_task import Batch, Embedder, EpochSteps

LOG_EVERY = 20  # steps between two readings of the loss; the CPU waits for the GPU at each of them


class Stateful(Protocol):
    """Any object with a state that can be saved, such as an optimizer."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


@dataclass
class EpochResult:
    """The result of one epoch. Scores are raw, in [-1, 1], not x 100."""

    epoch: int  # counted from 1
    loss: float  # mean over the training examples
    dev: dict[str, Any]  # metrics on dev by name, among them the one that selects the epoch
    is_best: bool  # whether dev is better than in every epoch before, or undefined as in all of them
    lr: float  # learning rate after the last step
    pairs_per_second: float  # training examples per second, without the evaluation
    seconds: float  # with the evaluation on dev
    # "task, task" -> cosines of their gradients, means over 20 steps each; {} if they are not logged
    gradient_cosines: dict[str, list[float]] = field(default_factory=dict)


class BestWeights:
    """Keeps a copy of a module's weights from the time when its metric was highest.

    Before the first `update`, the copy has the weights that the module had at the start. It is overwritten in
    place: of a large table of word embeddings there are never two copies.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self.metric: float | None = None
        self.weights: dict[str, Tensor] = {
            name: weight.detach().clone() for name, weight in module.state_dict().items()
        }

    def update(self, metric: float) -> bool:
        """Copy the current weights if the metric is higher than in all calls before; return whether it is.

        NaN, the correlation if all embeddings are equal, counts as lower than every number. Of nothing but
        NaN the last weights are kept, as nothing speaks for those before.
        """
        metric = -math.inf if math.isnan(metric) else metric
        is_best = self.metric is None or metric > self.metric or metric == -math.inf == self.metric
        if is_best:
            self.metric = metric
            for name, weight in self.module.state_dict().items():
                self.weights[name].copy_(weight)
        return is_best

    def restore(self) -> None:
        """Load the best weights into the module."""
        self.module.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        return {"metric": self.metric, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.metric, self.weights = state["metric"], state["weights"]
        self.restore()


@dataclass(kw_only=True)
class LoopState:
    """Everything in the training loop that a callback may read or change.

    It counts what has been done in the epoch in progress, and keeps the results of the finished epochs.
    optimizer, scheduler, scaler: those of torch.
    """

    weights: TrainedWeights  # of the model and the objectives
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    scaler: torch.amp.GradScaler
    steps: EpochSteps  # iterating gives the steps of one epoch, each a list of batches
    embed: Embedder  # computes the embeddings of a batch
    best_weights: BestWeights  # those of the best epoch so far
    callbacks: Sequence["Callback"]  # called in this order; a checkpoint saves their states
    finished_epochs: list[EpochResult] = field(default_factory=list)
    train_seconds: float = 0.0  # of the steps of the epoch in progress, without the evaluation

    def __post_init__(self) -> None:
        self.reset_counters()

    def reset_counters(self) -> None:
        """Begin to count an epoch; the total loss is on the device, so that no step waits for its value."""
        self.num_examples, self.seconds = 0, 0.0
        self.total_loss = torch.zeros((), device=self.embed.device)
        self.gradient_cosines: dict[str, list[float]] = {}

    def call(self, event: str, *arguments: object) -> None:
        """Call the method `event`, such as "on_step_end", of each callback."""
        for callback in self.callbacks:
            getattr(callback, event)(self, *arguments)

    @property
    def epoch(self) -> int:
        """The number of the epoch in progress, counted from 1."""
        return len(self.finished_epochs) + 1

    def begin_epoch(self) -> None:
        """Start the clock; an epoch that is resumed starts with the seconds that it took before."""
        self.start = time.perf_counter() - self.seconds

    def add_loss(self, loss: Tensor, num_examples: int) -> None:
        """Add the loss of a batch, its mean over num_examples, to the total of the epoch."""
        self.total_loss = self.total_loss + loss.detach() * num_examples
        self.num_examples += num_examples

    def seconds_in_epoch(self) -> float:
        """Return the seconds since the epoch began."""
        return time.perf_counter() - self.start

    def stop_clock(self) -> None:
        """Store how long the training steps took; to be called before the evaluation on dev."""
        self.train_seconds = self.seconds_in_epoch()

    def finish_epoch(self, dev: dict[str, Any], is_best: bool) -> EpochResult:
        """Append the EpochResult of the epoch in progress to finished_epochs and return it; count anew."""
        result = EpochResult(
            epoch=self.epoch,
            loss=self.total_loss.item() / self.num_examples,
            dev=dev,
            is_best=is_best,
            lr=float(self.scheduler.get_last_lr()[0]),
            pairs_per_second=self.num_examples / self.train_seconds,
            seconds=self.seconds_in_epoch(),
            gradient_cosines=self.gradient_cosines,
        )
        self.finished_epochs.append(result)
        self.reset_counters()
        return result


class Callback:
    """Base class of callbacks, whose methods do nothing; a subclass overrides those that it needs.

    state: everything that the training loop works with. batch: the one whose backward pass has ended.
    """

    def on_train_begin(self, state: LoopState) -> None:
        """Called once, before the first epoch."""

    def on_epoch_begin(self, state: LoopState) -> None:
        """Called before the first step, with the occurring words only; the model is in training mode."""

    def on_substep_end(self, state: LoopState, batch: Batch) -> None:
        """Called after the backward pass of one batch; a step has one batch for each task."""

    def on_pre_optimizer_step(self, state: LoopState) -> None:
        """Called when the step has all its gradients, before they are clipped."""

    def on_step_end(self, state: LoopState) -> None:
        """Called after the optimizer step."""

    def on_epoch_end(self, state: LoopState) -> None:
        """Called after the last step, with the occurring words only, before the evaluation on dev."""

    def on_evaluate(self, state: LoopState) -> None:
        """Called after dev was scored and the caller of `fit` has received the epoch's result."""

    def on_train_end(self, state: LoopState) -> None:
        """Called once, at the end, also after an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on, as tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`, which `state_dict` has returned."""


class ProgressBar(Callback):
    """Shows a progress bar with the mean loss for each epoch, on stderr, if that is a terminal."""

    bar = None

    def on_epoch_begin(self, state: LoopState) -> None:
        self.bar = progress_bar(
            state.steps.num_examples,
            "examples",
            desc=f"epoch {state.epoch}",
            initial=state.num_examples,
        )

    def on_step_end(self, state: LoopState) -> None:
        assert self.bar is not None  # on_epoch_begin has made it
        self.bar.update(state.num_examples - self.bar.n)
        if state.steps.step % LOG_EVERY == 0:
            loss = state.total_loss.item() / state.num_examples
            self.bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)

    def on_epoch_end(self, state: LoopState) -> None:
        self.on_train_end(state)

    def on_train_end(self, state: LoopState) -> None:
        if self.bar is not None:
            self.bar.close()


class DivergedError(InputError):
    """Raised if the loss is infinite or not a number."""


class StopIfDiverged(Callback):
    """Raises DivergedError if the loss is not finite; looks every LOG_EVERY steps and after each epoch."""

    def on_step_end(self, state: LoopState) -> None:
        if state.steps.step % LOG_EVERY == 0:
            self.on_epoch_end(state)

    def on_epoch_end(self, state: LoopState) -> None:
        if not torch.isfinite(state.total_loss):
            where = f"epoch {state.epoch}, by example {state.num_examples}"
            kept = "the best epoch before it is kept; " * (state.epoch > 1)
            problem = f"the loss is {state.total_loss.item()} ({where})"
            raise DivergedError(f"{problem}: {kept}try a lower lr, or precision fp32", "lr", "precision")
