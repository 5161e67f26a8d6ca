"""Isotropy: how sentence embeddings use their space. x is (N, D), one embedding per row; computed in float64.

Embeddings of a pre-trained encoder lie in a narrow cone: any two sentences have a high cosine, which leaves
little room to express which ones are similar. These four measures describe embeddings as they are, before any
fine-tuning.
"""

from torch import Tensor
from torch.nn.functional import normalize

BLOCK_SIZE = 1024  # embeddings whose distances to all others are in memory at a time


def mean_cosine(x: Tensor) -> float:
    """Mean cosine of all pairs of different embeddings: near 1 in a narrow cone, 0 for random directions.

    Ethayarajh 2019 (arXiv:1909.00512, section 4.1) calls it anisotropy, there for a sample of words.
    """
    x = normalize(x.double(), dim=1)
    n = len(x)
    return (
        (x.sum(0).square().sum() - n) / (n * (n - 1))
    ).item()  # |sum|² also has the N cosines of x with itself


def iso_score(x: Tensor) -> float:
    """IsoScore, the share of the dimensions that are in use, in [0, 1].

    It is (k - 1) / (D - 1) if the variance is spread evenly over k dimensions. NaN if D is 1 or all
    embeddings are equal.
    Source: Rudman et al. 2022, arXiv:2108.07344, algorithm 1. With the variances v_i along the principal
    axes, its steps amount to ((sum v_i)² / sum v_i² - 1) / (D - 1). Neither sum needs the axes: the first
    is the trace of the covariance matrix, the second its squared Frobenius norm.
    """
    x = x.double()
    x = x - x.mean(0)
    covariance = x.T @ x  # times N - 1, which cancels
    D = len(covariance)
    num_used = covariance.trace().square() / covariance.square().sum()
    return ((num_used - 1) / (D - 1)).item()


def alignment(u: Tensor, v: Tensor) -> float:
    """Mean squared distance between the unit vectors of similar sentences: 0 is best, 4 is worst.

    u, v: (N, D), the two embeddings of each pair. NaN without pairs.
    Source: Wang and Isola 2020, arXiv:2005.10242, equation 8 with alpha = 2.
    """
    u, v = (normalize(embeddings.double(), dim=1) for embeddings in (u, v))
    return (u - v).square().sum(1).mean().item()


def uniformity(x: Tensor) -> float:
    """Logarithm of the mean of exp(-2 |u - v|²) over all pairs of unit vectors: -8 to 0, lower is better.

    It is 0 if all embeddings have one direction.
    Source: Wang and Isola 2020, arXiv:2005.10242, equation 9 with t = 2.
    """
    x = normalize(x.double(), dim=1)
    n = len(x)
    total = sum((4 * (block @ x.T) - 4).exp().sum() for block in x.split(BLOCK_SIZE))  # |u - v|² = 2 - 2 cos
    return ((total - n) / (n * (n - 1))).log().item()
