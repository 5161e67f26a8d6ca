"""Modules that may follow the pooling, as in sentence-transformers: Dense, LayerNorm, Normalize.

All map embeddings (S, D), float32, and compute in float32, whatever the precision of the encoder.
Each class has `from_config`, which builds it from its config.json, and `config`, the content of that file.
`weight_prefix` precedes the names of its weights in a file.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.checkpoints.st_folder import Module
from tmft.errors import InputError
from tmft.io.atomic import error_text

ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")  # classes of torch.nn


class Dense(nn.Linear):
    """activation(W x + b)"""

    weight_prefix = "linear."

    def __init__(self, in_features: int, out_features: int, bias: bool = True, activation: str = "Identity"):
        super().__init__(in_features, out_features, bias)
        if activation not in ACTIVATIONS:
            raise InputError(f"activation {activation!r} of a Dense: supported are {', '.join(ACTIVATIONS)}")
        self.activation = getattr(nn, activation)()

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return self.activation(F.linear(x, self.weight.float(), bias))

    @classmethod
    def from_config(cls, config: dict) -> "Dense":
        activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
        return cls(config["in_features"], config["out_features"], config.get("bias", True), activation)

    @property
    def config(self) -> dict:
        activation = type(self.activation)
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "bias": self.bias is not None,
            "activation_function": f"{activation.__module__}.{activation.__name__}",
        }


class LayerNorm(nn.LayerNorm):
    """(x - mean) / std over the dimensions of an embedding, then scaled and shifted."""

    weight_prefix = "norm."

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight.float(), self.bias.float(), self.eps)

    @classmethod
    def from_config(cls, config: dict) -> "LayerNorm":
        return cls(config["dimension"])

    @property
    def config(self) -> dict:
        return {"dimension": self.normalized_shape[0]}


class Normalize(nn.Module):
    """x / ||x||: the dot product of two embeddings is then their cosine similarity."""

    weight_prefix, config = "", {}

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)

    @classmethod
    def from_config(cls, config: dict) -> "Normalize":
        return cls()


MODULE_CLASSES = {"Dense": Dense, "LayerNorm": LayerNorm, "Normalize": Normalize}


def load_modules(saved: list[Module]) -> list[nn.Module]:
    """Build the modules that checkpoints/st_folder.py has read, in float32.

    Raises InputError if the configuration of a module and its weights do not fit together.
    """
    modules = []
    for entry in saved:
        try:
            with torch.device("meta"):  # allocates nothing, whatever sizes config.json claims
                module = MODULE_CLASSES[entry.kind].from_config(entry.config)
            weights = {
                name.removeprefix(module.weight_prefix): weight.float()
                for name, weight in entry.weights.items()
            }
            module.load_state_dict(weights, assign=True)
        except (KeyError, TypeError, RuntimeError) as error:
            raise InputError(
                f"{entry.folder} is not a complete {entry.kind} ({error_text(error)}): restore its files"
            ) from None
        modules.append(module)
    return modules


def to_saved_modules(modules: nn.Sequential) -> list[Module]:
    """The inverse of load_modules: the configuration and the weights of each module, to be written."""
    return [
        Module(
            type(module).__name__,
            module.config,
            {module.weight_prefix + name: weight.cpu() for name, weight in module.state_dict().items()},
        )
        for module in modules
    ]
