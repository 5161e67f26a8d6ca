"""NomicBERT and GTE beyond what all families share: the keys and names of their first checkpoints."""

import json
import math
import random

import pytest
import torch
from conftest import VOCABULARY, open_in_transformers, store_weights, stored_weights, tiny_config
from random_configs import gte, nomic_bert

from tmft.checkpoints.load import load_encoder, load_encoder_with_report
from tmft.checkpoints.save import save_encoder
from tmft.errors import InputError
from tmft.models.registry import config_from_dict, parameter_counts, random_encoder
from tmft.packing import pack
from tmft.pretraining.heads import MaskedLM, means_from_sums, read_mlm_head
from tmft.pretraining.masking import LabeledBatch

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


def with_random_weights(module: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    for name, weight in module.named_parameters():
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.3)
    return module.eval()


def last_state(model, ids: list[int]) -> torch.Tensor:
    """Of a model of transformers, (T, D)."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).last_hidden_state[0]


# ------------------------------------------------------------------------------- configurations


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


def test_transformers_opens_a_saved_gte_with_ntk_scaling(tmp_path):
    encoder = with_random_weights(random_encoder(config_from_dict(FIRST_GTE)))
    save_encoder(encoder, tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["model_type"] == "gte" and content["rope_parameters"]["rope_theta"] == 160000.0
    theirs = last_state(open_in_transformers("GteModel", tmp_path), IDS)
    with torch.inference_mode():
        ours = encoder(torch.tensor([IDS]), torch.ones(1, 12))[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    plain = config_from_dict(FIRST_GTE | {"rope_theta": 160000, "rope_scaling": None})
    other = random_encoder(plain).eval()
    other.load_state_dict(encoder.state_dict())
    assert (other(torch.tensor([IDS]), torch.ones(1, 12))[0] - theirs).abs().max() > 1e-3
    assert load_encoder(tmp_path).config.rope == encoder.config.rope


REFUSED_NOMIC = {
    "a part of each head rotated": ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction is 0.5 .*: only 1 is"),
    "interleaved pairs": ({"rotary_emb_interleaved": True}, "rotary_emb_interleaved is true .*: only false"),
    "xpos": ({"rotary_emb_scale_base": 512}, "rotary_emb_scale_base is 512 .*: only null is supported"),
    "norms before": ({"prenorm": True}, "prenorm is true .*: only false is supported"),
    "biases": ({"qkv_proj_bias": True}, "qkv_proj_bias is true .*: only false is supported"),
    "experts": ({"num_experts": 8, "moe_top_k": 2}, "num_experts is 8 .*: only 0 is supported"),
    "no gate": ({"activation_function": "gelu"}, "activation_function 'gelu' .*: supported are swiglu and"),
    "heads of another size": ({"head_dim": 8}, "head_dim 8 .*: heads of this size do not make up hidden"),
    "odd heads": ({"n_head": 8}, "head_dim 3 .*: expected an even number, for rotary"),
    "padding that is no token": ({"pad_token_id": 999}, "pad_token_id is 999 .*: expected less than vocab_"),
    "an unknown rotation": ({"rope_scaling": {"type": "wild"}}, "rope_type 'wild' .*: supported are default"),
}
REFUSED_GTE = {
    "alibi": ({"position_embedding_type": "alibi"}, 'position_embedding_type is "alibi" .*: only "rope" is'),
    "logarithmic scaling": ({"logn_attention_scale": True}, "logn_attention_scale is true .*: only false is"),
    "RMSNorm": ({"layer_norm_type": "rms_norm"}, 'layer_norm_type is "rms_norm" .*: only "layer_norm" is'),
    "separate matrices": ({"pack_qkv": False}, "pack_qkv is false .*: only true is supported"),
    "mixed NTK": (
        {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}},
        "mixed_b in rope_scaling",
    ),
    "NTK without a factor": ({"rope_scaling": {"type": "ntk"}}, "factor is missing .*: rope_type"),
    "heads that do not fit": (
        {"num_attention_heads": 0},
        "hidden_size 24 is not a multiple of num_attention",
    ),
}


@pytest.mark.parametrize("case", [*REFUSED_NOMIC, *REFUSED_GTE])
def test_a_model_that_needs_code_of_its_own_is_refused_in_one_line(case):
    content = FIRST_NOMIC if case in REFUSED_NOMIC else FIRST_GTE
    changes, words = (REFUSED_NOMIC | REFUSED_GTE)[case]
    with pytest.raises(InputError, match=words) as error:
        config_from_dict(content | changes)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(("family", "prefix"), [("nomic_bert", "bert."), ("gte", "new."), ("new", "new.")])
def test_the_first_files_with_a_head_are_read(family, prefix, tmp_path):
    encoder = with_random_weights(random_encoder(config_from_dict(CONFIGS[family])))
    save_encoder(encoder, tmp_path)
    weights = {prefix + name: weight for name, weight in stored_weights(tmp_path).items()}
    heads = {"nomic_bert": "cls.predictions.bias"}.get(family, "lm_head.decoder.bias")
    store_weights(tmp_path, weights | {heads: torch.zeros(3), f"{prefix}pooler.dense.bias": torch.zeros(3)})
    again, report = load_encoder_with_report(tmp_path)
    assert report.ignored_heads.keys() == {heads.partition(".")[0], "pooler"}
    assert all(torch.equal(*pair) for pair in zip(again.parameters(), encoder.parameters(), strict=True))


@pytest.mark.parametrize("family", ["nomic_bert", "gte"])
def test_files_with_split_matrices_say_how_to_save_them_again(family, tmp_path):
    import transformers

    content = {"nomic_bert": nomic_bert, "gte": gte}[family](random.Random(0))
    config = transformers.AutoConfig.for_model(**content)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path, save_original_format=False)
    with pytest.raises(InputError, match="transformers saves it with save_original_format=False, save it ag"):
        load_encoder(tmp_path)


@pytest.mark.parametrize("family", ["nomic_bert", "gte"])
def test_the_mlm_loss_equals_that_of_transformers(family, tmp_path):
    config = config_from_dict(CONFIGS[family] | {"hidden_dropout_prob": 0.0, "hidden_act": "relu"})
    model = with_random_weights(MaskedLM(random_encoder(config)))
    model.save(tmp_path)
    (name,) = json.loads((tmp_path / "config.json").read_text())["architectures"]
    theirs = open_in_transformers(name, tmp_path)
    masked, labels = list(IDS), torch.full((1, 12), -100)
    labels[0, [4, 9]] = torch.tensor(IDS)[[4, 9]]
    masked[4] = masked[9] = 4
    with torch.inference_mode():
        batch = LabeledBatch(pack([masked]), torch.tensor([4, 9]), labels[0, [4, 9]])
        ours = means_from_sums(model(batch))["mlm_loss"].item()
        expected = theirs(torch.tensor([masked]), labels=labels).loss.item()
    assert ours == pytest.approx(expected, abs=1e-5) and ours > 1
    head, _ = read_mlm_head(tmp_path, config)
    assert all(torch.equal(*pair) for pair in zip(head.parameters(), model.head.parameters(), strict=True))


def test_parameters_are_counted_without_weights():
    """By hand: D = 24, F = 40; a NomicBERT has no biases but those of its norms."""
    words, norm = (len(VOCABULARY) + 1) * 24, 48
    matrices = 24 * 72 + 24 * 24 + 3 * 24 * 40
    configs = {name: config_from_dict(content) for name, content in CONFIGS.items()}
    counts = {name: parameter_counts(config, 2)["stored"] for name, config in configs.items()}
    assert counts["nomic_bert"] == words + norm + 2 * (matrices + 2 * norm)
    assert counts["gte"] == counts["new"] == counts["nomic_bert"] + 2 * (72 + 24 + 24)
