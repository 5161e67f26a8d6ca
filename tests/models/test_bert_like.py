"""RoBERTa, XLM-R, CamemBERT, DistilBERT, MPNet and ALBERT: what is special in each, against transformers.

That their hidden states, saved folders and training steps are those of transformers is tested for all
families in test_every_family.py.
"""

import itertools
import random
from pathlib import Path

import pytest
import torch
from conftest import SENTENCES, assert_equal_hidden_states, store_weights, stored_weights, vocabulary_folder
from random_configs import RANDOM_CONFIGS
from safetensors.torch import load_file

from tmft.checkpoints.load import load_encoder, load_encoder_with_report
from tmft.checkpoints.save import save_encoder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.errors import InputError
from tmft.export.export import export
from tmft.models.albert import fewest_groups, group_numbers
from tmft.models.bert_families import DISTILBERT_KEYS
from tmft.models.families import (
    config_from_dict,
    convert_to_bert,
    empty_encoder,
    parameter_counts,
    random_encoder,
)
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.freezing import FreezeLayers

LIKE_ROBERTA = ("roberta", "xlm-roberta", "camembert")
STORED_AS_BERT = (*LIKE_ROBERTA, "distilbert")


def shape(model_type: str, **changes) -> dict:
    return RANDOM_CONFIGS[model_type](random.Random(3)) | changes


def reference(folder: Path, head: str = "", **content):
    """A transformers model with random weights, saved into folder. head: such as ForMaskedLM."""
    import transformers

    config = transformers.AutoConfig.for_model(**content)
    model = getattr(transformers, f"AutoModel{head}").from_config(config)
    torch.manual_seed(0)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.eval().save_pretrained(folder)
    return model


def token_ids(vocab_size: int, *lengths: int, without: int = 1) -> list[list[int]]:
    chance = random.Random(0)
    ids = [id for id in range(vocab_size) if id != without]
    return [[chance.choice(ids) for _ in range(length)] for length in lengths]


def random_model(layer: int | None = None, **content) -> SentenceEncoder:
    torch.manual_seed(0)
    encoder = random_encoder(config_from_dict(content), layer)
    for weight in encoder.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return SentenceEncoder(encoder, load_tokenizer(vocabulary_folder())).eval()


# ------------------------------------------------------------------------------- positions with an offset


@pytest.mark.parametrize("model_type", [*LIKE_ROBERTA, "mpnet"])
def test_the_longest_text_has_as_many_tokens_as_rows_are_left(model_type, tmp_path):
    model = random_model(**shape(model_type, pad_token_id=1, max_position_embeddings=12))
    assert model.max_length == 10
    assert len(model.tokenize(["a man plays guitar in the park and is not two"])[0]) == 10
    assert model.encode(["a man plays guitar in the park and is not two"]).shape == (1, model.dimensions)
    with pytest.raises(InputError, match="max_length 11: choose 3 to 10, the number of position embeddings"):
        SentenceEncoder(model.encoder, model.tokenizer, max_length=11)


@pytest.mark.parametrize("model_type", [*LIKE_ROBERTA, "mpnet"])
def test_a_table_of_positions_that_is_too_short_is_one_line(model_type):
    with pytest.raises(InputError) as error:
        config_from_dict(shape(model_type, pad_token_id=1, max_position_embeddings=4))
    assert str(error.value) == (
        "max_position_embeddings 4 (config.json): expected 5 or more, "
        "a sentence needs 3 positions from row 2 on"
    )


