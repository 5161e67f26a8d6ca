"""Decoders used as sentence encoders: Llama, Mistral, Qwen2, Qwen3, Gemma 3 (text) and EuroBERT.

They differ from BERT in six ways: a norm comes before each attention and feed-forward instead of after it,
and only scales (RMSNorm); there are no position embeddings, queries and keys are rotated instead
(tmft/models/rotary.py); a token attends to itself and the tokens before it, unless config.json says
otherwise, in some layers only to the nearest of them; several query heads share a key head and a value head;
the heads together may be wider or narrower than a hidden state (H * A need not be D); and the feed-forward
has a gate. How the six families differ is in their configurations, in tmft/models/decoder_families.py.

Letters in this file: B rows of a batch, T tokens in a row, D hidden_size, H heads, K key/value heads,
G = H / K, A head_dim, F intermediate_size, L layers. What attention_mask and position_ids contain is
explained at the top of tmft/models/base.py.
Source: Touvron et al. 2023, arXiv:2302.13971 and arXiv:2307.09288; Jiang et al. 2023, arXiv:2310.06825; Yang
et al. 2024, arXiv:2407.10671; Yang et al. 2025, arXiv:2505.09388; Gemma Team 2025, arXiv:2503.19786; Boizard
et al. 2025, arXiv:2503.05500; Ainslie et al. 2023, arXiv:2305.13245, for the grouped heads.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from tmft.errors import InputError, short_repr
from tmft.models.attention import LongRowMask, long_row_attention
from tmft.models.base import (
    ACTIVATIONS,
    EncoderConfig,
    TokenEmbeddings,
    default_position_ids,
    init_weights,
    layer_mask,
)
from tmft.models.final_norm import FinalNormEncoder
from tmft.models.rotary import RopeParameters, rotate
from tmft.models.t5 import check_not_fp16
from tmft.speed.dropout import Dropout
from tmft.speed.rms_norm import RMSNorm, rms_norm

FULL, SLIDING = "full_attention", "sliding_attention"  # layer types, as in config.json
MAX_WINDOW = 10_000_000  # tokens; a larger sliding_window must be a mistake


class DecoderSettings:
    """Settings of a decoder that are the same in all models of most families.

    It is no dataclass, so that they are constants of a family, without a key in its config.json. A family
    with such a key makes the setting a field of its configuration.
    """

    attention_bias: bool = False  # of queries, keys, values and the output
    mlp_bias: bool = False
    layer_types: tuple[str, ...] | None = None  # of each layer; None: see DecoderConfig.default_layer_type
    sliding_window: int | None = None  # in layers of type SLIDING, in tokens
    qk_norm: bool = False  # whether queries and keys have a norm
    has_post_norms: bool = False  # whether a norm also follows each attention and feed-forward
    norm_offset: float = 0.0  # added to the weight of each norm
    final_logit_softcapping: float | None = None  # c: each logit x becomes c * tanh(x / c)


@dataclass(frozen=True)
class DecoderConfig(DecoderSettings, EncoderConfig):
    """What the config.json of each decoder has, with the defaults of transformers."""

    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-6
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    pad_token_id: int | None = None  # type: ignore[assignment]  # a number in the families before
    num_key_value_heads: int = 0
    head_dim: int = 0
    is_causal: bool = True  # False: a token attends to the tokens after it as well
    tie_word_embeddings: bool = False  # whether the output layer is the matrix of the word embeddings
    rope: RopeParameters = RopeParameters()

    default_max_length: ClassVar[int | None] = 512

    @property
    def predicts_next_token(self) -> bool:
        """Whether no token attends to later ones, see EncoderConfig."""
        return self.is_causal

    @property
    def qkv_bias(self) -> bool:
        """Whether the linear maps of queries, keys and values have a bias."""
        return self.attention_bias

    @property
    def embedding_scale(self) -> float:
        """The number by which word embeddings are multiplied."""
        return 1.0

    @property
    def attention_scale(self) -> float:
        """The number by which the products of queries and keys are multiplied."""
        return self.head_dim**-0.5

    @property
    def num_heads_per_group(self) -> int:
        """G, how many query heads share a key head and a value head."""
        return self.num_attention_heads // self.num_key_value_heads

    def layer_type(self, n: int) -> str:
        """Return the type of layer n, counted from 0: FULL or SLIDING."""
        return self.layer_types[n] if self.layer_types is not None else self.default_layer_type(n)

    def default_layer_type(self, n: int) -> str:
        """Return the type of layer n, counted from 0, in models whose config.json has no layer_types."""
        return FULL

    def attention_span(self, layer_type: str) -> tuple[int | None, int | None]:
        """Return how many tokens before itself and after itself a token attends to; None means all.

        layer_type: FULL or SLIDING.
        """
        window = self.sliding_window
        if layer_type == FULL or window is None:
            return None, 0 if self.is_causal else None
        return (window - 1, 0) if self.is_causal else (window, window)

    def rope_parameters(self, layer_type: str) -> RopeParameters:
        """Return the rotary positions of the layers of type layer_type, FULL or SLIDING."""
        return self.rope

    def check(self) -> None:
        """Raise InputError if a value is out of range, or if two values contradict each other."""
        H, K, A = self.num_attention_heads, self.num_key_value_heads, self.head_dim
        if H == 0 or K == 0 or H % K:
            raise InputError(
                f"num_attention_heads {H} is not a multiple of num_key_value_heads {K} (config.json): one of "
                "the two is wrong"
            )
        if A == 0 or A % 2:
            raise InputError(f"head_dim {A} (config.json): expected an even number, for rotary positions")
        layer_types = self.layer_types
        if layer_types is not None and len(layer_types) != self.num_hidden_layers:
            raise InputError(
                f"layer_types has {len(layer_types)} entries (config.json): num_hidden_layers is "
                f"{self.num_hidden_layers}, correct one of the two"
            )
        window = self.sliding_window
        if window is not None and (type(window) is not int or not 1 <= window <= MAX_WINDOW):
            raise InputError(
                f"sliding_window is {short_repr(window)} (config.json): expected a whole number, 1 or more, "
                f"at most {MAX_WINDOW}, or null for no window"
            )
        types = {self.layer_type(n) for n in range(self.num_hidden_layers)}
        if SLIDING in types and window is None:
            raise InputError(f"sliding_window is missing (config.json): layers of type {SLIDING} need it")


class OffsetRMSNorm(RMSNorm):
    """RMSNorm with the scale offset + weight, computed in float32 also in 16 bits, as in Gemma."""

    def __init__(self, size: int, eps: float, offset: float):
        super().__init__(size, eps=eps)
        self.offset = offset
        nn.init.constant_(self.weight, 1 - offset)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized x: (..., D) -> (..., D)."""
        return rms_norm(x.float(), self.offset + self.weight.float(), self.eps).type_as(x)


