"""Transformers with rotary positions: from ModernBERT to Gemma 3, nine families.

They are ModernBERT, NomicBERT, GTE, EuroBERT, Llama, Mistral, Qwen2, Qwen3 and Gemma 3 (text).

They differ from BERT in four ways: there are no position embeddings, queries and keys are rotated instead
(tmft/models/rotary.py); the feed-forward has a gate; in some layers a token attends only to its neighbours;
and several query heads may share a key head and a value head. In most of them a norm comes before each
attention and feed-forward instead of after it. How the nine differ is in RotarySettings, whose values are in
tmft/models/rotary_families.py.

Letters: B rows of a batch, T tokens in a row, D hidden_size, H heads, K key/value heads,
G = H / K, A head_dim, F intermediate_size. What attention_mask and position_ids contain is explained at the
top of tmft/encoder.py.
Source: Su et al. 2021, arXiv:2104.09864, for the rotary positions; Shazeer 2020, arXiv:2002.05202, for the
gate; Beltagy et al. 2020, arXiv:2004.05150, for the local attention; Ainslie et al. 2023, arXiv:2305.13245,
for the grouped heads. Sources of the families are in tmft/models/rotary_families.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import torch.nn.functional as F
from torch import Tensor, nn

from tmft.encoder import (
    ACTIVATIONS,
    EncoderConfig,
    TokenEmbeddings,
    default_position_ids,
    init_weights,
    make_attention_bias,
)
from tmft.models.final_norm import FinalNormEncoder
from tmft.models.rotary import RopeParameters, rotate
from tmft.models.t5 import check_not_fp16
from tmft.speed.long_rows import LongRowMask, long_row_attention
from tmft.speed.operators import Dropout, RMSNorm, rms_norm

FULL, SLIDING = "full_attention", "sliding_attention"  # layer types, as in config.json


class RotarySettings:
    """What is the same in all models of a family, here as in a Llama whose tokens attend to all others.

    It is no dataclass, so that these are constants of a family, without a key in its config.json. A family
    with such a key makes the setting a field of its configuration.
    """

    embedding_scale: float = 1.0  # word embeddings are multiplied by it
    embedding_norm: bool = False  # whether the embeddings end with a norm
    pre_norm: bool = True  # x + f(norm(x)) in each layer, and a norm after the last one; else norm(x + f(x))
    first_attention_norm: bool = True  # whether layer 0 has a norm before its attention
    post_norms: bool = False  # x + norm(f(norm(x)))
    qk_norm: bool = False  # whether queries and keys have a norm
    subtracts_mean: bool = False  # whether a norm is a LayerNorm instead of an RMSNorm
    norm_bias: bool = False
    norm_offset: float = 0.0  # added to the weight of each RMSNorm
    fused_qkv: bool = False  # whether one linear map makes queries, keys and values
    gate_maps: tuple[str, ...] = ("gate", "up")  # linear maps of the feed-forward; "gate_up": one for both
    attention_bias: bool = False  # of queries, keys, values and the output
    has_qkv_bias: bool = False  # whether queries, keys and values have a bias, even if the output has none
    mlp_bias: bool = False  # of all linear maps of the feed-forward
    has_down_bias: bool = False  # whether the last one has a bias, even if the others have none
    mlp_dropout_prob: float = 0.0  # before the last linear map of the feed-forward
    attention_scale: float | None = None  # of the products of queries and keys; None: 1 / sqrt(A)
    layer_types: tuple[str, ...] | None = None  # of each layer; None: see RotaryConfig.usual_layer_type
    sliding_window: int | None = None  # in layers of type SLIDING, in tokens
    initializer_cutoff_factor: float | None = None  # standard deviations; None: see init_weights in base.py


@dataclass(frozen=True)
class RotaryConfig(RotarySettings, EncoderConfig):
    """The fields that the configurations of all nine families have."""

    type_vocab_size: int = 0
    # None in config.json means num_attention_heads, and hidden_size / num_attention_heads.
    num_key_value_heads: int = None  # type: ignore[assignment]  # config_from_dict sets both
    head_dim: int = None  # type: ignore[assignment]
    rope: RopeParameters = RopeParameters()
    sliding_rope: RopeParameters | None = None  # of layers of type SLIDING; None: the same as rope
    default_max_length: ClassVar[int | None] = 512  # attention between thousands of tokens takes long

    @property
    def residual_dropout_probs(self) -> tuple[float, float]:
        """The dropout of the output of each attention, and of each feed-forward."""
        return self.hidden_dropout_prob, self.hidden_dropout_prob

    def layer_type(self, n: int) -> str:
        """Return the type of layer n, counted from 0: FULL or SLIDING."""
        return self.layer_types[n] if self.layer_types is not None else self.usual_layer_type(n)

    def usual_layer_type(self, n: int) -> str:
        """Return the type of layer n, counted from 0, in models whose config.json has no layer_types."""
        return FULL

    def with_layer_types(self, layer_types: tuple[str, ...]) -> Self:
        """Return the configuration of a model of layers of these types."""
        usual = tuple(self.usual_layer_type(n) for n in range(len(layer_types)))
        named = None if layer_types == usual else layer_types
        changes: dict[str, Any] = {} if named == self.layer_types else {"layer_types": named}
        return replace(self, num_hidden_layers=len(layer_types), **changes)

    def attention_span(self, layer_type: str) -> tuple[int | None, int | None]:
        """Return how many tokens before itself and after itself a token attends to; None means all."""
        return None, None

    def rope_of(self, layer_type: str) -> RopeParameters:
        """Return the rotary positions of the layers of this type."""
        return self.rope if layer_type == FULL or self.sliding_rope is None else self.sliding_rope

    def norm(self, size: int) -> nn.Module:
        """Return a new norm of the last dimension, which has this size."""
        if self.subtracts_mean:
            return nn.LayerNorm(size, eps=self.layer_norm_eps, bias=self.norm_bias)
        if self.norm_offset:
            return OffsetRMSNorm(size, self.layer_norm_eps, self.norm_offset)
        return RMSNorm(size, eps=self.layer_norm_eps)


class OffsetRMSNorm(RMSNorm):
    """RMSNorm with the scale offset + weight, computed in float32 also in 16 bits, as in Gemma."""

    def __init__(self, size: int, eps: float, offset: float):
        super().__init__(size, eps=eps)
        self.offset = offset
        nn.init.constant_(self.weight, 1 - offset)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized x: (..., D) -> (..., D)."""
        return rms_norm(x.float(), self.offset + self.weight.float(), self.eps).type_as(x)


