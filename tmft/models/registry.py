"""The registry FAMILIES: everything that differs between BERT, ELECTRA, DeBERTa, T5 and static models.

It has one entry per model_type of config.json. No module outside this file asks which family an encoder
belongs to. The functions below the registry build configurations and encoders, and translate the names of
weights.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import partial

import torch

import tmft.models.deberta as deberta
import tmft.models.static as static
import tmft.models.t5 as t5
import tmft.models.t5_decoder as t5_decoder
from tmft.errors import InputError, short_repr
from tmft.models.base import ACTIVATIONS, BaseEncoder, EncoderConfig
from tmft.models.bert import BertEncoder
from tmft.speed.no_init import no_init_weights


def check_head_size(config: EncoderConfig) -> None:
    """Raise InputError if hidden_size is not a multiple of num_attention_heads."""
    if config.num_attention_heads == 0 or config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"hidden_size {config.hidden_size} is not a multiple of num_attention_heads "
            f"{config.num_attention_heads} (config.json): one of the two is wrong"
        )


@dataclass(frozen=True)
class Family:
    """An entry of FAMILIES: how checkpoints of one model_type are read, built and saved.

    "Saved" means in the files that transformers would write. Each field is explained by a comment.
    """

    # The encoder and its configuration.
    config: type[EncoderConfig]
    encoder: Callable[[EncoderConfig, int | None], BaseEncoder]  # (config, number of layers) -> encoder
    config_from_hf: Callable[[dict], dict]  # content of a config.json -> fields of `config`
    config_to_hf: Callable[[dict], dict]  # fields of `config` -> content of a config.json for transformers

    # Module in the checkpoint -> module of the encoder; {n} is the number of a layer, {m} of a decoder layer.
    weight_names: dict[str, str]
    # What these names start with in a checkpoint that also has a head.
    prefix: str
    # Modules of a checkpoint that are not loaded where the encoder does not have them.
    ignored_heads: tuple[str, ...]

    # The transformers class that opens a saved encoder without a head; '' if there is none.
    transformers_class: str
    has_pooler: bool = False  # whether transformers_class creates a pooler, which a sentence encoder lacks
    min_layers: int = 0  # transformers_class cannot run an encoder with fewer layers
    # The transformers class that opens an encoder with a head for masked language modeling; '' if there is
    # none. A layout maps the name of a weight in the checkpoint to the weight of the head. Checkpoints come
    # in each of these layouts; new heads are saved in the first one.
    mlm_class: str = ""
    mlm_head_layouts: tuple[dict[str, str], ...] = ()
    mlm_config_keys: tuple[dict, ...] = ({},)  # for each layout: keys that config.json needs in addition
    mlm_activation: str | None = None  # activation of the head; None means that of the encoder, hidden_act
    # The layout of ELECTRA's head for replaced token detection; None if there is no such head.
    rtd_head_layout: dict[str, str] | None = None
    # The transformers class that opens encoder and decoder after pre-training by span corruption; None if the
    # family cannot be pre-trained so (its output layer differs from T5's).
    seq2seq_class: str | None = None

    # Details of the configuration and the architecture.
    config_names: dict[str, str] = field(default_factory=dict)  # field of `config` -> its key in config.json
    checks: tuple[Callable[[EncoderConfig], None], ...] = (check_head_size,)  # raise InputError
    components: tuple[str, ...] = ()  # what can be loaded besides the encoder, such as a decoder
    bert_incompatible: str = ""  # why its weights cannot be stored as a BERT of the same sizes; '': they can
    shared_in_first_layer: bool = False  # layer 0 holds weights that all layers use: it cannot be removed


# fmt: off
# Module in the checkpoint -> module of our encoder; {n} is the number of the layer, from 0. Loading reads
# these tables from left to right and saving from right to left, so no name is written twice.
BERT_WEIGHT_NAMES = {
    "embeddings.word_embeddings":                   "embeddings.word",
    "embeddings.position_embeddings":               "embeddings.position",
    "embeddings.token_type_embeddings":             "embeddings.token_type",
    "embeddings.LayerNorm":                         "embeddings.norm",
    "encoder.layer.{n}.attention.self.query":       "layers.{n}.attention.query",
    "encoder.layer.{n}.attention.self.key":         "layers.{n}.attention.key",
    "encoder.layer.{n}.attention.self.value":       "layers.{n}.attention.value",
    "encoder.layer.{n}.attention.output.dense":     "layers.{n}.attention.output",
    "encoder.layer.{n}.attention.output.LayerNorm": "layers.{n}.attention_norm",
    "encoder.layer.{n}.intermediate.dense":         "layers.{n}.feed_forward.up",
    "encoder.layer.{n}.output.dense":               "layers.{n}.feed_forward.down",
    "encoder.layer.{n}.output.LayerNorm":           "layers.{n}.feed_forward_norm",
}
ELECTRA_WEIGHT_NAMES = BERT_WEIGHT_NAMES | {  # the projection is there if embedding_size != hidden_size
    "embeddings_project":                           "embeddings.project",
}

# Weight in the checkpoint -> weight of a pre-training head in tmft/pretraining/heads.py. The last matrix of
# an MLM head is the matrix of the word embeddings, so it is not listed here.
BERT_MLM = {
    "cls.predictions.transform.dense.weight":     "dense.weight",
    "cls.predictions.transform.dense.bias":       "dense.bias",
    "cls.predictions.transform.LayerNorm.weight": "norm.weight",
    "cls.predictions.transform.LayerNorm.bias":   "norm.bias",
    "cls.predictions.bias":                       "bias",
}
ELECTRA_MLM = {
    "generator_predictions.dense.weight":         "dense.weight",
    "generator_predictions.dense.bias":           "dense.bias",
    "generator_predictions.LayerNorm.weight":     "norm.weight",
    "generator_predictions.LayerNorm.bias":       "norm.bias",
    "generator_lm_head.bias":                     "bias",
}
DEBERTA_V3_MLM = {
    "lm_predictions.lm_head.dense.weight":        "dense.weight",
    "lm_predictions.lm_head.dense.bias":          "dense.bias",
    "lm_predictions.lm_head.LayerNorm.weight":    "norm.weight",
    "lm_predictions.lm_head.LayerNorm.bias":      "norm.bias",
    "lm_predictions.lm_head.bias":                "bias",
}
ELECTRA_RTD = {
    "discriminator_predictions.dense.weight":            "dense.weight",
    "discriminator_predictions.dense.bias":              "dense.bias",
    "discriminator_predictions.dense_prediction.weight": "classifier.weight",
    "discriminator_predictions.dense_prediction.bias":   "classifier.bias",
}
# fmt: on

IGNORED_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # constants, not weights
# Part of a tensor's name in old checkpoints -> the part that replaces it in current ones.
LEGACY_WEIGHT_NAMES = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    "word_embeddings._weight": "word_embeddings.weight",  # in some conversions of DeBERTa
}


def check_absolute_positions(content: dict) -> None:
    """Raise InputError if a config.json asks for relative positions, as some BERTs and ELECTRAs do."""
    kind = content.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise InputError(f"position_embedding_type {kind!r} (config.json): only 'absolute' is supported")


def bert_config_from_hf(content: dict) -> dict:
    """Return the fields of EncoderConfig for the content of a BERT's config.json.

    BERT's config.json has no embedding_size, which always equals hidden_size.
    """
    check_absolute_positions(content)
    return content | {"embedding_size": content.get("hidden_size", 0)}


def bert_config_to_hf(content: dict) -> dict:
    """Return the content of a config.json with which transformers opens a saved BERT.

    content: {field: value} of an EncoderConfig; embedding_size, which a BERT does not have, is left out.
    """
    content = {key: value for key, value in content.items() if key != "embedding_size"}
    return content | {"position_embedding_type": "absolute"}


def electra_config_from_hf(content: dict) -> dict:
    """Return the fields of EncoderConfig for the content of an ELECTRA's config.json."""
    check_absolute_positions(content)
    return {"embedding_size": 128} | content  # the default of transformers, whatever hidden_size is


