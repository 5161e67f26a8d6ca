"""The family of word tables: hidden state 0 of a token is its row, whatever stands beside it."""

import pytest
import torch
from conftest import VOCABULARY

from tmft.encoder import UNLIMITED_LENGTH
from tmft.models.families import config_from_dict, parameter_counts, random_encoder
from tmft.packing import pack
from tmft.training_free.static_models import random_word_vectors, static_encoder

V = len(VOCABULARY)
CONFIG = {"model_type": "static", "vocab_size": V, "hidden_size": 8}


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


def test_random_weights_are_initialized_as_in_bert():
    torch.manual_seed(0)
    table = random_encoder(config_from_dict(CONFIG | {"vocab_size": 5000})).embeddings.word.weight
    assert table.std().item() == pytest.approx(0.02, rel=0.03)
