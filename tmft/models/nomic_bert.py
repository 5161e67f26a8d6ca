"""NomicBERT and GTE: BERT's layers with rotary positions and a gated feed-forward.

Both have the post-norm layers of BERT, without position embeddings: queries and keys are rotated
(tmft/models/rotary.py). In a NomicBERT no linear map has a bias; in a GTE all have one but gate and up.
The model_type of a GTE is "new" in checkpoints that come with code of their own.

Letters in this file: B rows of a batch, T tokens in a row, D hidden_size, H heads, A = D / H,
F intermediate_size. What attention_mask and position_ids contain is explained at the top of
tmft/models/base.py.
Source: Nussbaum et al. 2024, arXiv:2402.01613; Zhang et al. 2024, arXiv:2407.19669; Shazeer 2020,
arXiv:2002.05202, for the gated feed-forward.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from tmft.errors import InputError, short_repr
from tmft.models.attention import LongRowMask
from tmft.models.base import (
    ACTIVATIONS,
    BaseEncoder,
    EncoderConfig,
    TokenEmbeddings,
    default_position_ids,
    init_weights,
    layer_mask,
)
from tmft.models.family import Family, check_head_size
from tmft.models.modernbert import RotarySelfAttention, check_even_head_size
from tmft.models.rotary import RopeParameters, read_rope_parameters
from tmft.speed.dropout import Dropout


@dataclass(frozen=True)
class NomicBertConfig(EncoderConfig):
    """The configuration of a NomicBERT, with the defaults of transformers."""

    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    rope: RopeParameters = RopeParameters(1000.0)
    attention_bias: ClassVar[bool] = False
    default_max_length: ClassVar[int | None] = 512

    def check(self) -> None:
        """Raise InputError if the heads cannot have rotary positions, or if pad_token_id is no token."""
        check_head_size(self)
        check_even_head_size(self)
        if self.pad_token_id >= self.vocab_size:
            raise InputError(
                f"pad_token_id is {self.pad_token_id} (config.json): expected less than vocab_size, "
                f"{self.vocab_size}"
            )


@dataclass(frozen=True)
class GteConfig(NomicBertConfig):
    """The configuration of a GTE, with the defaults of transformers."""

    hidden_act: str = "gelu"
    max_position_embeddings: int = 8192
    type_vocab_size: int = 1
    hidden_dropout_prob: float = 0.1
    pad_token_id: int = 1
    rope: RopeParameters = RopeParameters(160000.0)
    attention_bias: ClassVar[bool] = True


# fmt: off
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
# Key of config.json -> the only value for which NomicBertEncoder computes what the model's own code does.
NOMIC_REQUIREMENTS: dict[str, Any] = {
    "num_experts":            0,
    "rotary_emb_fraction":    1,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base":  None,
    "prenorm":                False,
    "parallel_block":         False,
    "causal":                 False,
    "use_rms_norm":           False,
    "qkv_proj_bias":          False,
    "mlp_fc1_bias":           False,
    "mlp_fc2_bias":           False,
    "scale_attn_weights":     True,
}
GTE_REQUIREMENTS: dict[str, Any] = {
    "position_embedding_type": "rope",
    "layer_norm_type":         "layer_norm",
    "logn_attention_scale":    False,
    "pack_qkv":                True,
}

# Module in the checkpoint -> module here; {n} is the number of the layer, from 0.
NOMIC_WEIGHT_NAMES = {
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
GTE_WEIGHT_NAMES = {
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
# transformers splits fused matrices; it joins them again when it saves a model, unless it is told not to.
UNSUPPORTED_NAMES = dict.fromkeys(
    ("layers.", "embeddings.LayerNorm."),
    "this is how transformers saves it with save_original_format=False, save it again with True",
)
# Weight in the checkpoint -> weight of the MLM head in tmft/pretraining/heads.py.
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


def check_requirements(content: dict[str, Any], requirements: dict[str, Any]) -> None:
    """Raise InputError if a config.json asks for something that NomicBertEncoder does not support.

    content: the content of config.json. requirements: {key: the only value that it may have, if it is there}.
    """
    for key, value in requirements.items():
        if key in content and content[key] != value:
            found = json.dumps(content[key])[:80]
            raise InputError(f"{key} is {found} (config.json): only {json.dumps(value)} is supported")
    D, H, A = (content.get(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    if A is not None and type(D) is type(H) is int and H and A != D // H:
        raise InputError(
            f"head_dim {short_repr(A)} (config.json): {H} heads of this size do not make up hidden_size {D}, "
            "correct one of the three"
        )


def nomic_config_from_hf(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of NomicBertConfig for the content of a NomicBERT's config.json.

    The first checkpoints have the keys of OLD_NOMIC_KEYS. They were trained on max_trained_positions tokens;
    for the longer texts that n_positions allows, their own code changes the frequencies of the
    rotations, which is not done here. Raises InputError if a value is not supported.
    """
    for old, new in OLD_NOMIC_KEYS.items():
        if old in content:
            content = {new: content[old]} | content
    check_requirements(content, NOMIC_REQUIREMENTS)
    activation = content.get("activation_function")
    if activation is not None and "hidden_act" not in content:
        gated = {"swiglu": "silu", "geglu": "gelu"}
        if not isinstance(activation, str) or activation not in gated:
            raise InputError(
                f"activation_function {short_repr(activation)} (config.json): supported are swiglu and geglu"
            )
        content = content | {"hidden_act": gated[activation]}
    rope = read_rope_parameters(content, NomicBertConfig.rope.rope_theta)
    return content | {"embedding_size": content.get("hidden_size", 0), "rope": rope}


