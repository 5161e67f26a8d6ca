"""Contrastive learning: the texts of the other examples of a batch are what an anchor must not be like.

Letters in this file: P examples of a batch, of k texts each (an anchor, its positive, and perhaps a hard
negative), D width of an embedding.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.data import Task
from tmft.device import MixedPrecision, seed_generator
from tmft.distributed import Processes
from tmft.errors import InputError
from tmft.metrics import cosines
from tmft.speed.matmul import fast_matmul
from tmft.training.freezing import Embedder


def multiple_negatives_ranking(
    u: Tensor,
    v: Tensor,
    negatives: Tensor | None = None,
    temperature: float = 0.05,
    both: bool = True,
    anchors: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of finding an anchor's positive among all positives and hard negatives of the batch.

    u, v, negatives: (P, D), anchors, positives, a hard negative of each; a score is a cosine divided by the
    temperature. both: the way back, each positive's anchor among all anchors, is added. anchors: (P,), their
    numbers: where two are equal, the positive of one is no negative of the other. -> scalar

    Source: Ni et al. 2021, arXiv:2108.08877, equations 1 and 2, whose formula is one way, and their released
    code, which adds both; Gao et al. 2021, arXiv:2104.08821, equation 5.
    """
    u, v = F.normalize(u, dim=-1), F.normalize(v, dim=-1)
    scores, target = u @ v.T / temperature, torch.arange(len(u), device=u.device)  # (P, P)
    if anchors is not None:
        same = (anchors[:, None] == anchors) & ~torch.eye(len(u), dtype=torch.bool, device=u.device)
        scores = scores.masked_fill(same, -torch.inf)
    back = F.cross_entropy(scores.T, target) if both else 0.0
    if negatives is not None:
        scores = torch.cat([scores, u @ F.normalize(negatives, dim=-1).T / temperature], dim=1)  # (P, 2 P)
    return F.cross_entropy(scores, target) + back


@dataclass(frozen=True)
class Settings:
    """Of multiple_negatives_ranking. both: both ways; distinct: examples of one anchor are no negatives of each other."""

    temperature: float = 0.05
    both: bool = True
    distinct: bool = False

    def __post_init__(self):
        if not 0 < self.temperature <= 10:
            raise InputError(f"temperature {self.temperature:g}: choose above 0, up to 10", "temperature")


def contrastive_options(option: Callable) -> None:
    """Those of a command line, added with option, argparse's add_argument."""
    option(
        "--projection",
        type=int,
        metavar="D",
        help="a linear map to D dimensions, then length 1; default: none",
    )
    option(
        "--chunk", type=int, metavar="N", help="examples embedded at a time; default: the task's, else all"
    )
    option("--temperature", type=float, help="of multiple_negatives_ranking; default: the task's, else 0.05")
    one_way = "multiple_negatives_ranking: an anchor looks for its positive, not the other way, too"
    option("--one-way", dest="both", action="store_const", const=False, help=one_way)
    distinct = "multiple_negatives_ranking: examples of equal anchors are not negatives of each other"
    option("--distinct", action="store_const", const=True, help=distinct)


class MultipleNegativesRanking(nn.Module):
    """A row of OBJECTIVES. anchors: their numbers, as targets() gives them where a task has no labels."""

    predicts = "cosines"
    texts = (2, 3)  # how many an example may have
    options, least = Settings, 2  # of a task's settings; how many examples a batch must have
    together = (
        True  # several processes share a batch, whose examples need each other, not the runs of a sweep
    )

    def __init__(self, width: int, task: Task):
        super().__init__()
        self.settings = Settings(**task.settings)

    def forward(self, u: Tensor, v: Tensor, *negatives_and_anchors: Tensor) -> Tensor:
        """u, v and, of triplets, hard negatives: (P, D) float32; numbers of the anchors, (P,) -> scalar"""
        *negatives, anchors = negatives_and_anchors
        anchors = anchors if self.settings.distinct else None
        return multiple_negatives_ranking(
            u, v, *negatives or [None], self.settings.temperature, self.settings.both, anchors
        )

    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        return cosines(u, v)


def backward_in_chunks(
    embed: Embedder,
    objective: nn.Module,
    target: Tensor,
    sentences: list[list[int]],
    chunk: int | None,
    amp: MixedPrecision,
    processes: Processes,
) -> Tensor:
    """The gradient of objective(*embeddings, target), of a batch at once, in the memory of a few examples.

    target: (P, ...); sentences: k x P lists of token ids, text after text; chunk: examples that are embedded
    at a time, None: an equal share for each process. First all are embedded without a graph; the loss of
    these gives the gradient of each embedding. Then chunk after chunk is embedded again, with the same
    dropout, and takes its share of the gradient on to the weights. Several processes share the chunks, and
    each has the gradient of all in the end. Source: Gao et al. 2021, arXiv:2101.06983. -> the loss
    """
    k, device = len(sentences) // len(target), embed.device
    size = k * min(chunk or len(target), math.ceil(len(target) / processes.world_size))  # sentences
    starts = range(0, len(sentences), size)
    *seeds, after = torch.randint(2**62, (len(starts) + 1,)).tolist()  # of the dropout of each chunk
    rank, world_size = processes.rank, processes.world_size
    mine = list(zip(starts, seeds, strict=True))[rank::world_size]

    embedded = torch.zeros(len(sentences), embed.dimensions, device=device)
    for start, seed in mine:
        seed_generator(device, seed)
        with torch.no_grad(), amp:
            embedded[start : start + size] = embed(sentences[start : start + size])
    leaves = processes.sum(embedded).requires_grad_()
    with amp:
        loss = objective(*leaves.chunk(k), target)
    amp.backward(loss)
    for start, seed in mine:
        seed_generator(device, seed)
        with amp:
            again = embed(sentences[start : start + size])
        with fast_matmul():
            again.backward(leaves.grad[start : start + size])
    seed_generator(device, after)
    processes.all_reduce_gradients(embed.model.parameters())
    return loss.detach()
