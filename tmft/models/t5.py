"""The encoder of T5, mT5 and umT5. Relative positions add a bias to the attention scores.

It differs from BERT in four ways: a norm comes before each attention and feed-forward instead of after it,
and only scales (RMSNorm); no linear map has a bias; scores are not divided by sqrt(A); and the heads together
may be wider or narrower than a hidden state (H * A need not be D).

Letters: B rows of a batch, T tokens in a row, D hidden_size, H heads, A d_kv,
F intermediate_size. What attention_mask contains is explained at the top of tmft/encoder.py. The tokens
of a sentence are next to each other in a row, so the distance between two of them is the distance between
their columns, and one matrix of relative biases serves every row of a batch.
Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1; Shazeer 2020, arXiv:2002.05202, for the gated
feed-forward.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tmft.encoder import (
    ACTIVATIONS,
    UNLIMITED_LENGTH,
    EncoderConfig,
    TokenEmbeddings,
    block_diagonal_mask,
)
from tmft.errors import InputError
from tmft.models.final_norm import FinalNormEncoder
from tmft.speed.operators import Dropout, RMSNorm


@dataclass(frozen=True)
class T5Config(EncoderConfig):
    """The configuration of a T5, with the defaults of transformers.

    initializer_range is T5's initializer_factor: it multiplies the standard deviation of each initialization.
    """

    hidden_act: str = "relu"
    max_position_embeddings: int = UNLIMITED_LENGTH  # T5 has no position embeddings
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-6
    initializer_range: float = 1.0
    eos_token_id: int = 1
    d_kv: int = 64  # H * d_kv need not be hidden_size
    feed_forward_proj: str = "relu"  # name of an activation; with the prefix "gated-": GatedFeedForward
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    num_decoder_layers: int = 0
    decoder_start_token_id: int = 0
    components: tuple[str, ...] = ()  # ("decoder",): load the decoder as well, see models/t5_decoder.py
    bias_in_each_layer: ClassVar[bool] = False  # True in umT5; else all layers share the bias of layer 0
    first_layer_needed: ClassVar[str] = "all layers share its relative position embeddings"
    default_max_length: ClassVar[int | None] = 512  # the length of the text in pre-training
    whole_heads: ClassVar[bool] = False

    @property
    def module_counts(self) -> dict[str, int]:
        """How many modules a name with {n} or {m} stands for."""
        return super().module_counts | {"m": self.num_decoder_layers}


@dataclass(frozen=True)
class MT5Config(T5Config):
    """The configuration of an mT5."""

    feed_forward_proj: str = "gated-gelu"


@dataclass(frozen=True)
class UMT5Config(MT5Config):
    """The configuration of a umT5."""

    bias_in_each_layer: ClassVar[bool] = True
    first_layer_needed: ClassVar[str] = ""


# fmt: off
# Field of T5Config -> its key in config.json, for the fields that have another name there; None: it has none.
KEYS = {
    "embedding_size":               "d_model",
    "hidden_size":                  "d_model",
    "num_hidden_layers":            "num_layers",
    "num_attention_heads":          "num_heads",
    "intermediate_size":            "d_ff",
    "layer_norm_eps":               "layer_norm_epsilon",
    "hidden_dropout_prob":          "dropout_rate",
    "attention_probs_dropout_prob": "dropout_rate",
    "initializer_range":            "initializer_factor",
    "hidden_act":                   None,  # follows from feed_forward_proj
    "max_position_embeddings":      None,
    "type_vocab_size":              None,
    "components":                   None,
}
OTHER_KEYS = {  # key of config.json -> another name of it
    "d_model":                      "hidden_size",
    "num_layers":                   "num_hidden_layers",
    "num_heads":                    "num_attention_heads",
    "d_kv":                         "head_dim",
}
# Module in the checkpoint -> module here; {n} is the number of the layer, from 0. In the checkpoint, layer.0
# is the self-attention of a layer and layer.1 its feed-forward.
WEIGHT_NAMES = {
    "shared":                                                          "embeddings.word",
    "encoder.block.{n}.layer.0.layer_norm":                            "layers.{n}.attention_norm",
    "encoder.block.{n}.layer.0.SelfAttention.q":                       "layers.{n}.attention.query",
    "encoder.block.{n}.layer.0.SelfAttention.k":                       "layers.{n}.attention.key",
    "encoder.block.{n}.layer.0.SelfAttention.v":                       "layers.{n}.attention.value",
    "encoder.block.{n}.layer.0.SelfAttention.o":                       "layers.{n}.attention.output",
    "encoder.block.{n}.layer.0.SelfAttention.relative_attention_bias": "layers.{n}.attention.relative_bias",
    "encoder.block.{n}.layer.1.layer_norm":                            "layers.{n}.feed_forward_norm",
    "encoder.block.{n}.layer.1.DenseReluDense.wi":                     "layers.{n}.feed_forward.up",
    "encoder.block.{n}.layer.1.DenseReluDense.wi_0":                   "layers.{n}.feed_forward.gate",
    "encoder.block.{n}.layer.1.DenseReluDense.wi_1":                   "layers.{n}.feed_forward.linear",
    "encoder.block.{n}.layer.1.DenseReluDense.wo":                     "layers.{n}.feed_forward.down",
    "encoder.final_layer_norm":                                        "norm",
}
# fmt: on
IGNORED_HEADS = (
    "encoder.embed_tokens",  # a copy of `shared`, the word embeddings
    "decoder",  # decoder.embed_tokens is another copy; what is loaded of a decoder: see t5_decoder.py
    "lm_head",
    "qa_outputs",
    "classification_head",
    "classifier",
)


def complete_t5(content: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a T5Config, see Family.complete.

    Raises InputError if the activation in feed_forward_proj is unknown.
    """
    feed_forward = values["feed_forward_proj"]
    activation = feed_forward.removeprefix("gated-")
    if activation not in ACTIVATIONS:
        raise InputError(
            f"feed_forward_proj {feed_forward!r} (config.json): supported are {', '.join(ACTIVATIONS)}, each "
            "alone or as in gated-gelu"
        )
    # As in transformers: with a gate, and only then, "gelu" means its approximation by tanh.
    values["hidden_act"] = "gelu_new" if feed_forward == "gated-gelu" else activation
    if "num_decoder_layers" not in content:
        values["num_decoder_layers"] = values["num_hidden_layers"]
    return values


