"""BERT and ELECTRA: the embeddings, then l layers of self-attention and feed-forward.

Letters: B rows of a batch, T tokens in a row, D dimensions of a hidden state (hidden_size), E embedding_size,
H heads, A = D / H, l layers. Rows, attention_mask and position_ids are explained in tmft/packing.py.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.encoder import (
    ACTIVATIONS,
    BaseEncoder,
    EncoderConfig,
    TokenEmbeddings,
    default_position_ids,
    init_weights,
    make_attention_bias,
)
from tmft.speed.long_rows import LongRowMask, long_row_attention
from tmft.speed.operators import Dropout


@dataclass(frozen=True)
class BertConfig(EncoderConfig):
    """The configuration of a BERT, an ELECTRA or a RoBERTa."""

    is_decoder: bool = False  # True: a token attends only to itself and the tokens before it
    components: tuple[str, ...] = ()  # ("pooler",): load the pooler as well, see models/pooler.py

    @property
    def predicts_next_token(self) -> bool:
        """Whether no token attends to later ones, see EncoderConfig."""
        return self.is_decoder


class Embeddings(TokenEmbeddings):
    """Add word, position and token type embeddings, then apply LayerNorm and dropout.

    In some ELECTRAs the embeddings are narrower than the hidden states (E < D); a projection from E to D
    follows in these.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        E = config.embedding_size
        self.word = nn.Embedding(config.vocab_size, E)
        self.position = nn.Embedding(config.max_position_embeddings, E)
        self.position_offset = config.position_offset
        self.token_type = nn.Embedding(config.type_vocab_size, E) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(E, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.project = nn.Linear(E, config.hidden_size) if config.hidden_size != E else nn.Identity()

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Return hidden state 0, (B, T, D). input_ids, position_ids: (B, T)."""
        embedded = self.word(input_ids) + self.position(position_ids + self.position_offset)  # (B, T, E)
        if self.token_type is not None:
            embedded = embedded + self.token_type.weight[0]  # all tokens of a single sentence have type 0
        return self.project(self.dropout(self.norm(embedded)))


class SelfAttention(nn.Module):
    """Multi-head self-attention; the residual connection and LayerNorm are in Layer.

    The two products and the softmax are written out: on short rows this is faster on a CPU than
    F.scaled_dot_product_attention, and it reads like the equation softmax(Q K^T / sqrt(A)) V. On a GPU
    F.scaled_dot_product_attention, which computes the same, is faster and needs half the memory.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(config.hidden_size, config.hidden_size) for _ in range(4)
        )
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor | LongRowMask) -> Tensor:
        """Return the output of the attention, (B, T, D).

        hidden: (B, T, D). mask: (B, 1 or H, T, T), which is added to the scores, see BertEncoder.score_bias.
        """
        B, T, D = hidden.shape
        q, k, v = (
            x.view(B, T, self.num_heads, -1).transpose(1, 2)  # (B, H, T, A)
            for x in self.project(hidden)
        )
        p = self.dropout.p if self.training else 0.0
        if isinstance(mask, LongRowMask):  # more than 512 tokens, see tmft/speed/long_rows.py
            context = long_row_attention(q, k, v, mask, p)  # (B, H, T, A)
        elif hidden.device.type == "cuda":
            context = F.scaled_dot_product_attention(q, k, v, mask.to(q.dtype), p)  # (B, H, T, A)
        else:
            scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2) + mask  # (B, H, T, T)
            context = self.dropout(scores.softmax(-1)) @ v  # (B, H, T, A)
        return self.output(context.transpose(1, 2).reshape(B, T, D))  # the heads are concatenated again

    def project(self, hidden: Tensor) -> Sequence[Tensor]:
        """Return the queries, keys and values of all heads, (B, T, D) each. hidden: (B, T, D)."""
        return self.query(hidden), self.key(hidden), self.value(hidden)


class FeedForward(nn.Module):
    """Two linear maps with an activation in between, applied to each token separately.

    BERT's checkpoints call the two maps "intermediate" and "output".
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return down(activation(up(hidden))): (B, T, D) -> (B, T, D)."""
        return self.down(self.activation(self.up(hidden)))


class Layer(nn.Module):
    """Post-norm transformer layer: LayerNorm(x + f(x)), first with self-attention as f, then feed-forward."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        # A family that has dropout at only one of the two places sets the other one to nn.Identity.
        self.attention_dropout: nn.Module = Dropout(config.hidden_dropout_prob)
        self.feed_forward_dropout: nn.Module = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor | LongRowMask) -> Tensor:
        """Return the output of the layer, (B, T, D). hidden: (B, T, D); mask: see SelfAttention.forward."""
        hidden = self.attention_norm(hidden + self.attention_dropout(self.attention(hidden, mask)))
        return self.feed_forward_norm(hidden + self.feed_forward_dropout(self.feed_forward(hidden)))


class BertEncoder(BaseEncoder):
    """A truncated BERT or ELECTRA: the embeddings and the first `layer` layers; the others are never built.

    A call returns the last of its hidden states (BaseEncoder.forward). A new encoder has random weights,
    initialized as in BERT; tmft.checkpoints.load loads pre-trained ones.
    Source: Devlin et al. 2019, arXiv:1810.04805; Clark et al. 2020, arXiv:2003.10555.
    """

    def __init__(self, config: EncoderConfig, layer: int | None = None):
        """layer: how many layers to keep, 0 to config.num_hidden_layers; None keeps all."""
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.resolve_num_layers(layer)))
        self.apply(partial(init_weights, std=config.initializer_range))

    def iter_hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield hidden state 0, the output of the embeddings, then the output of each layer: (B, T, D) each.

        The parameters are those of BaseEncoder.iter_hidden_states.
        """
        if position_ids is None:
            position_ids = default_position_ids(input_ids)
        hidden = self.embeddings(input_ids, position_ids)
        yield hidden
        mask = self.score_bias(attention_mask, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, mask)
            yield hidden

    def score_bias(self, attention_mask: Tensor, dtype: torch.dtype) -> Tensor | LongRowMask:
        """Return what is added to the attention scores of every layer, so that a token sees its own sentence.

        attention_mask: (B, T). The result is (B, 1, T, T) in dtype: 0 where two tokens have the same number
        in the mask, elsewhere the lowest finite number. (It has another form for long rows.)
        """
        after = 0 if self.config.predicts_next_token else None
        return make_attention_bias(attention_mask, dtype, after=after)
