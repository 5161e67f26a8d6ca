"""Rows without padding: every sentence is there once, and pooling sees nothing but its own tokens."""

import pytest
import torch

from tmft.rows import POOLINGS, Rows, pack

SENTENCES = [[1, 2, 3], [4], [5] * 60, [6] * 10, [7, 8], [9] * 64]


def test_packing_loses_nothing_and_restarts_the_positions():
    rows = pack(SENTENCES, width=64, pad_id=99)
    for number, sentence in enumerate(SENTENCES, start=1):
        places = rows.sentence_ids == number
        assert rows.input_ids[places].tolist() == sentence
        assert rows.position_ids[places].tolist() == list(range(len(sentence)))
    assert (rows.input_ids[rows.sentence_ids == 0] == 99).all() and rows.num_sentences == len(SENTENCES)


def test_rows_are_filled_first_fit_longest_first():
    rows = pack(SENTENCES, width=64)
    assert rows.sentence_ids[:, 0].tolist() == [6, 3, 4]  # 64 alone; 60 + 3 + 1; 10 + 2
    assert rows.sentence_ids[1].unique().tolist() == [1, 2, 3]


def test_a_long_sentence_widens_the_rows_to_a_multiple():
    assert pack([[1] * 130, [2]], width=64).input_ids.shape == (1, 192)


def test_random_batches_fill_more_than_nine_tenths_of_the_rows():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 25, (64,), generator=generator).tolist()
    rows = pack([[1] * length for length in lengths])
    assert sum(lengths) / rows.input_ids.numel() > 0.9


# Two sentences in one row of five places: tokens 1, 3 and 5, and the last place is padding.
HIDDEN = torch.tensor([[[1.0, -1.0], [3.0, -3.0], [5.0, 7.0], [9.0, 9.0], [100.0, 100.0]]])
ROWS = Rows(
    input_ids=torch.ones(1, 5, dtype=torch.long),
    sentence_ids=torch.tensor([[2, 2, 2, 1, 0]]),
    position_ids=torch.tensor([[0, 1, 2, 0, 0]]),
    num_sentences=2,
)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [("mean", [[9, 9], [3, 1]]), ("cls", [[9, 9], [1, -1]]), ("max", [[9, 9], [5, 7]])],
)
def test_poolings_by_hand(pooling, expected):
    assert POOLINGS[pooling](HIDDEN, ROWS).tolist() == expected


@pytest.mark.parametrize("pooling", POOLINGS)
def test_poolings_have_gradients_on_real_tokens_only(pooling):
    hidden = HIDDEN.clone().requires_grad_()
    POOLINGS[pooling](hidden, ROWS).sum().backward()
    assert hidden.grad[0, :4].any() and not hidden.grad[0, 4].any()
