"""DeBERTa, versions 2 and 3: attention scores also depend on the distance between two tokens.

BERT's attention score is the product of a query and a key, both computed from the hidden states of tokens.
DeBERTa adds up to two terms: c2p (content to position), the query times an embedding of the distance, and p2c
(position to content), the key times an embedding of the distance.

Letters: B rows of a batch, T tokens in a row, D hidden_size, E embedding_size, H heads,
A = D / H, R embeddings of relative positions in use. What attention_mask and position_ids contain is
explained at the top of tmft/encoder.py. The tokens of a sentence are next to each other in a row, so the
distance between two of them is the distance between their columns, and one table of distances serves every
row of a batch.
Source: He et al., arXiv:2006.03654 (section 3) and arXiv:2111.09543.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.bert import FeedForward
from tmft.encoder import (
    ACTIVATIONS,
    BaseEncoder,
    EncoderConfig,
    TokenEmbeddings,
    block_diagonal_mask,
    default_position_ids,
    init_weights,
)
from tmft.errors import InputError
from tmft.speed.operators import Dropout
from tmft.speed.overlap import constant_on


@dataclass(frozen=True)
class DebertaConfig(EncoderConfig):
    """The configuration of a DeBERTa, version 2 or 3, with the defaults of transformers."""

    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-7
    relative_attention: bool = False
    pos_att_type: tuple[str, ...] = ()  # the terms of the score: "c2p", "p2c", both or none
    max_relative_positions: int = 0  # in config.json, a value below 1 means max_position_embeddings
    position_buckets: int = 0  # 0: every distance has an embedding of its own
    norm_rel_ebd: str = "none"  # "layer_norm": the embeddings of relative positions are normalized
    share_att_key: bool = False  # whether distances are projected with the matrices of the content
    position_biased_input: bool = True  # whether absolute positions are added to the word embeddings
    conv_kernel_size: int = 0  # 0: no convolution after layer 1
    conv_groups: int = 1
    conv_act: str = "tanh"

    @property
    def span(self) -> int:
        """Half the number of relative positions: they go from -span to span - 1."""
        return self.position_buckets or self.max_relative_positions

    def check(self) -> None:
        """Raise InputError if a value is not supported, or if two values contradict each other."""
        super().check()
        if unknown := [term for term in self.pos_att_type if term not in ("c2p", "p2c")]:
            raise InputError(f"pos_att_type {unknown[0]!r} (config.json): supported are c2p and p2c")
        max_buckets = 2 * self.max_relative_positions - 3
        if self.position_buckets and not 2 <= self.position_buckets <= max_buckets:
            raise InputError(
                f"position_buckets {self.position_buckets} (config.json): expected 2 to {max_buckets} with "
                f"max_relative_positions {self.max_relative_positions}, or -1 for none"
            )
        if self.conv_kernel_size and self.conv_kernel_size % 2 == 0:
            raise InputError(
                f"conv_kernel_size {self.conv_kernel_size} (config.json): expected an odd number, or 0"
            )
        if self.conv_groups == 0 or self.hidden_size % self.conv_groups:
            raise InputError(
                f"conv_groups {self.conv_groups} (config.json): expected a divisor of hidden_size "
                f"{self.hidden_size}"
            )


def log_bucket_position(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance i - j between two tokens, from -num_buckets to num_buckets.

    distance: int64, any shape; the result has the same shape and dtype, and a bucket has the sign of its
    distance. Distances up to num_buckets / 2 have buckets of their own. Larger ones share buckets that grow
    logarithmically, such that max_distance - 1 is in the last one; even larger distances give larger numbers,
    which the caller has to clamp.
    It is computed in float32, as in the original code: rounding decides which distances share a bucket.
    """
    middle = num_buckets // 2
    far = torch.log(distance.abs().clamp(min=1) / middle) / torch.log(
        torch.tensor((max_distance - 1) / middle)
    )
    far = (torch.ceil(far * (middle - 1)) + middle) * distance.sign()
    return torch.where(distance.abs() <= middle, distance, far.long())


def distance_index(T: int, config: DebertaConfig) -> Tensor:
    """Return the row of rel_embeddings for each of the distances -T .. T, (2T + 1,) int64, non-decreasing."""
    distance, span = torch.arange(-T, T + 1), config.span
    if config.position_buckets:
        distance = log_bucket_position(distance, span, config.max_relative_positions)
    return (distance + span).clamp(0, 2 * span - 1)


