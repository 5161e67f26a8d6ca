"""Rotary positions: frequencies with the bits of transformers, keys of both ages, rotations, errors."""

import math
import random

import pytest
import torch

from tmft.models.rotary import (
    RopeParameters,
    read_rope_parameters,
    read_rope_parameters_by_layer_type,
    rotate,
)

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
SCALINGS = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    LLAMA3 | {"original_max_position_embeddings": 64},
    LLAMA3 | {"original_max_position_embeddings": 8192, "low_freq_factor": 2, "high_freq_factor": 9.5},
    YARN | {"original_max_position_embeddings": 32},
    YARN | {"original_max_position_embeddings": 4096, "beta_fast": 20, "beta_slow": 2.0, "factor": 40},
    YARN | {"original_max_position_embeddings": 32, "attention_factor": 0.7, "truncate": False},
    YARN | {"original_max_position_embeddings": 32, "mscale": 0.707, "mscale_all_dim": 1.0},
    YARN | {"original_max_position_embeddings": 6, "factor": 0.5},
    YARN,
]
BY_TYPE = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}


@pytest.mark.parametrize("head_dim", [2, 10, 64])
@pytest.mark.parametrize("theta", [10000.0, 250000, 17.0])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: "-".join(map(str, scaling.values())))
def test_frequencies_and_scaling_have_the_bits_of_transformers(scaling, theta, head_dim):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    content = {"rope_theta": theta, "rope_scaling": dict(scaling), "max_position_embeddings": 128}
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, **content)
    theirs = LlamaRotaryEmbedding(config)
    rope = read_rope_parameters(content)
    assert torch.equal(rope.inverse_frequencies(head_dim, 128), theirs.inv_freq)
    assert rope.attention_scaling() == theirs.attention_scaling


def test_a_rotation_by_hand():
    """Pair 0 of position 1 turns by 1 radian, pair 1 by theta^(-1/2): values 0 and 2, 1 and 3 are pairs."""
    cos, sin = RopeParameters(rope_theta=100.0).cos_sin(torch.tensor([[1]]), 4, 128)
    rotated = rotate(torch.tensor([1.0, 0.0, 0.0, 2.0]).view(1, 1, 1, 4), cos, sin).flatten().tolist()
    expected = [math.cos(1), -2 * math.sin(0.1), math.sin(1), 2 * math.cos(0.1)]
    assert rotated == pytest.approx(expected, abs=1e-6)


def test_queries_in_16_bits_are_rotated_in_float32():
    q = torch.randn(1, 2, 5, 8, generator=torch.manual_seed(2)).bfloat16()
    cos, sin = RopeParameters().cos_sin(torch.arange(1000, 1005)[None], 8, 2048)
    assert torch.equal(rotate(q, cos, sin), rotate(q.float(), cos, sin))


@pytest.mark.parametrize("number", range(30))
def test_keys_of_both_ages_are_read_as_transformers_reads_them(number):
    """Any mixture of the old and the new keys, some null; the values inside win over those beside them."""
    from transformers import Qwen2Config

    choose, content = random.Random(number), {"max_position_embeddings": 99}
    for key in ("rope_scaling", "rope_parameters"):
        values = choose.choice([None, {}, *SCALINGS[:5]])
        if choose.random() < 0.6:
            content[key] = values and dict(values)
            if values and choose.random() < 0.5:
                content[key]["rope_theta"] = choose.choice([3.0, 40000.0])
            if values and key == "rope_scaling" and choose.random() < 0.5:
                content[key]["type"] = content[key].pop("rope_type")
    if choose.random() < 0.6:
        content["rope_theta"] = choose.choice([77, 88.0])
    rope = read_rope_parameters({key: value for key, value in content.items() if value is not None})
    config = Qwen2Config(**content)
    theirs = {key: value for key, value in config.rope_parameters.items() if key != "type"}
    if "original_max_position_embeddings" in theirs:
        theirs["original_max_position_embeddings"] = rope.original_max_position_embeddings or 99
        assert theirs["original_max_position_embeddings"] == 99 or rope.original_max_position_embeddings
    ours = rope.to_hf()
    assert ours == {key: theirs[key] for key in ours}
    again = Qwen2Config(max_position_embeddings=99, **rope.to_old_hf())
    assert rope == read_rope_parameters(rope.to_old_hf()) == read_rope_parameters({"rope_parameters": ours})
    assert {key: again.rope_parameters[key] for key in ours} == ours


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"rope_theta": 77.0, "rope_local_base_freq": 5},
        {"rope_theta": 77.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 3}}, "rope_theta": 9.0},
        {"rope_parameters": {"sliding_attention": {"rope_theta": 12.0}}, "rope_local_base_freq": 9.0},
        {"rope_parameters": {"sliding_attention": SCALINGS[2], "full_attention": None}},
    ],
)
def test_layer_types_have_rotations_of_their_own_as_in_transformers(content):
    from copy import deepcopy

    from transformers import Gemma3TextConfig

    ours = read_rope_parameters_by_layer_type(content, BY_TYPE, ("full_attention",))
    theirs = Gemma3TextConfig(**deepcopy(content)).rope_parameters
    for layer_type, rope in ours.items():
        assert rope.to_hf() == {key: theirs[layer_type][key] for key in rope.to_hf()}
