"""ModernBERT beyond what all families share: kinds of layers, config keys of both ages, the MLM head."""

import json

import pytest
import torch
from conftest import (
    SENTENCES,
    VOCABULARY,
    open_in_transformers,
    store_weights,
    stored_weights,
    tiny_config,
    tiny_model,
)

from tmft.checkpoints.load import load_encoder, load_encoder_with_report
from tmft.checkpoints.save import compatibility_note, save_encoder
from tmft.errors import InputError
from tmft.models.registry import config_from_dict, parameter_counts, random_encoder
from tmft.packing import pack
from tmft.pretraining.heads import MaskedLM, means_from_sums, read_mlm_head
from tmft.pretraining.masking import LabeledBatch
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.model_options import apply_training_options

FULL, SLIDING = "full_attention", "sliding_attention"
MODERNBERT = tiny_config(model_type="modernbert", local_attention=6, num_hidden_layers=5)
SENTENCES_OF_IDS = [[5, 9, 7, 12, 20, 3, 8, 30, 11, 17, 18, 19], [6, 7], [9, 30, 31, 4, 8, 10, 12, 4]]


def random_modernbert(**changes) -> torch.nn.Module:
    """transformers' model with random weights, so large that attention is far from uniform."""
    from transformers import ModernBertConfig, ModernBertModel

    content = {key: value for key, value in MODERNBERT.items() if key != "embedding_size"}
    torch.manual_seed(0)
    model = ModernBertModel(ModernBertConfig(**(content | {"pad_token_id": 0} | changes))).eval()
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.3)
    return model


def layer_types(**changes) -> list[str]:
    content = {key: value for key, value in MODERNBERT.items() if key != "layer_types"} | changes
    return list(config_from_dict(content).layer_types)


# ------------------------------------------------------------------------------- hidden states


@pytest.mark.parametrize("window", [1, 2, 4, 5, 6, 7, 20, 22, 24, 128])
def test_a_window_reaches_half_of_local_attention_to_each_side(window, tmp_path):
    """Windows around the length of the longest sentence, 12, decide whether the band is left out."""
    model = random_modernbert(local_attention=window, layer_types=[SLIDING] * 5)
    model.save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path)
    ids = torch.tensor(SENTENCES_OF_IDS[:1])
    with torch.inference_mode():
        theirs = model(ids).last_hidden_state
        torch.testing.assert_close(encoder(ids, torch.ones_like(ids)), theirs, rtol=0, atol=1e-5)
        rows = pack(SENTENCES_OF_IDS, packed_length=24)
        in_rows = encoder(*rows.inputs)[rows.sentence_ids == 1]
    torch.testing.assert_close(in_rows, theirs[0], rtol=0, atol=1e-5)


def test_a_sliding_layer_does_not_see_beyond_its_window():
    encoder = random_encoder(config_from_dict(MODERNBERT | {"layer_types": [FULL] + 4 * [SLIDING]}))
    encoder.layers = encoder.layers[1:2]  # one layer that sees 3 tokens to each side
    ids = torch.tensor(SENTENCES_OF_IDS[:1])
    changed = ids.clone()
    changed[0, 8] = 1
    with torch.inference_mode():
        before, after = (encoder(ids, torch.ones_like(ids)) for ids in (ids, changed))
    same = (before == after).all(-1)[0].tolist()
    assert same == [True] * 5 + [False] * 7  # tokens 5 to 11 see token 8


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_truncating_is_reading_an_earlier_hidden_state(layer, tmp_path):
    random_modernbert().save_pretrained(tmp_path)
    ids, mask = torch.tensor(SENTENCES_OF_IDS[:1]), torch.ones(1, 12)
    full = load_encoder(tmp_path).hidden_states(ids, mask)
    torch.testing.assert_close(load_encoder(tmp_path, layer)(ids, mask), full[layer], rtol=0, atol=0)


