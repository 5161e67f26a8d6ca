"""Several processes for one command, started by torchrun.

    torchrun --nproc-per-node 4 train.py --ckpt C --layer all --num-seeds 5    each run by one of four processes
    torchrun --nproc-per-node 4 train.py --task mlm --ckpt C --text FILE       each batch shared by all four
    torchrun --nproc-per-node 4 train.py --task nli --ckpt C                   shared, too: the loss needs the whole batch

torchrun sets RANK (the number of a process, from 0), LOCAL_RANK (its number on this machine, and so its GPU)
and WORLD_SIZE (how many there are). Without it there is one process, number 0.
"""

import atexit
import os
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tmft.device import choose_device

PROCESS_GROUP_TIMEOUT = timedelta(days=30)  # a process that has finished its share waits for the slowest one


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
    def main_process_first(self):
        """A with block that the other processes enter when the first one has left it."""
        if self.rank > 0:
            self.barrier()
        yield
        if self.rank == 0:
            self.barrier()

    def all_gather_object(self, value: object) -> list:
        """A plain value of each process, in order."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def broadcast_object(self, value: object) -> object:
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

    def all_reduce_gradients(self, weights: Iterable[nn.Parameter]) -> None:
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


def init_distributed(device: str) -> Processes:
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
        dist.init_process_group(backend, timeout=PROCESS_GROUP_TIMEOUT)
        atexit.register(dist.destroy_process_group)
    return Processes(rank, world_size, chosen)
