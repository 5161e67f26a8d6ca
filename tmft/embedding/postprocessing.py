"""Post-processing: maps of sentence embeddings that are learnt from embeddings alone, without labels.

N embeddings are a cloud of points. That of a pre-trained encoder lies far from the origin and is long in a
few directions, which then decide every cosine and every distance. What each row of AFTER does to the cloud:

  center     moves its mean to the origin
  zscore     center, and each dimension gets variance 1
  whiten     center, and each principal axis gets variance 1: a ball, with an IsoScore of 1 (Su et al. 2021,
             arXiv:2103.15316)
  abtt       all but the top: center, and the two longest principal axes are flattened, the others stay as
             they are (Mu and Viswanath 2018, arXiv:1702.01417)
  quantile   a number becomes the share of those in its dimension that are smaller: a cube from 0 to 1
  normalize  each point goes to the unit sphere; nothing is learnt

Stankevičius and Lukoševičius 2024 (arXiv:2408.08073, section 3.4) compare them without fine-tuning. Their
formula of abtt multiplies element by element where it has to project, and leaves the plain center.
All but the last two are affine, W x + b: a Dense, which is saved with a model as sentence-transformers' own.
Letters in this file: N sentences to learn from, S to map, D dimensions, K of them kept, Q quantiles.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.embedding.modules import Dense, Normalize
from tmft.errors import InputError, did_you_mean

COMPONENTS = 2  # principal axes that abtt flattens
QUANTILES = 1000
BLOCK = 32  # dimensions that Quantile maps at a time: what it works on stays in the cache
# Variance of an axis, as a part of the largest, that is rounding: 1e-15 or so in float32. There is such
# an axis wherever LayerNorm comes last: its outputs, and so their means, lie in one hyperplane.
NO_VARIANCE = 1e-10


# ------------------------------------------------------ the rows: x (N, D) -> a module for (S, D); in float64


def center(x: Tensor) -> Dense:
    mean = checked(x, "center").mean(0)
    return affine(torch.diag(torch.ones_like(mean)), -mean)


def zscore(x: Tensor) -> Dense:
    """A dimension of one value is only centred."""
    deviation, mean = torch.std_mean(checked(x, "zscore"), dim=0, correction=0)
    varies = deviation > 1e-12 * mean.abs()  # less is the rounding of the mean
    scale = 1 / torch.where(varies, deviation, 1.0)
    return affine(torch.diag(scale), -scale * mean)


def whiten(x: Tensor) -> Dense:
    """K outputs, by falling variance before: axes without variance are left out. InputError if N <= D."""
    N, D = x.shape
    if N <= D:
        what = f"after whiten learns from more sentences than dimensions (here {N} of {D} dimensions)"
        raise InputError(f"{what}: give more text, or choose zscore or abtt", "after")
    variances, axes, mean = principal_axes(checked(x, "whiten"))
    kept = variances > NO_VARIANCE * variances[0]
    weight = axes[kept] / variances[kept, None].sqrt()
    return affine(weight, -weight @ mean)


def abtt(x: Tensor) -> Dense:
    """x - mean without its part along the first COMPONENTS principal axes; N points span N - 1 at most."""
    _, axes, mean = principal_axes(checked(x, "abtt", least=COMPONENTS + 2))
    top = axes[:COMPONENTS]
    weight = torch.diag(torch.ones_like(mean)) - top.T @ top
    return affine(weight, -weight @ mean)


class Quantile(nn.Module):
    """The empirical distribution function of each dimension: a value -> the share of smaller ones, 0 to 1.

    It is known at Q quantiles and linear between them; below the first it is 0, above the last 1. Where
    several quantiles are one value, that value gets the middle of their shares; the least gets 0, the largest
    1. The same as scikit-learn's QuantileTransformer(output_distribution="uniform", subsample=None).
    """

    prefix = ""

    def __init__(self, quantiles: Tensor):
        """quantiles: (D, Q) float64, ascending; the q-th of Q is the value at share q / (Q - 1)."""
        super().__init__()
        quantiles = quantiles.contiguous()
        Q = quantiles.shape[1]
        first = torch.searchsorted(quantiles, quantiles)
        last = torch.searchsorted(quantiles, quantiles, right=True) - 1
        at = (first + last).double() / 2 / (Q - 1)
        at = torch.where(last == Q - 1, 1.0, at).masked_fill(first == 0, 0.0)
        slope = F.pad(1 / (Q - 1) / quantiles.diff(), (0, 1))  # from here to the next quantile
        self.register_buffer("quantiles", quantiles)  # (D, Q)
        self.register_buffer("at", at)  # (D, Q): the share at a quantile
        self.register_buffer("slope", slope)  # (D, Q)

    def forward(self, x: Tensor) -> Tensor:
        """(S, D) -> (S, D) of the same dtype; computed in float64."""
        parts = zip(*(t.split(BLOCK) for t in (x.T, self.quantiles, self.at, self.slope)), strict=True)
        return torch.cat([shares(*part).to(x.dtype) for part in parts]).T.contiguous()

    @property
    def settings(self) -> dict:
        raise InputError(
            "after quantile cannot be saved with a model (no module of sentence-transformers does it): "
            "choose zscore, which can",
            "after",
        )


def shares(values: Tensor, quantiles: Tensor, at: Tensor, slope: Tensor) -> Tensor:
    """values: (D, S); quantiles and the share at each, the slope after each: (D, Q) -> shares (D, S)"""
    values = values.double().contiguous()
    last = torch.searchsorted(quantiles, values, right=True).sub_(1).clamp_(min=0)  # that is not above it
    here, share, rise = (table.gather(1, last) for table in (quantiles, at, slope))
    between = last.double() / (quantiles.shape[1] - 1) + rise * (values - here)
    return torch.where(values == here, share, between.clamp(0, 1))  # the clamp: for what is outside


def quantile(x: Tensor) -> Quantile:
    x = checked(x, "quantile")
    N = len(x)
    ordered = x.T.contiguous().sort(dim=1).values  # (D, N): all quantiles of a dimension with one sort
    place = (N - 1) * (torch.from_numpy(100 * np.linspace(0, 1, min(QUANTILES, N))) / 100).to(
        x.device
    )  # (Q,)
    below = place.long().clamp(max=max(0, N - 2))
    return Quantile(torch.lerp(ordered[:, below], ordered[:, below + 1], place - below))


def normalize(x: Tensor) -> Normalize:
    return Normalize()


# fmt: off
AFTER: dict[str, Callable[[Tensor], nn.Module]] = {
    "center":    center,
    "zscore":    zscore,
    "whiten":    whiten,
    "abtt":      abtt,
    "quantile":  quantile,
    "normalize": normalize,
}
# fmt: on


# ------------------------------------------------------------------------------------------ what they rest on


def checked(x: Tensor, name: str, least: int = 2) -> Tensor:
    """x in float64, if there is something to learn from."""
    if len(x) < least:
        what = f"after {name} learns from {least} sentences or more (here {len(x)})"
        raise InputError(f"{what}: give more text", "after")
    if not (finite := x.isfinite().all(1)).all():
        where = f"of sentence {finite.int().argmin() + 1} of {len(x)}"
        raise InputError(f"after {name}: an embedding is not finite ({where}): leave after out", "after")
    if (x == x[0]).all():
        raise InputError(f"after {name}: all {len(x)} embeddings are equal: give text that differs", "after")
    return x.detach().double()


def principal_axes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Variances (D,) falling, the axes they lie along as rows (D, D), and the mean (D,)."""
    mean = x.mean(0)
    centred = x - mean
    covariance = centred.T @ centred / (len(x) - 1)
    variances, axes = torch.linalg.eigh(covariance)  # rising, axes as columns
    return variances.flip(0), axes.T.flip(0), mean


