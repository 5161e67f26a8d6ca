"""Post-processing: maps of sentence embeddings that are fitted to N embeddings, without labels.

The embeddings of a pre-trained encoder lie far from the origin and vary mostly in a few directions, which
then decide every cosine and every distance. Stankevičius and Lukoševičius 2024 (arXiv:2408.08073, section
3.4) compare the maps of the registry POSTPROCESSING without fine-tuning; docs/without-training.md lists them.
All maps but quantile and normalize are affine, W x + b, and are saved as a Dense module, which
sentence-transformers can load.

Letters in this file: N sentences that a map is fitted to, S sentences that it is applied to, D dimensions,
K dimensions of the result, Q quantiles.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.embedding.modules import Dense, Normalize
from tmft.errors import InputError, did_you_mean
from tmft.sentence_encoder import SentenceEncoder

NUM_TOP_AXES = 2  # principal axes that abtt removes unless its name has another number
NUMBERED_ABTT = re.compile(r"abtt-([1-9]\d{0,4})")
MIN_FRACTION = 1e-7  # fractions nearer to 0 or 1 would be mapped to infinite values
NUM_QUANTILES = 1000
BLOCK = 32  # dimensions that Quantile maps at a time, so that its working memory stays in the cache
# A principal axis whose variance is smaller than this, relative to the largest variance, counts as an axis
# without variance; rounding in float32 gives about 1e-15. There is such an axis if the encoder ends with a
# LayerNorm: its outputs, and therefore their means, lie in one hyperplane.
NO_VARIANCE = 1e-10


# ------------------- the entries of the registry: each takes embeddings x, (N, D) float64, and returns a
# module that maps embeddings (S, D) to (S, K)


def fit_center(x: Tensor) -> Dense:
    """Return the map x - mean."""
    check_num_sentences(x, "center")
    mean = x.mean(0)
    return make_affine_dense(torch.diag(torch.ones_like(mean)), -mean)


def fit_zscore(x: Tensor) -> Dense:
    """Return the map (x - mean) / std, by dimension. A dimension that does not vary is only centered."""
    check_num_sentences(x, "zscore")
    std, mean = torch.std_mean(x, dim=0, correction=0)
    varies = std > 1e-12 * mean.abs()  # a smaller one is the rounding of the mean
    scale = 1 / torch.where(varies, std, 1.0)
    return make_affine_dense(torch.diag(scale), -scale * mean)


def fit_whiten(x: Tensor) -> Dense:
    """Return the map to K principal axes, each scaled to variance 1, in the order of descending variance.

    Axes without variance are removed, so K may be smaller than D. The result has an IsoScore of 1.
    Source: Su et al. 2021, arXiv:2103.15316.
    """
    N, D = x.shape
    if N <= D:
        problem = f"postprocess whiten needs more sentences than dimensions (here {N} for {D} dimensions)"
        raise InputError(f"{problem}: give more text, or choose zscore or abtt", "postprocess")
    variances, axes, mean = principal_axes(x)
    keep = variances > NO_VARIANCE * variances[0]
    weight = axes[keep] / variances[keep, None].sqrt()
    return make_affine_dense(weight, -weight @ mean)


def fit_robust(x: Tensor) -> Dense:
    """Return the map (x - median) / (third quartile - first quartile), by dimension.

    A dimension whose quartiles are equal is only centered. It equals scikit-learn's RobustScaler.
    """
    check_num_sentences(x, "robust")
    first, median, third = torch.quantile(x, torch.tensor([0.25, 0.5, 0.75], dtype=x.dtype), dim=0)
    spread = third - first
    scale = 1 / torch.where(spread > 1e-12 * x.abs().amax(0), spread, 1.0)
    return make_affine_dense(torch.diag(scale), -scale * median)


def fit_abtt(x: Tensor, num_axes: int = NUM_TOP_AXES) -> Dense:
    """Return "all but the top": x - mean without its projection on the first num_axes principal axes.

    N points span at most N - 1 dimensions, so that at least num_axes + 2 sentences are needed.
    Source: Mu and Viswanath 2018, arXiv:1702.01417. The formula of Stankevičius and Lukoševičius has an
    element-wise product where a projection is needed; it does little more than center.
    """
    if num_axes >= x.shape[1]:
        problem = f"postprocess abtt-{num_axes} removes all of {x.shape[1]} dimensions: choose fewer"
        raise InputError(problem, "postprocess")
    check_num_sentences(x, "abtt", num_axes + 2)
    _, axes, mean = principal_axes(x)
    top = axes[:num_axes]
    weight = torch.diag(torch.ones_like(mean)) - top.T @ top
    return make_affine_dense(weight, -weight @ mean)


class Quantile(nn.Module):
    """Map each value to the fraction of smaller values in its dimension, 0 to 1.

    The fraction is known at Q quantiles and interpolated linearly between them; it is 0 below the first
    quantile and 1 above the last one. If several quantiles are equal, their value is mapped to the middle of
    their fractions; but the smallest value is mapped to 0 and the largest to 1.
    is_normal: map the fraction to the value that has it in the standard normal distribution.
    It equals scikit-learn's QuantileTransformer(output_distribution="uniform" or "normal", subsample=None).
    """

    quantiles: Tensor
    fractions: Tensor
    slopes: Tensor
    is_normal: bool

    def __init__(self, quantiles: Tensor, is_normal: bool = False):
        """quantiles: (D, Q) float64, ascending; quantile q of Q is the value at fraction q / (Q - 1)."""
        super().__init__()
        self.is_normal = is_normal
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
        """Return the fractions for embeddings x, (S, D), or their normal values, computed in float64."""
        tensors = (x.T, self.quantiles, self.fractions, self.slopes)
        blocks = zip(*(tensor.split(BLOCK) for tensor in tensors), strict=True)
        fractions = (fraction_below(*block) for block in blocks)
        if self.is_normal:
            clamped = (part.clamp(MIN_FRACTION, 1 - MIN_FRACTION) for part in fractions)
            fractions = (torch.special.ndtri(part) for part in clamped)
        return torch.cat([part.to(x.dtype) for part in fractions]).T.contiguous()


def fraction_below(values: Tensor, quantiles: Tensor, fractions: Tensor, slopes: Tensor) -> Tensor:
    """Return the fraction for each value, (D, S) float64, from the buffers of Quantile, (D, Q) each."""
    values = values.double().contiguous()
    last = torch.searchsorted(quantiles, values, right=True).sub_(1).clamp_(min=0)  # last quantile <= value
    quantile, fraction, slope = (table.gather(1, last) for table in (quantiles, fractions, slopes))
    between = last.double() / (quantiles.shape[1] - 1) + slope * (values - quantile)
    # values outside the quantiles are clamped
    return torch.where(values == quantile, fraction, between.clamp(0, 1))


def fit_quantile(x: Tensor, is_normal: bool = False) -> Quantile:
    """Return the map of each value to the fraction of smaller values among the N of x in its dimension."""
    check_num_sentences(x, "quantile-normal" if is_normal else "quantile")
    N = len(x)
    ordered = x.T.contiguous().sort(dim=1).values  # (D, N): one sort gives all quantiles of a dimension
    percent = torch.from_numpy(100 * np.linspace(0, 1, min(NUM_QUANTILES, N)))  # (Q,)
    position = (N - 1) * (percent / 100).to(x.device)  # (Q,): position in the order, possibly between two
    below = position.long().clamp(max=max(0, N - 2))
    quantiles = torch.lerp(ordered[:, below], ordered[:, below + 1], position - below)
    return Quantile(quantiles, is_normal)


# fmt: off
POSTPROCESSING: dict[str, Callable[[Tensor], nn.Module]] = {
    "center":          fit_center,
    "zscore":          fit_zscore,
    "robust":          fit_robust,
    "whiten":          fit_whiten,
    "abtt":            fit_abtt,
    "quantile":        fit_quantile,
    "quantile-normal": partial(fit_quantile, is_normal=True),
    "normalize":       lambda x: Normalize(),  # x / ||x||, for which nothing is fitted
}
# fmt: on


# --------------------------------------------------------------------- several maps, one after the other


def check_postprocessing(postprocess: str) -> None:
    """Raise InputError unless postprocess is '' or consists of names in POSTPROCESSING, joined by +."""
    for name in postprocess.split("+") if postprocess else []:
        if name not in POSTPROCESSING and not NUMBERED_ABTT.fullmatch(name):
            known = f"{', '.join(POSTPROCESSING)}, abtt-10, or several as in abtt+normalize"
            suggestion = did_you_mean(name, POSTPROCESSING)
            raise InputError(
                f"postprocess {postprocess}: {name!r} is unknown: choose from {known}{suggestion}",
                "postprocess",
            )


def fit_postprocessing(postprocess: str, x: Tensor) -> list[nn.Module]:
    """Fit one or several maps to N embeddings and return them as modules, to be applied in order.

    postprocess: names in POSTPROCESSING, joined by +, such as "abtt+normalize". x: (N, D), any float dtype.
    The modules map (S, D) float32 to (S, K) float32. Each map is fitted, in float64, to the output of the
    maps before it; consecutive affine maps are composed into one Dense.
    Raises InputError if a name is unknown, or if x has too few embeddings to fit a map.

    Example:

    >>> x = torch.tensor([[3.0, 0.0], [5.0, 1.0], [4.0, 8.0]])
    >>> [center] = fit_postprocessing("center", x)
    >>> center(x).tolist()
    [[-1.0, -3.0], [1.0, -2.0], [0.0, 5.0]]
    """
    check_postprocessing(postprocess)
    x = x.detach().double()
    modules: list[nn.Module] = []
    for name in postprocess.split("+"):
        numbered = NUMBERED_ABTT.fullmatch(name)
        module = fit_abtt(x, int(numbered[1])) if numbered else POSTPROCESSING[name](x)
        if isinstance(module, Dense):
            x = F.linear(x, *weight_and_bias(module))
            if modules and isinstance(before := modules[-1], Dense):
                module = compose_affine(before, module)
                del modules[-1]
        else:
            x = module(x)
        modules.append(module.eval())
    return modules


# -------------------------------------------------------------------- functions used by the entries above


def check_num_sentences(x: Tensor, name: str, least: int = 2) -> None:
    """Raise InputError if there are fewer embeddings, (N, D), than a map needs."""
    if len(x) < least:
        problem = f"postprocess {name} needs at least {least} sentences (here {len(x)}): give more text"
        raise InputError(problem, "postprocess")


def principal_axes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the variances of x, (N, D), along its principal axes, descending; the axes; and its mean, (D,).

    Row i of the axes, (D, D), is the unit vector of axis i.
    """
    mean = x.mean(0)
    centered = x - mean
    covariance = centered.T @ centered / (len(x) - 1)
    variances, axes = torch.linalg.eigh(covariance)  # ascending, axes as columns
    return variances.flip(0), axes.T.flip(0), mean


