"""Make the C library reuse freed memory, so that large results are computed faster on a CPU."""

from functools import cache

import torch


@cache
def raise_malloc_threshold() -> None:
    """Raise glibc's mmap threshold to its maximum of 32 MiB, so that freed blocks are reused.

    glibc returns large blocks to the operating system when they are freed. Every large result of an operator
    then gets new memory pages, which the system has to clear, and this can take longer than the computation.
    A block counts as large if it is larger than the largest one that was freed so far, up to 32 MiB. This
    function allocates and frees a block of nearly 32 MiB. It is never written, so it costs nothing. With
    other C libraries this has no effect.
    """
    torch.empty(2**25 - 2**13, dtype=torch.uint8)