def electra_config_to_hf(content: dict) -> dict:
    """Return the content of a config.json with which transformers opens a saved ELECTRA.

    content: {field: value} of an EncoderConfig.
    """
    return content | {"position_embedding_type": "absolute"}


FAMILIES = {
    "bert": Family(
        config=EncoderConfig,
        encoder=BertEncoder,
        config_from_hf=bert_config_from_hf,
        config_to_hf=bert_config_to_hf,
        weight_names=BERT_WEIGHT_NAMES,
        prefix="bert.",
        ignored_heads=("cls.predictions", "cls.seq_relationship", "pooler", "classifier", "qa_outputs"),
        transformers_class="BertModel",
        has_pooler=True,
        mlm_head_layouts=(BERT_MLM,),
        mlm_class="BertForMaskedLM",
    ),
    "electra": Family(
        config=EncoderConfig,
        encoder=BertEncoder,
        config_from_hf=electra_config_from_hf,
        config_to_hf=electra_config_to_hf,
        weight_names=ELECTRA_WEIGHT_NAMES,
        prefix="electra.",
        ignored_heads=(
            "discriminator_predictions",
            "generator_predictions",
            "generator_lm_head",
            "sequence_summary",
            "classifier",
            "qa_outputs",
        ),
        transformers_class="ElectraModel",
        mlm_head_layouts=(ELECTRA_MLM,),
        mlm_class="ElectraForMaskedLM",
        mlm_activation="gelu",  # whatever hidden_act says, as in transformers
        rtd_head_layout=ELECTRA_RTD,
    ),
    "deberta-v2": Family(
        config=deberta.DebertaConfig,
        encoder=deberta.DebertaEncoder,
        config_from_hf=deberta.config_from_hf,
        config_to_hf=deberta.config_to_hf,
        weight_names=deberta.WEIGHT_NAMES,
        prefix="deberta.",
        ignored_heads=(
            "mask_predictions",
            "lm_predictions",
            "cls",
            "pooler",
            "classifier",
            "qa_outputs",
            "embeddings.position_embeddings",  # in files of version 3, though position_biased_input is false
        ),
        transformers_class="DebertaV2Model",
        mlm_head_layouts=(BERT_MLM, DEBERTA_V3_MLM),
        mlm_class="DebertaV2ForMaskedLM",
        mlm_config_keys=({"legacy": True}, {"legacy": False}),
        min_layers=1,
        checks=(check_head_size, deberta.DebertaConfig.check),
        bert_incompatible="its attention uses relative positions",
    ),
    "static": Family(
        config=EncoderConfig,
        encoder=static.StaticEmbedding,
        config_from_hf=static.config_from_hf,
        config_to_hf=static.config_to_hf,
        weight_names=static.WEIGHT_NAMES,
        prefix="",
        ignored_heads=(),
        transformers_class="",
        min_layers=1,  # it has none: transformers has no such model
        bert_incompatible="it is a table of word vectors without layers",
    ),
    "t5": Family(
        config=t5.T5Config,
        encoder=lambda config, layer: (
            t5_decoder.T5WithDecoder(config, layer) if config.components else t5.T5Encoder(config, layer)
        ),
        config_from_hf=t5.config_from_hf,
        config_to_hf=t5.config_to_hf,
        weight_names=t5.WEIGHT_NAMES | t5_decoder.WEIGHT_NAMES,
        prefix="transformer.",
        ignored_heads=t5.IGNORED_HEADS,
        transformers_class="T5EncoderModel",
        checks=(t5.T5Config.check,),
        config_names=t5.CONFIG_NAMES,
        components=("decoder",),
        seq2seq_class="T5ForConditionalGeneration",
        bert_incompatible="it has relative positions, no biases and another norm",
        shared_in_first_layer=True,
    ),
}
FAMILIES["mt5"] = replace(
    FAMILIES["t5"],
    config_from_hf=partial(t5.config_from_hf, feed_forward_proj="gated-gelu"),
    transformers_class="MT5EncoderModel",
    seq2seq_class=None,
)
FAMILIES["umt5"] = replace(
    FAMILIES["t5"],
    config_from_hf=partial(t5.config_from_hf, feed_forward_proj="gated-gelu", bias_in_each_layer=True),
    transformers_class="UMT5EncoderModel",
    seq2seq_class=None,
    shared_in_first_layer=False,
)


