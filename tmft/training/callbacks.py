"""Callbacks: what happens at certain times of the training loop, and is not the method.

The names and times are those of transformers' TrainerCallback:

    on_train_begin         once, before the first epoch
    on_epoch_begin         before the first step, inside `with occurring`, the model in training mode
    on_substep_end         after the backward pass of one batch; a step has one batch for each task
    on_pre_optimizer_step  all gradients of the step are there, not yet clipped
    on_step_end            after the optimizer step
    on_epoch_end           after the last step, still inside `with occurring`, before the evaluation on dev
    on_evaluate            dev was scored, and the caller has had the epoch's result
    on_train_end           once, at the end, after an error, too

They are called in the order in which they are given.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tmft.device import progress_bar
from tmft.errors import InputError
from tmft.training.embed import Batch
from tmft.training.loop_state import LoopContext

LOG_EVERY = 20  # steps between two looks at the loss; each look makes a GPU wait


class Callback:
    """Does nothing; override the times that matter. `loop` has everything that the loop works with."""

    def on_train_begin(self, loop: LoopContext) -> None: ...
    def on_epoch_begin(self, loop: LoopContext) -> None: ...
    def on_substep_end(self, loop: LoopContext, batch: Batch) -> None: ...
    def on_pre_optimizer_step(self, loop: LoopContext) -> None: ...
    def on_step_end(self, loop: LoopContext) -> None: ...
    def on_epoch_end(self, loop: LoopContext) -> None: ...
    def on_evaluate(self, loop: LoopContext) -> None: ...
    def on_train_end(self, loop: LoopContext) -> None: ...

    def state_dict(self) -> dict:
        """What a resumed run needs of it: tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict) -> None: ...


class CallbackList:
    """Calls each callback in turn."""

    def __init__(self, callbacks: Sequence[Callback], loop: LoopContext):
        self.callbacks, self.loop = list(callbacks), loop
        loop.callbacks = self

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)

    def __getattr__(self, event: str):
        """on_step_end and so on: call the method of this name of each callback."""
        if not event.startswith("on_"):
            raise AttributeError(event)

        def call(*arguments) -> None:
            for callback in self.callbacks:
                getattr(callback, event)(self.loop, *arguments)

        return call


class ProgressBar(Callback):
    """A bar for each epoch, with the mean loss so far, on stderr while that is a terminal."""

    bar = None

    def on_epoch_begin(self, loop: LoopContext) -> None:
        self.bar = progress_bar(
            loop.steps.num_examples,
            "examples",
            desc=f"epoch {loop.state.epoch}",
            initial=loop.state.num_examples,
        )

    def on_step_end(self, loop: LoopContext) -> None:
        self.bar.update(loop.state.num_examples - self.bar.n)
        if loop.steps.step % LOG_EVERY == 0:
            loss = loop.state.total_loss.item() / loop.state.num_examples
            self.bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)

    def on_epoch_end(self, loop: LoopContext) -> None:
        self.bar.close()

    def on_train_end(self, loop: LoopContext) -> None:
        if self.bar is not None:
            self.bar.close()


class DivergedError(InputError):
    """The loss is infinite or not a number."""


def divergence_error(name: str, loss: Tensor, where: str, kept: str = "") -> DivergedError:
    """The error of a loss that is not finite. name: of the loss; where: epoch or step; kept: what is left of
    the run, in words that end with '; '."""
    remedy = f"{kept}try a lower lr, or precision fp32"
    return DivergedError(f"{name} is {loss.item()} ({where}): {remedy}", "lr", "precision")


class StopIfDiverged(Callback):
    """Raises DivergedError if the loss is not finite: every LOG_EVERY steps, and after each epoch."""

    def on_step_end(self, loop: LoopContext) -> None:
        if loop.steps.step % LOG_EVERY == 0:
            self.on_epoch_end(loop)

    def on_epoch_end(self, loop: LoopContext) -> None:
        state = loop.state
        if not torch.isfinite(state.total_loss):
            where = f"epoch {state.epoch}, by example {state.num_examples}"
            kept = "the best epoch before it is kept; " * (state.epoch > 1)
            raise divergence_error("the loss", state.total_loss, where, kept)
