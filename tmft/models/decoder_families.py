"""The configurations and registry entries of the decoders that tmft/models/decoder.py runs.

They are Llama, Mistral, Qwen2, Qwen3, Gemma 3 (text) and EuroBERT. A config.json has the settings of rotary
positions in one of two formats, which are both read: transformers 5 writes rope_parameters, older versions
rope_theta and rope_scaling.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar

from tmft.errors import InputError, short_repr
from tmft.models.decoder import FULL, SLIDING, Decoder, DecoderConfig
from tmft.models.family import Family, check_head_size
from tmft.models.rotary import (
    RopeParameters,
    read_rope_parameters,
    read_rope_parameters_by_layer_type,
)


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

    def default_layer_type(self, n: int) -> str:
        """Return the type of layer n, the same for all layers."""
        return FULL if self.sliding_window is None else SLIDING


@dataclass(frozen=True)
class Qwen2Config(DecoderConfig):
    """The configuration of a Qwen2. Its queries, keys and values have biases, the output has none."""

    max_position_embeddings: int = 32768
    layer_types: tuple[str, ...] | None = None
    use_sliding_window: bool = False
    sliding_window: int | None = None  # None if use_sliding_window is false, whatever config.json says
    max_window_layers: int = 28  # so many of the first layers have no window

    @property
    def qkv_bias(self) -> bool:
        """Whether the linear maps of queries, keys and values have a bias."""
        return True

    def default_layer_type(self, n: int) -> str:
        """Return the type of layer n, counted from 0, in models whose config.json has no layer_types."""
        return FULL if self.sliding_window is None or n < self.max_window_layers else SLIDING


@dataclass(frozen=True)
class Qwen3Config(Qwen2Config):
    """The configuration of a Qwen3. Queries and keys have a norm, and usually nothing has a bias."""

    head_dim: int = 128
    attention_bias: bool = False
    qk_norm = True  # no field, see DecoderSettings

    @property
    def qkv_bias(self) -> bool:
        """Whether the linear maps of queries, keys and values have a bias."""
        return self.attention_bias


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
    rope: RopeParameters = RopeParameters(1e6)  # of layers of type FULL
    sliding_rope: RopeParameters = RopeParameters(1e4)  # of layers of type SLIDING
    attention_bias: bool = False
    layer_types: tuple[str, ...] | None = None
    sliding_window: int | None = 4096
    sliding_window_pattern: int = 6  # without layer_types, each sixth layer has no window
    query_pre_attn_scalar: int = 256
    use_bidirectional_attention: bool = False
    final_logit_softcapping: float | None = None
    # No fields, see DecoderSettings.
    qk_norm = True
    has_post_norms = True
    norm_offset = 1.0

    @property
    def predicts_next_token(self) -> bool:
        """Whether no token attends to later ones, so that the model can learn to predict the next one."""
        return self.is_causal and not self.use_bidirectional_attention

    @property
    def embedding_scale(self) -> float:
        """The number by which word embeddings are multiplied."""
        return math.sqrt(self.hidden_size)

    @property
    def attention_scale(self) -> float:
        """The number by which the products of queries and keys are multiplied."""
        return self.query_pre_attn_scalar**-0.5

    def default_layer_type(self, n: int) -> str:
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

    def rope_parameters(self, layer_type: str) -> RopeParameters:
        """Return the rotary positions of the layers of a type."""
        return self.sliding_rope if layer_type == SLIDING else self.rope

    def check(self) -> None:
        """Raise InputError if a value is out of range, or if two values contradict each other."""
        for name in ("sliding_window_pattern", "query_pre_attn_scalar"):
            if getattr(self, name) == 0:
                raise InputError(f"{name} is 0 (config.json): expected 1 or more")
        limit = self.final_logit_softcapping
        if limit is not None and (type(limit) not in (int, float) or not 0 < limit < math.inf):
            raise InputError(
                f"final_logit_softcapping is {short_repr(limit)} (config.json): expected null or a number "
                "above 0"
            )
        super().check()


# fmt: off
# Field of a DecoderConfig -> its key in config.json, for the fields that have another name there.
CONFIG_NAMES = {
    "embedding_size":               "hidden_size",
    "layer_norm_eps":               "rms_norm_eps",
    "attention_probs_dropout_prob": "attention_dropout",
}
GEMMA3_CONFIG_NAMES = CONFIG_NAMES | {"hidden_act": "hidden_activation"}
# Layer type -> the key of its rope_theta in Gemma's files of transformers 4, and the default.
GEMMA3_ROPE_THETAS = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}
# Keys of config.json for which null does not mean the default.
NULLABLE_KEYS = ("sliding_window", "num_key_value_heads")
# Keys of related models, with layers that are not implemented here.
UNSUPPORTED_KEYS = ("attn_logit_softcapping", "num_experts", "num_local_experts", "moe_intermediate_size")

# Module in the checkpoint -> module here; {n} is the number of the layer, from 0.
WEIGHT_NAMES = {
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
GEMMA3_WEIGHT_NAMES = WEIGHT_NAMES | {
    "layers.{n}.post_attention_layernorm":   "layers.{n}.attention_post_norm",
    "layers.{n}.pre_feedforward_layernorm":  "layers.{n}.feed_forward_norm",
    "layers.{n}.post_feedforward_layernorm": "layers.{n}.feed_forward_post_norm",
}
# fmt: on


def config_from_hf(content: dict[str, Any], config_class: type[DecoderConfig]) -> dict[str, Any]:
    """Return the fields of a DecoderConfig for the content of a decoder's config.json, in either format.

    content: without nulls, except of the keys in NULLABLE_KEYS. Raises InputError if a value is not valid.
    content: the parsed config.json.
    """
    return common_fields(content, config_class, CONFIG_NAMES) | {"rope": read_rope_parameters(content)}


def qwen_config_from_hf(content: dict[str, Any], config_class: type[DecoderConfig]) -> dict[str, Any]:
    """Return the fields of a Qwen2Config or Qwen3Config, see config_from_hf.

    sliding_window is in most files, but it holds only if use_sliding_window is true.
    content: the parsed config.json.
    """
    has_window = content.get("use_sliding_window", False) is True
    return config_from_hf(content, config_class) | {
        "sliding_window": content.get("sliding_window", 4096) if has_window else None
    }


def gemma3_config_from_hf(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a Gemma3Config, see config_from_hf. Each layer type has its own rope.

    content: the parsed config.json.
    """
    rope = read_rope_parameters_by_layer_type(content, GEMMA3_ROPE_THETAS, scaled=(FULL,))
    values = common_fields(content, Gemma3Config, GEMMA3_CONFIG_NAMES)
    return values | {"rope": rope[FULL], "sliding_rope": rope[SLIDING]}


