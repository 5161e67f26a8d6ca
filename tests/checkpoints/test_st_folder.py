"""What a folder of sentence-transformers says, by hand: pooling, prompts, dimensions, similarity, the limit.

Each is applied here as sentence-transformers applies it, and written back; what it cannot express is said.
"""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SENTENCES, assert_same_embeddings, tiny_model

from tmft.checkpoints.model_card import describe_compatibility
from tmft.embedding.modules import Dense, Normalize
from tmft.errors import InputError
from tmft.evaluation.evaluators import use_saved_similarity
from tmft.loss import CosineMSE
from tmft.packing import pack
from tmft.pooling import POOLINGS, Pooling
from tmft.sentence_encoder import SentenceEncoder

QUERY = {"query": "a dog "}
TWO_PROMPTS = {"prompts": QUERY | {"sts": "two men "}, "default_prompt_name": "sts"}


def write_config(folder: Path, content: dict, name: str = "config_sentence_transformers.json") -> Path:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def read_config(folder: Path, name: str = "config_sentence_transformers.json") -> dict:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def theirs(folder: Path):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def test_it_is_said_that_a_dense_gets_another_layer_than_it_was_trained_on(tmp_path, caplog):
    model = tiny_model()
    model.head_modules.append(Dense(24, 8))
    model.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, "tmft"):
        SentenceEncoder.from_pretrained(tmp_path)
        SentenceEncoder.from_pretrained(tmp_path, layer=2, pooling="mean")
        assert not caplog.messages
        SentenceEncoder.from_pretrained(tmp_path, layer=2)
    assert "the Dense after the pooling was trained on layer 4 and now gets layer 2" in caplog.text


def first_and_last(hidden, rows, weights=None):
    """(B, T, D) -> (S, 2 D)"""
    ends = [POOLINGS[name].pool(hidden, rows, weights) for name in ("cls", "lasttoken")]
    return torch.cat(ends, dim=1)


OURS = {
    "middle": Pooling(lambda hidden, rows, weights: POOLINGS["max"].pool(hidden, rows, weights) / 2),
    "ends": Pooling(first_and_last, num_vectors=2),
}


@pytest.fixture(params=["middle", "ends", "cls+middle"])
def ours(request, monkeypatch) -> SentenceEncoder:
    """A model with a pooling that sentence-transformers does not know."""
    for name, row in OURS.items():
        monkeypatch.setitem(POOLINGS, name, row)
    model = tiny_model()
    model.pooling = request.param
    return model


def test_a_pooling_of_tmft_is_saved_and_is_the_mean_in_sentence_transformers_as_the_card_says(ours, tmp_path):
    ours.save_pretrained(tmp_path)
    again, embeddings = SentenceEncoder.from_pretrained(tmp_path), ours.encode(SENTENCES)
    widths = {"middle": 24, "ends": 48, "cls+middle": 48}
    assert ours.dimensions == embeddings.shape[1] == widths[ours.pooling]
    assert again.pooling == ours.pooling
    np.testing.assert_array_equal(again.encode(SENTENCES), embeddings)
    note = f"sentence-transformers has no pooling {ours.pooling!r} and takes the mean."
    assert describe_compatibility(ours) == note and note in (tmp_path / "README.md").read_text()
    plain = tiny_model()
    assert_same_embeddings(theirs(tmp_path).encode(SENTENCES), plain.encode(SENTENCES))
    plain.save_pretrained(tmp_path)
    assert SentenceEncoder.from_pretrained(tmp_path).pooling == "mean"
    assert "In other libraries" not in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_sentence_transformers_gives_zeros_where_all_weights_are_0_as_the_card_says(tmp_path):
    model = tiny_model()
    model.set_token_weights("content-words")
    model.save_pretrained(tmp_path)
    assert "all have weight 0 a vector of zeros" in (tmp_path / "README.md").read_text()
    text = ["a, the. A man!"]
    assert not theirs(tmp_path).encode(text).any() and model.encode(text).any()


