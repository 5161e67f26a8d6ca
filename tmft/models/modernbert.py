"""ModernBERT: rotary positions, local and global attention, a gated feed-forward and a final norm.

It differs from BERT in five ways: a norm comes before each attention and feed-forward instead of after it;
there are no position embeddings, queries and keys are rotated instead (tmft/models/rotary.py); in most layers
a token attends only to its neighbours; the feed-forward has a gate; and most modules have no bias.

Letters in this file: B rows of a batch, T tokens in a row, D hidden_size, H heads, A = D / H,
F intermediate_size. What attention_mask and position_ids contain is explained at the top of
tmft/models/base.py.
Source: Warner et al. 2024, arXiv:2412.13663; Beltagy et al. 2020, arXiv:2004.05150, for the local attention;
Shazeer 2020, arXiv:2002.05202, for the gated feed-forward.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.errors import InputError, short_repr
from tmft.models.attention import LongRowMask, long_row_attention
from tmft.models.base import (
    ACTIVATIONS,
    EncoderConfig,
    TokenEmbeddings,
    default_position_ids,
    layer_mask,
)
from tmft.models.family import Family, check_head_size
from tmft.models.final_norm import FinalNormEncoder
from tmft.models.rotary import RopeParameters, read_rope_parameters_by_layer_type, rotate
from tmft.speed.dropout import Dropout

# Layer type -> the key of its rope_theta in files of transformers 4, and the default.
ROPE_THETAS = {
    "full_attention": ("global_rope_theta", 160000.0),  # a token attends to all tokens of its sentence
    "sliding_attention": ("local_rope_theta", 10000.0),  # a token attends to its neighbours
}


@dataclass(frozen=True)
class ModernBertConfig(EncoderConfig):
    """The configuration of a ModernBERT, with the defaults of transformers."""

    max_position_embeddings: int = 8192
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-5
    hidden_dropout_prob: float = 0.0  # after the embeddings
    attention_probs_dropout_prob: float = 0.0  # of the attention weights, and after the attention
    mlp_dropout_prob: float = 0.0  # before the last map of the feed-forward
    initializer_cutoff_factor: float = 2.0  # standard deviations at which initial weights are cut off
    # Ids of special tokens; None if config.json has none that is in the vocabulary.
    pad_token_id: int | None = 50283  # type: ignore[assignment]  # a number in the families before
    bos_token_id: int | None = 50281
    eos_token_id: int | None = 50282
    cls_token_id: int | None = 50281
    sep_token_id: int | None = 50282
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    # In a layer of type sliding_attention, a token attends to half as many tokens on each side, rounded down.
    local_attention: int = 128
    layer_types: tuple[str, ...] = ()  # of each layer, a key of ROPE_THETAS
    full_rope: RopeParameters = RopeParameters(160000.0)  # of the layers of type full_attention
    sliding_rope: RopeParameters = RopeParameters(10000.0)  # of the layers of type sliding_attention
    # Of the head for masked language modeling.
    classifier_activation: str = "gelu"
    classifier_bias: bool = False
    decoder_bias: bool = True
    default_max_length: ClassVar[int | None] = 512  # attention between 8192 tokens takes long

    @property
    def rope_by_layer_type(self) -> dict[str, RopeParameters]:
        """The rotary positions of each layer type."""
        return {"full_attention": self.full_rope, "sliding_attention": self.sliding_rope}

    def check(self) -> None:
        """Raise InputError if a value is out of range, or if two values contradict each other."""
        check_head_size(self)
        check_even_head_size(self)
        if self.local_attention == 0:
            raise InputError("local_attention is 0 (config.json): expected 1 or more tokens")
        if len(self.layer_types) != self.num_hidden_layers:
            raise InputError(
                f"layer_types names {len(self.layer_types)} layers (config.json): num_hidden_layers is "
                f"{self.num_hidden_layers}, correct one of the two"
            )


def check_even_head_size(config: EncoderConfig) -> None:
    """Raise InputError if hidden_size / num_attention_heads is odd, so that its halves cannot be rotated."""
    head_size = config.hidden_size // config.num_attention_heads
    if head_size % 2:
        raise InputError(
            f"hidden_size {config.hidden_size} (config.json): its {config.num_attention_heads} heads have "
            f"{head_size} dimensions each, rotary positions need an even number"
        )


# fmt: off
# Field of ModernBertConfig -> its key in config.json, for the fields that have another name there.
CONFIG_NAMES = {
    "hidden_act":                   "hidden_activation",
    "layer_norm_eps":               "norm_eps",
    "hidden_dropout_prob":          "embedding_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "mlp_dropout_prob":             "mlp_dropout",
}
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
# Fields that are not written to config.json under their names.
IMPLIED_FIELDS = ("embedding_size", "type_vocab_size", "full_rope", "sliding_rope")

# Module in the checkpoint -> module here; {n} is the number of the layer, from 0.
# Layer 0 has no attn_norm.
WEIGHT_NAMES = {
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
# Weight in the checkpoint -> weight of the MLM head in tmft/pretraining/heads.py.
MLM = {
    "head.dense.weight": "dense.weight",
    "head.dense.bias":   "dense.bias",
    "head.norm.weight":  "norm.weight",
    "head.norm.bias":    "norm.bias",
    "decoder.bias":      "bias",
}
# fmt: on


def config_from_hf(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ModernBertConfig for the content of a ModernBERT's config.json.

    Files of transformers 5 have layer_types and rope_parameters; older ones have global_attn_every_n_layers
    and a rope_theta for each layer type. Raises InputError if one of these is not valid.
    """
    config = {key: value for key, value in content.items() if key not in CONFIG_NAMES}
    config |= {name: content[key] for name, key in CONFIG_NAMES.items() if key in content}
    rope = read_rope_parameters_by_layer_type(content, ROPE_THETAS, scaled=tuple(ROPE_THETAS))
    check_sliding_window(content)
    vocab_size = content.get("vocab_size")
    for name in TOKEN_IDS:
        token_id = content.get(name, getattr(ModernBertConfig, name))
        in_vocabulary = type(token_id) is type(vocab_size) is int and 0 <= token_id < vocab_size
        config[name] = token_id if in_vocabulary else None
    return config | {
        "embedding_size": content.get("hidden_size", 0),
        "type_vocab_size": 0,
        "layer_types": read_layer_types(content),
        "full_rope": rope["full_attention"],
        "sliding_rope": rope["sliding_attention"],
    }


