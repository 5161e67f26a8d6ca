"""Callbacks: code that the training loop calls at certain times, such as progress bar and checkpoints.

The methods have the names of transformers' TrainerCallback; each method of `Callback` says when it is called.
Several callbacks are called in the order in which they were given to `fit`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tmft.device import progress_bar
from tmft.errors import InputError
from tmft.training.loop_state import LoopState
from tmft.training.task import Batch

LOG_EVERY = 20  # steps between two readings of the loss; the CPU waits for the GPU at each of them


class Callback:
    """Base class of callbacks, whose methods do nothing; a subclass overrides those that it needs.

    state: everything that the training loop works with. batch: the one whose backward pass has ended.
    """

    def on_train_begin(self, state: LoopState) -> None:
        """Called once, before the first epoch."""

    def on_epoch_begin(self, state: LoopState) -> None:
        """Called before the first step, inside `with weights`; the model is in training mode."""

    def on_substep_end(self, state: LoopState, batch: Batch) -> None:
        """Called after the backward pass of one batch; a step has one batch for each task."""

    def on_pre_optimizer_step(self, state: LoopState) -> None:
        """Called when the step has all its gradients, before they are clipped."""

    def on_step_end(self, state: LoopState) -> None:
        """Called after the optimizer step."""

    def on_epoch_end(self, state: LoopState) -> None:
        """Called after the last step, inside `with weights`, before the evaluation on dev."""

    def on_evaluate(self, state: LoopState) -> None:
        """Called after dev was scored and the caller of `fit` has received the epoch's result."""

    def on_train_end(self, state: LoopState) -> None:
        """Called once, at the end, also after an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on, as tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`, which `state_dict` has returned."""


class CallbackList:
    """Passes each call, such as `on_step_end()`, on to all callbacks, in order.

    state: the argument of each call.
    """

    def __init__(self, callbacks: Sequence[Callback], state: LoopState):
        self.callbacks, self.state = list(callbacks), state
        state.callbacks = self

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)

    def __getattr__(self, event: str) -> Callable[..., None]:
        """Return a function that calls the method `event`, such as "on_step_end", of each callback."""
        if not event.startswith("on_"):
            raise AttributeError(event)

        def call(*arguments) -> None:
            for callback in self.callbacks:
                getattr(callback, event)(self.state, *arguments)

        return call


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