def test_a_prompt_outranks_a_prompt_name_which_is_logged(caplog):
    model = tiny_model()
    model.prompts["sts"] = "two men "
    with caplog.at_level(logging.WARNING, "tmft"):
        both = model.encode(SENTENCES, prompt="music ", prompt_name="sts")
    assert np.array_equal(both, model.encode(SENTENCES, prompt="music "))
    assert caplog.messages == ["prompt_name 'sts' is ignored, because a prompt is given, too"]


def test_a_text_that_is_set_becomes_the_prompt_named_default(tiny_folder):
    model = SentenceEncoder.from_pretrained(write_config(tiny_folder, TWO_PROMPTS))
    named = dict(model.prompts)
    model.prompt = "two men "  # as it is: it keeps its name
    assert (model.default_prompt_name, model.prompts) == ("sts", named)
    model.prompt = "[X] is [M]"
    assert (model.default_prompt_name, model.prompts) == ("default", named | {"default": "[X] is [M]"})
    model.prompt = "a [X]"
    assert (model.default_prompt_name, model.prompts) == ("default", named | {"default": "a [X]"})
    model.prompt = ""
    assert (model.default_prompt_name, model.prompts) == (None, named)


def test_a_number_of_dimensions_can_be_set_changed_and_removed():
    model = tiny_model()
    full = model.encode(SENTENCES)
    for number, left in ((8, 8), (12, 12), (24, 24), (99, 24), (1, 1), (None, 24)):
        model.truncate_dim = number
        assert model.truncate_dim == (number if left < 24 else None)
        assert model.dimensions == left
        assert np.array_equal(model.encode(SENTENCES), full[:, :left])
    for wrong in (0, -2):
        with pytest.raises(InputError, match=f"truncate_dim {wrong}: choose 1 or more"):
            model.truncate_dim = wrong
        with pytest.raises(InputError, match=f"truncate_dim {wrong}: choose 1 or more"):
            model.encode(SENTENCES, truncate_dim=wrong)


def test_it_is_said_once_that_truncated_embeddings_are_shorter_than_1(tmp_path, caplog):
    model = tiny_model()
    with caplog.at_level(logging.WARNING, "tmft"):
        model.encode(SENTENCES, truncate_dim=5)
        assert not caplog.messages  # there is no Normalize
        model.head_modules.append(Normalize())
        model.encode(SENTENCES, truncate_dim=5, normalize_embeddings=True)
        model.encode(SENTENCES, truncate_dim=24)
        assert not caplog.messages
        shorter = model.encode(SENTENCES, truncate_dim=5)
        model.encode(SENTENCES, truncate_dim=5)
        [message] = caplog.messages
    assert "embeddings of this model have length 1, and truncate_dim makes them shorter: give " in message
    assert (np.linalg.norm(shorter, axis=1) < 0.99).all()
    model.truncate_dim = 5
    model.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, "tmft"):
        SentenceEncoder.from_pretrained(tmp_path)
    assert caplog.messages == [message, message]


def test_another_similarity_is_the_cosine_as_in_sentence_transformers_and_is_said(tiny_folder, caplog):
    write_config(tiny_folder, {"similarity_fn_name": "maxsim"})
    with caplog.at_level(logging.WARNING, "tmft"):
        assert SentenceEncoder.from_pretrained(tiny_folder).similarity_fn_name == "cosine"
    assert "has similarity_fn_name maxsim: embeddings are compared by their cosine" in caplog.messages[0]


def test_a_trained_objective_is_not_replaced():
    class WithWeights(CosineMSE):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

    class OfClasses(CosineMSE):
        prediction_type = "class"

    for objective in (WithWeights(), OfClasses(), None):
        assert use_saved_similarity(objective, "dot") is objective
    cosine = CosineMSE()
    assert use_saved_similarity(cosine, "cosine") is cosine
    assert use_saved_similarity(cosine, "dot") is not cosine


