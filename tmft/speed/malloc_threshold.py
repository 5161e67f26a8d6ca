"""Memory that one operator had and the next one needs."""

from functools import cache

import torch


@cache
def raise_malloc_threshold() -> None:
    """Let glibc keep the memory of one operator's result for the next one.

    It gives large blocks back to the system when they are freed, so the pages of every large result would be
    cleared anew, which can take longer than computing it. What is large, it judges by the largest block that
    was freed so far, up to 32 MiB. This one is never written, so it costs nothing. Other libraries of C do
    not notice.
    """
    torch.empty(2**25 - 2**13, dtype=torch.uint8)
