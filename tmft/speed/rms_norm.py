"""RMSNorm with a fast backward pass on a CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """Compute w * x / rms(x) with rms(x) = sqrt(mean(x^2) + eps), as nn.RMSNorm does.

    torch computes it with nine operators, and autograd differentiates each of them, which takes six times as
    long as the forward pass. Here the gradient is written out. With n = x / rms(x) and g the gradient of the
    output, the gradient of x is (g w - n mean(g w n)) / rms(x). The gradient of LayerNorm is
    (g w - mean(g w) - n mean(g w n)) / std, and torch has an operator for it. This operator is called with
    mean 0 and standard deviation rms(x), and the term mean(g w) / rms(x), which it subtracts, is added again.
    On other devices and in 16 bits this is nn.RMSNorm.
    """

    eps: float

    def __init__(self, size: int, eps: float):
        """size: D, the length of the vectors that are normalized. eps: see the formula."""
        super().__init__(size, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized x: (..., D) -> (..., D)."""
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return weight * x / sqrt(mean(x^2) + eps), as RMSNorm does, for a weight that is not a parameter.

    x: (..., D). weight: (D,). The result has the dtype of weight, which under autocast may not be that of x.
    """
    x = x.to(weight.dtype)
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return F.rms_norm(x, weight.shape, weight, eps)
    return RMSNormFunction.apply(x, weight, eps)


class RMSNormFunction(torch.autograd.Function):
    """The forward and the backward pass of RMSNorm, by the formulas in its docstring."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse_rms = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()  # (..., 1)
        ctx.save_for_backward(x, inverse_rms, weight)
        return (x * inverse_rms).mul_(weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor):
        x, inverse_rms, weight = ctx.saved_tensors
        grad_output, D = grad_output.contiguous(), x.shape[-1]
        zero_mean = torch.zeros_like(inverse_rms)
        grad_x, grad_weight, _ = torch.ops.aten.native_layer_norm_backward(
            grad_output, x, [D], zero_mean, inverse_rms, weight, None, [True, True, False]
        )
        subtracted_mean = (grad_output @ weight / D)[..., None].mul_(inverse_rms)
        return grad_x.add_(subtracted_mean), grad_weight, None
