"""Evaluation by retrieval: each text that has others of its class is a query, and these should come first.

All other texts are ranked by their cosine with the query. The class of a text is a group of texts with the
same meaning, such as questions that are duplicates of each other.

Letters in this file: N texts, D dimensions, Q queries of a block, K ranks.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.errors import InputError
from tmft.evaluation.classification import EncodeFunction, ReadSplit
from tmft.tasks import Task

RANKS = 10  # what is ranked lower is not counted
RETRIEVAL_METRICS = (f"ndcg@{RANKS}", f"mrr@{RANKS}")
BLOCK_SIZE = 512  # queries that are compared with all texts at a time


def evaluate_retrieval(
    encode: EncodeFunction,
    task: Task,
    read_split: ReadSplit,
    split: str = "test",
    objective: nn.Module | None = None,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Rank all texts of a split by their cosine with each query, and return the means over the queries.

    encode, task, read_split, split: see tmft/evaluation/evaluators.py. objective, threshold: not used.
    Returns {"pairs": number of queries, "ndcg@10": ..., "mrr@10": ...}, see `score_queries`. Both are NaN if
    an embedding is not finite.
    """
    examples = read_split(split)
    of_texts, queries = score_queries(encode(examples.sentences), examples.labels), is_query(examples.labels)
    means = {name: float(values[queries].mean()) for name, values in of_texts.items()}
    return {"pairs": int(queries.sum())} | means


def is_query(labels: object) -> np.ndarray:
    """Return whether other texts have the same label, (N,) bool. Raises InputError if that is never so."""
    _, group, sizes = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    if sizes.max() == 1:
        raise InputError("no two texts have the same label, so there is nothing to find: check the data")
    return sizes[group] > 1


def score_queries(x: Tensor, labels: object) -> dict[str, np.ndarray]:
    """Return {"ndcg@10", "mrr@10"}, (N,) each, the scores of each text as a query; NaN if it is none.

    x: (N, D), embeddings of the texts. labels: N classes; the texts of its class are relevant to a query.
    nDCG: the sum of 1 / log2(1 + rank) over the relevant texts among the first ten, divided by that of the
    best possible order. MRR: 1 / the rank of the first relevant text, 0 if it is not among the first ten.
    Texts with the same cosine are tied: both scores are means over all orders of these, as in scikit-learn.
    Source: Järvelin and Kekäläinen 2002 (nDCG), Voorhees 1999 (MRR), McSherry and Najork 2008 (ties).

    Example, in which the second text is nearer to the first one than the third, which is relevant:

    >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> scores = score_queries(x, ["a", "b", "a"])
    >>> scores["mrr@10"].tolist()
    [0.5, nan, 0.5]
    """
    normalized = F.normalize(x.float(), dim=1)
    group = torch.from_numpy(np.unique(np.asarray(labels), return_inverse=True)[1])  # (N,)
    queries = torch.from_numpy(is_query(labels)).nonzero().flatten()
    K = min(RANKS, len(x) - 1)
    discounts = 1 / torch.arange(2, K + 2, dtype=torch.float64).log2()  # (K,), of the ranks
    num_relevant = (group.bincount()[group] - 1).clamp(max=K)  # (N,), that can be among the first ten
    best = discounts.cumsum(0)[(num_relevant - 1).clamp(min=0)]  # (N,)
    ndcg, mrr = (np.full(len(x), np.nan) for _ in RETRIEVAL_METRICS)
    _, inverse = np.unique(normalized.numpy(), axis=0, return_inverse=True)
    first_equal = torch.from_numpy(np.unique(inverse, return_index=True)[1][inverse.reshape(-1)])  # (N,)
    for block in queries.split(BLOCK_SIZE) if normalized.isfinite().all() else ():
        cosines = (normalized[block] @ normalized.T)[:, first_equal]  # (Q, N)
        cosines[torch.arange(len(block)), block] = -torch.inf  # a query does not find itself
        tied, relevant, before = count_ties(cosines, group == group[block, None], K)  # (Q, K) each, by rank
        ndcg[block] = ((relevant / tied) @ discounts) / best[block]
        # The probability that no text up to a rank is relevant; before the first rank it is 1.
        none = ((tied - relevant - before).clamp(min=0) / (tied - before)).cumprod(1)
        is_first = F.pad(none, (1, 0), value=1.0)[:, :-1] - none
        mrr[block] = (is_first / torch.arange(1, K + 1)).sum(1)
    return dict(zip(RETRIEVAL_METRICS, (ndcg, mrr), strict=True))


def count_ties(cosines: Tensor, is_relevant: Tensor, K: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return three counts of the texts that have the same cosine as the text at each of the first K ranks.

    cosines, is_relevant: (Q, N). The counts, (Q, K) float64: all of them, those that are relevant, and those
    at the ranks before. Only the texts tied with rank K can have further ones after it.
    """
    values, indices = cosines.topk(K)
    same = values[:, :, None] == values[:, None]  # (Q, K, K)
    at_ranks = is_relevant.gather(1, indices)  # (Q, K)
    tied, relevant = same.sum(2), (same & at_ranks[:, None]).sum(2)
    with_last = cosines == values[:, -1:]  # (Q, N)
    tied = torch.where(same[:, -1], with_last.sum(1, keepdim=True), tied)
    relevant = torch.where(same[:, -1], (with_last & is_relevant).sum(1, keepdim=True), relevant)
    return tied.double(), relevant.double(), same.tril(-1).sum(2).double()