def common_fields(
    content: dict[str, Any], config_class: type[DecoderConfig], config_names: dict[str, str]
) -> dict[str, Any]:
    """Return all fields of a decoder's configuration except those for rotary positions.

    content: the content of config.json. config_names: {field: its key in config.json, if that differs}.
    Values that are wrong in a way that config_from_dict recognizes are left as they are.
    content: the parsed config.json.
    """
    config = {key: value for key, value in content.items() if key not in config_names}
    config |= {name: content[key] for name, key in config_names.items() if key in content}
    config |= {"embedding_size": content.get("hidden_size", 0), "type_vocab_size": 0}
    config["hidden_dropout_prob"] = 0.0
    D, H = content.get("hidden_size"), content.get("num_attention_heads")
    if config.get("num_key_value_heads", config_class.num_key_value_heads or None) is None:
        config["num_key_value_heads"] = H or 0
    if config.get("head_dim", config_class.head_dim or None) is None and type(D) is type(H) is int and H > 0:
        config["head_dim"] = D // H
    padding, vocab_size = content.get("pad_token_id", config_class.pad_token_id), content.get("vocab_size")
    if not (type(padding) is type(vocab_size) is int and 0 <= padding < vocab_size):
        config["pad_token_id"] = None  # it is -1 in some files
    if content.get("layer_types") is not None:
        config["layer_types"] = read_layer_types(content["layer_types"], config_class)
        if "layer_types" not in [config_field.name for config_field in fields(config_class)]:
            check_layers_of_one_type(content, config["layer_types"], config_class)
    return config


