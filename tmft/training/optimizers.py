"""Optimizers, which weights decay, and the learning rate of each step."""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from tmft.errors import InputError

# Name -> an optimizer of groups of weights, called with lr=...
# adamw: Loshchilov and Hutter 2019, arXiv:1711.05101; fused is one pass over all weights, not a loop.
# adafactor: Shazeer and Stern 2018, arXiv:1804.04235, with the settings of T5. A step is lr times the root
#   mean square of the matrix that it changes, so weights of any scale learn at the same pace, and a matrix
#   has averages of its rows and columns in place of two of each number. eps is where others add 1e-30 to a
#   square: torch's own default binds for small gradients, and 1e-30 would square to 0.
OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, fused=True),
    "adafactor": partial(torch.optim.Adafactor, beta2_decay=-0.8, eps=(1e-18, 1e-3), d=1.0),
}

ELEMENTWISE_OPTIMIZERS = ("adamw",)  # whose step of a row does not depend on which others there are


def parameter_groups(weights: Iterable[nn.Parameter], weight_decay: float) -> list[dict]:
    """All weights in two groups: matrices with weight decay; biases and LayerNorm, the vectors, without."""
    weights = list(weights)
    matrices, vectors = ([w for w in weights if (w.ndim > 1) is matrix] for matrix in (True, False))
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def divergence_error(what: str, loss: Tensor, where: str, kept: str) -> InputError:
    """The error of a loss that is not finite; kept: what is left of the run, '' if nothing is."""
    remedy = f"{kept}try a lower lr, or precision fp32"
    return InputError(f"{what} is {loss.item()} ({where}): {remedy}", "lr", "precision")


def linear_schedule_with_warmup(optimizer: torch.optim.Optimizer, warmup: float, steps: int) -> LambdaLR:
    """Learning rate from 0 to its peak over the first `warmup` share of the steps, then to 0 at the last."""
    warmup_steps = int(warmup * steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return max(0.0, (steps - step) / max(1, steps - warmup_steps))

    return LambdaLR(optimizer, factor)
