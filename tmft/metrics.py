"""Metrics of how well predictions agree with labels. Values are raw, in [-1, 1]; commands print them x 100.

Letters: N examples of a split, D dimensions of an embedding.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from tmft.data import Examples
from tmft.tasks import Task


def cosines(u: Tensor, v: Tensor) -> np.ndarray:
    """Return the cosine similarity of each pair of embeddings, (..., N) float64. u, v: (..., N, D).

    The values are rounded to 9 decimals, so that all pairs of equal sentences have exactly 1.0. Otherwise
    rounding errors would rank these pairs, and change the Spearman correlation of STS12, which has 79 of
    them, by 0.002 points (of 100).
    """
    return torch.cosine_similarity(u.double(), v.double(), dim=-1).round(decimals=9).numpy()


def spearman(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return Spearman's rank correlation of two arrays (N,), in [-1, 1]; equal values get their mean rank.

    predicted, gold: (N,), the predictions and the scores of the data set. It is NaN if one of the arrays is
    constant or `predicted` has a value that is not finite.

    Example:

    >>> round(spearman(np.array([0.1, 0.9, 0.7, 0.8]), np.array([1.0, 5.0, 2.0, 3.0])), 4)  # the same order
    1.0
    """
    if not np.isfinite(predicted).all():
        return float("nan")
    return pearson(stats.rankdata(predicted), stats.rankdata(gold))


