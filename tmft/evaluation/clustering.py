"""Clustering: do sentences of one class lie together? k-means finds k groups, without a look at the labels.

k is the number of classes, and the accuracy that of the best one-to-one map from clusters to classes. A run
is the best of ten restarts, the result the mean of ten runs with their own seeds, as in Stankevičius and
Lukoševičius 2024 (arXiv:2408.08073, section 3.5.1). From the same start k-means takes the steps of scikit-
learn's and comes to the same clusters.
Letters in this file: N texts, D dimensions, k clusters, R restarts, T trials.
"""

import math
import statistics
from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from tmft.data import Examples, Task
from tmft.errors import check_range

MAX_ITERATIONS = 300
TOLERANCE = 1e-4  # squared moves of all centres, as a part of the mean variance of a dimension: they stand
SLACK = 1e-3  # distances differ if they do so by more, as a part of the typical |x|: float32 rounds the rest


def clustering(
    encode: Callable[[list[str]], Tensor],
    task: Task,
    read: Callable[[str], Examples],
    split: str = "test",
    objective: nn.Module | None = None,
    threshold: float | None = None,
    runs: int = 10,
    restarts: int = 10,
) -> dict:
    """The suite of tasks with a text and a class: accuracy in [0, 1] and its sample deviation over the runs.

    Embeddings are taken as they are, neither centred nor normalised. The seeds are 0 to runs - 1. NaN if an
    embedding is not finite, and for the deviation of a single run. objective and threshold do nothing.
    """
    check_range("runs", runs, 1)
    examples = read(split)
    (texts,) = examples.texts
    x, k = encode(texts), len(set(examples.labels))
    if not x.isfinite().all():
        return {"pairs": len(examples), "accuracy": math.nan, "deviation": math.nan}
    generators = [torch.Generator().manual_seed(seed) for seed in range(runs)]
    accuracies = [
        matched_accuracy(k_means(x, k, generator, restarts), examples.labels) for generator in generators
    ]
    deviation = statistics.stdev(accuracies) if runs > 1 else math.nan
    return {"pairs": len(examples), "accuracy": statistics.mean(accuracies), "deviation": deviation}


def matched_accuracy(predicted: Tensor | list[int], gold: Tensor | list[int]) -> float:
    """Share of N texts whose cluster is mapped to their class, by the best one-to-one map (Kuhn 1955)."""
    clusters, classes = (np.unique(side, return_inverse=True)[1] for side in (predicted, gold))
    table = np.zeros((clusters.max() + 1, classes.max() + 1), dtype=np.int64)
    np.add.at(table, (clusters, classes), 1)  # texts in both
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(classes))


# --------------------------------------------------------------------------------------------------- k-means


def k_means(x: Tensor, k: int, generator: torch.Generator, restarts: int = 10) -> Tensor:
    """Numbers of clusters, (N,) int64, of embeddings x: (N, D), by the restart with the least inertia.

    The same generator state gives the same numbers. Raises InputError if there are more clusters than texts.
    """
    check_range("restarts", restarts, 1)
    check_range("k", k, 1, len(x))
    x = x - x.mean(0)  # short vectors: less is lost in |x|² - 2 x c + |c|²
    found = (lloyd(x, centers) for centers in starts(x, k, generator, restarts))
    return min(found, key=lambda result: result[2])[0]


def starts(x: Tensor, k: int, generator: torch.Generator, restarts: int) -> Tensor:
    """Greedy k-means++: centres to begin with, k texts for each restart, (R, k, D), that lie apart.

    The first is any text. Each next one is drawn with a probability in proportion to its squared distance to
    the nearest so far; of T such draws, that which leaves the least of these distances in sum is taken.
    Source: Arthur and Vassilvitskii 2007, section 2.2 and its closing remark on several draws.
    """
    N, R, T = len(x), restarts, 2 + int(math.log(k))
    squares = x.square().sum(1)
    each = torch.arange(R)

    def squared_distances(texts: Tensor) -> Tensor:
        products = torch.addmm(squares, x[texts], x.T, alpha=-2)
        return (products + squares[texts, None]).clamp_(min=0)  # (len(texts), N)

    chosen = [torch.randint(N, (R,), generator=generator)]
    did_you_mean = squared_distances(chosen[0])  # (R, N)
    for _ in range(1, k):
        cumulative = did_you_mean.double().cumsum(1)
        draws = torch.rand(R, T, generator=generator, dtype=torch.float64) * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, draws).clamp_(max=N - 1)  # (R, T)
        left = torch.minimum(squared_distances(drawn.flatten()).view(R, T, N), did_you_mean[:, None])
        best = left.sum(2).argmin(1)  # (R,)
        did_you_mean = left[each, best]
        chosen.append(drawn[each, best])
    return x[torch.stack(chosen, dim=1)]


