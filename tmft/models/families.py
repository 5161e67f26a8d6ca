"""The registry FAMILIES: everything that differs between BERT, ELECTRA, DeBERTa, T5 and the other families.

It has one entry per model_type of config.json; the entries stand in the files of the families, and what an
entry says is explained in tmft/models/family.py. No module outside these files asks which family an encoder
belongs to. The functions below the registry build configurations and encoders, and translate the names of
weights.
"""

import json
from collections.abc import Iterable
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, get_args

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import tmft.models.bert_families as bert_families
import tmft.models.deberta_family as deberta_family
import tmft.models.mpnet as mpnet
import tmft.models.rotary_families as rotary_families
import tmft.models.static as static
import tmft.models.t5_decoder as t5_decoder
from tmft.bert import BertConfig
from tmft.encoder import ACTIVATIONS, BaseEncoder, EncoderConfig
from tmft.errors import InputError, sanitize, short_repr
from tmft.io.files import reading
from tmft.models.family import Family

FAMILIES: dict[str, Family[Any]] = {
    **bert_families.FAMILIES,
    **mpnet.FAMILIES,
    **deberta_family.FAMILIES,
    **rotary_families.FAMILIES,
    **static.FAMILIES,
    **t5_decoder.FAMILIES,
}

# Type of a field of a configuration -> the types of its values in config.json, and their name in a message.
VALUE_TYPES: dict[object, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number, 0 or more"),
    float: ((int, float), "a number, 0 or more"),
    bool: ((bool,), "true or false"),
    str: ((str,), "a text"),
}
MAX_LAYERS = 1000  # of a model; more would fill the memory before their weights are found missing
# Keys of config.json that are written only if their value is not the default.
RARE_KEYS = ("is_causal", "is_decoder", "layer_types")
# How the names of tensors end that are constants, not weights: old versions of transformers saved them.
IGNORED_BUFFERS = ("position_ids", "token_type_ids", "rotary_emb.inv_freq", "masked_bias")
# Part of a tensor's name in old checkpoints -> the part that replaces it in current ones.
LEGACY_WEIGHT_NAMES = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    "word_embeddings._weight": "word_embeddings.weight",  # in some conversions of DeBERTa
}


# ------------------------------------------------------------------------------- configurations


def config_from_dict(content: dict[str, Any], components: Iterable[str] = ()) -> EncoderConfig:
    """Return the configuration of an encoder of any family for the content of a config.json.

    Keys that old files omit get the defaults that transformers has always given them.
    components: what is to be loaded besides the encoder, such as ["decoder"] for a T5.
    Raises InputError for a model_type that is not in FAMILIES, a missing size, a value of the wrong type or
    out of range, or a component that the family does not have.

    Example:

    >>> config = config_from_dict(
    ...     {"model_type": "bert", "vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 3,
    ...      "num_attention_heads": 2, "intermediate_size": 16}
    ... )
    >>> type(config).__name__, config.hidden_act, config.max_position_embeddings
    ('BertConfig', 'gelu', 512)
    >>> len(random_encoder(config, layer=2).layers)
    2
    """
    model_type = content.get("model_type", "bert")  # the bert_uncased_L-* checkpoints do not say it
    if model_type not in FAMILIES:
        supported = ", ".join(FAMILIES)
        raise InputError(f"model_type {short_repr(model_type)} (config.json): supported are {supported}")
    if content.get("quantization_config") is not None:
        raise InputError(
            "quantization_config (config.json): quantized weights are not supported, take the checkpoint "
            "from which they were made"
        )
    family = FAMILIES[model_type]
    content = {
        key: value for key, value in content.items() if value is not None or key in family.nullable_keys
    }
    content = {"model_type": model_type} | family.normalize(content)  # which may give it another name
    for name, other in family.other_keys.items():
        if other in content:
            content.setdefault(name, content[other])
    is_encoder = not hasattr(family.config, "is_decoder")
    for name, allowed in (family.supported | ({"is_decoder": (False,)} if is_encoder else {})).items():
        if content.get(name) not in (None, *allowed):
            words = " or ".join(json.dumps(value) for value in allowed) or "null"
            found = sanitize(json.dumps(content[name]), 80)
            raise InputError(f"{name} is {found} (config.json): only {words} is supported")
    values: dict[str, Any] = {}
    for config_field in fields(family.config):
        name, key = config_field.name, family.keys.get(config_field.name, config_field.name)
        if key is not None and key in content:
            check_config_value(key, content[key], config_field.type)
            values[name] = content[key]
        elif config_field.default is not MISSING:
            values[name] = config_field.default
        elif name != "embedding_size":
            raise InputError(f"{key} is missing (config.json): add it, it cannot be guessed")
    values = family.complete(content, {"embedding_size": values["hidden_size"]} | values)
    for component in components:
        if component not in family.components:
            raise InputError(
                f"pooling {component}: model_type {model_type} has no {component}, choose another", "pooling"
            )
    if components:
        values["components"] = tuple(components)
    config = family.config(**values)
    config.check()
    return config


