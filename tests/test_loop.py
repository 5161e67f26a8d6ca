"""The loop: what it minimises, with which weights and rates, what it keeps, and that it can be repeated."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import WITHOUT_DROPOUT, embed_columns, tiny_model, training_task
from torch import nn

from tmft.callbacks import BestWeights, Callback
from tmft.data import Examples
from tmft.errors import InputError
from tmft.loop import Recipe, fit
from tmft.loss import CosineMSE, Objective
from tmft.losses.objectives import OBJECTIVES
from tmft.metrics import METRICS
from tmft.optimizers import LR_SCHEDULES, parameter_groups
from tmft.packing import pack
from tmft.tasks import TASKS

TEXTS = (
    ["a man plays", "the cat eats", "music", "two dogs in the park", "a woman is not in the park"],
    ["the man plays guitar", "a dog eats", "guitar music", "a cat", "a man is in the park"],
)
TRAIN = Examples(TEXTS, [4.5, 2.0, 3.0, 0.5, 1.5])
DEV = Examples((["a dog", "the music", "cat"], ["two dogs", "the cat", "a cat"]), [3.0, 0.0, 5.0])
FAST = Recipe(epochs=3, batch_size=2, lr=1e-2, precision="fp32")
STSB = training_task(TASKS["stsb"], CosineMSE(), TRAIN, DEV)


def train(recipe=FAST, seed=0, model=None):
    model = model or tiny_model(untrained=True)
    torch.manual_seed(seed)
    return model, list(fit(model, STSB, recipe, seed))


def test_dropout_is_on_in_every_step_and_off_afterwards():
    model, modes = tiny_model(untrained=True).eval(), []

    class Watch(Callback):
        def on_substep_end(self, state, batch):
            modes.append(all(module.training for module in model.modules()))

    list(fit(model, STSB, FAST, callbacks=[Watch()]))
    assert len(modes) >= 3 and all(modes)
    assert not any(module.training for module in model.modules())


def test_the_recipe_is_the_papers():
    assert Recipe() == Recipe(10, 32, 2e-5, 0.01, 0.1, 1.0, "auto")


def test_biases_and_norms_are_not_decayed_and_no_weight_is_forgotten():
    model = tiny_model()
    decayed, others = parameter_groups(model.parameters(), 0.01)
    names = {id(weight): name for name, weight in model.named_parameters()}
    plain = {name for name in names.values() if name.endswith("bias") or "norm" in name}
    assert {names[id(weight)] for weight in others["params"]} == plain and others["weight_decay"] == 0.0
    assert {names[id(weight)] for weight in decayed["params"]} == set(names.values()) - plain
    assert decayed["weight_decay"] == 0.01


def test_the_rate_climbs_for_a_tenth_of_the_steps_and_falls_to_zero_or_is_constant():
    rates = {name: [] for name in LR_SCHEDULES}
    for name, made in rates.items():
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = LR_SCHEDULES[name](optimizer, 0.1, 20)
        for _ in range(21):
            made.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
    linear = rates["linear"]
    assert linear[:4] == pytest.approx([0, 0.5, 1, 17 / 18]) and linear[19] == pytest.approx(1 / 18)
    assert linear[20] == 0.0 and rates["constant"] == [1.0] * 21


def test_the_loss_falls_and_every_weight_moves():
    before, model = (tiny_model(untrained=True, **WITHOUT_DROPOUT) for _ in range(2))
    model, epochs = train(replace(FAST, epochs=15), model=model)
    assert epochs[-1].loss < epochs[0].loss / 2
    for (name, old), new in zip(before.named_parameters(), model.parameters(), strict=True):
        if not name.endswith("key.bias"):  # a key bias adds the same to all scores of a query: no gradient
            assert not torch.equal(old, new), name


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    (one, _), (two, _), (other, _) = train(seed=3), train(seed=3), train(seed=4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_best_epoch_by_dev_is_what_remains_of_the_encoder_and_of_a_head(monkeypatch):
    """Dev says 0.1, 0.7, 0.3: model and head of epoch 2 come back."""
    values = iter([0.1, 0.7, 0.3])
    monkeypatch.setitem(METRICS, "f1_macro", lambda *_: {"f1_macro": next(values)})
    model, task = tiny_model(), TASKS["sicke"]
    objective, after = OBJECTIVES["softmax"](24, task), []
    before = [weight.clone() for weight in objective.parameters()]
    classes = training_task(task, objective, Examples(TEXTS, [0, 1, 2, 1, 0]), DEV)
    for epoch in fit(model, classes, FAST, seed=0):
        after.append([weight.clone() for weight in (*model.parameters(), *objective.parameters())])
        assert list(epoch.dev) == ["pairs", "f1_macro"] and epoch.is_best is (len(after) < 3)
    assert not model.training
    assert not any(torch.equal(a, b) for a, b in zip(before, objective.parameters(), strict=True))
    kept = [*model.parameters(), *objective.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(kept, after[1], strict=True))
    assert not torch.equal(kept[-1], after[2][-1])


def test_an_epoch_that_is_not_higher_is_not_the_best_and_the_last_of_nothing_but_nan_is():
    layer, nan = nn.Linear(3, 2), math.nan
    best = BestWeights(layer)
    metrics = [(nan, True), (nan, True), (0.5, True), (0.9, True), (0.9, False), (nan, False), (0.7, False)]
    for epoch, (metric, is_best) in enumerate(metrics):
        layer.weight.data.fill_(epoch)
        assert best.update(metric) == is_best
    best.restore()
    assert (layer.weight == 3.0).all()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision_stays_close_and_keeps_float32_weights(precision):
    _, exact = train()
    model, epochs = train(replace(FAST, precision=precision))
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert epochs[0].loss == pytest.approx(exact[0].loss, rel=0.2) and math.isfinite(epochs[-1].loss)
    assert epochs[0].loss != exact[0].loss  # it did compute in another precision


def test_autocast_rounds_the_hidden_states_but_not_the_pooling():
    model = tiny_model()
    rows = pack(model.tokenize(TEXTS[0]))
    seen = []
    pool = model.pool_tokens
    model.pool_tokens = lambda hidden, *more: seen.append(hidden) or pool(hidden, *more)
    with torch.autocast("cpu", torch.bfloat16):
        embeddings = model(rows)
        query = model.encoder.layers[0].attention.query(seen[0])
    assert query.dtype == torch.bfloat16 and embeddings.dtype == torch.float32


def test_a_step_that_overflows_in_fp16_moves_neither_weights_nor_the_rate(monkeypatch):
    """The second of three losses is finite, but its gradient times the scale of the loss is not."""
    factors, before_step = iter([1.0, 1e36, 1.0]), []
    forward = CosineMSE.forward
    model = tiny_model(untrained=True, **WITHOUT_DROPOUT)

    def scaled(self, u, v, target):
        before_step.append([weight.detach().clone() for weight in model.encoder.layers.parameters()])
        return forward(self, u, v, target) * next(factors)

    monkeypatch.setattr(CosineMSE, "forward", scaled)
    (epoch,) = fit(model, STSB, replace(FAST, epochs=1, warmup_ratio=0.0, precision="fp16"), seed=0)
    first, second, third = before_step
    assert any(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(second, third, strict=True))
    assert epoch.lr == pytest.approx(1e-2 / 3)  # the schedule took two steps of three


def test_a_caller_that_stops_early_has_the_weights_of_the_best_epoch():
    model, metrics = tiny_model(untrained=True), []
    torch.manual_seed(0)
    for epoch in fit(model, STSB, replace(FAST, epochs=9)):
        metrics.append(epoch.dev["spearman"])
        if epoch.is_best:
            best = {name: weight.clone() for name, weight in model.state_dict().items()}
        elif len(metrics) > 2:
            break
    assert metrics[-1] <= max(metrics[:-1]) and not model.training
    assert all(map(torch.equal, model.state_dict().values(), best.values()))


# ------------------------------------------------------------------------------ examples of three texts


class Triplet(Objective):
    """The anchor shall be nearer to the positive than to the negative: a toy objective of three texts."""

    def __init__(self):
        super().__init__(24, None)
        self.seen = []  # embeddings of each batch

    def forward(self, anchor, positive, negative, target):
        self.seen.append((anchor.detach(), positive.detach(), negative.detach()))
        near, far = (F.cosine_similarity(anchor, other) for other in (positive, negative))
        return F.softplus(10 * (far - near)).mean()

    def predict(self, anchor, positive, negative):
        near, far = (F.cosine_similarity(anchor, other) for other in (positive, negative))
        return (near - far).numpy()


def test_three_texts_go_to_the_objective_in_order_and_it_learns_from_them(monkeypatch):
    monkeypatch.setitem(METRICS, "right", lambda p, gold, threshold=None: {"right": float((p > 0).mean())})
    task = replace(TASKS["stsb"], columns=("anchor", "positive", "negative"), metric="right")
    texts = (*TEXTS, TEXTS[1][1:] + TEXTS[1][:1])
    train = Examples(texts, [0.0] * 5)
    model, objective = tiny_model(untrained=True, **WITHOUT_DROPOUT), Triplet()
    before = embed_columns(model, texts)
    recipe = replace(FAST, epochs=15, batch_size=5)
    epochs = list(fit(model, training_task(task, objective, train, train), recipe, seed=0))
    assert epochs[-1].loss < epochs[0].loss / 2 and epochs[-1].dev["right"] == 1.0
    order = torch.randperm(5, generator=torch.Generator().manual_seed(0))
    for seen, expected in zip(objective.seen[0], before, strict=True):  # by the weights before the first step
        torch.testing.assert_close(seen, expected[order], rtol=0, atol=1e-5)


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
@pytest.mark.parametrize(
    "labels", [[3.0], [2.0, 2.0, 2.0], np.array([0, 0])], ids=["one pair", "equal", "array"]
)
def test_a_dev_set_that_has_no_score_whatever_is_predicted_is_refused(labels, metric):
    """Its first epoch would be the best, and the first of all layers."""
    dev = Examples((["a"] * len(labels), ["b"] * len(labels)), labels)
    task = replace(TASKS["stsb"], metric=metric)
    with pytest.raises(
        InputError, match=f"^dev has one label only .*: {len(labels)}., so that no {metric} can"
    ):
        training_task(task, CosineMSE(), TRAIN, dev)
    classes = replace(TRAIN, labels=[0, 1, 0, 1, 1]), replace(dev, labels=[0] * len(labels))
    training_task(replace(TASKS["quora"], metric="accuracy"), CosineMSE(), *classes)  # which has a score
