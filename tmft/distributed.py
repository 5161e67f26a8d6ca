"""Several processes for one command, started by torchrun.

    torchrun --nproc-per-node 4 train.py --ckpt C --layer all --num-seeds 5   # the runs are divided
    torchrun --nproc-per-node 4 train.py --task mlm --ckpt C --text FILE      # each batch is divided
    torchrun --nproc-per-node 4 train.py --task nli --ckpt C                  # each batch, too

torchrun sets RANK (the index of a process, from 0), LOCAL_RANK (its index on this machine, and so its GPU)
and WORLD_SIZE (the number of processes). Without torchrun there is one process, with rank 0.
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

PROCESS_GROUP_TIMEOUT = timedelta(days=30)  # a process that has finished its runs waits for the slowest one


@dataclass(frozen=True)
class Processes:
    """This process and its communication with the other processes of the command.

    rank: index of this process, from 0, which is the main process; world_size: number of processes.
    """

    rank: int
    world_size: int
    device: torch.device

    def barrier(self) -> None:
        """Wait until every process has reached this call."""
        if self.world_size > 1:
            dist.barrier()

    @contextmanager
    def main_process_first(self):
        """Run the block of a with statement in the main process first; the others run it afterwards."""
        if self.rank > 0:
            self.barrier()
        yield
        if self.rank == 0:
            self.barrier()

    def all_gather_object(self, value: object) -> list:
        """Return the values of all processes, by rank. value: anything that can be pickled."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def broadcast_object(self, value: object) -> object:
        """Return the value of the main process, in every process. value: anything that can be pickled."""
        values = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(values)
        return values[0]

    def all_reduce_dict(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Add up scalar tensors over the processes, name by name; all must have the same names."""
        total = torch.stack(list(sums.values()))
        if self.world_size > 1:
            dist.all_reduce(total)
        return dict(zip(sums, total.tolist(), strict=True))

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        """Replace the tensor, in place, by its sum over the processes, and return it."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over the processes; it stays None if no process has one."""
        if self.world_size == 1:
            return
        parameters = list(parameters)
        has_gradient = torch.tensor([parameter.grad is not None for parameter in parameters])
        num_processes = self.all_reduce_(has_gradient.int().to(self.device))  # that have a gradient of it
        for parameter, num in zip(parameters, num_processes.tolist(), strict=True):
            if num > 0:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self.all_reduce_(gradient)


def single_process(device: torch.device) -> Processes:
    """Return the Processes of a command that runs in one process."""
    return Processes(0, 1, device)


def init_distributed(device: str) -> Processes:
    """Join the processes that torchrun started, if it did, and return them; else return a single process.

    device: as in choose_device. The backend is nccl if each process has a GPU of its own. It is gloo on CPUs,
    and also where processes have to share a GPU, which nccl does not allow.
    """
    world_size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    torch_device = choose_device(device)
    if world_size == 1:
        return single_process(torch_device)
    backend, local_world_size = "gloo", int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if torch_device.type == "cuda":
        torch_device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(torch_device)
        backend = "nccl" if local_world_size <= torch.cuda.device_count() else "gloo"
    if not dist.is_initialized():
        dist.init_process_group(backend, timeout=PROCESS_GROUP_TIMEOUT)
        atexit.register(dist.destroy_process_group)
    return Processes(rank, world_size, torch_device)
