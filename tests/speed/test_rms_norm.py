"""RMSNorm is torch's, value and gradient."""

import pytest
import torch
from torch import nn

from tmft.speed.rms_norm import RMSNorm


def pair(D: int, eps: float = 1e-6, dtype=torch.float32) -> tuple[nn.RMSNorm, RMSNorm]:
    torch.manual_seed(0)
    theirs, ours = nn.RMSNorm(D, eps), RMSNorm(D, eps)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    return theirs.to(dtype), ours.to(dtype)


@pytest.mark.parametrize("shape", [(3, 5, 16), (7, 16), (1, 16), (2, 0, 16)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_value_and_gradients_are_those_of_torch(shape, scale):
    theirs, ours = pair(16, dtype=torch.float64)
    x = (torch.randn(shape, dtype=torch.float64) * scale).requires_grad_()
    wanted = torch.randn(shape, dtype=torch.float64)
    found = []
    for norm in (theirs, ours):
        value = norm(x)
        found.append((value, *torch.autograd.grad(value, (x, norm.weight), wanted)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10 / scale)


def test_the_gradient_is_that_of_small_steps():
    _, ours = pair(6, dtype=torch.float64)
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ours, x)


def test_numbers_of_16_bits_are_squared_in_32():
    """3e38 squared is not a float32: nor need it be here, 300 squared not a float16."""
    _, ours = pair(8)
    x = torch.full((2, 8), 300.0)
    expected = ours(x).detach()
    for dtype in (torch.bfloat16, torch.float16):
        found = ours.to(dtype)(x.to(dtype))
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-2)


def test_a_hidden_state_of_zeros_stays_zero_and_finite():
    _, ours = pair(8)
    x = torch.zeros(2, 8, requires_grad=True)
    ours(x).sum().backward()
    assert x.grad.isfinite().all()
    assert not ours(x).any()


def test_no_copy_is_kept_where_no_gradient_is_wanted():
    _, ours = pair(8)
    with torch.inference_mode():
        assert not ours(torch.randn(2, 8)).requires_grad
