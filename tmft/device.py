"""Device and precision of a computation, random number generators, and the progress bar."""

import itertools
import os
import sys
import time
from functools import cache
from typing import Any, TextIO
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from tqdm import tqdm

from tmft.errors import InputError
from tmft.io.formatting import format_duration
from tmft.speed.threads import limit_threads

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str) -> torch.device:
    """Return the torch device with this name; "auto" is the GPU if there is one, else the CPU.

    In a container with a CPU quota, torch gets no more threads than the quota allows, see `limit_threads`.
    Raises InputError if torch does not know the device, cannot use it, or has no mixed precision on it.
    """
    limit_threads()
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
        device = torch.device(name)
    except (RuntimeError, AssertionError) as error:
        if str(name).partition(":")[0] in ("gpu", "nvidia"):
            raise InputError(
                f"device {name}: torch calls an NVIDIA GPU cuda: use cuda or auto", "device"
            ) from None
        raise InputError(f"device {name}: {str(error).splitlines()[0]}: use auto or cpu", "device") from None
    if not torch.amp.is_autocast_available(device.type):
        raise InputError(f"device {name}: torch cannot compute on it: use auto or cpu", "device")
    return device


def choose_precision(precision: str, device: torch.device) -> str:
    """Return the name of a precision in PRECISIONS; "auto" becomes bf16 or fp32, others stay as they are.

    "auto" is bf16 if the device has instructions for it, else fp32. We could not measure a loss of quality
    with bf16, see docs/speed.md.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = device.type == "cpu" and torch.cpu.get_capabilities().get("avx512_bf16", False)
    return "bf16" if has_bf16 else "fp32"


def seed_rng(device: torch.device, seed: int) -> None:
    """Seed torch's generator of a device, which may be another GPU than the current one.

    torch.manual_seed has the same effect, but is slower: it also records the call for GPUs not in use.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def get_rng_state(device: torch.device) -> list[Tensor]:
    """Return the states of torch's random number generators: the CPU's and, if there is one, the GPU's."""
    gpu_state = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *gpu_state]


def set_rng_state(device: torch.device, states: list[Tensor]) -> None:
    """Set torch's random number generators to states that `get_rng_state` returned for this device."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[-1], device)


def progress_bar(
    total: int | None, unit: str, shown: bool = True, **tqdm_options: Any
) -> "tqdm | ProgressLines":
    """Return a progress bar of tqdm if stderr is a terminal, else one that prints a line now and then.

    Only the main process of several shows any. total: number of steps, None if it is not known. unit: name of
    what is counted, such as "lines". shown: whether progress may be shown at all. tqdm_options: further
    arguments of tqdm.
    """
    file = tqdm_options.get("file") or sys.stderr
    if not shown or int(os.environ.get("RANK", 0)) != 0 or file is None:
        return hidden_progress_bar()
    if file.isatty():
        return tqdm(total=total, unit=f" {unit}", leave=False, **tqdm_options)
    return ProgressLines(total, unit, file, tqdm_options.get("desc", ""), tqdm_options.get("initial", 0))


@cache
def hidden_progress_bar() -> tqdm:
    """Return the progress bar that shows nothing; to make one takes as long as to embed a few words."""
    return tqdm(disable=True)


class ProgressLines:
    """Tells the progress of long work in lines, where no bar can be drawn: in log files and notebooks.

    It has the members of tqdm that are used here. Once work has gone on for LINE_INTERVAL seconds, and then
    at most every LINE_INTERVAL seconds, one line on all work in progress is printed, so that short work
    prints nothing: "evaluate: 3 of 13 tasks; encode: 512 of 3,000 sentences, 0:01:20 left".

    total, unit, file, desc, initial: see tqdm.
    """

    LINE_INTERVAL = 60.0
    # {number: work}, the outermost one first; work that is given up without an end is forgotten
    in_progress: "WeakValueDictionary[int, ProgressLines]" = WeakValueDictionary()
    numbers = itertools.count()
    # when the last line was printed, or the outermost work in progress began
    last_line = 0.0

    def __init__(self, total: int | None, unit: str, file: TextIO, desc: str, initial: int):
        self.total, self.unit, self.file, self.desc = total, unit, file, desc
        self.n = self.initial = initial
        self.start = time.monotonic()
        if not self.in_progress:
            ProgressLines.last_line = self.start
        self.number = next(self.numbers)
        self.in_progress[self.number] = self

    def update(self, n: int = 1) -> None:
        """Count n more steps, and print a line if it is time."""
        self.n += n
        now = time.monotonic()
        if now - ProgressLines.last_line >= self.LINE_INTERVAL:
            ProgressLines.last_line = now
            print("; ".join(map(str, self.in_progress.values())), file=self.file, flush=True)

    def __str__(self) -> str:
        name = f"{self.desc}: " if self.desc else ""
        if not self.total:
            return f"{name}{self.n:,} {self.unit}"
        done = self.n - self.initial
        seconds_left = (time.monotonic() - self.start) * (self.total - self.n) / done if done else 0
        left = f", {format_duration(seconds_left)} left" if done and seconds_left > 0 else ""
        return f"{name}{self.n:,} of {self.total:,} {self.unit}{left}"

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Ignore what a bar shows at its end. text, refresh: as in tqdm."""

    def close(self) -> None:
        """End the work."""
        self.in_progress.pop(self.number, None)

    def __enter__(self) -> "ProgressLines":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
