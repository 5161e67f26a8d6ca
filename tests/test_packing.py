"""Rows without padding: every sentence is there once, whole, with its own number and its own positions."""

import numpy as np
import pytest
import torch

from tmft.packing import pack, pack_arrays

SENTENCES = [[1, 2, 3], [4], [5] * 60, [6] * 10, [7, 8], [9] * 64]


@pytest.mark.parametrize("number", range(1, len(SENTENCES) + 1))
def test_packing_loses_no_token_and_restarts_the_positions(number):
    rows = pack(SENTENCES, width=64)
    places = rows.sentence_ids == number
    assert rows.input_ids[places].tolist() == SENTENCES[number - 1]
    assert rows.position_ids[places].tolist() == list(range(len(SENTENCES[number - 1])))


def test_what_is_left_of_a_row_is_padding():
    rows = pack(SENTENCES, width=64, pad_id=99)
    padding = rows.sentence_ids == 0
    assert padding.sum() == rows.input_ids.numel() - sum(map(len, SENTENCES))
    assert (rows.input_ids[padding] == 99).all()


def test_the_sentences_are_counted():
    assert pack(SENTENCES).num_sentences == len(SENTENCES)


def test_rows_are_filled_longest_first_where_the_least_room_is_left():
    rows = pack(SENTENCES, width=64)
    held = [row[row > 0].unique_consecutive().tolist() for row in rows.sentence_ids]
    assert held == [[6], [3, 1, 2], [4, 5]]  # 64 alone; 60 + 3 + 1; 10 + 2


def test_a_long_sentence_widens_the_rows_to_a_multiple():
    assert pack([[1] * 130, [2]], width=64).input_ids.shape == (1, 192)


def test_random_batches_fill_more_than_nine_tenths_of_the_rows():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 25, (64,), generator=generator).tolist()
    rows = pack([[1] * length for length in lengths])
    assert sum(lengths) / rows.input_ids.numel() > 0.9


def test_the_place_of_each_token_is_told():
    tokens = np.arange(1, 18)
    rows, places = pack_arrays(tokens, np.array([3, 9, 5]), T=10, pad_id=0)
    assert rows.input_ids.flatten()[torch.from_numpy(places)].tolist() == tokens.tolist()


def test_an_encoder_is_called_with_tokens_sentences_and_positions():
    rows = pack(SENTENCES)
    for given, expected in zip(
        rows.inputs, (rows.input_ids, rows.sentence_ids, rows.position_ids), strict=True
    ):
        assert given is expected
