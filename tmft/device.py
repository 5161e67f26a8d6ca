"""Device and precision of a computation, random number generators, and the progress bar."""

import os
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from tmft.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str) -> torch.device:
    """Return the torch device with this name; "auto" is the GPU if there is one, else the CPU.

    Raises InputError if torch does not know the device, cannot use it, or has no mixed precision on it.
    """
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


def check_has_values(device: torch.device) -> None:
    """Raise InputError if the weights of a model on a device have no values, those on torch's meta device."""
    if device.type == "meta":
        raise InputError("the model is on the device meta, where weights have no values: load it on the cpu")


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


def keep_random_state(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that seeds torch's generators, which then go on for its caller as they were."""

    @wraps(function)
    def decorated(*positional: P.args, **named: P.kwargs) -> T:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            return function(*positional, **named)

    return decorated


def get_rng_state(device: torch.device) -> list[Tensor]:
    """Return the states of torch's random number generators: the CPU's and, if there is one, the GPU's."""
    gpu_state = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *gpu_state]


def set_rng_state(device: torch.device, states: list[Tensor]) -> None:
    """Set torch's random number generators to states that `get_rng_state` returned for this device."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[-1], device)


def progress_bar(total: int | None, unit: str, shown: bool = True, **tqdm_options: Any) -> tqdm:
    """Return a progress bar of tqdm, which is drawn if stderr is a terminal.

    Only the main process of several shows any. total: number of steps, None if it is not known. unit: name of
    what is counted, such as "lines". shown: whether progress may be shown at all. tqdm_options: further
    arguments of tqdm.
    """
    if not shown or int(os.environ.get("RANK", 0)) != 0 or sys.stderr is None:
        return hidden_progress_bar()
    return tqdm(total=total, unit=f" {unit}", leave=False, disable=None, **tqdm_options)


@cache
def hidden_progress_bar() -> tqdm:
    """Return the progress bar that shows nothing; to make one takes as long as to embed a few words."""
    return tqdm(disable=True)
