"""Checkpoint to encoder and back: read only the kept tensors, account for every other one, count, save.

encoder = load_encoder("google/electra-base-discriminator", layer=9)       # a hub id[@revision] or a folder
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tmft.encoder import Encoder
from tmft.errors import InputError
from tmft.families.config import EncoderConfig
from tmft.families.deberta import DebertaEncoder
from tmft.files.weights import WeightFiles, find, read_json, write_file

# fmt: off
# Module in the checkpoint -> module in tmft.encoder or tmft.families.deberta; {n} is the number of the layer, from 0.
# load_encoder reads left to right, save_encoder right to left, so no name is written twice.
BERT_NAMES = {
    "embeddings.word_embeddings":                "embeddings.word",
    "embeddings.position_embeddings":            "embeddings.position",
    "embeddings.token_type_embeddings":          "embeddings.token_type",
    "embeddings.LayerNorm":                      "embeddings.norm",
    "encoder.layer.{n}.attention.self.query":    "layers.{n}.attention.query",
    "encoder.layer.{n}.attention.self.key":      "layers.{n}.attention.key",
    "encoder.layer.{n}.attention.self.value":    "layers.{n}.attention.value",
    "encoder.layer.{n}.attention.output.dense":  "layers.{n}.attention.output",
    "encoder.layer.{n}.attention.output.LayerNorm": "layers.{n}.attention_norm",
    "encoder.layer.{n}.intermediate.dense":      "layers.{n}.feed_forward.up",
    "encoder.layer.{n}.output.dense":            "layers.{n}.feed_forward.down",
    "encoder.layer.{n}.output.LayerNorm":        "layers.{n}.feed_forward_norm",
}
ELECTRA_NAMES = BERT_NAMES | {"embeddings_project": "embeddings.project"}  # embedding_size != hidden_size
DEBERTA_NAMES = {
    "embeddings.word_embeddings":                "embeddings.word",
    "embeddings.position_embeddings":            "embeddings.position",
    "embeddings.token_type_embeddings":          "embeddings.token_type",
    "embeddings.embed_proj":                     "embeddings.project",
    "embeddings.LayerNorm":                      "embeddings.norm",
    "encoder.rel_embeddings":                    "rel_embeddings",
    "encoder.LayerNorm":                         "rel_norm",
    "encoder.conv.conv":                         "convolution.conv",
    "encoder.conv.LayerNorm":                    "convolution.norm",
    "encoder.layer.{n}.attention.self.query_proj":     "layers.{n}.attention.query",
    "encoder.layer.{n}.attention.self.key_proj":       "layers.{n}.attention.key",
    "encoder.layer.{n}.attention.self.value_proj":     "layers.{n}.attention.value",
    "encoder.layer.{n}.attention.self.pos_key_proj":   "layers.{n}.attention.pos_key",
    "encoder.layer.{n}.attention.self.pos_query_proj": "layers.{n}.attention.pos_query",
    "encoder.layer.{n}.attention.output.dense":  "layers.{n}.attention.output",
    "encoder.layer.{n}.attention.output.LayerNorm": "layers.{n}.attention_norm",
    "encoder.layer.{n}.intermediate.dense":      "layers.{n}.feed_forward.up",
    "encoder.layer.{n}.output.dense":            "layers.{n}.feed_forward.down",
    "encoder.layer.{n}.output.LayerNorm":        "layers.{n}.feed_forward_norm",
}
# fmt: on


@dataclass(frozen=True)
class Architecture:
    """All that differs between families: the encoder, the names of its weights, what is not part of it."""

    encoder: Callable[[EncoderConfig, int | None], nn.Module]
    names: dict[str, str]
    prefix: str  # of files saved with a head on top; files of a bare encoder have none
    heads: tuple[str, ...]  # modules that are skipped by name where they are not part of the encoder
    class_name: str  # for config.json


ARCHITECTURES = {
    "bert": Architecture(
        encoder=Encoder,
        names=BERT_NAMES,
        prefix="bert.",
        heads=("cls.predictions", "cls.seq_relationship", "pooler", "classifier", "qa_outputs"),
        class_name="BertModel",
    ),
    "electra": Architecture(
        encoder=Encoder,
        names=ELECTRA_NAMES,
        prefix="electra.",
        heads=(
            "discriminator_predictions",
            "generator_predictions",
            "generator_lm_head",
            "classifier",
            "qa_outputs",
        ),
        class_name="ElectraModel",
    ),
    "deberta-v2": Architecture(
        encoder=DebertaEncoder,
        names=DEBERTA_NAMES,
        prefix="deberta.",
        heads=(
            "mask_predictions",
            "lm_predictions",
            "cls",
            "pooler",
            "classifier",
            "qa_outputs",
            "embeddings.position_embeddings",  # in version 3's files, though position_biased_input is false
        ),
        class_name="DebertaV2Model",
    ),
}
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # counters, not weights
LEGACY = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    "word_embeddings._weight": "word_embeddings.weight",  # in some conversions of DeBERTa
}


def modern(name: str) -> str:
    """The present name of a weight that old files call otherwise."""
    for old, new in LEGACY.items():
        name = name.replace(old, new)
    return name


def read_config(folder: Path) -> EncoderConfig:
    return EncoderConfig.from_dict(read_json(folder / "config.json"))


@dataclass
class LoadReport:
    """Which tensors of the file became part of the encoder, and why each of the others did not."""

    kept: int
    parameters: int
    layers: str  # "9 of 12 layers"
    above: int  # tensors of layers that were cut off
    heads: Counter  # name of a head -> number of its tensors

    def __str__(self) -> str:
        left = [f"{self.above} tensors of the layers above"] if self.above else []
        left += [f"{name} ({count})" for name, count in self.heads.items()]
        kept = f"kept the embeddings and {self.layers}: {self.kept} tensors, {self.parameters:,} parameters"
        return f"{kept}; left {', '.join(left) or 'nothing'}"


def load_encoder(where: str | os.PathLike, layer: int | None = None) -> Encoder:
    """The first `layer` layers (None: all) with the weights of a checkpoint, float32, in evaluation mode.

    where: hub id with optional @revision, or folder. Tensors of higher layers are never read.
    Raises InputError if a tensor is missing, unknown or of the wrong shape, or a file cannot be read.
    """
    return read_encoder(find(where), layer)[0]


def read_encoder(folder: Path, layer: int | None = None) -> tuple[Encoder, LoadReport]:
    """load_encoder for a folder that was found, with the account of every tensor in its files."""
    config = read_config(folder)
    layer = config.check_layer(layer)
    architecture = ARCHITECTURES[config.model_type]
    encoder = empty_encoder(config, layer)  # the tensors of the file take the place of its own below
    expected = encoder.state_dict()
    files = WeightFiles(folder)

    kept: dict[str, str] = {}  # our name -> name in the file
    above, heads = 0, Counter()
    for name in files.names:
        bare = name.removeprefix(architecture.prefix)
        head = next((head for head in architecture.heads if bare.startswith(head + ".")), None)
        ours, number = translate(bare, architecture.names)
        if bare in BUFFERS:
            continue
        elif ours in kept:
            raise InputError(
                f"{kept[ours]} and {name} are the same weight ({files.path}): remove one of them"
            )
        elif ours in expected:
            kept[ours] = name
        elif head is not None:
            heads[head] += 1
        elif number is not None and layer <= number < config.num_hidden_layers:
            above += 1
        elif number is not None and number >= config.num_hidden_layers:
            raise InputError(
                f"{name} is above the {config.num_hidden_layers} layers of config.json ({files.path}): "
                "correct num_hidden_layers there"
            )
        else:
            raise InputError(
                f"unknown tensor {name} ({files.path}): it belongs neither to a {config.model_type} encoder "
                "nor to a known head; is model_type in config.json right?"
            )
    if missing := [name for name in expected if name not in kept]:
        theirs = checkpoint_name(missing[0], architecture.names)
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(
            f"missing tensor {theirs}{more} ({files.path}): config.json or the weights are incomplete"
        )

    read = files.read(list(kept.values()))
    weights = {}
    for ours, name in kept.items():
        tensor = read.pop(name)
        if tensor.shape != expected[ours].shape:
            found, wanted = tuple(tensor.shape), tuple(expected[ours].shape)
            raise InputError(f"{name} has shape {found} ({files.path}): config.json asks for {wanted}")
        if not tensor.is_floating_point():
            raise InputError(
                f"{name} has dtype {tensor.dtype} ({files.path}): expected floating point numbers"
            )
        weights[ours] = tensor.float()
    encoder.load_state_dict(weights, assign=True)

    layers = f"{layer} of {config.num_hidden_layers} layers"
    parameters = sum(weight.numel() for weight in weights.values())
    return encoder.eval(), LoadReport(len(kept), parameters, layers, above, heads)


def translate(name: str, names: dict[str, str]) -> tuple[str | None, int | None]:
    """Name of a weight in the file -> (our name, number of its layer or None); (None, None) if unknown.

    "encoder.layer.3.output.LayerNorm.gamma" -> ("layers.3.feed_forward_norm.weight", 3)
    """
    module, _, parameter = modern(name).rpartition(".")
    number = re.search(r"\.(\d+)\.", module)
    n = number and number[1]
    module = module.replace(f".{n}.", ".{n}.", 1)
    if module not in names:
        return None, None
    return f"{names[module]}.{parameter}".format(n=n), n and int(n)


def checkpoint_name(ours: str, names: dict[str, str]) -> str:
    """Our name of a weight -> its name in a checkpoint, without prefix; the way back from translate."""
    module, _, parameter = ours.rpartition(".")
    number = re.search(r"\.(\d+)\.", module)
    if number is not None:
        module = module.replace(f".{number[1]}.", ".{n}.", 1)
    theirs = next(theirs for theirs, our in names.items() if our == module)
    return f"{theirs}.{parameter}".format(n=number and number[1])


def random_encoder(config: EncoderConfig, layer: int | None = None) -> Encoder:
    """An untrained encoder of the same shape, with random weights from torch's global generator."""
    return ARCHITECTURES[config.model_type].encoder(config, layer)


