"""The registry entries of BERT and of the families that run the same encoder, tmft/bert.py.

RoBERTa, XLM-RoBERTa and CamemBERT count positions from the row after that of the padding token. DistilBERT
has no token types, and other names for its modules and for most keys of its config.json.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

import tmft.models.pooler as pooler
from tmft.bert import BertConfig, BertEncoder
from tmft.encoder import EncoderConfig
from tmft.models.family import Family
from tmft.models.pooler import with_pooler

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

# Weight in the checkpoint -> weight of a head in tmft/pretraining/token_heads.py. The last matrix of
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
ELECTRA_RTD = {
    "discriminator_predictions.dense.weight":            "dense.weight",
    "discriminator_predictions.dense.bias":              "dense.bias",
    "discriminator_predictions.dense_prediction.weight": "classifier.weight",
    "discriminator_predictions.dense_prediction.bias":   "classifier.bias",
}
ROBERTA_MLM = {
    "lm_head.dense.weight":                       "dense.weight",
    "lm_head.dense.bias":                         "dense.bias",
    "lm_head.layer_norm.weight":                  "norm.weight",
    "lm_head.layer_norm.bias":                    "norm.bias",
    "lm_head.bias":                               "bias",
}
ROBERTA_HEADS = ("lm_head", "pooler", "classifier", "qa_outputs")

DISTILBERT_WEIGHT_NAMES = {
    "embeddings.word_embeddings":                 "embeddings.word",
    "embeddings.position_embeddings":             "embeddings.position",
    "embeddings.LayerNorm":                       "embeddings.norm",
    "transformer.layer.{n}.attention.q_lin":      "layers.{n}.attention.query",
    "transformer.layer.{n}.attention.k_lin":      "layers.{n}.attention.key",
    "transformer.layer.{n}.attention.v_lin":      "layers.{n}.attention.value",
    "transformer.layer.{n}.attention.out_lin":    "layers.{n}.attention.output",
    "transformer.layer.{n}.sa_layer_norm":        "layers.{n}.attention_norm",
    "transformer.layer.{n}.ffn.lin1":             "layers.{n}.feed_forward.up",
    "transformer.layer.{n}.ffn.lin2":             "layers.{n}.feed_forward.down",
    "transformer.layer.{n}.output_layer_norm":    "layers.{n}.feed_forward_norm",
}
DISTILBERT_MLM = {
    "vocab_transform.weight":                     "dense.weight",
    "vocab_transform.bias":                       "dense.bias",
    "vocab_layer_norm.weight":                    "norm.weight",
    "vocab_layer_norm.bias":                      "norm.bias",
    "vocab_projector.bias":                       "bias",
}
# Field of a configuration -> its key in config.json, for those with another name there; None: it has none.
BERT_KEYS = {"embedding_size": None, "components": None}  # embedding_size always equals hidden_size
DISTILBERT_KEYS = {
    "embedding_size":                               None,
    "type_vocab_size":                              None,
    "layer_norm_eps":                               None,  # transformers ignores it, too
    "hidden_size":                                "dim",
    "num_hidden_layers":                          "n_layers",
    "num_attention_heads":                        "n_heads",
    "intermediate_size":                          "hidden_dim",
    "hidden_act":                                 "activation",
    "hidden_dropout_prob":                        "dropout",
    "attention_probs_dropout_prob":               "attention_dropout",
}
DISTILBERT_OTHER_KEYS = {  # key -> another name of it, which a file may have in its place
    "dim":                                          "hidden_size",
    "n_layers":                                     "num_hidden_layers",
    "n_heads":                                      "num_attention_heads",
}
# Some BERTs and ELECTRAs have relative positions; the decoder of a translation model attends to an encoder.
BERT_SUPPORTED = {"position_embedding_type": ("absolute",), "add_cross_attention": (False,)}
# fmt: on


@dataclass(frozen=True)
class ElectraConfig(BertConfig):
    """The configuration of an ELECTRA."""

    embedding_size: int = field(default=128, kw_only=True)  # whatever hidden_size is, as in transformers


@dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """The configuration of a RoBERTa, an XLM-RoBERTa or a CamemBERT."""

    pad_token_id: int = 1

    @property
    def position_offset(self) -> int:
        """The row of the position table for the first token; the rows before it are for padding or unused."""
        return self.pad_token_id + 1


@dataclass(frozen=True)
class DistilBertConfig(EncoderConfig):
    """The configuration of a DistilBERT, which has no token types."""

    type_vocab_size: int = 0


class DistilBertEncoder(BertEncoder):
    """BERT's encoder without dropout after the attention, as in transformers."""

    def __init__(self, config: EncoderConfig, layer: int | None = None):
        """layer: how many layers to keep, 0 to config.num_hidden_layers; None keeps all."""
        super().__init__(config, layer)
        for module in self.layers:
            module.attention_dropout = nn.Identity()


