"""Objectives: loss, prediction and gradients by hand, and a head that is saved with the run."""

import math

import numpy as np
import pytest
import torch

from tmft.data import TASKS
from tmft.errors import InputError
from tmft.objectives import OBJECTIVES, CosineBCE, CosineMSE, Softmax, load_objective, save_head

U = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
V = torch.tensor([[2.0, 0.0], [0.0, 3.0]])  # cosines 1 and 0


def test_mean_squared_error_of_the_cosine():
    assert CosineMSE()(U, V, torch.tensor([0.5, 1.0])).item() == pytest.approx((0.25 + 1) / 2)
    np.testing.assert_allclose(CosineMSE().predict(U, V), [1, 0])


def test_the_cosine_is_the_logit_of_a_binary_cross_entropy():
    """-log sigmoid(1) for the pair of class 1, -log(1 - sigmoid(0)) for the pair of class 0."""
    loss = CosineBCE()(U, V, torch.tensor([1, 0]))
    assert loss.item() == pytest.approx((math.log(1 + math.exp(-1)) + math.log(2)) / 2)
    np.testing.assert_allclose(CosineBCE().predict(U, V), [1, 0])


def test_softmax_over_u_v_and_their_difference():
    """Rows (1, 0, 2, 0, 1, 0) and (1, 0, 0, 3, 1, 3); the head reads |u - v|: first number, second number."""
    softmax = Softmax(hidden_size=2, classes=2)
    with torch.no_grad():
        softmax.head.weight.copy_(torch.tensor([[0, 0, 0, 0, 1.0, 0], [0, 0, 0, 0, 0, 1.0]]))
        softmax.head.bias.zero_()
    torch.testing.assert_close(softmax.logits(U, V), torch.tensor([[1.0, 0.0], [1.0, 3.0]]))
    expected = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(-2))) / 2
    assert softmax(U, V, torch.tensor([0, 1])).item() == pytest.approx(expected)
    assert softmax.predict(U, V).tolist() == [0, 1]


@pytest.mark.parametrize("name", ["sicke", "mrpc", "stsb"])
def test_gradients_reach_both_embeddings_and_the_head(name):
    u, v = (torch.randn(4, 6, requires_grad=True) for _ in range(2))
    objective = OBJECTIVES[TASKS[name].objective](6, TASKS[name])
    objective(u, v, torch.tensor([0, 1, 1, 0])).backward() if name != "stsb" else objective(
        u, v, torch.rand(4)
    ).backward()
    for weight in (u, v, *objective.parameters()):
        assert weight.grad.abs().sum() > 0


def test_a_head_comes_back_as_it_was_saved(tmp_path):
    learnt = OBJECTIVES["softmax"](2, TASKS["sicke"])
    save_head(learnt, tmp_path)
    again = load_objective(TASKS["sicke"], 2, tmp_path)
    assert torch.equal(again.logits(U, V), learnt.logits(U, V)) and learnt.logits(U, V).shape == (2, 3)


def test_what_has_no_head_leaves_no_file_and_needs_none(tmp_path):
    save_head(CosineBCE(), tmp_path)
    assert not list(tmp_path.iterdir()) and isinstance(load_objective(TASKS["mrpc"], 2, tmp_path), CosineBCE)


def test_a_head_that_is_absent_or_of_another_model(tmp_path):
    with pytest.raises(InputError, match="has no head.safetensors, and softmax needs a trained head: name a"):
        load_objective(TASKS["sicke"], 2, tmp_path)
    save_head(Softmax(2, 4), tmp_path)
    with pytest.raises(
        InputError, match=r"has head.weight of shape \(4, 6\) instead of \(3, 6\): it belongs"
    ):
        load_objective(TASKS["sicke"], 2, tmp_path)
