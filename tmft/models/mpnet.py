"""MPNet: BERT's encoder with relative position biases, which all layers add to their attention scores.

There is a bias for each distance between two tokens and each head.

Letters: B rows of a batch, T tokens in a row, H heads. What attention_mask contains is explained
at the top of tmft/encoder.py. The tokens of a sentence are next to each other in a row, so the distance
between two of them is the distance between their columns.
Source: Song et al. 2020, arXiv:2004.09297.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import tmft.models.pooler as pooler
from tmft.bert import BertEncoder
from tmft.encoder import EncoderConfig, block_diagonal_mask, init_weights
from tmft.models.bert_families import ROBERTA_HEADS, ROBERTA_MLM
from tmft.models.family import Family
from tmft.models.pooler import with_pooler
from tmft.models.t5 import relative_bias_matrix

MAX_DISTANCE = 128  # tokens; it is fixed in transformers, and so is the number of buckets


@dataclass(frozen=True)
class MpnetConfig(EncoderConfig):
    """The configuration of an MPNet, with the defaults of transformers."""

    type_vocab_size: int = 0
    pad_token_id: int = 1
    relative_attention_num_buckets: int = 32  # rows of the table of biases
    components: tuple[str, ...] = ()  # as in BertConfig

    @property
    def position_offset(self) -> int:
        """The row of the position table for the first token of a sentence, whatever the padding token is."""
        return 2


class MpnetEncoder(BertEncoder):
    """A truncated MPNet: embeddings without token types, the first `layer` layers, one table of biases."""

    def __init__(self, config: MpnetConfig, layer: int | None = None):
        """layer: how many layers to keep, 0 to config.num_hidden_layers; None keeps all."""
        super().__init__(config, layer)
        self.relative_bias = nn.Embedding(config.relative_attention_num_buckets, config.num_attention_heads)
        init_weights(self.relative_bias, config.initializer_range)

    def bottom_modules(self, num_layers: int) -> list[nn.Module]:
        """Return the modules that compute the output of layer `num_layers`, 0 meaning the embeddings."""
        return [*super().bottom_modules(num_layers), *([self.relative_bias] if num_layers else [])]

    def score_bias(self, attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
        """Return what is added to the attention scores of every layer, (B, H, T, T).

        It is the mask of all heads plus a bias for each head and each distance between two tokens.
        """
        mask, T = block_diagonal_mask(attention_mask, dtype)[:, None], attention_mask.shape[1]
        return mask + relative_bias_matrix(self.relative_bias, T, MAX_DISTANCE)


# fmt: off
# Module in the checkpoint -> module here; {n} is the number of the layer, from 0.
WEIGHT_NAMES = {
    "embeddings.word_embeddings":             "embeddings.word",
    "embeddings.position_embeddings":         "embeddings.position",
    "embeddings.LayerNorm":                   "embeddings.norm",
    "encoder.relative_attention_bias":        "relative_bias",
    "encoder.layer.{n}.attention.attn.q":     "layers.{n}.attention.query",
    "encoder.layer.{n}.attention.attn.k":     "layers.{n}.attention.key",
    "encoder.layer.{n}.attention.attn.v":     "layers.{n}.attention.value",
    "encoder.layer.{n}.attention.attn.o":     "layers.{n}.attention.output",
    "encoder.layer.{n}.attention.LayerNorm":  "layers.{n}.attention_norm",
    "encoder.layer.{n}.intermediate.dense":   "layers.{n}.feed_forward.up",
    "encoder.layer.{n}.output.dense":         "layers.{n}.feed_forward.down",
    "encoder.layer.{n}.output.LayerNorm":     "layers.{n}.feed_forward_norm",
}
# fmt: on


FAMILIES = {
    "mpnet": Family(
        config=MpnetConfig,
        encoder=with_pooler(MpnetEncoder),
        # fields without a key in config.json
        keys={"embedding_size": None, "type_vocab_size": None, "components": None},
        supported={"relative_attention_num_buckets": (32,)},
        weight_names=WEIGHT_NAMES | pooler.WEIGHT_NAMES,
        prefixes=("mpnet.",),
        ignored_heads=ROBERTA_HEADS,
        transformers_class="MPNetModel",
        components=("pooler",),
        mlm_head_layouts=(ROBERTA_MLM,),
        mlm_class="MPNetForMaskedLM",
        mlm_activation="gelu",  # whatever hidden_act says, as in transformers
        tokenizer="mpnet",
        has_numpy_encoder=True,
        bert_incompatible="it has relative positions",
    ),
}