def position_keys(config: EncoderConfig) -> dict[str, Any]:
    """Return the key that says how positions are encoded, for Family.extra_keys."""
    return {"position_embedding_type": "absolute"}


ROBERTA = Family(
    config=RobertaConfig,
    encoder=with_pooler(BertEncoder),
    keys=BERT_KEYS,
    supported=BERT_SUPPORTED,
    extra_keys=position_keys,
    weight_names=BERT_WEIGHT_NAMES | pooler.WEIGHT_NAMES,
    prefixes=("roberta.",),  # also of XLM-RoBERTa and CamemBERT
    ignored_heads=ROBERTA_HEADS,
    transformers_class="RobertaModel",
    components=("pooler",),
    mlm_head_layouts=(ROBERTA_MLM,),
    mlm_class="RobertaForMaskedLM",
    mlm_activation="gelu",  # whatever hidden_act says, as in transformers
    tokenizer="roberta",
)

FAMILIES: dict[str, Family[Any]] = {
    "bert": Family(
        config=BertConfig,
        encoder=with_pooler(BertEncoder),
        keys=BERT_KEYS,
        supported=BERT_SUPPORTED,
        extra_keys=position_keys,
        weight_names=BERT_WEIGHT_NAMES | pooler.WEIGHT_NAMES,
        prefixes=("bert.",),
        ignored_heads=("cls.predictions", "cls.seq_relationship", "pooler", "classifier", "qa_outputs"),
        transformers_class="BertModel",
        components=("pooler",),
        has_numpy_encoder=True,
        mlm_head_layouts=(BERT_MLM,),
        mlm_class="BertForMaskedLM",
    ),
    "electra": Family(
        config=ElectraConfig,
        encoder=BertEncoder,
        keys={"components": None},
        supported=BERT_SUPPORTED,
        extra_keys=position_keys,
        weight_names=ELECTRA_WEIGHT_NAMES,
        prefixes=("electra.",),
        ignored_heads=(
            "discriminator_predictions",
            "generator_predictions",
            "generator_lm_head",
            "sequence_summary",
            "classifier",
            "qa_outputs",
        ),
        transformers_class="ElectraModel",
        has_numpy_encoder=True,
        mlm_head_layouts=(ELECTRA_MLM,),
        mlm_class="ElectraForMaskedLM",
        mlm_activation="gelu",  # whatever hidden_act says, as in transformers
        rtd_head_layout=ELECTRA_RTD,
    ),
    "roberta": ROBERTA,
    "xlm-roberta": replace(
        ROBERTA,
        transformers_class="XLMRobertaModel",
        mlm_class="XLMRobertaForMaskedLM",
        tokenizer="xlm-roberta",
    ),
    "camembert": replace(
        ROBERTA,
        transformers_class="CamembertModel",
        mlm_class="CamembertForMaskedLM",
        tokenizer="camembert",
    ),
    "distilbert": Family(
        config=DistilBertConfig,
        encoder=DistilBertEncoder,
        keys=DISTILBERT_KEYS,
        other_keys=DISTILBERT_OTHER_KEYS,
        weight_names=DISTILBERT_WEIGHT_NAMES,
        prefixes=("distilbert.",),
        ignored_heads=(
            "vocab_transform",
            "vocab_layer_norm",
            "vocab_projector",
            "pre_classifier",
            "classifier",
            "qa_outputs",
        ),
        transformers_class="DistilBertModel",
        mlm_head_layouts=(DISTILBERT_MLM,),
        mlm_class="DistilBertForMaskedLM",
    ),
}