def norm_layer(config: DecoderConfig, size: int) -> RMSNorm:
    """Return a norm of the last dimension, which has this size."""
    if config.norm_offset:
        return OffsetRMSNorm(size, config.layer_norm_eps, config.norm_offset)
    return RMSNorm(size, eps=config.layer_norm_eps)


class Attention(nn.Module):
    """Grouped-query self-attention: G query heads share each of the K key heads and value heads.

    Query head h uses key head and value head h // G. The queries of a group are put one below the other, so
    that keys and values need not be repeated. Compared with explicit matrix products and a softmax,
    F.scaled_dot_product_attention takes as long on rows of 64 tokens, and half as long on rows of 512.
    """

    num_heads: int
    num_key_value_heads: int
    scale: float
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    query_norm: RMSNorm | nn.Identity
    key_norm: RMSNorm | nn.Identity
    output: nn.Linear
    dropout: Dropout

    def __init__(self, config: DecoderConfig):
        super().__init__()
        D, A = config.hidden_size, config.head_dim
        self.num_heads, self.num_key_value_heads = config.num_attention_heads, config.num_key_value_heads
        self.scale = config.attention_scale
        self.query = nn.Linear(D, self.num_heads * A, bias=config.qkv_bias)
        self.key, self.value = (
            nn.Linear(D, self.num_key_value_heads * A, bias=config.qkv_bias) for _ in range(2)
        )
        self.query_norm, self.key_norm = (
            norm_layer(config, A) if config.qk_norm else nn.Identity() for _ in range(2)
        )
        self.output = nn.Linear(self.num_heads * A, D, bias=config.attention_bias)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor | LongRowMask, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the output of the attention, (B, T, D).

        hidden: (B, T, D). mask: (B, 1, G * T, T), added to the scores: block_diagonal_mask, G times one below
        the other; or that of long rows, see layer_mask. cos, sin: (B, 1, T, A/2), see tmft/models/rotary.py.
        """
        B, T, _ = hidden.shape
        H, K = self.num_heads, self.num_key_value_heads
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
    """down(activation(gate(x)) * up(x)), for each token separately."""

    gate: nn.Linear
    up: nn.Linear
    activation: Callable[[Tensor], Tensor]
    down: nn.Linear

    def __init__(self, config: DecoderConfig):
        super().__init__()
        D, F, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate, self.up = (nn.Linear(D, F, bias=bias) for _ in range(2))
        self.activation = ACTIVATIONS[config.hidden_act]
        self.down = nn.Linear(F, D, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the output for each token, (B, T, D). hidden: (B, T, D)."""
        return self.down(self.activation(self.gate(hidden)) * self.up(hidden))


