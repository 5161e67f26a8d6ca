"""What may follow the pooling, as sentence-transformers has it: Dense, LayerNorm, Normalize.

All take embeddings (S, D) in float32 and compute in float32, whatever the encoder computes in. `of` makes one
from its config.json, `settings` is that config, and the names of its weights in a file begin with `prefix`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.checkpoints.st_folder import Module
from tmft.errors import InputError
from tmft.io.atomic import reason

ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")  # classes of torch.nn


class Dense(nn.Linear):
    """activation(W x + b)"""

    prefix = "linear."

    def __init__(self, in_features: int, out_features: int, bias: bool = True, activation: str = "Identity"):
        super().__init__(in_features, out_features, bias)
        if activation not in ACTIVATIONS:
            raise InputError(f"activation {activation!r} of a Dense: supported are {', '.join(ACTIVATIONS)}")
        self.activation = getattr(nn, activation)()

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return self.activation(F.linear(x, self.weight.float(), bias))

    @classmethod
    def of(cls, said: dict) -> "Dense":
        activation = str(said.get("activation_function", "Tanh")).rpartition(".")[2]
        return cls(said["in_features"], said["out_features"], said.get("bias", True), activation)

    @property
    def settings(self) -> dict:
        activation = type(self.activation)
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "bias": self.bias is not None,
            "activation_function": f"{activation.__module__}.{activation.__name__}",
        }


class LayerNorm(nn.LayerNorm):
    """(x - mean) / deviation, scaled and shifted."""

    prefix = "norm."

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight.float(), self.bias.float(), self.eps)

    @classmethod
    def of(cls, said: dict) -> "LayerNorm":
        return cls(said["dimension"])

    @property
    def settings(self) -> dict:
        return {"dimension": self.normalized_shape[0]}


class Normalize(nn.Module):
    """x / ||x||, so that the inner product of two embeddings is their cosine."""

    prefix, settings = "", {}

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)

    @classmethod
    def of(cls, said: dict) -> "Normalize":
        return cls()


KINDS = {"Dense": Dense, "LayerNorm": LayerNorm, "Normalize": Normalize}


def load_modules(saved: list[Module]) -> list[nn.Module]:
    """What sentence_folder.py read -> modules, float32. InputError if one does not fit its weights."""
    modules = []
    for entry in saved:
        try:
            with torch.device("meta"):  # however large it says it is
                module = KINDS[entry.kind].of(entry.settings)
            weights = {name.removeprefix(module.prefix): weight for name, weight in entry.weights.items()}
            module.load_state_dict({name: w.float() for name, w in weights.items()}, assign=True)
        except (KeyError, TypeError, RuntimeError) as error:
            raise InputError(
                f"{entry.folder} is not a whole {entry.kind} ({reason(error)}): restore its files"
            ) from None
        modules.append(module)
    return modules


def modules_as_files(modules: nn.Sequential) -> list[Module]:
    """The way back."""
    return [
        Module(
            type(module).__name__,
            module.settings,
            {module.prefix + name: weight.cpu() for name, weight in module.state_dict().items()},
        )
        for module in modules
    ]
