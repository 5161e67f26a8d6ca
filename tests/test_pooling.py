"""Poolings by hand: each sees the tokens of its own sentence, as often as they weigh, and no padding."""

import math

import pytest
import torch

from tmft.errors import InputError
from tmft.packing import PackedBatch
from tmft.pooling import POOLINGS, parse_pooling

# Two sentences in one row of five places: three tokens, one token, and the last place is padding.
HIDDEN = torch.tensor([[[1.0, -1.0], [6.0, -3.0], [5.0, 7.0], [9.0, 8.0], [100.0, 100.0]]])
ROWS = PackedBatch(
    input_ids=torch.ones(1, 5, dtype=torch.long),
    sentence_ids=torch.tensor([[2, 2, 2, 1, 0]]),
    position_ids=torch.tensor([[0, 1, 2, 0, 0]]),
    num_sentences=2,
)
WEIGHTS = torch.tensor([[2.0, 0.0, 1.0, 0.5, 3.0]])
ROOT = math.sqrt(3)
# fmt: off
OF_SENTENCE_2 = {  # pooling: (without weights, with them, with weights that are all 0)
    "mean":                 ([4, 1],               [7 / 3, 5 / 3],       [4, 1]),
    "mean_sqrt_len_tokens": ([12 / ROOT, 3 / ROOT], [7 / ROOT, 5 / ROOT], [12 / ROOT, 3 / ROOT]),
    "weightedmean":         ([28 / 6, 14 / 6],     [17 / 5, 19 / 5],     [4, 1]),
    "cls":                  ([1, -1],              [1, -1],              [1, -1]),
    "lasttoken":            ([5, 7],               [5, 7],               [5, 7]),
    "max":                  ([6, 7],               [6, 7],               [6, 7]),
}
# fmt: on
WITHOUT_PARTS = [name for name, row in POOLINGS.items() if row.pool]  # tests/families/ has the decoder
CASES = {"no weights": None, "weights": WEIGHTS, "weights that are all 0": torch.zeros(1, 5)}


def test_every_pooling_is_worked_by_hand():
    assert OF_SENTENCE_2.keys() == set(WITHOUT_PARTS)


@pytest.mark.parametrize("weights", CASES)
@pytest.mark.parametrize("name", WITHOUT_PARTS)
def test_poolings_by_hand(name, weights):
    pooled = POOLINGS[name].pool(HIDDEN, ROWS, CASES[weights])
    expected = OF_SENTENCE_2[name][list(CASES).index(weights)]
    torch.testing.assert_close(pooled, torch.tensor([[9.0, 8.0], expected]))


@pytest.mark.parametrize("name", WITHOUT_PARTS)
def test_a_pooling_has_the_width_of_its_row(name):
    assert POOLINGS[name].pool(HIDDEN, ROWS, None).shape == (2, 2 * POOLINGS[name].width)


@pytest.mark.parametrize("name", WITHOUT_PARTS)
def test_gradients_reach_each_sentence_and_no_padding(name):
    hidden = HIDDEN.clone().requires_grad_()
    POOLINGS[name].pool(hidden, ROWS, None).sum().backward()
    reached = hidden.grad[0].any(-1)
    assert reached[:3].any()
    assert reached[3]
    assert not reached[4]


def test_several_poolings_are_joined_by_a_plus_in_the_given_order():
    assert parse_pooling("max+mean") == [POOLINGS["max"], POOLINGS["mean"]]
    assert parse_pooling("mean+max") == [POOLINGS["mean"], POOLINGS["max"]]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("meen", "mean"), ("max+meen", "mean"), ("last_token", "lasttoken"), ("weighted_mean", "weightedmean")],
)
def test_an_unknown_pooling_is_one_line_that_names_the_nearest(name, nearest):
    with pytest.raises(InputError) as error:
        parse_pooling(name)
    assert str(error.value) == (
        f"pooling {name!r}: choose one of mean, cls, max, mean_sqrt_len_tokens, weightedmean, lasttoken, "
        f"decoder, or several as in max+mean; did you mean {nearest}?"
    )


@pytest.mark.parametrize("name", ["attention", "", "mean+"])
def test_what_is_like_no_pooling_is_refused_without_a_guess(name):
    with pytest.raises(InputError, match="choose one of mean, .* or several as in max\\+mean$"):
        parse_pooling(name)
