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
        "conv_kernel_size": rng.choice((0, 0, 1, 3, 5)),
        "conv_act": rng.choice(("tanh", "gelu")),
    }
    return content | relative | {"model_type": "deberta-v2", "type_vocab_size": rng.randrange(3)}


def roberta(rng: random.Random) -> dict:
    pad_token_id = rng.choice((0, 1))
    return bert(rng) | {
        "model_type": "roberta",
        "pad_token_id": pad_token_id,
        "max_position_embeddings": LONGEST + pad_token_id + 1 + rng.choice((0, 3)),
    }


def distilbert(rng: random.Random) -> dict:
    content = sizes(rng)
    return {
        "model_type": "distilbert",
        "vocab_size": content["vocab_size"],
        "dim": content["hidden_size"],
        "n_layers": content["num_hidden_layers"],
        "n_heads": content["num_attention_heads"],
        "hidden_dim": content["intermediate_size"],
        "activation": rng.choice(ACTIVATIONS),
        "max_position_embeddings": LONGEST + rng.randrange(10),
        "sinusoidal_pos_embds": rng.random() < 0.5,
        "layer_norm_eps": 0.1,  # has no effect
    }


def mpnet(rng: random.Random) -> dict:
    content = roberta(rng)
    del content["type_vocab_size"]
    return content | {"model_type": "mpnet", "max_position_embeddings": LONGEST + 2 + rng.choice((0, 3))}


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


def modernbert(rng: random.Random) -> dict:
    content = sizes(rng, head_size=2 * rng.randrange(2, 6))
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


def decoder(rng: random.Random, model_type: str, whole_heads: bool) -> dict:
    """What all decoders have: grouped heads, rotary positions, keys of both ages.

    whole_heads: whether the hidden size has to be a multiple of the number of heads.
    """
    content = sizes(rng)
    groups, per_group = rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 3))
    heads = groups * per_group
    content |= {
        "model_type": model_type,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": rng.choice((2, 6, 8, 10)),
        "hidden_size": heads * rng.randrange(2 + 8 // heads, 14) if whole_heads else rng.randrange(8, 48),
        "rms_norm_eps": rng.choice((1e-6, 1e-5, 1e-3)),
        "max_position_embeddings": LONGEST + rng.randrange(100),
        "pad_token_id": rng.choice((None, 0)),
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": rng.random() < 0.5,
    }
    if model_type in ("llama", "qwen3", "gemma3_text", "eurobert"):
        content["attention_bias"] = rng.random() < 0.5
    if model_type in ("llama", "eurobert"):
        content["mlp_bias"] = rng.random() < 0.5
    if model_type != "gemma3_text":
        content["hidden_act"] = rng.choice(ACTIVATIONS)
        content["rope_theta"] = rng.choice((10.0, 10000.0, 1e6))
        content["rope_scaling"] = rope_scaling(rng)
    if model_type != "eurobert" and rng.random() < 0.3:
        content["is_causal"] = False
    return content


def rope(rng: random.Random, rope_theta: float) -> dict:
    """The value of rope_parameters in a file of transformers 5, of any type."""
    return {"rope_theta": rope_theta} | (rope_scaling(rng) or {"rope_type": "default"})


def rope_scaling(rng: random.Random) -> dict | None:
    """The key rope_scaling of a config.json: null half of the time, else of a random type."""
    length = {"original_max_position_embeddings": rng.choice((8, 20, LONGEST))}
    linear = {"rope_type": "linear", "factor": rng.choice((2.0, 3.5))}
    llama3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | length
    yarn = {"rope_type": "yarn", "factor": rng.choice((2.0, 4.0))} | length
    return rng.choice((None, None, None, linear, llama3, yarn))


def mistral(rng: random.Random) -> dict:
    return decoder(rng, "mistral", whole_heads=False) | {
        "sliding_window": rng.choice((None, 1, 3, 4, LONGEST, 4096))
    }


def qwen(rng: random.Random, model_type: str) -> dict:
    content = decoder(rng, model_type, whole_heads=False)
    content |= {
        "use_sliding_window": rng.random() < 0.6,
        "sliding_window": rng.choice((1, 3, 4, LONGEST)),
        "max_window_layers": rng.randrange(content["num_hidden_layers"] + 1),
    }
    if content["use_sliding_window"] and rng.random() < 0.5:
        content["layer_types"] = layer_types(rng, content["num_hidden_layers"])
    return content


def layer_types(rng: random.Random, num_layers: int) -> list[str]:
    return [rng.choice(("full_attention", "sliding_attention")) for _ in range(num_layers)]


def gemma3(rng: random.Random) -> dict:
    content = decoder(rng, "gemma3_text", whole_heads=True)
    content |= {
        # The outputs of attention and feed-forward are normalized. In narrow ones some are nearly zero, and
        # then the norm multiplies the differences by rounding.
        "intermediate_size": rng.randrange(20, 50),
        "hidden_activation": rng.choice(ACTIVATIONS),
        "query_pre_attn_scalar": rng.choice((20, 64, 100, 256)),
        "sliding_window": rng.choice((2, 4, 5, 6, 2 * LONGEST)),
        "use_bidirectional_attention": rng.random() < 0.5,
    }
    pattern = rng.choice(("usual", "sliding_window_pattern", "layer_types"))
    if pattern == "sliding_window_pattern":
        content["sliding_window_pattern"] = rng.randrange(1, 4)
    elif pattern == "layer_types":
        content["layer_types"] = layer_types(rng, content["num_hidden_layers"])
    if rng.random() < 0.5:
        content |= {"rope_theta": 500.0, "rope_local_base_freq": 30.0, "rope_scaling": rope_scaling(rng)}
    return content


def nomic_bert(rng: random.Random) -> dict:
    theta = rng.choice((10.0, 1000.0))
    return sizes(rng, head_size=2 * rng.randrange(2, 6)) | {
        "model_type": "nomic_bert",
        "hidden_act": rng.choice(ACTIVATIONS),
        "max_position_embeddings": LONGEST + rng.randrange(10),
        "type_vocab_size": rng.randrange(1, 3),
        "layer_norm_eps": rng.choice((1e-12, 1e-5, 1e-3)),
        **rng.choice(({}, {"rope_parameters": rope(rng, theta)})),
    }


def gte(rng: random.Random) -> dict:
    return nomic_bert(rng) | {
        "model_type": "gte",
        "type_vocab_size": rng.randrange(3),
        "pad_token_id": rng.choice((0, 1)),
    }


RANDOM_CONFIGS: dict[str, Callable[[random.Random], dict]] = {
    "bert": bert,
    "electra": electra,
    "roberta": roberta,
    "xlm-roberta": lambda rng: roberta(rng) | {"model_type": "xlm-roberta"},
    "camembert": lambda rng: roberta(rng) | {"model_type": "camembert"},
    "distilbert": distilbert,
    "mpnet": mpnet,
    "modernbert": modernbert,
    "nomic_bert": nomic_bert,
    "gte": gte,
    "deberta-v2": deberta,
    "t5": t5,
    "mt5": lambda rng: t5(rng) | {"model_type": "mt5", "feed_forward_proj": "gated-gelu"},
    "umt5": lambda rng: t5(rng) | {"model_type": "umt5", "feed_forward_proj": "gated-gelu"},
    "llama": lambda rng: decoder(rng, "llama", whole_heads=True),
    "mistral": mistral,
    "qwen2": lambda rng: qwen(rng, "qwen2"),
    "qwen3": lambda rng: qwen(rng, "qwen3"),
    "gemma3_text": gemma3,
    "eurobert": lambda rng: decoder(rng, "eurobert", whole_heads=True),
}
