"""Compute float32 matrix products on a CPU with oneDNN instead of MKL, if that is faster and as exact."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

# Its attribute fp32_precision says how precise float32 products on a CPU must be.
BACKEND = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch adds it when it is imported
LOCK = threading.Lock()
# Empty if no with block of fast_matmul is active; else the former value of fp32_precision, then one entry for
# each active block.
ACTIVE: list[str] = []


@contextmanager
def fast_matmul() -> Iterator[None]:
    """Inside a with block, compute float32 products on the CPU with oneDNN instead of MKL.

    This has no effect if onednn_is_exact() is False, and none on GPUs. The only setting of torch that selects
    oneDNN is the permission to round float32 to bfloat16. oneDNN makes use of the permission on CPUs on which
    that is faster (those with AMX). On others, products are computed in float32, and still faster than by
    MKL. The setting holds for all threads, so the last of several active blocks restores it.
    """
    if not onednn_is_exact():
        yield
        return
    with LOCK:
        if not ACTIVE:
            ACTIVE.append(BACKEND.fp32_precision)
            BACKEND.fp32_precision = "bf16"
        ACTIVE.append("")
    try:
        yield
    finally:
        with LOCK:
            ACTIVE.pop()
            if len(ACTIVE) == 1:
                BACKEND.fp32_precision = ACTIVE.pop()


@cache
def onednn_is_exact() -> bool:
    """Return whether oneDNN, if it may round to bfloat16, still computes products in float32 on this CPU.

    This is measured once, in some milliseconds. The largest error of an element of a product, divided by the
    sum of the absolute values of its terms, is about 2e-7 in float32 and 8e-4 in bfloat16. The answer must
    not depend on who asks first, or the last bits of a score would: autocast is off during the measurement.
    """
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 64, 256, generator=generator, dtype=torch.float32, device="cpu")
    exact = x.double() @ y.double().T
    with LOCK, torch.autocast("cpu", enabled=False):
        original = BACKEND.fp32_precision
        BACKEND.fp32_precision = "bf16"
        try:
            error = (x @ y.T - exact).abs() / (x.abs() @ y.abs().T)
        finally:
            BACKEND.fp32_precision = original
    return bool(error.max() < 1e-6)
