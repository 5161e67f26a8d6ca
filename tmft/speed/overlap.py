"""Let the CPU prepare the next batch, and a GPU compute the last one, at the same time.

A GPU computes what it was given while the CPU goes on, unless the CPU has to wait: for a copy from ordinary
memory, or for a result. On a CPU all this changes nothing.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import chain, islice
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
BATCHES_AHEAD = 2  # made in the background before they are needed


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


def made_ahead(
    make: Callable[[Item], Result], items: Iterable[Item], device: torch.device
) -> Iterator[Result]:
    """Yield make(item) for each item, in their order.

    For a GPU they are made in a background thread, BATCHES_AHEAD of them before they are needed. device: that
    computes with them; a CPU has no core to spare, so that each is made when it is needed.
    """
    items = iter(items)
    first = [] if device.type == "cpu" else list(islice(items, 2))
    if len(first) < 2:  # a single one needs no thread
        yield from map(make, chain(first, items))
        return
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        for item in chain(first, items):
            pending.append(pool.submit(make, item))
            if len(pending) > BATCHES_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def copied_behind(results: Iterable[tuple[Item, Tensor]]) -> Iterator[tuple[Item, Tensor]]:
    """Yield (item, tensor) of the results with the tensor on the CPU, in their order.

    Each tensor of a GPU is copied while the GPU computes the next one.
    """
    last: tuple[Item, Tensor, torch.cuda.Event] | None = None
    for item, tensor in results:
        if tensor.device.type == "cpu":
            yield item, tensor
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