# fmt: off
BASE_MODELS = {
    "nothing":              ({}, "mean"),
    "a causal model":       ({"architectures": ["LlamaForCausalLM"]}, "lasttoken"),
    "a base model":         ({"architectures": ["LlamaModel"]}, "mean"),
    "the first one counts": ({"architectures": ["LlamaForCausalLM", "LlamaModel"]}, "lasttoken"),
    "both ways":            ({"architectures": ["LlamaForCausalLM"], "is_causal": False}, "mean"),
    "a list of null":       ({"architectures": [None]}, "mean"),
}
# fmt: on


def as_base_model(folder: Path, **keys) -> Path:
    for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        (folder / name).unlink(missing_ok=True)
    (folder / "config_sentence_transformers.json").unlink(missing_ok=True)
    return write_config(folder, read_config(folder, "config.json") | keys, "config.json")


@pytest.mark.parametrize("name", BASE_MODELS)
def test_the_pooling_of_a_base_model_is_that_of_sentence_transformers_and_is_logged(
    name, tiny_folder, caplog
):
    keys, pooling = BASE_MODELS[name]
    folder = as_base_model(tiny_folder, **keys)
    with caplog.at_level(logging.INFO, "tmft"):
        model = SentenceEncoder.from_pretrained(folder)
    assert model.pooling == pooling
    assert [f"pooled by {pooling}, which is used" in message for message in caplog.messages] == [True]
    assert SentenceEncoder.from_pretrained(folder, pooling="max").pooling == "max"
    if name != "a list of null":  # sentence-transformers has a traceback
        assert_same_embeddings(model.encode(SENTENCES), theirs(folder).encode(SENTENCES), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_last_token_is_found_where_it_is_the_padding_token_too(side, tmp_path):
    """As in Qwen3-Embedding, where one token ends a text and fills up a batch."""
    model = tiny_model()
    model.pooling = "lasttoken"
    model.save_pretrained(tmp_path)
    keys = read_config(tmp_path, "tokenizer_config.json") | {"pad_token": "[SEP]", "padding_side": side}
    write_config(tmp_path, keys, "tokenizer_config.json")
    again, reference = SentenceEncoder.from_pretrained(tmp_path), theirs(tmp_path)
    assert again.tokenizer.pad_id == reference.tokenizer.pad_token_id == again.tokenize(["a"])[0][-1]
    texts = [*SENTENCES, "", "[SEP]", "a [SEP] b [SEP]", "music " * 100]
    expected = model.encode(texts)
    assert_same_embeddings(again.encode(texts), expected, 1e-6)
    if side == "right":  # left padding moves the positions of this encoder in transformers
        assert_same_embeddings(reference.encode(texts), expected, 1e-6)
    rows = pack(again.tokenize(texts), 64, again.tokenizer.pad_id)
    hidden = again.encoder(*rows.inputs)
    for number, ids in enumerate(again.tokenize(texts)):
        inside = hidden[rows.attention_mask == number + 1]
        assert len(inside) == len(ids)
        torch.testing.assert_close(again.pool(hidden, rows)[number], inside[-1])


@pytest.mark.parametrize("model_type", ["electra", "roberta", "mpnet"])
@pytest.mark.parametrize(("limit", "max_length"), [(6, 6), (40, 40), (41, 40), (42, 40), (512, 40)])
def test_a_limit_above_that_of_the_model_is_cut_to_it(limit, max_length, model_type, tmp_path):
    """A RoBERTa has rows for the padding token and those before it, and its folders often count them."""
    num_positions = 40 if model_type == "electra" else 42
    settings = {"model_type": model_type, "max_position_embeddings": num_positions, "pad_token_id": 1}
    tiny_model(**settings).save_pretrained(tmp_path)
    write_config(tmp_path, {"max_seq_length": limit}, "sentence_bert_config.json")
    model = SentenceEncoder.from_pretrained(tmp_path)
    assert model.max_length == model.max_seq_length == max_length
    assert len(model.tokenize(["music " * 100])[0]) == max_length
    assert np.isfinite(model.encode(["music " * 100])).all()
