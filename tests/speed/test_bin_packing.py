"""Sentences in rows: each once, side by side, hardly a place left, and the same rows each time."""

import numpy as np

from tmft.speed.bin_packing import bin_pack


def places_taken(lengths: np.ndarray, T: int) -> np.ndarray:
    """How many sentences each place of each row belongs to, (B, T)."""
    row, column = bin_pack(lengths, T)
    taken = np.zeros((row.max() + 1, T), dtype=int)
    for r, c, length in zip(row, column, lengths, strict=True):
        assert c + length <= T
        taken[r, c : c + length] += 1
    return taken


def test_rows_hold_every_sentence_once_and_side_by_side():
    lengths = np.random.default_rng(1).integers(3, 33, size=200)
    taken = places_taken(lengths, 32)
    assert taken.max() == 1 and taken.sum() == lengths.sum()
    assert taken.mean() > 0.95
    assert (np.diff(taken, axis=1) <= 0).all()  # what is left of a row is at its end


def test_a_sentence_goes_where_the_least_room_remains():
    """10 and 9 leave rooms of 2 and 3 in rows of 12: 3 takes the one of 3, 2 that of 2."""
    row, column = bin_pack(np.array([2, 9, 3, 10]), 12)
    assert row.tolist() == [0, 1, 1, 0] and column.tolist() == [10, 0, 9, 0]


def test_sentences_as_long_as_a_row_have_one_each():
    row, column = bin_pack(np.array([7, 7, 7]), 7)
    assert row.tolist() == [0, 1, 2] and column.tolist() == [0, 0, 0]


def test_no_sentences_need_no_row():
    row, column = bin_pack(np.array([], dtype=np.int64), 8)
    assert len(row) == len(column) == 0
