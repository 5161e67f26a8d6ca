"""Compute products faster on a CPU: with oneDNN, weights in its memory layout, and memory that is reused.

float32 products are computed with oneDNN instead of MKL, if that is faster and as exact. Inside
`with fast_encoding(...)` a model gives the same results, up to rounding.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Its attribute fp32_precision says how precise float32 products on a CPU must be.
BACKEND = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch adds it when it is imported
MAX_ERROR = 1e-6  # of a product: in float32 it is about 2e-7, in bfloat16 8e-4
MIN_TOKENS = 4096  # for fewer tokens, a copy of all weights takes longer than it saves
# Smaller products are left to MKL, which begins one in 1 microsecond; oneDNN takes 10.
MIN_MULTIPLICATIONS = 250_000
# With prepacked weights only the products of attention are left, and MKL is faster at them for fewer tokens.
MIN_ATTENTION_TOKENS = 128
MAX_PREPACKED_BYTES = 2**30  # larger models are not prepacked, because their weights would be copied
LOCK = threading.RLock()
# The active with blocks of fast_matmul -> the value of fp32_precision before the first of them.
ACTIVE: dict[object, str] = {}
# A model that computes with prepacked weights just now -> the active blocks of prepacked_weights: those of
# several threads, or one inside another.
BLOCKS: WeakKeyDictionary[nn.Module, set[object]] = WeakKeyDictionary()


@contextmanager
def fast_matmul() -> Iterator[None]:
    """Inside a with block, compute float32 products on the CPU with oneDNN instead of MKL.

    This has no effect if onednn_is_exact() is False, and none on GPUs. The only setting of torch that selects
    oneDNN is the permission to round float32 to bfloat16. oneDNN makes use of the permission on CPUs on which
    that is faster (those with AMX). On others, products are computed in float32, and still faster than by
    MKL. The setting holds for all threads, so the last of several active blocks restores it.
    """
    raise_malloc_threshold()
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

    def draw(*shape: int) -> Tensor:
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


@contextmanager
def fast_encoding(model: nn.Module, num_tokens: int, hidden_size: int) -> Iterator[None]:
    """Inside a with block, make it faster to encode sentences with a model.

    num_tokens: of all sentences that are going to be encoded. The weights of the model must not change inside
    the block.
    """
    raise_malloc_threshold()
    is_float32 = next(model.parameters()).dtype == torch.float32  # other products are oneDNN's in any case
    if is_float32 and num_tokens * hidden_size**2 < MIN_MULTIPLICATIONS:
        yield
        return
    with ExitStack() as stack:
        # under autocast, products use a copy of the weights in 16 bits, which would not have the layout
        if num_tokens >= MIN_TOKENS and not torch.is_autocast_enabled("cpu"):
            stack.enter_context(prepacked_weights(model))
        if num_tokens >= MIN_ATTENTION_TOKENS or model not in BLOCKS:
            stack.enter_context(fast_matmul())
        yield


@contextmanager
def prepacked_weights(model: nn.Module) -> Iterator[None]:
    """Inside a with block, let the linear layers of a model compute with copies of their weights.

    The copies have oneDNN's memory layout, into which it would otherwise convert the weights in each product.
    The weights must not change inside the block, so it is as long as one call of many sentences, or as the
    part of a command that only encodes with its model. Blocks may overlap; the last one frees the copies.
    """
    block = object()
    try:  # an interrupt may come at any time
        with LOCK:
            methods = [] if model in BLOCKS else prepack(model)
            for method in methods:
                vars(method.module)[method.name] = method
            if methods:
                BLOCKS[model] = set()
            if model in BLOCKS:
                BLOCKS[model].add(block)
        yield
    finally:
        with LOCK:
            blocks = BLOCKS.get(model, set())
            blocks.discard(block)
            if not blocks:
                BLOCKS.pop(model, None)
                for module in list_modules(model):
                    for name in ("forward", "project"):
                        if isinstance(vars(module).get(name), PrepackedMethod):
                            del vars(module)[name]


def list_modules(model: nn.Module) -> list[nn.Module]:
    """Return a model and all modules in it; a module comes before its parts, and twice if it has two places.

    This is `model.modules()` in a fifth of the time.
    """
    modules = [model]
    for module in modules:  # the list grows
        for part in module._modules.values():
            if part is not None:
                modules.append(part)
    return modules


# A module, the name of a method, and the linear layers whose outputs the method returns.
Product = tuple[nn.Module, str, list[nn.Linear]]


class PrepackedMethod:
    """A method of one module that returns the outputs of linear layers, as one product with a copied weight.

    One product for several linear layers is faster if there are few tokens. A copy of the module, or one that
    is pickled, has other weights: it gets the method of its class in place of this one.
    """

    def __init__(self, module: nn.Module, name: str, linears: list[nn.Linear]):
        self.module, self.name = module, name
        self.sizes = [len(linear.weight) for linear in linears]  # of each output
        weight: Tensor = linears[0].weight.detach()
        self.bias: Tensor | None = linears[0].bias
        if len(linears) > 1:
            weight = torch.cat([linear.weight.detach() for linear in linears])
            self.bias = torch.cat([linear.bias.detach() for linear in linears])
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)  # in oneDNN's layout

    def __call__(self, x: Tensor) -> Any:
        """Return the outputs of the linear layers, (..., out_features) each. x: (..., in_features)."""
        outputs = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return outputs if self.name == "forward" else outputs.split(self.sizes, dim=-1)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[nn.Module, str]]:
        return getattr, (self.module, self.name)


def prepack(model: nn.Module) -> list[PrepackedMethod]:
    """Return the methods that compute with copied weights; none if the model is too large to be copied."""
    products = list(find_products(model))
    if sum(linear.weight.nbytes for *_, linears in products for linear in linears) > MAX_PREPACKED_BYTES:
        return []
    return [PrepackedMethod(*product) for product in products]


def find_products(model: nn.Module) -> Iterator[Product]:
    """Yield the products that oneDNN should compute, each as (module, name, linears).

    For an attention with a query, a key and a value, the method is `project`. For any other nn.Linear it is
    `forward`. A module with a method of its own, which the caller has set, is left out.
    """
    found: set[nn.Module] = set()
    for module in list_modules(model)[1:]:  # an attention comes before the linear layers in it
        name, parts = "forward", [module]
        if "query" in module._modules and hasattr(module, "project"):
            name, parts = "project", [getattr(module, part) for part in ("query", "key", "value")]
        linears = [part for part in parts if can_prepack(part)]
        if len(parts) > 1 and any(linear.bias is None for linear in linears):
            continue  # one product has a bias for all of its outputs, or for none
        if len(linears) == len(parts) and found.isdisjoint([module, *parts]) and is_usual(module, name):
            found.update(linears)
            yield module, name, linears


def is_usual(module: nn.Module, name: str) -> bool:
    """Return whether a method of a module is the one of its class, unless it is prepacked just now."""
    method = vars(module).get(name)
    if method is None or isinstance(method, PrepackedMethod):
        return True
    return getattr(method, "__func__", None) is getattr(type(module), name)  # see PrepackedMethod.__reduce__


def can_prepack(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a module is a linear layer whose product oneDNN should compute."""
    return (
        type(module) is nn.Linear
        and uses_onednn(module.weight)
        and not (module._forward_hooks or module._forward_pre_hooks)
        and is_usual(module, "forward")
    )


def uses_onednn(weight: Tensor) -> bool:
    """Return whether oneDNN should compute products with a weight: on a CPU, if it is faster and as exact."""
    if weight.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return torch.cpu.get_capabilities().get("avx512_bf16", False)
    return weight.dtype == torch.float32 and onednn_is_exact()
