"""What fine-tuning minimises: functions of the two embeddings of each pair and its target."""

import torch.nn.functional as F
from torch import Tensor


def cosine_mse(u: Tensor, v: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of the cosine to the target. u, v: (S, D) float32; target: (S,) in [0, 1] -> scalar.

    Source: Rep et al. 2024, section 3; Reimers and Gurevych 2019, arXiv:1908.10084.
    """
    return F.mse_loss(F.cosine_similarity(u, v), target)


OBJECTIVES = {"cosine_mse": cosine_mse}
