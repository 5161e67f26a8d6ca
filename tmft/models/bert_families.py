"""The registry entries of BERT and of the families that run the same encoder, tmft/models/bert.py."""

from tmft.errors import InputError
from tmft.models.base import EncoderConfig
from tmft.models.bert import BertEncoder
from tmft.models.family import Family

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
ELECTRA_RTD = {
    "discriminator_predictions.dense.weight":            "dense.weight",
    "discriminator_predictions.dense.bias":              "dense.bias",
    "discriminator_predictions.dense_prediction.weight": "classifier.weight",
    "discriminator_predictions.dense_prediction.bias":   "classifier.bias",
}
# fmt: on


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
        prefixes=("bert.",),
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
        mlm_head_layouts=(ELECTRA_MLM,),
        mlm_class="ElectraForMaskedLM",
        mlm_activation="gelu",  # whatever hidden_act says, as in transformers
        rtd_head_layout=ELECTRA_RTD,
    ),
}