def test_a_padding_token_in_a_text_has_a_position_of_its_own(tmp_path):
    """transformers gives it the position of padding and does not count it, unless it is given positions."""
    content = shape("roberta", pad_token_id=1)
    model = reference(tmp_path, **content)
    ids = torch.tensor([[5, 9, 1, 7]])
    mask, positions = torch.ones_like(ids), torch.arange(4)[None] + 2
    with torch.inference_mode():
        ours = load_encoder(tmp_path)(ids, mask)
        theirs = model(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        counted = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert (ours - counted).abs().max() > 1e-3


# ------------------------------------------------------------------------------- files


def test_every_tensor_of_an_old_roberta_with_a_head_is_known(tmp_path):
    content = shape("roberta")
    model = reference(tmp_path, "ForMaskedLM", **content)
    word = model.roberta.embeddings.word_embeddings.weight.detach()
    old = {  # of a pytorch_model.bin, which stores tied weights twice, and constants
        "lm_head.decoder.weight": word.clone(),
        "lm_head.decoder.bias": model.lm_head.bias.detach().clone(),
        "roberta.embeddings.position_ids": torch.arange(50)[None],
        "roberta.embeddings.token_type_ids": torch.zeros(1, 50, dtype=torch.long),
        "roberta.pooler.dense.weight": torch.zeros(3, 3),
    }
    store_weights(tmp_path, stored_weights(tmp_path) | old)
    encoder, report = load_encoder_with_report(tmp_path)
    assert report.ignored_heads == {"lm_head": 7, "pooler": 1}
    assert_equal_hidden_states(encoder, model.roberta, token_ids(content["vocab_size"], 9, without=1))


# ------------------------------------------------------------------------------- as BERT or ELECTRA


@pytest.mark.parametrize("model_type", STORED_AS_BERT)
def test_its_form_as_bert_gives_the_same_hidden_states(model_type):
    model = random_model(**shape(model_type))
    config, weights = convert_to_bert(model.encoder)
    bert = empty_encoder(config).eval()
    bert.load_state_dict(weights, assign=True)
    ids = torch.tensor([[2, 9, 7, 3]])
    states = zip(bert.hidden_states(ids, ids != 0), model.encoder.hidden_states(ids, ids != 0), strict=True)
    assert all(torch.equal(a, b) for a, b in states)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("mpnet", "it has relative positions"), ("albert", "its layers share their weights")],
)
def test_what_cannot_be_a_bert_is_refused(model_type, reason, tmp_path):
    with pytest.raises(InputError, match=rf"{model_type} cannot be stored as BERT \({reason}\)"):
        export(random_model(**shape(model_type)), tmp_path / "bert", format="bert")


# ------------------------------------------------------------------------------- DistilBERT


def test_the_eps_of_a_distilbert_is_always_the_same(tmp_path):
    content = shape("distilbert", layer_norm_eps=0.1)
    model = reference(tmp_path, **content)
    assert_equal_hidden_states(load_encoder(tmp_path), model, token_ids(content["vocab_size"], 9, 4))


def test_a_distilbert_may_have_the_sizes_under_berts_names():
    content = shape("distilbert")
    named_as_bert = dict(content)
    for theirs, ours in {
        "dim": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
    }.items():
        named_as_bert[ours] = named_as_bert.pop(theirs)
    assert config_from_dict(named_as_bert) == config_from_dict(content)


def test_a_distilbert_has_no_dropout_after_the_attention_and_an_albert_none_after_the_feed_forward():
    """With p = 0.5 the output would change from one call to the next."""
    ids, mask = torch.tensor([[2, 9, 7, 3]]), torch.ones(1, 4)
    for model_type, p, other in (
        ("distilbert", "dropout", "feed_forward"),
        ("albert", "hidden_dropout_prob", "attention.output"),
    ):
        encoder = random_encoder(config_from_dict(shape(model_type) | {p: 0.5})).train()
        encoder.embeddings.dropout.p = 0.0
        for layer in encoder.layers:
            layer.attention.dropout.p = 0.0
            module = layer.get_submodule(other)
            for weight in module.parameters():  # what the other dropout is applied to is 0
                torch.nn.init.zeros_(weight)
        assert torch.equal(encoder(ids, mask), encoder(ids, mask))


# ------------------------------------------------------------------------------- MPNet


@pytest.mark.parametrize("buckets", [32, 40])
def test_the_biases_of_an_mpnet_at_all_edges_of_its_buckets(buckets, tmp_path):
    content = shape("mpnet", relative_attention_num_buckets=buckets, max_position_embeddings=202)
    model = reference(tmp_path, **content)
    sentences = token_ids(content["vocab_size"], 200, 129, 128, 17, 16, 9, 8, 1)
    assert_equal_hidden_states(load_encoder(tmp_path), model, sentences)


def test_the_table_of_biases_of_an_mpnet_is_kept_without_layers(tmp_path):
    random_model(0, **shape("mpnet")).save_pretrained(tmp_path)
    assert "encoder.relative_attention_bias.weight" in stored_weights(tmp_path)


