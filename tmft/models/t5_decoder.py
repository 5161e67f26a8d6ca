"""T5's decoder, and its first output as the embedding of a sentence.

It writes text, one token after the other, and each of its layers looks up what the encoder made of a
sentence. Before any text there is the start token: what the decoder makes of that alone is a vector that has
read the whole sentence. On similarity it does better than the mean over the encoder's tokens (Ni et al. 2021,
arXiv:2108.08877, section 3.1 and table 3).

Letters in this file: S sentences, B rows, T tokens in a row, W tokens that are decoded in a row, D
hidden_size, H heads, A d_kv.
"""

import torch
from torch import Tensor, nn

from tmft.models.bert import Dropout, block_diagonal_mask
from tmft.models.t5 import Attention, Layer, T5Config, T5Encoder, linear, rms_norm
from tmft.packing import PackedBatch

# fmt: off
# Module in the checkpoint -> module here; {m}: of the decoder's layer, from 0.
NAMES = {
    "decoder.block.{m}.layer.0.layer_norm":          "decoder.layers.{m}.attention_norm",
    "decoder.block.{m}.layer.0.SelfAttention.v":     "decoder.layers.{m}.attention.value",
    "decoder.block.{m}.layer.0.SelfAttention.o":     "decoder.layers.{m}.attention.output",
    "decoder.block.{m}.layer.1.layer_norm":          "decoder.layers.{m}.cross_norm",
    "decoder.block.{m}.layer.1.EncDecAttention.q":   "decoder.layers.{m}.cross.query",
    "decoder.block.{m}.layer.1.EncDecAttention.k":   "decoder.layers.{m}.cross.key",
    "decoder.block.{m}.layer.1.EncDecAttention.v":   "decoder.layers.{m}.cross.value",
    "decoder.block.{m}.layer.1.EncDecAttention.o":   "decoder.layers.{m}.cross.output",
    "decoder.block.{m}.layer.2.layer_norm":          "decoder.layers.{m}.feed_forward_norm",
    "decoder.block.{m}.layer.2.DenseReluDense.wi":   "decoder.layers.{m}.feed_forward.up",
    "decoder.block.{m}.layer.2.DenseReluDense.wi_0": "decoder.layers.{m}.feed_forward.gate",
    "decoder.block.{m}.layer.2.DenseReluDense.wi_1": "decoder.layers.{m}.feed_forward.linear",
    "decoder.block.{m}.layer.2.DenseReluDense.wo":   "decoder.layers.{m}.feed_forward.down",
    "decoder.final_layer_norm":                      "decoder.norm",
}
UNUSED = {  # by the first output; the last one is of layer 0 alone
    "decoder.block.{m}.layer.0.SelfAttention.q":               "decoder.layers.{m}.attention.query",
    "decoder.block.{m}.layer.0.SelfAttention.k":               "decoder.layers.{m}.attention.key",
    "decoder.block.{m}.layer.0.SelfAttention.relative_attention_bias":
                                                               "decoder.layers.{m}.attention.relative_bias",
}
# fmt: on


class FirstTokenAttention(nn.Module):
    """Self-attention of a first token, which sees itself alone: the softmax over one score is 1.

    So queries, keys and the numbers for distances have no say, and there are none here.
    """

    def __init__(self, config: T5Config):
        super().__init__()
        D, A, H = config.hidden_size, config.d_kv, config.num_attention_heads
        factor = config.initializer_range
        self.num_heads = H
        self.value = linear(D, H * A, factor * D**-0.5)
        self.output = linear(H * A, D, factor * (H * A) ** -0.5)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor, bias: None = None) -> Tensor:
        """(B, W, D), each place a first token -> (B, W, D)"""
        B, W, _ = hidden.shape
        probabilities = self.dropout(hidden.new_ones(B, W, self.num_heads, 1))
        context = probabilities * self.value(hidden).view(B, W, self.num_heads, -1)  # (B, W, H, A)
        return self.output(context.flatten(2))


class DecoderLayer(Layer):
    """x + f(norm(x)), for f the self-attention, the attention to the encoder and the feed-forward."""

    def __init__(self, config: T5Config, attention: nn.Module):
        super().__init__(config, attention)
        self.cross_norm = rms_norm(config)
        self.cross = Attention(config)

    def forward(self, hidden: Tensor, bias: Tensor | None, memory: Tensor, mask: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden), bias))
        hidden = hidden + self.dropout(self.cross(self.cross_norm(hidden), mask, memory))
        return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))


class Decoder(nn.Module):
    """All layers and the final norm, with the attention of first tokens unless others are given."""

    def __init__(self, config: T5Config, attentions: list[nn.Module] | None = None):
        super().__init__()
        attentions = attentions or [FirstTokenAttention(config) for _ in range(config.num_decoder_layers)]
        self.layers = nn.ModuleList(DecoderLayer(config, attention) for attention in attentions)
        self.norm = rms_norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, words: Tensor, memory: Tensor, mask: Tensor, bias: Tensor | None = None) -> Tensor:
        """words: (B, W, D), of the tokens to be decoded; memory: hidden states of the encoder, (B, T, D);
        mask: (B, 1, W, T), added to the scores between the two; bias: to those among words -> (B, W, D)"""
        hidden = self.dropout(words)
        for layer in self.layers:
            hidden = layer(hidden, bias, memory, mask)
        return self.dropout(self.norm(hidden))


class T5(T5Encoder):
    """The encoder, truncated or not, and the whole decoder as far as its first output needs it."""

    def __init__(self, config: T5Config, layer: int | None = None):
        super().__init__(config, layer)
        self.decoder = Decoder(config)
        self.embeddings.also = [config.decoder_start_token_id]  # is looked up, in whatever text

    def decoder_pooling(self, hidden: Tensor, rows: PackedBatch, weights: Tensor | None = None) -> Tensor:
        """The decoder's first output for each sentence, (S, D), of the encoder's (B, T, D)."""
        row, column, W = starts(rows)
        start = self.embeddings.word.weight[self.embeddings.also[0]]
        mask = decoder_start_mask(rows, W, hidden.dtype)[:, None]  # (B, 1, W, T), the same for all heads
        return self.decoder(start.expand(len(hidden), W, -1), hidden, mask)[row, column]


def begun(rows: PackedBatch) -> Tensor:
    """(B, T) int64: how many sentences of its row have begun at a place; on padding 0."""
    return begins(rows).cumsum(1) * (rows.sentence_ids > 0)


def begins(rows: PackedBatch) -> Tensor:
    """(B, T) bool: whether a sentence begins at a place."""
    return (rows.position_ids == 0) & (rows.sentence_ids > 0)


def starts(rows: PackedBatch) -> tuple[Tensor, Tensor, int]:
    """A start token for each sentence, side by side in its row: their rows and columns, (S,) each, and W."""
    count = begun(rows)
    row, place = begins(rows).nonzero(as_tuple=True)
    order = rows.sentence_ids[row, place].argsort()  # by the number of the sentence
    return row[order], count[row, place][order] - 1, int(count.max())


def decoder_start_mask(rows: PackedBatch, W: int, dtype: torch.dtype) -> Tensor:
    """(B, W, T), to be added to the scores: 0 where start token w is of the sentence of token t, else the
    lowest number. A row with fewer than W sentences has starts that see nothing, and nobody reads them."""
    count = begun(rows)
    number = torch.arange(1, W + 1, device=count.device).expand(len(count), W)
    return block_diagonal_mask(count, dtype, looking=number)
