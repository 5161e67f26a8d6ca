"""Distillation: a student learns the embeddings that a teacher, another model, gives to texts without labels.

Letters in this file: P texts of a batch, D width of an embedding, the same of both.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.data import Task
from tmft.errors import InputError, check_range
from tmft.metrics import cosines

ALONE = 5.0  # weight of the similarities of a batch where they are the whole loss


@dataclass(frozen=True)
class DistillSettings:
    """teacher: hub id or folder of the model whose embeddings are learnt; text: files, a sentence per line;
    lines: how many of them, drawn at random, 0: all; matrix: weight of the batch's similarities."""

    teacher: str
    text: tuple[str, ...]
    lines: int = 0
    matrix: float = 0.0

    def __post_init__(self):
        check_range("lines", self.lines, 0)
        check_range("matrix", self.matrix, 0)


def distillation_options(option: Callable) -> None:
    """Those of a command line, added with option, argparse's add_argument."""
    teacher = "learn its embeddings of the lines of --text, as --task distill; default: none"
    option("--teacher", metavar="MODEL", help=teacher)
    option("--lines", type=int, metavar="N", help="of the text, drawn at random; default: all")
    option("--matrix", type=float, metavar="W", help="weight of the similarities of a batch, too; default: 0")


def distill(u: Tensor, target: Tensor, matrix: float) -> Tensor:
    """1 - cosine of each text's embedding to the teacher's, and matrix times the squared error of the cosines
    that the texts of the batch have with one another. u, target: (P, D) -> scalar

    The second term says of what the first leaves open whether it matters: directions that keep texts apart.
    Where u has only the first dimensions it is the whole loss, as a cosine to a wider vector there is none.
    Source: Reimers and Gurevych 2020, arXiv:2004.09813 (embeddings of a teacher as targets); Tung and Mori
    2019, arXiv:1907.09682 (the similarities of a batch).
    """
    u, target = F.normalize(u, dim=-1), F.normalize(target.to(u.dtype), dim=-1)
    if u.shape[-1] < target.shape[-1]:
        return (matrix or ALONE) * F.mse_loss(u @ u.T, target @ target.T)
    apart = 1 - (u * target).sum(-1).mean()
    return apart + matrix * F.mse_loss(u @ u.T, target @ target.T) if matrix else apart


class Distill(nn.Module):
    """A row of OBJECTIVES."""

    predicts, texts, options, least = "cosines", (1,), DistillSettings, 2
    together = True  # several processes share a batch, whose texts are compared with one another

    def __init__(self, width: int, task: Task):
        super().__init__()
        self.width = width
        self.matrix = task.settings.get("matrix", DistillSettings.matrix)

    def forward(self, u: Tensor, target: Tensor) -> Tensor:
        """u: (P, D) float32, or some first dimensions; target: (P, D), the teacher's embeddings -> scalar"""
        if self.width != target.shape[-1]:
            widths = (
                f"the teacher's embeddings have {target.shape[-1]} dimensions, the student's {self.width}"
            )
            raise InputError(f"{widths}: add projection {target.shape[-1]}", "projection")
        return distill(u, target, self.matrix)

    def predict(self, u: Tensor, v: Tensor | None = None) -> np.ndarray:
        """The cosines of pairs that judge the student, (N, D) each; of texts alone the embeddings."""
        return u.numpy() if v is None else cosines(u, v)
