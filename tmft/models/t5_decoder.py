"""T5's decoder, whose first output can be used as the embedding of a sentence.

A T5 decoder generates text token by token, and each of its layers attends to the hidden states of the
encoder. If its only input is the start token, it returns one vector that depends on the whole sentence. After
fine-tuning on NLI this vector does better on semantic similarity than the mean over the encoder's tokens,
before it far worse (Ni et al. 2021, arXiv:2108.08877, section 3.1 and table 3).

Letters: S sentences, B rows of a batch, T tokens in a row, W start tokens in a row of the
decoder, D hidden_size, H heads, A d_kv. A row of the encoder may hold several sentences; the decoder gets one
start token for each of them, so W is the largest number of sentences in a row.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

import tmft.models.t5 as t5
from tmft.encoder import block_diagonal_mask
from tmft.models.family import Family
from tmft.models.t5 import Attention, Layer, T5Config, T5Encoder, init_linear, make_norm
from tmft.packing import PackedBatch
from tmft.speed.operators import Dropout

# fmt: off
# Module in the checkpoint -> module here; {m} is the number of the decoder layer, from 0.
WEIGHT_NAMES = {
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
# fmt: on


class FirstTokenAttention(nn.Module):
    """Self-attention of the decoder's first token, which can attend only to itself.

    The softmax of a single score is 1, so queries, keys and relative biases have no effect, and the module
    does not have them.
    """

    def __init__(self, config: T5Config):
        super().__init__()
        D, A, H = config.hidden_size, config.d_kv, config.num_attention_heads
        factor = config.initializer_range
        self.num_heads = H
        self.value = init_linear(D, H * A, factor * D**-0.5)
        self.output = init_linear(H * A, D, factor * (H * A) ** -0.5)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the output of the attention, (B, W, D).

        hidden: (B, W, D), W start tokens that do not see each other.
        """
        B, W, _ = hidden.shape
        probabilities = self.dropout(hidden.new_ones(B, W, self.num_heads, 1))
        context = probabilities * self.value(hidden).view(B, W, self.num_heads, -1)  # (B, W, H, A)
        return self.output(context.flatten(2))


class DecoderLayer(Layer):
    """Pre-norm layer of the decoder: x + f(norm(x)), applied three times.

    f is first self-attention, then attention to the encoder, then feed-forward.
    """

    def __init__(self, config: T5Config, attention: FirstTokenAttention):
        super().__init__(config, attention)
        self.cross_norm = make_norm(config)
        self.cross = Attention(config)

    # A layer of the decoder has inputs that one of the encoder does not have.
    def forward(self, hidden: Tensor, memory: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """Return the output of the layer, (B, W, D).

        hidden: (B, W, D). memory, mask: see Decoder.forward.
        """
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden)))
        hidden = hidden + self.dropout(self.cross(self.cross_norm(hidden), mask, memory))
        return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))


class Decoder(nn.Module):
    """All layers of a T5 decoder and its final norm."""

    def __init__(self, config: T5Config):
        super().__init__()
        attentions = [FirstTokenAttention(config) for _ in range(config.num_decoder_layers)]
        self.layers = nn.ModuleList(DecoderLayer(config, attention) for attention in attentions)
        self.norm = make_norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, embedded: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Return the output of the decoder for each of its start tokens, (B, W, D).

        embedded: (B, W, D), the word embeddings of the start tokens. memory: (B, T, D), the hidden states of
        the encoder. mask: (B, 1, W, T), added to the scores of the attention to the encoder.
        """
        hidden = self.dropout(embedded)
        for layer in self.layers:
            hidden = layer(hidden, memory, mask)
        return self.dropout(self.norm(hidden))


class T5WithDecoder(T5Encoder):
    """A (truncated) T5 encoder with the part of the decoder that is needed for its first output.

    It has all layers of the decoder, but no queries and keys in their self-attention.
    """

    def __init__(self, config: T5Config, layer: int | None = None):
        """layer: how many layers of the encoder to keep; None keeps all. The decoder keeps all its layers."""
        super().__init__(config, layer)
        self.decoder = Decoder(config)
        self.embeddings.extra_ids = [config.decoder_start_token_id]  # looked up in each batch

    def decoder_pooling(self, hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
        """Return the first output of the decoder for each sentence of a packed batch: (S, D).

        hidden: (B, T, D), the last hidden state of the encoder. weights: ignored; it is here because all
        poolings have this parameter.
        """
        is_start = (batch.position_ids == 0) & (batch.attention_mask > 0)
        index = is_start.cumsum(1) * (batch.attention_mask > 0)  # (B, T): which sentence of its row, from 1
        W = int(index.max())
        start_ids = torch.tensor(self.embeddings.extra_ids, device=hidden.device)
        start = self.embeddings.word(start_ids)[0]  # (D,)
        # A start token attends to its sentence. In a row with fewer than W sentences the last start tokens
        # have no sentence; their outputs are never used.
        start_index = torch.arange(1, W + 1, device=index.device).expand(len(index), W)
        mask = block_diagonal_mask(index, hidden.dtype, query_ids=start_index)[:, None]  # (B, 1, W, T)
        outputs = self.decoder(start.expand(len(hidden), W, -1), hidden, mask)  # (B, W, D)
        row, position = is_start.nonzero(as_tuple=True)  # (S,) each
        order = batch.attention_mask[row, position].argsort()  # that of the sentences in the batch
        return outputs[row, index[row, position] - 1][order]


# T5, mT5 and umT5, with and without the decoder.
FAMILIES = {
    "t5": Family(
        config=t5.T5Config,
        encoder=lambda config, layer: (
            T5WithDecoder(config, layer) if config.components else T5Encoder(config, layer)
        ),
        keys=t5.KEYS,
        other_keys=t5.OTHER_KEYS,
        complete=t5.complete_t5,
        extra_keys=lambda config: {"is_encoder_decoder": bool(config.components)},
        weight_names=t5.WEIGHT_NAMES | WEIGHT_NAMES,
        prefixes=("transformer.",),
        ignored_heads=t5.IGNORED_HEADS,
        copies={"encoder.embed_tokens": "shared"},
        transformers_class="T5EncoderModel",
        class_with_components="T5Model",
        components=("decoder",),
        tokenizer="t5",
        bert_incompatible="it has relative positions, no biases and another norm",
    ),
}
FAMILIES["mt5"] = replace(
    FAMILIES["t5"],
    config=t5.MT5Config,
    transformers_class="MT5EncoderModel",
    class_with_components="MT5Model",
)
FAMILIES["umt5"] = replace(
    FAMILIES["t5"],
    config=t5.UMT5Config,
    transformers_class="UMT5EncoderModel",
    class_with_components="UMT5Model",
)