def test_gradients_equal_transformers(tmp_path):
    """In float64, where rounding is out of the way."""
    model = random_modernbert(attention_bias=True).double()
    model.float().save_pretrained(tmp_path)
    model.double()
    encoder = load_encoder(tmp_path).double()
    ids = torch.tensor(SENTENCES_OF_IDS[:1])
    model(ids).last_hidden_state.pow(3).mean().backward()
    encoder(ids, torch.ones_like(ids)).pow(3).mean().backward()
    pairs = [
        (encoder.embeddings.word, model.embeddings.tok_embeddings),
        (encoder.layers[0].attention.qkv, model.layers[0].attn.Wqkv),
        (encoder.layers[1].feed_forward.gate_up, model.layers[1].mlp.Wi),
        (encoder.norm, model.final_norm),
    ]
    for ours, theirs in pairs:
        largest = theirs.weight.grad.abs().max()
        assert largest > 0
        torch.testing.assert_close(
            ours.weight.grad / largest, theirs.weight.grad / largest, rtol=0, atol=1e-6
        )


def test_rotations_are_in_float32_also_under_autocast(tmp_path):
    encoder = random_encoder(config_from_dict(MODERNBERT)).eval()
    ids = torch.tensor(SENTENCES_OF_IDS[:1]).repeat(1, 3)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        hidden = encoder(ids, torch.ones_like(ids))
    with torch.inference_mode():
        exact = encoder(ids, torch.ones_like(ids))
    assert torch.cosine_similarity(hidden.float(), exact, dim=-1).min() > 0.99


# ------------------------------------------------------------------------------- configurations


def test_layer_types_follow_from_files_of_both_ages():
    assert layer_types() == [FULL, SLIDING, SLIDING, FULL, SLIDING]  # each third layer, if nothing is said
    assert layer_types(global_attn_every_n_layers=2) == [FULL, SLIDING, FULL, SLIDING, FULL]
    assert layer_types(global_attn_every_n_layers=9) == [FULL] + 4 * [SLIDING]
    both = {"global_attn_every_n_layers": 1, "layer_types": [SLIDING] * 5}
    assert layer_types(**both) == [SLIDING] * 5


def test_thetas_are_read_from_files_of_both_ages():
    def thetas(**changes):
        config = config_from_dict(MODERNBERT | changes)
        return config.rope.rope_theta, config.sliding_rope.rope_theta

    assert thetas() == (160000.0, 10000.0)
    assert thetas(local_rope_theta=160000) == (160000.0, 160000.0)
    new = {"rope_parameters": {SLIDING: {"rope_type": "default", "rope_theta": 5.0}, FULL: None}}
    assert thetas(global_rope_theta=7.0, local_rope_theta=8.0, **new) == (7.0, 5.0)


