"""Reuse the memory of one operator's result for the next one."""

from functools import cache

import torch


@cache
def raise_malloc_threshold() -> None:
    """Raise glibc's mmap threshold to its maximum of 32 MiB, so that freed blocks are reused.

    glibc returns large blocks to the system when they are freed. The pages of every large result then have to
    be cleared again, which can take longer than computing it. A block counts as large if it is larger than
    the largest one that was freed so far, up to 32 MiB. The block allocated and freed here is never written,
    so it costs nothing. With other C libraries this has no effect.
    """
    torch.empty(2**25 - 2**13, dtype=torch.uint8)
