"""Transformers with rotary positions: masks, windows, keys of config.json of all ages, heads, errors.

test_every_family.py compares the hidden states of random shapes of all of them with transformers.
"""

import json
import math

import pytest
import torch
from conftest import (
    VOCABULARY,
    load_encoder,
    open_in_transformers,
    store_weights,
    stored_weights,
    tiny_config,
)

from tmft.checkpoints.load import load_encoder_with_report
from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.save import save_encoder
from tmft.errors import InputError
from tmft.models.families import config_from_dict, random_encoder
from tmft.models.rotary_transformer import FULL, SLIDING
from tmft.pretraining.token_heads import MaskedLM, read_mlm_head

SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,  # H * A is not D
    "intermediate_size": 24,
    "max_position_embeddings": 200,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODERNBERT = tiny_config(model_type="modernbert", local_attention=6, num_hidden_layers=5)
IDS = [5, 9, 7, 12, 20, 3, 8, 30, 11, 17, 18, 19]
CONFIGS = {name: tiny_config(model_type=name, type_vocab_size=1) for name in ("nomic_bert", "gte", "new")}
# The keys of the config.json of nomic-embed-text-v1.5, with small sizes.
FIRST_NOMIC = {
    "model_type": "nomic_bert",
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "causal": False,
    "embd_pdrop": 0.0,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 24,
    "n_head": 4,
    "n_inner": 40,
    "n_layer": 3,
    "n_positions": 8192,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_weights": True,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": len(VOCABULARY),
}
# The keys of the config.json of gte-multilingual-base, with small sizes.
FIRST_GTE = {
    "model_type": "new",
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 24,
    "intermediate_size": 40,
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "max_position_embeddings": 8192,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "pack_qkv": True,
    "pad_token_id": 1,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20000,
    "type_vocab_size": 1,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
    "vocab_size": len(VOCABULARY),
}


def content(model_type: str, **changes) -> dict:
    return SIZES | {"model_type": model_type} | changes


# ------------------------------------------------------------------------------- config.json


