"""Where a run computes and in what precision; several processes for one command.

    torchrun --nproc-per-node 4 train.py --ckpt C --layer all --seeds 5        each run by one of four
    torchrun --nproc-per-node 4 train.py --task mlm --ckpt C --text FILE       each batch by all four
    torchrun --nproc-per-node 4 train.py --task nli --ckpt C                   too: all negatives of the batch

torchrun sets RANK (the number of a process, from 0), LOCAL_RANK (its number on this machine, and so its GPU)
and WORLD_SIZE (how many there are). Without it there is one process, number 0.
"""

import atexit
import os
from collections.abc import Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

from tmft.errors import InputError
from tmft.speed.matmul import fast_matmul
from tmft.speed.memory import keep_memory

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PATIENCE = timedelta(days=30)  # a process that has finished its share waits for the slowest one


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


def random_streams(device: torch.device) -> list[Tensor]:
    """Where torch's generators of random numbers stand: the CPU's and, of a GPU, its own."""
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


def set_random_streams(device: torch.device, streams: list[Tensor]) -> None:
    torch.set_rng_state(streams[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(streams[-1], device)


class Amp:
    """Mixed precision: weights stay in float32, `with amp:` computes in 16 bits what can stand it.

    fp16 has so few exponents that small gradients become 0: there the loss is scaled up for the backward
    pass, the gradients are scaled down again before the clip, and a step with an infinite one is skipped.
    Source: Micikevicius et al. 2018, arXiv:1710.03740.
    """

    def __init__(self, device: torch.device, precision: str):
        """precision: a row of PRECISIONS, or auto."""
        keep_memory()
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


@dataclass(frozen=True)
class Processes:
    """This process among those that share a command."""

    rank: int
    world_size: int
    device: torch.device

    def barrier(self) -> None:
        """Return once every process has come here."""
        if self.world_size > 1:
            dist.barrier()

    @contextmanager
    def first_one_first(self):
        """A with block that the other processes enter when the first one has left it."""
        if self.rank > 0:
            self.barrier()
        yield
        if self.rank == 0:
            self.barrier()

    def of_all(self, value: object) -> list:
        """A plain value of each process, in order."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def from_first(self, value: object) -> object:
        """The first process's plain value."""
        values = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(values)
        return values[0]

    def all_reduce(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Sums of this process -> sums over all of them."""
        total = torch.stack(list(sums.values()))
        if self.world_size > 1:
            dist.all_reduce(total)
        return dict(zip(sums, total.tolist(), strict=True))

    def sum(self, part: Tensor) -> Tensor:
        """A tensor of this process, changed in place -> the sum over all of them."""
        if self.world_size > 1:
            dist.all_reduce(part)
        return part

    def sum_gradients(self, weights: Iterable[nn.Parameter]) -> None:
        """The gradient of each weight becomes the sum over all processes; one that nobody has stays None."""
        if self.world_size == 1:
            return
        weights = list(weights)
        had = self.sum(
            torch.tensor([weight.grad is not None for weight in weights], device=self.device).int()
        )
        for weight, somewhere in zip(weights, had.tolist(), strict=True):
            if somewhere:
                weight.grad = self.sum(torch.zeros_like(weight) if weight.grad is None else weight.grad)


def join_processes(device: str) -> Processes:
    """Alone, or one of the processes that torchrun started: nccl between GPUs, one for each; gloo on CPUs,
    and where processes have to share a GPU, which nccl refuses."""
    world_size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    chosen = choose_device(device)
    if world_size == 1:
        return Processes(0, 1, chosen)
    backend, here = "gloo", int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(chosen)
        backend = "nccl" if here <= torch.cuda.device_count() else "gloo"
    if not dist.is_initialized():
        dist.init_process_group(backend, timeout=PATIENCE)
        atexit.register(dist.destroy_process_group)
    return Processes(rank, world_size, chosen)


def progress_bar(total: int | None, unit: str, shown: bool = True, **how) -> tqdm:
    """A bar on stderr while that is a terminal; of several processes the first one draws it."""
    first = int(os.environ.get("RANK", 0)) == 0
    hidden = None if shown and first else True  # None: unless it is a terminal
    return tqdm(total=total, unit=f" {unit}", leave=False, disable=hidden, **how)
