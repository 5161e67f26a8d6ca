"""Optimizers: AdamW is torch's; Adafactor takes the steps of transformers'."""

import pytest
import torch
from conftest import SENTENCES, tiny_model, training_task
from torch import nn

from tmft.data import Examples
from tmft.errors import InputError
from tmft.losses.cosine import CosineMSE
from tmft.tasks import TASKS
from tmft.training.loop import Recipe, fit
from tmft.training.optimizers import OPTIMIZERS

TRAIN = Examples((SENTENCES, [*SENTENCES[2:], *SENTENCES[:2]]), [4.5, 2.0, 3.0, 0.5, 1.5])


@pytest.mark.parametrize("scale", [1e-6, 1.0])
def test_adafactor_takes_the_steps_of_transformers(scale):
    """Of a table with rows that get no gradient, a matrix, a vector, a small and a wide one."""
    from transformers.optimization import Adafactor

    torch.manual_seed(0)
    shapes = [(30, 8), (12, 5), (7,), (1, 9)]
    start = [torch.randn(shape) for shape in shapes]
    ours, theirs = ([nn.Parameter(weight.clone()) for weight in start] for _ in range(2))
    settings = {"scale_parameter": True, "relative_step": False, "warmup_init": False}
    optimizers = [OPTIMIZERS["adafactor"](ours, lr=1e-3), Adafactor(theirs, lr=1e-3, **settings)]
    for _ in range(5):
        gradients = [torch.randn(shape) * scale for shape in shapes]
        gradients[0][10:] = 0
        for weights, optimizer in zip((ours, theirs), optimizers, strict=True):
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient.clone()
            optimizer.step()
    for a, b, before in zip(ours, theirs, start, strict=True):
        step = (b - before).abs().max()
        assert step > 0 and (a - b).abs().max() < 1e-3 * step


def losses(**recipe) -> tuple[list[float], nn.Module]:
    model = tiny_model(untrained=True, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    recipe = Recipe(epochs=3, batch_size=2, precision="fp32", **recipe)
    epochs = fit(model, training_task(TASKS["stsb"], CosineMSE(), TRAIN, TRAIN), recipe, seed=0)
    return [epoch.loss for epoch in epochs], model


def test_adafactor_learns_and_looks_at_every_row_of_the_table(monkeypatch):
    """Its step depends on the rows that no text has, too: the table may not be cut to those that occur."""
    before = tiny_model(untrained=True).encoder.embeddings.word.weight.detach().clone()
    found, model = losses(optimizer="adafactor", lr=1e-3, weight_decay=0.0)
    assert found[-1] < found[0]
    after = model.encoder.embeddings.word.weight
    occurring = sorted({id for ids in model.tokenize(TRAIN.sentences) for id in ids})
    rest = [id for id in range(len(before)) if id not in occurring]
    assert after[rest].equal(before[rest]) and not after[occurring].equal(before[occurring])
    monkeypatch.setattr("tmft.training.optimizers.OccurringWords", None)  # it does not run
    losses(optimizer="adafactor")
    with pytest.raises(TypeError):
        losses(optimizer="adamw")


def test_an_unknown_optimizer_is_one_line():
    with pytest.raises(
        InputError, match="optimizer 'adamv': choose one of adamw, adafactor; did you mean adamw"
    ):
        Recipe(optimizer="adamv")
