"""RMSNorm whose gradient is cheap on a CPU."""

import torch
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """w * x / sqrt(mean(x^2) + eps), as nn.RMSNorm does.

    torch makes it of nine operators and lets autograd find the gradient of each, which takes six times as
    long as the forward pass. Here it is written out: with n = x / rms and g the gradient of the output,
    that of x is (g w - n mean(g w n)) / rms and that of w is the sum of g n. Norms of 16 bits are taken in
    32; elsewhere than on a CPU, and where no weight is, this is nn.RMSNorm.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or self.weight is None or len(self.normalized_shape) != 1:
            return super().forward(x)
        return Scaled.apply(x, self.weight, self.eps)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        at_least = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=at_least)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()  # 1 / rms, (..., 1)
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return (normed * weight).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor):
        normed, scale, weight = ctx.saved_tensors
        product = gradient * normed
        of_weight = product.flatten(0, -2).sum(0)
        share = product @ weight.to(product.dtype) / normed.shape[-1]  # mean(g w n), (...)
        of_x = (gradient * weight).addcmul_(normed, share[..., None], value=-1).mul_(scale)
        return of_x.to(gradient.dtype), of_weight.to(weight.dtype), None