# ------------------------------------------------------------------------------- configurations


def config_from_dict(content: dict, components: Iterable[str] = ()) -> EncoderConfig:
    """Return the configuration of an encoder of any family for the content of a config.json.

    Keys that old files omit get the defaults that transformers has always given them.
    components: what is to be loaded besides the encoder, such as ["decoder"] for a T5.
    Raises InputError for a model_type that is not in FAMILIES, a missing size, a value of the wrong type or
    out of range, or a component that the family does not have.
    """
    model_type = content.get("model_type", "bert")  # the bert_uncased_L-* checkpoints do not say it
    if model_type == "deberta":
        raise InputError(
            "model_type 'deberta' (config.json): this is version 1, take a DeBERTa of version 2 or 3"
        )
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        supported = ", ".join(FAMILIES)
        raise InputError(f"model_type {short_repr(model_type)} (config.json): supported are {supported}")
    if content.get("is_decoder") is True:
        raise InputError("is_decoder is true (config.json): decoders are not supported, use an encoder")
    family = FAMILIES[model_type]
    content = {key: value for key, value in content.items() if value is not None}
    content = family.config_from_hf(content) | {"model_type": model_type}
    content.pop("components", None)  # a parameter of this function: of no meaning in a config.json
    values, components = {}, tuple(components)
    for config_field in fields(family.config):
        name, kind = config_field.name, config_field.type
        key = family.config_names.get(name, name)  # the name in config.json
        if name in content:
            check_value(key, content[name], kind, *value_range(name, kind))
            values[name] = content[name]
        elif not hasattr(family.config, name):  # it has no default
            raise InputError(f"{key} is missing (config.json): add it, it cannot be guessed")
    if components:
        values["components"] = components
    for component in components:
        if component not in family.components:
            raise InputError(
                f"pooling {component}: model_type {model_type} has no {component}, choose another", "pooling"
            )
    config = family.config(**values)
    for check in family.checks:
        check(config)
    return config


