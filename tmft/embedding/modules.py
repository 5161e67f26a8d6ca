"""Modules that may follow the pooling, as in sentence-transformers: Dense, LayerNorm, Normalize.

All map embeddings of S sentences, (S, D) float32, to (S, K) float32, where K is D except for Dense. They
compute in float32, whatever the precision of the encoder is. Each class has the class method from_config,
which builds the module from the content of its config.json (without its weights), and the attribute config,
the content to write to that file. The names of its weights in a file begin with weight_prefix.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.errors import InputError, describe_error, did_you_mean, short_repr

# Names of classes of torch.nn: every activation that has no weights, works on each number by itself and needs
# no arguments, because sentence-transformers stores the name of the class alone.
ACTIVATIONS = (
    *("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "ELU", "LeakyReLU", "ReLU6", "SELU", "CELU"),
    *("Mish", "Softplus", "Softsign", "LogSigmoid", "Hardtanh", "Hardswish", "Hardsigmoid", "Tanhshrink"),
    *("Softshrink", "Hardshrink"),
)


class Dense(nn.Linear):
    """Linear map with an activation: activation(W x + b).

    in_features, out_features: number of dimensions before and after. bias: whether there is a b.
    """

    activation: Any

    weight_prefix = "linear."

    def __init__(self, in_features: int, out_features: int, bias: bool = True, activation: str = "Identity"):
        super().__init__(in_features, out_features, bias)
        if activation not in ACTIVATIONS:
            known = f"{', '.join(ACTIVATIONS)}{did_you_mean(activation, ACTIVATIONS)}"
            raise InputError(f"activation {short_repr(activation)} of a Dense: supported are {known}")
        self.activation = getattr(nn, activation)()

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return self.activation(F.linear(x, self.weight.float(), bias))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Dense":
        """Return a Dense for the content of its config.json; the activation is Tanh if it is not stated."""
        activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
        return cls(config["in_features"], config["out_features"], config.get("bias", True), activation)

    @property
    def config(self) -> dict[str, Any]:
        """The content of its config.json."""
        activation = type(self.activation)
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "bias": self.bias is not None,
            "activation_function": f"{activation.__module__}.{activation.__name__}",
        }


class LayerNorm(nn.LayerNorm):
    """LayerNorm over the dimensions of an embedding: (x - mean) / std * weight + bias."""

    weight_prefix = "norm."

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight.float(), self.bias.float(), self.eps)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "LayerNorm":
        """Return a LayerNorm for config, the content of its config.json."""
        return cls(config["dimension"])

    @property
    def config(self) -> dict[str, Any]:
        """The content of its config.json."""
        return {"dimension": self.normalized_shape[0]}


class Normalize(nn.Module):
    """Scale embeddings to unit length, x / ||x||; their dot product is then their cosine similarity."""

    weight_prefix = ""
    config: dict[str, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Normalize":
        """Return a Normalize. config: the content of its config.json, which has nothing that it needs."""
        return cls()


MODULE_CLASSES: dict[str, type[Dense] | type[LayerNorm] | type[Normalize]] = {
    "Dense": Dense,
    "LayerNorm": LayerNorm,
    "Normalize": Normalize,
}


def make_projection(
    modules: nn.Sequential, width: int, dimensions: int, source: str = "the model"
) -> nn.Sequential:
    """Return the modules for embeddings that are projected to `dimensions` dimensions: Dense and Normalize.

    modules: those that the model has, which are returned if they are such a projection already. width: the
    number of dimensions after them. The map has no bias, and is initialized with a truncated normal
    distribution of standard deviation width^-1/2. Raises InputError if the modules have another Dense.
    Source: Ni et al. 2021 (Sentence-T5), arXiv:2108.08877, section 3.1.
    """
    names = [type(module).__name__ for module in modules]
    if names[:1] == ["Dense"]:
        if width != dimensions or names[1:] != ["Normalize"]:
            raise InputError(
                f"projection {dimensions}: {source} has {' and '.join(names)} to {width} dimensions already: "
                "remove projection",
                "projection",
            )
        return modules
    dense = Dense(width, dimensions, bias=False)
    nn.init.trunc_normal_(dense.weight, std=dense.in_features**-0.5)
    return nn.Sequential(dense, Normalize())


def check_module_widths(modules: nn.Sequential, width: int, source: str) -> None:
    """Raise InputError if a module takes embeddings of another width than it gets.

    width: number of dimensions of an embedding after the pooling.
    """
    device = next((weight.device for weight in modules.parameters()), None)
    try:
        modules(torch.zeros(1, width, device=device))
    except RuntimeError as error:
        raise InputError(
            f"{source} has modules that do not take embeddings of {width} dimensions "
            f"({describe_error(error)}): name a `pooling`, which is then used without modules after it",
            "pooling",
        ) from None
