"""The families of encoders: a row for each. Nothing outside this file asks which family an encoder is of."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import partial

import torch

import tmft.models.deberta as deberta
import tmft.models.static as static
import tmft.models.t5 as t5
import tmft.models.t5_decoder as t5_decoder
from tmft.errors import InputError, short
from tmft.models.bert import ACTIVATIONS, BaseEncoder, Encoder, EncoderConfig
from tmft.speed.no_init import no_init_weights


def whole_heads(config: EncoderConfig) -> None:
    """Raises InputError if the heads do not share the hidden size out."""
    if config.num_attention_heads == 0 or config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"hidden_size {config.hidden_size} is not a multiple of num_attention_heads "
            f"{config.num_attention_heads} (config.json): one of the two is wrong"
        )


@dataclass(frozen=True)
class Family:
    """A row of FAMILIES: all that differs between families.

    read_keys: the content of a config.json -> that of the fields of `config`; write_keys: what is to be
    written -> what readers of the family expect. names: module in the checkpoint -> module of our encoder;
    {n} is the number of the layer, from 0, {m} of a decoder's. prefix: of names in files that hold a head,
    too. heads: modules that are skipped by name where they are not part of the encoder. class_name: of the
    bare encoder in transformers, which can run it with min_layers or more. mlm_head_layouts: names of the
    weights of an MLM head, for each form that files come in; a new head is saved in the first, as mlm_class;
    mlm_keys: what a layout wants in config.json, by its number. mlm_act: the head's activation, None: the
    encoder's. rtd_layout: of ELECTRA's head, None: the family has none. checks: each raises InputError if
    numbers of a config do not fit together. keys: a field of `config` -> its name in config.json, where that
    is another. parts: what can be built beside the encoder. seq2seq_class: of an encoder and decoder that were
    pre-trained by span corruption, None: there is none whose words are scored as in T5. bert_incompatible: why its
    weights cannot be those of a BERT, '' where an encoder of equal widths computes the same.
    shared_in_first_layer: whether it holds what all layers use. pooler: whether class_name has weights that a
    sentence encoder does not use.
    """

    config: type[EncoderConfig]
    encoder: Callable[[EncoderConfig, int | None], BaseEncoder]
    read_keys: Callable[[dict], dict]
    write_keys: Callable[[dict], dict]
    names: dict[str, str]
    prefix: str
    heads: tuple[str, ...]
    class_name: str
    mlm_head_layouts: tuple[dict[str, str], ...]
    mlm_class: str
    mlm_keys: tuple[dict, ...] = ({},)
    mlm_act: str | None = None
    rtd_layout: dict[str, str] | None = None
    min_layers: int = 0
    checks: tuple[Callable[[EncoderConfig], None], ...] = (whole_heads,)
    keys: dict[str, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    seq2seq_class: str | None = None
    bert_incompatible: str = ""
    shared_in_first_layer: bool = False
    pooler: bool = False


# fmt: off
BERT_NAMES = {
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
ELECTRA_NAMES = BERT_NAMES | {"embeddings_project": "embeddings.project"}  # embedding_size != hidden_size

# Weight in the checkpoint -> weight of a head in tmft/pretraining/heads.py. The MLM head's last product is
# with the table of word embeddings: it is stored there, not here.
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
    "discriminator_predictions.dense_prediction.weight": "classify.weight",
    "discriminator_predictions.dense_prediction.bias":   "classify.bias",
}
# fmt: on


BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # counters, not weights
LEGACY = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    "word_embeddings._weight": "word_embeddings.weight",  # in some conversions of DeBERTa
}


def absolute_positions(content: dict) -> dict:
    """Raises InputError for the relative positions that some BERTs have."""
    kind = content.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise InputError(f"position_embedding_type {kind!r} (config.json): only 'absolute' is supported")
    return content


FAMILIES = {
    "bert": Family(
        config=EncoderConfig,
        encoder=Encoder,
        read_keys=lambda content: (
            absolute_positions(content) | {"embedding_size": content.get("hidden_size", 0)}
        ),
        write_keys=lambda content: (
            {k: v for k, v in content.items() if k != "embedding_size"}
            | {"position_embedding_type": "absolute"}
        ),
        names=BERT_NAMES,
        prefix="bert.",
        heads=("cls.predictions", "cls.seq_relationship", "pooler", "classifier", "qa_outputs"),
        class_name="BertModel",
        pooler=True,
        mlm_head_layouts=(BERT_MLM,),
        mlm_class="BertForMaskedLM",
    ),
    "electra": Family(
        config=EncoderConfig,
        encoder=Encoder,
        read_keys=lambda content: {"embedding_size": 128} | absolute_positions(content),  # not hidden_size
        write_keys=lambda content: content | {"position_embedding_type": "absolute"},
        names=ELECTRA_NAMES,
        prefix="electra.",
        heads=(
            "discriminator_predictions",
            "generator_predictions",
            "generator_lm_head",
            "sequence_summary",
            "classifier",
            "qa_outputs",
        ),
        class_name="ElectraModel",
        mlm_head_layouts=(ELECTRA_MLM,),
        mlm_class="ElectraForMaskedLM",
        mlm_act="gelu",  # whatever the config says
        rtd_layout=ELECTRA_RTD,
    ),
    "deberta-v2": Family(
        config=deberta.DebertaConfig,
        encoder=deberta.DebertaEncoder,
        read_keys=deberta.read_keys,
        write_keys=deberta.write_keys,
        names=deberta.NAMES,
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
        mlm_head_layouts=(BERT_MLM, DEBERTA_V3_MLM),
        mlm_class="DebertaV2ForMaskedLM",
        mlm_keys=({"legacy": True}, {"legacy": False}),
        min_layers=1,
        checks=(whole_heads, deberta.DebertaConfig.check),
        bert_incompatible="its attention goes by relative positions",
    ),
    "static": Family(
        config=EncoderConfig,
        encoder=static.Static,
        read_keys=static.read_keys,
        write_keys=static.write_keys,
        names=static.NAMES,
        prefix="",
        heads=(),
        class_name="",
        mlm_head_layouts=(),
        mlm_class="",
        min_layers=1,  # of 0: transformers knows no such model
        bert_incompatible="it is a table without layers",
    ),
    "t5": Family(
        config=t5.T5Config,
        encoder=lambda config, layer: (t5_decoder.T5 if config.parts else t5.T5Encoder)(config, layer),
        read_keys=t5.read_keys,
        write_keys=t5.write_keys,
        names=t5.NAMES | t5_decoder.NAMES,
        prefix="transformer.",
        heads=t5.HEADS,
        class_name="T5EncoderModel",
        mlm_head_layouts=(),
        mlm_class="",
        checks=(t5.T5Config.check,),
        keys=t5.KEYS,
        parts=("decoder",),
        seq2seq_class="T5ForConditionalGeneration",
        bert_incompatible="it has relative positions, no biases and another norm",
        shared_in_first_layer=True,
    ),
}
FAMILIES["mt5"] = replace(
    FAMILIES["t5"],
    read_keys=partial(t5.read_keys, feed_forward_proj="gated-gelu"),
    class_name="MT5EncoderModel",
    seq2seq_class=None,
)
FAMILIES["umt5"] = replace(
    FAMILIES["t5"],
    read_keys=partial(t5.read_keys, feed_forward_proj="gated-gelu", bias_in_each_layer=True),
    class_name="UMT5EncoderModel",
    seq2seq_class=None,
    shared_in_first_layer=False,
)


def config_from_dict(content: dict, parts: Iterable[str] = ()) -> EncoderConfig:
    """The content of a config.json, of any family. Keys that old files omit get the defaults they always had.

    parts: what is to be built beside the encoder, T5's decoder. Raises InputError on a model_type not in
    FAMILIES, a missing size, a value that cannot be, or a part that the family has not.
    """
    model_type = content.get("model_type", "bert")  # the bert_uncased_L-* files do not say
    if model_type == "deberta":
        raise InputError(
            "model_type 'deberta' (config.json): this is version 1, take a DeBERTa of version 2 or 3"
        )
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise InputError(f"model_type {short(model_type)} (config.json): supported are {', '.join(FAMILIES)}")
    if content.get("is_decoder") is True:
        raise InputError(
            "is_decoder is true (config.json): its tokens see those before them alone, take an encoder"
        )
    family = FAMILIES[model_type]
    content = {key: value for key, value in content.items() if value is not None}
    content = family.read_keys(content) | {"model_type": model_type}
    known = {}
    for of in fields(family.config):
        key = family.keys.get(of.name, of.name)  # what the file calls it
        if of.name in content:
            known[of.name] = checked(key, content[of.name], of.type, *range_of(of.name, of.type))
        elif not hasattr(family.config, of.name):
            raise InputError(f"{key} is missing (config.json): add it, it cannot be guessed")
    known |= {"parts": tuple(parts)} if parts else {}
    for part in parts:
        if part not in family.parts:
            raise InputError(f"pooling {part}: model_type {model_type} has none, choose another", "pooling")
    config = family.config(**known)
    for check in family.checks:
        check(config)
    return config


def range_of(name: str, kind: type) -> tuple[int, int]:
    """The least and the most that a field can be. More is a mistake: no machine could hold it."""
    if kind is float:
        return 0, 1 if name.endswith(("_prob", "_eps")) else 1_000_000
    most = 1000 if name.endswith("_layers") else 10_000_000
    return int(name in ("vocab_size", "hidden_size")), most


def checked(name: str, value, kind: type, least: int, most: int):
    """A value of config.json itself. Raises InputError if it is not of the kind that its field is, or not
    from least to most."""
    if kind is int and (type(value) is not int or value < 0):
        raise InputError(f"{name} is {short(value)} (config.json): expected a whole number, 0 or more")
    if kind is float and (type(value) not in (int, float) or not value >= 0):
        raise InputError(f"{name} is {short(value)} (config.json): expected a number, 0 or more")
    if kind in (int, float) and not least <= value <= most:
        raise InputError(f"{name} is {short(value)} (config.json): expected {least} to {most}")
    if kind is bool and type(value) is not bool:
        raise InputError(f"{name} is {short(value)} (config.json): expected true or false")
    if name.endswith("_act") and not (isinstance(value, str) and value in ACTIVATIONS):
        raise InputError(f"{name} {short(value)} (config.json): supported are {', '.join(ACTIVATIONS)}")
    return value


def weight_names(config: EncoderConfig) -> dict[str, str]:
    """{weight in the checkpoint: weight of our encoder} of every layer; saving reads it right to left."""
    return {
        f"{theirs}.{kind}".format(n=n, m=n): f"{ours}.{kind}".format(n=n, m=n)
        for theirs, ours in FAMILIES[config.model_type].names.items()
        for n in range(repeats(theirs, config))
        for kind in ("weight", "bias")
    }


def repeats(name: str, config: EncoderConfig) -> int:
    """How many modules a name of FAMILIES stands for: one for each layer, or each of a decoder's."""
    if "{m}" in name:
        return config.num_decoder_layers
    return config.num_hidden_layers if "{n}" in name else 1


