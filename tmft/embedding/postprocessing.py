"""Post-processing: maps of sentence embeddings that are fitted to embeddings alone, without labels.

N embeddings are a cloud of points. The cloud of a pre-trained encoder lies far from the origin and is long
in a few directions, which then decide every cosine and every distance. The entries of POSTPROCESSING:

  center     moves the mean of the cloud to the origin
  zscore     center, then scales each dimension to variance 1
  whiten     center, then scales each principal axis to variance 1: a ball, with an IsoScore of 1 (Su et al.
             2021, arXiv:2103.15316)
  abtt       "all but the top": center, then removes the two longest principal axes; the others stay as they
             are (Mu and Viswanath 2018, arXiv:1702.01417)
  quantile   replaces a value by the fraction of smaller values in its dimension: a cube from 0 to 1
  normalize  projects each point to the unit sphere; nothing is fitted

Stankevičius and Lukoševičius 2024 (arXiv:2408.08073, section 3.4) compare them without fine-tuning. Their
formula of abtt multiplies element by element where it has to project, and leaves the plain center.
All but `quantile` and `normalize` are affine maps, W x + b, and are saved as a Dense layer, which
sentence-transformers can load.
Letters in this file: N sentences to fit on, S to map, D dimensions, K of them kept, Q quantiles.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.embedding.modules import Dense, Normalize
from tmft.errors import InputError, did_you_mean

NUM_TOP_AXES = 2  # principal axes that abtt removes
NUM_QUANTILES = 1000
BLOCK = 32  # dimensions that Quantile maps at a time, so that its working memory stays in the cache
# Variance of an axis, relative to the largest, that is only rounding: about 1e-15 in float32. There is such
# an axis wherever LayerNorm comes last: its outputs, and therefore their means, lie in one hyperplane.
NO_VARIANCE = 1e-10


# ------------------------------- the entries: each fits a module for (S, D) to embeddings x, (N, D), in
# float64


def fit_center(x: Tensor) -> Dense:
    mean = check_samples(x, "center").mean(0)
    return affine(torch.diag(torch.ones_like(mean)), -mean)


def fit_zscore(x: Tensor) -> Dense:
    """A dimension with a single value is only centered."""
    std, mean = torch.std_mean(check_samples(x, "zscore"), dim=0, correction=0)
    varies = std > 1e-12 * mean.abs()  # a smaller one is the rounding of the mean
    scale = 1 / torch.where(varies, std, 1.0)
    return affine(torch.diag(scale), -scale * mean)


def fit_whiten(x: Tensor) -> Dense:
    """K output dimensions, by descending variance; axes without variance are removed.

    Raises InputError if N <= D.
    """
    N, D = x.shape
    if N <= D:
        raise InputError(
            f"postprocess whiten needs more sentences than dimensions (here {N} for {D} dimensions): give "
            "more text, or choose zscore or abtt",
            "postprocess",
        )
    variances, axes, mean = principal_axes(check_samples(x, "whiten"))
    keep = variances > NO_VARIANCE * variances[0]
    weight = axes[keep] / variances[keep, None].sqrt()
    return affine(weight, -weight @ mean)


def fit_abtt(x: Tensor) -> Dense:
    """x - mean without its projection on the first NUM_TOP_AXES principal axes.

    N points span N - 1 dimensions at most, so N is at least NUM_TOP_AXES + 2.
    """
    _, axes, mean = principal_axes(check_samples(x, "abtt", min_samples=NUM_TOP_AXES + 2))
    top = axes[:NUM_TOP_AXES]
    weight = torch.diag(torch.ones_like(mean)) - top.T @ top
    return affine(weight, -weight @ mean)


class Quantile(nn.Module):
    """The empirical distribution function of each dimension: a value -> the fraction of smaller ones, 0 to 1.

    It is known at Q quantiles and linear between them; below the first it is 0, above the last 1. If several
    quantiles are equal, their value gets the middle of their fractions; the smallest value gets 0, the
    largest 1. Equal to scikit-learn's QuantileTransformer(output_distribution="uniform", subsample=None).
    """

    weight_prefix = ""

    def __init__(self, quantiles: Tensor):
        """quantiles: (D, Q) float64, ascending; quantile q of Q is the value at fraction q / (Q - 1)."""
        super().__init__()
        quantiles = quantiles.contiguous()
        Q = quantiles.shape[1]
        first = torch.searchsorted(quantiles, quantiles)
        last = torch.searchsorted(quantiles, quantiles, right=True) - 1
        fractions = (first + last).double() / 2 / (Q - 1)
        fractions = torch.where(last == Q - 1, 1.0, fractions).masked_fill(first == 0, 0.0)
        slopes = F.pad(1 / (Q - 1) / quantiles.diff(), (0, 1))
        self.register_buffer("quantiles", quantiles)  # (D, Q)
        self.register_buffer("fractions", fractions)  # (D, Q): at each quantile
        self.register_buffer("slopes", slopes)  # (D, Q): from each quantile to the next

    def forward(self, x: Tensor) -> Tensor:
        """(S, D) -> (S, D) of the same dtype; computed in float64."""
        tensors = (x.T, self.quantiles, self.fractions, self.slopes)
        blocks = zip(*(tensor.split(BLOCK) for tensor in tensors), strict=True)
        return torch.cat([fraction_below(*block).to(x.dtype) for block in blocks]).T.contiguous()

    @property
    def config(self) -> dict:
        raise InputError(
            "postprocess quantile cannot be saved with a model (sentence-transformers has no such module): "
            "choose zscore",
            "postprocess",
        )


def fraction_below(values: Tensor, quantiles: Tensor, fractions: Tensor, slopes: Tensor) -> Tensor:
    """values: (D, S); quantiles, and the fractions and slopes of Quantile at them: (D, Q) -> (D, S)."""
    values = values.double().contiguous()
    last = torch.searchsorted(quantiles, values, right=True).sub_(1).clamp_(min=0)  # last quantile <= value
    quantile, fraction, slope = (table.gather(1, last) for table in (quantiles, fractions, slopes))
    between = last.double() / (quantiles.shape[1] - 1) + slope * (values - quantile)
    return torch.where(
        values == quantile, fraction, between.clamp(0, 1)
    )  # clamp: values outside the quantiles


def fit_quantile(x: Tensor) -> Quantile:
    x = check_samples(x, "quantile")
    N = len(x)
    ordered = x.T.contiguous().sort(dim=1).values  # (D, N): one sort gives all quantiles of a dimension
    percent = torch.from_numpy(100 * np.linspace(0, 1, min(NUM_QUANTILES, N)))  # (Q,)
    position = (N - 1) * (percent / 100).to(x.device)  # (Q,): where in the order, between two values
    below = position.long().clamp(max=max(0, N - 2))
    return Quantile(torch.lerp(ordered[:, below], ordered[:, below + 1], position - below))


def fit_normalize(x: Tensor) -> Normalize:
    return Normalize()


# fmt: off
POSTPROCESSING: dict[str, Callable[[Tensor], nn.Module]] = {
    "center":    fit_center,
    "zscore":    fit_zscore,
    "whiten":    fit_whiten,
    "abtt":      fit_abtt,
    "quantile":  fit_quantile,
    "normalize": fit_normalize,
}
# fmt: on


# -------------------------------------------------------------------------------------------- several in a
# row


def check_postprocessing(names: str) -> None:
    """Raise InputError unless names is '' or names of POSTPROCESSING, joined by +."""
    for name in names.split("+") if names else []:
        if name not in POSTPROCESSING:
            known = f"{', '.join(POSTPROCESSING)}, or several as in abtt+normalize"
            suggestion = did_you_mean(name, POSTPROCESSING)
            raise InputError(
                f"postprocess {names}: {name!r} is unknown: choose from {known}{suggestion}", "postprocess"
            )


def fit_postprocessing(names: str, x: Tensor) -> list[nn.Module]:
    """Fit the post-processing "abtt+normalize", for instance, to N embeddings.

    x: (N, D), any float dtype. Returns modules that map (S, D) float32. Each entry of POSTPROCESSING is
    fitted, in float64, to the output of those before it; consecutive affine maps are composed into one Dense.
    Raises InputError if there is no such entry, or too little to fit it to.
    """
    check_postprocessing(names)
    x, modules = x.detach().double(), []
    for name in names.split("+"):
        module = POSTPROCESSING[name](x)
        if isinstance(module, Dense):
            x = F.linear(x, *weight_and_bias(module))
            if modules and isinstance(modules[-1], Dense):
                module = compose_affine(modules.pop(), module)
        else:
            x = module(x)
        modules.append(module.eval())
    return modules


# --------------------------------------------------------------------------------- parts of the entries above


def check_samples(x: Tensor, name: str, min_samples: int = 2) -> Tensor:
    """Return x in float64. Raises InputError if it has too few embeddings, equal ones, or infinite values."""
    if len(x) < min_samples:
        raise InputError(
            f"postprocess {name} needs at least {min_samples} sentences (here {len(x)}): give more text",
            "postprocess",
        )
    if not (finite := x.isfinite().all(1)).all():
        raise InputError(
            f"postprocess {name}: the embedding of sentence {finite.int().argmin() + 1} of {len(x)} is not "
            "finite: remove postprocess, or choose another layer",
            "postprocess",
        )
    if (x == x[0]).all():
        raise InputError(
            f"postprocess {name}: all {len(x)} embeddings are equal: give different sentences", "postprocess"
        )
    return x.detach().double()


def principal_axes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Variances (D,), descending, the axes that have them as rows (D, D), and the mean (D,)."""
    mean = x.mean(0)
    centered = x - mean
    covariance = centered.T @ centered / (len(x) - 1)
    variances, axes = torch.linalg.eigh(covariance)  # ascending, axes as columns
    return variances.flip(0), axes.T.flip(0), mean


def affine(weight: Tensor, bias: Tensor) -> Dense:
    """weight: (K, D), bias: (K,), float64 -> a Dense, which is float32."""
    with torch.device("meta"):  # without drawing random weights, which would advance the caller's generator
        dense = Dense(*weight.T.shape)
    dense.weight, dense.bias = (nn.Parameter(tensor.detach().float()) for tensor in (weight, bias))
    return dense


def compose_affine(first: Dense, second: Dense) -> Dense:
    """V (W x + a) + b = (V W) x + (V a + b)"""
    (W, a), (V, b) = weight_and_bias(first), weight_and_bias(second)
    return affine(V @ W, V @ a + b)


def weight_and_bias(dense: Dense) -> tuple[Tensor, Tensor]:
    """W (K, D) and b (K,) in float64."""
    return dense.weight.detach().double(), dense.bias.detach().double()
