"""T5's encoder, also that of mT5 and umT5: where two tokens stand enters as a number added to their score.

What differs from BERT: norms come before attention and feed-forward, not after, and only scale; no module has
a bias; scores are not divided by sqrt(A); the heads together may be wider or narrower than a hidden state.

Letters in this file: B rows, T tokens in a row, D hidden_size, H heads, A d_kv, F intermediate_size. Rows and
attention_mask are as in tmft/models/bert.py. The tokens of a sentence stand side by side, so the distance of two
of them is that of their columns, and one table of numbers serves every row.
Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1; Shazeer 2020, arXiv:2002.05202, for the gate.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tmft.errors import InputError
from tmft.models.bert import ACTIVATIONS, BaseEncoder, Dropout, EncoderConfig, block_diagonal_mask
from tmft.models.static import LONGEST
from tmft.speed.rms_norm import RMSNorm


@dataclass(frozen=True)
class T5Config(EncoderConfig):
    """What only a T5 says, and its defaults; initializer_range is a factor of the deviations below."""

    hidden_act: str = "relu"
    max_position_embeddings: int = LONGEST  # there is no table of positions to end at
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-6
    initializer_range: float = 1.0
    eos_token_id: int = 1
    d_kv: int = 64  # H * d_kv need not be hidden_size
    feed_forward_proj: str = "relu"  # an activation; or gated-gelu, where the activation gates a linear map
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    bias_in_each_layer: bool = False  # umT5; in T5 and mT5 all layers share that of the first
    num_decoder_layers: int = 0
    decoder_start_token_id: int = 0
    parts: tuple[str, ...] = ()  # ("decoder",): it is built, for its first output; models/t5_decoder.py
    default_max_length = 512  # of the text that it was pre-trained on

    def check(self) -> None:
        """Raises InputError if the numbers do not fit together."""
        sizes = {"num_heads": self.num_attention_heads, "d_kv": self.d_kv, "d_ff": self.intermediate_size}
        for name, value in sizes.items():
            if value == 0:
                raise InputError(f"{name} is 0 (config.json): expected 1 or more")
        if "decoder" in self.parts and self.num_decoder_layers == 0:
            raise InputError(
                "num_decoder_layers is 0 (config.json): pooling decoder needs 1 or more", "pooling"
            )
        if self.decoder_start_token_id >= self.vocab_size:
            start = f"decoder_start_token_id is {self.decoder_start_token_id}"
            raise InputError(f"{start} (config.json): the vocabulary has {self.vocab_size} words")
        buckets, longest = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if buckets < 4:
            raise InputError(f"relative_attention_num_buckets {buckets} (config.json): expected 4 or more")
        if longest <= buckets // 4:
            raise InputError(
                f"relative_attention_max_distance {longest} (config.json): with {buckets} buckets it is "
                f"{buckets // 4 + 1} or more"
            )


# fmt: off
# Field of T5Config -> its name in config.json, where that is another.
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
}
IMPLIED = ("hidden_act", "max_position_embeddings", "type_vocab_size", "bias_in_each_layer", "parts")

# Module in the checkpoint -> module here; {n} is the number of the layer, from 0; .0. and .1. after it are
# the two halves of a layer.
NAMES = {
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
HEADS = (
    "encoder.embed_tokens",  # the table `shared` once more, under the name that the encoder has for it
    "decoder",  # with decoder.embed_tokens, the same table again, and what a first output does not need
    "lm_head",
    "qa_outputs",
    "classification_head",
    "classifier",
)


def read_keys(content: dict, **defaults) -> dict:
    """The keys of a T5's config.json in the form of T5Config; defaults: of a family, where no key is.

    Raises InputError for a feed-forward that nobody knows.
    """
    content = {key: value for key, value in (defaults | content).items() if key not in KEYS}
    known = content | {ours: content[theirs] for ours, theirs in KEYS.items() if theirs in content}
    known |= {"max_position_embeddings": LONGEST, "type_vocab_size": 0}
    known = {"num_decoder_layers": known.get("num_hidden_layers", 0)} | known
    named = known.get("feed_forward_proj", T5Config.feed_forward_proj)
    activation = named.removeprefix("gated-") if isinstance(named, str) else None
    if activation not in ACTIVATIONS:
        raise InputError(
            f"feed_forward_proj {named!r} (config.json): supported are {', '.join(ACTIVATIONS)}, each alone "
            "or as in gated-gelu"
        )
    known["hidden_act"] = "gelu_new" if named == "gated-gelu" else activation  # no other name is so special
    return known


def write_keys(content: dict) -> dict:
    """The way back: what is not implied, under T5's names."""
    whole = "decoder" in content["parts"]
    said = {KEYS.get(key, key): value for key, value in content.items() if key not in IMPLIED}
    if whole:
        said["architectures"] = [name.replace("EncoderModel", "Model") for name in said["architectures"]]
    return said | {"is_encoder_decoder": whole}