def test_a_saved_config_has_the_keys_of_both_ages(tmp_path):
    save_encoder(random_encoder(config_from_dict(MODERNBERT), 4), tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["layer_types"] == [FULL, SLIDING, SLIDING, FULL] and content["num_hidden_layers"] == 4
    new = {key: content.pop(key) for key in ("layer_types", "rope_parameters")}
    assert new["rope_parameters"][FULL] == {"rope_theta": 160000.0, "rope_type": "default"}
    theirs = open_in_transformers("ModernBertModel", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(content))  # now as transformers 4 reads it
    old = open_in_transformers("ModernBertModel", tmp_path)
    ids = torch.tensor(SENTENCES_OF_IDS[:1])
    with torch.inference_mode():
        assert torch.equal(old(ids).last_hidden_state, theirs(ids).last_hidden_state)


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


def test_token_ids_of_the_checkpoint_are_kept_and_those_that_are_no_tokens_are_not(tmp_path):
    from transformers import AutoConfig

    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 99, "sep_token_id": None}
    save_encoder(random_encoder(config_from_dict(MODERNBERT | ids)), tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert [getattr(config, name) for name in ids] == [0, 2, 3, None, None]


ODD = {
    "layer_types of another length": ({"layer_types": [FULL] * 4}, "layer_types has 4 entries .*: num_hid"),
    "an unknown layer type": ({"layer_types": ["chunked"] * 5}, "layer_types is .* .*: expected a l"),
    "a null among the layer types": (
        {"layer_types": [FULL, None] * 2 + [FULL]},
        "layer_types is .*None.*: exp",
    ),
    "layer types that are no list": ({"layer_types": FULL}, "layer_types is 'full_attention' .*: expected"),
    "layer types that are lists": ({"layer_types": [[FULL]] * 5}, "layer_types is .*: expected a list of"),
    "a period of 0": ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0 .*: expected 1"),
    "two windows": (
        {"sliding_window": 3, "local_attention": 4},
        "sliding_window is 3 .*: local_attention 4 means 2 tokens to each side, remove one of the two",
    ),
    "a window of 0": ({"local_attention": 0}, "local_attention is 0 .*: expected 1 or more tokens"),
    "odd heads": ({"num_attention_heads": 8}, "head_dim 3 .*: expected an even number, for rotary"),
    "no heads": ({"num_attention_heads": 0}, "hidden_size 24 is not a multiple of num_attention_heads 0"),
    "no number of layers": ({"num_hidden_layers": "5"}, "num_hidden_layers is '5' .*: expected a whole num"),
    "an unknown rotation": (
        {"rope_scaling": {"rope_type": "wild"}},
        "rope_type 'wild' .*: supported are default",
    ),
    "a key that transformers ignores": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "rope_scaling has type, but no rope_type .*: transformers ignores it",
    ),
    "rotations for no kind of layer": (
        {"rope_parameters": {"chunked": {}}},
        "rope_parameters has chunked .*: expected objects full_attention and sliding_attention",
    ),
    "a theta of 0": ({"local_rope_theta": 0}, "rope_theta is 0 .*: expected a number above 0"),
    "an unknown activation": ({"hidden_activation": "mish"}, "hidden_activation 'mish' .*: supported are ge"),
    "an unknown activation of the head": (
        {"classifier_activation": "mish"},
        "classifier_activation 'mish' .*: supported are gelu",
    ),
    "a bias that is no truth value": ({"norm_bias": 1}, "norm_bias is 1 .*: expected true or false"),
    "a dropout above 1": ({"mlp_dropout": 2.0}, "mlp_dropout is 2.0 .*: expected 0 to 1"),
}


@pytest.mark.parametrize("case", ODD)
def test_a_config_that_does_not_fit_is_one_line(case):
    changes, words = ODD[case]
    with pytest.raises(InputError, match=words) as error:
        config_from_dict(MODERNBERT | changes)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("kept", [(0, 2, 4), (0, 1, 3), (0, 3), (0, 4)])
def test_chosen_layers_stay_of_their_kind_in_the_saved_folder(kept, tmp_path):
    model = tiny_model(**MODERNBERT)
    kinds = list(model.encoder.config.layer_types)
    apply_training_options(model, None, [], None, keep_layers=kept)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["layer_types"] == [kinds[n] for n in kept]
    again = SentenceEncoder.from_pretrained(tmp_path)
    assert (again.encode(SENTENCES) == model.encode(SENTENCES)).all()
    theirs = open_in_transformers("ModernBertModel", tmp_path)
    assert_equal_to_transformers(model.encoder, theirs)


def assert_equal_to_transformers(encoder, model):
    ids = torch.tensor(SENTENCES_OF_IDS[:1])
    with torch.inference_mode():
        theirs = model(ids).last_hidden_state
        torch.testing.assert_close(encoder(ids, torch.ones_like(ids)), theirs, rtol=0, atol=1e-5)


def test_the_first_layer_cannot_be_removed_because_it_has_no_norm():
    with pytest.raises(InputError, match="must include layer 0: it is the only one without a norm before"):
        apply_training_options(tiny_model(**MODERNBERT), None, [], None, keep_layers=[1, 2])


def test_transformers_cannot_open_0_layers_and_tmft_can(tmp_path):
    encoder = random_encoder(config_from_dict(MODERNBERT), 0)
    assert compatibility_note(encoder) == "transformers cannot run a modernbert of 0 layers; tmft can."
    save_encoder(encoder, tmp_path)
    ids = torch.tensor(SENTENCES_OF_IDS[:1])
    again = load_encoder(tmp_path)
    assert torch.equal(again(ids, torch.ones_like(ids)), encoder.eval()(ids, torch.ones_like(ids)))


