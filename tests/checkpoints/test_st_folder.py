"""Folders of sentence-transformers: the same embeddings here as there, before and after we save them."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    SENTENCES,
    assert_same_embeddings,
    tiny_model,
)

from tmft.checkpoints.model_card import describe_compatibility
from tmft.checkpoints.model_folder import ModelFolder
from tmft.embedding.modules import Dense
from tmft.pooling import POOLINGS, Pooling
from tmft.sentence_encoder import SentenceEncoder


def their_embeddings(folder: Path) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)


# ------------------------------------------------------------------------------------- what it says, by hand


def test_the_pooling_is_read_from_the_folder_that_modules_json_names(tiny_folder):
    modules = json.loads((tiny_folder / "modules.json").read_text())
    modules[1]["path"] = "5_Pool"
    (tiny_folder / "modules.json").write_text(json.dumps(modules))
    (tiny_folder / "5_Pool").mkdir()
    (tiny_folder / "5_Pool/config.json").write_text('{"pooling_mode": "cls"}')
    assert SentenceEncoder.from_pretrained(tiny_folder).pooling == "cls"
    assert "5_Pool/config.json" in ModelFolder(tiny_folder).file_names()


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


# -------------------------------------------------------------------- poolings that only tmft knows


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
    assert_same_embeddings(their_embeddings(tmp_path), plain.encode(SENTENCES))
    plain.save_pretrained(tmp_path)
    assert SentenceEncoder.from_pretrained(tmp_path).pooling == "mean"
    assert "In other libraries" not in (tmp_path / "README.md").read_text()


# -------------------------------------------------------------------------------- token weights: WordWeights


@pytest.mark.slow
def test_sentence_transformers_gives_zeros_where_all_weights_are_0_as_the_card_says(tmp_path):
    from sentence_transformers import SentenceTransformer

    model = tiny_model()
    model.set_token_weights("content-words")
    model.save_pretrained(tmp_path)
    assert "all have weight 0 a vector of zeros" in (tmp_path / "README.md").read_text()
    theirs = SentenceTransformer(str(tmp_path), device="cpu").encode(["a, the. A man!"])
    assert not theirs.any() and model.encode(["a, the. A man!"]).any()


# --------------------------------------------------------------------------------------- all choices at once


@pytest.mark.slow
def test_the_compatibility_note_lists_every_unsupported_setting(tmp_path):
    tiny_model(model_type="bert").save_pretrained(tmp_path / "tiny")
    model = SentenceEncoder.from_pretrained(tmp_path / "tiny", layer="1+3")
    model.prompt = "a dog [X] is [M]"
    model.set_token_weights("no-prompt")
    said = [
        "takes the last hidden state, not the mix 1+3",
        "takes the plain mean of all tokens, without the token weights no-prompt",
        "leaves out the prompt 'a dog [X] is [M]'",
    ]
    assert describe_compatibility(model) == " ".join(f"sentence-transformers {part}." for part in said)
    model.save_pretrained(tmp_path / "saved")
    plain = SentenceEncoder.from_pretrained(tmp_path / "tiny", layer=3)
    assert_same_embeddings(their_embeddings(tmp_path / "saved"), plain.encode(SENTENCES))
    ours = json.loads((tmp_path / "saved/tmft.json").read_text())
    assert ours == {
        "format": 1,
        "layer_mix": "1+3",
        "token_weights": "no-prompt",
        "prompts": {"default": "a dog [X] is [M]"},
        "default_prompt_name": "default",
    }
