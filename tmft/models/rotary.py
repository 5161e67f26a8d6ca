"""Rotary positions: queries and keys are rotated by angles that grow with the position of their token.

A head of A values is seen as A/2 pairs, value i of the first half with value i of the second half. Pair i
of a token at position p is rotated by the angle p * f_i, f_i = rope_theta^(-2i/A), so that the product of a
query and a key depends only on the distance between their tokens. Models for long texts change the
frequencies f_i, in a way that rope_type in config.json names.

An encoder uses it in three steps:

    rope = read_rope_parameters(config_json, rope_theta=10000.0)                      # once, a RopeParameters
    cos, sin = rope.cos_sin(position_ids, head_dim, config.max_position_embeddings)   # once per forward pass
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)                                   # in each layer

Letters: B rows of a batch, T tokens in a row, H heads, A head_dim.
Source: Su et al. 2021, arXiv:2104.09864; Peng et al. 2023, arXiv:2309.00071, for yarn; Dubey et al. 2024,
arXiv:2407.21783, for llama3.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from tmft.errors import InputError, short_repr
from tmft.speed.overlap import constant_on

# rope_type -> its keys in config.json besides rope_theta.
ROPE_TYPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        *("factor", "original_max_position_embeddings", "attention_factor"),
        *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
}

MAX_VALUE = 1e12  # of a number in these keys: larger ones are mistakes


@dataclass(frozen=True)
class RopeParameters:
    """The angles of the rotations, under the names that rope_parameters in config.json has for them.

    A field that the rope_type does not use has no meaning. None means that config.json does not say it; the
    methods then use the defaults of transformers.
    """

    rope_theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: float | None = None  # None: max_position_embeddings of the model
    low_freq_factor: float = 1.0  # this one and the next: of llama3
    high_freq_factor: float = 4.0
    attention_factor: float | None = None  # all following: of yarn
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None

    def cos_sin(
        self, position_ids: Tensor, head_dim: int, max_position_embeddings: int
    ) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of all angles, (B, 1, T, A/2) each in float32, for rotate.

        position_ids: (B, T). head_dim: A. max_position_embeddings: see inverse_frequencies.
        """
        arguments = self.inverse_frequencies, head_dim, max_position_embeddings
        frequencies = constant_on(position_ids.device, *arguments)
        angles = position_ids[:, None, :, None].float() * frequencies  # (B, 1, T, A/2)
        scaling = self.attention_scaling()
        return angles.cos() * scaling, angles.sin() * scaling

    def inverse_frequencies(self, head_dim: int, max_position_embeddings: int) -> Tensor:
        """Return the frequencies f_0 .. f_(A/2 - 1) by which positions are multiplied, (A/2,) in float32.

        head_dim: A, an even number. max_position_embeddings: that of the model; the frequencies depend on it
        if original_max_position_embeddings is None.
        They are computed on the CPU, with the operations of transformers in the same order, so that the
        results are equal to the last bit.
        """
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
        powers = self.rope_theta**exponents
        frequencies = 1.0 / powers
        original_length = self.original_max_position_embeddings or max_position_embeddings
        if self.rope_type == "linear":
            return frequencies / self.factor
        if self.rope_type == "llama3":
            return self.llama3_frequencies(frequencies, original_length)
        if self.rope_type == "yarn":
            return self.yarn_frequencies(powers, head_dim, original_length)
        return frequencies

    def llama3_frequencies(self, frequencies: Tensor, original_length: float) -> Tensor:
        """Return frequencies of which only the low ones are divided by factor, as in Llama 3.1.

        frequencies: (A/2,), those of rope_type default. original_length: tokens of a text in pre-training.
        A pair that turns less than low_freq_factor times over such a text is slowed down by factor, a pair
        that turns more than high_freq_factor times is not, and the pairs in between are slowed down partly.
        """
        turns = original_length / (2 * math.pi / frequencies)
        low, high = self.low_freq_factor, self.high_freq_factor
        kept_part = (turns - low) / (high - low)
        between = (1 - kept_part) * frequencies / self.factor + kept_part * frequencies
        slowed_down = torch.where(turns < low, frequencies / self.factor, between)
        return torch.where(turns > high, frequencies, slowed_down)

    def yarn_frequencies(self, powers: Tensor, head_dim: int, original_length: float) -> Tensor:
        """Return frequencies of which the low ones are divided by factor, as in YaRN, section 3.2.

        powers: (A/2,), 1 / f_i of rope_type default. head_dim: A. original_length: tokens of a text in
        pre-training. Pairs that turn more than beta_fast times over such a text keep their frequency, pairs
        that turn less than beta_slow times are slowed down by factor, and in between the frequency is
        interpolated linearly in the number of the pair.
        """

        def pair_that_turns(turns: float) -> float:
            """Return the number i, not rounded, of the pair that turns so many times over such a text."""
            length_per_radian = original_length / (turns * 2 * math.pi)
            return head_dim * math.log(length_per_radian) / (2 * math.log(self.rope_theta))

        first, last = pair_that_turns(self.beta_fast or 32), pair_that_turns(self.beta_slow or 1)
        if self.truncate is not False:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, head_dim - 1)
        width = last - first or 0.001
        pairs = torch.arange(head_dim // 2, dtype=torch.float32, device="cpu")
        kept_part = 1 - ((pairs - first) / width).clamp(0, 1)
        return 1.0 / (self.factor * powers) * (1 - kept_part) + 1.0 / powers * kept_part

    def attention_scaling(self) -> float:
        """Return the number by which cosine and sine are multiplied: 1, except for rope_type yarn."""
        if self.rope_type != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_scale(self.factor, self.mscale) / yarn_scale(self.factor, self.mscale_all_dim)
        return yarn_scale(self.factor)

    def to_hf(self) -> dict[str, Any]:
        """Return rope_theta, rope_type and the keys of this type, as in rope_parameters of transformers 5."""
        keys = ("rope_theta", "rope_type", *ROPE_TYPES[self.rope_type])
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name in keys}
        return {name: value for name, value in values.items() if value is not None}

    def to_old_hf(self) -> dict[str, Any]:
        """Return {"rope_theta": ..., "rope_scaling": {...} or None}, which old and new transformers read."""
        scaling = {name: value for name, value in self.to_hf().items() if name != "rope_theta"}
        return {
            "rope_theta": self.rope_theta,
            "rope_scaling": None if self.rope_type == "default" else scaling,
        }


