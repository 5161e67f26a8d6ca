"""The registry entry of DeBERTa, versions 2 and 3: its config.json, the names of its weights, and its heads.

The encoder is tmft/deberta.py.
"""

from typing import Any

from tmft.deberta import DebertaConfig, DebertaEncoder
from tmft.models.bert_families import BERT_MLM
from tmft.models.family import Family


def normalize_deberta(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a config.json with each value in the form that DebertaConfig has."""
    content = dict(content)
    for name in ("max_relative_positions", "position_buckets"):
        if type(content.get(name)) is int:
            content[name] = max(content[name], 0)  # -1 means "not used"
    content["norm_rel_ebd"] = str(content.get("norm_rel_ebd", "none")).lower()
    terms = content.get("pos_att_type", ())
    terms = terms if isinstance(terms, (list, tuple)) else str(terms).split("|")  # a list, or "p2c|c2p"
    terms = [str(term).strip().lower() for term in terms]
    return content | {"pos_att_type": tuple(dict.fromkeys(term for term in terms if term))}


def complete_deberta(content: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a DebertaConfig, see Family.complete."""
    distances = values["max_relative_positions"] or values["max_position_embeddings"]
    return values | {"max_relative_positions": distances}


def pooler_keys(config: DebertaConfig) -> dict[str, Any]:
    """Return the keys of a pooler, which transformers expects; the saved encoder has no pooler."""
    return {"pooler_dropout": 0, "pooler_hidden_act": "gelu", "pooler_hidden_size": config.hidden_size}


# fmt: off
# Module in the checkpoint -> module of tmft.deberta; {n} is the number of the layer, from 0.
WEIGHT_NAMES = {
    "embeddings.word_embeddings":                      "embeddings.word",
    "embeddings.position_embeddings":                  "embeddings.position",
    "embeddings.token_type_embeddings":                "embeddings.token_type",
    "embeddings.embed_proj":                           "embeddings.project",
    "embeddings.LayerNorm":                            "embeddings.norm",
    "encoder.rel_embeddings":                          "rel_embeddings",
    "encoder.LayerNorm":                               "rel_norm",
    "encoder.conv.conv":                               "convolution.conv",
    "encoder.conv.LayerNorm":                          "convolution.norm",
    "encoder.layer.{n}.attention.self.query_proj":     "layers.{n}.attention.query",
    "encoder.layer.{n}.attention.self.key_proj":       "layers.{n}.attention.key",
    "encoder.layer.{n}.attention.self.value_proj":     "layers.{n}.attention.value",
    "encoder.layer.{n}.attention.self.pos_key_proj":   "layers.{n}.attention.pos_key",
    "encoder.layer.{n}.attention.self.pos_query_proj": "layers.{n}.attention.pos_query",
    "encoder.layer.{n}.attention.output.dense":        "layers.{n}.attention.output",
    "encoder.layer.{n}.attention.output.LayerNorm":    "layers.{n}.attention_norm",
    "encoder.layer.{n}.intermediate.dense":            "layers.{n}.feed_forward.up",
    "encoder.layer.{n}.output.dense":                  "layers.{n}.feed_forward.down",
    "encoder.layer.{n}.output.LayerNorm":              "layers.{n}.feed_forward_norm",
}
# fmt: on

# fmt: off
# The head for masked language modeling of version 3, see BERT_MLM for the meaning.
DEBERTA_V3_MLM = {
    "lm_predictions.lm_head.dense.weight":        "dense.weight",
    "lm_predictions.lm_head.dense.bias":          "dense.bias",
    "lm_predictions.lm_head.LayerNorm.weight":    "norm.weight",
    "lm_predictions.lm_head.LayerNorm.bias":      "norm.bias",
    "lm_predictions.lm_head.bias":                "bias",
}
# fmt: on

FAMILIES = {
    "deberta-v2": Family(
        config=DebertaConfig,
        encoder=DebertaEncoder,
        normalize=normalize_deberta,
        complete=complete_deberta,
        extra_keys=pooler_keys,
        weight_names=WEIGHT_NAMES,
        prefixes=("deberta.",),
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
        tokenizer="deberta",
        bert_incompatible="its attention uses relative positions",
    ),
}
