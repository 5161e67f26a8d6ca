"""Heads: numbers by hand, losses on the scale of the labels, dropout where it is asked for."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tmft.data import TASKS, Task
from tmft.datasets.cs224n_tasks import COURSE
from tmft.datasets.task_lookup import check_task, get_task
from tmft.errors import InputError
from tmft.losses.heads import HEADS, Cosine, Difference, DifferenceCosine, DifferenceCosine01, Dot, Linear

U, V = torch.tensor([[3.0, 0.0], [1.0, 1.0]]), torch.tensor([[2.0, 0.0], [1.0, -1.0]])  # cosines 1 and 0
STS, QUORA = COURSE["cs224n-sts"], COURSE["quora"]


def identity(kind, task=STS):
    """A head whose linear layers change nothing."""
    head = kind(2, task)
    with torch.no_grad():
        for layer in (head.first, head.second):
            layer.weight.copy_(torch.eye(2))
            layer.bias.zero_()
    return head


def test_dot_product_and_cosine_by_hand():
    assert identity(Dot).logits(U, V).tolist() == [6.0, 0.0]
    assert identity(Cosine).logits(U, V).tolist() == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize(
    ("kind", "beside"), [(Difference, []), (DifferenceCosine, [1.0]), (DifferenceCosine01, [1.0])]
)
def test_the_features_of_a_pair(kind, beside):
    """u, v, |u - v|, and what stands beside them, of the first pair."""
    head = kind(2, STS)
    features = torch.tensor([3.0, 0.0, 2.0, 0.0, 1.0, 0.0, *beside])
    expected = F.linear(features, head.head.weight, head.head.bias).item()
    assert head.logits(U, V)[0].item() == pytest.approx(expected, abs=1e-6)


def test_a_cosine_in_0_to_1():
    assert DifferenceCosine01(2, STS).beside(U, V)[0].tolist() == [[1.0], [0.5]]


def test_scores_are_learnt_on_their_own_scale():
    """Targets 1 and 0.2 are scores 5 and 1; the dot products are 6 and 0."""
    target = torch.tensor([1.0, 0.2])
    assert identity(Dot)(U, V, target).item() == pytest.approx((1 + 1) / 2)
    np.testing.assert_allclose(identity(Dot).predict(U, V), [6, 0])


def test_scaled_numbers_are_within_the_labels():
    scaled = replace(STS, min_score=1.0, settings={"scaled": True})
    expected = [1 + 4 / (1 + math.exp(-6)), 3.0]
    np.testing.assert_allclose(identity(Dot, scaled).predict(U, V), expected, rtol=1e-6)
    np.testing.assert_allclose(identity(Cosine, scaled).predict(U, V), [5.0, 3.0], rtol=1e-6)


def test_two_classes_are_told_by_the_sign_of_the_logit():
    head = identity(Dot, QUORA)
    expected = (math.log(1 + math.exp(-6)) + math.log(2)) / 2
    assert head(U, V, torch.tensor([1, 0])).item() == pytest.approx(expected)
    assert head.predict(U, V).tolist() == [1, 0]


def test_classes_of_one_text():
    head = Linear(2, COURSE["sst5"])
    expected = F.cross_entropy(F.linear(U, head.head.weight, head.head.bias), torch.tensor([4, 0]))
    torch.testing.assert_close(head(U, torch.tensor([4, 0])), expected)
    assert head.predict(U).shape == (2,)


@pytest.mark.parametrize("name", HEADS)
def test_dropout_is_there_in_training_alone(name):
    task = replace(COURSE["sst5"] if name == "linear" else STS, settings={"dropout": 0.5})
    torch.manual_seed(0)
    head = HEADS[name](64, task)
    texts = [torch.randn(3, 64) for _ in range(1 if name == "linear" else 2)]
    assert not head.train().logits(*texts).equal(head.logits(*texts)) or name != "linear"
    number = head.logits if name == "linear" else head.number
    assert not number(*texts).equal(number(*texts))
    head.eval()
    assert number(*texts).equal(number(*texts))


def test_late_dropout_leaves_the_cosine_feature_whole_or_drops_it():
    """Behind the features a dropped cosine is 0; before them it is never 0, and no feature is."""
    torch.manual_seed(0)
    u, v = torch.rand(500, 64) + 0.1, torch.rand(500, 64) + 0.1
    seen = []
    for late in (False, True):
        head = DifferenceCosine(64, replace(STS, settings={"dropout": 0.3, "late": late})).train()
        head.head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        head.number(u, v)
    early, late = (features[:, -1] for features in seen)
    assert (early != 0).all() and 0.2 < (late == 0).float().mean() < 0.4


@pytest.mark.parametrize("dropout", [-0.1, 1.0, math.nan])
def test_a_dropout_that_cannot_be_is_one_line(dropout):
    with pytest.raises(InputError, match=f"dropout {dropout:g}: choose 0 or more, below 1"):
        get_task("cs224n-sts", objective="dot", settings={"dropout": dropout})


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (replace(TASKS["sicke"], objective="dot", metric="accuracy"), "a cosine cannot tell 3 classes"),
        (replace(COURSE["sst5"], objective="dot"), "it takes 2 texts, the task has 1"),
        (replace(STS, objective="linear"), "it takes 1 texts, the task has 2"),
        (
            replace(QUORA, metric="f1"),
            "metric f1: with objective dot on this task choose f1_macro or accuracy",
        ),
        (replace(STS, objective="cosine_mse", settings={"dropout": 0.1}), "dropout: .* cosine_mse has none"),
    ],
)
def test_what_does_not_go_together_is_one_line(task: Task, message):
    with pytest.raises(InputError, match=message):
        check_task(task)
