"""Objectives: losses, predictions and gradients computed by hand, and heads that are saved with the run."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tmft.errors import InputError
from tmft.loss import CosineBCE, CosineMSE
from tmft.losses.heads import SoftmaxLoss
from tmft.losses.objectives import OBJECTIVES
from tmft.metrics import cosines
from tmft.runs.predictor import load_objective, save_heads
from tmft.tasks import TASKS

U = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
V = torch.tensor([[2.0, 0.0], [0.0, 3.0]])  # cosines 1 and 0
TWO_CLASSES = replace(TASKS["sicke"], classes={"no": 0, "yes": 1})


@pytest.fixture
def softmax() -> SoftmaxLoss:
    """The head uses only |u - v|: the logit of class 0 is its first component, that of class 1 its second."""
    softmax = SoftmaxLoss(2, TWO_CLASSES)
    with torch.no_grad():
        softmax.head.weight.copy_(torch.tensor([[0, 0, 0, 0, 1.0, 0], [0, 0, 0, 0, 0, 1.0]]))
        softmax.head.bias.zero_()
    return softmax


# ------------------------------------------------------------------------------------------------- by hand


def test_mean_squared_error_of_the_cosine():
    assert CosineMSE()(U, V, torch.tensor([0.5, 1.0])).item() == pytest.approx((0.25 + 1) / 2)


def test_the_cosine_is_the_logit_of_a_binary_cross_entropy():
    """-log sigmoid(1) for the pair of class 1, -log(1 - sigmoid(0)) for the pair of class 0."""
    loss = CosineBCE()(U, V, torch.tensor([1, 0]))
    assert loss.item() == pytest.approx((math.log(1 + math.exp(-1)) + math.log(2)) / 2)


@pytest.mark.parametrize("objective", [CosineMSE, CosineBCE])
def test_both_predict_the_cosine(objective):
    np.testing.assert_allclose(objective().predict(U, V), [1, 0])


def test_softmax_is_the_cross_entropy_of_logits_of_u_v_and_their_difference(softmax):
    """The features are (1, 0, 2, 0, 1, 0) and (1, 0, 0, 3, 1, 3)."""
    torch.testing.assert_close(softmax.logits(U, V), torch.tensor([[1.0, 0.0], [1.0, 3.0]]))
    expected = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(-2))) / 2
    assert softmax(U, V, torch.tensor([0, 1])).item() == pytest.approx(expected)
    assert softmax.predict(U, V).tolist() == [0, 1]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_reach_both_embeddings_and_the_head(name):
    torch.manual_seed(0)
    u, v = (torch.randn(4, 6, requires_grad=True) for _ in range(2))
    objective = OBJECTIVES[name](6, TASKS["sicke"])
    target = torch.randn(4, 6) if name == "distillation" else torch.tensor([0, 1, 1, 0])
    texts = (u, v)[: objective.allowed_num_texts[0]]
    objective(*texts, target if objective.prediction_type == "class" else target / 2).backward()
    for weight in (*texts, *objective.parameters()):
        assert weight.grad.abs().sum() > 0


# ------------------------------------------------------------------------------------------------- cosines


def test_cosines_by_hand():
    np.testing.assert_allclose(cosines(U, U + V), [1, 1 / math.sqrt(10)], atol=1e-9)


def test_cosines_of_several_layers_at_once_equal_those_of_each_layer():
    u, v = (torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(n)) for n in range(2))
    all_layers = cosines(u, v)
    assert all_layers.shape == (3, 5)
    np.testing.assert_array_equal(all_layers, [cosines(a, b) for a, b in zip(u, v, strict=True)])


def test_pairs_of_equal_sentences_tie():
    u = torch.randn(500, 24, generator=torch.Generator().manual_seed(0))
    assert (cosines(u, u * 1.0000001) == 1).all()


# --------------------------------------------------------------------------------------------------- heads


def test_a_saved_head_is_loaded_unchanged(tmp_path):
    trained = OBJECTIVES["softmax"](2, TASKS["sicke"])
    save_heads({"": trained}, tmp_path)
    loaded = load_objective(TASKS["sicke"], 2, tmp_path)
    assert torch.equal(loaded.logits(U, V), trained.logits(U, V))


def test_an_objective_without_a_head_writes_and_needs_no_file(tmp_path):
    save_heads({"": CosineBCE()}, tmp_path)
    assert not list(tmp_path.iterdir())
    assert isinstance(load_objective(TASKS["mrpc"], 2, tmp_path), CosineBCE)


def test_a_head_of_another_shape_is_an_error(tmp_path):
    four_classes = replace(TASKS["sicke"], classes=dict.fromkeys("abcd"))
    save_heads({"": SoftmaxLoss(2, four_classes)}, tmp_path)
    wrong = r"head.weight: .*\[4, 6\].*\[3, 6\].*: name a run"
    with pytest.raises(InputError, match=wrong):
        load_objective(TASKS["sicke"], 2, tmp_path)
