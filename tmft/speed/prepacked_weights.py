"""Encode faster on a CPU: use oneDNN for products, store weights in its memory layout, and reuse memory.

Inside `with fast_encoding(...)` or `with prepacked_weights(model):` a model gives the same results, up to
rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeGuard
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.speed.malloc_threshold import raise_malloc_threshold
from tmft.speed.matmul import fast_matmul, onednn_is_exact

MIN_TOKENS = 4096  # for fewer tokens, prepacking costs too much: as much as encoding some 1,000 tokens
# Smaller products are left to MKL, which begins one in 1 microsecond; oneDNN takes 12.
MIN_MULTIPLICATIONS = 10**6
# With prepacked weights only the products of attention are left, and MKL is faster at them for fewer tokens.
MIN_ATTENTION_TOKENS = 128
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
    only_attention = model in PREPACKED_MODELS and num_tokens < MIN_ATTENTION_TOKENS
    with (
        fast_matmul() if is_large and not only_attention else nullcontext(),
        prepacked_weights(model) if prepacks else nullcontext(),
    ):
        yield


@contextmanager
def prepacked_weights(model: nn.Module) -> Iterator[None]:
    """Inside a with block, linear layers of a model use copies of their weights in oneDNN's memory layout.

    Without the copies, oneDNN would convert the weights in every call. Queries, keys and values are one
    product, which is faster if there are few tokens. The copies are freed at the end. Models whose weights
    take more than MAX_PREPACKED_BYTES are not changed.
    """
    products = list(find_products(model))
    if sum(linear.weight.nbytes for *_, linears in products for linear in linears) > MAX_PREPACKED_BYTES:
        yield
        return
    reorder = torch.ops.mkldnn._reorder_linear_weight
    methods: list[PrepackedMethod] = []  # of instances, which are removed at the end
    for module, name, linears in products:
        if name == "forward":
            method: Any = partial(prepacked_linear, linears[0], reorder(linears[0].weight.detach()))
        else:
            weight = reorder(torch.cat([one.weight.detach() for one in linears]))
            bias = torch.cat([one.bias.detach() for one in linears])
            method = partial(prepacked_projections, linears, weight, bias)
        methods.append(PrepackedMethod(module, name, method))
    is_first = model not in PREPACKED_MODELS
    PREPACKED_MODELS.add(model)
    for one in methods:
        vars(one.module)[one.name] = one
    try:
        yield
    finally:
        for one in methods:
            if vars(one.module).get(one.name) is one:  # else another thread has set it
                vars(one.module).pop(one.name, None)
        if is_first:
            PREPACKED_MODELS.discard(model)


PREPACKED_MODELS: WeakSet[nn.Module] = WeakSet()


class PrepackedMethod:
    """A method of one module, which computes with copies of its weights.

    module, name: the module and the name of its method. product: what is computed. A copy of the module, and
    one that is pickled, has other weights: it gets a UsualMethod in place of this one.
    """

    def __init__(self, module: nn.Module, name: str, product: Callable[[Tensor], Any]):
        self.module, self.name, self.product = module, name, product

    def __call__(self, x: Tensor) -> Any:
        return self.product(x)

    def __reduce__(self) -> tuple[type["UsualMethod"], tuple[nn.Module, str]]:
        return UsualMethod, (self.module, self.name)


class UsualMethod:
    """The method that the class of a module has; it removes itself from the module when it is called."""

    def __init__(self, module: nn.Module, name: str):
        self.module, self.name = module, name

    def __call__(self, x: Tensor) -> Any:
        vars(self.module).pop(self.name, None)
        return getattr(self.module, self.name)(x)


def find_products(model: nn.Module) -> Iterator[tuple[nn.Module, str, list[nn.Linear]]]:
    """Yield (module, name, linears): the name of a method, and the linear layers whose outputs it returns.

    For an attention with a query, a key and a value, the method is `project`. For any other nn.Linear it is
    `forward`. An instance with a method of its own is left out: another thread or the caller has set it.
    """
    found: set[nn.Module] = set()
    for module in model.modules():  # an attention comes before the linear layers in it
        name, parts = "forward", [module]
        if hasattr(module, "project") and hasattr(module, "query"):
            name, parts = "project", [getattr(module, part) for part in ("query", "key", "value")]
        linears = [part for part in parts if can_prepack(part)]
        if module not in found and len(linears) == len(parts):
            found.update(linears)
            if isinstance(vars(module).get(name), UsualMethod | None):
                yield module, name, linears


def can_prepack(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a module is a linear layer whose product oneDNN should compute."""
    return (
        type(module) is nn.Linear
        and uses_onednn(module.weight)
        and isinstance(vars(module).get("forward"), UsualMethod | None)
    )


def prepacked_linear(module: nn.Linear, weight: Tensor, x: Tensor) -> Tensor:
    """Return x W^T + bias: x (..., in_features), result (..., out_features). weight: W in oneDNN's layout.

    Under autocast the product is that of the module itself, which converts W to 16 bits.
    """
    if torch.is_autocast_enabled("cpu"):
        return F.linear(x, module.weight, module.bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, module.bias, "none", [], "")


def prepacked_projections(
    linears: list[nn.Linear], weight: Tensor, bias: Tensor, x: Tensor
) -> Sequence[Tensor]:
    """Return the outputs of linear layers as one product, (..., out_features) each. x: (..., in_features).

    weight: their weights, one below the other, in oneDNN's layout. bias: their biases, one after the other.
    """
    if torch.is_autocast_enabled("cpu"):
        return [F.linear(x, one.weight, one.bias) for one in linears]
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "").chunk(len(linears), dim=-1)


def uses_onednn(weight: Tensor) -> bool:
    """Return whether oneDNN should compute products with a weight: on a CPU, if it is faster and as exact."""
    if weight.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return torch.cpu.get_capabilities().get("avx512_bf16", False)
    return weight.dtype == torch.float32 and onednn_is_exact()