def check_sliding_window(content: dict[str, Any]) -> None:
    """Raise InputError if a config.json has a sliding_window that contradicts its local_attention.

    content: the parsed config.json. transformers 5 reads both: sliding_window is the number of tokens to each
    side, local_attention twice it.
    """
    window = content.get("local_attention", ModernBertConfig.local_attention)
    if "sliding_window" not in content or type(window) is not int:
        return  # config_from_dict raises the error for a local_attention of another type
    if content["sliding_window"] != window // 2:
        raise InputError(
            f"sliding_window is {short_repr(content['sliding_window'])} (config.json): local_attention "
            f"{window} means {window // 2} tokens to each side, remove one of the two"
        )


def read_layer_types(content: dict[str, Any]) -> tuple[str, ...]:
    """Return the type of each layer, a key of ROPE_THETAS. content: the content of a config.json.

    Raises InputError if the types are unknown, or if global_attn_every_n_layers is not a positive number.
    """
    layer_types, num_layers = content.get("layer_types"), content.get("num_hidden_layers")
    if layer_types is not None:
        unknown = layer_types
        if isinstance(layer_types, list):
            unknown = next((kind for kind in layer_types if kind not in list(ROPE_THETAS)), None)
        if unknown is not None:
            raise InputError(
                f"layer_types has {short_repr(unknown)} (config.json): expected a list of "
                f"{' and '.join(ROPE_THETAS)}"
            )
        return tuple(layer_types)
    period = content.get("global_attn_every_n_layers", 3)
    if type(period) is not int or period < 1:
        raise InputError(
            f"global_attn_every_n_layers is {short_repr(period)} (config.json): expected 1 or a larger "
            "whole number"
        )
    if type(num_layers) is not int or not 0 <= num_layers <= 1000:
        return ()  # config_from_dict raises the error for num_hidden_layers
    return periodic_layer_types(num_layers, period)


def periodic_layer_types(num_layers: int, period: int) -> tuple[str, ...]:
    """Return the types of num_layers layers of which 0, period, 2 * period ... attend to all tokens."""
    return tuple("sliding_attention" if n % period else "full_attention" for n in range(num_layers))


