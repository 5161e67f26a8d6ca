"""Losses, predictions and gradients equal those computed by hand; dropout and saved heads are tested, too."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tmft.datasets.task_lookup import validate_task
from tmft.errors import InputError
from tmft.loss import CosineBCE, CosineMSE
from tmft.losses.heads import (
    ConcatCosine01Head,
    ConcatCosineHead,
    ConcatHead,
    CosineHead,
    DotProductHead,
    HeadConfig,
    SingleTextClassifier,
    SoftmaxLoss,
)
from tmft.losses.objectives import OBJECTIVES
from tmft.metrics import cosines
from tmft.runs.predictor import load_objective, save_heads
from tmft.tasks import TASKS, Task

U, V = torch.tensor([[3.0, 0.0], [1.0, 1.0]]), torch.tensor([[2.0, 0.0], [1.0, -1.0]])  # cosines 1 and 0
STS, QUORA, SICK = TASKS["cs224n-sts"], TASKS["quora"], TASKS["sicke"]
PAIR_HEADS = [name for name, one in OBJECTIVES.items() if one.config_class is HeadConfig]
PAIR_HEADS.remove("single_text_head")


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# ------------------------------------------------------------------------------------------------- by hand


def test_mean_squared_error_of_the_cosine():
    assert CosineMSE()(U, V, torch.tensor([0.5, 1.0])).item() == pytest.approx((0.25 + 1) / 2)
    np.testing.assert_allclose(CosineMSE().predict(U, V), [1, 0], atol=1e-9)


def test_the_cosine_is_the_logit_of_a_binary_cross_entropy():
    """-log sigmoid(1) for the pair of class 1, -log(1 - sigmoid(0)) for the pair of class 0."""
    expected = -(math.log(sigmoid(1)) + math.log(1 - sigmoid(0))) / 2
    assert CosineBCE()(U, V, torch.tensor([1, 0])).item() == pytest.approx(expected)
    np.testing.assert_allclose(CosineBCE().predict(U, V), [1, 0], atol=1e-9)


def test_softmax_is_the_cross_entropy_of_logits_of_u_v_and_their_difference():
    """The head uses only |u - v|, (1, 0) and (0, 2): each of its components is the logit of a class."""
    softmax = SoftmaxLoss(2, replace(SICK, classes={"no": 0, "yes": 1}))
    with torch.no_grad():
        softmax.head.weight.copy_(torch.eye(6)[4:])
        softmax.head.bias.zero_()
    torch.testing.assert_close(softmax.logits(U, V), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    expected = -(math.log(sigmoid(1)) + math.log(sigmoid(2))) / 2
    assert softmax(U, V, torch.tensor([0, 1])).item() == pytest.approx(expected)
    assert softmax.predict(U, V).tolist() == [0, 1]


def identity(kind, task=STS):
    """A head whose two linear layers are the identity."""
    head = kind(2, task)
    with torch.no_grad():
        for layer in (head.first, head.second):
            layer.weight.copy_(torch.eye(2))
            layer.bias.zero_()
    return head


def test_dot_product_and_cosine_by_hand():
    assert identity(DotProductHead).logits(U, V).tolist() == [6.0, 0.0]
    assert identity(CosineHead).logits(U, V).tolist() == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize(
    ("kind", "extra"), [(ConcatHead, []), (ConcatCosineHead, [1.0]), (ConcatCosine01Head, [1.0])]
)
def test_the_features_of_a_pair_are_u_v_their_difference_and_the_extra_ones(kind, extra):
    """For the first pair."""
    head = kind(2, STS)
    features = torch.tensor([3.0, 0.0, 2.0, 0.0, 1.0, 0.0, *extra])
    expected = F.linear(features, head.head.weight, head.head.bias).item()
    assert head.logits(U, V)[0].item() == pytest.approx(expected, abs=1e-6)


def test_the_cosine_feature_can_be_rescaled_to_0_to_1():
    assert ConcatCosine01Head(2, STS).extra_features(U, V)[0].tolist() == [[1.0], [0.5]]


def test_scores_are_trained_on_the_scale_of_the_labels():
    """Targets 1 and 0.2 are scores 5 and 1; the dot products are 6 and 0."""
    target = torch.tensor([1.0, 0.2])
    assert identity(DotProductHead)(U, V, target).item() == pytest.approx((1 + 1) / 2)
    np.testing.assert_allclose(identity(DotProductHead).predict(U, V), [6, 0])


def test_rescaled_scores_are_within_the_range_of_the_labels():
    rescaled = replace(STS, min_score=1.0, objective_args={"rescale_to_labels": True})
    expected = [1 + 4 * sigmoid(6), 3.0]
    np.testing.assert_allclose(identity(DotProductHead, rescaled).predict(U, V), expected, rtol=1e-6)
    np.testing.assert_allclose(identity(CosineHead, rescaled).predict(U, V), [5.0, 3.0], rtol=1e-6)


def test_with_two_classes_the_sign_of_the_logit_is_the_predicted_class():
    head = identity(DotProductHead, QUORA)
    expected = -(math.log(sigmoid(6)) + math.log(1 - sigmoid(0))) / 2
    assert head(U, V, torch.tensor([1, 0])).item() == pytest.approx(expected)
    assert head.predict(U, V).tolist() == [1, 0]


def test_linear_head_classifies_single_texts():
    head = SingleTextClassifier(2, TASKS["sst5"])
    expected = F.cross_entropy(F.linear(U, head.head.weight, head.head.bias), torch.tensor([4, 0]))
    torch.testing.assert_close(head(U, torch.tensor([4, 0])), expected)
    assert head.predict(U).shape == (2,)


def test_dropout_of_the_head_of_a_single_text_is_active_only_in_training():
    head = SingleTextClassifier(64, replace(TASKS["sst5"], objective_args={"dropout": 0.5}))
    text = torch.randn(3, 64)
    assert not head.train().logits(text).equal(head.logits(text))
    assert head.eval().logits(text).equal(head.logits(text))


@pytest.mark.parametrize("name", PAIR_HEADS)
@pytest.mark.parametrize("after_features", [False, True])
def test_dropout_and_a_linear_layer_come_before_every_head_of_a_pair(name, after_features):
    """Or the dropout is after the features: it zeroes some of what W_t gets, of the cosine feature, too."""
    torch.manual_seed(0)
    u, v = torch.rand(500, 64) + 0.1, torch.rand(500, 64) + 0.1
    config = {"dropout": 0.3, "dropout_after_features": after_features}
    head, inputs = OBJECTIVES[name](64, replace(STS, objective_args=config)), {}
    for layer, linear in head.named_children():
        linear.register_forward_pre_hook(lambda _, x, layer=layer: inputs.update({layer: x[0]}))
    head.eval()
    expected = head.logits(head.first(u), head.second(v))
    torch.testing.assert_close(head.predict_score(u, v), expected)
    head.train().predict_score(u, v)
    dropped = {layer: (x == 0).float().mean(0) for layer, x in inputs.items()}
    for layer, given in (("first", u), ("second", v)):
        if after_features:
            assert inputs[layer] is given
        else:
            assert 0.25 < dropped[layer].mean() < 0.35
    if "head" in inputs:
        assert (0.2 < dropped["head"][-1] < 0.4) if after_features else not dropped["head"].any()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_reach_both_embeddings_and_the_head(name):
    torch.manual_seed(0)
    u, v = (torch.randn(4, 6, requires_grad=True) for _ in range(2))
    objective = OBJECTIVES[name](6, SICK)
    target = torch.randn(4, 6) if name == "distillation" else torch.tensor([0, 1, 1, 0])
    texts = (u, v)[: objective.allowed_num_texts[0]]
    objective(*texts, target if objective.prediction_type == "class" else target / 2).backward()
    for weight in (*texts, *objective.parameters()):
        assert weight.grad.abs().sum() > 0


# ------------------------------------------------------------------------------------------------- cosines


def test_cosines_of_several_layers_at_once_equal_those_of_each_layer():
    np.testing.assert_allclose(cosines(U, U + V), [1, 1 / math.sqrt(2)], atol=1e-9)
    u, v = (torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(n)) for n in range(2))
    np.testing.assert_array_equal(cosines(u, v), [cosines(a, b) for a, b in zip(u, v, strict=True)])


def test_pairs_of_equal_sentences_tie():
    u = torch.randn(500, 24, generator=torch.Generator().manual_seed(0))
    assert (cosines(u, u * 1.0000001) == 1).all()


# ------------------------------------------------------------------------------------------------ saved heads


def test_a_saved_head_is_loaded_unchanged_and_one_of_another_shape_is_an_error(tmp_path):
    trained = OBJECTIVES["softmax"](2, SICK)
    save_heads({"": trained}, tmp_path)
    assert torch.equal(load_objective(SICK, 2, tmp_path).logits(U, V), trained.logits(U, V))
    save_heads({"": SoftmaxLoss(2, replace(SICK, classes=dict.fromkeys("abcd")))}, tmp_path)
    with pytest.raises(InputError, match=r"head.weight: .*\[4, 6\].*\[3, 6\].*: name a run"):
        load_objective(SICK, 2, tmp_path)


def test_an_objective_without_a_head_writes_and_needs_no_file(tmp_path):
    save_heads({"": CosineBCE()}, tmp_path)
    assert not list(tmp_path.iterdir())
    assert isinstance(load_objective(TASKS["mrpc"], 2, tmp_path), CosineBCE)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (replace(SICK, objective="dot_product_head", metric="accuracy"), "cannot separate 3 class"),
        (replace(TASKS["sst5"], objective="dot_product_head"), "takes 2 texts, but the task has 1"),
        (replace(STS, objective="single_text_head"), "takes 1 texts, but the task has 2"),
        (replace(QUORA, metric="f1"), "f1 does not fit objective dot_product_head on this task: choose"),
        (replace(STS, objective="cosine_mse", objective_args={"dropout": 0.1}), "dropout has no effect"),
    ],
)
def test_a_task_and_an_objective_that_do_not_fit_are_one_line(task: Task, message):
    with pytest.raises(InputError, match=message):
        validate_task(task)
