"""The configurations and registry entries of the transformers with rotary positions.

tmft/models/rotary_transformer.py runs all of them; what differs is here. A new family is a configuration,
with the defaults of transformers and the settings in which it differs from RotarySettings, and a row of
FAMILIES.

A config.json has the rotary positions in one of two formats, which are both read: transformers 5 writes
rope_parameters, older versions rope_theta and rope_scaling.

Source: Warner et al. 2024, arXiv:2412.13663, for ModernBERT; Nussbaum et al. 2024, arXiv:2402.01613, for
NomicBERT; Zhang et al. 2024, arXiv:2407.19669, for GTE; Touvron et al. 2023, arXiv:2302.13971 and
arXiv:2307.09288, for Llama; Jiang et al. 2023, arXiv:2310.06825, for Mistral; Yang et al. 2024,
arXiv:2407.10671, and 2025, arXiv:2505.09388, for Qwen2 and Qwen3; Gemma Team 2025, arXiv:2503.19786, for
Gemma 3; Boizard et al. 2025, arXiv:2503.05500, for EuroBERT.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from tmft.errors import InputError, short_repr
from tmft.models.family import Family
from tmft.models.rotary import (
    RopeParameters,
    read_rope_parameters,
    read_rope_parameters_by_layer_type,
)
from tmft.models.rotary_transformer import FULL, SLIDING, RotaryConfig, RotaryTransformer

# ------------------------------------------------------------------------------- encoders


@dataclass(frozen=True)
class ModernBertConfig(RotaryConfig):
    """The configuration of a ModernBERT, whose layers of type SLIDING attend to few neighbours.

    Most modules have no bias.
    """

    max_position_embeddings: int = 8192
    layer_norm_eps: float = 1e-5
    hidden_dropout_prob: float = 0.0  # after the embeddings
    attention_probs_dropout_prob: float = 0.0  # of the attention weights, and after the attention
    mlp_dropout_prob: float = 0.0  # before the last map of the feed-forward
    initializer_cutoff_factor: float = 2.0  # standard deviations at which initial weights are cut off
    # Ids of special tokens; None if config.json has none that is in the vocabulary.
    pad_token_id: int | None = 50283  # type: ignore[assignment]  # a number in other families
    bos_token_id: int | None = 50281
    eos_token_id: int | None = 50282
    cls_token_id: int | None = 50281
    sep_token_id: int | None = 50282
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    # In a layer of type SLIDING, a token attends to half as many tokens on each side, rounded down.
    local_attention: int = 128
    layer_types: tuple[str, ...] | None = None
    # Of the head for masked language modeling.
    classifier_activation: str = "gelu"
    classifier_bias: bool = False
    decoder_bias: bool = True
    # No fields, see RotarySettings.
    embedding_norm = True
    first_attention_norm = False
    first_layer_needed = "it is the only one without a norm before its attention"
    subtracts_mean = True
    fused_qkv = True
    gate_maps = ("gate_up",)

    @property
    def residual_dropout_probs(self) -> tuple[float, float]:
        """The dropout of the output of each attention, and of each feed-forward."""
        return self.attention_probs_dropout_prob, 0.0

    def with_layer_types(self, layer_types: tuple[str, ...]) -> Self:
        """Return the configuration of a model of layers of these types, which are always named."""
        return replace(self, num_hidden_layers=len(layer_types), layer_types=layer_types)

    def attention_span(self, layer_type: str) -> tuple[int | None, int | None]:
        """Return how many tokens before itself and after itself a token attends to; None means all."""
        half = self.local_attention // 2
        return (half, half) if layer_type == SLIDING else (None, None)


@dataclass(frozen=True)
class NomicBertConfig(RotaryConfig):
    """The configuration of a NomicBERT: BERT's layers without biases, with rotary positions and a gate."""

    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    rope: RopeParameters = RopeParameters(1000.0)
    # No fields, see RotarySettings.
    embedding_norm = True
    pre_norm = False
    subtracts_mean = True
    norm_bias = True
    fused_qkv = True
    gate_maps = ("up", "gate")


