"""Evaluation by clustering: k-means, which does not know the labels, should put texts of a class together.

There are as many clusters as classes, and the accuracy is that of the best one-to-one mapping of clusters to
classes. The score is the mean of ten runs with different seeds, as in Stankevičius and Lukoševičius 2024
(arXiv:2408.08073, section 3.5.1); a run keeps the best of ten restarts, as in the code that they name. From
equal initial centers, k-means here takes the steps of scikit-learn's, and finds the same clusters.

Letters in this file: N texts, D dimensions, k clusters, R restarts, T draws of a center.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from tmft.errors import check_range
from tmft.evaluation.classification import EncodeFunction, ReadSplit
from tmft.tasks import Task

MAX_ITERATIONS = 300
# The centers have converged if the sum of their squared shifts is below this share of the mean variance of a
# dimension, as in scikit-learn.
TOLERANCE = 1e-4
# Distances that differ by less than this share of the typical |x| count as equal, because float32 rounds.
SLACK = 1e-3


def evaluate_clustering(
    encode: EncodeFunction,
    task: Task,
    read_split: ReadSplit,
    split: str = "test",
    objective: nn.Module | None = None,
    threshold: float | None = None,
    runs: int = 10,
    restarts: int = 10,
) -> dict[str, Any]:
    """Cluster the texts of a task by k-means, and return the accuracy under the best one-to-one mapping.

    k is the number of classes. Embeddings are neither centered nor normalized.
    runs: number of runs, with the seeds 0 to runs - 1. restarts: number of restarts of k-means in each run.

    Returns {"pairs": N, "accuracy": mean over the runs, in [0, 1], "std": sample standard deviation over the
    runs}. Both scores are NaN if an embedding is not finite; std is also NaN for a single run.
    """
    check_range("runs", runs, 1)
    examples = read_split(split)
    (texts,) = examples.texts
    x, k = encode(texts), len(set(examples.labels))
    if not x.isfinite().all():
        return {"pairs": len(examples), "accuracy": math.nan, "std": math.nan}
    generators = [torch.Generator().manual_seed(seed) for seed in range(runs)]
    accuracies = [
        clustering_accuracy(k_means(x, k, generator, restarts), examples.labels) for generator in generators
    ]
    std = statistics.stdev(accuracies) if runs > 1 else math.nan
    return {"pairs": len(examples), "accuracy": statistics.mean(accuracies), "std": std}


def clustering_accuracy(clusters: Tensor | list[int], classes: Tensor | Sequence[float]) -> float:
    """Return the accuracy, in [0, 1], under the best one-to-one mapping of clusters to classes.

    clusters, classes: (N,), the cluster and the class of each text. The accuracy is the share of the texts
    whose cluster is mapped to their class. Source: Kuhn 1955, for the assignment.

    Example:

    >>> clustering_accuracy([0, 0, 1, 1], [5, 5, 3, 3])
    1.0
    >>> clustering_accuracy([0, 0, 0, 1], [5, 5, 3, 3])
    0.75
    """
    rows, columns = (np.unique(labels, return_inverse=True)[1] for labels in (clusters, classes))
    counts = np.zeros((rows.max() + 1, columns.max() + 1), dtype=np.int64)
    np.add.at(counts, (rows, columns), 1)  # number of texts in each cluster and class
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / len(classes))


# --------------------------------------------------------------------------------------------------- k-means


def k_means(x: Tensor, k: int, generator: torch.Generator, restarts: int = 10) -> Tensor:
    """Cluster embeddings x, (N, D), by k-means; return the cluster of each, (N,) int64, from 0 to k - 1.

    restarts: number of choices of initial centers, of which the one with the lowest inertia is kept.
    """
    check_range("restarts", restarts, 1)
    check_range("k", k, 1, len(x))
    x = x - x.mean(0)  # with short vectors, |x|² - 2 x c + |c|² loses less to rounding
    results = (lloyd(x, centers) for centers in kmeans_plus_plus(x, k, generator, restarts))
    return min(results, key=lambda result: result[2])[0]


def kmeans_plus_plus(x: Tensor, k: int, generator: torch.Generator, restarts: int) -> Tensor:
    """Choose initial centers by greedy k-means++: k distant embeddings for each restart, (R, k, D).

    The first center is drawn uniformly, each further one with a probability proportional to the squared
    distance to the nearest center so far; of T such draws, the one is taken after which the sum of these
    squared distances is smallest.
    Source: Arthur and Vassilvitskii 2007, section 2.2 and its closing remark on several draws.
    """
    N, R, T = len(x), restarts, 2 + int(math.log(k))
    squared_norms = x.square().sum(1)
    restart = torch.arange(R)

    def squared_distances(indices: Tensor) -> Tensor:
        """Return the squared distances from the texts with these indices to all texts, (len(indices), N)."""
        products = torch.addmm(squared_norms, x[indices], x.T, alpha=-2)
        return (products + squared_norms[indices, None]).clamp_(min=0)

    chosen = [torch.randint(N, (R,), generator=generator)]
    nearest = squared_distances(chosen[0])  # (R, N): of each text to the nearest center so far
    for _ in range(1, k):
        cumulative = nearest.double().cumsum(1)
        draws = torch.rand(R, T, generator=generator, dtype=torch.float64) * cumulative[:, -1:]
        candidates = torch.searchsorted(cumulative, draws).clamp_(max=N - 1)  # (R, T)
        remaining = torch.minimum(squared_distances(candidates.flatten()).view(R, T, N), nearest[:, None])
        best = remaining.sum(2).argmin(1)  # (R,)
        nearest = remaining[restart, best]
        chosen.append(candidates[restart, best])
    return x[torch.stack(chosen, dim=1)]


def lloyd(x: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, float, int]:
    """Run Lloyd's algorithm: assign texts to the nearest center, move centers to the mean of their texts.

    x: (N, D) with mean 0; centers: (k, D). Returns the index of each text's center (N,), the centers (k, D),
    the inertia (the sum of the squared distances of texts to their centers) and the number of iterations.

    If a center moves by s, its distance to a text changes by s at most; a text is compared with the centers
    again only if, by these bounds, another center may have become the nearest. The texts that are skipped
    would not have changed. Sources: Lloyd 1982; Elkan 2003 (ICML), section 3.
    """
    squared_norms = x.square().sum(1)
    tolerance = TOLERANCE * squared_norms.mean() / x.shape[1]
    slack = SLACK * squared_norms.mean().sqrt()
    labels, own_distance, other_distances = nearest_centers(x, squared_norms, centers)
    sums = torch.zeros_like(centers).index_add_(0, labels, x).double()  # (k, D), of the texts of each center
    n_iter, converged = 0, False
    while n_iter < MAX_ITERATIONS and not converged:
        previous, centers = centers, update_centers(x, labels, sums, centers)
        shifts = (centers - previous).norm(dim=1)
        # From here on, own_distance is an upper bound and other_distances are lower bounds.
        own_distance, other_distances = own_distance + shifts[labels], other_distances - shifts
        unsure = (other_distances.amin(1) <= own_distance + slack).nonzero().flatten()
        unsure_x = x.index_select(0, unsure)
        nearest, own_distance[unsure], other_distances[unsure] = nearest_centers(
            unsure_x, squared_norms[unsure], centers
        )
        changed = nearest != labels[unsure]
        texts, moved_x, moved_to = unsure[changed], unsure_x[changed].double(), nearest[changed]
        sums.index_add_(0, labels[texts], -moved_x).index_add_(0, moved_to, moved_x)
        labels[texts] = moved_to
        n_iter, converged = n_iter + 1, len(texts) == 0 or shifts.square().sum() <= tolerance
    counts = torch.bincount(labels, minlength=len(centers))
    c = centers.double()
    inertia = squared_norms.double().sum() - 2 * (c * sums).sum() + (c.square().sum(1) * counts).sum()
    return labels, centers, inertia.item(), n_iter


def nearest_centers(x: Tensor, squared_norms: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the index of the center that is nearest to each text, (N,), and the distance to it, (N,).

    Third are the distances to all centers, (N, k), in which the entry of the nearest one is inf, so that the
    minimum of a row is the distance to the second nearest one. squared_norms: (N,), those of x.
    """
    # In |x - c|² = |x|² + (|c|² - 2 x c) only the second part, here the scores, depends on the center.
    scores = torch.addmm(centers.square().sum(1), x, centers.T, alpha=-2)
    lowest, labels = scores.min(1)
    own_distance = (lowest + squared_norms).clamp_(min=0).sqrt_()
    other_distances = (scores + squared_norms[:, None]).clamp_(min=0).sqrt_()
    return labels, own_distance, other_distances.scatter_(1, labels[:, None], math.inf)


def update_centers(x: Tensor, labels: Tensor, sums: Tensor, centers: Tensor) -> Tensor:
    """Return the new centers, (k, D): the means of their texts. sums: (k, D) float64, of the texts.

    The first center without texts is moved to the text that is farthest from its own center, the next one to
    the second farthest text, and so on, as in scikit-learn. If all texts lie exactly on their centers, there
    are fewer distinct texts than k; a center without texts is then moved to the center with most texts.
    """
    counts = torch.bincount(labels, minlength=len(centers))
    empty = (counts == 0).nonzero().flatten()
    if len(empty):
        distances = (x - centers[labels]).square().sum(1)
        if distances.max() > 0:
            farthest = distances.topk(len(empty)).indices
            farthest_x, one = x[farthest].double(), torch.ones_like(farthest)
            sums = sums.index_add(0, labels[farthest], -farthest_x).index_add(0, empty, farthest_x)
            counts = counts.index_add(0, labels[farthest], -one).index_add(0, empty, one)
    means = sums / counts[:, None]
    return torch.where(counts[:, None] > 0, means, means[counts.argmax()]).to(x.dtype)
