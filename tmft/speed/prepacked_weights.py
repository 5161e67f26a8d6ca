"""Encode faster on a CPU: use oneDNN for products, store weights in its memory layout, and reuse memory.

Inside `with fast_encoding(...)` or `with prepacked_weights(model):` a model gives the same results, up to
rounding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.speed.malloc_threshold import raise_malloc_threshold
from tmft.speed.matmul import fast_matmul, onednn_is_exact

MIN_TOKENS = 4096  # for fewer tokens, prepacking costs too much: as much as encoding some 1,000 tokens
# Smaller products are left to MKL, which begins one in 1 microsecond; oneDNN takes 12.
MIN_MULTIPLICATIONS = 10**6
MAX_PREPACKED_BYTES = 2**30  # larger models are not prepacked, because their weights would be copied


@contextmanager
def fast_encoding(model: nn.Module, token_ids: Sequence[Sequence[int]], hidden_size: int) -> Iterator[None]:
    """Inside a with block, make it faster to encode sentences with a model.

    token_ids: the token ids of all sentences that are going to be encoded; only their number matters. The
    weights of the model must not change inside the block.
    """
    raise_malloc_threshold()
    num_tokens = sum(map(len, token_ids))
    # under autocast, products use a copy of the weights in 16 bits, which would not have the layout
    prepacks = num_tokens >= MIN_TOKENS and not torch.is_autocast_enabled("cpu")
    is_large = num_tokens * hidden_size**2 >= MIN_MULTIPLICATIONS
    with (
        fast_matmul() if is_large else nullcontext(),
        prepacked_weights(model) if prepacks else nullcontext(),
    ):
        yield


@contextmanager
def prepacked_weights(model: nn.Module) -> Iterator[None]:
    """Inside a with block, each nn.Linear of a model uses a copy of its weight in oneDNN's memory layout.

    Without the copy, oneDNN would convert the weight in every call. The copies are freed at the end. Models
    whose weights take more than MAX_PREPACKED_BYTES are not changed.
    """
    linears = [module for module in model.modules() if type(module) is nn.Linear]
    # if an instance has its own forward, another thread in such a block or the caller has set it
    modules = [module for module in linears if uses_onednn(module.weight) and "forward" not in vars(module)]
    if sum(module.weight.nbytes for module in modules) > MAX_PREPACKED_BYTES:
        modules = []
    forwards = {}
    for module in modules:
        weight = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach())
        vars(module)["forward"] = forwards[module] = partial(prepacked_linear, module, weight)
    try:
        yield
    finally:
        for module, forward in forwards.items():
            if vars(module).get("forward") is forward:  # else another thread has set it
                vars(module).pop("forward", None)


def prepacked_linear(module: nn.Linear, weight: Tensor, x: Tensor) -> Tensor:
    """Return x W^T + bias: x (..., in_features), result (..., out_features). weight: W in oneDNN's layout.

    Under autocast the product is that of the module itself, which converts W to 16 bits.
    """
    if torch.is_autocast_enabled("cpu"):
        return F.linear(x, module.weight, module.bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, module.bias, "none", [], "")


def uses_onednn(weight: Tensor) -> bool:
    """Return whether oneDNN should compute products with a weight: on a CPU, if it is faster and as exact."""
    if weight.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return torch.cpu.get_capabilities().get("avx512_bf16", False)
    return weight.dtype == torch.float32 and onednn_is_exact()
