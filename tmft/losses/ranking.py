"""CoSENT and AnglE: losses that compare the pairs of a batch with each other, by the order of their scores.

Neither asks that a cosine equal a score. They ask that of two pairs the one with the higher score is the more
similar one, which is what the Spearman correlation measures.

Letters: P pairs in a batch, N pairs in a split, D dimensions of an embedding.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tmft.loss import Objective
from tmft.losses.multiple_negatives import TemperatureConfig
from tmft.metrics import cosines


def ranking_loss(similarity: Tensor, target: Tensor, temperature: float = 0.05) -> Tensor:
    """Return log(1 + the sum of exp((s_j - s_i) / temperature) over all i, j whose targets are t_i > t_j).

    similarity: s, (P,). target: t, (P,), any numbers; pairs with equal ones are not compared. Returns a
    scalar, 0 if all targets are equal.
    Source: Su 2022, https://kexue.fm/archives/8847, equation 6.

    Example:

    >>> round(ranking_loss(torch.tensor([0.6, 0.5]), torch.tensor([0.0, 1.0])).item(), 4)  # log(1 + e²)
    2.1269
    """
    differences = (similarity - similarity[:, None]) / temperature  # (P, P): [i, j] is s_j - s_i
    in_order = target[:, None] > target  # (P, P): i has the higher target
    return torch.cat([differences.new_zeros(1), differences[in_order]]).logsumexp(0)


def angle_similarity(u: Tensor, v: Tensor) -> Tensor:
    """Return the absolute sum of the complex quotients of u and v, of real and imaginary parts, (P,).

    u, v: (P, D). The first half of an embedding is the real part of D / 2 complex numbers, the second half
    the imaginary part; an odd D is filled up with a 0. u and v are scaled to length 1. As in the released
    code, the two parts are added, and 1 means equal embeddings.
    Source: Li and Li 2024, AnglE-optimized Text Embeddings, arXiv:2309.12871, equations 5 to 8.
    """
    u, v = (F.pad(F.normalize(x, dim=-1), (0, x.shape[-1] % 2)) for x in (u, v))
    (a, b), (c, d) = u.chunk(2, dim=-1), v.chunk(2, dim=-1)  # a + bi and c + di, (P, D / 2) each
    real, imaginary = a * c + b * d, b * c - a * d  # of (a + bi) times the conjugate of c + di
    return (real + imaginary).sum(-1).abs()


class CoSENT(Objective):
    """Cosine sentence loss: `ranking_loss` of the cosines of u and v.

    Example:

    >>> u, v = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> CoSENT(2)(u, v, torch.tensor([0.0, 1.0])).item() < 1e-6  # the order of the cosines, 0 and 1, is right
    True
    """

    config: TemperatureConfig

    prediction_type, config_class = "cosine", TemperatureConfig
    min_batch_size = 2  # the pairs of a batch are compared with each other

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar. u, v: (P, D) float32; target: (P,), scores or class indices."""
        return ranking_loss(F.cosine_similarity(u, v), target, self.config.temperature)

    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        """Return the cosine similarity of each pair, (N,) float64. u, v: (N, D)."""
        return cosines(u, v)


class AnglE(CoSENT):
    """Angle-optimized loss: `ranking_loss` of `angle_similarity`, whose gradient does not vanish near 1.

    The authors add it to a loss on cosines; alone it is what sentence-transformers calls AnglELoss.
    Predictions are cosines.
    """

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar. u, v: (P, D) float32; target: (P,), scores or class indices."""
        return ranking_loss(angle_similarity(u, v), target, self.config.temperature)