def config_to_dict(config: EncoderConfig, added: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the content of a config.json with which transformers opens a saved encoder.

    added: keys that do not follow from the configuration, such as "architectures".
    """
    family, content = FAMILIES[config.model_type], {}
    for config_field in fields(config):
        key = family.keys.get(config_field.name, config_field.name)
        value = getattr(config, config_field.name)
        if key is not None and not (key in RARE_KEYS and value == config_field.default):
            content[key] = value
    return content | (added or {}) | family.extra_keys(config)


def check_config_value(key: str, value: Any, kind: object) -> None:
    """Raise InputError if a value of config.json has another type than its field, or is negative.

    key: its name in config.json. kind: the type of its field. A key that ends with _act or activation has to
    be the name of an activation in ACTIVATIONS.
    """
    if isinstance(kind, UnionType):  # int | None
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if kind in VALUE_TYPES and value is not None:
        types, expected = VALUE_TYPES[kind]
        may_be_negative = kind is bool or kind is str or key.endswith("_token_id")  # -1 in some files
        if type(value) not in types or not (may_be_negative or value >= 0):
            raise InputError(f"{key} is {short_repr(value)} (config.json): expected {expected}")
    if key.endswith("_layers") and value is not None and value > MAX_LAYERS:
        raise InputError(f"{key} is {short_repr(value)} (config.json): expected {MAX_LAYERS} or fewer")
    if key.endswith(("_act", "activation")) and value not in ACTIVATIONS:
        raise InputError(f"{key} {short_repr(value)} (config.json): supported are {', '.join(ACTIVATIONS)}")


# ------------------------------------------------------------------------------- names of weights


def parameter_names(config: EncoderConfig) -> dict[str, str]:
    """Return {name of a weight in the checkpoint: name of the parameter of the encoder}, for all layers.

    In the table weight_names, a name with {n} stands for one in each layer of the encoder, a name with {m}
    for one in each layer of the decoder. Each module is listed with a weight and a bias, also if it has only
    one of them.
    """
    names = {}
    for checkpoint_module, module in FAMILIES[config.model_type].weight_names.items():
        counts = config.module_counts.items()
        copies = next((count for letter, count in counts if f"{{{letter}}}" in checkpoint_module), 1)
        for n in range(copies):
            for kind in ("weight", "bias"):
                checkpoint_name, name = f"{checkpoint_module}.{kind}", f"{module}.{kind}"
                names[checkpoint_name.format(n=n, m=n)] = name.format(n=n, m=n)
    return names


def remove_prefix(weight_name: str, prefixes: Iterable[str]) -> str:
    """Return the name of a tensor without the first of these prefixes that it starts with."""
    found = next((prefix for prefix in prefixes if weight_name.startswith(prefix)), "")
    return weight_name.removeprefix(found)


def rename_legacy_weight(weight_name: str) -> str:
    """Return the current name of a weight, if it is one that only old checkpoints use, else the same."""
    if weight_name == "embeddings":  # in static models saved by model2vec
        return "embedding.weight"
    for old, new in LEGACY_WEIGHT_NAMES.items():
        weight_name = weight_name.replace(old, new)
    return weight_name


# ------------------------------------------------------------------------------- encoders


def random_encoder(config: EncoderConfig, layer: int | None = None) -> BaseEncoder:
    """Return an encoder with the first `layer` layers (None means all) and random weights.

    The weights are drawn from torch's global generator.
    """
    return FAMILIES[config.model_type].encoder(config, layer)


def empty_encoder(config: EncoderConfig, layer: int | None = None) -> BaseEncoder:
    """Return an encoder with the first `layer` layers (None means all) on torch's meta device.

    Its parameters have shapes, but no values, and take no memory. It is used to count parameters, and to load
    a checkpoint into it. Raises InputError for values of config.json of which torch makes no modules.
    """
    with reading("config.json", "correct its values"), no_init_weights(), torch.device("meta"):
        return random_encoder(config, layer)


class no_init_weights(TorchFunctionMode):  # noqa: N801
    """Inside a with block, the functions of torch.nn.init do nothing, which takes a second less.

    A model is built so if its weights are loaded from a file afterwards.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))


def convert_to_bert(encoder: BaseEncoder) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """Return the configuration and the state dict of a BERT with the weights and outputs of an encoder.

    encoder: one of a family without bert_incompatible. If it counts positions with an offset, the rows before
    the first position are left out of the table. If it has no token types, it gets a single one of zeros,
    because transformers cannot run a BERT without token types.
    """
    config, weights = encoder.config, dict(encoder.state_dict())
    names = [field.name for field in fields(BertConfig) if hasattr(config, field.name)]
    values = {name: getattr(config, name) for name in names}
    changes = {"max_position_embeddings": config.max_tokens, "type_vocab_size": config.type_vocab_size or 1}
    positions = weights["embeddings.position.weight"]
    weights["embeddings.position.weight"] = positions[config.position_offset :]
    if config.type_vocab_size == 0:
        weights["embeddings.token_type.weight"] = torch.zeros_like(positions[:1])
    return BertConfig(**values | changes | {"model_type": "bert"}), weights


def parameter_counts(config: EncoderConfig, layer: int | None = None) -> dict[str, int]:
    """Return how many parameters the first `layer` layers (None means all) have: {"paper": n, "stored": m}.

    "paper" counts as the TMFT paper does: the embeddings and the layers. "stored" counts every parameter of
    the truncated encoder, also ELECTRA's projection and DeBERTa's embeddings of relative positions. Only the
    configuration is needed, no weights.
    """
    encoder = empty_encoder(config, layer)
    count = {name: weight.numel() for name, weight in encoder.named_parameters()}
    paper = [n for name, n in count.items() if name.startswith(("layers.", "embeddings."))]
    projection = [n for name, n in count.items() if name.startswith("embeddings.project.")]
    return {"paper": sum(paper) - sum(projection), "stored": sum(count.values())}
