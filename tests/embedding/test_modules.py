"""Dense, LayerNorm and Normalize, which may follow the pooling, in float32 whatever their weights are.

That they give the embeddings of sentence-transformers is tested in tests/checkpoints/test_any_st_folder.py.
"""

import math

import pytest
import torch
from conftest import SENTENCES, tiny_model

from tmft.embedding.modules import (
    ACTIVATIONS,
    MODULE_CLASSES,
    Dense,
    LayerNorm,
    Normalize,
    make_projection,
)
from tmft.errors import InputError

X = torch.tensor([[3.0, 4.0], [-1.0, 1.0]])


@pytest.mark.parametrize("name", ["Softmax", "PReLU", "GLU", "GELUActivation", "None", ""])
def test_an_unsupported_activation_is_an_error(name):
    message = f"activation '{name}' of a Dense: supported are Identity, Tanh, "
    with pytest.raises(InputError, match=message):
        Dense(2, 2, activation=name)


def test_every_activation_of_torch_that_needs_nothing_but_its_input_is_supported():
    """Not those with weights, with random numbers, or that look at several numbers at once."""
    others = {"PReLU", "RReLU", "Softmax", "Softmax2d", "LogSoftmax", "Softmin", "GLU", "MultiheadAttention"}
    others.add("Threshold")  # needs arguments
    assert set(torch.nn.modules.activation.__all__) - others | {"Identity"} == set(ACTIVATIONS)


def test_a_layer_norm_subtracts_the_mean_and_divides_by_the_standard_deviation():
    module = LayerNorm(2)
    module.weight.data, module.bias.data = torch.tensor([1.0, 10.0]), torch.tensor([0.0, 5.0])
    first = 0.5 / math.sqrt(0.25 + 1e-5)  # (4 - 3.5) / deviation
    torch.testing.assert_close(module(X)[0], torch.tensor([-first, 10 * first + 5]))


@pytest.mark.parametrize("module", [Dense(2, 2), LayerNorm(2), Normalize()], ids=MODULE_CLASSES)
def test_modules_compute_in_float32_whatever_the_dtype_of_their_weights(module):
    assert module.bfloat16()(X).dtype == torch.float32


def test_weights_in_half_precision_are_rounded_but_the_sum_is_not():
    module = Dense(2, 1, bias=False)
    module.weight.data = torch.tensor([[1.0, 1 / 256]])
    exact = module(torch.tensor([[1.0, 1.0]])).item()
    assert module.bfloat16()(torch.tensor([[1.0, 1.0]])).item() == exact == 1 + 1 / 256  # not in bfloat16


def test_a_projection_is_a_linear_map_and_normalize():
    model = tiny_model()
    model.head_modules = make_projection(model.head_modules, model.dimensions, 10)
    assert [type(module).__name__ for module in model.head_modules] == ["Dense", "Normalize"]
    assert model.dimensions == 10 and model.head_modules[0].bias is None
    norms = torch.from_numpy(model.encode(SENTENCES)).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(len(SENTENCES)))


def test_a_projection_of_the_same_dimensions_is_added_once_and_another_is_an_error():
    model = tiny_model()
    model.head_modules = make_projection(model.head_modules, model.dimensions, 10)
    weight = model.head_modules[0].weight
    model.head_modules = make_projection(model.head_modules, model.dimensions, 10)
    assert len(model.head_modules) == 2 and model.head_modules[0].weight is weight
    with pytest.raises(
        InputError, match="projection 12: .* has Dense and Normalize to 10 dimensions already"
    ):
        make_projection(model.head_modules, model.dimensions, 12, model.source)
