"""A configuration that tmft cannot run is one line that names the key, its value and what is expected."""

import random

import pytest
from conftest import VOCABULARY, tiny_config
from random_configs import RANDOM_CONFIGS
from test_deberta import V3
from test_rotary_families import FIRST_GTE, FIRST_NOMIC, MODERNBERT, SIZES
from test_t5 import V10

from tmft.errors import InputError
from tmft.models.families import config_from_dict

YARN = {"rope_type": "yarn", "factor": 4.0}
# The content of a config.json that is read; the other families have SIZES.
VALID = {
    "bert": tiny_config(model_type="bert"),
    "deberta-v2": V3,
    "t5": V10,
    "distilbert": RANDOM_CONFIGS["distilbert"](random.Random(3)),
    "mpnet": RANDOM_CONFIGS["mpnet"](random.Random(3)),
    "static": {"model_type": "static", "vocab_size": len(VOCABULARY), "hidden_size": 8},
    "modernbert": MODERNBERT,
    "nomic_bert": FIRST_NOMIC,
    "gte": FIRST_GTE,
}
# fmt: off
REFUSED = [  # family, changes of the content, words of the message
    ("bert", {"model_type": "gpt2"}, "model_type 'gpt2' (config.json): supported are bert, electra, "),
    ("bert", {"position_embedding_type": "relative_key"}, 'only "absolute" is supported'),
    ("bert", {"hidden_size": None}, "hidden_size is missing (config.json): add it, it cannot be guessed"),
    ("bert", {"num_hidden_layers": "4"}, "num_hidden_layers is '4' (config.json): expected a whole number"),
    ("bert", {"hidden_dropout_prob": float("nan")}, "hidden_dropout_prob is nan (config.json): expected a n"),
    ("bert", {"hidden_act": "\x1b[31mx" * 99}, "hidden_act '\\x1b[31mx"),
    ("distilbert", {"is_decoder": True}, "is_decoder is true (config.json): only false is supported"),
    ("nomic_bert", {"scale_attn_weights": False}, "scale_attn_weights is false (config.json): only true is"),
    ("gte", {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}}, "mixed_b in rope_scaling (con"),
    ("bert", {"is_decoder": True, "add_cross_attention": True}, "add_cross_attention is true (config.json):"),
    ("bert", {"num_hidden_layers": -1}, "num_hidden_layers is -1 (config.json): expected a whole number"),
    ("bert", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000 (config.json): expected 1000 or"),
    ("mistral", {"sliding_window": "4"}, "sliding_window is '4' (config.json): expected a whole number"),
    ("bert", {"num_hidden_layers": True}, "num_hidden_layers is True (config.json): expected a whole number"),
    ("bert", {"num_attention_heads": 5}, "hidden_size 24 is not a multiple of num_attention_heads 5"),
    ("deberta-v2", {"pos_att_type": "c2p|p2p"}, "pos_att_type 'p2p' (config.json): supported are c2p and p2"),
    ("deberta-v2", {"position_buckets": 1}, "position_buckets 1 (config.json): expected 2 to 1021"),
    ("deberta-v2", {"position_buckets": 64, "max_relative_positions": 32}, "expected 2 to 61 with max_relat"),
    ("deberta-v2", {"conv_kernel_size": 4}, "conv_kernel_size 4 (config.json): expected an odd number"),
    ("deberta-v2", {"conv_kernel_size": 3, "conv_groups": 5}, "conv_groups 5 (config.json)"),
    ("deberta-v2", {"conv_act": "maxout"}, "conv_act 'maxout' (config.json): supported are"),
    ("deberta-v2", {"share_att_key": "yes"}, "share_att_key is 'yes' (config.json): expected true or false"),
    ("t5", {"feed_forward_proj": "maxout"}, "feed_forward_proj 'maxout' (config.json): supported are gelu, "),
    ("t5", {"feed_forward_proj": "gate-gelu"}, "each alone or as in gated-gelu"),
    ("distilbert", {"activation": "mish"}, "activation 'mish' (config.json): supported are gelu"),
    ("qwen3", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' (config.json)"),
    ("llama", {"rope_theta": [1e4]}, "rope_theta is [10000.0] (config.json): expected a number above 0"),
    ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "rope_type 'longrope' (config.json)"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0 (config.json): on"),
    ("qwen3", {"head_dim": 9}, "head_dim 9 (config.json): expected an even number, for rotary positions"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads 3 (config.json): expected a divisor of 4"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 4}, "layer_types is ['chunked_attention', 'chunke"),
    ("qwen3", {"layer_types": ["full_attention"] * 5}, "expected full_attention or sliding_attention for"),
    ("qwen3", {"num_experts": 8}, "num_experts is 8 (config.json): only 0 is supported"),
    ("llama", {"attention_bias": "yes"}, "attention_bias is 'yes' (config.json): expected true or false"),
    ("qwen2", {"auto_map": {"AutoModel": "modeling.Qwen2BidirectionalModel"}}, "auto_map has 'modeling."),
    ("bert", {"quantization_config": {"load_in_8bit": True}}, "(config.json): quantized weights are not"),
    ("nomic_bert", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction is 0.5 (config.json): only 1 is suppo"),
    ("nomic_bert", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved is true (config.json): only fa"),
    ("nomic_bert", {"rotary_emb_scale_base": 512}, "rotary_emb_scale_base is 512 (config.json): only null i"),
    ("nomic_bert", {"prenorm": True}, "prenorm is true (config.json): only false is supported"),
    ("nomic_bert", {"num_experts": 8, "moe_top_k": 2}, "num_experts is 8 (config.json): only 0 is supported"),
    ("gte", {"position_embedding_type": "alibi"}, 'position_embedding_type is "alibi" (config.json): only "'),
    ("gte", {"logn_attention_scale": True}, "logn_attention_scale is true (config.json): only false is supp"),
    ("gte", {"layer_norm_type": "rms_norm"}, 'layer_norm_type is "rms_norm" (config.json): only "layer_norm'),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5 (config.json): only heads rotat"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5 (config.js"),
    ("mpnet", {"relative_attention_num_buckets": 40}, "num_buckets is 40 (config.json): only 32 is"),
    ("static", {"hidden_size": None}, "hidden_size is missing (config.json)"),
]
# fmt: on


@pytest.mark.parametrize(("family", "changes", "words"), REFUSED)
def test_a_config_that_cannot_be_is_one_line(family, changes, words):
    content = VALID.get(family, SIZES | {"model_type": family})
    config_from_dict(content)
    with pytest.raises(InputError) as error:
        config_from_dict(content | changes)
    assert words in str(error.value) and "\n" not in str(error.value)
