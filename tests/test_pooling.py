"""Poolings worked by hand: each sees the tokens of its own sentence, with their weights, and no padding."""

import math

import numpy as np
import pytest
import torch

from tmft.errors import InputError
from tmft.packing import PackedBatch, pack_arrays
from tmft.pooling import POOLINGS, parse_pooling

# Two sentences in one row of five positions: three tokens, one token, and padding at the end.
HIDDEN = torch.tensor([[[1.0, -1.0], [6.0, -3.0], [5.0, 7.0], [9.0, 8.0], [100.0, 100.0]]])
BATCH = PackedBatch(
    input_ids=torch.ones(1, 5, dtype=torch.long),
    attention_mask=torch.tensor([[2, 2, 2, 1, 0]]),
    position_ids=torch.tensor([[0, 1, 2, 0, 0]]),
    num_sentences=2,
)
WEIGHTS = torch.tensor([[2.0, 0.0, 1.0, 0.5, 3.0]])
SQRT_3 = math.sqrt(3)
# fmt: off
EXPECTED = {  # pooling: vector of sentence 2 (without weights, with WEIGHTS, with weights that are all 0)
    "mean":                 ([4, 1],               [7 / 3, 5 / 3],       [4, 1]),
    "mean_sqrt_len_tokens": ([12 / SQRT_3, 3 / SQRT_3], [7 / SQRT_3, 5 / SQRT_3], [12 / SQRT_3, 3 / SQRT_3]),
    "weightedmean":         ([28 / 6, 14 / 6],     [17 / 5, 19 / 5],     [4, 1]),
    "cls":                  ([1, -1],              [1, -1],              [1, -1]),
    "lasttoken":            ([5, 7],               [5, 7],               [5, 7]),
    "max":                  ([6, 7],               [6, 7],               [6, 7]),
}
# fmt: on
PARAMETER_FREE = [name for name, entry in POOLINGS.items() if entry.pool]  # tests/models/ has the decoder
CASES = {"no weights": None, "weights": WEIGHTS, "weights that are all 0": torch.zeros(1, 5)}


def test_every_pooling_is_worked_by_hand():
    assert EXPECTED.keys() == set(PARAMETER_FREE)


@pytest.mark.parametrize("weights", CASES)
@pytest.mark.parametrize("name", PARAMETER_FREE)
def test_poolings_by_hand(name, weights):
    pooled = POOLINGS[name].pool(HIDDEN, BATCH, CASES[weights])
    expected = EXPECTED[name][list(CASES).index(weights)]
    torch.testing.assert_close(pooled, torch.tensor([[9.0, 8.0], expected]))


def test_a_plus_joins_several_poolings_in_the_given_order():
    assert parse_pooling("max+mean") == [POOLINGS["max"], POOLINGS["mean"]]
    assert parse_pooling("mean+max") == [POOLINGS["mean"], POOLINGS["max"]]


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("meen", "; did you mean mean?"),
        ("max+meen", "; did you mean mean?"),
        ("last_token", "; did you mean lasttoken?"),
        ("weighted_mean", "; did you mean weightedmean?"),
        *((name, "") for name in ("attention", "", "mean+")),
    ],
)
def test_an_unknown_pooling_is_an_error_that_suggests_one_if_it_is_near(name, suggestion):
    with pytest.raises(InputError) as error:
        parse_pooling(name)
    assert str(error.value) == (
        f"pooling {name!r}: choose one of mean, cls, max, mean_sqrt_len_tokens, weightedmean, lasttoken, "
        f"pooler, decoder, or several as in max+mean{suggestion}"
    )


@pytest.mark.parametrize("pooling", ["mean", "weightedmean", "mean_sqrt_len_tokens"])
def test_the_mean_of_a_sentence_with_its_own_row_is_computed_from_this_row_alone(pooling):
    lengths = np.array([3, 8, 5])
    batch, _ = pack_arrays(np.arange(16), lengths, 8, pad_id=0, one_row_each=True)
    hidden = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0))
    expected = POOLINGS[pooling].pool(hidden, batch, None)
    padded = PackedBatch(batch.input_ids, batch.attention_mask, batch.position_ids, 3)
    torch.testing.assert_close(expected, POOLINGS[pooling].pool(hidden, padded, None))
    hidden[1] = torch.inf  # 0 * inf would be NaN in a product over the positions of all sentences
    pooled = POOLINGS[pooling].pool(hidden, batch, None)
    assert torch.equal(pooled[[0, 2]], expected[[0, 2]])
