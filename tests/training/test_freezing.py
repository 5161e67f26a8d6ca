"""A frozen part stays to the bit, has no dropout, and a frozen whole is computed once."""

import pytest
import torch
from conftest import WITHOUT_DROPOUT, fit_with_options, tiny_model, training_task

from tmft.data import Examples
from tmft.embedding.modules import make_projection
from tmft.errors import InputError
from tmft.loss import CosineMSE
from tmft.losses.objectives import OBJECTIVES
from tmft.runs.run_config import FineTuningRecipe
from tmft.tasks import TASKS
from tmft.training.freezing import FreezeLayers

TEXTS = (
    ["a man plays", "the cat eats", "music", "two dogs"],
    ["the man plays", "a dog eats", "guitar", "a cat"],
)
EXAMPLES = Examples(TEXTS, [4.5, 2.0, 3.0, 0.5])
CLASSES = Examples(TEXTS, [0, 1, 2, 1])


def train(freeze, model=None, task="sicke", **recipe):
    model = model or tiny_model(hidden_dropout_prob=0.3, untrained=True)
    torch.manual_seed(0)
    examples = CLASSES if task == "sicke" else EXAMPLES
    objective = OBJECTIVES[TASKS[task].objective](model.dimensions, TASKS[task])
    settings = {"epochs": 2, "batch_size": 2, "lr": 1e-2, "precision": "fp32", "freeze_layers": freeze}
    recipe = FineTuningRecipe(**settings | recipe)
    epochs = list(fit_with_options(model, training_task(TASKS[task], objective, examples, examples), recipe))
    return model, objective, epochs


def snapshot(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize(("freeze", "kept"), [(-1, 4), (4, 4), (9, 4), (2, 2), (0, 0)])
def test_what_is_frozen_is_unchanged_to_the_bit(freeze, kept):
    model = tiny_model(untrained=True)
    before = snapshot(model)
    train(freeze, model, task="sicke")
    still = {name for name, weight in snapshot(model).items() if weight.equal(before[name])}
    frozen = {
        name for name in before if "embeddings" in name or any(f"layers.{n}." in name for n in range(kept))
    }
    frozen |= before.keys() if kept == 4 else set()
    assert frozen <= still
    assert kept == 4 or any(f"layers.{kept}." in name for name in before.keys() - still)
    assert all(weight.requires_grad for weight in model.parameters())


def test_a_frozen_encoder_gives_what_it_would_give_each_time():
    """The losses of heads on kept embeddings, and on those computed at each step with dropout off."""
    _, head, kept = train(-1)
    model = tiny_model(untrained=True, **WITHOUT_DROPOUT)
    model.encoder.requires_grad_(False)  # fit leaves it alone
    _, other, anew = train(None, model, optimizer="adamw")
    assert [epoch.loss for epoch in kept] == pytest.approx([epoch.loss for epoch in anew], abs=1e-6)
    torch.testing.assert_close(head.head.weight, other.head.weight, rtol=0, atol=1e-6)


def test_a_frozen_encoder_reads_each_sentence_once(monkeypatch):
    model = tiny_model(untrained=True)
    reads, tokenized, tokenized_blocks = [], [], model.tokenized_blocks
    monkeypatch.setattr(
        model, "tokenized_blocks", lambda *args: tokenized.append(args[0]) or tokenized_blocks(*args)
    )
    model.encoder.register_forward_hook(lambda module, inputs, output: reads.append(model.training))
    train(-1, model, epochs=5)
    assert len(reads) == 1  # those of train and dev, at once
    assert not any(reads)
    assert tokenized == [CLASSES.sentences] * 2  # those of train, then those of dev


def test_frozen_layers_have_no_dropout():
    model = tiny_model(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
    freeze = FreezeLayers(model, 2)
    model.train()
    freeze.on_epoch_begin(state=None)
    layers = [layer.training for layer in model.encoder.layers]
    assert not model.encoder.embeddings.training and layers == [False, False, True, True]


def test_a_projection_on_a_frozen_encoder_is_learnt():
    model = tiny_model(untrained=True)
    model.head_modules = make_projection(model.head_modules, model.dimensions, 10)
    before = snapshot(model)
    train(-1, model, task="stsb")
    changed = {name for name, weight in snapshot(model).items() if not weight.equal(before[name])}
    assert changed and all(name.startswith("head_modules.") for name in changed)


def test_nothing_left_to_learn_is_one_line():
    with pytest.raises(
        InputError, match="freeze_layers: nothing is left to train for this task: choose an objective with"
    ):
        model = tiny_model()
        task = training_task(TASKS["stsb"], CosineMSE(), EXAMPLES, EXAMPLES)
        next(fit_with_options(model, task, FineTuningRecipe(freeze_layers=-1)))