def test_parameters_are_counted_without_weights():
    """By hand: D = 24, F = 40, no biases; layer 0 lacks a norm."""
    layer = 24 * 72 + 24 * 24 + 24 * 80 + 40 * 24 + 24 + 24
    words = len(VOCABULARY) * 24 + 24
    counts = parameter_counts(config_from_dict(MODERNBERT), 2)
    assert counts == {"paper": words + 2 * layer - 24, "stored": words + 2 * layer}


def test_initial_weights_are_cut_off_and_smaller_before_the_residual_sum():
    config = config_from_dict(
        MODERNBERT | {"hidden_size": 96, "initializer_range": 0.02, "num_hidden_layers": 2}
    )
    torch.manual_seed(0)
    layer = random_encoder(config).layers[1]
    wide, narrow = layer.attention.qkv.weight, layer.attention.output.weight
    assert wide.abs().max() <= 0.04 and narrow.abs().max() <= 0.02  # two standard deviations
    assert (wide.std() / narrow.std()).item() == pytest.approx(2.0, rel=0.05)  # sqrt(2 * 2 layers)


@pytest.mark.parametrize("biases", [(False, False, True), (True, True, True), (False, False, False)])
def test_the_mlm_loss_equals_that_of_transformers(biases, tmp_path):
    names = ("classifier_bias", "norm_bias", "decoder_bias")
    content = MODERNBERT | dict(zip(names, biases, strict=True)) | {"classifier_activation": "silu"}
    torch.manual_seed(1)
    model = MaskedLM(random_encoder(config_from_dict(content))).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.save(tmp_path)
    theirs = open_in_transformers("ModernBertForMaskedLM", tmp_path)
    masked = [list(SENTENCES_OF_IDS[0])]
    masked[0][4] = masked[0][9] = 4
    labels = torch.full((1, 12), -100)
    labels[0, [4, 9]] = torch.tensor(SENTENCES_OF_IDS[0])[[4, 9]]
    with torch.inference_mode():
        batch = LabeledBatch(pack(masked), torch.tensor([4, 9]), labels[0, [4, 9]])
        ours = means_from_sums(model(batch))["mlm_loss"].item()
        assert ours == pytest.approx(theirs(torch.tensor(masked), labels=labels).loss.item(), abs=1e-5)

    encoder, report = load_encoder_with_report(tmp_path)  # the names have the prefix model.
    assert report.ignored_heads.keys() == {"head", "decoder"} - ({"decoder"} if not biases[2] else set())
    head, _ = read_mlm_head(tmp_path, encoder.config)
    for ours, saved in ((encoder, model.encoder), (head, model.head)):
        assert all(torch.equal(*pair) for pair in zip(ours.parameters(), saved.parameters(), strict=True))


def test_a_head_that_config_json_does_not_describe_is_one_line(tmp_path):
    model = MaskedLM(random_encoder(config_from_dict(MODERNBERT)))
    model.save(tmp_path)
    config, weights = load_encoder(tmp_path).config, stored_weights(tmp_path)
    store_weights(tmp_path, weights | {"head.dense.bias": torch.zeros(24)})
    with pytest.raises(
        InputError, match="unknown tensor head.dense.bias .*: config.json does not ask for it"
    ):
        read_mlm_head(tmp_path, config)
    del weights["decoder.bias"]
    store_weights(tmp_path, weights)
    with pytest.raises(InputError, match="missing tensor decoder.bias .*: the head is incomplete"):
        read_mlm_head(tmp_path, config)


def test_a_classifier_of_transformers_is_read_without_its_head(tmp_path):
    from transformers import ModernBertForSequenceClassification

    model = random_modernbert()
    classifier = ModernBertForSequenceClassification(model.config)
    classifier.model.load_state_dict(model.state_dict())
    classifier.save_pretrained(tmp_path)
    encoder, report = load_encoder_with_report(tmp_path)
    assert report.ignored_heads.keys() == {"head", "classifier"}
    assert_equal_to_transformers(encoder, model)


def test_the_usual_limit_is_512_tokens_unless_the_folder_says_otherwise(tmp_path):
    model = tiny_model(**(MODERNBERT | {"max_position_embeddings": 8192}))
    assert model.max_length == 512
    model.max_length = 8192
    model.save_pretrained(tmp_path)
    assert SentenceEncoder.from_pretrained(tmp_path).max_length == 8192
