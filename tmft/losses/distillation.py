"""Distillation: train a student to give texts the embeddings that a teacher, another model, gives them.

Shapes: P texts in a batch, D dimensions of an embedding, the same for student and teacher.
"""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from tmft.errors import InputError, check_range
from tmft.losses.objective import Objective
from tmft.metrics import cosines
from tmft.tasks import Task

SIMILARITY_WEIGHT_ALONE = 5.0  # weight of the similarity term where it is the whole loss


@dataclass(frozen=True)
class EmbeddingDistillationConfig:
    """Hyperparameters of EmbeddingDistillation and of its data.

    teacher: hub id or folder of the model whose embeddings are the targets.
    text: files with one sentence per line.
    max_lines: use only this many of the lines, drawn at random; 0 uses all.
    similarity_weight: weight of the loss on the similarities between the texts of a batch; 0 leaves it out.
    """

    teacher: str
    text: tuple[str, ...]
    max_lines: int = 0
    similarity_weight: float = 0.0

    def __post_init__(self):
        check_range("max_lines", self.max_lines, 0)
        check_range("similarity_weight", self.similarity_weight, 0)


def distillation_loss(u: Tensor, target: Tensor, similarity_weight: float) -> Tensor:
    """1 - cosine(student, teacher), plus a loss on the similarities between the texts of the batch.

    u: (P, D), embeddings of the student; target: (P, D), embeddings of the teacher -> scalar
    similarity_weight: weight of the second term, the mean squared error of the (P, P) cosine similarities.

    Where the student cannot match the teacher exactly, the second term prefers errors that leave the
    similarities between texts unchanged. If u has only the first dimensions of an embedding, it has no cosine
    with the wider target, and the second term is the whole loss.
    Source: Reimers and Gurevych 2020, arXiv:2004.09813 (embeddings of a teacher as targets); Tung and Mori
    2019, arXiv:1907.09682 (the similarities of a batch).
    """
    u, target = F.normalize(u, dim=-1), F.normalize(target.to(u.dtype), dim=-1)
    if u.shape[-1] < target.shape[-1]:
        return (similarity_weight or SIMILARITY_WEIGHT_ALONE) * F.mse_loss(u @ u.T, target @ target.T)
    cosine_loss = 1 - (u * target).sum(-1).mean()
    if not similarity_weight:
        return cosine_loss
    return cosine_loss + similarity_weight * F.mse_loss(u @ u.T, target @ target.T)


class EmbeddingDistillation(Objective):
    """Distillation of the embeddings of a teacher, see `distillation_loss`.

    `predict` returns the embeddings of single texts, which `teacher_cosine` compares with the teacher's, or
    the cosines of pairs, if the student is evaluated on the sentence pairs of `task.eval_files`.
    """

    prediction_type, allowed_num_texts, config_class = "cosine", (1,), EmbeddingDistillationConfig
    min_batch_size, needs_whole_batch = 2, True  # the texts of a batch are compared with each other

    def __init__(self, dimensions: int, task: Task):
        super().__init__(dimensions, task)
        self.dimensions = dimensions
        self.similarity_weight = task.objective_args.get(
            "similarity_weight", EmbeddingDistillationConfig.similarity_weight
        )

    def forward(self, u: Tensor, target: Tensor) -> Tensor:
        """u: (P, D) float32, or only first dimensions; target: (P, D), the teacher's embeddings -> scalar"""
        if self.dimensions != target.shape[-1]:
            what = (
                f"the teacher's embeddings have {target.shape[-1]} dimensions, "
                f"the student's {self.dimensions}"
            )
            raise InputError(f"{what}: add projection {target.shape[-1]}", "projection")
        return distillation_loss(u, target, self.similarity_weight)

    def predict(self, u: Tensor, v: Tensor | None = None) -> np.ndarray:
        """u: (N, D) -> the same (N, D); u, v: (N, D) each -> their cosines, (N,) float64"""
        return u.numpy() if v is None else cosines(u, v)
