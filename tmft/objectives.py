"""Objectives: from the embeddings of an example and its target to a loss, and to what the metric reads.

An objective is made for embeddings of `width` numbers and a task. It is called with the embeddings of the
texts, u and v of a pair, and the target for its loss; predict gives what the metric reads. The weights of one
with a head are trained with the encoder and lie beside it in the run folder.

Letters in this file: P pairs of a batch, N pairs of a split, D width, C classes.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.contrastive import InBatch
from tmft.data import Task
from tmft.distillation import Distill
from tmft.heads import HEADS
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


class Softmax(nn.Module):
    """Cross-entropy of a linear layer over u, v and |u - v|.

    Source: Conneau et al. 2017, arXiv:1705.02364; Reimers and Gurevych 2019, equation of section 3.
    """

    predicts = "classes"

    def __init__(self, width: int, task: Task):
        super().__init__()
        self.head = nn.Linear(3 * width, len(task.classes))

    def logits(self, u: Tensor, v: Tensor) -> Tensor:
        return self.head(torch.cat([u, v, (u - v).abs()], dim=-1))  # (P, 3 D) -> (P, C)

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """u, v: (P, D) float32; target: (P,) int64, numbers of classes -> scalar"""
        return F.cross_entropy(self.logits(u, v), target)

    @torch.inference_mode()
    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        """u, v: (N, D) -> the most probable class of each pair, (N,) int64"""
        device = self.head.weight.device
        return self.logits(u.to(device), v.to(device)).argmax(-1).cpu().numpy()


OBJECTIVES = {
    "cosine_mse": CosineMSE,
    "cosine_bce": CosineBCE,
    "softmax": Softmax,
    "in_batch": InBatch,
    "distill": Distill,
    **HEADS,
}
