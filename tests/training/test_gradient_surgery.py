"""Gradients of several tasks: their sum is that of the single ones, PCGrad by hand."""

from types import SimpleNamespace

import pytest
import torch
from conftest import WITHOUT_DROPOUT, fit_with_options, tiny_model
from test_multitask import training_tasks
from torch import nn

from tmft.packing import pack
from tmft.runs.run_config import FineTuningRecipe
from tmft.training.gradient_surgery import GradientCosines, PCGrad
from tmft.training.multitask import MultiTask
from tmft.training_task import Batch, EpochSteps


def first_gradient(model, tasks, monkeypatch, **options):
    """Of the shared weights and the heads, before the clip of the first step."""
    found = {}

    def clip(self, optimizer, weights, max_norm):
        if not found:
            found["model"] = {n: w.grad.clone() for n, w in model.named_parameters() if w.grad is not None}
            heads = {name: task.objective for name, task in tasks.items()}
            found["heads"] = {n: [w.grad for w in head.parameters()] for n, head in heads.items()}

    monkeypatch.setattr("tmft.optimizers.MixedPrecision.clip_grad_norm_", clip)
    recipe = {"epochs": 1, "batch_size": 4, "precision": "fp32", "optimizer": "adafactor", "lr": 1e-3}
    list(fit_with_options(model, tasks, FineTuningRecipe(**recipe | options)))
    return found


@pytest.mark.parametrize("loss_weights", [None, [1.0, 0.5, 2.0]])
@pytest.mark.parametrize("gradient_surgery", ["none", "log"])
def test_the_gradient_of_a_step_is_the_sum_of_the_single_ones(loss_weights, gradient_surgery, monkeypatch):
    """On the batches that the summed step had."""
    model = tiny_model(**WITHOUT_DROPOUT)
    torch.manual_seed(0)
    tasks = training_tasks(loss_weights=loss_weights)
    monkeypatch.setattr("torch.optim.Adafactor.step", lambda self, closure=None: None)
    found = first_gradient(model, tasks, monkeypatch, gradient_surgery=gradient_surgery)
    total = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    for batch in next(iter(EpochSteps(MultiTask(tasks), 4, seed=0))):
        model.zero_grad()
        objective = tasks[batch.task].objective
        objective.zero_grad()
        embeddings = model.train()(pack(batch.token_ids)).chunk(batch.texts_per_example)
        batch.training_loss(*embeddings, batch.target).backward()
        for key, weight in model.named_parameters():
            if weight.grad is not None:
                total[key] += weight.grad
        for gradient, weight in zip(found["heads"][batch.task], objective.parameters(), strict=True):
            torch.testing.assert_close(gradient, weight.grad, rtol=1e-4, atol=1e-6)
    for name, gradient in found["model"].items():
        torch.testing.assert_close(gradient, total[name], rtol=1e-4, atol=1e-6)


def combined(callback, *gradients):
    """The gradient of a weight of two numbers after one step in which each task had one of these, that of a
    weight which no task reaches, and the cosines that are logged."""
    weight, unused = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
    state = SimpleNamespace(embed=SimpleNamespace(model=nn.ParameterList([weight, unused])))
    callback.on_epoch_begin(state)
    for name, gradient in zip("abc"[: len(gradients)], gradients, strict=True):
        weight.grad = torch.tensor(gradient)
        callback.on_substep_end(state, Batch([], 1, torch.zeros(1), None, name))
        assert weight.grad is None
    callback.on_pre_optimizer_step(state)
    callback.on_epoch_end(state)
    return weight.grad.tolist(), unused.grad, state.gradient_cosines


@pytest.mark.parametrize("kind", [GradientCosines, PCGrad])
def test_gradients_that_agree_are_summed_and_their_cosine_is_logged(kind):
    gradient, unused, cosines = combined(kind(), [1.0, 0.0], [1.0, 1.0])
    assert gradient == [2.0, 1.0] and unused is None
    assert cosines == {"a, b": [pytest.approx(0.7071, abs=1e-4)]}


def test_pcgrad_removes_from_each_gradient_its_part_along_one_that_points_against_it():
    """(1, 0) and (-1, 1): each without its part along the other is (1/2, 1/2) and (0, 1)."""
    assert combined(GradientCosines(), [1.0, 0.0], [-1.0, 1.0])[0] == [0.0, 1.0]
    assert combined(PCGrad(), [1.0, 0.0], [-1.0, 1.0])[0] == [0.5, 1.5]


def test_a_projected_gradient_points_against_neither_of_two():
    torch.manual_seed(0)
    for _ in range(20):
        one, other = torch.randn(2, 2)
        gradient = torch.tensor(combined(PCGrad(), one.tolist(), other.tolist())[0])
        assert min(gradient @ one, gradient @ other) > -1e-5
