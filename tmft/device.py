"""The device of a run, mixed precision, random number generators and the progress bar."""

import os
from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from tqdm import tqdm

from tmft.errors import InputError
from tmft.speed.malloc_threshold import raise_malloc_threshold
from tmft.speed.matmul import fast_matmul

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str) -> torch.device:
    """auto -> the GPU if there is one, else the CPU; else what torch calls by that name."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
        device = torch.device(name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name}: {str(error).splitlines()[0]}: use auto or cpu", "device") from None
    if not torch.amp.is_autocast_available(device.type):
        raise InputError(f"device {name}: nothing can be computed there: use auto or cpu", "device")
    return device


def choose_precision(precision: str, device: torch.device) -> str:
    """auto -> bf16 on a GPU or CPU that computes in it, else fp32; the others as they are.

    It costs no quality that we could measure, see docs/performance.md.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = device.type == "cpu" and torch.cpu.get_capabilities().get("avx512_bf16", False)
    return "bf16" if has_bf16 else "fp32"


def seed_generator(device: torch.device, seed: int) -> None:
    """Seed torch's generator of the device, which need not be the current one of several GPUs.

    torch.manual_seed would do, but takes a while to note the call for GPUs that are not in use.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def get_rng_state(device: torch.device) -> list[Tensor]:
    """Where torch's generators of random numbers stand: the CPU's and, of a GPU, its own."""
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


def set_rng_state(device: torch.device, streams: list[Tensor]) -> None:
    torch.set_rng_state(streams[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(streams[-1], device)


class MixedPrecision:
    """Mixed precision: weights stay in float32, `with amp:` computes in 16 bits what can stand it.

    fp16 has so few exponents that small gradients become 0: there the loss is scaled up for the backward
    pass, the gradients are scaled down again before the clip, and a step with an infinite one is skipped.
    Source: Micikevicius et al. 2018, arXiv:1710.03740.
    """

    def __init__(self, device: torch.device, precision: str):
        """precision: a row of PRECISIONS, or auto."""
        raise_malloc_threshold()
        precision = choose_precision(precision, device)
        self.autocast = torch.autocast(device.type, PRECISIONS[precision], enabled=precision != "fp32")
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def __enter__(self) -> None:
        self.open = ExitStack()
        self.open.enter_context(self.autocast)
        self.open.enter_context(fast_matmul())

    def __exit__(self, *error) -> None:
        self.open.close()

    def backward(self, loss: Tensor) -> None:
        with fast_matmul():
            self.scaler.scale(loss).backward()

    def clip(
        self, optimizer: torch.optim.Optimizer, weights: Iterable[nn.Parameter], max_norm: float
    ) -> None:
        self.scaler.unscale_(optimizer)  # first, as the clip must see the true gradients
        nn.utils.clip_grad_norm_(weights, max_norm)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the step was taken: False where an fp16 gradient was not finite."""
        scale = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= scale  # it shrinks when a step is skipped


def progress_bar(total: int | None, unit: str, shown: bool = True, **how) -> tqdm:
    """A bar on stderr while that is a terminal; of several processes the first one draws it."""
    first = int(os.environ.get("RANK", 0)) == 0
    hidden = None if shown and first else True  # None: unless it is a terminal
    return tqdm(total=total, unit=f" {unit}", leave=False, disable=hidden, **how)
