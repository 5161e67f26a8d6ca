"""A run that was stopped goes on where it was: all that it needs lies in one file beside its model.

The file is written between two steps, now and then and when somebody asks the run to stop (Ctrl-C, SIGTERM).
What continues from it ends with the same bits as a run that was never stopped.
"""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn

from tmft.device import get_rng_state, set_rng_state
from tmft.distributed import Processes
from tmft.errors import InputError
from tmft.io.atomic import reason, write_file

FILE = "state.pt"
SAVE_AFTER = 300.0  # seconds from one state to the next: what a crash costs
AGREE_EVERY = 20  # steps; several processes ask each other whether to write


class State:
    """`with state:` a wish to stop waits for the end of the step, a second one does not.

    path: of the file; None: nothing is ever written. settings: all that the run depends on. processes: they
    share the run; the first one reads and writes.
    """

    def __init__(
        self, path: Path | None = None, settings: dict | None = None, processes: Processes | None = None
    ):
        self.path, self.settings, self.processes = path, settings, processes
        self.parts, self.best = (), None
        self.asked, self.written = False, time.monotonic()
        self.content = self.load() if path and processes.rank == 0 else {}

    def load(self) -> dict:
        """What the file holds, {} if there is none; nothing of it is run as code."""
        if not self.path.is_file():
            return {}
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
            kinds = {"settings": dict, "place": list | tuple, "parts": list, "streams": list}
            if all(isinstance(content.get(key), kind) for key, kind in kinds.items()):
                return content
            error = "it is of another version of this code"
        except Exception as failure:  # whatever is in it
            error = reason(failure)
        raise InputError(f"{self.path} cannot be read ({error}): remove it to start anew") from None

    def read(self, *parts, best: "Best | None" = None) -> list:
        """What was given to write(), [] for a new run. parts: all that have a state_dict; they stay as they
        are until take_up(). best: is given what the file has of it now, and gives it to the model."""
        self.parts, self.best = parts, best
        if self.processes:
            self.content = self.processes.broadcast_object(self.content)
        if self.content and best:
            with self.understood():
                best.load_state_dict(self.content["best"])
        return self.content.get("place", [])

    def take_up(self) -> None:
        """Give the parts what the file has of them; once."""
        if self.content:
            with self.understood():
                for part, own in zip(self.parts, self.content["parts"], strict=True):
                    part.load_state_dict(own)
                streams = self.content["streams"][self.processes.rank]
                set_rng_state(self.processes.device, streams)
        self.content = {}

    @contextmanager
    def understood(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # an optimizer says what it misses in many ways
            what = f"{self.path} is not the state of this run ({reason(error)})"
            raise InputError(f"{what}: remove it to start anew") from None

    def due(self, step: int = 0) -> bool:
        """Whether to write now; all processes agree on it. step: of an epoch."""
        if self.path is None:
            return False
        late = time.monotonic() - self.written >= SAVE_AFTER
        if self.processes.world_size == 1:
            return late or self.asked
        return step % AGREE_EVERY == 0 and any(self.processes.all_gather_object(late or self.asked))

    def write(self, *place) -> None:
        """Write the state of all parts, and plain values that tell where the run is. Raises KeyboardInterrupt
        if somebody asked to stop."""
        streams = self.processes.all_gather_object(get_rng_state(self.processes.device))
        if self.processes.rank == 0:
            parts = [part.state_dict() for part in self.parts]
            content = {"settings": self.settings, "place": place, "parts": parts, "streams": streams}
            if self.best:
                content["best"] = self.best.state_dict()
            write_file(self.path, lambda path: save(content, path))
        self.written = time.monotonic()
        if any(self.processes.all_gather_object(self.asked)):
            self.asked = False
            raise KeyboardInterrupt(f"{self.path.parent} is saved, the same command goes on from here")

    def remove(self) -> None:
        """There is nothing to go on with."""
        if self.path and self.processes.rank == 0:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "State":
        self.before = {}
        if self.path and threading.current_thread() is threading.main_thread():  # others hear no signals
            self.before = {n: signal.signal(n, self.note) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self.processes.rank == 0:
            print("\nstopping after this step; once more: at once", flush=True)

    def __exit__(self, kind, *error) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.asked and kind is None:
            raise KeyboardInterrupt


def save(content: dict, path: Path) -> None:
    try:
        torch.save(content, path)
    except RuntimeError as error:  # in such words torch tells of a full disk
        raise OSError(f"is the disk full? {reason(error)}") from None


class Best:
    """The weights of the best epoch so far."""

    def __init__(self, model: nn.Module):
        self.model, self.metric = model, None
        self.weights = copy_weights(model)

    def take(self, metric: float) -> bool:
        """Whether the weights are better now, by their score, than all before; then they are kept. NaN, from
        embeddings that are all equal, is worse than all others."""
        metric = -math.inf if math.isnan(metric) else metric
        better = self.metric is None or metric > self.metric
        if better:
            self.metric, self.weights = metric, copy_weights(self.model)
        return better

    def give_back(self) -> None:
        self.model.load_state_dict(self.weights)

    def state_dict(self) -> dict:
        return {"metric": self.metric, "weights": self.weights}

    def load_state_dict(self, state: dict) -> None:
        self.metric, self.weights = state["metric"], state["weights"]
        self.give_back()


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}
