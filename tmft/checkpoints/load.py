"""Load a truncated encoder: read only the tensors of the kept layers, and check the names of all others.

The names of the tensors are in tmft/models/families.py; tmft/checkpoints/save.py writes an encoder back.
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.weights import WeightFiles, parse_dtype
from tmft.encoder import BaseEncoder, EncoderConfig
from tmft.errors import InputError
from tmft.models.families import (
    FAMILIES,
    IGNORED_BUFFERS,
    empty_encoder,
    parameter_names,
    random_encoder,
    remove_prefix,
    rename_legacy_weight,
)


@dataclass
class LoadReport:
    """Which tensors of a checkpoint were loaded; the others belong to removed layers or to known heads."""

    depth: str  # the loaded layers, such as "9 of 12 layers"
    num_parameters: int = 0  # number of elements of the loaded tensors
    dtype: torch.dtype = torch.float32  # of the encoder, not of the file
    loaded: dict[str, str] = field(default_factory=dict)  # name of a parameter -> name of its tensor
    truncated: int = 0  # number of tensors in removed layers
    ignored_heads: Counter[str] = field(default_factory=Counter)  # name of a head -> number of its tensors

    def __str__(self) -> str:
        """Return one line for the log: "loaded the embeddings and 9 of 12 layers: ...; not loaded: ..."."""
        not_loaded = [f"{self.truncated} tensors of the layers above"] if self.truncated else []
        not_loaded += [f"{name} ({count})" for name, count in self.ignored_heads.items()]
        loaded = f"{len(self.loaded)} tensors, {self.num_parameters:,} parameters"
        if self.dtype != torch.float32:
            loaded += f" in {str(self.dtype).removeprefix('torch.')}"
        ignored = ", ".join(not_loaded) or "nothing"
        return f"loaded the embeddings and {self.depth}: {loaded}; not loaded: {ignored}"


def load_encoder_with_report(
    checkpoint: str | os.PathLike[str] | ModelFolder,
    layer: int | None = None,
    components: Iterable[str] = (),
    dtype: str | torch.dtype = torch.float32,
) -> tuple[BaseEncoder, LoadReport]:
    """Return the encoder of a checkpoint, and a report of which of its tensors were loaded.

    components: what is to be loaded besides the encoder, such as ["decoder"] for a T5.
    dtype: that of the weights in memory: float32, float16 or bfloat16 (or their names), or "auto", the one
    that most weights have in the file. Tensors are read and converted one after the other, so that the peak
    memory is that of the encoder and a part of one file. Tensors that are stored in this dtype are
    memory-mapped.
    """
    weight_dtype = parse_dtype(dtype)
    folder = ModelFolder.open(checkpoint)
    config = folder.config(components)
    layer = config.resolve_num_layers(layer)
    encoder = empty_encoder(config, layer)  # its parameters get their values below
    expected = encoder.state_dict()
    files = folder.weights
    report = match_tensors(files, config, layer, expected)

    param_names = {checkpoint_name: name for name, checkpoint_name in report.loaded.items()}
    weight_dtype = weight_dtype or files.common_dtype(list(param_names))
    state_dict = {}
    for checkpoint_name, tensor in files.iter_tensors(list(param_names), weight_dtype):
        shape, expected_shape = tuple(tensor.shape), tuple(expected[param_names[checkpoint_name]].shape)
        if shape != expected_shape:
            raise InputError(
                f"{checkpoint_name} has shape {shape} ({files.path}): config.json asks for {expected_shape}"
            )
        state_dict[param_names[checkpoint_name]] = tensor
        report.num_parameters += tensor.numel()
    report.dtype = weight_dtype
    encoder.load_state_dict(state_dict, assign=True)
    return encoder.eval(), report


def random_encoder_with_report(
    folder: ModelFolder,
    layer: int | None = None,
    components: Iterable[str] = (),
    dtype: str | torch.dtype = torch.float32,
) -> tuple[BaseEncoder, str]:
    """Return an encoder of the same shape as a checkpoint, with random weights, and a text that says so.

    The weights of the checkpoint are not read, only its config.json. Weights are drawn from torch's global
    generator, in float32, and then converted. layer, components, dtype: see load_encoder_with_report; "auto"
    is float32 here. Raises InputError if the weights would not fit into memory.
    """
    weight_dtype = parse_dtype(dtype) or torch.float32
    config = folder.config(components)
    encoder = random_encoder(config, layer).to(weight_dtype)
    count = sum(weight.numel() for weight in encoder.parameters())
    depth = f"the embeddings, layers up to {len(encoder.layers)}, {count:,} parameters"
    return encoder, f"random weights: {depth}"


def match_tensors(
    files: WeightFiles, config: EncoderConfig, layer: int, expected: dict[str, Any]
) -> LoadReport:
    """Match every tensor of a checkpoint to a parameter of the encoder, a removed layer or a known head.

    files: the tensors of the checkpoint. config: the configuration of the checkpoint. layer: how many layers
    are kept. expected: the state dict of the encoder with these layers.
    Returns a report that names the tensor for each parameter; its num_parameters is still 0. Raises
    InputError if a tensor is unknown, if a parameter has no tensor, or if two tensors are the same parameter.
    """
    family, param_names = FAMILIES[config.model_type], dict(parameter_names(config))
    all_layers = expected if layer == config.num_hidden_layers else empty_encoder(config).state_dict()
    depth = f"{layer} of {config.num_hidden_layers} layers"
    report = LoadReport(depth=" and ".join([depth, *config.components]))

    names = {name: rename_legacy_weight(remove_prefix(name, family.prefixes)) for name in files.names}
    for copy, original in family.copies.items():
        if f"{original}.weight" not in names.values():
            param_names[f"{copy}.weight"] = param_names[f"{original}.weight"]
    for checkpoint_name, unprefixed in names.items():
        param_name = param_names.get(unprefixed, "")
        head = next((head for head in family.ignored_heads if f"{unprefixed}.".startswith(f"{head}.")), None)
        if param_name in report.loaded:
            both = f"{report.loaded[param_name]} and {checkpoint_name}"
            raise InputError(f"{both} are the same weight ({files.path}): remove one of them")
        elif param_name in expected:
            report.loaded[param_name] = checkpoint_name
        elif param_name in all_layers:
            report.truncated += 1
        elif head is not None:
            report.ignored_heads[f"rest of the {head}" if head in config.components else head] += 1
        elif not unprefixed.endswith(IGNORED_BUFFERS):
            encoder = f"{config.model_type} encoder of {config.num_hidden_layers} layers"
            raise InputError(
                f"unknown tensor {checkpoint_name} ({files.path}): it belongs neither to a {encoder} nor to "
                "a known head; are model_type and num_hidden_layers in config.json right?"
            )

    missing = [param_name for param_name in expected if param_name not in report.loaded]
    if missing:
        first = next(name for name, param_name in param_names.items() if param_name == missing[0])
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        without = "".join(f", or it is a checkpoint without {name}" for name in config.components)
        raise InputError(
            f"missing tensor {first}{more} ({files.path}): config.json or the weights are incomplete{without}"
        )
    return report