class Embeddings(TokenEmbeddings):
    """Word embeddings, in some families with token types, a norm and dropout; there are no positions."""

    def __init__(self, config: RotaryConfig):
        super().__init__()
        D = config.hidden_size
        self.word = nn.Embedding(config.vocab_size, D)
        self.token_type = nn.Embedding(config.type_vocab_size, D) if config.type_vocab_size else None
        self.norm = config.norm(D) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.scale = config.embedding_scale

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return hidden state 0 before the final norm, (B, T, D). input_ids: (B, T)."""
        embedded = self.word(input_ids) * self.scale
        if self.token_type is not None:
            embedded = embedded + self.token_type.weight[0]  # all tokens of a single sentence have type 0
        return self.dropout(self.norm(embedded))


class Attention(nn.Module):
    """Self-attention with rotated queries and keys; G query heads share each of the K key and value heads.

    Query head h uses key head and value head h // G. The queries of a group are put one below the other, so
    that keys and values need not be repeated. Compared with explicit matrix products and a softmax,
    F.scaled_dot_product_attention takes as long on rows of 64 tokens, and half as long on rows of 512.
    """

    def __init__(self, config: RotaryConfig):
        super().__init__()
        D, H, K, A = (
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.num_heads, self.num_key_value_heads, self.scale = H, K, config.attention_scale
        self.is_fused, bias = config.fused_qkv, config.attention_bias or config.has_qkv_bias
        if self.is_fused:  # then there are as many key heads as query heads
            self.qkv = nn.Linear(D, 3 * H * A, bias=bias)
        else:
            self.query = nn.Linear(D, H * A, bias=bias)
            self.key, self.value = (nn.Linear(D, K * A, bias=bias) for _ in range(2))
        self.query_norm, self.key_norm = (
            config.norm(A) if config.qk_norm else nn.Identity() for _ in range(2)
        )
        self.output = nn.Linear(H * A, D, bias=config.attention_bias)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor | LongRowMask, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the output of the attention, (B, T, D).

        hidden: (B, T, D). mask: (B, 1, G * T, T), added to the scores: block_diagonal_mask, G times one below
        the other; or that of long rows, see make_attention_bias.
        cos, sin: (B, 1, T, A/2), see tmft/models/rotary.py.
        """
        B, T, _ = hidden.shape
        H, K = self.num_heads, self.num_key_value_heads
        if self.is_fused:  # the three parts are used where they are, none is copied
            qkv = self.qkv(hidden).view(B, T, 3, H, -1).permute(2, 0, 3, 1, 4)  # (3, B, H, T, A)
            (q, k), v = rotate(qkv[:2], cos, sin).type_as(qkv), qkv[2]
        else:
            q = self.query_norm(self.query(hidden).view(B, T, H, -1)).transpose(1, 2)  # (B, H, T, A)
            k = self.key_norm(self.key(hidden).view(B, T, K, -1)).transpose(1, 2)  # (B, K, T, A)
            v = self.value(hidden).view(B, T, K, -1).transpose(1, 2)  # (B, K, T, A)
            q, k = (rotate(x, cos, sin).type_as(x) for x in (q, k))
        p = self.dropout.p if self.training else 0.0
        if isinstance(mask, LongRowMask):
            context = long_row_attention(q, k, v, mask, p, self.scale)  # (B, H, T, A)
        else:
            q = q.reshape(B, K, -1, q.shape[-1])  # (B, K, G * T, A)
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, scale=self.scale)
        context = context.reshape(B, H, T, -1).transpose(1, 2)  # (B, T, H, A)
        return self.output(context.reshape(B, T, -1))  # the heads are concatenated again


