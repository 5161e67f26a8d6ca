"""The paper's loss: the squared error of the cosine; for pairs with two classes, the cosine as a logit.

Shapes: P pairs in a batch, N pairs in a split, D dimensions of an embedding.
"""

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from tmft.losses.objective import Objective
from tmft.metrics import cosines
from tmft.tasks import Task


class CosineMSE(Objective):
    """Mean squared error between the cosine similarity of u and v and the target.

    Source: Rep et al. 2024, section 3; Reimers and Gurevych 2019, arXiv:1908.10084.
    """

    prediction_type = "cosine"

    def __init__(self, dimensions: int = 0, task: Task | None = None):
        super().__init__(dimensions, task)

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """u, v: (P, D) float32; target: (P,) in [0, 1] -> scalar"""
        return F.mse_loss(F.cosine_similarity(u, v), target.to(u.dtype))

    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        """u, v: (N, D) -> their cosines, (N,) float64"""
        return cosines(u, v)


class CosineBCE(CosineMSE):
    """Binary cross-entropy with the cosine similarity as the logit.

    As a cosine is within [-1, 1], the predicted probability of class 1 stays between 0.27 and 0.73; the
    metric (`threshold_metrics`) finds the cosine that separates the classes best on dev.
    Source: the released code of Rep et al. 2024, for MRPC.
    """

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """u, v: (P, D) float32; target: (P,) in [0, 1] -> scalar"""
        return F.binary_cross_entropy_with_logits(F.cosine_similarity(u, v), target.to(u.dtype))