def check_layers_of_one_type(
    content: dict[str, Any], layer_types: tuple[str, ...], config_class: type[DecoderConfig]
) -> None:
    """Raise InputError if layer_types are not those of a family whose layers are all of one type.

    content: the content of config.json; its sliding_window decides which type that is.
    """
    window = config_class.sliding_window
    if "sliding_window" in [config_field.name for config_field in fields(config_class)]:
        window = content.get("sliding_window", window)
    usual, L = FULL if window is None else SLIDING, content.get("num_hidden_layers")
    if set(layer_types) - {usual}:
        raise InputError(
            f"layer_types has {layer_types[0]} (config.json): the layers of this model_type with "
            f"sliding_window {short_repr(window)} are {usual}, correct one of the two"
        )
    if type(L) is int and len(layer_types) != L:
        raise InputError(
            f"layer_types has {len(layer_types)} entries (config.json): num_hidden_layers is {L}, "
            "correct one of the two"
        )


def read_layer_types(layer_types: Any, config_class: type[DecoderConfig]) -> tuple[str, ...]:
    """Return the value of the key layer_types of a config.json as a tuple.

    Raises InputError if it is not a list of FULL and SLIDING, or if it has both and all layers of the family
    are of one type.
    """
    known = isinstance(layer_types, list) and all(kind in (FULL, SLIDING) for kind in layer_types)
    if not known:
        raise InputError(
            f"layer_types is {short_repr(layer_types)} (config.json): expected a list of {FULL} and {SLIDING}"
        )
    names = [config_field.name for config_field in fields(config_class)]
    if len(set(layer_types)) > 1 and "layer_types" not in names:
        raise InputError(
            f"layer_types has both {FULL} and {SLIDING} (config.json): all layers of this model_type are of "
            "one type"
        )
    return tuple(layer_types)


def refuse_other_models(content: dict[str, Any], transformers_class: str) -> None:
    """Raise InputError if a config.json describes a different model than its model_type says.

    content: the parsed config.json. transformers_class: the class of transformers for this model_type.
    """
    for key in UNSUPPORTED_KEYS:
        if content.get(key):
            raise InputError(
                f"{key} is {short_repr(content[key])} (config.json): such layers are not supported"
            )
    auto_map = content.get("auto_map")
    own_class = auto_map.get("AutoModel") if isinstance(auto_map, dict) else None
    if isinstance(own_class, str) and own_class.rpartition(".")[2] != transformers_class:
        raise InputError(
            f"auto_map has {short_repr(own_class)} (config.json): this model needs code of its own, which is "
            f"never run; if it is a {transformers_class} whose tokens attend to later ones, put is_causal: "
            "false in place of auto_map"
        )


def config_to_hf(content: dict[str, Any], config_names: dict[str, str] = CONFIG_NAMES) -> dict[str, Any]:
    """Return the content of a config.json with which transformers opens a saved decoder.

    content: {field: value} of a DecoderConfig. config_names: {field: its key in config.json, where that is
    another name}. Rotary positions are written under the keys that transformers 4 has, and 5 reads.
    """
    left_out = ("embedding_size", "type_vocab_size", "hidden_dropout_prob", "rope", "sliding_rope")
    config = {config_names.get(key, key): value for key, value in content.items() if key not in left_out}
    config |= RopeParameters(**content["rope"]).to_old_hf()
    if content.get("layer_types") is None:
        config.pop("layer_types", None)
    if content.get("is_causal", True):
        config.pop("is_causal", None)
    return config