@dataclass(frozen=True)
class GteConfig(NomicBertConfig):
    """The configuration of a GTE: a NomicBERT in which all maps but gate and up have a bias.

    Its model_type is "new" in checkpoints that come with code of their own.
    """

    hidden_act: str = "gelu"
    max_position_embeddings: int = 8192
    type_vocab_size: int = 1
    hidden_dropout_prob: float = 0.1
    pad_token_id: int = 1
    rope: RopeParameters = RopeParameters(160000.0)
    # No fields, see RotarySettings.
    attention_bias = True
    has_down_bias = True
    gate_maps = ("up_gate",)  # type: ignore[assignment]  # another length

    @property
    def mlp_dropout_prob(self) -> float:  # type: ignore[override]  # a constant in RotarySettings
        """The dropout before the last map of the feed-forward."""
        return self.hidden_dropout_prob


# ------------------------------------------------------------------------------- decoders


@dataclass(frozen=True)
class DecoderConfig(RotaryConfig):
    """What the config.json of each decoder has, with the defaults of transformers.

    EuroBERT is one of them: it has the layers of a Llama.
    """

    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    layer_norm_eps: float = 1e-6
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    pad_token_id: int | None = None  # type: ignore[assignment]  # a number in other families
    is_causal: bool = True  # False: a token attends to the tokens after it as well
    tie_word_embeddings: bool = False  # whether the output layer is the matrix of the word embeddings

    @property
    def predicts_next_token(self) -> bool:
        """Whether no token attends to later ones, see EncoderConfig."""
        return self.is_causal

    def attention_span(self, layer_type: str) -> tuple[int | None, int | None]:
        """Return how many tokens before itself and after itself a token attends to; None means all."""
        window = self.sliding_window
        if layer_type == FULL or window is None:
            return None, 0 if self.is_causal else None
        return (window - 1, 0) if self.is_causal else (window, window)


@dataclass(frozen=True)
class LlamaConfig(DecoderConfig):
    """The configuration of a Llama."""

    attention_bias: bool = False
    mlp_bias: bool = False


@dataclass(frozen=True)
class EuroBertConfig(LlamaConfig):
    """The configuration of a EuroBERT: a Llama whose tokens also attend to the tokens after them."""

    max_position_embeddings: int = 8192
    layer_norm_eps: float = 1e-5
    is_causal: ClassVar[bool] = False  # type: ignore[misc]  # no key of its config.json, unlike a Llama's


@dataclass(frozen=True)
class MistralConfig(DecoderConfig):
    """The configuration of a Mistral. If it has a window, it is that of every layer."""

    max_position_embeddings: int = 4096 * 32
    num_key_value_heads: int = 8
    sliding_window: int | None = 4096
    whole_heads = False  # no field, see EncoderConfig

    def usual_layer_type(self, n: int) -> str:
        """Return the type of layer n, the same for all layers."""
        return FULL if self.sliding_window is None else SLIDING


@dataclass(frozen=True)
class Qwen2Config(DecoderConfig):
    """The configuration of a Qwen2. Its queries, keys and values have biases, the output has none."""

    max_position_embeddings: int = 32768
    layer_types: tuple[str, ...] | None = None
    use_sliding_window: bool = False
    sliding_window: int | None = 4096  # None if use_sliding_window is false, whatever config.json says
    max_window_layers: int = 28  # so many of the first layers have no window
    whole_heads = False  # no field, see EncoderConfig
    has_qkv_bias = True  # no field, see RotarySettings

    def usual_layer_type(self, n: int) -> str:
        """Return the type of layer n, counted from 0, in models whose config.json has no layer_types."""
        return FULL if self.sliding_window is None or n < self.max_window_layers else SLIDING


@dataclass(frozen=True)
class Qwen3Config(Qwen2Config):
    """The configuration of a Qwen3. Queries and keys have a norm, and usually nothing has a bias."""

    head_dim: int = 128
    attention_bias: bool = False
    # No fields, see RotarySettings.
    has_qkv_bias = False
    qk_norm = True