def bucket(distance: Tensor, buckets: int, max_distance: int, causal: bool = False) -> Tensor:
    """Distances j - i to numbers 0 .. buckets - 1, int64: the first half is for j <= i, the second for j > i.

    A half of 16 has a bucket for each of 0 .. 7, then 8 that grow: from 8, 12, 16, 23, 32, 46, 64 and 91 on.
    In float32 and in this order, as in the original: rounding decides on which side of an edge 16 falls.
    causal: where nobody looks ahead, as in a decoder, all are for j <= i.
    """
    half = buckets if causal else buckets // 2
    distance = distance.clamp(max=0) if causal else distance
    exact = half // 2
    far = distance.abs().clamp(min=exact)
    growth = torch.log(far.float() / exact) / math.log(max_distance / exact) * (half - exact)
    far_bucket = (exact + growth.long()).clamp(max=half - 1)
    near = distance.abs() < exact
    return torch.where(near, distance.abs(), far_bucket) + half * (distance > 0)


def by_distance(numbers: nn.Embedding, T: int, max_distance: int, causal: bool = False) -> Tensor:
    """numbers: (buckets, H), what a head adds to the score of two tokens for their distance -> (H, T, T)

    Entry [i, j] is for the distance j - i. The numbers of the distances -T .. T - 1 stand T times one after
    the other, and are cut into rows of 2T - 1 from place T on: so each row begins one distance before the
    last one, and no number is looked up twice.
    """
    distance = torch.arange(-T, T, device=numbers.weight.device)
    each = numbers(bucket(distance, numbers.num_embeddings, max_distance, causal)).t()  # (H, 2T)
    rows = each.repeat(1, T)[:, T:].unflatten(1, (T, 2 * T - 1))
    return rows[..., :T]


def linear(inputs: int, outputs: int, deviation: float) -> nn.Linear:
    """A matrix without bias, normal with this standard deviation."""
    module = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(module.weight, std=deviation)
    return module


def embedding(rows: int, width: int, deviation: float) -> nn.Embedding:
    module = nn.Embedding(rows, width)
    nn.init.normal_(module.weight, std=deviation)
    return module


def rms_norm(config: T5Config) -> RMSNorm:
    """w * x / sqrt(mean(x^2) + eps): no mean is taken off and nothing is added, unlike LayerNorm."""
    norm = RMSNorm(config.hidden_size, eps=config.layer_norm_eps)
    nn.init.constant_(norm.weight, config.initializer_range)
    return norm


class Attention(nn.Module):
    """softmax(Q K^T + bias) V. Training starts with small queries, in place of 1 / sqrt(A)."""

    def __init__(self, config: T5Config, has_bias: bool = False):
        super().__init__()
        D, A, H = config.hidden_size, config.d_kv, config.num_attention_heads
        factor = config.initializer_range
        self.num_heads = H
        self.query = linear(D, H * A, factor * (D * A) ** -0.5)
        self.key, self.value = (linear(D, H * A, factor * D**-0.5) for _ in range(2))
        self.output = linear(H * A, D, factor * (H * A) ** -0.5)
        buckets = config.relative_attention_num_buckets
        self.relative_bias = embedding(buckets, H, factor * D**-0.5) if has_bias else None
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor, bias: Tensor, memory: Tensor | None = None) -> Tensor:
        """hidden: (B, W, D), looks at itself (then W is T) or at memory, (B, T, D); bias: (B, H, W, T) or one
        for all heads, added to the scores -> (B, W, D)"""
        B, W, _ = hidden.shape
        seen = hidden if memory is None else memory
        q, k, v = (
            project(x).view(B, x.shape[1], self.num_heads, -1).transpose(1, 2)  # (B, H, W or T, A)
            for project, x in ((self.query, hidden), (self.key, seen), (self.value, seen))
        )
        scores = q @ k.transpose(-1, -2) + bias  # (B, H, W, T)
        context = self.dropout(scores.softmax(-1)) @ v  # (B, H, W, A)
        return self.output(context.transpose(1, 2).reshape(B, W, -1))  # heads side by side again


