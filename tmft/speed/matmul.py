"""Float32 matrix products on a CPU with oneDNN instead of MKL, where that is as exact and faster."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

BACKEND = torch.backends.mkldnn.matmul  # fp32_precision: how precise float32 products on a CPU must be
LOCK = threading.Lock()
ACTIVE: list[str] = []  # the value of fp32_precision before the first call, then one entry per active call


@contextmanager
def fast_matmul() -> Iterator[None]:
    """Compute float32 products on the CPU with oneDNN, not MKL, if onednn_is_exact(); GPUs are unaffected.

    The only switch for that is the permission to round to bfloat16. oneDNN uses the permission on CPUs where
    it is faster (those with AMX); on others the product remains a full float32 one and is still faster than
    MKL's. The switch holds for all threads, so the last active call switches it back.
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
    """Return whether a float32 product with that permission is as exact as float32 on this CPU.

    It is measured once, in some milliseconds. The largest error, divided by the sum of the absolute values,
    is about 2e-7 in float32 and 8e-4 in bfloat16.
    """
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 64, 256, generator=generator)
    exact = x.double() @ y.double().T
    with LOCK:
        original = BACKEND.fp32_precision
        BACKEND.fp32_precision = "bf16"
        try:
            error = (x @ y.T - exact).abs() / (x.abs() @ y.abs().T)
        finally:
            BACKEND.fp32_precision = original
    return bool(error.max() < 1e-6)
