"""Compute float32 matrix products on a CPU with oneDNN instead of MKL, if that is faster and as exact."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F

# Its attribute fp32_precision says how precise float32 products on a CPU must be.
BACKEND = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch adds it when it is imported
MAX_ERROR = 1e-6  # of a product: in float32 it is about 2e-7, in bfloat16 8e-4
LOCK = threading.Lock()
# The active with blocks of fast_matmul -> the value of fp32_precision before the first of them.
ACTIVE: dict[object, str] = {}


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
    block = object()
    try:  # an interrupt may come at any time
        with LOCK:
            ACTIVE[block] = next(iter(ACTIVE.values()), BACKEND.fp32_precision)
            BACKEND.fp32_precision = "bf16"
        yield
    finally:
        with LOCK:
            original = ACTIVE.pop(block, None)
            if original is not None and not ACTIVE:
                BACKEND.fp32_precision = original


@cache
def onednn_is_exact() -> bool:
    """Return whether oneDNN, if it may round to bfloat16, still computes products in float32 on this CPU.

    It does not on a CPU with matrix instructions for 16 bits. On others it is measured once, in some tens of
    milliseconds, for products of all kinds that a model makes: which of them oneDNN hands to such
    instructions depends on the version of torch. The answer must not depend on who asks first, or the last
    bits of a score would: autocast is off during the measurement.
    """
    if has_matrix_instructions():
        return False
    with LOCK, torch.autocast("cpu", enabled=False):
        original = BACKEND.fp32_precision
        BACKEND.fp32_precision = "bf16"
        try:
            return max(relative_errors()) < MAX_ERROR
        finally:
            BACKEND.fp32_precision = original


def has_matrix_instructions() -> bool:
    """Return whether this CPU multiplies whole matrices of 16-bit numbers, as those with AMX do."""
    if not hasattr(torch.cpu, "get_capabilities"):  # torch before 2.8
        return torch.cpu._is_amx_tile_supported()
    return any(is_there is True for name, is_there in torch.cpu.get_capabilities().items() if "amx" in name)


def relative_errors() -> Iterator[float]:
    """Yield the largest error of each of some float32 products on the CPU.

    They are those of linear maps with and without a bias and of batches of matrices, from small to large. The
    error of an element is divided by the sum of the absolute values of its terms.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")

    for num_rows, in_features, out_features in ((1, 256, 64), (64, 256, 64), (96, 512, 512)):
        x, weight, bias = draw(num_rows, in_features), draw(out_features, in_features), draw(out_features)
        products = F.linear(x, weight)[:8], F.linear(x, weight, bias)[:8] - bias  # float64 is slow: 8 rows do
        exact = x[:8].double() @ weight.double().T
        size = x[:8].abs() @ weight.abs().T + bias.abs()
        yield from (float(((product - exact).abs() / size).max()) for product in products)
    for length in (16, 64, 128):
        q, k = draw(8, 4, length, 32), draw(8, 4, length, 32).transpose(-1, -2)
        exact, size = q[0].double() @ k[0].double(), q[0].abs() @ k[0].abs()
        yield float((((q @ k)[0] - exact).abs() / size).max())
