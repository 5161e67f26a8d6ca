"""Checkpoint to encoder: read only the kept tensors, account for every other one, count.

The names of the tensors are in models/registry.py; checkpoints/save.py goes the way back.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from tmft.checkpoints.hub import resolve_checkpoint
from tmft.checkpoints.load_report import LoadReport
from tmft.checkpoints.st_modules import read_config_dict, transformer_folder
from tmft.checkpoints.weights import WeightFiles
from tmft.errors import InputError
from tmft.models.base import BaseEncoder, EncoderConfig
from tmft.models.registry import (
    BUFFERS,
    FAMILIES,
    check_memory,
    config_from_dict,
    empty_encoder,
    parameter_names,
    random_encoder,
    rename_legacy,
)


def read_config(folder: Path, parts=()) -> EncoderConfig:
    return config_from_dict(read_config_dict(folder), parts)


def load_encoder(where: str | os.PathLike, layer: int | None = None) -> BaseEncoder:
    """The first `layer` layers (None: all) with the weights of a checkpoint, float32, in evaluation mode.

    where: hub id with optional @revision, or folder. Tensors of higher layers are never read.
    Raises InputError if a tensor is missing, unknown or of the wrong shape, or a file cannot be read.
    """
    return load_encoder_with_report(resolve_checkpoint(where), layer)[0]


def load_encoder_with_report(
    folder: Path, layer: int | None = None, parts=()
) -> tuple[BaseEncoder, LoadReport]:
    """load_encoder for a folder that was found, with the account of every tensor in its files.

    parts: names of what is read beside the encoder, as for config_from_dict."""
    config = read_config(folder, parts)
    layer = config.resolve_num_layers(layer)
    encoder = empty_encoder(config, layer)  # the tensors of the file take the place of its own below
    expected = encoder.state_dict()
    files = WeightFiles(transformer_folder(folder))
    report = match_tensors(files, config, layer, expected)

    read = files.read_tensors(list(report.loaded.values()))
    weights = {}
    for ours, name in report.loaded.items():
        tensor = read.pop(name)
        found, wanted = tuple(tensor.shape), tuple(expected[ours].shape)
        if found != wanted:
            raise InputError(f"{name} has shape {found} ({files.path}): config.json asks for {wanted}")
        if not tensor.is_floating_point():
            raise InputError(f"{name} has dtype {tensor.dtype} ({files.path}): expected floating point")
        weights[ours] = tensor.float()
        report.parameters += tensor.numel()
    encoder.load_state_dict(weights, assign=True)
    return encoder.eval(), report


def random_encoder_with_report(
    folder: Path, layer: int | None = None, components: Iterable[str] = ()
) -> tuple[BaseEncoder, str]:
    """Build an encoder of the shape of a checkpoint with random weights; the checkpoint's weights are not read.

    The weights are drawn from torch's global generator. components: as for load_encoder_with_report.
    """
    config = read_config(folder, components)
    check_memory(config, layer)
    encoder = random_encoder(config, layer)
    count = sum(weight.numel() for weight in encoder.parameters())
    report = f"random weights: the embeddings, layers up to {len(encoder.layers)}, {count:,} parameters"
    return encoder, report


def match_tensors(files: WeightFiles, config: EncoderConfig, layer: int, expected: dict) -> LoadReport:
    """What becomes of every tensor. expected: our names of those to keep. InputError if one is not placed."""
    family, ours_of = FAMILIES[config.model_type], parameter_names(config)
    whole = expected if layer == config.num_hidden_layers else empty_encoder(config).state_dict()
    report = LoadReport(" and ".join([f"{layer} of {config.num_hidden_layers} layers", *config.components]))
    for name in files.names:
        bare = rename_legacy(name.removeprefix(family.prefix))
        ours = ours_of.get(bare)
        head = next((head for head in family.heads if bare.startswith(head + ".")), None)
        if ours in report.loaded:
            both = f"{report.loaded[ours]} and {name}"
            raise InputError(f"{both} are the same weight ({files.path}): remove one of them")
        elif ours in expected:
            report.loaded[ours] = name
        elif ours in whole:
            report.truncated += 1
        elif head is not None:
            report.ignored_heads[f"rest of the {head}" if head in config.components else head] += 1
        elif bare not in BUFFERS:
            shape = f"{config.model_type} encoder of {config.num_hidden_layers} layers"
            raise InputError(
                f"unknown tensor {name} ({files.path}): it belongs neither to a {shape} nor to a known head; "
                "are model_type and num_hidden_layers in config.json right?"
            )
    if missing := [ours for ours in expected if ours not in report.loaded]:
        theirs = next(theirs for theirs, ours in ours_of.items() if ours == missing[0])
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        which = f"missing tensor {theirs}{more} ({files.path})"
        absent = "".join(f", or it is a checkpoint without {part}" for part in config.components)
        raise InputError(f"{which}: config.json or the weights are incomplete{absent}")
    return report
