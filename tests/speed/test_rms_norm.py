"""RMSNorm has the value and the gradient of torch.nn.RMSNorm."""

import pytest
import torch
from torch import nn

from tmft.speed.operators import RMSNorm


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
