"""Operations of torch in less time: no_autocast, Dropout and RMSNorm."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def no_autocast(device_type: str) -> AbstractContextManager[None]:
    """Return a with block inside which operations on a type of device compute in the dtypes of their inputs.

    torch's own block costs more time than a small operation, and each layer of an encoder may have one.
    """
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


class Dropout(nn.Dropout):
    """In training, set each element to 0 with probability p and divide the others by 1 - p, as nn.Dropout.

    On a CPU torch draws one random number per element, which takes a tenth of a training step. Here one
    random 64-bit integer is used for four elements, 16 bits for each. Therefore p is rounded to a multiple of
    1 / 65536 (0.1 becomes 0.100006), also in the division. On other devices this is nn.Dropout.
    Source: Srivastava et al. 2014.
    """

    def __call__(self, x: Any) -> Any:
        """Return x, of any shape, after dropout; outside of training, x itself, without a module's call."""
        return super().__call__(x) if self.training else x

    def forward(self, x: Tensor) -> Tensor:
        """Return x, of any shape, after dropout."""
        p_in_65536ths = round(self.p * 2**16)
        if x.device.type != "cpu" or p_in_65536ths in (0, 2**16):
            return F.dropout(x, self.p)
        random_integers = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        # bits: uniform over -2^15 .. 2^15 - 1
        bits = random_integers.view(torch.int16)[: x.numel()].view(x.shape)
        keep = torch.empty_like(x, memory_format=torch.contiguous_format)
        torch.ge(bits, p_in_65536ths - 2**15, out=keep)
        return x * keep.mul_(2**16 / (2**16 - p_in_65536ths))


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