def config_to_hf(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a config.json with which transformers opens a saved ModernBERT.

    content: {field: value} of a ModernBertConfig, the layer_types those of the kept layers. The keys of
    transformers 5 are written, and also the older ones where these can express the same.
    """
    config = {
        CONFIG_NAMES.get(key, key): value for key, value in content.items() if key not in IMPLIED_FIELDS
    }
    layer_types, num_layers = tuple(content["layer_types"]), len(content["layer_types"])
    ropes = {kind: RopeParameters(**content[f"{kind.partition('_')[0]}_rope"]) for kind in ROPE_THETAS}
    for period in (3, *range(1, num_layers + 1)):
        if layer_types == periodic_layer_types(num_layers, period):
            config["global_attn_every_n_layers"] = period
            break
    for kind, rope in ropes.items():
        if rope.rope_type == "default":
            config[ROPE_THETAS[kind][0]] = rope.rope_theta
    return config | {
        "layer_types": list(layer_types),
        "rope_parameters": {kind: rope.to_hf() for kind, rope in ropes.items()},
    }


def mlm_head_options(config: ModernBertConfig) -> dict[str, Any]:
    """Return the options of MaskedLMHead: in most ModernBERTs only the output has a bias."""
    return {
        "activation": config.classifier_activation,
        "dense_bias": config.classifier_bias,
        "norm_bias": config.norm_bias,
        "output_bias": config.decoder_bias,
    }


class Embeddings(TokenEmbeddings):
    """Word embeddings, then LayerNorm and dropout. There are no position embeddings."""

    norm: nn.LayerNorm
    dropout: Dropout

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = layer_norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings, (B, T, D). input_ids: (B, T)."""
        return self.dropout(self.norm(self.word(input_ids)))


class RotarySelfAttention(nn.Module):
    """Multi-head self-attention with rotated queries and keys; one linear map makes queries, keys and values.

    F.scaled_dot_product_attention reads the three parts where they are, so that none has to be copied.
    """

    num_heads: int
    qkv: nn.Linear
    output: nn.Linear
    dropout: Dropout

    def __init__(self, config: EncoderConfig, bias: bool):
        """bias: whether the two linear maps have a bias."""
        super().__init__()
        D = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.qkv = nn.Linear(D, 3 * D, bias=bias)
        self.output = nn.Linear(D, D, bias=bias)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor | LongRowMask, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the output of the attention, (B, T, D).

        hidden: (B, T, D). mask: (B, 1, T, T), added to the scores, or that of long rows, see layer_mask. cos,
        sin: (B, 1, T, A/2), see tmft/models/rotary.py.
        """
        B, T, D = hidden.shape
        qkv = self.qkv(hidden).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)  # (3, B, H, T, A)
        q, k = rotate(qkv[:2], cos, sin).type_as(qkv)  # (B, H, T, A) each
        p = self.dropout.p if self.training else 0.0
        if isinstance(mask, LongRowMask):
            context = long_row_attention(q, k, qkv[2], mask, p)  # (B, H, T, A)
        else:
            context = F.scaled_dot_product_attention(q, k, qkv[2], attn_mask=mask, dropout_p=p)
        return self.output(context.transpose(1, 2).reshape(B, T, D))  # the heads are concatenated again


class GatedFeedForward(nn.Module):
    """down(activation(gate(x)) * up(x)) for each token separately; one linear map makes gate and up."""

    gate_up: nn.Linear
    activation: Callable[[Tensor], Tensor]
    dropout: Dropout
    down: nn.Linear

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        D, F, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up = nn.Linear(D, 2 * F, bias=bias)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = Dropout(config.mlp_dropout_prob)
        self.down = nn.Linear(F, D, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the output for each token, (B, T, D). hidden: (B, T, D)."""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)  # (B, T, F) each
        return self.down(self.dropout(self.activation(gate) * up))


class Layer(nn.Module):
    """Pre-norm transformer layer: x + f(norm(x)), where f is self-attention and then feed-forward.

    Layer 0 has no norm before its attention, because the embeddings end with one.
    """

    layer_type: str
    attention_norm: nn.LayerNorm | nn.Identity
    attention: RotarySelfAttention
    feed_forward_norm: nn.LayerNorm
    feed_forward: GatedFeedForward
    dropout: Dropout

    def __init__(self, config: ModernBertConfig, number: int):
        """number: the number of the layer in the checkpoint, from 0."""
        super().__init__()
        self.layer_type = config.layer_types[number]
        self.attention_norm = layer_norm(config) if number else nn.Identity()
        self.attention = RotarySelfAttention(config, config.attention_bias)
        self.feed_forward_norm = layer_norm(config)
        self.feed_forward = GatedFeedForward(config)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor | LongRowMask, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the output of the layer, (B, T, D). Parameters: those of RotarySelfAttention.forward."""
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden), mask, cos, sin))
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


def layer_norm(config: ModernBertConfig) -> nn.LayerNorm:
    """Return a LayerNorm over D values, with a bias only if the configuration asks for it."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.norm_bias)


