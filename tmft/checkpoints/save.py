"""An encoder as the files that transformers would write for it."""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tmft.io.atomic import write_file
from tmft.models.bert import BaseEncoder
from tmft.models.registry import FAMILIES, weight_names


def save_encoder(
    encoder: BaseEncoder,
    folder: Path,
    head: dict[str, Tensor] | None = None,
    class_name: str | None = None,
    keys: dict | None = None,
    dtype: torch.dtype = torch.float32,
    prefix: str | None = None,
) -> None:
    """Write config.json and model.safetensors of the truncated encoder.

    head: weights of a head on top, named as in class_name, the class in transformers that has it; keys: what
    that class wants in config.json beyond the encoder's; prefix: of the encoder's names there, None: what is
    usual in the family. Raises InputError if the folder cannot be written.
    """
    config = encoder.config
    family = FAMILIES[config.model_type]
    content = asdict(config) | {
        "architectures": [class_name or family.class_name],
        "num_hidden_layers": len(encoder.layers),
        "dtype": str(dtype).removeprefix("torch."),
        **(keys or {}),
    }
    theirs = {ours: theirs for theirs, ours in weight_names(config).items()}
    prefix = (family.prefix if head else "") if prefix is None else prefix
    weights = {prefix + theirs[name]: weight for name, weight in encoder.state_dict().items()} | (head or {})
    weights = {name: weight.detach().to(dtype).cpu().contiguous() for name, weight in weights.items()}
    write_file(folder / "config.json", json.dumps(family.write_keys(content), indent=2) + "\n")
    save_tensors(weights, folder / "model.safetensors")


def save_tensors(weights: dict[str, Tensor], path: Path, dtype: torch.dtype | None = None) -> None:
    weights = {name: weight.to(dtype or weight.dtype) for name, weight in weights.items()}
    write_file(path, lambda new: save_file(weights, new, metadata={"format": "pt"}))


def weight_bytes(module: nn.Module) -> int:
    """Bytes of its weights in memory."""
    return sum(weight.numel() * weight.element_size() for weight in module.parameters())


def class_of(encoder: BaseEncoder) -> str:
    """The class in transformers that opens the files of this encoder, '' if none can."""
    family = FAMILIES[encoder.config.model_type]
    return "" if len(encoder.layers) < family.min_layers or encoder.config.parts else family.class_name


def has_pooler(encoder: BaseEncoder) -> bool:
    """Whether that class makes weights that are not in the files, and says so."""
    return FAMILIES[encoder.config.model_type].pooler


def what_differs(encoder: BaseEncoder) -> str:
    """What transformers cannot do with the files of this encoder, in one sentence; '' if there is nothing."""
    family, layers = FAMILIES[encoder.config.model_type], len(encoder.layers)
    if layers < family.min_layers:
        return f"transformers cannot run a {encoder.config.model_type} of {layers} layers; tmft can."
    if "decoder" in encoder.config.parts:
        return (
            "transformers opens it as a T5Model and says that queries and keys of the decoder's attention"
            " to itself are missing: the first output, last_hidden_state[:, 0] of one start token, needs"
            " none."
        )
    return ""