@dataclass(frozen=True)
class Gemma3Config(DecoderConfig):
    """The configuration of a Gemma 3 without its vision part.

    Most layers have a window, and rotary positions with a frequency base of their own.

    Word embeddings are multiplied by sqrt(D), norms by 1 + their weight, and products of queries and keys by
    1 / sqrt(query_pre_attn_scalar).
    """

    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 131072
    pad_token_id: int | None = 0
    num_key_value_heads: int = 4
    head_dim: int = 256
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    layer_types: tuple[str, ...] | None = None
    sliding_window: int | None = 4096
    sliding_window_pattern: int = 6  # without layer_types, each sixth layer has no window
    query_pre_attn_scalar: int = 256
    use_bidirectional_attention: bool = False
    final_logit_softcapping: float | None = None
    # No fields, see RotarySettings.
    qk_norm = True
    post_norms = True
    norm_offset = 1.0

    @property
    def predicts_next_token(self) -> bool:
        """Whether no token attends to later ones, so that the model can learn to predict the next one."""
        return self.is_causal and not self.use_bidirectional_attention

    @property
    def embedding_scale(self) -> float:  # type: ignore[override]  # a constant in RotarySettings
        """The number by which word embeddings are multiplied."""
        return math.sqrt(self.hidden_size)

    @property
    def attention_scale(self) -> float:  # type: ignore[override]  # a constant in RotarySettings
        """The number by which the products of queries and keys are multiplied."""
        return self.query_pre_attn_scalar**-0.5

    def usual_layer_type(self, n: int) -> str:
        """Return the type of layer n, counted from 0, in models whose config.json has no layer_types."""
        return SLIDING if (n + 1) % self.sliding_window_pattern else FULL

    def attention_span(self, layer_type: str) -> tuple[int | None, int | None]:
        """Return how many tokens before itself and after itself a token attends to; None means all.

        With use_bidirectional_attention, half of sliding_window is on each side. is_causal=False, which
        transformers reads for all decoders, means the whole of it on each side; if both are given, the window
        is one token wider than with use_bidirectional_attention alone, as in transformers.
        """
        if not self.use_bidirectional_attention:
            return super().attention_span(layer_type)
        if layer_type == FULL or self.sliding_window is None:
            return None, None
        half = self.sliding_window // 2 + (0 if self.is_causal else 1)
        return half, half


# ------------------------------------------------------------------------------- tables of names

# fmt: off
# Field of a configuration -> its key in config.json, for the fields that have another name there; None: it
# has none.
NO_KEY: dict[str, str | None] = dict.fromkeys(("embedding_size", "type_vocab_size", "rope", "sliding_rope"))
DECODER_KEYS = NO_KEY | {
    "hidden_dropout_prob":          None,
    "layer_norm_eps":               "rms_norm_eps",
    "attention_probs_dropout_prob": "attention_dropout",
}
GEMMA3_KEYS = DECODER_KEYS | {"hidden_act": "hidden_activation"}
MODERNBERT_KEYS = NO_KEY | {
    "num_key_value_heads":          None,
    "head_dim":                     None,
    "hidden_act":                   "hidden_activation",
    "layer_norm_eps":               "norm_eps",
    "hidden_dropout_prob":          "embedding_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "mlp_dropout_prob":             "mlp_dropout",
}
NOMIC_KEYS: dict[str, str | None] = dict.fromkeys(
    ("embedding_size", "num_key_value_heads", "head_dim", "rope", "sliding_rope")
)
# Key of config.json in the first NomicBERTs -> its key in files for transformers, which takes precedence.
OLD_NOMIC_KEYS = {
    "n_embd":                "hidden_size",
    "n_layer":               "num_hidden_layers",
    "n_head":                "num_attention_heads",
    "n_inner":               "intermediate_size",
    "max_trained_positions": "max_position_embeddings",
    "n_positions":           "max_position_embeddings",
    "layer_norm_epsilon":    "layer_norm_eps",
    "resid_pdrop":           "hidden_dropout_prob",
    "attn_pdrop":            "attention_probs_dropout_prob",
    "rotary_emb_base":       "rope_theta",
}
NOMIC_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu"}  # activation_function of the first ones -> hidden_act
# Key of config.json -> the values for which a model computes what is computed here.
NOMIC_SUPPORTED = {
    "num_experts":            (0,),
    "rotary_emb_fraction":    (1,),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base":  (),
    "prenorm":                (False,),
    "parallel_block":         (False,),
    "causal":                 (False,),
    "scale_attn_weights":     (True,),
}
GTE_SUPPORTED = {
    "position_embedding_type": ("rope",),
    "layer_norm_type":         ("layer_norm",),
    "logn_attention_scale":    (False,),
}
DECODER_SUPPORTED = {  # keys of related models, with layers that are not implemented here
    "attn_logit_softcapping":  (),
    "num_experts":             (0,),
    "num_local_experts":       (0,),
    "moe_intermediate_size":   (0,),
}
# Layer type -> the key of its rope_theta in files of transformers 4, and the default.
MODERNBERT_THETAS = {FULL: ("global_rope_theta", 160000.0), SLIDING: ("local_rope_theta", 10000.0)}
GEMMA3_THETAS = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}