def value_range(name: str, kind: type) -> tuple[int, int]:
    """Return the smallest and the largest value that a field of a configuration may have.

    name: the name of the field. kind: its type. Larger values must be mistakes.
    """
    if kind is float:
        return 0, 1 if name.endswith(("_prob", "_eps")) else 1_000_000
    largest = 1000 if name.endswith("_layers") else 10_000_000
    return int(name in ("vocab_size", "hidden_size")), largest


def check_value(key: str, value, kind: type, smallest: int, largest: int) -> None:
    """Raise InputError if a value of config.json has the wrong type or is out of range.

    key: its name in config.json. kind: the type that it should have. smallest, largest: its range, if it is a
    number. A key that ends with _act has to be the name of an activation in ACTIVATIONS.
    """
    if kind is int and (type(value) is not int or value < 0):
        raise InputError(f"{key} is {short_repr(value)} (config.json): expected a whole number, 0 or more")
    if kind is float and (type(value) not in (int, float) or not value >= 0):
        raise InputError(f"{key} is {short_repr(value)} (config.json): expected a number, 0 or more")
    if kind in (int, float) and not smallest <= value <= largest:
        raise InputError(f"{key} is {short_repr(value)} (config.json): expected {smallest} to {largest}")
    if kind is bool and type(value) is not bool:
        raise InputError(f"{key} is {short_repr(value)} (config.json): expected true or false")
    if key.endswith("_act") and not (isinstance(value, str) and value in ACTIVATIONS):
        raise InputError(f"{key} {short_repr(value)} (config.json): supported are {', '.join(ACTIVATIONS)}")


# ------------------------------------------------------------------------------- names of weights


def parameter_names(config: EncoderConfig) -> dict[str, str]:
    """Return {name of a weight in the checkpoint: name of the parameter of the encoder}, for all layers.

    Each module is listed with a weight and a bias, also if it has only one of them.
    """
    return {
        f"{checkpoint_module}.{kind}".format(n=n, m=n): f"{module}.{kind}".format(n=n, m=n)
        for checkpoint_module, module in FAMILIES[config.model_type].weight_names.items()
        for n in range(num_copies(checkpoint_module, config))
        for kind in ("weight", "bias")
    }


def num_copies(name: str, config: EncoderConfig) -> int:
    """Return how many modules a name in the table weight_names stands for.

    A name with {n} stands for one in each layer of the encoder, a name with {m} for one in each layer of the
    decoder, and all others for a single module.
    """
    if "{m}" in name:
        return config.num_decoder_layers
    return config.num_hidden_layers if "{n}" in name else 1


def rename_legacy(name: str) -> str:
    """Return the current name of a weight, if `name` is one that only old checkpoints use, else `name`."""
    if name == "embeddings":  # in static models saved by model2vec
        return "embedding.weight"
    for old, new in LEGACY_WEIGHT_NAMES.items():
        name = name.replace(old, new)
    return name


# ------------------------------------------------------------------------------- encoders


def random_encoder(config: EncoderConfig, layer: int | None = None) -> BaseEncoder:
    """Return an encoder with the first `layer` layers (None means all) and random weights.

    The weights are drawn from torch's global generator.
    """
    return FAMILIES[config.model_type].encoder(config, layer)


def empty_encoder(config: EncoderConfig, layer: int | None = None) -> BaseEncoder:
    """Return an encoder with the first `layer` layers (None means all) on torch's meta device.

    Its parameters have shapes, but no values, and take no memory. It is used to count parameters, and to load
    a checkpoint into it.
    """
    with no_init_weights(), torch.device("meta"):
        return random_encoder(config, layer)


def check_memory(config: EncoderConfig, layer: int | None = None) -> None:
    """Raise InputError if random weights of the first `layer` layers would not fit into memory.

    The check itself allocates nothing.
    """
    size, memory = 4 * parameter_counts(config, layer)["stored"], os.sysconf("SC_PAGE_SIZE")
    memory *= os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        have = f"this machine has {memory / 1e9:,.0f}"
        raise InputError(f"weights of this shape take {size / 1e9:,.0f} GB, {have}: correct config.json")


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