def make_affine_dense(weight: Tensor, bias: Tensor) -> Dense:
    """Return a Dense, in float32, for the map weight @ x + bias. weight: (K, D); bias: (K,)."""
    with torch.device("meta"):  # draws no random weights, which would change the state of the generator
        dense = Dense(*weight.T.shape)
    dense.weight, dense.bias = (nn.Parameter(tensor.detach().float()) for tensor in (weight, bias))
    return dense


def compose_affine(first: Dense, second: Dense) -> Dense:
    """Return a Dense that applies `first`, then `second`: V (W x + a) + b = (V W) x + (V a + b)."""
    (W, a), (V, b) = weight_and_bias(first), weight_and_bias(second)
    return make_affine_dense(V @ W, V @ a + b)


def weight_and_bias(dense: Dense) -> tuple[Tensor, Tensor]:
    """Return the weight, (K, D), and the bias, (K,), of a Dense in float64."""
    return dense.weight.detach().double(), dense.bias.detach().double()


# ------------------------------------------------------- modules that are appended to those of a model


def first_dimensions(width: int, num_kept: int) -> Dense:
    """Return a Dense that keeps the first num_kept of `width` dimensions: (S, width) -> (S, num_kept)."""
    dense = Dense(width, num_kept, bias=False)
    dense.weight.data = torch.eye(num_kept, width)
    return dense


def keep_first_dimensions(model: SentenceEncoder, truncate_dim: int) -> None:
    """Append a Dense that keeps the first dimensions, and a Normalize if the model ends with one.

    Unlike those of model.truncate_dim, embeddings that had length 1 then still have it, in every library.
    """
    if not 0 < truncate_dim <= model.full_dimensions:
        raise InputError(f"truncate_dim {truncate_dim}: choose 1 to {model.full_dimensions}", "truncate_dim")
    ends_with_normalize = any(isinstance(module, Normalize) for module in [*model.head_modules][-1:])
    dense = first_dimensions(model.full_dimensions, truncate_dim)
    model.truncate_dim = None
    model.head_modules.extend([dense.to(model.device), *[Normalize()] * ends_with_normalize])


def append_modules(model: SentenceEncoder, modules: Sequence[nn.Module]) -> None:
    """Append modules to a model, which take the dimensions that model.truncate_dim leaves."""
    if modules and model.truncate_dim is not None:
        model.head_modules.append(first_dimensions(model.full_dimensions, model.dimensions))
        model.truncate_dim = None
    model.head_modules.extend(modules)
