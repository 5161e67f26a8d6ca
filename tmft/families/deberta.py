"""DeBERTa of versions 2 and 3: attention that also scores how far apart two tokens are.

A score of BERT is the product of two contents, query and key. Here up to two terms are added to it: c2p, the
query's content times the distance to the key, and p2c, the key's content times the distance to the query.

Letters in this file: B rows, T tokens in a row, D hidden_size, E embedding_size, H heads, A = D / H,
P embeddings of relative positions in use. Rows, attention_mask and position_ids are as in tmft/encoder.py.
The tokens of a sentence stand side by side, so the distance of two of them is that of their columns, and one
table of distances serves every row. Source: He et al., arXiv:2006.03654 (section 3) and arXiv:2111.09543.
"""

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.encoder import Encoder, FeedForward, init_weights, own_sentence
from tmft.families.config import ACTIVATIONS, DebertaConfig
from tmft.speed.dropout import Dropout


def log_bucket(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Distances i - j to numbers in -buckets .. buckets, int64: exact up to buckets / 2, then logarithmic.

    The logarithm grows such that max_distance - 1 falls into the last bucket; further ones are for the caller
    to clamp. In float32, as in the original: rounding decides which distances share a bucket.
    """
    middle = buckets // 2
    far = torch.log(distance.abs().clamp(min=1) / middle) / torch.log(
        torch.tensor((max_distance - 1) / middle)
    )
    far = (torch.ceil(far * (middle - 1)) + middle) * distance.sign()
    return torch.where(distance.abs() <= middle, distance, far.long())


def by_distance(content: Tensor, positions: Tensor) -> Tensor:
    """(H, B, T, A), (H, 2T, A) -> (H, B, T, T): entry [i, j] is content[i] times positions[j - i + T - 1].

    One product of all tokens with all distances, a row of 2T for each token. The wanted entry of row i,
    column j - i + T - 1, lies i * (2T - 1) + j + T - 1 places from the start. So, cut into rows of 2T - 1
    places from place T - 1 on, the product has it in row i, column j: no number is picked one by one.
    """
    _, B, T, _ = content.shape
    product = content.flatten(1, 2) @ positions.transpose(-1, -2)  # (H, B * T, 2T)
    diagonals = product.unflatten(1, (B, T)).flatten(2)[..., T - 1 : -1].unflatten(-1, (T, 2 * T - 1))
    return diagonals[..., :T]


class Embeddings(nn.Module):
    """Word, position and token type as far as the config has them, projected from E to D, then normalised.

    Other implementations set padding to zero here. Nobody reads padding: attention and convolution look at a
    token's own sentence only.
    """

    def __init__(self, config: DebertaConfig):
        super().__init__()
        D, E = config.hidden_size, config.embedding_size
        self.word = nn.Embedding(config.vocab_size, E)
        self.position = (
            nn.Embedding(config.max_position_embeddings, E) if config.position_biased_input else None
        )
        self.token_type = nn.Embedding(config.type_vocab_size, E) if config.type_vocab_size else None
        self.project = nn.Linear(E, D, bias=False) if D != E else nn.Identity()
        self.norm = nn.LayerNorm(D, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """input_ids, position_ids: (B, T) -> (B, T, D)"""
        embedded = self.word(input_ids)  # (B, T, E)
        if self.position is not None:
            embedded = embedded + self.position(position_ids)
        if self.token_type is not None:
            embedded = embedded + self.token_type.weight[0]  # a sentence on its own is all of type 0
        return self.dropout(self.norm(self.project(embedded)))


class DisentangledSelfAttention(nn.Module):
    """softmax((Q_i K_j + Q_i Kr_ij + K_j Qr_ij) / sqrt(A * number of terms)) V; Kr, Qr are of distance i - j.

    With share_att_key, Kr and Qr are the content's own key and query projections of the position embeddings.
    The scaling comes before the products, so that they stay in the range of fp16.
    """

    def __init__(self, config: DebertaConfig):
        super().__init__()
        D = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.query, self.key, self.value, self.output = (nn.Linear(D, D) for _ in range(4))
        terms = config.pos_att_type
        self.scale = 1 / math.sqrt(D // self.num_heads * (1 + len(terms)))
        self.c2p, self.p2c = (config.relative_attention and term in terms for term in ("c2p", "p2c"))
        self.share_att_key = config.share_att_key
        if not self.share_att_key:
            self.pos_key = nn.Linear(D, D) if self.c2p else None
            self.pos_query = nn.Linear(D, D) if self.p2c else None
        self.position_dropout = Dropout(config.hidden_dropout_prob)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def heads(self, projected: Tensor) -> Tensor:
        """(..., D) -> (H, ..., A)"""
        return projected.unflatten(-1, (self.num_heads, -1)).movedim(-2, 0)

    def forward(self, hidden: Tensor, mask: Tensor, positions: Tensor | None, index: Tensor) -> Tensor:
        """hidden: (B, T, D); mask: (B, T, T), added to the scores, see own_sentence -> (B, T, D)

        positions: (P, D), the embeddings of relative positions; index: (2T + 1,), which of them is for the
        distances -T .. T.
        """
        q = self.heads(self.query(hidden)) * self.scale  # (H, B, T, A)
        k, v = self.heads(self.key(hidden)), self.heads(self.value(hidden))
        scores = q @ k.transpose(-1, -2) + mask  # (H, B, T, T)

        if self.c2p or self.p2c:
            positions = self.position_dropout(positions)
        if self.c2p:
            kr = (self.key if self.share_att_key else self.pos_key)(positions)[index]  # (2T + 1, D)
            scores = scores + by_distance(q, self.heads(kr.flip(0)[1:]))  # distances T - 1 .. -T
        if self.p2c:
            qr = (self.query if self.share_att_key else self.pos_query)(positions)[index] * self.scale
            scores = scores + by_distance(k, self.heads(qr[1:])).transpose(-1, -2)  # distances 1 - T .. T

        context = self.dropout(scores.softmax(-1)) @ v  # (H, B, T, A)
        return self.output(context.movedim(0, -2).flatten(-2))  # heads side by side again


class Layer(nn.Module):
    """Post-norm: LayerNorm(x + f(x)), for f the self-attention and then the feed-forward, as in BERT."""

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.attention = DisentangledSelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, *attention_inputs: Tensor) -> Tensor:
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, *attention_inputs)))
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))


class Convolution(nn.Module):
    """Version 2's largest models add a convolution of hidden state 0 to the output of layer 1."""

    def __init__(self, config: DebertaConfig):
        super().__init__()
        D = config.hidden_size
        self.width = config.conv_kernel_size
        self.conv = nn.Conv1d(D, D, self.width, groups=config.conv_groups, stride=self.width)
        self.activation = ACTIVATIONS[config.conv_act]
        self.norm = nn.LayerNorm(D, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, embedded: Tensor, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """embedded (hidden state 0), hidden: (B, T, D); attention_mask: (B, T) -> (B, T, D)

        Each token's window is cut out first, with zeros for tokens of other sentences: sentences side by side
        in a row must not see each other. The kernel then steps from window to window.
        """
        side = self.width // 2
        windows = F.pad(embedded, (0, 0, side, side)).unfold(1, self.width, 1)  # (B, T, D, width)
        sentence = F.pad(attention_mask, (side, side)).unfold(1, self.width, 1)  # (B, T, width)
        same = (sentence == attention_mask[:, :, None])[:, :, None]  # (B, T, 1, width)
        windows = (windows * same).transpose(1, 2).flatten(2)  # (B, D, T * width)
        out = self.conv(windows).transpose(1, 2)  # (B, T, D)
        return self.norm(hidden + self.activation(self.dropout(out)))


class DebertaEncoder(nn.Module):
    """The embeddings, the first `layer` layers, and all that the layers share; to be used like Encoder."""

    def __init__(self, config: DebertaConfig, layer: int | None = None):
        super().__init__()
        D, eps = config.hidden_size, config.layer_norm_eps
        self.config = config
        self.embeddings = Embeddings(config)
        self.rel_embeddings = nn.Embedding(2 * config.span, D) if config.relative_attention else None
        self.rel_norm = nn.LayerNorm(D, eps=eps) if "layer_norm" in config.norm_rel_ebd else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.check_layer(layer)))
        self.convolution = Convolution(config) if config.conv_kernel_size else None
        self.apply(partial(init_weights, std=config.initializer_range))

    def relative_positions(self, T: int) -> tuple[Tensor | None, Tensor]:
        """-> the embeddings that distances -T .. T use (P, D), and which of these is for each (2T + 1,)."""
        if self.rel_embeddings is None:
            return None, torch.empty(0)
        distance, span = torch.arange(-T, T + 1), self.config.span
        if self.config.position_buckets:
            distance = log_bucket(distance, span, self.config.max_relative_positions)
        index = (distance + span).clamp(0, 2 * span - 1)  # rises with the distance
        first, last = int(index[0]), int(index[-1])
        positions = self.rel_embeddings.weight[first : last + 1]
        if self.rel_norm is not None:
            positions = self.rel_norm(positions)
        return positions, (index - first).to(positions.device)

    def each_hidden_state(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Hidden state 0, 1, ... l, one at a time; see Encoder.each_hidden_state."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        embedded = hidden = self.embeddings(input_ids, position_ids)
        yield hidden
        mask = own_sentence(attention_mask, hidden.dtype)  # (B, T, T)
        relative = self.relative_positions(input_ids.shape[1])
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, mask, *relative)
            if number == 0 and self.convolution is not None:
                hidden = self.convolution(embedded, hidden, attention_mask)
            yield hidden

    hidden_states = Encoder.hidden_states
    forward = Encoder.forward
