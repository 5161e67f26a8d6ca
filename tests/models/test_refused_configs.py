"""A configuration that tmft cannot run is one line that names the key, its value and what is expected."""

import math
import random

import pytest
from conftest import VOCABULARY, tiny_config
from random_configs import RANDOM_CONFIGS
from test_deberta import V3
from test_rotary_families import FIRST_GTE, FIRST_NOMIC, MODERNBERT, SIZES
from test_t5 import V10

from tmft.errors import InputError
from tmft.models.families import config_from_dict
from tmft.models.rotary_transformer import FULL, SLIDING

YARN = {"rope_type": "yarn", "factor": 4.0}
# The content of a config.json that is read; the other families have SIZES.
VALID = {
    "bert": tiny_config(model_type="bert"),
    "deberta-v2": V3,
    "t5": V10,
    "t5 with decoder": V10,
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
    ("bert", {"model_type": {}}, "model_type {} (config.json): supported are"),
    ("bert", {"position_embedding_type": "relative_key"}, 'only "absolute" is supported'),
    ("bert", {"hidden_size": None}, "hidden_size is missing (config.json): add it, it cannot be guessed"),
    ("bert", {"num_hidden_layers": "4"}, "num_hidden_layers is '4' (config.json): expected a whole number"),
    ("bert", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000 (config.json): expected 0 to "),
    ("bert", {"hidden_size": 2**70}, "hidden_size is 1180591620717411303424 (config.json): expected 1 to"),
    ("bert", {"hidden_size": 0}, "hidden_size is 0 (config.json): expected 1 to"),
    ("bert", {"vocab_size": 10**5000}, "vocab_size is a number of thousands of digits (config.json): expe"),
    ("bert", {"hidden_dropout_prob": 2}, "hidden_dropout_prob is 2 (config.json): expected 0 to 1"),
    ("bert", {"hidden_dropout_prob": float("nan")}, "hidden_dropout_prob is nan (config.json): expected a n"),
    ("bert", {"layer_norm_eps": float("inf")}, "layer_norm_eps is inf (config.json): expected 0 to 1"),
    ("bert", {"hidden_act": "\x1b[31mx" * 99}, "hidden_act '\\x1b[31mx"),
    ("bert", {"model_type": "distilbert", "is_decoder": True}, "is_decoder is true (config.json): distilber"),
    ("bert", {"is_decoder": True, "add_cross_attention": True}, "add_cross_attention is true (config.json):"),
    ("bert", {"num_hidden_layers": -1}, "num_hidden_layers is -1 (config.json): expected a whole number"),
    ("bert", {"num_hidden_layers": True}, "num_hidden_layers is True (config.json): expected a whole number"),
    ("bert", {"layer_norm_eps": "small"}, "layer_norm_eps is 'small' (config.json): expected a number"),
    ("bert", {"hidden_act": "mish"}, "hidden_act 'mish' (config.json): supported are gelu, "),
    ("bert", {"hidden_act": ["gelu"]}, "hidden_act ['gelu'] (config.json): supported are"),
    ("bert", {"num_attention_heads": 5}, "hidden_size 24 is not a multiple of num_attention_heads 5"),
    ("bert", {"num_attention_heads": 0}, "num_attention_heads is 0 (config.json): expected 1 to"),
    ("deberta-v2", {"model_type": "deberta"}, "this is version 1, take a DeBERTa of version 2 or 3"),
    ("deberta-v2", {"pos_att_type": "c2p|p2p"}, "pos_att_type 'p2p' (config.json): supported are c2p and p2"),
    ("deberta-v2", {"position_buckets": 1}, "position_buckets 1 (config.json): expected 2 to 1021"),
    ("deberta-v2", {"position_buckets": 64, "max_relative_positions": 32}, "expected 2 to 61 with max_relat"),
    ("deberta-v2", {"conv_kernel_size": 4}, "conv_kernel_size 4 (config.json): expected an odd number"),
    ("deberta-v2", {"conv_kernel_size": 3, "conv_groups": 5}, "conv_groups 5 (config.json)"),
    ("deberta-v2", {"conv_act": "maxout"}, "conv_act 'maxout' (config.json): supported are"),
    ("deberta-v2", {"share_att_key": "yes"}, "share_att_key is 'yes' (config.json): expected true or false"),
    ("t5", {"hidden_size": 7}, "d_model is 36 and hidden_size is 7 (config.json): they are two"),
    ("t5", {"d_model": None}, "d_model is missing (config.json): add it, it cannot be guessed"),
    ("t5", {"feed_forward_proj": "maxout"}, "feed_forward_proj 'maxout' (config.json): supported are gelu, "),
    ("t5", {"feed_forward_proj": "gate-gelu"}, "each alone or as in gated-gelu"),
    ("t5", {"feed_forward_proj": 3}, "feed_forward_proj is 3 (config.json)"),
    ("t5", {"d_kv": 0}, "d_kv is 0 (config.json): expected 1 to"),
    ("t5", {"relative_attention_num_buckets": 3}, "relative_attention_num_buckets 3, "),
    ("t5", {"relative_attention_max_distance": 8}, "relative_attention_max_distance 8 (config.json)"),
    ("t5 with decoder", {"num_decoder_layers": 0}, "num_decoder_layers is 0 (config.json): pooling decoder "),
    ("distilbert", {"activation": "mish"}, "activation 'mish' (config.json): supported are gelu"),
    ("distilbert", {"hidden_size": 1}, "and hidden_size is 1 (config.json)"),
    ("qwen3", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' (config.json)"),
    ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "rope_type 'longrope' (config.json)"),
    ("gemma3_text", {"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters has rope_theta (config"),
    ("mistral", {"sliding_window": 0}, "sliding_window is 0 (config.json): expected a whole number, 1 o"),
    ("mistral", {"sliding_window": 10**30}, "sliding_window is 1000000000000000000000000000000 (config."),
    ("qwen2", {"sliding_window": -1, "use_sliding_window": True}, "sliding_window is -1 (config.json)"),
    ("qwen3", {"layer_types": [FULL] * 3 + [SLIDING]}, "sliding_window is missing (config.json): layers"),
    ("gemma3_text", {"sliding_window": None}, "sliding_window is missing (config.json): layers of type"),
    ("qwen3", {"layer_types": [FULL] * 5}, "layer_types has 5 entries (config.json): num_hidden_layers"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 4}, "layer_types is ['chunked_attention', 'chunke"),
    ("qwen3", {"layer_types": "full"}, "layer_types is 'full' (config.json): expected a list of full_at"),
    ("llama", {"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_hea"),
    ("llama", {"num_key_value_heads": 0}, "num_key_value_heads is 0 (config.json): expected 1 to"),
    ("llama", {"num_attention_heads": 5}, "hidden_size 32 is not a multiple of num_attention_heads 5"),
    ("qwen3", {"head_dim": 9}, "head_dim 9 (config.json): expected an even number, for rotary positions"),
    ("qwen3", {"head_dim": 0}, "head_dim 0 (config.json): expected an even number, for rotary positions"),
    ("gemma3_text", {"hidden_activation": "swiglu"}, "hidden_activation 'swiglu' (config.json): support"),
    ("gemma3_text", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0 (config.json): expected 1"),
    ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0 (config.json): expected"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0 (config.json): on"),
    ("qwen3", {"num_experts": 8}, "num_experts is 8 (config.json): only 0 is supported"),
    ("llama", {"attention_bias": "yes"}, "attention_bias is 'yes' (config.json): expected true or false"),
    ("llama", {"is_causal": 0}, "is_causal is 0 (config.json): expected true or false"),
    ("qwen2", {"auto_map": {"AutoModel": "modeling.Qwen2BidirectionalModel"}}, "auto_map has 'modeling."),
    ("qwen3", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config 'gptq'"),
    ("bert", {"quantization_config": {"load_in_8bit": True}}, "(config.json): quantized weights are not"),
    ("gemma3_text", {"model_type": "gemma3", "text_config": {}}, "model_type 'gemma3' (config.json): this"),
    ("modernbert", {"layer_types": [FULL] * 4}, "layer_types has 4 entries (config.json): num_hidden_layers"),
    ("modernbert", {"layer_types": [FULL, None] * 2 + [FULL]}, "layer_types is ['full_attention', None, 'fu"),
    ("modernbert", {"sliding_window": 4}, "sliding_window is 4 (config.json): local_attention 6 means 3 tok"),
    ("modernbert", {"local_attention": 0}, "local_attention is 0 (config.json): expected 1 to"),
    ("modernbert", {"num_attention_heads": 8}, "head_dim 3 (config.json): expected an even number, for rota"),
    ("modernbert", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling has type, but no rope"),
    ("modernbert", {"rope_parameters": {"chunked": {}}}, "rope_parameters has chunked (config.json): expect"),
    ("modernbert", {"local_rope_theta": 0}, "rope_theta is 0 (config.json): expected a number above 0"),
    ("modernbert", {"partial_rotary_factor": math.nan}, "partial_rotary_factor is nan (config.json): only h"),
    ("modernbert", {"classifier_activation": "mish"}, "classifier_activation 'mish' (config.json): supporte"),
    ("nomic_bert", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction is 0.5 (config.json): only 1 is suppo"),
    ("nomic_bert", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved is true (config.json): only fa"),
    ("nomic_bert", {"rotary_emb_scale_base": 512}, "rotary_emb_scale_base is 512 (config.json): only null i"),
    ("nomic_bert", {"prenorm": True}, "prenorm is true (config.json): only false is supported"),
    ("nomic_bert", {"qkv_proj_bias": True}, "qkv_proj_bias is true (config.json): only false is supported"),
    ("nomic_bert", {"num_experts": 8, "moe_top_k": 2}, "num_experts is 8 (config.json): only 0 is supported"),
    ("nomic_bert", {"activation_function": "gelu"}, "activation_function 'gelu' (config.json): supported ar"),
    ("gte", {"position_embedding_type": "alibi"}, 'position_embedding_type is "alibi" (config.json): only "'),
    ("gte", {"logn_attention_scale": True}, "logn_attention_scale is true (config.json): only false is supp"),
    ("gte", {"layer_norm_type": "rms_norm"}, 'layer_norm_type is "rms_norm" (config.json): only "layer_norm'),
    ("gte", {"pack_qkv": False}, "pack_qkv is false (config.json): only true is supported"),
    ("gte", {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}}, "mixed_b in rope_scaling (con"),
    ("gte", {"rope_scaling": {"type": "ntk"}}, "factor is missing (config.json): rope_type linear needs it"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor is missing (config.json): rope_type linear"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor is 0 (config.json): expected "),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": math.inf}}, "factor is inf (config.json)"),
    ("llama", {"rope_theta": -1.0}, "rope_theta is -1.0 (config.json): expected a number above 0"),
    ("llama", {"rope_theta": math.nan}, "rope_theta is nan (config.json): expected a number above 0"),
    ("llama", {"rope_theta": 10**400}, "rope_theta is 100000"),
    ("llama", {"rope_scaling": YARN | {"beta_fast": 1e-300}}, "beta_fast is 1e-300 (config.json): expected "),
    ("llama", {"rope_scaling": YARN | {"beta_slow": 3e+38}}, "beta_slow is 3e+38 (config.json): expected a "),
    ("llama", {"rope_scaling": YARN | {"original_max_position_embeddings": 32},
               "original_max_position_embeddings": 7}, "original_max_position_embeddings is 7, but 32 in"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 1}, "partial_rotary_factor": 0.5},
     "partial_rotary_factor is 0.5, but 1 in rope_scaling or rope_parameters (config.json): correct"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5 (config.json): only heads rotat"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5 (config.js"),
    ("static", {"hidden_size": None}, "hidden_size is missing (config.json)"),
]
# fmt: on


@pytest.mark.parametrize(("family", "changes", "words"), REFUSED)
def test_a_config_that_cannot_be_is_one_line(family, changes, words):
    content = VALID.get(family, SIZES | {"model_type": family})
    components = ["decoder"] if family.endswith("with decoder") else []
    config_from_dict(content, components)
    with pytest.raises(InputError) as error:
        config_from_dict(content | changes, components)
    assert words in str(error.value) and "\n" not in str(error.value)
