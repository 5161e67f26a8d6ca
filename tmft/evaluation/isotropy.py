"""How embeddings fill their space. In every function x is (N, D), one row per sentence; float64 inside.

Embeddings of a pre-trained encoder lie in a narrow cone: any two sentences have a high cosine, which leaves
little room to say which are alike. Four figures of it, of embeddings as they are, before any fine-tuning.
"""

from torch import Tensor
from torch.nn.functional import normalize

BLOCK = 1024  # rows whose distances to all others are held at a time


def mean_cosine(x: Tensor) -> float:
    """Mean cosine of two different rows, over all pairs: near 1 in a narrow cone, 0 if directions are random.

    Called anisotropy in Ethayarajh 2019, arXiv:1909.00512, section 4.1, there of sampled words.
    """
    x = normalize(x.double(), dim=1)
    n = len(x)
    return ((x.sum(0).square().sum() - n) / (n * (n - 1))).item()  # |sum|² counts each row with itself, too


def iso_score(x: Tensor) -> float:
    """Share of the dimensions that the variance is spread over, 0 to 1: (k - 1) / (D - 1) for k equal ones.

    IsoScore of Rudman et al. 2022, arXiv:2108.07344, algorithm 1. With the variances v_i along the principal
    axes, its steps come to ((sum v_i)² / sum v_i² - 1) / (D - 1), and neither sum needs the axes: they are
    the trace of the covariance matrix and its squared Frobenius norm. NaN if D is 1 or all rows are equal.
    """
    x = x.double()
    x = x - x.mean(0)
    covariance = x.T @ x  # times N - 1, which cancels
    D = len(covariance)
    used = covariance.trace().square() / covariance.square().sum()
    return ((used - 1) / (D - 1)).item()


def alignment(u: Tensor, v: Tensor) -> float:
    """Mean squared distance of the unit vectors of alike sentences, u and v: (N, D). 0 is best, 4 worst.

    Wang and Isola 2020, arXiv:2005.10242, equation 8 with alpha = 2. NaN without pairs.
    """
    u, v = (normalize(side.double(), dim=1) for side in (u, v))
    return (u - v).square().sum(1).mean().item()


def uniformity(x: Tensor) -> float:
    """Log of the mean of exp(-2 |u - v|²) over all pairs of unit vectors: -8 to 0, lower is better.

    0 if all are equal. Wang and Isola 2020, equation 9 with t = 2.
    """
    x = normalize(x.double(), dim=1)
    n = len(x)
    total = sum((4 * (rows @ x.T) - 4).exp().sum() for rows in x.split(BLOCK))  # |u - v|² = 2 - 2 cos
    return ((total - n) / (n * (n - 1))).log().item()
