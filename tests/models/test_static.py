"""The family of word tables: hidden state 0 of a token is its row, whatever stands beside it."""

import numpy as np
import pytest
import torch
from conftest import SENTENCES, VOCABULARY, tiny_static_model, training_task

from tmft.data import Examples
from tmft.embedding.layer_mix import WORD_EMBEDDINGS
from tmft.encoder import UNLIMITED_LENGTH
from tmft.loop import Recipe, fit
from tmft.loss import CosineMSE
from tmft.models.families import config_from_dict, parameter_counts, random_encoder
from tmft.packing import pack
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import TASKS
from tmft.training_free.static_models import random_word_vectors, static_encoder

V = len(VOCABULARY)
CONFIG = {"model_type": "static", "vocab_size": V, "hidden_size": 8}


@pytest.fixture
def folder(tmp_path):
    tiny_static_model().save_pretrained(tmp_path / "static")
    return tmp_path / "static"


# ------------------------------------------------------------------------------- config


def test_a_config_needs_only_the_size():
    config = config_from_dict(CONFIG)
    assert (config.vocab_size, config.hidden_size, config.embedding_size) == (V, 8, 8)
    assert (config.num_hidden_layers, config.max_position_embeddings) == (0, UNLIMITED_LENGTH)


def test_all_its_parameters_are_the_table():
    counts = parameter_counts(config_from_dict(CONFIG))
    assert counts == {"paper": 8 * V, "stored": 8 * V}


# ---------------------------------------------------------------------------------------------- hidden state


def test_the_hidden_state_of_a_token_is_its_row():
    encoder = static_encoder(random_word_vectors(V, 8))
    rows = pack([[2, 9, 7, 3], [9, 9], [7]], 8)
    (state,) = encoder.hidden_states(*rows.inputs)
    assert torch.equal(state, encoder.embeddings.word.weight[rows.input_ids])
    assert torch.equal(encoder(*rows.inputs), state)


def test_neither_mask_nor_positions_are_needed():
    encoder = static_encoder(random_word_vectors(V, 8))
    ids = torch.tensor([[2, 9, 7]])
    assert torch.equal(encoder(ids), encoder(ids, torch.ones_like(ids), torch.tensor([[5, 0, 1]])))


@pytest.mark.parametrize("layers", [(WORD_EMBEDDINGS,), (0,), (WORD_EMBEDDINGS, 0)])
def test_word_and_layer_0_are_the_same(layers):
    model, plain = tiny_static_model(), tiny_static_model()
    model.layers = layers
    assert np.array_equal(model.encode(SENTENCES), plain.encode(SENTENCES))


def test_random_weights_are_initialized_as_in_bert():
    torch.manual_seed(0)
    table = random_encoder(config_from_dict(CONFIG | {"vocab_size": 5000})).embeddings.word.weight
    assert table.std().item() == pytest.approx(0.02, rel=0.03)


# ------------------------------------------------------------------------------------------------ save, load


def test_a_random_table_takes_the_shape_of_the_file(folder):
    torch.manual_seed(0)
    model = SentenceEncoder.from_pretrained(folder, init="random")
    assert model.encoder.embeddings.word.weight.shape == (V, 8)
    assert not np.allclose(model.encode(SENTENCES), tiny_static_model().encode(SENTENCES))


# ------------------------------------------------------------------------------- training


def test_a_static_model_is_trained_like_any_other(folder):
    model = SentenceEncoder.from_pretrained(folder)
    before = model.encoder.embeddings.word.weight.clone()
    train = Examples((SENTENCES, [*SENTENCES[2:], *SENTENCES[:2]]), [4.5, 2.0, 3.0, 0.5, 1.5])
    recipe = Recipe(epochs=4, batch_size=2, lr=1e-2, precision="fp32")
    losses = [
        epoch.loss
        for epoch in fit(model, training_task(TASKS["stsb"], CosineMSE(), train, train), recipe, seed=0)
    ]
    assert losses[-1] < losses[0]
    assert (model.encoder.embeddings.word.weight - before).abs().max() > 1e-3