def gemma3_config_to_hf(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a config.json with which transformers opens a saved Gemma 3, see config_to_hf."""
    config = config_to_hf(content, GEMMA3_CONFIG_NAMES)
    rope, sliding_rope = (RopeParameters(**content[name]) for name in ("rope", "sliding_rope"))
    if sliding_rope.rope_type != "default":  # the keys of transformers 4 cannot express it
        del config["rope_theta"], config["rope_scaling"]
        return config | {"rope_parameters": {FULL: rope.to_hf(), SLIDING: sliding_rope.to_hf()}}
    return config | {"rope_local_base_freq": sliding_rope.rope_theta}


# ------------------------------------------------------------------------------- entries of the registry


def decoder_family(
    config: type[DecoderConfig],
    transformers_class: str,
    causal_lm_class: str,
    read: Callable[[dict[str, Any]], dict[str, Any]],
    **changes: Any,
) -> Family:
    """Return the registry entry of a decoder.

    config: the class of its configuration. transformers_class, causal_lm_class: the names of its classes in
    transformers, without and with an output layer. read: a function that returns the fields of `config` for
    the content of a config.json. changes: the fields of Family in which this decoder differs from most
    decoders.
    """

    def config_from_hf(content: dict[str, Any]) -> dict[str, Any]:
        refuse_other_models(content, transformers_class)
        return read(content)

    most = Family(
        config=config,
        encoder=Decoder,
        config_from_hf=config_from_hf,
        config_to_hf=config_to_hf,
        weight_names=WEIGHT_NAMES,
        prefixes=("model.",),
        ignored_heads=("lm_head", "score", "classifier", "dense", "qa_outputs"),
        transformers_class=transformers_class,
        causal_lm_class=causal_lm_class,
        config_names=CONFIG_NAMES,
        checks=(config.check,),
        nullable_keys=NULLABLE_KEYS,
        tokenizer="generic",
        padding_side="left",
        bert_incompatible="it has rotary positions, a gate in the feed-forward and another norm",
    )
    return replace(most, **changes)


FAMILIES: dict[str, Family[Any]] = {
    "llama": decoder_family(
        LlamaConfig,
        "LlamaModel",
        "LlamaForCausalLM",
        partial(config_from_hf, config_class=LlamaConfig),
        checks=(check_head_size, LlamaConfig.check),
    ),
    "mistral": decoder_family(
        MistralConfig,
        "MistralModel",
        "MistralForCausalLM",
        partial(config_from_hf, config_class=MistralConfig),
        keeps_tokenizer_json=True,
    ),
    "qwen2": decoder_family(
        Qwen2Config,
        "Qwen2Model",
        "Qwen2ForCausalLM",
        partial(qwen_config_from_hf, config_class=Qwen2Config),
        tokenizer="qwen2",
    ),
    "qwen3": decoder_family(
        Qwen3Config,
        "Qwen3Model",
        "Qwen3ForCausalLM",
        partial(qwen_config_from_hf, config_class=Qwen3Config),
        tokenizer="qwen2",
    ),
    "gemma3_text": decoder_family(
        Gemma3Config,
        "Gemma3TextModel",
        "Gemma3ForCausalLM",
        gemma3_config_from_hf,
        config_to_hf=gemma3_config_to_hf,
        weight_names=GEMMA3_WEIGHT_NAMES,
        config_names=GEMMA3_CONFIG_NAMES,
        checks=(check_head_size, Gemma3Config.check),
    ),
    "eurobert": decoder_family(
        EuroBertConfig,
        "EuroBertModel",
        "",  # it is pre-trained to fill in masked tokens, with a head that is not implemented here
        partial(config_from_hf, config_class=EuroBertConfig),
        checks=(check_head_size, EuroBertConfig.check),
        padding_side="right",
    ),
}
