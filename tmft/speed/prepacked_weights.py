"""Encoding on a CPU: products in the faster library, weights laid out for it, and memory that stays.

Nobody asks for any of it: inside `with fast_encoding(model, token_ids):` all is the same, up to rounding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from tmft.speed.malloc_threshold import raise_malloc_threshold
from tmft.speed.matmul import fast_matmul, onednn_is_exact

ENOUGH = 4096  # tokens from which laying out pays; it takes as long as some 1,000 of them
MOST = 2**30  # bytes of weights that are copied for it


@contextmanager
def fast_encoding(model: nn.Module, token_ids: Sequence[Sequence[int]]) -> Iterator[None]:
    """For encoding these sentences with a model that nobody trains meanwhile."""
    raise_malloc_threshold()
    pays = sum(map(len, token_ids)) >= ENOUGH and not torch.is_autocast_enabled("cpu")  # which casts weights
    with fast_matmul(), prepacked_weights(model) if pays else nullcontext():
        yield


@contextmanager
def prepacked_weights(model: nn.Module) -> Iterator[None]:
    """Inside, each linear map uses a copy of its weights in the layout that oneDNN computes with.

    Without it oneDNN makes that layout anew at every call. The copies go at the end.
    """
    maps = [part for part in model.modules() if type(part) is nn.Linear and gains(part.weight)]
    maps = [part for part in maps if "forward" not in vars(part)]  # another thread's, or the caller's own
    maps = maps if sum(part.weight.nbytes for part in maps) <= MOST else []
    ours = {}
    for part in maps:
        weight = torch.ops.mkldnn._reorder_linear_weight(part.weight.detach())
        part.forward = ours[part] = partial(linear, weight, part.bias)
    try:
        yield
    finally:
        for part, forward in ours.items():
            if vars(part).get("forward") is forward:  # and not that of a thread that came at the same time
                vars(part).pop("forward", None)


def linear(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """torch.nn.functional.linear with a weight in oneDNN's layout."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def gains(weight: Tensor) -> bool:
    """Whether oneDNN is the faster library for products of this type here, and as exact."""
    if weight.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return torch.cpu.get_capabilities().get("avx512_bf16", False)
    return weight.dtype == torch.float32 and onednn_is_exact()