def affine(weight: Tensor, bias: Tensor) -> Dense:
    """weight: (K, D), bias: (K,), float64 -> a Dense, which is float32"""
    with torch.device("meta"):  # no random weights: they would move the generator of the caller
        dense = Dense(*weight.T.shape)
    dense.weight, dense.bias = (nn.Parameter(part.detach().float()) for part in (weight, bias))
    return dense


# ------------------------------------------------------------------------------------------------ one by one


def check_after(names: str) -> None:
    """Raises InputError if there is no such row of AFTER; "" is none at all."""
    for name in names.split("+") if names else []:
        if name not in AFTER:
            known = f"choose from {', '.join(AFTER)}, or several as in abtt+normalize"
            raise InputError(f"after has no {name!r} ({names}): {known}{did_you_mean(name, AFTER)}", "after")


def learn(names: str, x: Tensor) -> list[nn.Module]:
    """Rows of AFTER, as in "abtt+normalize", from N embeddings -> modules that map (S, D) float32.

    x: (N, D), any float dtype. Each row is learnt, in float64, from what those before it make of x; affine
    neighbours become one Dense. Raises InputError if there is no such row or too little to learn from.
    """
    check_after(names)
    x, modules = x.detach().double(), []
    for name in names.split("+"):
        module = AFTER[name](x)
        if isinstance(module, Dense):
            x = F.linear(x, *exact(module))
            if modules and isinstance(modules[-1], Dense):
                module = merged(modules.pop(), module)
        else:
            x = module(x)
        modules.append(module.eval())
    return modules


def merged(first: Dense, second: Dense) -> Dense:
    """V (W x + a) + b = (V W) x + (V a + b)"""
    (W, a), (V, b) = exact(first), exact(second)
    return affine(V @ W, V @ a + b)


def exact(dense: Dense) -> tuple[Tensor, Tensor]:
    return dense.weight.detach().double(), dense.bias.detach().double()
