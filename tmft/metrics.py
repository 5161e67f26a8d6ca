"""How well predictions agree with people. Raw values in [-1, 1]; the commands print them x 100."""

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from tmft.data import Examples, Task
from tmft.speed.threshold import best_threshold


def cosines(u: Tensor, v: Tensor) -> np.ndarray:
    """Cosine of each row of u with the same row of v, both (..., N, D) -> (..., N) float64.

    Rounded to 9 decimals, so that pairs of equal sentences tie: otherwise the last bit of their 1.0 would
    rank them, and move the Spearman correlation of STS12, which has 79 such pairs, by 0.002 points.
    """
    return torch.cosine_similarity(u.double(), v.double(), dim=-1).round(decimals=9).numpy()


def spearman(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Spearman's rank correlation; equal values share the mean of their ranks. NaN as in pearson."""
    if not np.isfinite(predicted).all():
        return float("nan")
    return pearson(stats.rankdata(predicted), stats.rankdata(gold))


def pearson(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Pearson's linear correlation. NaN if one side is constant or not finite: nothing to correlate."""
    predicted, gold = np.asarray(predicted, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    if not np.isfinite(predicted).all() or np.ptp(predicted) == 0 or np.ptp(gold) == 0:
        return float("nan")
    return float(stats.pearsonr(predicted, gold).statistic)


def correlation_metrics(predicted: np.ndarray, gold: np.ndarray, threshold: float | None = None) -> dict:
    """Of cosines (N,) with scores (N,); a threshold is nothing to them."""
    return {"spearman": spearman(predicted, gold), "pearson": pearson(predicted, gold)}


def threshold_metrics(predicted: np.ndarray, gold: np.ndarray, threshold: float | None = None) -> dict:
    """F1 of class 1, and accuracy, of calling a pair 1 if its cosine reaches the threshold.

    predicted: (N,) cosines; gold: (N,) of 0 and 1. threshold=None: the one that is best for these pairs,
    which is right on dev only; for test, give it the one from dev. NaN if a cosine is not finite.
    """
    predicted, gold = np.asarray(predicted, dtype=np.float64), np.asarray(gold)
    if not np.isfinite(predicted).all():
        return {"f1": float("nan"), "accuracy": float("nan"), "threshold": float("nan")}
    if threshold is None:
        threshold = best_threshold(predicted, gold)
    decided = predicted >= threshold
    return {"f1": f1(decided, gold), "accuracy": float(np.mean(decided == gold)), "threshold": threshold}


def classification_metrics(predicted: np.ndarray, gold: np.ndarray, threshold: float | None = None) -> dict:
    """Macro F1, the plain mean over the classes that occur in either, and accuracy, of class numbers (N,)."""
    predicted, gold = np.asarray(predicted), np.asarray(gold)
    of_each = [f1(predicted == number, gold == number) for number in np.union1d(predicted, gold)]
    return {"f1_macro": float(np.mean(of_each)), "accuracy": float(np.mean(predicted == gold))}


def f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Harmonic mean of precision and recall of what is true (or 1) in gold; 0 if nothing was found."""
    hits = np.sum(predicted & (gold == 1))
    return float(2 * hits / max(1, np.sum(predicted) + np.sum(gold == 1)))


def teacher_cosine(predicted: np.ndarray, gold: Tensor, threshold: float | None = None) -> dict:
    """Mean cosine of a student's embeddings to its teacher's, (N, D) each."""
    return {"fidelity": float(cosines(torch.from_numpy(predicted), gold).mean())}


teacher_cosine.reads, classification_metrics.reads = (
    "vectors",
    "classes",
)  # what an objective must predict; others read cosines

# Name of the metric that chooses the epoch -> what is reported beside it, itself included.
METRICS = {
    "spearman": correlation_metrics,
    "pearson": correlation_metrics,
    "f1": threshold_metrics,
    "f1_macro": classification_metrics,
    "accuracy": classification_metrics,
    "fidelity": teacher_cosine,
}


def compute_metrics(
    predicted: np.ndarray, examples: Examples, task: Task, threshold: float | None = None
) -> dict:
    """Scores of one split: {"pairs": n, task.metric: ..., and what goes with it}, over all of them at once.

    threshold: the one from dev, for metrics that use one. A split of several subsets also gets "subsets", the
    metric of each, and "subset_mean", their mean: it differs by several points from that over all pairs at
    once, called "all", which papers on STS12-16 mostly mean.
    """
    metric = METRICS[task.metric]
    result = {"pairs": len(examples)} | metric(predicted, examples.labels, threshold)
    if examples.subsets:
        parts = {name: (predicted[part], examples.labels[part]) for name, part in examples.subsets.items()}
        subsets = {name: metric(*part, threshold)[task.metric] for name, part in parts.items()}
        result |= {"subset_mean": sum(subsets.values()) / len(subsets), "subsets": subsets}
    return result
