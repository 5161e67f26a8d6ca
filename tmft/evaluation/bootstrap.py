"""Test whether two models differ, by a paired bootstrap over test examples and, if there are several, seeds.

All models are scored on the same resampled examples, so that the difficulty of the examples cancels in the
difference of two scores.
Source: Efron and Tibshirani 1993, chapter 13 (percentile intervals).

Shapes: N test examples, R resamples.
"""

import numpy as np

from tmft.metrics import METRICS

NUM_RESAMPLES = 1000
MAX_CHUNK = 2**21  # examples of all resamples that are scored at a time: about 100 MB
CONFIDENCE_INTERVAL = 2.5, 97.5  # percentiles of the resampled differences: 95 % lie between them


def resample_scores(
    metric: str, runs: list[tuple[np.ndarray, np.ndarray, float | None]], seed: int = 0
) -> np.ndarray:
    """Return the mean score of runs in each of R resamples, (R,).

    A resample draws N of the N examples and as many seeds as there are, both with replacement. The generators
    start from fixed seeds, so all runs are scored on the same examples.
    runs: (predictions (N,), labels (N,), threshold) of each seed. seed: of the drawn examples.
    """
    example_generator, seed_generator = np.random.default_rng(seed), np.random.default_rng(1)
    N, scores = len(runs[0][1]), []
    chunk = max(1, MAX_CHUNK // N)  # resamples at a time
    for start in range(0, NUM_RESAMPLES, chunk):
        rows = range(min(chunk, NUM_RESAMPLES - start))
        examples = np.stack([example_generator.integers(N, size=N) for _ in rows])  # (chunk, N)
        seeds = np.stack([seed_generator.integers(len(runs), size=len(runs)) for _ in rows])
        seed_counts = count_rows(seeds, len(runs))  # (chunk, seeds): how often each seed was drawn
        total = np.zeros(len(rows))
        for seed, run in enumerate(runs):
            drawn = seed_counts[:, seed] > 0
            total[drawn] += seed_counts[drawn, seed] * resample_run(metric, *run, examples[drawn])
        scores.append(total / len(runs))
    return np.concatenate(scores)


def confidence_interval(resampled: np.ndarray) -> tuple[float, float] | None:
    """Return the ends of the 95 % confidence interval of resampled differences, (R,).

    None if one is undefined, as with so few examples that a resample has a single score.
    """
    low, high = np.percentile(resampled, CONFIDENCE_INTERVAL).tolist()
    return (low, high) if np.isfinite(low) else None


def resample_run(
    metric: str, predicted: np.ndarray, labels: np.ndarray, threshold: float | None, examples: np.ndarray
) -> np.ndarray:
    """Return the metric of a run on each row of `examples`, indices (R, N): (R,)."""
    if metric == "spearman":
        return resample_spearman(predicted, labels, count_rows(examples, len(labels)))
    return np.array([METRICS[metric](predicted[row], labels[row], threshold)[metric] for row in examples])


def count_rows(indices: np.ndarray, size: int) -> np.ndarray:
    """Count how often each index from 0 to size - 1 is in each row. indices: (R, M). Returns (R, size)."""
    offsets = size * np.arange(len(indices))[:, None]
    return np.bincount((indices + offsets).ravel(), minlength=len(indices) * size).reshape(-1, size)


def resample_spearman(predicted: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation in each resample, (R,), as `spearman` of tmft/metrics.py computes it.

    All resamples are computed at once, some ten times faster than one after the other. predicted, labels:
    (N,). counts: (R, N), how often each resample has each example. A resample whose predictions or labels
    are all equal has NaN.
    """
    if not np.isfinite(predicted).all():
        return np.full(len(counts), np.nan)
    N = counts.shape[1]
    x, y = (mean_ranks(values, counts) - (N + 1) / 2 for values in (predicted, labels))  # (R, N), mean 0
    covariance, *variances = ((counts * a * b).sum(1) for a, b in ((x, y), (x, x), (y, y)))
    scale = np.sqrt(variances[0] * variances[1])
    return np.divide(covariance, scale, out=np.full(len(counts), np.nan), where=scale > 0)


def mean_ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the rank of each example in each resample, (R, N); equal values have their mean rank, from 1.

    values: (N,). counts: (R, N), how often each resample has each example.
    """
    _, group = np.unique(values, return_inverse=True)  # (N,): which of the G different values
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)  # (R, G)
    ranks = np.cumsum(sizes, axis=1) - (sizes - 1) / 2
    return ranks[:, group]