def modern(name: str) -> str:
    """The present name of a weight that old files call otherwise."""
    if name == "embeddings":  # of static models by model2vec
        return "embedding.weight"
    for old, new in LEGACY.items():
        name = name.replace(old, new)
    return name


def random_encoder(config: EncoderConfig, layer: int | None = None) -> BaseEncoder:
    """The first `layer` layers (None: all), with random weights from torch's global generator."""
    return FAMILIES[config.model_type].encoder(config, layer)


def empty_encoder(config: EncoderConfig, layer: int | None = None) -> BaseEncoder:
    """The same in shapes without memory, for counting and to be filled."""
    with no_init_weights(), torch.device("meta"):
        return random_encoder(config, layer)


def check_fits(config: EncoderConfig, layer: int | None = None) -> None:
    """Raises InputError, before anything is allocated, if random weights of this shape would not fit."""
    size, memory = 4 * parameter_counts(config, layer)["stored"], os.sysconf("SC_PAGE_SIZE")
    memory *= os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        have = f"this machine has {memory / 1e9:,.0f}"
        raise InputError(f"weights of this shape take {size / 1e9:,.0f} GB, {have}: correct config.json")


def parameter_counts(config: EncoderConfig, layer: int | None = None) -> dict[str, int]:
    """Number of parameters with the first `layer` layers, from a config alone: {"paper": n, "stored": n}.

    "paper" is what the TMFT paper counts: embeddings and encoder layers. "stored" is every parameter of the
    truncated encoder, so ELECTRA's projection and DeBERTa's embeddings of relative positions as well.
    """
    encoder = empty_encoder(config, layer)
    count = {name: weight.numel() for name, weight in encoder.named_parameters()}
    paper = [n for name, n in count.items() if name.startswith(("layers.", "embeddings."))]
    projection = [n for name, n in count.items() if name.startswith("embeddings.project.")]
    return {"paper": sum(paper) - sum(projection), "stored": sum(count.values())}
