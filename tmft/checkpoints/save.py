"""Save a (truncated) encoder in the files that transformers would write for it.

tmft/checkpoints/load.py reads them back; the names of the tensors are in tmft/models/families.py.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tmft.checkpoints.weights import check_finite_weight, convert_tensor
from tmft.device import check_has_values
from tmft.encoder import BaseEncoder, EncoderConfig
from tmft.errors import InputError
from tmft.io.atomic import write_file
from tmft.models.families import FAMILIES, config_to_dict, empty_encoder, parameter_names


def save_encoder(
    encoder: BaseEncoder,
    folder: Path,
    head_weights: dict[str, Tensor] | None = None,
    architecture: str | None = None,
    config_keys: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    prefix: str | None = None,
) -> None:
    """Write config.json and model.safetensors of an encoder, optionally with a head, to a folder.

    head_weights: the weights of a head, under the names that they have in `architecture`.
    architecture: the transformers class that opens the files; None means the class without a head.
    config_keys: keys that this class needs in config.json in addition to those of the encoder.
    dtype: the dtype of the saved weights.
    prefix: what the names of the encoder's weights start with in this class. None means the usual prefix of
    the family (such as "bert.") if there are head_weights, else no prefix.
    Raises InputError if the folder cannot be written.
    """
    config, state_dict = encoder.saved_form()
    family = FAMILIES[config.model_type]
    with_components = family.class_with_components if config.components else ""
    architecture = architecture or with_components or family.transformers_class
    added: dict[str, Any] = {}  # a static model has none of these keys
    if architecture:
        added = {"architectures": [architecture], "dtype": str(dtype).removeprefix("torch.")}
    content = config_to_dict(config, added | (config_keys or {}))
    check_weights(state_dict, config)
    names = reversed(parameter_names(config).items())  # of several names of a weight the first one is written
    checkpoint_names = {param_name: name for name, param_name in names}
    if prefix is None:
        prefix = family.prefixes[0] if head_weights else ""
    weights = {prefix + checkpoint_names[name]: weight for name, weight in state_dict.items()}
    weights |= head_weights or {}
    write_file(folder / "model.safetensors", partial(save_tensors, weights, dtype=dtype))
    write_file(folder / "config.json", json.dumps(content, indent=2) + "\n")


def check_weights(state_dict: dict[str, Tensor], config: EncoderConfig) -> None:
    """Raise InputError unless an encoder has the weights that its configuration says, which a reader expects.

    A layer that was replaced, or that has a parametrization or an adapter, has others.
    """
    shapes, expected = (
        {name: tuple(weight.shape) for name, weight in weights.items()}
        for weights in (state_dict, empty_encoder(config).state_dict())
    )
    if wrong := [name for name in shapes | expected if shapes.get(name) != expected.get(name)]:
        form = f"has {wrong[0]} of shape {shapes[wrong[0]]}" if wrong[0] in shapes else f"lacks {wrong[0]}"
        problem = f"the encoder {form}, unlike its configuration ({config.model_type})"
        raise InputError(f"{problem}: undo the change of its layers, or merge what was added to them")


def save_tensors(
    weights: dict[str, Tensor],
    path: Path,
    dtype: torch.dtype | None = None,
    metadata: dict[str, str] | None = None,
) -> None:
    """Write tensors, {name: tensor}, to a safetensors file, converted to dtype; None keeps that of each.

    Raises InputError for what could not be read again, such as a number that is infinite in this dtype.
    """
    file = Path(path.name)  # where it is now is a temporary folder
    saved = {}
    for name, weight in weights.items():
        check_has_values(weight.device)
        check_finite_weight(weight, name, file)
        weight = weight if dtype is None else convert_tensor(weight, dtype, name, file)
        saved[name] = weight.detach().cpu().contiguous()
    save_file(saved, path, metadata=metadata or {"format": "pt"})


def weight_bytes(module: nn.Module) -> int:
    """Return how many bytes the parameters of a module take in memory."""
    return sum(weight.numel() * weight.element_size() for weight in module.parameters())
