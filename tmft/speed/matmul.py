"""Float32 matrix products on a CPU: by the faster of torch's two libraries, where it is as exact."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

SETTING = torch.backends.mkldnn.matmul  # fp32_precision: how exact a float32 product on a CPU must be
LOCK = threading.Lock()
INSIDE: list[str] = []  # what the setting was, then one for each call that is under way


@contextmanager
def fast_matmul() -> Iterator[None]:
    """Float32 products on the CPU go to oneDNN instead of MKL, if onednn_is_exact; GPUs are not concerned.

    The only switch for it is the permission to round to bfloat16. oneDNN takes that up on CPUs where it gains
    speed (those with AMX); on others the product stays a full float32 one and is still faster than MKL's. The
    switch is one for all threads: the last to leave turns it back.
    """
    if not onednn_is_exact():
        yield
        return
    with LOCK:
        if not INSIDE:
            INSIDE.append(SETTING.fp32_precision)  # what it was
            SETTING.fp32_precision = "bf16"
        INSIDE.append("")
    try:
        yield
    finally:
        with LOCK:
            INSIDE.pop()
            if len(INSIDE) == 1:
                SETTING.fp32_precision = INSIDE.pop()


@cache
def onednn_is_exact() -> bool:
    """Whether a float32 product with that permission is as good as float32 here; asked once, some ms.

    The largest error, as a share of the sum of absolute values, is near 2e-7 in float32, 8e-4 in bfloat16.
    """
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 64, 256, generator=generator)
    exact = x.double() @ y.double().T
    with LOCK:
        before = SETTING.fp32_precision
        SETTING.fp32_precision = "bf16"
        try:
            error = (x @ y.T - exact).abs() / (x.abs() @ y.abs().T)
        finally:
            SETTING.fp32_precision = before
    return bool(error.max() < 1e-6)
