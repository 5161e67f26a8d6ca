"""Dropout has its rate, scale and gradient; RMSNorm has the value and the gradient of torch.nn.RMSNorm."""

import pytest
import torch
from torch import nn

from tmft.speed.operators import Dropout, RMSNorm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_rate_is_p_and_the_scale_is_1_over_1_minus_p(p, dtype):
    """The number of zeros is within five standard deviations of n * p; the others are divided by 1 - p."""
    torch.manual_seed(0)
    n = 1001 * 999  # not a multiple of four
    out = Dropout(p)(torch.ones(1001, 999, dtype=dtype))
    assert abs((out == 0).sum() - n * p) < 5 * (n * p * (1 - p)) ** 0.5
    scale = out[out != 0].unique()
    assert len(scale) == 1 and scale.item() == pytest.approx(
        1 / (1 - p), rel=1e-4 if dtype.itemsize == 4 else 4e-3
    )


def test_elements_that_share_a_random_integer_are_independent():
    """Four elements share one; of any two of them, both are zero in p * p of the cases."""
    torch.manual_seed(0)
    zero = (Dropout(0.5)(torch.ones(200_000, 4)) == 0).double()
    torch.testing.assert_close(zero.T.cov(), torch.eye(4, dtype=torch.float64) / 4, rtol=0, atol=3e-3)


def test_the_gradient_has_the_mask_and_the_scale_of_the_output():
    x = torch.randn(50, 3, 7).transpose(0, 2).requires_grad_()  # not contiguous
    out = Dropout(0.3)(x)
    out.sum().backward()
    assert torch.equal(x.grad == 0, out == 0) and torch.equal(out, x * x.grad)


def test_the_seed_determines_the_mask_and_evaluation_is_the_identity():
    x, dropout = torch.randn(100, 10), Dropout(0.1)
    torch.manual_seed(3)
    one, other = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), one) and not torch.equal(one, other)
    assert torch.equal(dropout.eval()(x), x) and torch.equal(Dropout(0.0)(x), x)
    assert Dropout(1.0)(x).abs().max() == 0


def pair(D: int, eps: float = 1e-6, dtype=torch.float32) -> tuple[nn.RMSNorm, RMSNorm]:
    torch.manual_seed(0)
    reference, norm = nn.RMSNorm(D, eps), RMSNorm(D, eps)
    nn.init.normal_(reference.weight)
    norm.load_state_dict(reference.state_dict())
    return reference.to(dtype), norm.to(dtype)


@pytest.mark.parametrize("shape", [(3, 5, 16), (7, 16), (1, 16), (2, 0, 16)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_value_and_gradients_equal_those_of_torch(shape, scale):
    reference, norm = pair(16, dtype=torch.float64)
    x = (torch.randn(shape, dtype=torch.float64) * scale).requires_grad_()
    grad_output = torch.randn(shape, dtype=torch.float64)
    results = []
    for module in (reference, norm):
        value = module(x)
        results.append((value, *torch.autograd.grad(value, (x, module.weight), grad_output)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10 / scale)


def test_values_of_16_bits_are_squared_in_float32():
    """300 squared overflows float16."""
    _, norm = pair(8)
    x = torch.full((2, 8), 300.0)
    expected = norm(x).detach()
    for dtype in (torch.bfloat16, torch.float16):
        out = norm.to(dtype)(x.to(dtype))
        assert out.dtype == dtype
        torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-2)