# ------------------------------------------------------------------------------- ALBERT


def test_layers_are_put_into_groups_as_in_transformers():
    assert group_numbers(6, 4) == [0, 0, 1, 2, 2, 3]
    assert group_numbers(12, 1) == [0] * 12
    for L in range(1, 40):
        for G in range(1, L + 1):
            groups = group_numbers(L, G)
            assert sorted(set(groups)) == list(range(G)) and groups == sorted(groups)


def test_layers_are_saved_in_the_fewest_groups_that_say_which_weights_they_have():
    for layer_groups in itertools.product(range(3), repeat=5):
        stored = fewest_groups(layer_groups)
        assert [stored[number] for number in group_numbers(5, len(stored))] == list(layer_groups)
    assert fewest_groups([0] * 5) == [0]
    assert fewest_groups([0, 0, 1, 1]) == [0, 1]
    assert fewest_groups([0, 0, 0, 1]) == [0, 0, 1]  # 2 groups of 4 layers would be 0 0 1 1
    assert fewest_groups([]) == []


@pytest.mark.parametrize("layers", range(7))
@pytest.mark.parametrize("groups", [1, 2, 4, 6])
def test_a_truncated_albert_is_saved_exactly(groups, layers, tmp_path):
    import transformers

    content = shape("albert", num_hidden_layers=6, num_hidden_groups=groups)
    model = reference(tmp_path, **content)
    encoder = load_encoder(tmp_path, layers)
    save_encoder(encoder, tmp_path / "saved")
    ids = torch.tensor([[2, 9, 7, 3]])
    with torch.inference_mode():
        expected = model(input_ids=ids, output_hidden_states=True).hidden_states[layers]
        torch.testing.assert_close(encoder(ids, ids != 0), expected, rtol=0, atol=1e-5)
        again = transformers.AutoModel.from_pretrained(tmp_path / "saved")
        assert len(again.encoder.albert_layer_groups) == len(fewest_groups(group_numbers(6, groups)[:layers]))
        torch.testing.assert_close(again(input_ids=ids).last_hidden_state, expected, rtol=0, atol=1e-5)
        reloaded = load_encoder(tmp_path / "saved")
        assert torch.equal(reloaded(ids, ids != 0), encoder(ids, ids != 0))
    save_encoder(reloaded, tmp_path / "twice")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "twice" / name).read_bytes() == (tmp_path / "saved" / name).read_bytes()


def test_the_shared_layer_of_an_albert_is_counted_and_stored_once(tmp_path):
    content = shape("albert", num_hidden_layers=12, num_hidden_groups=1)
    counts = [parameter_counts(config_from_dict(content), layer)["stored"] for layer in (0, 1, 5, 12)]
    assert counts[1] == counts[2] == counts[3] > counts[0]
    model = random_model(5, **content)
    model.encoder.requires_grad_(True)
    model(pack_one(model)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert sum(weight.numel() for weight in weights.values()) == counts[2]
    assert sum(name.endswith("ffn.weight") for name in weights) == 1


def pack_one(model: SentenceEncoder):
    from tmft.packing import pack

    return pack(model.tokenize(SENTENCES))


def test_layers_of_an_albert_are_frozen_if_no_other_layer_has_their_weights():
    model = random_model(**shape("albert", num_hidden_layers=4, num_hidden_groups=2))
    for num_frozen in (1, 3):
        with pytest.raises(
            InputError, match=f"freeze_layers {num_frozen}: later layers have the same weights"
        ):
            FreezeLayers(model, num_frozen)
        assert all(weight.requires_grad for weight in model.parameters())
    FreezeLayers(model, 2)
    trained = [weight.requires_grad for group in model.encoder.groups for weight in group.parameters()]
    assert trained == [False] * (len(trained) // 2) + [True] * (len(trained) // 2)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_distilbert_with_two_values_for_a_size_is_refused(key):
    """transformers takes that under BERT's name; which one fits the weights, nobody can know."""
    content = shape("distilbert")
    name = DISTILBERT_KEYS[key]
    with pytest.raises(InputError, match=rf"{name} is {content[name]} and {key} is 1 \(config.json\)"):
        config_from_dict(content | {key: 1})
