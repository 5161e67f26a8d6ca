"""Objectives with a head of their own: classes of one text, and several ways from a pair to a number.

Letters in this file: P pairs or texts of a batch, N of a split, D width of an embedding, C classes.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.data import Task
from tmft.errors import InputError


@dataclass(frozen=True)
class HeadSettings:
    """dropout: its probability, before the head; late: not there but before the last step, the sum, product
    or cosine; scaled: the number is brought into the range of the labels."""

    dropout: float = 0.0
    late: bool = False
    scaled: bool = False

    def __post_init__(self):
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout {self.dropout:g}: choose 0 or more, below 1", "dropout")


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


class Linear(nn.Module):
    """Cross-entropy of a linear layer over the embedding of a text."""

    predicts, texts, options = "classes", (1,), HeadSettings

    def __init__(self, width: int, task: Task):
        super().__init__()
        self.settings = HeadSettings(**task.settings)
        self.head = nn.Linear(width, len(task.classes))

    def logits(self, u: Tensor) -> Tensor:
        return self.head(F.dropout(u, self.settings.dropout, self.training))  # (P, D) -> (P, C)

    def forward(self, u: Tensor, target: Tensor) -> Tensor:
        """u: (P, D) float32; target: (P,) int64, numbers of classes -> scalar"""
        return F.cross_entropy(self.logits(u), target)

    @torch.inference_mode()
    def predict(self, u: Tensor) -> np.ndarray:
        """u: (N, D) -> the most probable class of each text, (N,) int64"""
        return self.logits(u.to(self.head.weight.device)).argmax(-1).cpu().numpy()


class PairHead(nn.Module):
    """A number for a pair: the logit of class 1 of two classes, learnt by binary cross-entropy; else the
    score itself, from lowest to highest, learnt by its squared error.

    A child gives logits(u, v), (P, D) each -> (P,).
    """

    predicts, options = "a number", HeadSettings

    def __init__(self, width: int, task: Task):
        super().__init__()
        self.settings, self.two_classes = HeadSettings(**task.settings), bool(task.classes)
        self.low, self.span = task.min_score, task.max_score - task.min_score

    def drop(self, x: Tensor, late: bool = False) -> Tensor:
        """Dropout, if this is its place."""
        return F.dropout(x, self.settings.dropout, self.training and late == self.settings.late)

    def to_unit(self, logits: Tensor) -> Tensor:
        """Into [0, 1]."""
        return logits.sigmoid()

    def number(self, u: Tensor, v: Tensor) -> Tensor:
        logits = self.logits(self.drop(u), self.drop(v))
        scaled = self.settings.scaled and not self.two_classes
        return self.low + self.span * self.to_unit(logits) if scaled else logits

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """u, v: (P, D) float32; target: (P,) numbers of classes, or scores in [0, 1] -> scalar"""
        if self.two_classes:
            return F.binary_cross_entropy_with_logits(self.number(u, v), target.to(u.dtype))
        return F.mse_loss(self.number(u, v), self.low + self.span * target.to(u.dtype))

    @torch.inference_mode()
    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        """u, v: (N, D) -> classes, (N,) int64, or scores, (N,) float64"""
        device = next(self.parameters()).device
        number = self.number(u.to(device), v.to(device)).cpu()
        return (number > 0).long().numpy() if self.two_classes else number.double().numpy()


class Dot(PairHead):
    """The dot product of the two embeddings, each behind a linear layer of its own: behind the same one it
    would hardly ever be negative."""

    def __init__(self, width: int, task: Task):
        super().__init__(width, task)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def sides(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.drop(self.first(u), late=True), self.drop(self.second(v), late=True)

    def logits(self, u: Tensor, v: Tensor) -> Tensor:
        u, v = self.sides(u, v)
        return (u * v).sum(-1)


class Cosine(Dot):
    """Their cosine instead; scaled: -1 is the lowest score, 1 the highest."""

    def to_unit(self, cosine: Tensor) -> Tensor:
        return (1 + cosine) / 2

    def logits(self, u: Tensor, v: Tensor) -> Tensor:
        return F.cosine_similarity(*self.sides(u, v))


class Difference(PairHead):
    """A linear layer over u, v and |u - v|. Source: Reimers and Gurevych 2019, section 3."""

    features = 0  # beside u, v and |u - v|

    def __init__(self, width: int, task: Task):
        super().__init__(width, task)
        self.head = nn.Linear(3 * width + self.features, 1)

    def beside(self, u: Tensor, v: Tensor) -> list[Tensor]:
        """Further features, (P, 1) each."""
        return []

    def logits(self, u: Tensor, v: Tensor) -> Tensor:
        x = torch.cat([u, v, (u - v).abs(), *self.beside(u, v)], dim=-1)  # (P, 3 D + features)
        return self.head(self.drop(x, late=True)).squeeze(-1)


class DifferenceCosine(Difference):
    """The same with their cosine as one more feature."""

    features = 1

    def beside(self, u: Tensor, v: Tensor) -> list[Tensor]:
        return [F.cosine_similarity(u, v)[:, None]]


class DifferenceCosine01(DifferenceCosine):
    """The same with the cosine brought from [-1, 1] into [0, 1]."""

    def beside(self, u: Tensor, v: Tensor) -> list[Tensor]:
        return [(1 + F.cosine_similarity(u, v)[:, None]) / 2]


HEADS = {
    "softmax": Softmax,
    "linear": Linear,
    "dot": Dot,
    "cosine": Cosine,
    "difference": Difference,
    "difference_cosine": DifferenceCosine,
    "difference_cosine01": DifferenceCosine01,
}
