"""Let the CPU prepare the next batch while a GPU computes.

A GPU computes what it was given while the CPU goes on, unless the CPU has to wait: for a copy from ordinary
memory, or for a result. On a CPU all this changes nothing.

A thread that prepares batches in the background was tried and left out. On an H100 with 16 cores, packing in
it encoded 4 to 6 % more sentences a second, and packing and tokenizing in it 30 % fewer, because Python runs
one thread at a time.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; to a GPU it is copied from pinned memory, so that nothing waits."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()  # torch does not reuse this memory before the copy has ended
    return tensor.to(device, non_blocking=True)


def constant_on(device: torch.device, make: Callable[..., Tensor], *arguments: Hashable) -> Tensor:
    """Return make(*arguments) on a device. For a GPU it is made and copied once, not in each step."""
    return make(*arguments) if device.type == "cpu" else kept_constant(device, make, *arguments)


@lru_cache(maxsize=256)
def kept_constant(device: torch.device, make: Callable[..., Tensor], *arguments: Hashable) -> Tensor:
    """Return make(*arguments) on a device, the same tensor in each call."""
    with torch.inference_mode(False):  # it may be needed in training, too
        return make(*arguments).to(device)


def copied_behind(results: Iterable[tuple[Item, Tensor]]) -> Iterator[tuple[Item, Tensor]]:
    """Yield (item, tensor) of the results with the tensor on the CPU, in their order.

    With CUDA each tensor is copied while the GPU computes the next one.
    """
    last: tuple[Item, Tensor, torch.cuda.Event] | None = None
    for item, tensor in results:
        if tensor.device.type != "cuda":
            yield item, tensor.cpu()
            continue
        copy = tensor.to("cpu", non_blocking=True)  # into pinned memory
        copied = torch.cuda.current_stream(tensor.device).record_event()
        if last is not None:
            last[2].synchronize()
            yield last[:2]
        last = item, copy, copied
    if last is not None:
        last[2].synchronize()
        yield last[:2]