SAVED = {  # the keys of a config.json -> those of a saved one at 2 layers that all versions read
    "llama": ({"rope_scaling": LLAMA3}, {"rope_theta": 10000.0, "rope_scaling": LLAMA3}),
    "mistral": ({"sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
                {"rope_theta": 1e6, "rope_scaling": None, "sliding_window": None}),
    "qwen2": ({"is_causal": False, "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 3},
              {"rope_theta": 10000.0, "rope_scaling": None, "is_causal": False, "use_sliding_window": True,
               "max_window_layers": 1, "sliding_window": 3}),
    "qwen3": ({"layer_types": [FULL, SLIDING] * 2, "use_sliding_window": True, "sliding_window": 3},
              {"rope_theta": 10000.0, "rope_scaling": None, "layer_types": [FULL, SLIDING],
               "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 28}),
    "gemma3_text": ({"use_bidirectional_attention": True, "sliding_window": 5, "rope_local_base_freq": 9.0},
                    {"rope_theta": 1e6, "rope_local_base_freq": 9.0, "rope_scaling": None,
                     "sliding_window": 5, "sliding_window_pattern": 6, "use_bidirectional_attention": True}),
    "eurobert": ({"mlp_bias": True},
                 {"rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "mlp_bias": True}),
}  # fmt: skip


@pytest.mark.parametrize("model_type", SAVED)
def test_a_saved_config_has_the_keys_that_all_versions_of_transformers_read(model_type, tmp_path):
    keys, expected = SAVED[model_type]
    save_encoder(random_encoder(config_from_dict(content(model_type, **keys)), 2), tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert expected == {key: saved[key] for key in expected} and "rope_parameters" not in saved
    assert SIZES.keys() - saved.keys() == {"bos_token_id", "eos_token_id"}


def test_a_saved_config_has_the_keys_of_both_ages(tmp_path):
    save_encoder(random_encoder(config_from_dict(MODERNBERT), 4), tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["layer_types"] == [FULL, SLIDING, SLIDING, FULL] and content["num_hidden_layers"] == 4
    new = {key: content.pop(key) for key in ("layer_types", "rope_parameters")}
    assert new["rope_parameters"][FULL] == {"rope_theta": 160000.0, "rope_type": "default"}
    theirs = open_in_transformers("ModernBertModel", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(content))  # now as transformers 4 reads it
    old = open_in_transformers("ModernBertModel", tmp_path)
    ids = torch.tensor([IDS])
    with torch.inference_mode():
        assert torch.equal(old(ids).last_hidden_state, theirs(ids).last_hidden_state)


def test_token_ids_of_the_checkpoint_are_kept_and_those_that_are_no_tokens_are_not(tmp_path):
    from transformers import AutoConfig

    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 99, "sep_token_id": None}
    save_encoder(random_encoder(config_from_dict(MODERNBERT | ids)), tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert [getattr(config, name) for name in ids] == [0, 2, 3, None, None]
    for padding in (-1, len(VOCABULARY), None):
        assert config_from_dict(MODERNBERT | {"pad_token_id": padding}).pad_token_id is None


def test_layer_types_that_are_the_usual_ones_are_left_out_of_a_saved_config(tmp_path):
    """Versions of transformers before layer_types then read them right, too."""
    usual = [SLIDING] * 5 + [FULL] + [SLIDING]
    keys = {"num_hidden_layers": 7, "layer_types": usual, "sliding_window": 4}
    save_encoder(random_encoder(config_from_dict(content("gemma3_text", **keys)), 6), tmp_path)
    assert "layer_types" not in json.loads((tmp_path / "config.json").read_text())
    config = load_encoder(tmp_path).config
    assert [config.layer_type(n) for n in range(6)] == usual[:6]


def test_the_first_nomic_checkpoints_are_what_transformers_takes_them_for():
    """transformers reads none of the old keys: its defaults are their values."""
    config = config_from_dict(FIRST_NOMIC)
    sizes = ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers")
    assert [getattr(config, name) for name in sizes] == [24, 4, 40, 3]
    from transformers import NomicBertConfig

    theirs = NomicBertConfig()
    for name in ("hidden_act", "max_position_embeddings", "layer_norm_eps", "type_vocab_size"):
        assert getattr(config, name) == getattr(theirs, name)
    assert config.rope.to_hf() == theirs.rope_parameters


def test_a_key_for_transformers_wins_over_an_old_one():
    changes = {"num_hidden_layers": 2, "max_position_embeddings": 99, "hidden_act": "relu"}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}
    config = config_from_dict(FIRST_NOMIC | changes | rope)
    assert (config.num_hidden_layers, config.max_position_embeddings, config.hidden_act) == (2, 99, "relu")
    assert config.rope.rope_theta == 7.0


@pytest.mark.parametrize(("base", "factor"), [(20000.0, 8.0), (500000.0, 2.0), (10000.0, 1.0)])
def test_the_ntk_scaling_of_gte_is_that_of_its_own_code(base, factor):
    """Written out: frequencies of the base times the factor, divided by factor^(2/A)."""
    content = FIRST_GTE | {"rope_theta": base, "rope_scaling": {"type": "ntk", "factor": factor}}
    config = config_from_dict(content)
    A = 6
    expected = [(base * factor) ** (-2 * i / A) / factor ** (2 / A) for i in range(A // 2)]
    assert config.rope.inverse_frequencies(A, 8192).tolist() == pytest.approx(expected, rel=1e-6)
    assert math.isclose(expected[-1], base ** (-(A - 2) / A) / factor)  # the slowest is slowed down by all


# ------------------------------------------------------------------------------- files and heads


@pytest.mark.parametrize(("family", "prefix"), [("nomic_bert", "bert."), ("gte", "new."), ("new", "new.")])
def test_the_first_files_with_a_head_are_read(family, prefix, tmp_path):
    encoder = random_encoder(config_from_dict(CONFIGS[family]))
    save_encoder(encoder, tmp_path)
    weights = {prefix + name: weight for name, weight in stored_weights(tmp_path).items()}
    heads = {"nomic_bert": "cls.predictions.bias"}.get(family, "lm_head.decoder.bias")
    store_weights(tmp_path, weights | {heads: torch.zeros(3), f"{prefix}pooler.dense.bias": torch.zeros(3)})
    again, report = load_encoder_with_report(tmp_path)
    assert report.ignored_heads.keys() == {heads.partition(".")[0], "pooler"}
    assert all(torch.equal(*pair) for pair in zip(again.parameters(), encoder.parameters(), strict=True))


def test_a_head_that_config_json_does_not_describe_is_one_line(tmp_path):
    model = MaskedLM(random_encoder(config_from_dict(MODERNBERT)))
    model.save(tmp_path)
    config, weights = load_encoder(tmp_path).config, stored_weights(tmp_path)
    store_weights(tmp_path, weights | {"head.dense.bias": torch.zeros(24)})
    with pytest.raises(
        InputError, match="unknown tensor head.dense.bias .*: config.json does not ask for it"
    ):
        read_mlm_head(ModelFolder.open(tmp_path), config)
    del weights["decoder.bias"]
    store_weights(tmp_path, weights)
    with pytest.raises(InputError, match="missing tensor decoder.bias .*: the head is incomplete"):
        read_mlm_head(ModelFolder.open(tmp_path), config)


def test_no_old_key_is_written_that_would_say_something_else(tmp_path):
    rope = {FULL: {"rope_type": "linear", "rope_theta": 9.0, "factor": 2.0}}
    config = config_from_dict(
        MODERNBERT | {"layer_types": [SLIDING, FULL, FULL, SLIDING, FULL], "rope_parameters": rope}
    )
    save_encoder(random_encoder(config), tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert not {"global_attn_every_n_layers", "global_rope_theta"} & content.keys()
    assert content["local_rope_theta"] == 10000.0
    assert load_encoder(tmp_path).config == config


def test_transformers_opens_a_saved_gte_with_ntk_scaling(tmp_path):
    torch.manual_seed(0)
    encoder = random_encoder(config_from_dict(FIRST_GTE | {"initializer_range": 0.3})).eval()
    save_encoder(encoder, tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["model_type"] == "gte" and content["rope_parameters"]["rope_theta"] == 160000.0
    with torch.inference_mode():
        theirs = open_in_transformers("GteModel", tmp_path)(torch.tensor([IDS])).last_hidden_state[0]
        ours = encoder(torch.tensor([IDS]), torch.ones(1, 12))[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert load_encoder(tmp_path).config.rope == encoder.config.rope