def lloyd(x: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, float, int]:
    """Each text to its nearest centre, each centre to the mean of its texts, in turn, until they stay.

    x: (N, D) with mean 0; centers: (k, D). Returns the number of each text's centre (N,), the centres (k, D),
    the inertia, which is the sum of the squared distances between the two, and how often the centres moved.
    Source: Lloyd 1982. Most texts are far from changing: where a centre moves by s, its distance to a text
    changes by s at most, and a text is compared again only if by these bounds another centre may have come
    nearer. What is skipped so would not have changed (Elkan 2003, ICML, section 3).
    """
    squares = x.square().sum(1)
    tolerance, slack = TOLERANCE * squares.mean() / x.shape[1], SLACK * squares.mean().sqrt()
    labels, own, others = compare(x, squares, centers)
    sums = torch.zeros_like(centers).index_add_(0, labels, x).double()  # (k, D), of the texts of a centre
    moves, still = 0, False
    while moves < MAX_ITERATIONS and not still:
        before, centers = centers, means(x, labels, sums, centers)
        shifts = (centers - before).norm(dim=1)
        own, others = own + shifts[labels], others - shifts  # at most, at least
        unsure = (others.amin(1) <= own + slack).nonzero().flatten()
        rows = x.index_select(0, unsure)
        found, own[unsure], others[unsure] = compare(rows, squares[unsure], centers)
        changed = found != labels[unsure]
        texts, rows, found = unsure[changed], rows[changed].double(), found[changed]
        sums.index_add_(0, labels[texts], -rows).index_add_(0, found, rows)
        labels[texts] = found
        moves, still = moves + 1, len(texts) == 0 or shifts.square().sum() <= tolerance
    counts = torch.bincount(labels, minlength=len(centers))
    exact = centers.double()
    inertia = squares.double().sum() - 2 * (exact * sums).sum() + (exact.square().sum(1) * counts).sum()
    return labels, centers, inertia.item(), moves


def compare(x: Tensor, squares: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest centre of each text (N,), the distance to it (N,), to the others (N, k), inf at its own.

    squares: (N,) |x|². |x - c|² = |x|² + (|c|² - 2 x c), of which the second part decides.
    """
    scores = torch.addmm(centers.square().sum(1), x, centers.T, alpha=-2)
    least, labels = scores.min(1)
    own = (least + squares).clamp_(min=0).sqrt_()
    others = (scores + squares[:, None]).clamp_(min=0).sqrt_()
    return labels, own, others.scatter_(1, labels[:, None], math.inf)


def means(x: Tensor, labels: Tensor, sums: Tensor, centers: Tensor) -> Tensor:
    """The mean of each centre's texts, (k, D).

    A centre without texts gets one: the text that is farthest from its own centre, the next one the second
    farthest. Where all texts lie on their centres, there are too few for k: it gets the place of the largest.
    """
    counts = torch.bincount(labels, minlength=len(centers))
    empty = (counts == 0).nonzero().flatten()
    if len(empty):
        distances = (x - centers[labels]).square().sum(1)
        if distances.max() > 0:
            far = distances.topk(len(empty)).indices
            rows, one = x[far].double(), torch.ones_like(far)
            sums = sums.index_add(0, labels[far], -rows).index_add(0, empty, rows)
            counts = counts.index_add(0, labels[far], -one).index_add(0, empty, one)
    averages = sums / counts[:, None]
    return torch.where(counts[:, None] > 0, averages, averages[counts.argmax()]).to(x.dtype)