def relative_position_bucket(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance j - i between two tokens, from 0 to num_buckets - 1.

    distance: int64, any shape; the result has the same shape and dtype. The first half of the buckets is for
    j <= i, the second half for j > i. If a half has 16 buckets, 8 are for the distances 0 .. 7, and the other
    8 begin at 8, 12, 16, 23, 32, 46, 64 and 91: they grow logarithmically up to max_distance.

    It is computed in float32 and in the order of the original code, because rounding decides into which
    bucket the distance 16 falls.
    """
    half = num_buckets // 2
    exact = half // 2
    far = distance.abs().clamp(min=exact)
    growth = torch.log(far.float() / exact) / math.log(max_distance / exact) * (half - exact)
    far_bucket = (exact + growth.long()).clamp(max=half - 1)
    near = distance.abs() < exact
    return torch.where(near, distance.abs(), far_bucket) + half * (distance > 0)


def relative_bias_matrix(bias_table: nn.Embedding, T: int, max_distance: int) -> Tensor:
    """Return the biases that are added to the attention scores, (H, T, T).

    Entry [h, i, j] is the bias of head h for the distance j - i between tokens i and j.
    bias_table: an embedding of (num_buckets, H). max_distance: see relative_position_bucket.

    The biases of the distances -T .. T - 1 are looked up once and repeated T times one after the other. From
    entry T on they are viewed as a matrix of width 2T - 1, each row of which begins one distance lower than
    the row above it.
    """
    distance = torch.arange(-T, T, device=bias_table.weight.device)
    buckets = relative_position_bucket(distance, bias_table.num_embeddings, max_distance)
    biases = bias_table(buckets).t()  # (H, 2T)
    rows = biases.repeat(1, T)[:, T:].unflatten(1, (T, 2 * T - 1))
    return rows[..., :T]


def init_linear(in_features: int, out_features: int, std: float) -> nn.Linear:
    """Return a linear map without bias, drawn from a normal distribution with mean 0.

    in_features, out_features: its sizes. std: the standard deviation.
    """
    module = nn.Linear(in_features, out_features, bias=False)
    nn.init.normal_(module.weight, std=std)
    return module


def init_embedding(num_embeddings: int, embedding_dim: int, std: float) -> nn.Embedding:
    """Return an embedding drawn from a normal distribution with mean 0.

    num_embeddings, embedding_dim: its sizes. std: the standard deviation.
    """
    module = nn.Embedding(num_embeddings, embedding_dim)
    nn.init.normal_(module.weight, std=std)
    return module


def make_norm(config: T5Config) -> RMSNorm:
    """Return T5's norm, w * x / sqrt(mean(x^2) + eps), which subtracts no mean and has no bias."""
    norm = RMSNorm(config.hidden_size, eps=config.layer_norm_eps)
    nn.init.constant_(norm.weight, config.initializer_range)
    return norm


class Attention(nn.Module):
    """Attention, softmax(Q K^T + bias) V: of tokens to each other, or of the decoder to the encoder.

    Scores are not divided by sqrt(A). Instead, the query matrix is initialized with smaller values.
    """

    def __init__(self, config: T5Config, has_bias: bool = False):
        """has_bias: whether the module has a table of relative biases, for its own layer or for all."""
        super().__init__()
        D, A, H = config.hidden_size, config.d_kv, config.num_attention_heads
        factor = config.initializer_range
        self.num_heads = H
        self.query = init_linear(D, H * A, factor * (D * A) ** -0.5)
        self.key, self.value = (init_linear(D, H * A, factor * D**-0.5) for _ in range(2))
        self.output = init_linear(H * A, D, factor * (H * A) ** -0.5)
        buckets = config.relative_attention_num_buckets
        self.relative_bias = init_embedding(buckets, H, factor * D**-0.5) if has_bias else None
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor, bias: Tensor, memory: Tensor | None = None) -> Tensor:
        """Return the output of the attention, (B, W, D).

        hidden: (B, W, D), the tokens that attend. memory: (B, T, D), the hidden states of the encoder that
        they attend to; None if they attend to each other, and then T is W.
        bias: added to the scores; (B, H, W, T), or (B, 1, W, T) if it is the same for all heads.
        """
        B, W, _ = hidden.shape
        attended = hidden if memory is None else memory
        q, k, v = (
            project(x).view(B, x.shape[1], self.num_heads, -1).transpose(1, 2)  # (B, H, W or T, A)
            for project, x in ((self.query, hidden), (self.key, attended), (self.value, attended))
        )
        scores = q @ k.transpose(-1, -2) + bias  # (B, H, W, T)
        context = self.dropout(scores.softmax(-1)) @ v  # (B, H, W, A)
        return self.output(context.transpose(1, 2).reshape(B, W, -1))  # the heads are concatenated again


