"""The answer of exercise 4."""

from torch import Tensor


def linear_cka(x: Tensor, y: Tensor) -> float:
    """Without centering, the part that all sentences share decides, and everything looks similar."""
    x, y = x - x.mean(0), y - y.mean(0)
    return ((x.T @ y).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())).item()
