"""Several processes for one command: torchrun starts them and numbers them, each takes its share of the work.

    torchrun --nproc-per-node 4 train.py --ckpt C --layer all --seeds 5

torchrun sets RANK (the number of a process, from 0), LOCAL_RANK (its number on this machine, and so its GPU)
and WORLD_SIZE (how many there are). Without it there is one process, number 0.
"""

import os
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

PATIENCE = timedelta(days=30)  # a process that has finished its share waits for the slowest one


def rank() -> int:
    """Number of this process; 0 prints and writes what all of them share."""
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """How many processes work on this command."""
    return int(os.environ.get("WORLD_SIZE", 1))


def local_rank() -> int:
    """Number of this process on its machine, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", 0))


@contextmanager
def all_processes():
    """Connect the processes for the length of a with block; one process is connected to nothing."""
    if world_size() == 1:
        yield
        return
    dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def wait_for_all() -> None:
    """Return once every process has come here."""
    if world_size() > 1:
        dist.barrier()
