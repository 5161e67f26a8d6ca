"""Several processes for one command: torchrun starts them and numbers them, each takes its share of the work.

    torchrun --nproc-per-node 4 train.py --ckpt C --layer all --seeds 5        each run by one of four
    torchrun --nproc-per-node 4 train.py --task mlm --ckpt C --text FILE       each batch by all four

torchrun sets RANK (the number of a process, from 0), LOCAL_RANK (its number on this machine, and so its GPU)
and WORLD_SIZE (how many there are). Without it there is one process, number 0.
"""

import atexit
import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from tmft.training import choose_device

PATIENCE = timedelta(days=30)  # a process that has finished its share waits for the slowest one


@dataclass(frozen=True)
class Processes:
    """This process among those that share a command: its rank, how many there are, its device."""

    rank: int
    count: int
    device: torch.device

    def wait(self) -> None:
        """Return once every process has come here."""
        if self.count > 1:
            dist.barrier()

    @contextmanager
    def first_one_first(self):
        """A with block that the other processes enter when the first one has left it."""
        if self.rank > 0:
            self.wait()
        yield
        if self.rank == 0:
            self.wait()

    def sum(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Sums of this process -> sums over all of them."""
        total = torch.stack(list(sums.values()))
        if self.count > 1:
            dist.all_reduce(total)
        return dict(zip(sums, total.tolist(), strict=True))


def join_processes(device: str) -> Processes:
    """Alone, or one of the processes that torchrun started: nccl between GPUs, one for each, gloo on CPUs."""
    count, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    chosen = choose_device(device)
    if count == 1:
        return Processes(0, 1, chosen)
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(chosen)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=PATIENCE)
        atexit.register(dist.destroy_process_group)
    return Processes(rank, count, chosen)