class NoInitialisation(TorchFunctionMode):
    """Inside this context torch.nn.init does nothing (on the meta device it would take a second)."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))


def empty_encoder(config: EncoderConfig, layer: int | None = None) -> Encoder:
    """An encoder of shapes without memory, for counting and for load_encoder to fill."""
    with NoInitialisation(), torch.device("meta"):
        return random_encoder(config, layer)


def parameter_counts(config: EncoderConfig, layer: int | None = None) -> dict[str, int]:
    """Number of parameters with the first `layer` layers, from a config alone: {"paper": n, "stored": n}.

    "paper" is what the TMFT paper counts: embeddings and encoder layers. "stored" is every parameter of the
    truncated encoder, so ELECTRA's projection and DeBERTa's embeddings of relative positions as well.
    """
    encoder = empty_encoder(config, layer)
    embeddings = sum(
        weight.numel()
        for name, weight in encoder.embeddings.named_parameters()
        if not name.startswith("project")
    )
    layers = sum(weight.numel() for weight in encoder.layers.parameters())
    return {"paper": embeddings + layers, "stored": sum(weight.numel() for weight in encoder.parameters())}


def why_not_saved(encoder: Encoder) -> str | None:
    """The reason why a folder of this encoder would not open in other libraries, or None if it would."""
    if encoder.config.model_type == "deberta-v2" and len(encoder.layers) == 0:
        return "a DeBERTa of 0 layers is not saved, as transformers cannot run one"
    return None


def save_encoder(
    encoder: Encoder,
    folder: Path,
    head: dict[str, Tensor] | None = None,
    class_name: str | None = None,
    keys: dict | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write config.json and model.safetensors as transformers would for the truncated encoder.

    head: weights of a head on top, named as in class_name, the class in transformers that has it; keys: what
    that class wants in config.json beyond the encoder's.
    Raises InputError if the folder cannot be written, or for a DeBERTa without layers.
    """
    if reason := why_not_saved(encoder):
        raise InputError(f"{reason} ({folder}): keep 1 layer or more")
    config = encoder.config
    architecture = ARCHITECTURES[config.model_type]
    content = config.to_dict() | {
        "architectures": [class_name or architecture.class_name],
        "num_hidden_layers": len(encoder.layers),
        "dtype": str(dtype).removeprefix("torch."),
        **(keys or {}),
    }
    if config.model_type == "bert":
        del content["embedding_size"]  # not a key of BERT
    if config.model_type != "deberta-v2":
        content["position_embedding_type"] = "absolute"
    prefix = architecture.prefix if head else ""
    weights = {
        prefix + checkpoint_name(name, architecture.names): weight
        for name, weight in encoder.state_dict().items()
    }
    weights |= head or {}
    weights = {name: weight.detach().to(dtype).cpu().contiguous() for name, weight in weights.items()}
    write_file(folder / "config.json", json.dumps(content, indent=2) + "\n")
    write_file(folder / "model.safetensors", lambda path: save_file(weights, path, metadata={"format": "pt"}))
