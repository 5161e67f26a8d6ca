"""Bin packing: every sentence is in one row, none overlap, and hardly a column stays free."""

import numpy as np

from tmft.speed.bin_packing import bin_pack


def sentences_per_position(lengths: np.ndarray, T: int) -> np.ndarray:
    """The number of sentences at each position of each row, (B, T)."""
    row, column = bin_pack(lengths, T)
    taken = np.zeros((row.max() + 1, T), dtype=int)
    for r, c, length in zip(row, column, lengths, strict=True):
        assert c + length <= T
        taken[r, c : c + length] += 1
    return taken


def test_rows_hold_every_sentence_once_and_without_overlap():
    lengths = np.random.default_rng(1).integers(3, 33, size=200)
    taken = sentences_per_position(lengths, 32)
    assert taken.max() == 1 and taken.sum() == lengths.sum()
    assert taken.mean() > 0.95
    assert (np.diff(taken, axis=1) <= 0).all()  # the free columns of a row are at its end


def test_a_sentence_goes_into_the_fullest_row_where_it_fits():
    """In rows of 12, sentences of 10 and 9 tokens leave 2 and 3 columns: 3 goes after 9, 2 after 10."""
    row, column = bin_pack(np.array([2, 9, 3, 10]), 12)
    assert row.tolist() == [0, 1, 1, 0] and column.tolist() == [10, 0, 9, 0]