def yarn_scale(factor: float, mscale: float = 1.0) -> float:
    """Return 0.1 * mscale * ln(factor) + 1, by which YaRN sharpens attention; 1 if factor is at most 1."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs of each head: (B, H, T, A) -> (B, H, T, A), in float32 also if x has 16 bits.

    x: queries or keys. cos, sin: (B, 1, T, A/2) in float32, see RopeParameters.cos_sin.
    """
    first, second = x.chunk(2, dim=-1)  # (B, H, T, A/2) each
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def read_rope_parameters(content: dict[str, Any], rope_theta: float = 10000.0) -> RopeParameters:
    """Return the rotary positions of a model that has the same ones in all layers.

    content: the content of a config.json, with rope_theta and rope_scaling, or with rope_parameters, as
    transformers 5 writes it. If there are both, rope_scaling is used. A rope_theta outside of these objects
    is used if they have none. rope_theta: the default of the family.
    Raises InputError if the type is not in ROPE_TYPES, or if only a part of each head is rotated.
    """
    values = read_object(content, "rope_scaling") or read_object(content, "rope_parameters")
    outside = {
        key: content[key]
        for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
        if content.get(key) is not None
    }
    return make_rope_parameters({"rope_theta": rope_theta} | outside | values)


def read_rope_parameters_by_layer_type(
    content: dict[str, Any], rope_thetas: dict[str, tuple[str, float]], scaled: tuple[str, ...]
) -> dict[str, RopeParameters]:
    """Return {layer type: its rotary positions} of a model in which they differ between layer types.

    content: the content of a config.json of transformers 5, in which rope_parameters has an object for each
    layer type, or of an older version.
    rope_thetas: {layer type: (key of its theta in older files, default of the family)}. scaled: the layer
    types to which rope_scaling of older files belongs. As in transformers, original_max_position_embeddings
    counts only inside of these objects.
    Raises the errors of read_rope_parameters.
    """
    by_type, scaling = read_object(content, "rope_parameters"), read_object(content, "rope_scaling")
    parameters = {}
    for layer_type, (theta_key, default) in rope_thetas.items():
        values = {"rope_theta": content.get(theta_key, default)} | read_object(by_type, layer_type)
        values |= scaling if layer_type in scaled else {}
        parameters[layer_type] = make_rope_parameters(values)
    return parameters


def read_object(content: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the object under a key of config.json without its nulls; {} if it is missing or null."""
    return {name: part for name, part in (content.get(key) or {}).items() if part is not None}


def make_rope_parameters(values: dict[str, Any]) -> RopeParameters:
    """Return the RopeParameters with these values; keys that the type does not use are left out.

    Raises the errors of read_rope_parameters.
    """
    rope_type = values.get("rope_type", values.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise InputError(
            f"rope_type {short_repr(rope_type)} (config.json): supported are {', '.join(ROPE_TYPES)}"
        )
    if (part := values.get("partial_rotary_factor", 1)) != 1:
        raise InputError(f"partial_rotary_factor is {part} (config.json): only heads rotated as a whole, 1")
    keys = ("rope_theta", *ROPE_TYPES[rope_type])
    for key in keys:
        value = values.get(key, 1)
        if type(value) is not bool and not (type(value) in (int, float) and 0 < value < MAX_VALUE):
            raise InputError(f"{key} is {short_repr(value)} (config.json): expected a number above 0")
    return RopeParameters(rope_type=rope_type, **{key: values[key] for key in keys if key in values})
