"""Saving the state of a run and resuming it: one file next to the model has all that a run needs to go on.

The file, state.pt, holds weights, optimizer, schedule, position in the data and random states. It is written
between two steps: every five minutes, and when the run is asked to stop (Ctrl-C, SIGTERM). A resumed run ends
with exactly the same bits as an uninterrupted one.
"""

import signal
import threading
import time
import zlib
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from tmft.callbacks import BestWeights, Callback, DivergedError, EpochResult, LoopState, Stateful
from tmft.device import get_rng_state, set_rng_state
from tmft.errors import describe_error, short_repr
from tmft.io.atomic import write_file
from tmft.io.distributed import Processes, single_process
from tmft.io.files import file_state, reading

STATE_FILE = "state.pt"
FORMAT = 1  # number of the form of this file; a file with another number is refused
START_AGAIN = "remove it to start again"
SAVE_INTERVAL = 300.0  # seconds from one save to the next: what a crash costs
SYNC_EVERY = 20  # steps after which several processes agree on whether to save


class TrainingCheckpoint:
    """Reads and writes the file with the state of a run; used by fine-tuning and by pre-training.

    path: the file; if None, nothing is ever written.
    settings: all settings that the run depends on; they are saved in the file.
    processes: the processes that share the run; the first one reads and writes. Needed if there is a path.
    digests: those of the data and the checkpoint that the run reads; they are saved, too.

    The saved settings and digests are in `content`, which is {} if there is no file. They are not compared
    here but by `open_run_folder`, which raises InputError if they differ from those of the run.

    Inside `with checkpoint:` the first Ctrl-C (or SIGTERM) saves the state after the current step and stops;
    several processes do so within SYNC_EVERY steps. The second one stops at once, without saving.
    """

    def __init__(
        self,
        path: Path | None = None,
        settings: dict[str, Any] | None = None,
        processes: Processes | None = None,
        digests: dict[str, Any] | None = None,
    ):
        self.path, self.settings, self.digests = path, settings, digests or {}
        self.processes = processes or single_process(torch.device("cpu"))
        self.stateful: dict[str, Stateful] = {}
        self.has_begun = False  # since `load`; before it there is nothing that could be saved
        self.best: BestWeights | None = None
        self.stop_requested, self.last_save = False, time.monotonic()
        self.content = self.read_file(path) if path and self.processes.rank == 0 else {}

    def read_file(self, path: Path) -> dict[str, Any]:
        """Return the content of the file, or {} if there is none; nothing in the file is run as code."""
        if not file_state(path):
            return {}
        with reading(path, START_AGAIN):
            content = torch.load(path, map_location="cpu", weights_only=True)
            if content["format"] != FORMAT:
                raise ValueError("it was written by another version of this code")
            if content.pop("checksum") != checksum(content):
                raise ValueError("it has changed since it was written")
            content |= {name: dict(content[name]) for name in ("settings", "progress")}
            content["digests"] = {group: dict(files) for group, files in content["digests"].items()}
            return content

    def load(self, stateful: dict[str, Stateful], best: BestWeights | None = None) -> dict[str, Any]:
        """Return the saved progress, the keyword arguments of the last `save`, or {} for a new run.

        The states of the objects are loaded by `restore`, but the best weights at once.
        """
        self.stateful, self.best, self.has_begun = stateful, best, True
        self.content = self.processes.broadcast_object(self.content)
        if self.content and best:
            with reading(self.path, START_AGAIN):
                check_same_form(self.content["best"]["weights"], best.state_dict()["weights"], "best")
                best.load_state_dict(self.content["best"])
        return self.content.get("progress", {})

    def restore(self) -> None:
        """Load the saved states into the objects and random number generators; a second call does nothing."""
        if self.content:
            with reading(self.path, START_AGAIN):
                states = self.content["stateful"]
                for name, part in self.stateful.items():
                    state = states.get(name, {})
                    if isinstance(part, torch.optim.Optimizer):
                        check_optimizer_state(part, state)
                    elif not isinstance(part, Callback):  # of which a state has any number of entries
                        check_same_form(state, part.state_dict(), name)
                    part.load_state_dict(state)
                rng_state = self.content["rng_states"][self.processes.rank]
                set_rng_state(self.processes.device, rng_state)
        self.content = {}

    def should_save(self, step: int = 0) -> bool:
        """Return whether it is time to save; several processes decide together, every SYNC_EVERY steps."""
        if self.path is None:
            return False
        is_time = time.monotonic() - self.last_save >= SAVE_INTERVAL or self.stop_requested
        if self.processes.world_size == 1:
            return is_time
        return step % SYNC_EVERY == 0 and any(self.processes.all_gather_object(is_time))

    def save(self, **progress: Any) -> None:
        """Write the states of all objects given to `load`, and the progress of the run.

        progress: values that say how far the run is; a resumed run gets them from `load`.
        Raises KeyboardInterrupt if the run was asked to stop (Ctrl-C, SIGTERM).
        """
        if self.path is None:
            return
        rng_states = self.processes.all_gather_object(get_rng_state(self.processes.device))
        if self.processes.rank == 0:
            content = {
                "format": FORMAT,
                "settings": self.settings,
                "digests": self.digests,
                "progress": progress,
                "stateful": {name: part.state_dict() for name, part in self.stateful.items()},
                "rng_states": rng_states,
            }
            if self.best:
                content["best"] = self.best.state_dict()
            content["checksum"] = checksum(content)
            write_file(self.path, lambda path: write_state(content, path))
        self.last_save = time.monotonic()
        if any(self.processes.all_gather_object(self.stop_requested)):
            self.stop_requested = False
            raise KeyboardInterrupt(f"{self.path.parent} is saved, the same command resumes it")

    def remove(self) -> None:
        """Delete the file, if there is one: a finished run has nothing to resume."""
        if self.path and self.processes.rank == 0:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "TrainingCheckpoint":
        self.handlers = {}
        in_main_thread = threading.current_thread() is threading.main_thread()  # others get no signals
        if self.path and in_main_thread:
            numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM") if hasattr(signal, name)]
            self.handlers = {number: signal.signal(number, self.on_signal) for number in numbers}
        return self

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Ask the run to stop after this step; at the second signal, or before the first step, raise
        KeyboardInterrupt at once.
        """
        if self.stop_requested or not self.has_begun:
            raise KeyboardInterrupt
        self.stop_requested = True
        if self.processes.rank == 0:
            print("\nstopping after this step; press again to stop at once", flush=True)

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        if error_type is not None and issubclass(error_type, DivergedError):
            self.remove()  # it would diverge again
        if self.stop_requested and error_type is None:
            raise KeyboardInterrupt


def write_state(content: dict[str, Any], path: Path) -> None:
    """Write a state with torch.save; a full disk is an OSError, where torch raises RuntimeError."""
    try:
        torch.save(content, path)
    except RuntimeError as error:
        raise OSError(f"is the disk full? {describe_error(error)}") from None


def checksum(value: Any, before: int = 0) -> int:
    """Return a CRC-32 of nested dicts and lists of tensors and plain values, to find damaged files."""
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
        return zlib.crc32(data, zlib.crc32(f"{value.dtype} {tuple(value.shape)}".encode(), before))
    entries = value.items() if isinstance(value, dict) else value
    if isinstance(value, (dict, list, tuple)):
        for entry in entries:
            before = checksum(entry, before)
        return zlib.crc32(f"{type(value).__name__} {len(value)}".encode(), before)
    return zlib.crc32(repr(value).encode(), before)


def check_same_form(state: Any, expected: Any, place: str) -> None:
    """Raise ValueError unless a state has the keys, the lengths, and the shapes of tensors, of another one.

    torch compares only some of them, and reads or writes outside the memory of a tensor that is too small.
    """
    if isinstance(expected, Tensor):
        if not isinstance(state, Tensor) or (state.shape, state.dtype) != (expected.shape, expected.dtype):
            form = getattr(state, "shape", type(state).__name__)
            raise ValueError(f"{place} is {form}, not {tuple(expected.shape)} {expected.dtype}")
    elif isinstance(expected, (dict, list)):
        if not isinstance(state, type(expected)) or len(state) != len(expected):
            raise ValueError(f"{place} has other entries")
        for key, value in expected.items() if isinstance(expected, dict) else enumerate(expected):
            check_same_form(state[key], value, f"{place} {key}")
    elif not isinstance(state, (int, float) if isinstance(expected, float) else type(expected)):
        raise ValueError(f"{place} is {short_repr(state)}")


def check_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Raise ValueError unless each tensor in the state of an optimizer has the shape of its parameter."""
    groups = optimizer.state_dict()["param_groups"]
    check_same_form(state["param_groups"], groups, "param_groups")
    if [group["params"] for group in state["param_groups"]] != [group["params"] for group in groups]:
        raise ValueError("its weights have another order")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entries in state["state"].items():
        if index not in range(len(parameters)):
            raise ValueError(f"there is no weight {short_repr(index)}")
        parameter = parameters[index]
        row, column = parameter.shape[:-1] + (1,), parameter.shape[:-2] + (1,) + parameter.shape[-1:]
        shapes = {"step": (), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}
        if isinstance(optimizer, torch.optim.Adafactor):
            factors = {"row_var": row, "col_var": column}
            shapes = {"step": ()} | (factors if parameter.ndim > 1 else {"variance": parameter.shape})
        expected = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        check_same_form(entries, expected, f"the optimizer's state of weight {index}")


