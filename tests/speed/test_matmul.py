"""The faster float32 products are used only where they are as exact, and only inside the context."""

import pytest
import torch
from conftest import SENTENCES, tiny_model

import tmft.speed.matmul
from tmft.speed.matmul import BACKEND, fast_matmul, onednn_is_exact, prepacked_weights, uses_onednn


@pytest.fixture(autouse=True)
def fresh_check():
    onednn_is_exact.cache_clear()
    yield
    onednn_is_exact.cache_clear()


def rounded(*factors):
    return [None if x is None else x.bfloat16().float() for x in factors]


# Which products a CPU computes in bfloat16 if it may: all of them; those of large linear maps, as torch 2.11
# did on a CPU with AMX; those of batches; those with a bias.
ROUNDING = {
    "all": lambda x, y, bias: True,
    "large": lambda x, y, bias: y.dim() == 2 and min(y.shape) >= 384,
    "batched": lambda x, y, bias: x.dim() > 2,
    "biased": lambda x, y, bias: bias is not None,
}


@pytest.mark.parametrize("kind", ROUNDING)
def test_a_cpu_that_rounds_some_products_does_not_get_the_permission(kind, monkeypatch):
    linear, product = torch.nn.functional.linear, torch.Tensor.__matmul__

    def may_round(x, y, bias=None):
        is_float = x.dtype == torch.float32
        return is_float and BACKEND.fp32_precision == "bf16" and ROUNDING[kind](x, y, bias)

    def rounding_product(x, y):
        return product(*rounded(x, y)) if may_round(x, y) else product(x, y)

    def rounding_linear(x, weight, bias=None):
        return linear(*rounded(x, weight), bias) if may_round(x, weight, bias) else linear(x, weight, bias)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding_product)
    monkeypatch.setattr(torch.nn.functional, "linear", rounding_linear)
    before = BACKEND.fp32_precision
    assert not onednn_is_exact()
    with fast_matmul():
        assert BACKEND.fp32_precision == before


def test_a_cpu_with_matrix_instructions_does_not_get_the_permission(monkeypatch):
    """Whatever the measurement says: which products it hands to them changes from version to version."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": True, "cpu_name": "a CPU"})
    monkeypatch.setattr(tmft.speed.matmul, "relative_errors", lambda: [0.0])
    assert not onednn_is_exact()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": False, "cpu_name": "amx"})
    onednn_is_exact.cache_clear()
    assert onednn_is_exact()


def test_the_measurement_is_the_same_inside_autocast():
    """The first evaluation of a bf16 run asks inside autocast, an evaluation after a teacher outside."""
    outside = onednn_is_exact()
    onednn_is_exact.cache_clear()
    with torch.autocast("cpu", torch.bfloat16):
        inside = onednn_is_exact()
    onednn_is_exact.cache_clear()
    assert inside == outside


def test_the_permission_ends_with_the_context(monkeypatch):
    monkeypatch.setattr(tmft.speed.matmul, "onednn_is_exact", lambda: True)
    before, inside = BACKEND.fp32_precision, []
    model = tiny_model()
    model.encoder.register_forward_hook(lambda *_: inside.append(BACKEND.fp32_precision))
    model.encode(SENTENCES)  # small products are left to MKL
    monkeypatch.setattr(tmft.speed.matmul, "MIN_MULTIPLICATIONS", 0)
    model.encode([" a" * length for length in range(40)])
    if uses_onednn(torch.zeros(1, 1)):
        with prepacked_weights(model.encoder):  # only those of attention are left, and they are small
            model.encode(SENTENCES)
        assert inside.pop() == before
    with pytest.raises(ZeroDivisionError), fast_matmul():
        1 / 0  # noqa: B018
    assert inside == [before, "bf16"] and BACKEND.fp32_precision == before
