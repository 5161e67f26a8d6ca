"""Encode faster on a CPU: use oneDNN for products, keep weights in its memory layout, and reuse memory.

Inside `with fast_encoding(...)` a model gives the same results, up to rounding.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from tmft.speed.malloc_threshold import raise_malloc_threshold
from tmft.speed.matmul import fast_matmul, onednn_is_exact

MIN_TOKENS = 4096  # for fewer tokens, a single call needs no copies of all weights at a time
# Smaller products are left to MKL, which begins one in 1 microsecond; oneDNN takes 10.
MIN_MULTIPLICATIONS = 250_000
# With prepacked weights only the products of attention are left, and MKL is faster at them for fewer tokens.
MIN_ATTENTION_TOKENS = 128
MAX_PREPACKED_BYTES = 2**30  # larger models are not prepacked, because their weights would be copied
LOCK = threading.Lock()


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
    # under autocast, products use a copy of the weights in 16 bits, which would not have the layout
    prepacked = None if torch.is_autocast_enabled("cpu") else prepacked_model(model)
    has_large_products = num_tokens >= MIN_ATTENTION_TOKENS or (prepacked is not None and prepacked.is_large)
    with (
        nullcontext() if prepacked is None else prepacked.installed(num_tokens >= MIN_TOKENS),
        fast_matmul() if has_large_products else nullcontext(),
    ):
        yield


def prepacked_model(model: nn.Module) -> "PrepackedModel":
    """Return the PrepackedModel of a model: the one of the last call, unless a weight has changed since."""
    forget_weights_after_a_step()
    with LOCK:
        prepacked, state = PREPACKED_MODELS.get(model), weight_state(model)
        if prepacked is not None and prepacked.is_unchanged(state):
            prepacked.is_constant = True
        else:
            prepacked = PREPACKED_MODELS[model] = PrepackedModel(model, state)
    return prepacked


class PrepackedModel:
    """Linear layers of a model, which compute with copies of their weights in oneDNN's memory layout.

    Without the copies, oneDNN would convert the weights in every call. They are kept once a second call has
    found the weights unchanged. Until then, each is made when it is needed and freed at once, unless there
    are many tokens: a model that is used once, or trained between two calls, needs no memory for them.
    state: the result of weight_state.
    """

    def __init__(self, model: nn.Module, state: list[object]):
        products = list(find_products(model))
        linears = [linear for *_, linears in products for linear in linears]
        self.is_large = sum(linear.weight.nbytes for linear in linears) > MAX_PREPACKED_BYTES
        self.methods = [] if self.is_large else [PrepackedMethod(*product) for product in products]
        self.state, self.is_constant, self.num_users = state, False, 0
        # the state has their ids, which are no other tensors' as long as these exist
        self.tensors = [tensor for linear in linears for tensor in linear.parameters()]
        self.samples = [sample_numbers(tensor) for tensor in self.tensors]
        self.sampled = [sample.tobytes() for sample in self.samples]

    def is_unchanged(self, state: list[object]) -> bool:
        """Return whether all weights are what they were when this object was made."""
        return state == self.state and [sample.tobytes() for sample in self.samples] == self.sampled

    @contextmanager
    def installed(self, is_long: bool) -> Iterator[None]:
        """Inside a with block, let the modules use these methods. is_long: keep the copies until its end."""
        with LOCK:
            self.num_users += 1
            for method in self.methods:
                if self.is_constant or is_long:
                    method.prepacked = method.prepacked or method.prepack()
                vars(method.module)[method.name] = method
        try:
            yield
        finally:
            with LOCK:
                self.num_users -= 1
                for method in self.methods if self.num_users == 0 else ():  # else another thread needs them
                    if vars(method.module).get(method.name) is method:
                        del vars(method.module)[method.name]
                    if not self.is_constant:
                        method.prepacked = None


PREPACKED_MODELS: WeakKeyDictionary[nn.Module, PrepackedModel] = WeakKeyDictionary()


@cache
def forget_weights_after_a_step() -> None:
    """Free all copies after each step of an optimizer: fused optimizers change weights unnoticed."""
    register_optimizer_step_post_hook(lambda *_: PREPACKED_MODELS.clear())


def weight_state(model: nn.Module) -> list[object]:
    """Return a list that changes when a linear layer or one of its weights is replaced, or changed in place.

    torch counts changes in place, but for tensors made in inference mode: the result is then always another.
    It does not count changes through `tensor.data` or a numpy array, see sample_numbers.
    """
    state: list[object] = []
    try:
        for module in list_modules(model)[1:]:  # without the model, which would be kept in memory
            attributes = vars(module)
            if "query" in attributes["_modules"]:
                state += module, is_usual(module, "project")
            if type(module) is nn.Linear:
                state += module, is_usual(module, "forward")
                state += len(attributes["_forward_hooks"]), len(attributes["_forward_pre_hooks"])
                for tensor in attributes["_parameters"].values():
                    if tensor is not None:
                        state += id(tensor), tensor._version, tensor.data_ptr()
    except RuntimeError:  # there is no count
        return [object()]
    return state


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


def sample_numbers(tensor: Tensor) -> np.ndarray:
    """Return a view of eight numbers of a float tensor, as integers.

    A change that torch does not count, such as one through `tensor.data`, is noticed if it changes one of
    them, as one of all numbers does. They are next to each other, because reading others takes longer.
    """
    row = tensor.detach()
    while row.ndim > 1:
        row = row[len(row) // 2]
    return row[:8].view(torch.int16 if tensor.dtype.itemsize == 2 else torch.int32).numpy()


# A module, the name of a method, and the linear layers whose outputs the method returns.
Product = tuple[nn.Module, str, list[nn.Linear]]


class PrepackedMethod:
    """A method of one module that returns the outputs of linear layers, as one product with a copied weight.

    One product for several linear layers is faster if there are few tokens. A copy of the module, or one that
    is pickled, has other weights: it gets the method of its class in place of this one.
    """

    def __init__(self, module: nn.Module, name: str, linears: list[nn.Linear]):
        self.module, self.name, self.linears = module, name, linears
        self.prepacked: tuple[Tensor, Tensor | None] | None = None  # the result of prepack, if it is kept

    def prepack(self) -> tuple[Tensor, Tensor | None]:
        """Return the weight in oneDNN's layout, and the bias. Those of several layers are concatenated."""
        weight: Tensor = self.linears[0].weight.detach()
        bias: Tensor | None = self.linears[0].bias
        if len(self.linears) > 1:
            weight = torch.cat([linear.weight.detach() for linear in self.linears])
            bias = torch.cat([linear.bias.detach() for linear in self.linears])
        return torch.ops.mkldnn._reorder_linear_weight(weight), bias

    def __call__(self, x: Tensor) -> Any:
        """Return the outputs of the linear layers, (..., out_features) each. x: (..., in_features)."""
        weight, bias = self.prepacked or self.prepack()
        outputs = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return outputs if self.name == "forward" else outputs.chunk(len(self.linears), dim=-1)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[nn.Module, str]]:
        return getattr, (self.module, self.name)


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
