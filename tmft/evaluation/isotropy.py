"""Measures of isotropy: how evenly sentence embeddings use their space. All are computed in float64.

Embeddings of a pre-trained encoder lie in a narrow cone: any two sentences have a high cosine, which leaves
little room to express which ones are similar.

Shapes: N sentences, D dimensions of an embedding.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

BLOCK_SIZE = 1024  # number of embeddings whose distances to all others are in memory at a time


def mean_cosine(x: Tensor) -> float:
    """Return the mean cosine of all pairs of different sentences, in [-1, 1].

    It is near 1 if embeddings lie in a narrow cone, and near 0 if their directions are random. x: (N, D).
    Ethayarajh 2019 (arXiv:1909.00512, section 4.1) calls it anisotropy, there for a sample of words.
    """
    x = normalize(x.double(), dim=1)
    n = len(x)
    # |sum|² is the sum of all cosines; N of them are those of an embedding with itself.
    return ((x.sum(0).square().sum() - n) / (n * (n - 1))).item()


def iso_score(x: Tensor) -> float:
    """Return IsoScore, roughly the share of the dimensions that the embeddings use, in [0, 1].

    It is (k - 1) / (D - 1) if the variance is spread evenly over k dimensions, and NaN if D is 1 or all
    embeddings are equal. x: (N, D).
    Source: Rudman et al. 2022, arXiv:2108.07344, algorithm 1. With the variances v_i along the principal
    axes, its steps amount to ((sum v_i)² / sum v_i² - 1) / (D - 1). Neither sum needs the axes: the first
    is the trace of the covariance matrix, the second its squared Frobenius norm.

    Example:

    >>> import torch
    >>> iso_score(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))  # both dimensions
    1.0
    >>> iso_score(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0]]))  # the first one only
    0.0
    """
    x = x.double()
    x = x - x.mean(0)
    covariance = x.T @ x  # times N - 1, which cancels
    D = len(covariance)
    num_used = covariance.trace().square() / covariance.square().sum()
    return ((num_used - 1) / (D - 1)).item()


def alignment(u: Tensor, v: Tensor, power: float = 2, scale: bool = True) -> float:
    """Return the mean squared distance between similar sentences.

    u, v: (N, D), the two embeddings of each pair of similar sentences. power: of the distance. Ni et al. 2021
    (arXiv:2108.08877, equation 3) print the negative of that with power 1, in [-2, 0], where lower is worse.
    scale: scale embeddings to length 1 first; 0 is then best and 4 is worst. Stankevičius and Lukoševičius
    2024 (arXiv:2408.08073, figure 3) do not. NaN if there are no pairs.
    Source: Wang and Isola 2020, arXiv:2005.10242, equation 8 with alpha = power.
    """
    u, v = u.double(), v.double()
    if scale:
        u, v = normalize(u, dim=1), normalize(v, dim=1)
    return (u - v).square().sum(1).pow(power / 2).mean().item()


def uniformity(x: Tensor, power: float = 2, scale: bool = True) -> float:
    """Return uniformity, the logarithm of the mean of exp(-2 |u - v|²) over all pairs of embeddings, (N, D).

    Lower is better, and 0 means that all embeddings are the same. power: of the distance; Ni et al. 2021
    print 1 (equation 4), with values in [-4, 0]. scale: to length 1 first, with values in [-8, 0].
    Source: Wang and Isola 2020, arXiv:2005.10242, equation 9 with t = 2.
    """
    x = normalize(x.double(), dim=1) if scale else x.double()
    x = x - x.mean(0)  # with shorter vectors, |u|² + |v|² - 2 u v loses less to rounding
    n, squared_norms = len(x), x.square().sum(1)
    logs = []  # of the sums of the blocks: a sum itself could be 0 in float64
    for start in range(0, n, BLOCK_SIZE):
        block = x[start : start + BLOCK_SIZE]
        squared_distances = squared_norms[start : start + BLOCK_SIZE, None] + squared_norms - 2 * block @ x.T
        exponents = -2 * squared_distances.clamp(min=0).pow(power / 2)
        own = torch.arange(len(block))
        exponents[own, start + own] = -math.inf  # a sentence and itself
        logs.append(exponents.flatten().logsumexp(0))
    num_pairs = torch.tensor(n * (n - 1), dtype=torch.float64)
    return (torch.stack(logs).logsumexp(0) - num_pairs.log()).item()
