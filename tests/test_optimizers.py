"""Optimizers and mixed precision: AdamW is torch's; Adafactor takes the steps of transformers'."""

import pytest
import torch
from conftest import SENTENCES, WITHOUT_DROPOUT, tiny_model, training_task
from torch import nn

from tmft.data import Examples
from tmft.device import PRECISIONS
from tmft.loop import Recipe, fit
from tmft.loss import CosineMSE
from tmft.optimizers import OPTIMIZERS, MixedPrecision
from tmft.tasks import TASKS

CPU = torch.device("cpu")
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
    model = tiny_model(untrained=True, **WITHOUT_DROPOUT)
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
    monkeypatch.setattr("tmft.optimizers.OccurringWords", None)  # it does not run
    losses(optimizer="adafactor")
    with pytest.raises(TypeError):
        losses(optimizer="adamw")


# ------------------------------------------------------------------------------------ mixed precision


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("max_norm", "expected"), [(10.0, [-3.0, -4.0]), (1.0, [-0.6, -0.8]), (0.0, [-3.0, -4.0])]
)
def test_gradients_are_clipped_at_their_true_norm_and_not_at_all_if_the_limit_is_0(
    precision, max_norm, expected
):
    """A step of SGD with lr 1 on the loss 3 x + 4 y from (0, 0); the norm is 5."""
    weight, slope = nn.Parameter(torch.zeros(2)), torch.tensor([3.0, 4.0])
    optimizer, amp = torch.optim.SGD([weight], lr=1.0), MixedPrecision(CPU, precision)
    amp.backward((weight * slope).sum())
    amp.clip_grad_norm_(optimizer, [weight], max_norm)
    assert amp.step(optimizer)
    torch.testing.assert_close(weight.data, torch.tensor(expected), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("precision", "dtype"), PRECISIONS.items())
def test_products_inside_the_block_have_the_precision_and_outside_float32(precision, dtype):
    x, amp = torch.ones(4, 4), MixedPrecision(CPU, precision)
    for _ in range(2):  # the same object can be entered again
        with amp.autocast():
            assert (x @ x).dtype == dtype
        assert (x @ x).dtype == torch.float32