# Module in the checkpoint -> module here; {n} is the number of the layer, from 0.
DECODER_WEIGHTS = {
    "embed_tokens":                         "embeddings.word",
    "layers.{n}.input_layernorm":           "layers.{n}.attention_norm",
    "layers.{n}.self_attn.q_proj":          "layers.{n}.attention.query",
    "layers.{n}.self_attn.k_proj":          "layers.{n}.attention.key",
    "layers.{n}.self_attn.v_proj":          "layers.{n}.attention.value",
    "layers.{n}.self_attn.o_proj":          "layers.{n}.attention.output",
    "layers.{n}.self_attn.q_norm":          "layers.{n}.attention.query_norm",
    "layers.{n}.self_attn.k_norm":          "layers.{n}.attention.key_norm",
    "layers.{n}.post_attention_layernorm":  "layers.{n}.feed_forward_norm",
    "layers.{n}.mlp.gate_proj":             "layers.{n}.feed_forward.gate",
    "layers.{n}.mlp.up_proj":               "layers.{n}.feed_forward.up",
    "layers.{n}.mlp.down_proj":             "layers.{n}.feed_forward.down",
    "norm":                                 "norm",
}
GEMMA3_WEIGHTS = DECODER_WEIGHTS | {
    "layers.{n}.post_attention_layernorm":   "layers.{n}.attention_post_norm",
    "layers.{n}.pre_feedforward_layernorm":  "layers.{n}.feed_forward_norm",
    "layers.{n}.post_feedforward_layernorm": "layers.{n}.feed_forward_post_norm",
}
MODERNBERT_WEIGHTS = {  # layer 0 has no attn_norm
    "embeddings.tok_embeddings": "embeddings.word",
    "embeddings.norm":           "embeddings.norm",
    "layers.{n}.attn_norm":      "layers.{n}.attention_norm",
    "layers.{n}.attn.Wqkv":      "layers.{n}.attention.qkv",
    "layers.{n}.attn.Wo":        "layers.{n}.attention.output",
    "layers.{n}.mlp_norm":       "layers.{n}.feed_forward_norm",
    "layers.{n}.mlp.Wi":         "layers.{n}.feed_forward.gate_up",
    "layers.{n}.mlp.Wo":         "layers.{n}.feed_forward.down",
    "final_norm":                "norm",
}
NOMIC_WEIGHTS = {
    "embeddings.word_embeddings":       "embeddings.word",
    "embeddings.token_type_embeddings": "embeddings.token_type",
    "emb_ln":                           "embeddings.norm",
    "encoder.layers.{n}.attn.Wqkv":     "layers.{n}.attention.qkv",
    "encoder.layers.{n}.attn.out_proj": "layers.{n}.attention.output",
    "encoder.layers.{n}.norm1":         "layers.{n}.attention_norm",
    "encoder.layers.{n}.mlp.fc11":      "layers.{n}.feed_forward.up",
    "encoder.layers.{n}.mlp.fc12":      "layers.{n}.feed_forward.gate",
    "encoder.layers.{n}.mlp.fc2":       "layers.{n}.feed_forward.down",
    "encoder.layers.{n}.norm2":         "layers.{n}.feed_forward_norm",
}
GTE_WEIGHTS = {
    "embeddings.word_embeddings":           "embeddings.word",
    "embeddings.token_type_embeddings":     "embeddings.token_type",
    "embeddings.LayerNorm":                 "embeddings.norm",
    "encoder.layer.{n}.attention.qkv_proj": "layers.{n}.attention.qkv",
    "encoder.layer.{n}.attention.o_proj":   "layers.{n}.attention.output",
    "encoder.layer.{n}.attn_ln":            "layers.{n}.attention_norm",
    "encoder.layer.{n}.mlp.up_gate_proj":   "layers.{n}.feed_forward.up_gate",
    "encoder.layer.{n}.mlp.down_proj":      "layers.{n}.feed_forward.down",
    "encoder.layer.{n}.mlp_ln":             "layers.{n}.feed_forward_norm",
}
# Weight in the checkpoint -> weight of the MLM head in tmft/pretraining/token_heads.py.
MODERNBERT_MLM = {
    "head.dense.weight": "dense.weight",
    "head.dense.bias":   "dense.bias",
    "head.norm.weight":  "norm.weight",
    "head.norm.bias":    "norm.bias",
    "decoder.bias":      "bias",
}
NOMIC_MLM = {
    "cls.predictions.transform.dense.weight":      "dense.weight",
    "cls.predictions.transform.dense.bias":        "dense.bias",
    "cls.predictions.transform.layer_norm.weight": "norm.weight",
    "cls.predictions.transform.layer_norm.bias":   "norm.bias",
    "cls.predictions.bias":                        "bias",
}
GTE_MLM = {
    "lm_head.dense.weight": "dense.weight",
    "lm_head.dense.bias":   "dense.bias",
    "lm_head.norm.weight":  "norm.weight",
    "lm_head.norm.bias":    "norm.bias",
    "lm_head.decoder.bias": "bias",
}
# fmt: on
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


