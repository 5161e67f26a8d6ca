"""Small odd configurations of every family, drawn at random, for tests/models/test_every_family.py.

RANDOM_CONFIGS has a function for each model_type: it draws the content of a config.json that transformers can
run. Its numbers are odd on purpose, such as 3 heads of 5 dimensions, because a wrong axis or a wrong divisor
then changes the result or fails.
"""

import random
from collections.abc import Callable

from conftest import VOCABULARY

LONGEST = 40  # tokens of the longest sentence that the tests put into an encoder
ACTIVATIONS = ("gelu", "relu", "silu", "gelu_new")


def sizes(rng: random.Random, head_size: int | None = None) -> dict:
    """The keys that nearly all families have; the hidden size is a multiple of the number of heads."""
    heads = rng.choice((1, 2, 3, 4, 5))
    return {
        "vocab_size": len(VOCABULARY) + rng.randrange(20),
        "hidden_size": heads * (head_size or rng.randrange(3, 10)),
        "num_hidden_layers": rng.randrange(1, 5),
        "num_attention_heads": heads,
        "intermediate_size": rng.randrange(5, 50),
    }


def bert(rng: random.Random) -> dict:
    return sizes(rng) | {
        "model_type": "bert",
        "hidden_act": rng.choice(ACTIVATIONS),
        "max_position_embeddings": LONGEST + rng.randrange(10),
        "type_vocab_size": rng.randrange(1, 4),
        "layer_norm_eps": rng.choice((1e-12, 1e-5, 1e-3)),
    }


def electra(rng: random.Random) -> dict:
    content = bert(rng)
    return content | {
        "model_type": "electra",
        "embedding_size": rng.choice((content["hidden_size"], rng.randrange(2, 30))),
    }


def deberta(rng: random.Random) -> dict:
    content = bert(rng)
    relative = {
        "relative_attention": True,
        "max_relative_positions": rng.choice((-1, 7, LONGEST)),
        "position_buckets": rng.choice((-1, 4, 7)),
        "pos_att_type": rng.choice((["c2p"], ["p2c"], ["c2p", "p2c"])),
        "norm_rel_ebd": rng.choice(("none", "layer_norm")),
        "share_att_key": rng.random() < 0.5,
        "position_biased_input": rng.random() < 0.5,
    }
    return content | relative | {"model_type": "deberta-v2", "type_vocab_size": rng.randrange(3)}


def t5(rng: random.Random) -> dict:
    content = sizes(rng)
    return {
        "model_type": "t5",
        "vocab_size": content["vocab_size"],
        "d_model": rng.randrange(4, 40),
        "d_kv": rng.randrange(1, 10),
        "d_ff": content["intermediate_size"],
        "num_layers": content["num_hidden_layers"],
        "num_heads": content["num_attention_heads"],
        "relative_attention_num_buckets": rng.choice((4, 8, 32)),
        "relative_attention_max_distance": rng.choice((16, 40, 128)),
        "feed_forward_proj": rng.choice(("relu", "gated-gelu", "gated-silu")),
        "tie_word_embeddings": rng.random() < 0.5,
    }


def mt5(rng: random.Random) -> dict:
    return t5(rng) | {"model_type": "mt5", "feed_forward_proj": "gated-gelu"}


def umt5(rng: random.Random) -> dict:
    return t5(rng) | {"model_type": "umt5", "feed_forward_proj": "gated-gelu"}


def modernbert(rng: random.Random) -> dict:
    content = sizes(rng, head_size=2 * rng.randrange(1, 6))
    layers = content["num_hidden_layers"]
    kinds = ("full_attention", "sliding_attention")
    thetas = [rng.choice((10.0, 10000.0, 160000.0)) for _ in kinds]
    keys = rng.choice(
        (
            {"global_rope_theta": thetas[0], "local_rope_theta": thetas[1]},
            {"rope_parameters": {kind: rope(rng, theta) for kind, theta in zip(kinds, thetas, strict=True)}},
            {},
        )
    )
    keys |= rng.choice(
        (
            {"global_attn_every_n_layers": rng.randrange(1, layers + 2)},
            {"layer_types": [rng.choice(kinds) for _ in range(layers)]},
        )
    )
    biases = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias")
    return (
        content
        | {
            "model_type": "modernbert",
            "hidden_activation": rng.choice(ACTIVATIONS),
            "classifier_activation": rng.choice(ACTIVATIONS),
            "max_position_embeddings": LONGEST + rng.randrange(10),
            "local_attention": rng.choice((1, 2, 3, 4, 5, 6, 13, 2 * LONGEST - 4, 128)),
            "norm_eps": rng.choice((1e-12, 1e-5, 1e-3)),
            "pad_token_id": rng.choice((0, 3)),
        }
        | {name: rng.random() < 0.5 for name in biases}
        | keys
    )


def rope(rng: random.Random, rope_theta: float) -> dict:
    """The value of rope_parameters in a file of transformers 5, of any type."""
    scaled = {"rope_theta": rope_theta, "factor": rng.choice((1.5, 2.0, 8.0))}
    original = {"original_max_position_embeddings": rng.choice((8, LONGEST // 2, LONGEST))}
    return rng.choice(
        (
            {"rope_type": "default", "rope_theta": rope_theta},
            {"rope_type": "linear"} | scaled,
            {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0} | scaled | original,
            {"rope_type": "yarn"} | scaled | original,
        )
    )


RANDOM_CONFIGS: dict[str, Callable[[random.Random], dict]] = {
    "bert": bert,
    "electra": electra,
    "modernbert": modernbert,
    "deberta-v2": deberta,
    "t5": t5,
    "mt5": mt5,
    "umt5": umt5,
}
