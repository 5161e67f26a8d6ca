"""Encode faster on a CPU: products with oneDNN, weights in its memory layout, and memory that is reused.

Inside `with fast_encoding(model, token_ids):` the results are the same, up to rounding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from tmft.speed.malloc_threshold import raise_malloc_threshold
from tmft.speed.matmul import fast_matmul, onednn_is_exact

MIN_TOKENS = 4096  # from which prepacking pays; it takes as long as encoding some 1,000 tokens
MAX_PREPACKED_BYTES = 2**30  # of weights that are copied


@contextmanager
def fast_encoding(model: nn.Module, token_ids: Sequence[Sequence[int]]) -> Iterator[None]:
    """Make encoding these sentences with the model faster; its weights must not change in the meantime."""
    raise_malloc_threshold()
    enough = sum(map(len, token_ids)) >= MIN_TOKENS
    # autocast computes with a copy of the weights in 16 bits, for which the layout would be of no use
    prepacks = enough and not torch.is_autocast_enabled("cpu")
    with fast_matmul(), prepacked_weights(model) if prepacks else nullcontext():
        yield


@contextmanager
def prepacked_weights(model: nn.Module) -> Iterator[None]:
    """Inside, each nn.Linear uses a copy of its weight in the memory layout with which oneDNN computes.

    Without the copy oneDNN converts the layout again in every call. The copies are freed at the end.
    """
    linears = [module for module in model.modules() if type(module) is nn.Linear]
    # a forward set on the instance was set by another thread in this context, or by the caller
    modules = [module for module in linears if uses_onednn(module.weight) and "forward" not in vars(module)]
    if sum(module.weight.nbytes for module in modules) > MAX_PREPACKED_BYTES:
        modules = []
    forwards = {}
    for module in modules:
        weight = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach())
        module.forward = forwards[module] = partial(prepacked_linear, weight, module.bias)
    try:
        yield
    finally:
        for module, forward in forwards.items():
            if vars(module).get("forward") is forward:  # not that of a thread that entered at the same time
                vars(module).pop("forward", None)


def prepacked_linear(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """torch.nn.functional.linear with a weight in oneDNN's layout. x: (..., in) -> (..., out)"""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def uses_onednn(weight: Tensor) -> bool:
    """Return whether products with this weight should use oneDNN: faster on this device, and as exact."""
    if weight.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return torch.cpu.get_capabilities().get("avx512_bf16", False)
    return weight.dtype == torch.float32 and onednn_is_exact()