class GatedFeedForward(nn.Module):
    """down(activation(gate(x)) * up(x)), for each token separately; in some families one map makes both."""

    gate: nn.Linear
    up: nn.Linear
    gate_up: nn.Linear
    up_gate: nn.Linear

    def __init__(self, config: RotaryConfig):
        super().__init__()
        D, F, self.maps = config.hidden_size, config.intermediate_size, config.gate_maps
        for name in self.maps:
            parts = len(name.split("_"))
            setattr(self, name, nn.Linear(D, parts * F, bias=config.mlp_bias))
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = Dropout(config.mlp_dropout_prob)
        self.down = nn.Linear(F, D, bias=config.mlp_bias or config.has_down_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the output for each token, (B, T, D). hidden: (B, T, D)."""
        if self.maps == ("gate_up",):
            gate, up = self.gate_up(hidden).chunk(2, dim=-1)  # (B, T, F) each
        elif self.maps == ("up_gate",):
            up, gate = self.up_gate(hidden).chunk(2, dim=-1)
        else:
            gate, up = self.gate(hidden), self.up(hidden)
        return self.down(self.dropout(self.activation(gate) * up))


class PreNormLayer(nn.Module):
    """x + f(norm(x)), where f is self-attention and then feed-forward. In Gemma it is x + norm(f(norm(x))).

    Under autocast the residual stream x stays in float32.
    """

    def __init__(self, config: RotaryConfig, number: int):
        """number: of the layer in the checkpoint, from 0."""
        super().__init__()
        D, attention_dropout, feed_forward_dropout = config.hidden_size, *config.residual_dropout_probs
        self.layer_type = config.layer_type(number)
        has_norm = config.first_attention_norm or number > 0
        self.attention_norm = config.norm(D) if has_norm else nn.Identity()
        self.feed_forward_norm = config.norm(D)
        self.attention, self.feed_forward = Attention(config), GatedFeedForward(config)
        self.attention_post_norm, self.feed_forward_post_norm = (
            config.norm(D) if config.post_norms else nn.Identity() for _ in range(2)
        )
        self.attention_dropout, self.feed_forward_dropout = map(
            Dropout, (attention_dropout, feed_forward_dropout)
        )

    def forward(self, x: Tensor, mask: Tensor | LongRowMask, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the output of the layer, (B, T, D). x: (B, T, D). mask, cos, sin: see Attention.forward."""
        attended = self.attention(self.attention_norm(x), mask, cos, sin)
        x = x + self.attention_dropout(self.attention_post_norm(attended))
        fed_forward = self.feed_forward(self.feed_forward_norm(x))
        return x + self.feed_forward_dropout(self.feed_forward_post_norm(fed_forward))


class PostNormLayer(nn.Module):
    """norm(x + f(x)), where f is self-attention and then feed-forward, as in BERT."""

    def __init__(self, config: RotaryConfig, number: int):
        """number: of the layer in the checkpoint, from 0."""
        super().__init__()
        D, attention_dropout, feed_forward_dropout = config.hidden_size, *config.residual_dropout_probs
        self.layer_type = config.layer_type(number)
        self.attention, self.attention_norm = Attention(config), config.norm(D)
        self.feed_forward, self.feed_forward_norm = GatedFeedForward(config), config.norm(D)
        self.attention_dropout, self.feed_forward_dropout = map(
            Dropout, (attention_dropout, feed_forward_dropout)
        )

    def forward(self, x: Tensor, mask: Tensor | LongRowMask, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the output of the layer, (B, T, D). x: (B, T, D). mask, cos, sin: see Attention.forward."""
        x = self.attention_norm(x + self.attention_dropout(self.attention(x, mask, cos, sin)))
        return self.feed_forward_norm(x + self.feed_forward_dropout(self.feed_forward(x)))


class RotaryTransformer(FinalNormEncoder):
    """A truncated transformer with rotary positions: embeddings, the first `layer` layers, the final norm.

    The final norm, if the family has one, is applied to every hidden state, see FinalNormEncoder.
    """

    config: RotaryConfig

    def __init__(self, config: RotaryConfig, layer: int | None = None):
        """layer: how many layers to keep, 0 to config.num_hidden_layers; None keeps all."""
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        make_layer = PreNormLayer if config.pre_norm else PostNormLayer
        self.layers = nn.ModuleList(make_layer(config, n) for n in range(config.resolve_num_layers(layer)))
        self.norm = config.norm(config.hidden_size) if config.pre_norm else nn.Identity()
        if config.initializer_cutoff_factor is None:
            self.apply(partial(init_weights, std=config.initializer_range))
        else:
            init_truncated(self, config.initializer_range, config.initializer_cutoff_factor)

    @property
    def layer_types(self) -> tuple[str, ...]:
        """The type of each layer that is kept, FULL or SLIDING."""
        return tuple(str(layer.layer_type) for layer in self.layers)

    def saved_form(self) -> tuple[RotaryConfig, dict[str, Tensor]]:
        """Return the configuration and the state dict with which the encoder is saved, see BaseEncoder."""
        return self.config.with_layer_types(self.layer_types), self.state_dict()

    def iter_pre_norm_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield the embeddings, then the output of each layer, all without the final norm: (B, T, D) each.

        The parameters are those of BaseEncoder.iter_hidden_states. Raises InputError if a Gemma computes in
        fp16.
        """
        config = self.config
        if position_ids is None:
            position_ids = default_position_ids(input_ids)
        hidden = self.embeddings(input_ids)
        if config.embedding_scale != 1:
            check_not_fp16(hidden, "Gemma")
        yield hidden
        inputs = {}  # layer type -> mask, cosine and sine
        for layer_type in dict.fromkeys(self.layer_types):
            before, after = config.attention_span(layer_type)
            mask = make_attention_bias(attention_mask, hidden.dtype, before=before, after=after)
            if isinstance(mask, Tensor):
                heads_per_group = config.num_attention_heads // config.num_key_value_heads
                mask = mask.repeat(1, 1, heads_per_group, 1)  # (B, 1, G * T, T)
            rope = config.rope_of(layer_type)
            inputs[layer_type] = (
                mask,
                *rope.cos_sin(position_ids, config.head_dim, config.max_position_embeddings),
            )
        for layer, layer_type in zip(self.layers, self.layer_types, strict=True):
            hidden = layer(hidden, *inputs[layer_type])
            yield hidden


def init_truncated(encoder: RotaryTransformer, std: float, cutoff_factor: float) -> None:
    """Initialize the weights in place as transformers does for a ModernBERT.

    Matrices are drawn from a normal distribution with standard deviation std, cut off at cutoff_factor times
    it. For matrices that add to the hidden states it is sqrt(2 num_hidden_layers) times smaller.
    """
    for name, module in encoder.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            adds = name.endswith((".output", ".down"))
            own_std = std / (2 * encoder.config.num_hidden_layers) ** 0.5 if adds else std
            cutoff = cutoff_factor * own_std
            nn.init.trunc_normal_(module.weight, std=own_std, a=-cutoff, b=cutoff)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
