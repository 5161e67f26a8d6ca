"""Objectives with a trained head, which predicts the class of a pair or of one text, or the score of a pair.

Letters: P pairs or texts in a batch, N in a split, D dimensions of an embedding, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.io.arguments import check_fields, in_range
from tmft.loss import Objective
from tmft.tasks import Task


@dataclass(frozen=True)
class HeadConfig:
    """Hyperparameters of a head.

    dropout: dropout probability in the head.
    dropout_after_features: apply the dropout before the last operation of the head (dot product, cosine or
        linear layer), to what it computes from the embeddings, of pairs only; False: to the embeddings.
    rescale_to_labels: map the output of the head (by a sigmoid, or linearly if it is a cosine) into the range
        of the scores of pairs, in training and evaluation; False: no.
    Raises InputError if a value is out of range.
    """

    dropout: float = in_range(0.0, 0, 0.99)
    dropout_after_features: bool = False
    rescale_to_labels: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


class ClassHead(Objective):
    """Base class of the heads that predict a class: cross-entropy of a linear layer.

    A subclass creates the linear layer `head` and implements `logits`.
    """

    head: nn.Linear

    prediction_type = "class"

    # A function that returns the logits of the classes, (P, C), of one tensor (P, D) for each text.
    logits: Callable[..., Tensor]

    def forward(self, *embeddings_and_target: Tensor) -> Tensor:
        """Return the loss, a scalar.

        embeddings_and_target: a tensor (P, D) float32 for each text of an example, then the class indices,
        (P,) int64.
        """
        *embeddings, target = embeddings_and_target
        return F.cross_entropy(self.logits(*embeddings), target)

    @torch.inference_mode()
    def predict_logits(self, *embeddings: Tensor) -> Tensor:
        """Return the logits of the classes, (N, C), on the CPU. embeddings: (N, D) for each text."""
        device = self.head.weight.device
        return self.logits(*(x.to(device) for x in embeddings)).cpu()

    def predict(self, *embeddings: Tensor) -> np.ndarray:
        """Return the index of the most probable class, (N,) int64. embeddings: (N, D) for each text."""
        return self.predict_logits(*embeddings).argmax(-1).numpy()

    def predict_probabilities(self, *embeddings: Tensor) -> np.ndarray:
        """Return the probabilities of the classes, (N, C) float64. embeddings: (N, D) for each text."""
        return self.predict_logits(*embeddings).double().softmax(-1).numpy()


class SoftmaxLoss(ClassHead):
    """Classification of pairs: cross-entropy of a linear layer over u, v and |u - v|.

    Source: Conneau et al. 2017, arXiv:1705.02364; Reimers and Gurevych 2019, equation of section 3.
    """

    def __init__(self, dimensions: int, task: Task):
        super().__init__(dimensions, task)
        self.head = nn.Linear(3 * dimensions, len(task.classes))

    def logits(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the logits of the classes of each pair, (P, C). u, v: (P, D)."""
        return self.head(torch.cat([u, v, (u - v).abs()], dim=-1))  # (P, 3 D) -> (P, C)


class SingleTextClassifier(ClassHead):
    """Classification of single texts: cross-entropy of a linear layer over the embedding of one text."""

    config: HeadConfig

    allowed_num_texts, config_class = (1,), HeadConfig

    def __init__(self, dimensions: int, task: Task):
        super().__init__(dimensions, task)
        self.head = nn.Linear(dimensions, len(task.classes))

    def logits(self, u: Tensor) -> Tensor:
        """Return the logits of the classes of each text, (P, C). u: (P, D)."""
        return self.head(F.dropout(u, self.config.dropout, self.training))  # (P, D) -> (P, C)


