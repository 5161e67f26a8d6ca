"""Contrastive learning with in-batch negatives: the texts of all other examples in the batch are negatives.

An example has an anchor, a positive (a text of similar meaning) and perhaps a hard negative (a text that
looks similar but means something else).

Letters: P examples in a batch, N in a split, D dimensions of an embedding.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tmft.io.arguments import check_fields, in_range
from tmft.loss import Objective
from tmft.metrics import cosines


def multiple_negatives_ranking(
    u: Tensor,
    v: Tensor,
    negatives: Tensor | None = None,
    temperature: float = 0.05,
    symmetric: bool = True,
    text_ids: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of finding each anchor's positive among all positives and hard negatives of the batch.

    u, v: (P, D), the anchors and their positives. negatives: (P, D), a hard negative of each anchor, or None.
    temperature: the scores of the softmax are cosines divided by it.
    symmetric: add the cross-entropy of finding each positive's anchor among all anchors.
    text_ids: (P, k) integers, a number for each text of each example, by which equal texts are known. A text
        is not used as a negative of an example if it equals its positive, or belongs to an equal anchor. None
        uses all as negatives.
    Returns a scalar.

    Source: Ni et al. 2021, arXiv:2108.08877, equations 1 and 2, whose formula has one direction, and their
    released code, which adds both; Gao et al. 2021, arXiv:2104.08821, equation 5.

    Example:

    >>> anchors, positives = torch.eye(3), torch.eye(3)
    >>> round(multiple_negatives_ranking(anchors, positives).item(), 6)  # each finds its own
    0.0
    >>> round(multiple_negatives_ranking(anchors, positives.roll(1, 0)).item(), 6)
    40.0
    """
    u, v = F.normalize(u, dim=-1), F.normalize(v, dim=-1)
    scores, target = u @ v.T / temperature, torch.arange(len(u), device=u.device)  # (P, P)
    if text_ids is not None:
        anchors, positives = text_ids[:, 0], text_ids[:, 1]
        is_equal = (anchors[:, None] == anchors) | (positives[:, None] == positives)  # (P, P)
        scores = scores.masked_fill(is_equal.fill_diagonal_(False), -torch.inf)
    reverse_loss = F.cross_entropy(scores.T, target) if symmetric else 0.0
    if negatives is not None:
        hard_scores = u @ F.normalize(negatives, dim=-1).T / temperature  # (P, P)
        if text_ids is not None:
            hard_scores = hard_scores.masked_fill(text_ids[:, 1, None] == text_ids[:, 2], -torch.inf)
        scores = torch.cat([scores, hard_scores], dim=1)  # (P, 2 P)
    return F.cross_entropy(scores, target) + reverse_loss


@dataclass(frozen=True)
class TemperatureConfig:
    """The hyperparameter of the losses on similarities.

    temperature: divide the cosines by X, above 0, up to 10, before the softmax or, in cosent and angle, their
        differences.
    Raises InputError if it is out of range.
    """

    temperature: float = in_range(0.05, 1e-6, 10)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class MultipleNegativesRankingConfig(TemperatureConfig):
    """Hyperparameters of MultipleNegativesRanking.

    symmetric: add the loss of finding the anchor of each positive; False: use only the loss of finding the
        positive of each anchor.
    mask_duplicate_anchors: if two examples of a batch have the same anchor or positive, do not use the
        texts of one as negatives of the other; False: they are used.
    """

    symmetric: bool = True
    mask_duplicate_anchors: bool = False


class MultipleNegativesRanking(Objective):
    """Contrastive learning on pairs or triplets without labels, see `multiple_negatives_ranking`."""

    config: MultipleNegativesRankingConfig

    prediction_type, allowed_num_texts, config_class = "cosine", (2, 3), MultipleNegativesRankingConfig
    needs_labels = False
    min_batch_size = 2  # the other examples of the batch are the negatives

    def forward(self, u: Tensor, v: Tensor, *negatives_and_text_ids: Tensor) -> Tensor:
        """Return the loss, a scalar.

        u, v: (P, D) float32, the anchors and their positives. negatives_and_text_ids: for triplets, the hard
        negatives, (P, D); then the numbers of the texts, (P, k) int64, which `labels_to_targets` returns as
        the target of a task without labels.
        """
        *negatives, text_ids = negatives_and_text_ids
        return multiple_negatives_ranking(
            u,
            v,
            negatives[0] if negatives else None,
            self.config.temperature,
            self.config.symmetric,
            text_ids if self.config.mask_duplicate_anchors else None,
        )

    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        """Return the cosine similarity of each pair, (N,) float64. u, v: (N, D)."""
        return cosines(u, v)
