"""Dropout that draws fewer random numbers than nn.Dropout on a CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