class PairHead(Objective):
    """Base class of the heads that predict one number per pair.

    For a task with two classes the number is the logit of class 1, trained with binary cross-entropy.
    Otherwise it is the score itself, between min_score and max_score, trained with the mean squared error.

    Every head begins with dropout and a linear layer for each of the two texts, as the report on CS 224N
    describes for paraphrase and similarity. The layers of the two sides are two: if they shared one, a dot
    product would hardly ever be negative. A subclass implements `logits` on what comes out of them.
    """

    config: HeadConfig
    first: nn.Linear
    second: nn.Linear
    two_classes: bool
    min_score: float
    score_range: float

    prediction_type, config_class = "score", HeadConfig

    def __init__(self, dimensions: int, task: Task):
        super().__init__(dimensions, task)
        # The names `first` and `second` are those of the tensors in head.safetensors.
        self.first, self.second = nn.Linear(dimensions, dimensions), nn.Linear(dimensions, dimensions)
        self.two_classes = bool(task.classes)
        self.min_score, self.score_range = task.min_score, task.max_score - task.min_score

    def logits(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the number of each pair, (P,), before it is rescaled to the labels.

        u, v: (P, D), after the linear layers.
        """
        raise NotImplementedError

    def dropout(self, x: Tensor, after_features: bool = False) -> Tensor:
        """Apply dropout to x if the config places it here, or else return x.

        after_features: whether this call is before the last operation of the head, not on its input.
        """
        active = self.training and after_features == self.config.dropout_after_features
        return F.dropout(x, self.config.dropout, active)

    def to_unit_interval(self, logits: Tensor) -> Tensor:
        """Map logits (P,) to [0, 1]; used if `rescale_to_labels` is set."""
        return logits.sigmoid()

    def predict_score(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the score of each pair or, for two classes, the logit of class 1, (P,). u, v: (P, D)."""
        logits = self.logits(self.first(self.dropout(u)), self.second(self.dropout(v)))
        if self.config.rescale_to_labels and not self.two_classes:
            return self.min_score + self.score_range * self.to_unit_interval(logits)
        return logits

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar.

        u, v: (P, D) float32; target: (P,), class indices, or scores rescaled to [0, 1].
        """
        if self.two_classes:
            return F.binary_cross_entropy_with_logits(self.predict_score(u, v), target.to(u.dtype))
        return F.mse_loss(self.predict_score(u, v), self.min_score + self.score_range * target.to(u.dtype))

    @torch.inference_mode()
    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        """Return class indices, (N,) int64, or scores, (N,) float64. u, v: (N, D)."""
        device = next(self.parameters()).device
        scores = self.predict_score(u.to(device), v.to(device)).cpu()
        return (scores > 0).long().numpy() if self.two_classes else scores.double().numpy()

    @torch.inference_mode()
    def predict_probabilities(self, *embeddings: Tensor) -> np.ndarray | None:
        """Return the probabilities of two classes, (N, 2) float64; None for scores. embeddings: u and v."""
        if not self.two_classes:
            return None
        u, v = (x.to(next(self.parameters()).device) for x in embeddings)  # (N, D)
        positive = self.predict_score(u, v).cpu().double().sigmoid()
        return torch.stack([1 - positive, positive], dim=1).numpy()


class DotProductHead(PairHead):
    """Predicts the dot product of u and v."""

    def logits(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the dot product of each pair, (P,). u, v: (P, D), after the linear layers."""
        return (self.dropout(u, after_features=True) * self.dropout(v, after_features=True)).sum(-1)


class CosineHead(PairHead):
    """Predicts the cosine of u and v.

    With rescale_to_labels, the cosine -1 becomes the lowest score and 1 the highest.
    """

    def to_unit_interval(self, cosine: Tensor) -> Tensor:
        """Map a cosine from [-1, 1] to [0, 1]."""
        return (1 + cosine) / 2

    def logits(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the cosine of each pair, (P,). u, v: (P, D), after the linear layers."""
        u, v = self.dropout(u, after_features=True), self.dropout(v, after_features=True)
        return F.cosine_similarity(u, v)


class ConcatHead(PairHead):
    """Predicts W_t(u, v, |u - v|), a linear function of the concatenated u, v and |u - v|.

    Source: Reimers and Gurevych 2019, section 3; it takes u and v as they are.
    """

    head: nn.Linear

    num_extra_features = 0  # in addition to u, v and |u - v|

    def __init__(self, dimensions: int, task: Task):
        super().__init__(dimensions, task)
        self.head = nn.Linear(3 * dimensions + self.num_extra_features, 1)

    def extra_features(self, u: Tensor, v: Tensor) -> list[Tensor]:
        """Return the features of a pair besides u, v and |u - v|, num_extra_features tensors (P, 1)."""
        return []

    def logits(self, u: Tensor, v: Tensor) -> Tensor:
        """Return W_t of each pair's features, (P,). u, v: (P, D), after the linear layers."""
        x = torch.cat([u, v, (u - v).abs(), *self.extra_features(u, v)], dim=-1)  # (P, 3 D + extra)
        return self.head(self.dropout(x, after_features=True)).squeeze(-1)


class ConcatCosineHead(ConcatHead):
    """ConcatHead with one more feature, the cosine of u and v."""

    num_extra_features = 1

    def extra_features(self, u: Tensor, v: Tensor) -> list[Tensor]:
        """Return the cosine of each pair, as one tensor (P, 1). u, v: (P, D)."""
        return [F.cosine_similarity(u, v)[:, None]]


class ConcatCosine01Head(ConcatCosineHead):
    """ConcatCosineHead with the cosine rescaled from [-1, 1] to [0, 1]."""

    def extra_features(self, u: Tensor, v: Tensor) -> list[Tensor]:
        """Return the cosine of each pair rescaled to [0, 1], as one tensor (P, 1). u, v: (P, D)."""
        return [(1 + F.cosine_similarity(u, v)[:, None]) / 2]