class FeedForward(nn.Module):
    """Of version 1.0: two linear maps with the activation between them, applied to each token alone."""

    def __init__(self, config: T5Config):
        super().__init__()
        D, F, factor = config.hidden_size, config.intermediate_size, config.initializer_range
        self.up = linear(D, F, factor * D**-0.5)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.down = linear(F, D, factor * F**-0.5)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(self.dropout(self.activation(self.up(hidden))))


class GatedFeedForward(nn.Module):
    """Of version 1.1, mT5 and umT5: what the activation lets through is a linear map, not a constant 1."""

    def __init__(self, config: T5Config):
        super().__init__()
        D, F, factor = config.hidden_size, config.intermediate_size, config.initializer_range
        self.gate, self.linear = (linear(D, F, factor * D**-0.5) for _ in range(2))
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.down = linear(F, D, factor * F**-0.5)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(self.dropout(self.activation(self.gate(hidden)) * self.linear(hidden)))


class Layer(nn.Module):
    """Pre-norm: x + f(norm(x)), for f the self-attention and then the feed-forward.

    Under autocast x, the sum of all that was added so far, stays in float32, and so do the norms.
    """

    def __init__(self, config: T5Config, attention: nn.Module):
        super().__init__()
        gated = config.feed_forward_proj.startswith("gated-")
        self.attention_norm = rms_norm(config)
        self.attention = attention
        self.feed_forward_norm = rms_norm(config)
        self.feed_forward = GatedFeedForward(config) if gated else FeedForward(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden), bias))
        return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))


class T5Encoder(BaseEncoder):
    """The words, the first `layer` layers and the final norm.

    Hidden state n is the final norm of what layer n gives, for every n, as a T5 of n layers would end with.
    (transformers norms the last hidden state alone: its others are the sums before the norm.)
    """

    def __init__(self, config: T5Config, layer: int | None = None):
        super().__init__()
        self.config = config
        self.embeddings = nn.Module()
        self.embeddings.word = embedding(config.vocab_size, config.hidden_size, config.initializer_range)
        self.layers = nn.ModuleList(
            Layer(config, Attention(config, has_bias=n == 0 or config.bias_in_each_layer))
            for n in range(config.resolve_num_layers(layer))
        )
        self.norm = rms_norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def each_sum(self, input_ids: Tensor, attention_mask: Tensor) -> Iterator[Tensor]:
        """The embeddings, then the output of each layer, before the final norm: l + 1 of (B, T, D)"""
        hidden = self.dropout(self.embeddings.word(input_ids))
        refuse_fp16(hidden)
        yield hidden
        mask = block_diagonal_mask(attention_mask, hidden.dtype)[
            :, None
        ]  # (B, 1, T, T), the same for all heads
        for layer in self.layers:
            numbers = layer.attention.relative_bias
            if numbers is not None:
                longest = self.config.relative_attention_max_distance
                bias = mask + by_distance(numbers, input_ids.shape[1], longest)  # (B, H, T, T)
            hidden = layer(hidden, bias)
            yield hidden

    def iter_hidden_states(self, input_ids, attention_mask, position_ids=None) -> Iterator[Tensor]:
        for hidden in self.each_sum(input_ids, attention_mask):
            yield self.dropout(self.norm(hidden))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids=None) -> Tensor:
        """Hidden state l, (B, T, D); the sums below it are not normed in vain."""
        return self.dropout(self.norm(deque(self.each_sum(input_ids, attention_mask), maxlen=1).pop()))


def refuse_fp16(hidden: Tensor) -> None:
    """Raises InputError if products are computed in fp16, whose largest number is 65504.

    In a trained T5 the feed-forward's output is larger: it would be infinite, and all that follows NaN.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    if dtype == torch.float16:
        what = "precision fp16: the numbers in a T5 pass 65504, the largest of fp16"
        raise InputError(f"{what}: choose bf16, which has the range of fp32, or fp32", "precision")
