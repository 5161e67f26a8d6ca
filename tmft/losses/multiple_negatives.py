"""Contrastive learning with in-batch negatives: the texts of all other examples in the batch are negatives.

Shapes: P examples in a batch, D dimensions of an embedding. An example has an anchor, its positive and
perhaps a hard negative.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tmft.errors import InputError
from tmft.losses.objective import Objective
from tmft.metrics import cosines
from tmft.tasks import Task


def multiple_negatives_ranking(
    u: Tensor,
    v: Tensor,
    negatives: Tensor | None = None,
    temperature: float = 0.05,
    symmetric: bool = True,
    anchor_ids: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of finding each anchor's positive among all positives and hard negatives of the batch.

    u, v, negatives: (P, D), the anchors, their positives and one hard negative each. A score is a cosine
    divided by the temperature. symmetric: add the loss of the other direction, of finding the anchor of each
    positive among all anchors. anchor_ids: (P,); if two examples have the same id, the positive of one is not
    used as a negative of the other. -> scalar

    Source: Ni et al. 2021, arXiv:2108.08877, equations 1 and 2, whose formula has one direction, and their
    released code, which adds both; Gao et al. 2021, arXiv:2104.08821, equation 5.
    """
    u, v = F.normalize(u, dim=-1), F.normalize(v, dim=-1)
    scores, target = u @ v.T / temperature, torch.arange(len(u), device=u.device)  # (P, P)
    if anchor_ids is not None:
        off_diagonal = ~torch.eye(len(u), dtype=torch.bool, device=u.device)
        same_anchor = (anchor_ids[:, None] == anchor_ids) & off_diagonal  # (P, P)
        scores = scores.masked_fill(same_anchor, -torch.inf)
    reverse_loss = F.cross_entropy(scores.T, target) if symmetric else 0.0
    if negatives is not None:
        scores = torch.cat([scores, u @ F.normalize(negatives, dim=-1).T / temperature], dim=1)  # (P, 2 P)
    return F.cross_entropy(scores, target) + reverse_loss


@dataclass(frozen=True)
class MultipleNegativesRankingConfig:
    """Hyperparameters of MultipleNegativesRanking.

    temperature: divisor of the cosines, above 0, at most 10.
    symmetric: also find the anchor of each positive, see `multiple_negatives_ranking`.
    mask_duplicate_anchors: examples with the same anchor are not negatives of each other.
    """

    temperature: float = 0.05
    symmetric: bool = True
    mask_duplicate_anchors: bool = False

    def __post_init__(self):
        if not 0 < self.temperature <= 10:
            raise InputError(f"temperature {self.temperature:g}: choose above 0, up to 10", "temperature")


class MultipleNegativesRanking(Objective):
    """Contrastive learning on pairs or triplets without labels, see `multiple_negatives_ranking`."""

    prediction_type, allowed_num_texts, config_class = "cosine", (2, 3), MultipleNegativesRankingConfig
    min_batch_size, needs_whole_batch = 2, True  # the other examples of the batch are the negatives

    def __init__(self, dimensions: int, task: Task):
        super().__init__(dimensions, task)
        self.config = MultipleNegativesRankingConfig(**task.objective_args)

    def forward(self, u: Tensor, v: Tensor, *negatives_and_anchor_ids: Tensor) -> Tensor:
        """u, v and, for triplets, hard negatives: (P, D) float32; anchor_ids: (P,) int64 -> scalar

        The anchor_ids are the targets that `labels_to_targets` gives for a task without labels.
        """
        *negatives, anchor_ids = negatives_and_anchor_ids
        return multiple_negatives_ranking(
            u,
            v,
            negatives[0] if negatives else None,
            self.config.temperature,
            self.config.symmetric,
            anchor_ids if self.config.mask_duplicate_anchors else None,
        )

    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        """u, v: (N, D) -> their cosines, (N,) float64"""
        return cosines(u, v)