class FeedForward(nn.Module):
    """Feed-forward, for each token separately: down(activation(up(x))) in T5 1.0.

    In T5 1.1, mT5 and umT5 it has a gate: down(activation(gate(x)) * linear(x)).
    Source: Shazeer 2020, arXiv:2002.05202, for the gate.
    """

    gate: nn.Linear
    linear: nn.Linear
    up: nn.Linear

    def __init__(self, config: T5Config):
        super().__init__()
        D, F, factor = config.hidden_size, config.intermediate_size, config.initializer_range
        self.is_gated = config.feed_forward_proj.startswith("gated-")
        for name in ("gate", "linear") if self.is_gated else ("up",):
            setattr(self, name, init_linear(D, F, factor * D**-0.5))
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.down = init_linear(F, D, factor * F**-0.5)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the output for each token, (B, T, D). hidden: (B, T, D)."""
        if self.is_gated:
            inner = self.activation(self.gate(hidden)) * self.linear(hidden)  # (B, T, F)
        else:
            inner = self.activation(self.up(hidden))
        return self.down(self.dropout(inner))


class Layer(nn.Module):
    """Pre-norm transformer layer: x + f(norm(x)), where f is self-attention and then feed-forward.

    Under autocast the residual stream x stays in float32, and so do the norms.
    """

    def __init__(self, config: T5Config, attention: nn.Module):
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = attention
        self.feed_forward_norm = make_norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """Return the output of the layer, (B, T, D). hidden: (B, T, D); bias: (B, H, T, T), see Attention."""
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden), bias))
        return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))


class T5Encoder(FinalNormEncoder):
    """A truncated T5 encoder: the word embeddings, the first `layer` layers and the final norm.

    The final norm is applied to every hidden state, see FinalNormEncoder.
    """

    config: T5Config

    def __init__(self, config: T5Config, layer: int | None = None):
        """layer: how many layers to keep, 0 to config.num_hidden_layers; None keeps all."""
        super().__init__()
        self.config = config
        self.embeddings = TokenEmbeddings()
        self.embeddings.word = init_embedding(config.vocab_size, config.hidden_size, config.initializer_range)
        self.layers = nn.ModuleList(
            Layer(config, Attention(config, has_bias=n == 0 or config.bias_in_each_layer))
            for n in range(config.resolve_num_layers(layer))
        )
        self.norm = make_norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def iter_pre_norm_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield the word embeddings, then the output of each layer, all without the final norm.

        Each is (B, T, D). input_ids, attention_mask: (B, T). position_ids are ignored: T5 has no position
        embeddings. Raises InputError if the model computes in fp16.
        """
        hidden = self.dropout(self.embeddings.word(input_ids))
        check_not_fp16(hidden)
        yield hidden
        mask = block_diagonal_mask(attention_mask, hidden.dtype)[:, None]  # (B, 1, T, T), for all heads
        for layer in self.layers:
            attention = layer.attention
            assert isinstance(attention, Attention)  # only in a decoder it is of another class
            if attention.relative_bias is not None:
                max_distance = self.config.relative_attention_max_distance
                relative_bias = relative_bias_matrix(
                    attention.relative_bias, input_ids.shape[1], max_distance
                )
                bias = mask + relative_bias  # (B, H, T, T)
            hidden = layer(hidden, bias)
            yield hidden

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Return the hidden state for a state before the final norm: (B, T, D) -> (B, T, D)."""
        return self.dropout(self.norm(hidden))


def check_not_fp16(hidden: Tensor, family: str = "T5") -> None:
    """Raise InputError if the model computes in fp16, whose largest number is 65504.

    hidden: the output of the word embeddings. family: the name for the message. The feed-forward of a trained
    T5 or Gemma has larger outputs: they would become infinite, and everything computed from them NaN.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    if dtype == torch.float16:
        raise InputError(
            f"precision fp16: values in a {family} exceed 65504, the largest number of fp16: choose bf16, "
            "which has the range of fp32, or fp32",
            "precision",
        )
