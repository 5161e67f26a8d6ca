"""Decoders as sentence encoders: masks, windows, old and new keys of config.json, saved folders, errors.

Random shapes of all of them are compared with transformers in test_every_family.py.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    SENTENCES,
    VOCABULARY,
    open_in_transformers,
    padded,
    store_weights,
    stored_weights,
    vocabulary_folder,
)
from test_every_family import largest_difference, reference_states

from tmft.checkpoints.load import load_encoder, load_encoder_with_report
from tmft.checkpoints.save import save_encoder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.errors import InputError
from tmft.models.registry import FAMILIES, config_from_dict, parameter_counts, random_encoder
from tmft.models.rotary_transformer import FULL, SLIDING
from tmft.packing import pack
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.quantization import set_encode_precision
from tmft.serving.vocabulary_pruning import prune_vocabulary

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
TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "eurobert")
LENGTHS = (19, 3, 1, 8, 25)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def content(model_type: str, **changes) -> dict:
    return SIZES | {"model_type": model_type} | changes


def build(model_type: str, kind: str = "", **changes):
    """A class of transformers with random weights, of norms far from 1."""
    import transformers

    config = transformers.AutoConfig.for_model(**content(model_type, **changes))
    torch.manual_seed(0)
    name = FAMILIES[model_type].transformers_class
    name = name.removesuffix("Model") + kind if kind else name
    model = getattr(transformers, name)(config).eval()
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, mean=0.5 if "norm" in name else 0.0, std=0.25)
    return model


def random_ids(lengths=LENGTHS) -> list[list[int]]:
    generator = torch.manual_seed(1)
    return [torch.randint(3, len(VOCABULARY), (length,), generator=generator).tolist() for length in lengths]


def assert_equal_to_transformers(model, folder: Path, tolerance: float = 1e-5) -> None:
    """Every hidden state, with the final norm, alone, padded and packed, against transformers."""
    model.save_pretrained(folder)
    encoder, sentences = load_encoder(folder), random_ids()
    theirs, rows = reference_states(model, sentences), pack(sentences)
    with torch.inference_mode():
        in_padded, packed = encoder.hidden_states(*padded(sentences)), encoder.hidden_states(*rows.inputs)
    for s, sentence in enumerate(sentences):
        for n, expected in enumerate(theirs[s]):
            assert largest_difference(in_padded[n][s, : len(sentence)], expected) < tolerance
            assert largest_difference(packed[n][rows.sentence_ids == s + 1], expected) < tolerance


def tiny_decoder(model_type: str, **changes) -> SentenceEncoder:
    torch.manual_seed(0)
    encoder = random_encoder(config_from_dict(content(model_type, initializer_range=0.3, **changes)))
    return SentenceEncoder(encoder, load_tokenizer(vocabulary_folder())).eval()


# ------------------------------------------------------------------------------- hidden states


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [1, 2, 3, 25])
@pytest.mark.parametrize("model_type", ["mistral", "qwen2", "qwen3"])
def test_a_window_has_the_tokens_that_it_has_in_transformers(model_type, window, is_causal, tmp_path):
    keys = {} if model_type == "mistral" else {"use_sliding_window": True, "max_window_layers": 2}
    model = build(model_type, sliding_window=window, is_causal=is_causal, **keys)
    assert_equal_to_transformers(model, tmp_path)


@pytest.mark.parametrize("flags", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("window", [2, 4, 5, 6])
def test_gemma_has_the_windows_of_transformers_one_way_and_both_ways(window, flags, tmp_path):
    both_ways, is_causal = flags
    keys = {"use_bidirectional_attention": both_ways, "is_causal": is_causal, "sliding_window_pattern": 2}
    assert_equal_to_transformers(build("gemma3_text", sliding_window=window, **keys), tmp_path)


def test_gemma_of_eight_layers_has_the_usual_pattern_and_its_own_scale(tmp_path):
    keys = {"num_hidden_layers": 8, "query_pre_attn_scalar": 7, "sliding_window": 4}
    model = build("gemma3_text", **keys, rope_theta=500.0, rope_local_base_freq=30.0)
    assert_equal_to_transformers(model, tmp_path, tolerance=3e-5)
    config = load_encoder(tmp_path).config
    types = [config.layer_type(n) for n in range(8)]
    assert types == [SLIDING] * 5 + [FULL] + [SLIDING] * 2 == model.config.layer_types


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("model_type", TYPES)
def test_query_heads_share_key_heads_as_in_transformers(model_type, groups, tmp_path):
    assert_equal_to_transformers(build(model_type, num_key_value_heads=groups), tmp_path)


@pytest.mark.parametrize("model_type", TYPES)
def test_left_padding_of_transformers_gives_the_same_sentences(model_type, tmp_path):
    model, sentences = build(model_type), random_ids((7, 12))
    model.save_pretrained(tmp_path)
    ids = torch.tensor([[0] * 5 + sentences[0], sentences[1]])
    mask = (ids > 0).long()
    with torch.inference_mode():
        theirs = model(input_ids=ids, attention_mask=mask).last_hidden_state
        rows = pack(sentences)
        ours = load_encoder(tmp_path)(*rows.inputs)
    for s, sentence in enumerate(sentences):
        expected = theirs[s, 12 - len(sentence) :]
        torch.testing.assert_close(ours[rows.sentence_ids == s + 1], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("model_type", TYPES)
def test_later_tokens_are_seen_only_if_the_config_says_so(model_type):
    ids, mask = torch.tensor([[5, 6, 7, 8]]), torch.ones(1, 4, dtype=torch.long)
    other = torch.tensor([[5, 6, 7, 9]])
    for is_causal in (True, False):
        encoder = random_encoder(config_from_dict(content(model_type, is_causal=is_causal))).eval()
        with torch.inference_mode():
            before_it, its = (encoder(ids, mask) - encoder(other, mask)).abs().amax(-1)[0].split([3, 1])
        assert its.item() > 0
        assert (before_it.max().item() == 0) == (is_causal and model_type != "eurobert")


@pytest.mark.parametrize("model_type", TYPES)
def test_truncated_transformers_gives_each_hidden_state(model_type, tmp_path):
    """The final norm belongs to every depth: hidden state l is what the folder saved at l layers gives."""
    model = build(model_type)
    model.save_pretrained(tmp_path / "full")
    encoder, inputs = load_encoder(tmp_path / "full"), padded(random_ids())
    with torch.inference_mode():
        states = encoder.hidden_states(*inputs)
        for layer in range(5):
            kept = load_encoder(tmp_path / "full", layer)
            assert torch.equal(kept(*inputs), states[layer])
            save_encoder(kept, tmp_path / str(layer))
            theirs = open_in_transformers(FAMILIES[model_type].transformers_class, tmp_path / str(layer))
            output = theirs(input_ids=inputs[0], attention_mask=inputs[1]).last_hidden_state
            there = inputs[1].bool()
            assert largest_difference(states[layer][there], output[there]) < 1e-5


@pytest.mark.parametrize("model_type", TYPES)
def test_gradients_equal_transformers(model_type, tmp_path):
    model = build(model_type)
    model.save_pretrained(tmp_path)
    encoder, sentences = load_encoder(tmp_path).train(), random_ids()
    ids, mask = padded(sentences)
    (model.train()(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()] ** 3).mean().backward()
    rows = pack(sentences)
    (encoder(*rows.inputs)[rows.sentence_ids > 0] ** 3).mean().backward()
    theirs = {name: weight.grad for name, weight in model.named_parameters()}
    names = FAMILIES[model_type].weight_names
    layer_names = {
        f"{name}.{kind}".format(n=n): f"{module}.{kind}".format(n=n)
        for name, module in names.items()
        for n in range(4)
        for kind in ("weight", "bias")
    }
    ours = {name: weight.grad for name, weight in encoder.named_parameters()}
    assert len(theirs) == len(ours)
    for name, expected in theirs.items():
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(ours[layer_names[name]] / scale, expected / scale, rtol=0, atol=2e-5)


def test_words_are_looked_up_in_a_plain_table_and_scaled_after_it():
    encoder = random_encoder(config_from_dict(content("gemma3_text")))
    assert type(encoder.embeddings.word) is torch.nn.Embedding
    ids = torch.tensor([[4, 9]])
    raw = next(encoder.iter_pre_norm_states(ids, torch.ones_like(ids)))
    torch.testing.assert_close(raw, encoder.embeddings.word.weight[ids] * 32**0.5)


@pytest.mark.parametrize("model_type", TYPES)
def test_random_weights_begin_as_in_transformers(model_type):
    """Norms scale by 1, which is a weight of 0 in Gemma; biases are 0; matrices have one deviation."""
    import transformers

    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 500, "initializer_range": 0.05}
    config = transformers.AutoConfig.for_model(**content(model_type, **sizes))
    theirs = transformers.AutoModel.from_config(config).state_dict()
    ours = random_encoder(config_from_dict(content(model_type, **sizes))).state_dict()
    assert sorted(tuple(w.shape) for w in ours.values()) == sorted(tuple(w.shape) for w in theirs.values())
    for name, weight in ours.items():
        if weight.ndim == 2:
            assert weight.std().item() == pytest.approx(0.05, rel=0.05)
        else:
            ones = name.endswith("norm.weight") and model_type != "gemma3_text"
            assert torch.equal(weight, torch.full_like(weight, float(ones)))
    norms = {weight.unique().item() for name, weight in theirs.items() if "norm" in name}
    assert norms == {0.0 if model_type == "gemma3_text" else 1.0}


# ------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("model_type", TYPES)
def test_bf16_in_training_and_in_encoding_is_near_float32(model_type):
    model, rows = tiny_decoder(model_type), pack(random_ids())
    exact = model.encoder(*rows.inputs)
    with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed = model.encoder(*rows.inputs)
    assert mixed.dtype == torch.float32
    mixed.square().mean().backward()
    assert all(weight.grad.isfinite().all() for weight in model.encoder.parameters())
    half = model.encoder.bfloat16()(*rows.inputs)
    assert half.dtype == torch.bfloat16
    for other in (mixed, half):
        there = rows.sentence_ids > 0
        assert torch.cosine_similarity(other[there].float(), exact[there]).min() > 0.99


@pytest.mark.parametrize("model_type", TYPES)
def test_int8_encoding_is_near_float32(model_type):
    model = tiny_decoder(model_type)
    exact = model.encode(SENTENCES)
    set_encode_precision(model, "int8")
    a, b = torch.from_numpy(model.encode(SENTENCES)), torch.from_numpy(exact)
    assert 0.98 < torch.cosine_similarity(a, b).min() and not torch.equal(a, b)


def test_fp16_is_refused_for_gemma_with_the_reason():
    model = tiny_decoder("gemma3_text")
    with pytest.raises(InputError, match="precision fp16: values in a Gemma exceed 65504"):
        model.encoder.half()(*pack(random_ids()).inputs)
    tiny_decoder("qwen3").encoder.half()(*pack(random_ids()).inputs)


# ------------------------------------------------------------------------------- files


@pytest.mark.parametrize("kind", ["ForCausalLM", "ForSequenceClassification", "ForTokenClassification"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text"])
def test_the_encoder_is_loaded_from_each_class_of_transformers(model_type, kind, tmp_path):
    import transformers

    if model_type == "gemma3_text" and kind == "ForTokenClassification":
        return
    config = transformers.AutoConfig.for_model(**content(model_type, num_labels=3))
    config.pad_token_id = None
    model = getattr(transformers, f"AutoModel{kind}").from_config(config)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    encoder, report = load_encoder_with_report(tmp_path, 2)
    assert torch.equal(encoder.embeddings.word.weight, model.model.embed_tokens.weight)
    assert torch.equal(encoder.norm.weight, model.model.norm.weight)
    assert report.truncated > 0


def test_constants_of_old_files_are_passed_over(tmp_path):
    build("llama", "ForCausalLM").save_pretrained(tmp_path)
    weights = stored_weights(tmp_path)
    expected = load_encoder(tmp_path).state_dict()
    frequencies = torch.ones(5)
    weights |= {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": frequencies.clone() for n in range(4)}
    weights["model.rotary_emb.inv_freq"] = frequencies
    store_weights(tmp_path, weights)
    loaded = load_encoder(tmp_path).state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], weight) for name, weight in expected.items())


def test_a_missing_final_norm_is_named_at_every_layer(tmp_path):
    build("qwen3").save_pretrained(tmp_path)
    weights = stored_weights(tmp_path)
    del weights["norm.weight"]
    store_weights(tmp_path, weights)
    with pytest.raises(InputError, match=r"missing tensor norm\.weight"):
        load_encoder(tmp_path, 1)


SAVED = {  # the keys of the saved config.json at 2 layers that are not sizes
    "llama": ({"rope_scaling": LLAMA3, "attention_bias": True},
              {"rope_theta": 10000.0, "rope_scaling": LLAMA3, "attention_bias": True, "mlp_bias": False}),
    "mistral": ({"sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
                {"rope_theta": 1e6, "rope_scaling": None, "sliding_window": None}),
    "qwen2": ({"is_causal": False, "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 3},
              {"rope_theta": 10000.0, "rope_scaling": None, "is_causal": False, "use_sliding_window": True,
               "max_window_layers": 1, "sliding_window": 3}),
    "qwen3": ({"layer_types": [FULL, SLIDING] * 2, "use_sliding_window": True, "sliding_window": 3},
              {"rope_theta": 10000.0, "rope_scaling": None, "layer_types": [FULL, SLIDING],
               "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 28,
               "attention_bias": False}),
    "gemma3_text": ({"use_bidirectional_attention": True, "sliding_window": 5, "rope_local_base_freq": 9.0},
                    {"rope_theta": 1e6, "rope_local_base_freq": 9.0, "rope_scaling": None,
                     "sliding_window": 5, "sliding_window_pattern": 6, "attention_bias": False,
                     "query_pre_attn_scalar": 256, "use_bidirectional_attention": True,
                     "final_logit_softcapping": None}),
    "eurobert": ({"mlp_bias": True},
                 {"rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "mlp_bias": True}),
}  # fmt: skip


@pytest.mark.parametrize("model_type", TYPES)
def test_a_saved_config_has_the_keys_that_all_versions_of_transformers_read(model_type, tmp_path):
    import transformers

    keys, expected = SAVED[model_type]
    torch.manual_seed(0)
    encoder = random_encoder(config_from_dict(content(model_type, **keys)), 2)
    save_encoder(encoder, tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    activation = "hidden_activation" if model_type == "gemma3_text" else "hidden_act"
    common = {*SIZES, "model_type", "architectures", "dtype", "rms_norm_eps", "attention_dropout", activation}
    common |= {"initializer_range", "tie_word_embeddings"}
    assert {key: value for key, value in saved.items() if key not in common} == expected
    assert common - saved.keys() == {"bos_token_id", "eos_token_id"}
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    types = [encoder.config.layer_type(n) for n in range(2)]
    assert getattr(config, "layer_types", types) == types
    rope = encoder.config.rope.to_hf()
    theirs = config.rope_parameters.get(FULL, config.rope_parameters)
    assert {key: theirs[key] for key in rope} == rope
    again = load_encoder(tmp_path)
    assert again.config.rope == encoder.config.rope and len(again.layers) == 2


def test_scaled_angles_of_gemmas_windows_are_written_in_the_new_form(tmp_path):
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}
    rope = {FULL: {"rope_type": "default", "rope_theta": 70.0}, SLIDING: scaled}
    model = build("gemma3_text", rope_parameters=rope)
    assert_equal_to_transformers(model, tmp_path / "theirs")
    encoder = load_encoder(tmp_path / "theirs", 2)
    save_encoder(encoder, tmp_path / "ours")
    saved = json.loads((tmp_path / "ours/config.json").read_text())
    assert saved["rope_parameters"] == rope and "rope_theta" not in saved
    assert load_encoder(tmp_path / "ours").config.rope_of(SLIDING) == encoder.config.rope_of(SLIDING)


@pytest.mark.parametrize("model_type", ["qwen3", "gemma3_text"])
def test_layers_that_are_kept_out_of_turn_keep_their_windows(model_type, tmp_path):
    """Layers 1 and 3 of four: their types are no prefix of the usual ones."""
    keys = {"layer_types": [FULL, SLIDING, FULL, FULL], "sliding_window": 3}
    keys |= {"use_sliding_window": True} if model_type == "qwen3" else {}
    encoder = random_encoder(config_from_dict(content(model_type, initializer_range=0.3, **keys))).eval()
    encoder.keep_layers([1, 3])
    inputs = padded(random_ids())
    save_encoder(encoder, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["layer_types"] == [SLIDING, FULL]
    theirs = open_in_transformers(FAMILIES[model_type].transformers_class, tmp_path)
    with torch.inference_mode():
        ours = encoder(*inputs)
        assert torch.equal(load_encoder(tmp_path)(*inputs), ours)
        output = theirs(input_ids=inputs[0], attention_mask=inputs[1]).last_hidden_state
    there = inputs[1].bool()
    assert largest_difference(ours[there], output[there]) < 1e-5


def test_layer_types_that_are_the_usual_ones_are_left_out_of_a_saved_config(tmp_path):
    """Versions of transformers before layer_types then read them right, too."""
    usual = [SLIDING] * 5 + [FULL] + [SLIDING]
    keys = {"num_hidden_layers": 7, "layer_types": usual, "sliding_window": 4}
    save_encoder(random_encoder(config_from_dict(content("gemma3_text", **keys)), 6), tmp_path)
    assert "layer_types" not in json.loads((tmp_path / "config.json").read_text())
    config = load_encoder(tmp_path).config
    assert [config.layer_type(n) for n in range(6)] == usual[:6]


def test_null_is_no_window_and_a_missing_key_the_usual_one():
    assert config_from_dict(content("mistral", sliding_window=None)).sliding_window is None
    assert config_from_dict(content("mistral")).sliding_window == 4096
    assert config_from_dict(content("qwen3", sliding_window=7)).sliding_window is None
    assert config_from_dict(content("qwen3", sliding_window=7, use_sliding_window=True)).sliding_window == 7


def test_sizes_that_a_file_leaves_out_are_those_of_transformers():
    import transformers

    for model_type in TYPES:
        given = content(model_type, num_attention_heads=8)
        for key in ("num_key_value_heads", "head_dim"):
            del given[key]
        theirs = transformers.AutoConfig.for_model(**given)
        ours = config_from_dict(given)
        head_dim = getattr(theirs, "head_dim", 4)  # Qwen2 has no such key: hidden_size by heads
        assert ours.head_dim == head_dim, model_type
        if not model_type.startswith("qwen"):  # there transformers says 32 whatever the number of heads
            assert ours.num_key_value_heads == theirs.num_key_value_heads, model_type
        assert config_from_dict(given | {"num_key_value_heads": None}).num_key_value_heads == 8


def test_a_padding_token_outside_the_vocabulary_is_none(tmp_path):
    for padding in (-1, len(VOCABULARY), None):
        assert config_from_dict(content("llama", pad_token_id=padding)).pad_token_id is None
    assert config_from_dict(content("llama", pad_token_id=3)).pad_token_id == 3


def test_a_text_has_at_most_512_tokens_unless_the_folder_says_otherwise():
    model = tiny_decoder("qwen3", max_position_embeddings=32768)
    assert (model.encoder.config.max_tokens, model.max_length) == (32768, 512)


def test_parameters_of_published_sizes():
    """Qwen3-Embedding-0.6B and EmbeddingGemma, whose cards say 0.6 B and 308 M."""
    qwen = content("qwen3", vocab_size=151669, hidden_size=1024, num_hidden_layers=28, head_dim=128)
    qwen |= {"num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3072}
    assert parameter_counts(config_from_dict(qwen))["stored"] == 595_776_512
    gemma = content("gemma3_text", vocab_size=262144, hidden_size=768, num_hidden_layers=24, head_dim=256)
    gemma |= {"num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 1152}
    counts = parameter_counts(config_from_dict(gemma))
    assert counts["stored"] == 302_863_104
    assert counts["stored"] - parameter_counts(config_from_dict(gemma), 0)["stored"] == 101_535_744


# ------------------------------------------------------------------------------- what else is done with it


@pytest.mark.parametrize("model_type", TYPES)
def test_a_pruned_vocabulary_gives_the_same_embeddings(model_type, tmp_path):
    model = tiny_decoder(model_type, pad_token_id=3)
    pruned = prune_vocabulary(model, SENTENCES)
    assert pruned.encoder.config.vocab_size < model.encoder.config.vocab_size
    np.testing.assert_allclose(pruned.encode(SENTENCES), model.encode(SENTENCES), rtol=0, atol=1e-6)
    pruned.save_pretrained(tmp_path)
    again = SentenceEncoder.from_pretrained(tmp_path).encode(SENTENCES)
    np.testing.assert_array_equal(again, pruned.encode(SENTENCES))


def test_a_pruned_vocabulary_without_a_padding_token_stays_without():
    assert prune_vocabulary(tiny_decoder("qwen3"), SENTENCES).encoder.config.pad_token_id is None


# ------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "model_type, changes, message",
    [
        ("qwen3", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' (config.json)"),
        ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "rope_type 'longrope' (config.json)"),
        ("gemma3_text", {"rope_scaling": {"rope_type": "su"}}, "rope_type 'su' (config.json)"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters has rope_theta (config"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0 (config.json): expected a whole number, 1 o"),
        (
            "mistral",
            {"sliding_window": 3, "layer_types": [FULL] * 4},
            "layer_types is ['full_attention', 'full_attention', ",
        ),
        (
            "mistral",
            {"sliding_window": None, "layer_types": [SLIDING] * 4},
            "layer_types is ['sliding_attention', 'sliding_attention",
        ),
        ("llama", {"layer_types": [SLIDING] * 4}, "layer_types is ['sliding_attention', 'sliding"),
        ("llama", {"layer_types": [FULL]}, "layer_types is ['full_attention'] (config.json): the 4 layers o"),
        ("mistral", {"sliding_window": 10**30}, "sliding_window is 1000000000000000000000000000000 (config."),
        ("mistral", {"sliding_window": 3.5}, "sliding_window is 3.5 (config.json): expected a whole number"),
        ("qwen2", {"sliding_window": -1, "use_sliding_window": True}, "sliding_window is -1 (config.json)"),
        ("qwen3", {"layer_types": [FULL] * 3 + [SLIDING]}, "sliding_window is missing (config.json): layers"),
        ("gemma3_text", {"sliding_window": None}, "sliding_window is missing (config.json): layers of type"),
        ("qwen3", {"layer_types": [FULL] * 5}, "layer_types has 5 entries (config.json): num_hidden_layers"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 4}, "layer_types is ['chunked_attention', 'chunke"),
        ("qwen3", {"layer_types": "full"}, "layer_types is 'full' (config.json): expected a list of full_at"),
        ("mistral", {"layer_types": [FULL, SLIDING] * 2}, "layer_types is ['full_attention', 'sliding_"),
        ("llama", {"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_hea"),
        ("llama", {"num_key_value_heads": 0}, "num_attention_heads 4 is not a multiple of num_key_value_hea"),
        ("llama", {"num_attention_heads": 5}, "hidden_size 32 is not a multiple of num_attention_heads 5"),
        ("qwen3", {"num_attention_heads": 0}, "num_attention_heads 0 is not a multiple of num_key_value_hea"),
        ("qwen3", {"head_dim": 9}, "head_dim 9 (config.json): expected an even number, for rotary positions"),
        ("qwen3", {"head_dim": 0}, "head_dim 0 (config.json): expected an even number, for rotary positions"),
        ("qwen3", {"head_dim": "8"}, "head_dim is '8' (config.json): expected a whole number"),
        ("qwen3", {"hidden_size": "8"}, "hidden_size is '8' (config.json): expected a whole number"),
        ("qwen3", {"hidden_act": "geglu"}, "hidden_act 'geglu' (config.json): supported are gelu"),
        ("gemma3_text", {"hidden_activation": "swiglu"}, "hidden_activation 'swiglu' (config.json): support"),
        ("gemma3_text", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0 (config.json): expected 1"),
        ("gemma3_text", {"final_logit_softcapping": -1}, "final_logit_softcapping is -1 (config.json): exp"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0 (config.json): expected"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0 (config.json): on"),
        ("qwen3", {"num_experts": 8}, "num_experts is 8 (config.json): only 0 is supported"),
        ("llama", {"attention_bias": "yes"}, "attention_bias is 'yes' (config.json): expected true or false"),
        ("llama", {"is_causal": 0}, "is_causal is 0 (config.json): expected true or false"),
        ("qwen2", {"auto_map": {"AutoModel": "modeling.Qwen2BidirectionalModel"}}, "auto_map has 'modeling."),
        ("qwen3", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config 'gptq'"),
        ("gemma3", {"text_config": {}}, "model_type 'gemma3' (config.json): this is the model of text and"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_is_one_line(model_type, changes, message):
    with pytest.raises(InputError) as error:
        config_from_dict(content(model_type, **changes))
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_code_of_a_class_that_is_known_here_is_not_needed():
    auto_map = {"AutoConfig": "configuration_eurobert.EuroBertConfig", "AutoModel": "x--m.EuroBertModel"}
    assert config_from_dict(content("eurobert", auto_map=auto_map)).model_type == "eurobert"