# ------------------------------------------------------------------------------- what no table says


def complete_config(content: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of any family here that follow from others, for Family.complete."""
    D, H, L = (values[name] for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    if values["num_key_value_heads"] is None:
        values["num_key_value_heads"] = H
    if values["head_dim"] is None:
        values["head_dim"] = D // max(H, 1)
    A, K = values["head_dim"], values["num_key_value_heads"]
    if A < 2 or A % 2:
        raise InputError(f"head_dim {A} (config.json): expected an even number, for rotary positions")
    if K < 1 or H % K:
        raise InputError(f"num_key_value_heads {K} (config.json): expected a divisor of {H} heads")
    for name in TOKEN_IDS:
        if values.get(name) is not None and values[name] not in range(values["vocab_size"]):
            values[name] = None  # it is -1 in some files
    named = content.get("layer_types")
    if named is not None and "layer_types" in values:  # transformers does not read it in every family
        if {*named} - {FULL, SLIDING} or len(named) != L:
            expected = f"expected {FULL} or {SLIDING} for each of {L} layers"
            raise InputError(f"layer_types is {short_repr(named)} (config.json): {expected}")
        values["layer_types"] = tuple(named)
    return values


def complete_modernbert(content: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a ModernBERT, see Family.complete.

    Files of transformers 5 have layer_types and rope_parameters; older ones have global_attn_every_n_layers
    and a rope_theta for each layer type.
    """
    values = complete_config(content, values)
    if values["layer_types"] is None:
        period = content.get("global_attn_every_n_layers", 3)
        values["layer_types"] = periodic_layer_types(values["num_hidden_layers"], period)
    ropes = read_rope_parameters_by_layer_type(content, MODERNBERT_THETAS, scaled=(FULL, SLIDING))
    return values | {"rope": ropes[FULL], "sliding_rope": ropes[SLIDING]}


def periodic_layer_types(num_layers: int, period: int) -> tuple[str, ...]:
    """Return the types of num_layers layers of which 0, period, 2 * period ... attend to all tokens."""
    return tuple(SLIDING if n % period else FULL for n in range(num_layers))


def modernbert_extra_keys(config: ModernBertConfig) -> dict[str, Any]:
    """Return the keys for layer types and rotary positions, also the older ones where they say the same."""
    keys: dict[str, Any] = {}
    layer_types, L = config.layer_types, config.num_hidden_layers
    for period in (3, *range(1, L + 1)):
        if layer_types == periodic_layer_types(L, period):
            keys["global_attn_every_n_layers"] = period
            break
    ropes = {kind: config.rope_of(kind) for kind in (FULL, SLIDING)}
    for kind, rope in ropes.items():
        if rope.rope_type == "default":
            keys[MODERNBERT_THETAS[kind][0]] = rope.rope_theta
    return keys | {"rope_parameters": {kind: rope.to_hf() for kind, rope in ropes.items()}}


def modernbert_head_options(config: ModernBertConfig) -> dict[str, Any]:
    """Return the options of MaskedLMHead: in most ModernBERTs only the output has a bias."""
    return {
        "activation": config.classifier_activation,
        "dense_bias": config.classifier_bias,
        "norm_bias": config.norm_bias,
        "output_bias": config.decoder_bias,
    }


def current_nomic_keys(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a NomicBERT's config.json with the keys of transformers.

    The first checkpoints have the keys of OLD_NOMIC_KEYS. They were trained on max_trained_positions tokens;
    for the longer texts that n_positions allows, their own code changes the frequencies of the rotations,
    which is not done here.
    """
    for old, new in OLD_NOMIC_KEYS.items():
        if old in content:
            content = {new: content[old]} | content
    activation = content.get("activation_function")
    if activation is None or "hidden_act" in content:
        return content
    return content | {"hidden_act": NOMIC_ACTIVATIONS.get(activation, activation)}


def complete_nomic(content: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a NomicBERT or a GTE, see Family.complete.

    GTEs with code of their own have rope_scaling of type "ntk" with a factor f: rope_theta is multiplied by
    f, and then all frequencies are divided by f^(2/A). That is type "linear" of transformers.
    """
    values = complete_config(content, values)
    scaling, rope_theta = content.get("rope_scaling"), values["rope"].rope_theta
    if not isinstance(scaling, dict) or scaling.get("rope_type", scaling.get("type")) != "ntk":
        return values | {"rope": read_rope_parameters(content, rope_theta)}
    if scaling.get("mixed_b") is not None:
        raise InputError("mixed_b in rope_scaling (config.json): only ntk without it is supported")
    linear = {key: value for key, value in scaling.items() if key in ("factor", "rope_theta")}
    rope = read_rope_parameters(content | {"rope_scaling": linear | {"rope_type": "linear"}}, rope_theta)
    factor = rope.factor ** (2 / max(values["head_dim"], 1))
    return values | {"rope": replace(rope, rope_theta=rope.rope_theta * rope.factor, factor=factor)}


def complete_decoder(
    content: dict[str, Any],
    values: dict[str, Any],
    transformers_class: str,
    thetas: dict[str, tuple[str, float]] | None = None,
) -> dict[str, Any]:
    """Return the fields of a decoder, see Family.complete.

    transformers_class: the only class that its auto_map may name. thetas: see
    read_rope_parameters_by_layer_type; None means that all layers have the same rotary positions.
    """
    auto_map = content.get("auto_map")
    own_class = auto_map.get("AutoModel") if isinstance(auto_map, dict) else None
    if isinstance(own_class, str) and own_class.rpartition(".")[2] != transformers_class:
        raise InputError(
            f"auto_map has {short_repr(own_class)} (config.json): this model needs code of its own, which is "
            f"never run; if it is a {transformers_class} whose tokens attend to later ones, put is_causal: "
            "false in place of auto_map"
        )
    if values.get("use_sliding_window") is False:
        values["sliding_window"] = None  # it is in most files of Qwen, but of no meaning
    values = complete_config(content, values)
    if thetas is None:
        return values | {"rope": read_rope_parameters(content)}
    ropes = read_rope_parameters_by_layer_type(content, thetas, scaled=(FULL,))
    return values | {"rope": ropes[FULL], "sliding_rope": ropes[SLIDING]}


def gemma3_extra_keys(config: Gemma3Config) -> dict[str, Any]:
    """Return the keys for rotary positions, those of transformers 4 if they can express them."""
    sliding_rope = config.rope_of(SLIDING)
    if sliding_rope.rope_type != "default":
        return {"rope_parameters": {FULL: config.rope.to_hf(), SLIDING: sliding_rope.to_hf()}}
    return config.rope.to_old_hf() | {"rope_local_base_freq": sliding_rope.rope_theta}


# ------------------------------------------------------------------------------- entries of the registry


def decoder_family(
    config: type[DecoderConfig],
    transformers_class: str,
    thetas: dict[str, tuple[str, float]] | None = None,
    **changes: Any,
) -> Family:
    """Return the registry entry of a decoder; changes: the fields in which it differs from most decoders."""
    most = Family(
        config=config,
        encoder=RotaryTransformer,
        keys=DECODER_KEYS,
        supported=DECODER_SUPPORTED,
        nullable_keys=("sliding_window", "num_key_value_heads"),
        complete=partial(complete_decoder, transformers_class=transformers_class, thetas=thetas),
        extra_keys=lambda config: config.rope.to_old_hf(),
        weight_names=DECODER_WEIGHTS,
        prefixes=("model.",),
        ignored_heads=("lm_head", "score", "classifier", "dense", "qa_outputs"),
        transformers_class=transformers_class,
        tokenizer="generic",
        padding_side="left",
        bert_incompatible="it has rotary positions, a gate in the feed-forward and another norm",
    )
    return replace(most, **changes)


NOMIC_BERT = Family(
    config=NomicBertConfig,
    encoder=RotaryTransformer,
    keys=NOMIC_KEYS,
    supported=NOMIC_SUPPORTED,
    normalize=current_nomic_keys,
    complete=complete_nomic,
    extra_keys=lambda config: {"rope_parameters": config.rope.to_hf()},
    weight_names=NOMIC_WEIGHTS,
    prefixes=("nomic_bert.", "bert."),
    ignored_heads=("cls", "pooler", "classifier"),
    transformers_class="NomicBertModel",
    mlm_class="NomicBertForMaskedLM",
    mlm_head_layouts=(NOMIC_MLM,),
    bert_incompatible="it has rotary positions and a gate",
)
GTE = replace(
    NOMIC_BERT,
    config=GteConfig,
    supported=GTE_SUPPORTED,
    normalize=lambda content: content | {"model_type": "gte"},  # transformers does not know "new"
    weight_names=GTE_WEIGHTS,
    prefixes=("gte.", "new."),
    ignored_heads=("lm_head", "pooler", "classifier"),
    transformers_class="GteModel",
    mlm_class="GteForMaskedLM",
    mlm_head_layouts=(GTE_MLM,),
    mlm_activation="gelu",  # whatever hidden_act says, as in transformers
    tokenizer="xlm-roberta",
)
FAMILIES: dict[str, Family[Any]] = {
    "modernbert": Family(
        config=ModernBertConfig,
        encoder=RotaryTransformer,
        keys=MODERNBERT_KEYS,
        nullable_keys=TOKEN_IDS,
        complete=complete_modernbert,
        extra_keys=modernbert_extra_keys,
        weight_names=MODERNBERT_WEIGHTS,
        prefixes=("model.",),
        ignored_heads=("head", "decoder", "classifier"),
        transformers_class="ModernBertModel",
        min_layers=1,
        mlm_class="ModernBertForMaskedLM",
        mlm_head_layouts=(MODERNBERT_MLM,),
        mlm_head_options=modernbert_head_options,
        tokenizer="generic",
        bert_incompatible="it has rotary positions, a gate and norms before the attention",
    ),
    "nomic_bert": NOMIC_BERT,
    "gte": GTE,
    "new": GTE,
    "llama": decoder_family(LlamaConfig, "LlamaModel"),
    "mistral": decoder_family(MistralConfig, "MistralModel"),
    "qwen2": decoder_family(Qwen2Config, "Qwen2Model"),
    "qwen3": decoder_family(Qwen3Config, "Qwen3Model"),
    "gemma3_text": decoder_family(
        Gemma3Config,
        "Gemma3TextModel",
        GEMMA3_THETAS,
        keys=GEMMA3_KEYS,
        extra_keys=gemma3_extra_keys,
        weight_names=GEMMA3_WEIGHTS,
    ),
    # It is pre-trained to fill in masked tokens, with a head that is not implemented here.
    "eurobert": decoder_family(EuroBertConfig, "EuroBertModel", padding_side="right"),
}