class ModernBertEncoder(FinalNormEncoder):
    """A truncated ModernBERT: the embeddings, the first `layer` layers and the final norm.

    The final norm is applied to every hidden state, see FinalNormEncoder.
    """

    config: ModernBertConfig

    def __init__(self, config: ModernBertConfig, layer: int | None = None):
        """layer: how many layers to keep, 0 to config.num_hidden_layers; None keeps all."""
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, n) for n in range(config.resolve_num_layers(layer)))
        self.norm = layer_norm(config)
        for name, module in self.named_modules():
            init_weights(name, module, config)

    @property
    def layer_types(self) -> tuple[str, ...]:
        """The type of each layer that is kept, a key of ROPE_THETAS."""
        return tuple(str(layer.layer_type) for layer in self.layers)

    def saved_form(self) -> tuple[ModernBertConfig, dict[str, Tensor]]:
        """Return the configuration and the state dict with which the encoder is saved, see BaseEncoder."""
        layer_types = self.layer_types
        config = replace(self.config, num_hidden_layers=len(layer_types), layer_types=layer_types)
        return config, self.state_dict()

    def iter_pre_norm_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield the embeddings, then the output of each layer, all without the final norm: (B, T, D) each.

        The parameters are those of BaseEncoder.iter_hidden_states.
        """
        config, T = self.config, input_ids.shape[1]
        head_size = config.hidden_size // config.num_attention_heads
        if position_ids is None:
            position_ids = default_position_ids(input_ids)
        hidden = self.embeddings(input_ids)
        yield hidden
        half = config.local_attention // 2
        # A graph is exported with one value of T and used with others, so its mask must not depend on T.
        all_are_neighbours = not torch.compiler.is_compiling() and T <= half + 1
        inputs = {}  # layer type -> mask, cos and sin
        for layer_type in dict.fromkeys(self.layer_types):
            window = None if layer_type == "full_attention" or all_are_neighbours else half
            mask = layer_mask(attention_mask, hidden.dtype, before=window, after=window)
            rope = config.rope_by_layer_type[layer_type]
            inputs[layer_type] = mask, *rope.cos_sin(position_ids, head_size, config.max_position_embeddings)
        for layer, layer_type in zip(self.layers, self.layer_types, strict=True):
            hidden = layer(hidden, *inputs[layer_type])
            yield hidden


def init_weights(name: str, module: nn.Module, config: ModernBertConfig) -> None:
    """Initialize the weights of a module in place, as transformers does for a ModernBERT.

    Matrices are drawn from a truncated normal distribution with standard deviation initializer_range, those
    that add to the hidden states with one that is sqrt(2 num_hidden_layers) times smaller. Biases are 0.
    name: the name of the module in the encoder.
    """
    if not isinstance(module, (nn.Linear, nn.Embedding)):
        return
    std = config.initializer_range
    if name.endswith((".output", ".down")):
        std /= (2 * config.num_hidden_layers) ** 0.5
    cutoff = config.initializer_cutoff_factor * std
    nn.init.trunc_normal_(module.weight, std=std, a=-cutoff, b=cutoff)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


FAMILIES = {
    "modernbert": Family(
        config=ModernBertConfig,
        encoder=ModernBertEncoder,
        config_from_hf=config_from_hf,
        config_to_hf=config_to_hf,
        weight_names=WEIGHT_NAMES,
        prefixes=("model.",),
        ignored_heads=("head", "decoder", "classifier"),
        transformers_class="ModernBertModel",
        min_layers=1,
        mlm_class="ModernBertForMaskedLM",
        mlm_head_layouts=(MLM,),
        mlm_head_options=mlm_head_options,
        config_names=CONFIG_NAMES,
        nullable_keys=TOKEN_IDS,
        checks=(ModernBertConfig.check,),
        tokenizer="generic",
        keeps_tokenizer_json=True,
        bert_incompatible="it has rotary positions, a gate and norms before the attention",
        first_layer_needed="it is the only one without a norm before its attention",
    ),
}