def gte_config_from_hf(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of GteConfig for the content of a GTE's config.json.

    Checkpoints with code of their own have rope_scaling of type "ntk" with a factor f: rope_theta is
    multiplied by f, and then all frequencies are divided by f^(2/A). That is type "linear" of transformers.
    Raises InputError if a value is not supported.
    """
    check_requirements(content, GTE_REQUIREMENTS)
    rope_theta, scaling = GteConfig.rope.rope_theta, content.get("rope_scaling")
    if isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) == "ntk":
        if scaling.get("mixed_b") is not None:
            raise InputError("mixed_b in rope_scaling (config.json): only ntk without it is supported")
        linear = {key: value for key, value in scaling.items() if key in ("factor", "rope_theta")}
        content = content | {"rope_scaling": linear | {"rope_type": "linear"}}
        rope = read_rope_parameters(content, rope_theta)  # checks factor and rope_theta
        D, H = content.get("hidden_size"), content.get("num_attention_heads")
        if type(D) is type(H) is int and 0 < H <= D:  # otherwise config_from_dict raises an error
            factor = rope.factor ** (2 / (D // H))
            rope = replace(rope, rope_theta=rope.rope_theta * rope.factor, factor=factor)
    else:
        rope = read_rope_parameters(content, rope_theta)
    sizes = {"embedding_size": content.get("hidden_size", 0)}
    return content | sizes | {"model_type": "gte", "rope": rope}  # transformers does not know "new"


def config_to_hf(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a config.json with which transformers opens a saved NomicBERT or GTE.

    content: {field: value} of a NomicBertConfig.
    """
    config = {key: value for key, value in content.items() if key not in ("embedding_size", "rope")}
    return config | {"rope_parameters": RopeParameters(**content["rope"]).to_hf()}


class Embeddings(TokenEmbeddings):
    """Word and token type embeddings, then LayerNorm and dropout. There are no position embeddings."""

    token_type: nn.Embedding | None
    norm: nn.LayerNorm
    dropout: Dropout

    def __init__(self, config: NomicBertConfig):
        super().__init__()
        D = config.hidden_size
        self.word = nn.Embedding(config.vocab_size, D)
        self.token_type = nn.Embedding(config.type_vocab_size, D) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(D, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return hidden state 0, (B, T, D). input_ids: (B, T)."""
        embedded = self.word(input_ids)
        if self.token_type is not None:
            embedded = embedded + self.token_type.weight[0]  # all tokens of a single sentence have type 0
        return self.dropout(self.norm(embedded))


class NomicFeedForward(nn.Module):
    """Feed-forward of a NomicBERT: down(activation(gate(x)) * up(x)), for each token separately."""

    up: nn.Linear
    gate: nn.Linear
    activation: Callable[[Tensor], Tensor]
    down: nn.Linear

    def __init__(self, config: NomicBertConfig):
        super().__init__()
        D, F = config.hidden_size, config.intermediate_size
        self.up, self.gate = (nn.Linear(D, F, bias=False) for _ in range(2))
        self.activation = ACTIVATIONS[config.hidden_act]
        self.down = nn.Linear(F, D, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the output for each token, (B, T, D). hidden: (B, T, D)."""
        return self.down(self.activation(self.gate(hidden)) * self.up(hidden))


class GteFeedForward(nn.Module):
    """Feed-forward of a GTE: as that of a NomicBERT, but one linear map makes up and gate, in this order."""

    up_gate: nn.Linear
    activation: Callable[[Tensor], Tensor]
    dropout: Dropout
    down: nn.Linear

    def __init__(self, config: GteConfig):
        super().__init__()
        D, F = config.hidden_size, config.intermediate_size
        self.up_gate = nn.Linear(D, 2 * F, bias=False)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.down = nn.Linear(F, D)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the output for each token, (B, T, D). hidden: (B, T, D)."""
        up, gate = self.up_gate(hidden).chunk(2, dim=-1)  # (B, T, F) each
        return self.down(self.dropout(self.activation(gate) * up))


class Layer(nn.Module):
    """Post-norm transformer layer: LayerNorm(x + f(x)), where f is self-attention and then feed-forward."""

    attention: RotarySelfAttention
    attention_norm: nn.LayerNorm
    feed_forward: GteFeedForward | NomicFeedForward
    feed_forward_norm: nn.LayerNorm
    dropout: Dropout

    def __init__(self, config: NomicBertConfig):
        super().__init__()
        self.attention = RotarySelfAttention(config, config.attention_bias)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = (
            GteFeedForward(config) if isinstance(config, GteConfig) else NomicFeedForward(config)
        )
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor | LongRowMask, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the output of the layer, (B, T, D). Parameters: those of RotarySelfAttention.forward."""
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, mask, cos, sin)))
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))


