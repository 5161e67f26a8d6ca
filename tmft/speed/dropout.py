"""Dropout whose random numbers are cheap on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """Zeroes each number with probability p in training and divides the others by 1 - p, as nn.Dropout does.

    On a CPU torch draws one number after the other, a tenth of a training step. Here 64 random bits serve
    four numbers, 16 bits each, so p is rounded to a multiple of 1 / 65536 (0.1 is 0.100006) and the scale
    fits the rounded p. Elsewhere this is nn.Dropout. Source: Srivastava et al. 2014.
    """

    def forward(self, x: Tensor) -> Tensor:
        cut = round(self.p * 2**16)
        if not self.training or cut == 0 or x.device.type != "cpu" or cut == 2**16:
            return F.dropout(x, self.p, self.training)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)  # uniform over -2^15 .. 2^15 - 1
        keep = torch.ge(bits, cut - 2**15, out=torch.empty_like(x, memory_format=torch.contiguous_format))
        return x * keep.mul_(2**16 / (2**16 - cut))