class Checkpointing(Callback):
    """Callback that resumes an interrupted run, and saves the state of the run every SAVE_INTERVAL seconds.

    It comes before the callbacks that use the weights and random states that it restores, and after those
    whose state a checkpoint needs as it is at the end of the step, such as QuantizedWeights.
    """

    def __init__(self, checkpoint: TrainingCheckpoint):
        self.checkpoint = checkpoint

    def on_train_begin(self, state: LoopState) -> None:
        """Load the finished epochs, the counters of the epoch in progress and the best weights."""
        stateful: dict[str, Stateful] = {
            "weights": state.weights,
            "optimizer": state.optimizer,
            "scheduler": state.scheduler,
            "scaler": state.scaler,
            "steps": state.steps,
        }
        for callback in state.callbacks:
            stateful[type(callback).__name__] = callback
        progress = self.checkpoint.load(stateful, state.best_weights)
        if progress:
            with reading(self.checkpoint.path, START_AGAIN):
                state.finished_epochs = [EpochResult(**epoch) for epoch in progress["epochs"]]
                state.num_examples, state.seconds = int(progress["num_examples"]), float(progress["seconds"])
                check_same_form(progress["total_loss"], state.total_loss, "total_loss")
                state.total_loss = progress["total_loss"].to(state.total_loss.device)

    def on_epoch_begin(self, state: LoopState) -> None:
        """Restore the weights and all other states, which were saved with the occurring words only."""
        self.checkpoint.restore()

    def on_step_end(self, state: LoopState) -> None:
        if self.checkpoint.should_save(state.steps.step):
            self.save(state, state.seconds_in_epoch())

    def on_evaluate(self, state: LoopState) -> None:
        if self.checkpoint.should_save():
            with state.weights.occurring_words_only():
                self.save(state, 0.0)

    def save(self, state: LoopState, seconds: float) -> None:
        """Save the state of the run. seconds: how long the epoch in progress has taken so far."""
        epochs = [asdict(epoch) for epoch in state.finished_epochs]
        self.checkpoint.save(
            epochs=epochs, num_examples=state.num_examples, total_loss=state.total_loss, seconds=seconds
        )
