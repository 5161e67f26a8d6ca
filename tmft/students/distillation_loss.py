"""Distillation: train a student to give texts the embeddings that a teacher, another model, gives them.

Shapes: P texts in a batch, N texts in a split, D dimensions of an embedding of student and teacher.
"""

from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from tmft.errors import InputError
from tmft.loss import Objective
from tmft.metrics import cosines
from tmft.students.distillation_data import EmbeddingDistillationConfig, teacher_examples
from tmft.tasks import Task

SIMILARITY_WEIGHT_ALONE = 5.0  # used if no weight is set and the similarity term is the whole loss


def distillation_loss(u: Tensor, target: Tensor, similarity_weight: float) -> Tensor:
    """Return 1 - cosine(student, teacher), plus a loss on the similarities between the texts; a scalar.

    u: (P, D), embeddings of P texts by the student. target: (P, D), their embeddings by the teacher.
    similarity_weight: weight of the second term, the mean squared difference between the (P, P) cosine
        similarities of the student's embeddings and those of the teacher's; 0 omits it.

    Where the student cannot match the teacher exactly, the second term prefers errors that leave the
    similarities between texts unchanged. If u has only the first dimensions of an embedding (Matryoshka), its
    cosine with the wider target is undefined, and the second term is the whole loss.
    Source: Reimers and Gurevych 2020, arXiv:2004.09813 (embeddings of a teacher as targets); Tung and Mori
    2019, arXiv:1907.09682 (the similarities of a batch).

    Example:

    >>> import torch
    >>> teacher = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> distillation_loss(teacher, teacher, similarity_weight=1.0).item()
    0.0
    >>> distillation_loss(-teacher, teacher, similarity_weight=1.0).item()  # the opposite directions
    2.0
    """
    u, target = F.normalize(u, dim=-1), F.normalize(target.to(u.dtype), dim=-1)
    if u.shape[-1] < target.shape[-1]:
        return (similarity_weight or SIMILARITY_WEIGHT_ALONE) * F.mse_loss(u @ u.T, target @ target.T)
    cosine_loss = 1 - (u * target).sum(-1).mean()
    if not similarity_weight:
        return cosine_loss
    return cosine_loss + similarity_weight * F.mse_loss(u @ u.T, target @ target.T)


class EmbeddingDistillation(Objective):
    """Trains a student to give each text the embedding that the teacher gives it, see `distillation_loss`.

    The student is evaluated on the cosines of sentence pairs (those of `task.eval_files`) or, with the metric
    `teacher_cosine`, on how close its embeddings of single texts are to the teacher's.
    """

    similarity_weight: Any

    prediction_type, allowed_num_texts, config_class = "cosine", (1,), EmbeddingDistillationConfig
    min_batch_size = 2  # the texts of a batch are compared with each other
    needs_teacher, read_examples = True, staticmethod(teacher_examples)

    def __init__(self, dimensions: int, task: Task):
        super().__init__(dimensions, task)
        self.dimensions = dimensions
        self.similarity_weight = self.config.similarity_weight

    def forward(self, u: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar.

        u: (P, D) float32, embeddings of the student, or only their first dimensions. target: (P, D), those of
        the teacher. Raises InputError if student and teacher differ in D.
        """
        if self.dimensions != target.shape[-1]:
            what = (
                f"the teacher's embeddings have {target.shape[-1]} dimensions, "
                f"the student's {self.dimensions}"
            )
            raise InputError(f"{what}: add `projection` {target.shape[-1]}", "projection")
        return distillation_loss(u, target, self.similarity_weight)

    def predict(self, u: Tensor, v: Tensor | None = None) -> np.ndarray:
        """Return the cosine of each pair, (N,) float64, or u itself if there is no v. u, v: (N, D)."""
        return u.numpy() if v is None else cosines(u, v)