def pearson(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return Pearson's correlation of two arrays (N,), in [-1, 1].

    predicted, gold: (N,), the predictions and the scores of the data set. It is NaN if one of the arrays is
    constant or `predicted` has a value that is not finite.

    Example:

    >>> round(pearson(np.array([0.1, 0.7, 0.9]), np.array([1.0, 2.0, 5.0])), 4)
    0.8462
    """
    predicted, gold = np.asarray(predicted, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    if not np.isfinite(predicted).all() or np.ptp(predicted) == 0 or np.ptp(gold) == 0:
        return float("nan")
    return float(stats.pearsonr(predicted, gold).statistic)


def f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return F1 of the positive class, the harmonic mean of precision and recall, in [0, 1].

    It is 0 if there is no true positive. predicted: (N,) bool. gold: (N,), True or 1 for the positive class.

    Example:

    >>> f1(np.array([True, True, False]), np.array([1, 0, 1]))
    0.5
    """
    true_positives = np.sum(predicted & (gold == 1))
    return float(2 * true_positives / max(1, np.sum(predicted) + np.sum(gold == 1)))


# The functions in METRICS have the same three parameters: the predictions for N examples, their labels
# ("gold") and a decision threshold, which only threshold_metrics uses. They return {name of a metric: value},
# since some metrics are computed together. EXPECTED_PREDICTIONS says which kind of prediction a function
# takes, with the words of Objective.prediction_type; a function that it does not have takes cosines.


def correlation_metrics(
    predicted: np.ndarray, gold: np.ndarray, threshold: float | None = None
) -> dict[str, Any]:
    """Return {"spearman", "pearson"}, the correlations of `predicted` (N,) with the scores `gold` (N,).

    threshold: ignored; it is here because all functions in METRICS have the same parameters.
    """
    return {"spearman": spearman(predicted, gold), "pearson": pearson(predicted, gold)}


def threshold_metrics(
    predicted: np.ndarray, gold: np.ndarray, threshold: float | None = None
) -> dict[str, Any]:
    """Return {"f1", "accuracy", "threshold"}, where a pair is in class 1 if its cosine reaches a threshold.

    predicted: (N,) cosines. gold: (N,) class indices 0 and 1.
    threshold: the threshold to use. None finds the one with the highest F1 on these pairs, which is right on
        dev; on test, use the threshold that was found on dev.
    All values are NaN if a cosine is not finite.
    """
    predicted, gold = np.asarray(predicted, dtype=np.float64), np.asarray(gold)
    if not np.isfinite(predicted).all():
        return {"f1": float("nan"), "accuracy": float("nan"), "threshold": float("nan")}
    if threshold is None:
        threshold = best_threshold(predicted, gold)
    positive = predicted >= threshold
    return {"f1": f1(positive, gold), "accuracy": float(np.mean(positive == gold)), "threshold": threshold}


def best_threshold(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return the threshold with the highest F1 of the positive class; the highest one if several are equal.

    predicted: (N,) values, one for each pair. gold: (N,), 1 for positive pairs. A pair is predicted as
    positive if its value is at least the threshold. The threshold lies halfway between two neighboring
    values, so that rounding errors do not move a pair across it. If it is best to predict all pairs as
    positive, the threshold is the smallest value.
    """
    order = np.argsort(-predicted, kind="stable")
    values, true_positives = predicted[order], np.cumsum(gold[order] == 1)
    # f1[i]: F1 if the i + 1 largest values are predicted as positive
    f1 = 2 * true_positives / (np.arange(1, len(values) + 1) + true_positives[-1])
    last_of_equals = np.flatnonzero(np.append(values[:-1] > values[1:], True))  # never between equal values
    best = last_of_equals[np.argmax(f1[last_of_equals])]
    above, below = values[best], values[min(best + 1, len(values) - 1)]
    middle = (above + below) / 2
    return float(middle if middle > below else above)


def classification_metrics(
    predicted: np.ndarray, gold: np.ndarray, threshold: float | None = None
) -> dict[str, Any]:
    """Return {"f1_macro", "accuracy"} of class indices (N,), the predicted ones and gold.

    Macro F1 is the unweighted mean of F1 over the classes that occur among the predictions or the labels.
    threshold: ignored; it is here because all functions in METRICS have the same parameters.
    """
    predicted, gold = np.asarray(predicted), np.asarray(gold)
    f1_of_class = [f1(predicted == index, gold == index) for index in np.union1d(predicted, gold)]
    return {"f1_macro": float(np.mean(f1_of_class)), "accuracy": float(np.mean(predicted == gold))}


def teacher_cosine(predicted: np.ndarray, gold: Tensor, threshold: float | None = None) -> dict[str, Any]:
    """Return {"teacher_cosine"}, the mean cosine similarity between embeddings of student and teacher.

    predicted, gold: (N, D), the embeddings of the same N texts by the student and by the teacher.
    threshold: ignored; it is here because all functions in METRICS have the same parameters.
    """
    return {"teacher_cosine": float(cosines(torch.from_numpy(predicted), gold).mean())}


# Function of a metric -> the kind of prediction that it takes, for those that do not take cosines.
EXPECTED_PREDICTIONS: dict[Callable[..., dict[str, Any]], str] = {
    classification_metrics: "class",
    teacher_cosine: "embedding",
}

# Name of the metric that selects the best epoch -> the function that computes it, perhaps with others.
METRICS: dict[str, Callable[..., dict[str, Any]]] = {
    "spearman": correlation_metrics,
    "pearson": correlation_metrics,
    "f1": threshold_metrics,
    "f1_macro": classification_metrics,
    "accuracy": classification_metrics,
    "teacher_cosine": teacher_cosine,
}


def expected_prediction(metric: str) -> str:
    """Return the kind of prediction that a metric takes: "cosine", "class" or "embedding".

    metric: a key of METRICS.
    """
    return EXPECTED_PREDICTIONS.get(METRICS[metric], "cosine")


def is_computed_on_text(metric: str) -> bool:
    """Return whether a metric compares a student with its teacher, for which dev and test may be any text."""
    return METRICS.get(metric) is teacher_cosine


def compute_metrics(
    predicted: np.ndarray, examples: Examples, task: Task, threshold: float | None = None
) -> dict[str, Any]:
    """Score the predictions for one split with the metric of its task.

    predicted: (N, ...), the predictions of the objective for `examples`.
    threshold: the decision threshold from dev, for a metric that uses one.

    Returns {"pairs": N, task.metric: value, ...} with all metrics that are computed together, over all
    examples at once. If the split has subsets, there are also "subsets", {name: metric of this subset}, and
    "subset_mean", the mean of these. Papers on STS12-16 mostly report the former, over all pairs at once
    (they call it "all"); the mean over subsets differs from it by several points.

    Example:

    >>> from tmft.data import read_examples
    >>> from tmft.tasks import TASKS
    >>> examples = read_examples(TASKS["sample"], "dev")
    >>> compute_metrics(np.array(examples.labels) ** 2, examples, TASKS["sample"])["spearman"]
    1.0
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