def relative_scores(content: Tensor, positions: Tensor) -> Tensor:
    """Return the product of each token i with the embedding of its distance to each token j.

    content: (H, B, T, A), queries or keys. positions: (H, 2T, A), an embedding for each distance.
    Returns (H, B, T, T): entry [h, b, i, j] is the dot product of content[h, b, i] and
    positions[h, j - i + T - 1].

    All tokens are multiplied with all distances, which gives 2T products for each token. Product
    [i, j - i + T - 1] is then at i * 2T + j - i + T - 1 = i * (2T - 1) + j + T - 1 in memory. If the products
    from T - 1 on are viewed as a matrix of width 2T - 1, it is in row i, column j, so that a view replaces a
    gather.
    """
    _, B, T, _ = content.shape
    product = content.flatten(1, 2) @ positions.transpose(-1, -2)  # (H, B * T, 2T)
    diagonals = product.unflatten(1, (B, T)).flatten(2)[..., T - 1 : -1].unflatten(-1, (T, 2 * T - 1))
    return diagonals[..., :T]


class Embeddings(TokenEmbeddings):
    """Add word, position and token type embeddings and project them from E to D; then LayerNorm and dropout.

    Position and token type embeddings are there only if the configuration asks for them.
    Other implementations set the embeddings of padding to zero. That is not necessary here, because attention
    and convolution see only the tokens of one sentence.
    """

    position: nn.Embedding | None
    token_type: nn.Embedding | None
    project: nn.Linear | nn.Identity
    norm: nn.LayerNorm
    dropout: Dropout

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
        """Return hidden state 0, (B, T, D). input_ids, position_ids: (B, T)."""
        embedded = self.word(input_ids)  # (B, T, E)
        if self.position is not None:
            embedded = embedded + self.position(position_ids)
        if self.token_type is not None:
            embedded = embedded + self.token_type.weight[0]  # all tokens of a single sentence have type 0
        return self.dropout(self.norm(self.project(embedded)))


class DisentangledSelfAttention(nn.Module):
    """Self-attention with relative positions: softmax((Q_i K_j + Q_i Kr_ij + K_j Qr_ij) / sqrt(A n)) V.

    n is the number of terms in the sum: the second and the third are there if pos_att_type names them.
    Kr_ij and Qr_ij are projections of the embedding of the distance i - j: by the key and query matrices of
    the content if config.share_att_key, else by matrices of their own. Queries are scaled before the
    products, so that the products stay in the range of fp16.
    """

    num_heads: int
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    scale: float
    c2p: bool
    p2c: bool
    pos_key: nn.Linear | None
    pos_query: nn.Linear | None
    position_dropout: Dropout
    dropout: Dropout

    def __init__(self, config: DebertaConfig):
        super().__init__()
        D = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.query, self.key, self.value, self.output = (nn.Linear(D, D) for _ in range(4))
        terms = config.pos_att_type
        self.scale = 1 / math.sqrt(D // self.num_heads * (1 + len(terms)))
        self.c2p, self.p2c = (config.relative_attention and term in terms for term in ("c2p", "p2c"))
        has_own_maps = not config.share_att_key
        self.pos_key = nn.Linear(D, D) if has_own_maps and self.c2p else None
        self.pos_query = nn.Linear(D, D) if has_own_maps and self.p2c else None
        self.position_dropout = Dropout(config.hidden_dropout_prob)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def split_heads(self, projected: Tensor) -> Tensor:
        """Return the parts that belong to each head, (H, ..., A). projected: (..., D)."""
        return projected.unflatten(-1, (self.num_heads, -1)).movedim(-2, 0)

    def forward(self, hidden: Tensor, mask: Tensor, positions: Tensor | None, index: Tensor) -> Tensor:
        """Return the output of the attention, (B, T, D).

        hidden: (B, T, D). mask: (B, T, T), added to the scores, see block_diagonal_mask.
        positions: (R, D), the embeddings of relative positions. index: (2T + 1,) int64, which of them is used
        for each of the distances -T .. T. See DebertaEncoder.relative_positions.
        """
        q = self.split_heads(self.query(hidden)) * self.scale  # (H, B, T, A)
        k, v = self.split_heads(self.key(hidden)), self.split_heads(self.value(hidden))
        scores = q @ k.transpose(-1, -2) + mask  # (H, B, T, T)

        if self.c2p or self.p2c:
            positions = self.position_dropout(positions)
        if self.c2p:
            kr = (self.pos_key or self.key)(positions)[index]  # (2T + 1, D)
            kr = self.split_heads(kr.flip(0)[1:])  # distances T - 1 .. -T
            scores = scores + relative_scores(q, kr)
        if self.p2c:
            qr = (self.pos_query or self.query)(positions)[index] * self.scale
            qr = self.split_heads(qr[1:])  # distances 1 - T .. T
            scores = scores + relative_scores(k, qr).transpose(-1, -2)

        context = self.dropout(scores.softmax(-1)) @ v  # (H, B, T, A)
        return self.output(context.movedim(0, -2).flatten(-2))  # the heads are concatenated again


class Layer(nn.Module):
    """Post-norm transformer layer as in BERT, with disentangled self-attention."""

    attention: DisentangledSelfAttention
    attention_norm: nn.LayerNorm
    feed_forward: FeedForward
    feed_forward_norm: nn.LayerNorm
    dropout: Dropout

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.attention = DisentangledSelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, *attention_inputs: Tensor) -> Tensor:
        """Return the output of the layer, (B, T, D).

        hidden: (B, T, D). attention_inputs: mask, positions and index of DisentangledSelfAttention.forward.
        """
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, *attention_inputs)))
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))