class Layer(nn.Module):
    """Pre-norm transformer layer: x + f(norm(x)), where f is self-attention and then feed-forward.

    In Gemma it is x + norm(f(norm(x))). Under autocast the residual stream x stays in float32.
    """

    attention_norm: RMSNorm
    feed_forward_norm: RMSNorm
    attention: Attention
    feed_forward: GatedFeedForward
    attention_post_norm: RMSNorm | nn.Identity
    feed_forward_post_norm: RMSNorm | nn.Identity

    def __init__(self, config: DecoderConfig, layer_type: str):
        """layer_type: FULL or SLIDING; it decides which mask and angles the encoder passes to forward."""
        super().__init__()
        D = config.hidden_size
        self.layer_type = layer_type
        self.attention_norm, self.feed_forward_norm = (norm_layer(config, D) for _ in range(2))
        self.attention = Attention(config)
        self.feed_forward = GatedFeedForward(config)
        self.attention_post_norm, self.feed_forward_post_norm = (
            norm_layer(config, D) if config.has_post_norms else nn.Identity() for _ in range(2)
        )

    def forward(self, hidden: Tensor, mask: Tensor | LongRowMask, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the output of the layer, (B, T, D). hidden: (B, T, D). mask, cos, sin: see Attention."""
        attended = self.attention(self.attention_norm(hidden), mask, cos, sin)
        hidden = hidden + self.attention_post_norm(attended)
        return hidden + self.feed_forward_post_norm(self.feed_forward(self.feed_forward_norm(hidden)))


class Decoder(FinalNormEncoder):
    """A truncated decoder: the word embeddings, the first `layer` layers and the final norm.

    The final norm is applied to every hidden state, see FinalNormEncoder.
    """

    config: DecoderConfig

    def __init__(self, config: DecoderConfig, layer: int | None = None):
        """layer: how many layers to keep, 0 to config.num_hidden_layers; None keeps all."""
        super().__init__()
        self.config = config
        self.embeddings = TokenEmbeddings()
        self.embeddings.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(config, config.layer_type(n)) for n in range(config.resolve_num_layers(layer))
        )
        self.norm = norm_layer(config, config.hidden_size)
        self.apply(partial(init_weights, std=config.initializer_range))

    @property
    def layer_types(self) -> tuple[str, ...]:
        """The type of each layer that is kept, FULL or SLIDING."""
        return tuple(str(layer.layer_type) for layer in self.layers)

    def saved_form(self) -> tuple[DecoderConfig, dict[str, Tensor]]:
        """Return the configuration and the state dict with which the decoder is saved, see BaseEncoder.

        layer_types are those of the kept layers, or None if they are the usual ones.
        """
        layer_types = self.layer_types
        usual = tuple(self.config.default_layer_type(n) for n in range(len(layer_types)))
        changes: dict[str, Any] = {"num_hidden_layers": len(layer_types)}
        if layer_types != usual:
            changes["layer_types"] = layer_types
        elif self.config.layer_types is not None:
            changes["layer_types"] = None
        return replace(self.config, **changes), self.state_dict()

    def iter_pre_norm_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield the word embeddings, then the output of each layer, all without the final norm.

        Each is (B, T, D). The parameters are those of BaseEncoder.iter_hidden_states. Raises InputError if a
        Gemma computes in fp16.
        """
        config = self.config
        if position_ids is None:
            position_ids = default_position_ids(input_ids)
        hidden = self.embeddings.word(input_ids) * config.embedding_scale
        if config.embedding_scale != 1:
            check_not_fp16(hidden, "Gemma")
        yield hidden
        inputs = {}  # layer type -> mask, cosine and sine
        for layer_type in dict.fromkeys(self.layer_types):
            before, after = config.attention_span(layer_type)
            mask = layer_mask(attention_mask, hidden.dtype, before=before, after=after)
            rope = config.rope_parameters(layer_type)
            cos, sin = rope.cos_sin(position_ids, config.head_dim, config.max_position_embeddings)
            if isinstance(mask, Tensor):
                mask = mask.repeat(1, 1, config.num_heads_per_group, 1)  # (B, 1, G * T, T)
            inputs[layer_type] = (mask, cos, sin)
        for layer, layer_type in zip(self.layers, self.layer_types, strict=True):
            hidden = layer(hidden, *inputs[layer_type])
            yield hidden
