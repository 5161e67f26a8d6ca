"""The family of word tables: its size is its whole configuration, and it needs no mask and no positions."""

import torch
from conftest import VOCABULARY

from tmft.encoder import UNLIMITED_LENGTH
from tmft.models.families import config_from_dict, parameter_counts
from tmft.training_free.static_models import random_word_vectors, static_encoder

V = len(VOCABULARY)
CONFIG = {"model_type": "static", "vocab_size": V, "hidden_size": 8}


def test_a_config_needs_only_the_size():
    config = config_from_dict(CONFIG)
    assert (config.vocab_size, config.hidden_size, config.embedding_size) == (V, 8, 8)
    assert (config.num_hidden_layers, config.max_position_embeddings) == (0, UNLIMITED_LENGTH)


def test_all_its_parameters_are_the_table():
    counts = parameter_counts(config_from_dict(CONFIG))
    assert counts == {"paper": 8 * V, "stored": 8 * V}


def test_neither_mask_nor_positions_are_needed():
    encoder = static_encoder(random_word_vectors(V, 8))
    ids = torch.tensor([[2, 9, 7]])
    assert torch.equal(encoder(ids), encoder(ids, torch.ones_like(ids), torch.tensor([[5, 0, 1]])))