class NomicBertEncoder(BaseEncoder):
    """A truncated NomicBERT or GTE: the embeddings and the first `layer` layers."""

    config: NomicBertConfig

    def __init__(self, config: NomicBertConfig, layer: int | None = None):
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
        config = self.config
        if position_ids is None:
            position_ids = default_position_ids(input_ids)
        hidden = self.embeddings(input_ids)
        yield hidden
        mask = layer_mask(attention_mask, hidden.dtype)
        head_size = config.hidden_size // config.num_attention_heads
        cos, sin = config.rope.cos_sin(position_ids, head_size, config.max_position_embeddings)
        for layer in self.layers:
            hidden = layer(hidden, mask, cos, sin)
            yield hidden


NOMIC_BERT = Family(
    config=NomicBertConfig,
    encoder=NomicBertEncoder,
    config_from_hf=nomic_config_from_hf,
    config_to_hf=config_to_hf,
    weight_names=NOMIC_WEIGHT_NAMES,
    prefixes=("nomic_bert.", "bert."),
    ignored_heads=("cls", "pooler", "classifier"),
    transformers_class="NomicBertModel",
    mlm_class="NomicBertForMaskedLM",
    mlm_head_layouts=(NOMIC_MLM,),
    checks=(NomicBertConfig.check,),
    unsupported_names=UNSUPPORTED_NAMES,
    bert_incompatible="it has rotary positions and a gate",
)
GTE = Family(
    config=GteConfig,
    encoder=NomicBertEncoder,
    config_from_hf=gte_config_from_hf,
    config_to_hf=config_to_hf,
    weight_names=GTE_WEIGHT_NAMES,
    prefixes=("gte.", "new."),
    ignored_heads=("lm_head", "pooler", "classifier"),
    transformers_class="GteModel",
    mlm_class="GteForMaskedLM",
    mlm_head_layouts=(GTE_MLM,),
    mlm_activation="gelu",  # whatever hidden_act says, as in transformers
    checks=(GteConfig.check,),
    unsupported_names=UNSUPPORTED_NAMES,
    tokenizer="xlm-roberta",
    bert_incompatible="it has rotary positions and a gate",
)
FAMILIES: dict[str, Family[Any]] = {"nomic_bert": NOMIC_BERT, "gte": GTE, "new": GTE}
