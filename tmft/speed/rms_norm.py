"""RMSNorm whose gradient is cheap on a CPU."""

import torch
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """w * x / rms(x) with rms(x) = sqrt(mean(x^2) + eps), as nn.RMSNorm does.

    torch makes it of nine operators and lets autograd find the gradient of each, which takes six times as
    long as the forward pass. Here, with n = x / rms and g the gradient of the output, it is written out: that
    of x is (g w - n mean(g w n)) / rms. LayerNorm's is (g w - mean(g w) - n mean(g w n)) / deviation, and
    torch has an operator for it, which is told that the mean was 0 and the deviation rms. What it takes off
    too much is put back. On another device or in 16 bits this is nn.RMSNorm.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
            return super().forward(x)
        return Scaled.apply(x, self.weight, self.eps)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()  # 1 / rms, (..., 1)
        ctx.save_for_backward(x, scale, weight)
        return (x * scale).mul_(weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor):
        x, scale, weight = ctx.saved_tensors
        gradient, D = gradient.contiguous(), x.shape[-1]
        of_x, of_weight, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, x, [D], torch.zeros_like(scale), scale, weight, None, [True, True, False]
        )
        too_much = (gradient @ weight / D)[..., None].mul_(scale)
        return of_x.add_(too_much), of_weight, None
