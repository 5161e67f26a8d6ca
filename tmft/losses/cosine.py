"""The paper's loss: squared error of the cosine; and the cosine as a logit for pairs with two classes.

Shapes: P pairs of a batch, D dimensions of an embedding.
"""

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.data import Task
from tmft.metrics import cosines


class CosineMSE(nn.Module):
    """Mean squared error of the cosine to the target.

    Source: Rep et al. 2024, section 3; Reimers and Gurevych 2019, arXiv:1908.10084.
    """

    predicts = "cosines"

    def __init__(self, width: int = 0, task: Task | None = None):
        super().__init__()

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """u, v: (P, D) float32; target: (P,) in [0, 1] -> scalar"""
        return F.mse_loss(F.cosine_similarity(u, v), target.to(u.dtype))

    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        return cosines(u, v)


class CosineBCE(CosineMSE):
    """Binary cross-entropy with the cosine as the logit, so that probabilities stay in 0.27 to 0.73.

    Source: the released code of Rep et al. 2024, for MRPC; the metric finds the threshold.
    """

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """u, v: (P, D) float32; target: (P,) in [0, 1] -> scalar"""
        return F.binary_cross_entropy_with_logits(F.cosine_similarity(u, v), target.to(u.dtype))
