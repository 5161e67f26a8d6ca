"""Several processes for one command, started by torchrun.

    # each process does some of the runs
    torchrun --nproc-per-node 4 train.py --ckpt C --layer all --num-seeds 5
    # all processes share each batch of one run, which only pre-training does
    torchrun --nproc-per-node 4 train.py --task mlm --ckpt C --text FILE

torchrun sets RANK (the index of a process, from 0), LOCAL_RANK (its index on this machine, and so its GPU)
and WORLD_SIZE (the number of processes). Without torchrun there is one process, with rank 0.
"""

import atexit
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tmft.errors import InputError

T = TypeVar("T")
PROCESS_GROUP_TIMEOUT = timedelta(days=30)  # a process that has finished its runs waits for the slowest one


@contextmanager
def end_with_failed_process() -> Iterator[None]:
    """End this process if it waits in the block for another one that has ended with an error.

    The other process has said why; a traceback here would hide that line. On each machine one process says
    that it ends.
    """
    try:
        yield
    except RuntimeError:
        if int(os.environ.get("LOCAL_RANK", 0)) > 0:
            sys.exit(2)
        raise InputError("another process has ended with an error: its message says what to do") from None


@dataclass(frozen=True)
class Processes:
    """The processes of a command: the rank of this one, and its communication with the others.

    rank: index of this process, from 0; process 0 is the main process. world_size: number of processes.
    device: the device on which this process computes. If there is a single process, the methods return at
    once.
    """

    rank: int
    world_size: int
    device: torch.device

    def barrier(self) -> None:
        """Wait until every process has reached this call."""
        if self.world_size > 1:
            with end_with_failed_process():
                dist.barrier()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Make the main process run a with block first, and the other processes after it."""
        if self.rank > 0:
            self.barrier()
        yield
        if self.rank == 0:
            self.barrier()

    def all_gather_object(self, value: T) -> list[T]:
        """Return the values that all processes pass, by rank. value: any object that can be pickled."""
        values = [value] * self.world_size
        if self.world_size > 1:
            with end_with_failed_process():
                dist.all_gather_object(values, value)
        return values

    def broadcast_object(self, value: T) -> T:
        """Return the value that the main process passes. value: any object that can be pickled."""
        values = [value]
        if self.world_size > 1:
            with end_with_failed_process():
                dist.broadcast_object_list(values)
        return values[0]

    def check_same_files(self, digests: Mapping[str, object]) -> None:
        """Raise InputError if a process reads another file than the main process, as on another machine."""
        main, *others = self.all_gather_object(dict(digests))
        for rank, other in enumerate(others, start=1):
            names = [name for name in main if name in other and main[name] != other[name]]
            if names:
                problem = f"process {rank} reads other files than process 0 ({', '.join(names)})"
                raise InputError(f"{problem}: give every machine the same files")

    def check_shared_folder(self, folder: Path) -> None:
        """Create a folder. Raises InputError if a process does not see what the main process writes there."""
        if self.world_size == 1:
            return
        temporary: AbstractContextManager = nullcontext()
        if self.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            temporary = tempfile.NamedTemporaryFile(dir=folder, prefix=".shared-")
        with temporary as file:
            name = self.broadcast_object("" if file is None else Path(file.name).name)
            is_seen = self.all_gather_object((folder / name).exists())
        if not all(is_seen):
            raise InputError(
                f"process {is_seen.index(False)} does not see what process 0 writes in {folder.absolute()}: "
                "choose a folder on a disk that all machines share"
            )

    def all_reduce_dict(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Return {name: sum over all processes}. sums: scalar tensors, with the same names in all of them."""
        total = torch.stack(list(sums.values()))
        if self.world_size > 1:
            dist.all_reduce(total)
        return dict(zip(sums, total.tolist(), strict=True))


def single_process(device: torch.device) -> Processes:
    """Return the Processes of a command that is not distributed: rank 0 of 1, on this device."""
    return Processes(0, 1, device)


def init_distributed(device: torch.device) -> Processes:
    """Connect this process with the others that torchrun started, and return them as Processes.

    Without torchrun, Processes of this single process are returned. device: on GPUs each process gets the one
    with its LOCAL_RANK. The backend is nccl if each process has a GPU of its own; it is gloo on CPUs, and if
    processes share a GPU, which nccl does not allow.
    """
    world_size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if world_size == 1:
        return single_process(device)
    backend, local_world_size = "gloo", int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        backend = "nccl" if local_world_size <= torch.cuda.device_count() else "gloo"
    if not dist.is_initialized():
        # Some functions of torch.distributed.nn have the group of all processes as the default of a
        # parameter, and optimizers import that module. If it were imported after the group exists, its
        # defaults would keep the group and its threads alive until the interpreter ends, where they sometimes
        # abort the process although its work is done (pytorch/pytorch issue 190489).
        import_module("torch.distributed.nn")

        dist.init_process_group(backend, timeout=PROCESS_GROUP_TIMEOUT)
        atexit.register(dist.destroy_process_group)
    return Processes(rank, world_size, device)
