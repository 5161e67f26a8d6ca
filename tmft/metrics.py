"""Metrics: how well predictions agree with labels. Values are raw, in [-1, 1]; commands print them x 100.

Shapes: N examples of a split, D dimensions of an embedding.
"""

from collections.abc import Callable

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from tmft.data import Examples
from tmft.speed.threshold import best_threshold
from tmft.tasks import Task


def cosines(u: Tensor, v: Tensor) -> np.ndarray:
    """Cosine of each row of u with the same row of v: (..., N, D) each -> (..., N) float64.

    Rounded to 9 decimals, so that pairs of equal sentences tie: otherwise the last bit of their 1.0 would
    rank them, and change the Spearman correlation of STS12, which has 79 such pairs, by 0.002 points.
    """
    return torch.cosine_similarity(u.double(), v.double(), dim=-1).round(decimals=9).numpy()


def spearman(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Spearman's rank correlation of two arrays (N,); equal values share the mean of their ranks.

    NaN in the same cases as `pearson`.
    """
    if not np.isfinite(predicted).all():
        return float("nan")
    return pearson(stats.rankdata(predicted), stats.rankdata(gold))


def pearson(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Pearson's linear correlation of two arrays (N,). NaN if one of them is constant or not finite."""
    predicted, gold = np.asarray(predicted, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    if not np.isfinite(predicted).all() or np.ptp(predicted) == 0 or np.ptp(gold) == 0:
        return float("nan")
    return float(stats.pearsonr(predicted, gold).statistic)


def f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """F1 of the positive class, the harmonic mean of precision and recall; 0 if there is no true positive.

    predicted: (N,) bool; gold: (N,), True or 1 for the positive class.
    """
    true_positives = np.sum(predicted & (gold == 1))
    return float(2 * true_positives / max(1, np.sum(predicted) + np.sum(gold == 1)))


# A function of METRICS takes the predictions, the labels and, from dev, a threshold. It returns all scores
# that are reported, its own among them. Its attribute `expects` names the kind of prediction that it takes,
# one of Objective.prediction_type; without the attribute, the cosine.


def correlation_metrics(predicted: np.ndarray, gold: np.ndarray, threshold: float | None = None) -> dict:
    """Spearman and Pearson correlation of cosines (N,) with scores (N,). The threshold is not used."""
    return {"spearman": spearman(predicted, gold), "pearson": pearson(predicted, gold)}


def threshold_metrics(predicted: np.ndarray, gold: np.ndarray, threshold: float | None = None) -> dict:
    """F1 and accuracy, if a pair is assigned to class 1 when its cosine reaches the threshold.

    predicted: (N,) cosines; gold: (N,) of 0 and 1. threshold: None finds the one with the highest F1 on these
    pairs, as is right on dev; for test, give the threshold from dev. All are NaN if a cosine is not finite.
    """
    predicted, gold = np.asarray(predicted, dtype=np.float64), np.asarray(gold)
    if not np.isfinite(predicted).all():
        return {"f1": float("nan"), "accuracy": float("nan"), "threshold": float("nan")}
    if threshold is None:
        threshold = best_threshold(predicted, gold)
    positive = predicted >= threshold
    return {"f1": f1(positive, gold), "accuracy": float(np.mean(positive == gold)), "threshold": threshold}


def classification_metrics(predicted: np.ndarray, gold: np.ndarray, threshold: float | None = None) -> dict:
    """Macro F1 and accuracy of class indices (N,). The threshold is not used.

    Macro F1 is the plain mean over the classes that occur among the predictions or the labels.
    """
    predicted, gold = np.asarray(predicted), np.asarray(gold)
    f1_of_class = [f1(predicted == index, gold == index) for index in np.union1d(predicted, gold)]
    return {"f1_macro": float(np.mean(f1_of_class)), "accuracy": float(np.mean(predicted == gold))}


def teacher_cosine(predicted: np.ndarray, gold: Tensor, threshold: float | None = None) -> dict:
    """Mean cosine of the embeddings of a student to those of its teacher, (N, D) each. No threshold."""
    return {"teacher_cosine": float(cosines(torch.from_numpy(predicted), gold).mean())}


classification_metrics.expects = "class"
teacher_cosine.expects = "embedding"

# Name of the metric that selects the epoch -> the function that computes it, and what is reported with it.
METRICS: dict[str, Callable[..., dict]] = {
    "spearman": correlation_metrics,
    "pearson": correlation_metrics,
    "f1": threshold_metrics,
    "f1_macro": classification_metrics,
    "accuracy": classification_metrics,
    "teacher_cosine": teacher_cosine,
}


def expected_prediction(metric: str) -> str:
    """The kind of prediction that an entry of METRICS takes: "cosine", "class" or "embedding"."""
    return getattr(METRICS[metric], "expects", "cosine")


def compute_metrics(
    predicted: np.ndarray, examples: Examples, task: Task, threshold: float | None = None
) -> dict:
    """Score the predictions for one split: {"pairs": N, task.metric: ..., and what is reported with it}.

    predicted: (N, ...), the predictions of an objective. threshold: the one from dev, for metrics that use
    one.

    All examples are scored at once. A split of several subsets also gets "subsets", the metric of each of
    them, and "subset_mean", their mean. That mean differs by several points from the score over all pairs at
    once, called "all", which papers on STS12-16 mostly report.
    """
    metric = METRICS[task.metric]
    result = {"pairs": len(examples)} | metric(predicted, examples.labels, threshold)
    if examples.subsets:
        subsets = {
            name: metric(predicted[indices], examples.labels[indices], threshold)[task.metric]
            for name, indices in examples.subsets.items()
        }
        result |= {"subset_mean": sum(subsets.values()) / len(subsets), "subsets": subsets}
    return result
