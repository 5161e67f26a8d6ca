"""Quantization-aware training: what is trained is what the compact format stores, and how a step is made."""

from copy import deepcopy

import pytest
import torch
from conftest import SENTENCES, WITHOUT_DROPOUT, fit_with_options, tiny_model, training_task

from tmft.checkpoints.compact import round_weight, storage_dtype
from tmft.data import Examples
from tmft.export.export import export
from tmft.export.numpy_encoder import Encoder
from tmft.loss import CosineMSE
from tmft.packing import pack
from tmft.runs.run_config import FineTuningRecipe
from tmft.students.quantized_weights import QuantizedWeights
from tmft.tasks import TASKS

PAIRS = ["a man plays", "the cat eats", "music"], ["the man plays", "a dog eats", "a cat"]
EXAMPLES = Examples(PAIRS, [4.5, 2.0, 1.0])


def train(model, dtype="int4", **changes):
    settings = {"epochs": 3, "batch_size": 2, "lr": 1e-2, "precision": "fp32", "weight_decay": 0.3}
    recipe = FineTuningRecipe(**settings | changes, quantization=dtype)
    task = training_task(TASKS["stsb"], CosineMSE(model.dimensions, TASKS["stsb"]), EXAMPLES, EXAMPLES)
    return list(fit_with_options(model, task, recipe))


def rounded(name, weight, dtype="int4"):
    return round_weight(weight, storage_dtype(name, weight, dtype))


@pytest.mark.parametrize("changes", [{}, {"freeze_layers": 1}, {"optimizer": "adafactor"}], ids=str)
@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_an_export_changes_no_weight_and_has_the_embeddings_that_were_trained(dtype, changes, tmp_path):
    """Also those of tokens that do not occur in the text, which weight decay would move."""
    model = tiny_model(model_type="bert", untrained=True)
    start = rounded("query", model.encoder.layers[-1].attention.query.weight.detach(), dtype)
    train(model, dtype, **changes)
    assert not torch.equal(model.encoder.layers[-1].attention.query.weight, start)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, rounded(name, weight.detach(), dtype)), name
    export(model, tmp_path / "compact", "compact", dtype)
    found = torch.from_numpy(Encoder(tmp_path / "compact").encode(SENTENCES))
    torch.testing.assert_close(found, torch.from_numpy(model.encode(SENTENCES)), rtol=0, atol=1e-5)


def test_a_step_moves_the_exact_weights_by_the_gradient_of_the_rounded_ones():
    """One step of AdamW, written out: whatever its gradient, a weight moves by the learning rate.

    A few weights may differ: those between two numbers, and those whose gradient is nothing but rounding.
    """
    model = tiny_model(model_type="bert", untrained=True, **WITHOUT_DROPOUT)
    exact, coarse, lr = deepcopy(model), deepcopy(model), 1e-2
    for name, weight in coarse.named_parameters():
        weight.data = rounded(name, weight.data)
    u, v = (coarse(pack(coarse.tokenize(column))) for column in PAIRS)
    cosines = torch.cosine_similarity(u, v)
    (cosines - torch.tensor(EXAMPLES.labels) / 5).square().mean().backward()
    train(model, epochs=1, batch_size=3, lr=lr, warmup_ratio=0, weight_decay=0, max_grad_norm=1e9)
    are_equal = []
    for (name, found), start, rounded_start in zip(
        model.named_parameters(), exact.parameters(), coarse.parameters(), strict=True
    ):
        gradient = torch.zeros_like(start) if rounded_start.grad is None else rounded_start.grad
        moved = start.detach() - lr * gradient / (gradient.abs() + 1e-8)
        are_equal.append(torch.isclose(found.detach(), rounded(name, moved), rtol=0, atol=1e-5).flatten())
    assert torch.cat(are_equal).double().mean() > 0.98


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["exact"].popitem(),
        lambda state: state["exact"].update({next(iter(state["exact"])): torch.zeros(1)}),
        lambda state: state["scales"].update({next(iter(state["scales"])): torch.ones(1).half()}),
        lambda state: state.update(dtypes={}),
    ],
)
def test_a_saved_state_has_the_weights_of_the_model(change):
    """torch reads outside the memory of a tensor that is too small."""
    model = tiny_model()
    weights = QuantizedWeights(model, "int4")
    weights.exact = {name: weight.detach().clone() for name, weight in weights.trained_weights().items()}
    weights.search_scales()
    state = deepcopy(weights.state_dict())
    weights.load_state_dict(deepcopy(state))
    change(state)
    with pytest.raises(ValueError, match="QuantizedWeights"):
        weights.load_state_dict(state)
