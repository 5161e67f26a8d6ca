"""The losses of the paper on the cosine of a pair: its squared error and, for two classes, its cross-entropy.

Shapes: P pairs in a batch, N pairs in a split, D dimensions of an embedding.
"""

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from tmft.losses.objective import Objective
from tmft.metrics import cosines
from tmft.tasks import Task


class CosineMSE(Objective):
    """Mean squared error of the cosine similarity of u and v, compared with a target in [0, 1].

    The target is the similarity score of the pair, rescaled to [0, 1]. There are no parameters.

    Source: Rep et al. 2024, section 3; Reimers and Gurevych 2019, arXiv:1908.10084.

    Example:

    >>> import torch
    >>> u, v = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> CosineMSE()(u, v, torch.tensor([1.0, 0.5])).item()  # the mean of (1 - 1)² and (0 - 0.5)²
    0.125
    """

    prediction_type = "cosine"

    def __init__(self, dimensions: int = 0, task: Task | None = None):
        super().__init__(dimensions, task)

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar. u, v: (P, D) float32; target: (P,), scores in [0, 1]."""
        return F.mse_loss(F.cosine_similarity(u, v), target.to(u.dtype))

    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        """Return the cosine similarity of each pair, (N,) float64. u, v: (N, D)."""
        return cosines(u, v)


class CosineBCE(CosineMSE):
    """Binary cross-entropy with the cosine similarity of u and v as the logit of class 1.

    A cosine lies in [-1, 1], so the predicted probability of class 1 stays between 0.27 and 0.73. That does
    no harm: the metric (`threshold_metrics` in tmft/metrics.py) looks for the cosine that separates the
    classes best on dev, and needs no probability.
    Source: the released code of Rep et al. 2024, for MRPC.
    """

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar. u, v: (P, D) float32; target: (P,), class indices 0 and 1."""
        return F.binary_cross_entropy_with_logits(F.cosine_similarity(u, v), target.to(u.dtype))
