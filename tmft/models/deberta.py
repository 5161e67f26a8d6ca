"""DeBERTa of versions 2 and 3: attention that also scores how far apart two tokens are.

A score of BERT is the product of two contents, query and key. Here up to two terms are added to it: c2p, the
query's content times the distance to the key, and p2c, the key's content times the distance to the query.

Letters in this file: B rows, T tokens in a row, D hidden_size, E embedding_size, H heads, A = D / H,
P embeddings of relative positions in use. Rows, attention_mask and position_ids are as in tmft/models/bert.py.
The tokens of a sentence stand side by side, so the distance of two of them is that of their columns, and one
table of distances serves every row. Source: He et al., arXiv:2006.03654 (section 3) and arXiv:2111.09543.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.errors import InputError
from tmft.models.bert import (
    ACTIVATIONS,
    BaseEncoder,
    Dropout,
    EncoderConfig,
    FeedForward,
    block_diagonal_mask,
    init_weights,
)


@dataclass(frozen=True)
class DebertaConfig(EncoderConfig):
    """What only a DeBERTa of version 2 or 3 says; the defaults are those of files that omit a key."""

    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-7
    relative_attention: bool = False
    pos_att_type: tuple[str, ...] = ()  # "c2p", "p2c", both or none
    max_relative_positions: int = 0  # in a file, anything below 1 means max_position_embeddings
    position_buckets: int = 0  # 0: every distance has its own embedding
    norm_rel_ebd: str = "none"  # or "layer_norm"
    share_att_key: bool = False
    position_biased_input: bool = True  # whether absolute positions are added to the words
    conv_kernel_size: int = 0  # 0: no convolution after layer 1
    conv_groups: int = 1
    conv_act: str = "tanh"

    @property
    def span(self) -> int:
        """Relative positions are numbered -span .. span - 1, so rel_embeddings has 2 * span rows."""
        return self.position_buckets or self.max_relative_positions

    def check(self) -> None:
        """Raises InputError if the numbers do not fit together."""
        if unknown := [term for term in self.pos_att_type if term not in ("c2p", "p2c")]:
            raise InputError(f"pos_att_type {unknown[0]!r} (config.json): supported are c2p and p2c")
        most = 2 * self.max_relative_positions - 3
        if self.position_buckets and not 2 <= self.position_buckets <= most:
            raise InputError(
                f"position_buckets {self.position_buckets} (config.json): with max_relative_positions "
                f"{self.max_relative_positions} it is 2 to {most}, or -1 for none"
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


def read_keys(content: dict) -> dict:
    """The keys of a DeBERTa's config.json in the form of DebertaConfig. Raises InputError as check does."""
    known = {"embedding_size": content.get("hidden_size", 0)} | content
    for name in ("max_relative_positions", "position_buckets"):
        if type(known.get(name)) is int:
            known[name] = max(known[name], 0)  # -1 stands for "not used"
    known["max_relative_positions"] = known.get("max_relative_positions") or known.get(
        "max_position_embeddings", DebertaConfig.max_position_embeddings
    )
    known["norm_rel_ebd"] = str(known.get("norm_rel_ebd", "none")).lower()
    terms = known.get("pos_att_type", ())
    terms = terms if isinstance(terms, (list, tuple)) else str(terms).split("|")  # or one string, "p2c|c2p"
    terms = [str(term).strip().lower() for term in terms]
    known["pos_att_type"] = tuple(dict.fromkeys(term for term in terms if term))
    size, heads, width = (
        content.get(n) for n in ("hidden_size", "num_attention_heads", "attention_head_size")
    )
    if width is not None and type(size) is type(heads) is int and heads and width != size // heads:
        what = f"attention_head_size {width} (config.json): {heads} heads of this size"
        raise InputError(f"{what} do not make up hidden_size {size}, correct one of the three")
    return known


def write_keys(content: dict) -> dict:
    """Adds the keys of a pooler, which we do not have but readers of the file ask for."""
    pooler = {"pooler_dropout": 0, "pooler_hidden_act": "gelu", "pooler_hidden_size": content["hidden_size"]}
    return content | pooler


# fmt: off
# Module in the checkpoint -> module here; {n} is the number of the layer, from 0.
NAMES = {
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
        """hidden: (B, T, D); mask: (B, T, T), added to the scores, see block_diagonal_mask -> (B, T, D)

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


class DebertaEncoder(BaseEncoder):
    """The embeddings, the first `layer` layers, and all that the layers share."""

    def __init__(self, config: DebertaConfig, layer: int | None = None):
        super().__init__()
        D, eps = config.hidden_size, config.layer_norm_eps
        self.config = config
        self.embeddings = Embeddings(config)
        self.rel_embeddings = nn.Embedding(2 * config.span, D) if config.relative_attention else None
        self.rel_norm = nn.LayerNorm(D, eps=eps) if "layer_norm" in config.norm_rel_ebd else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.resolve_num_layers(layer)))
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
        return positions, (index - first).to(positions.device, non_blocking=True)

    def iter_hidden_states(self, input_ids, attention_mask, position_ids=None) -> Iterator[Tensor]:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        embedded = hidden = self.embeddings(input_ids, position_ids)
        yield hidden
        mask = block_diagonal_mask(attention_mask, hidden.dtype)  # (B, T, T)
        relative = self.relative_positions(input_ids.shape[1])
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, mask, *relative)
            if number == 0 and self.convolution is not None:
                hidden = self.convolution(embedded, hidden, attention_mask)
            yield hidden