class Convolution(nn.Module):
    """Add a convolution of hidden state 0 to the output of layer 1, as the largest models of version 2 do."""

    width: int
    conv: nn.Conv1d
    activation: Callable[[Tensor], Tensor]
    norm: nn.LayerNorm
    dropout: Dropout

    def __init__(self, config: DebertaConfig):
        super().__init__()
        D = config.hidden_size
        self.width = config.conv_kernel_size
        self.conv = nn.Conv1d(D, D, self.width, groups=config.conv_groups, stride=self.width)
        self.activation = ACTIVATIONS[config.conv_act]
        self.norm = nn.LayerNorm(D, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, embedded: Tensor, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the sum of `hidden` and the convolution, normalized: (B, T, D).

        embedded: (B, T, D), hidden state 0. hidden: (B, T, D), the output of layer 1. attention_mask: (B, T).
        The window around each token is cut out first, with zeros in place of tokens of other sentences,
        because the sentences of a row must not influence each other. The kernel is then applied to each
        window.
        """
        side = self.width // 2
        windows = F.pad(embedded, (0, 0, side, side)).unfold(1, self.width, 1)  # (B, T, D, width)
        sentence = F.pad(attention_mask, (side, side)).unfold(1, self.width, 1)  # (B, T, width)
        same_sentence = (sentence == attention_mask[:, :, None])[:, :, None]  # (B, T, 1, width)
        windows = (windows * same_sentence).transpose(1, 2).flatten(2)  # (B, D, T * width)
        out = self.conv(windows).transpose(1, 2)  # (B, T, D)
        return self.norm(hidden + self.activation(self.dropout(out)))


class DebertaEncoder(BaseEncoder):
    """A truncated DeBERTa: the embeddings and the first `layer` layers.

    The embeddings of relative positions, which all layers share, are kept in full.
    """

    rel_embeddings: nn.Embedding | None
    rel_norm: nn.LayerNorm | None
    convolution: Convolution | None
    config: DebertaConfig

    def __init__(self, config: DebertaConfig, layer: int | None = None):
        """layer: how many layers to keep, 0 to config.num_hidden_layers; None keeps all."""
        super().__init__()
        D, eps = config.hidden_size, config.layer_norm_eps
        self.config = config
        self.embeddings = Embeddings(config)
        self.rel_embeddings = nn.Embedding(2 * config.span, D) if config.relative_attention else None
        self.rel_norm = nn.LayerNorm(D, eps=eps) if "layer_norm" in config.norm_rel_ebd else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.resolve_num_layers(layer)))
        self.convolution = Convolution(config) if config.conv_kernel_size else None
        self.apply(partial(init_weights, std=config.initializer_range))

    def bottom_modules(self, num_layers: int) -> list[nn.Module]:
        """Return the modules that compute the output of layer `num_layers`, 0 meaning the embeddings."""
        shared = [self.rel_embeddings, self.rel_norm, self.convolution] if num_layers else []
        return [*super().bottom_modules(num_layers), *(module for module in shared if module is not None)]

    def relative_positions(self, T: int) -> tuple[Tensor | None, Tensor]:
        """Return (positions, index): the embeddings of relative positions for rows of T tokens.

        positions: (R, D), the embeddings that are used for any of the distances -T .. T. index: (2T + 1,)
        int64; positions[index[d + T]] is the embedding of the distance d. If the model has no relative
        attention, positions is None and index is empty.
        """
        if self.rel_embeddings is None:
            return None, torch.empty(0)
        index = distance_index(T, self.config)
        first, last = int(index[0]), int(index[-1])
        positions = self.rel_embeddings.weight[first : last + 1]
        if self.rel_norm is not None:
            positions = self.rel_norm(positions)
        if positions.device.type != "cpu":
            index = constant_on(positions.device, distance_index, T, self.config)
        return positions, index - first

    def iter_hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield hidden state 0, the output of the embeddings, then the output of each layer: (B, T, D) each.

        The parameters are those of BaseEncoder.iter_hidden_states.
        """
        if position_ids is None:
            position_ids = default_position_ids(input_ids)
        embedded = hidden = self.embeddings(input_ids, position_ids)
        yield hidden
        mask = block_diagonal_mask(attention_mask, hidden.dtype)  # (B, T, T)
        relative = self.relative_positions(input_ids.shape[1])
        for n, layer in enumerate(self.layers):
            hidden = layer(hidden, mask, *relative)
            if n == 0 and self.convolution is not None:
                hidden = self.convolution(embedded, hidden, attention_mask)
            yield hidden
