"""Test whether two sweeps, or two layers, differ, by a paired bootstrap over test examples and seeds.

The predictions of each run are read from its folder. All sweeps are scored on the same resampled examples, so
that the difficulty of the examples cancels in the difference of two scores.
Source: Efron and Tibshirani 1993, chapter 13 (percentile intervals).

Shapes: N test examples, R resamples.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tmft.evaluation.retrieval import RETRIEVAL_METRICS
from tmft.io.atomic import write_file
from tmft.io.files import is_file, reading
from tmft.metrics import METRICS, expected_prediction
from tmft.runs.sweeps import Sweep

PREDICTIONS_FILE = "predictions.npz"
MAX_ARRAY_BYTES = 2**24  # size of an array in the file: two million numbers of 8 bytes
NUM_RESAMPLES = 1000
MAX_CHUNK = 2**21  # examples of all resamples that are scored at a time: about 100 MB
CONFIDENCE_INTERVAL = 2.5, 97.5  # percentiles of the resampled differences: 95 % lie between them


class Difference(NamedTuple):
    """The difference of two scores on test, not x 100. low, high: ends of its 95 % confidence interval."""

    difference: float
    low: float
    high: float


def save_predictions(predictions: Mapping[str, tuple[np.ndarray, object]], folder: Path) -> None:
    """Write the predictions and the labels of the test split, (N,) each, to predictions.npz in a run folder.

    predictions: {task: (predictions from which the metric was computed, labels)}. Nothing is written if there
    are several tasks, or if the predictions are not one number per example.
    """
    [(predicted, labels), *other_tasks] = predictions.values()
    if other_tasks or predicted.ndim > 1:
        return

    def write(path: Path) -> None:
        with open(path, "wb") as file:  # given a path, np.savez would change its ending
            np.savez(file, predicted=predicted, labels=np.asarray(labels))

    write_file(folder / PREDICTIONS_FILE, write)


def read_predictions(folder: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Read the predictions and the labels of test from a run folder, (N,) each; None if it has none."""
    path = folder / PREDICTIONS_FILE
    if not is_file(path):
        return None
    with reading(path, "remove it"):  # the file may be anything; nothing in it is run as code
        with zipfile.ZipFile(path) as archive:
            sizes = [entry.file_size for entry in archive.infolist()]  # nothing larger is unpacked
        if max(sizes, default=0) > MAX_ARRAY_BYTES:
            raise ValueError(f"an array of {max(sizes)} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            predicted, labels = arrays["predicted"], arrays["labels"]
        are_vectors = predicted.ndim == 1 and 0 < len(predicted) and predicted.shape == labels.shape
        are_numbers = all(array.dtype.kind in "biuf" for array in (predicted, labels))
        if not (are_vectors and are_numbers and np.isfinite(labels).all()):
            raise ValueError("it does not hold two arrays of numbers of equal length")
        return predicted, labels


@dataclass(frozen=True)
class LayerScores:
    """The test scores of a sweep at one layer on resampled examples.

    labels: (N,), those of the test examples. scores: (R,), one for each resample, not x 100.
    """

    sweep: Sweep
    layer: int
    labels: np.ndarray
    scores: np.ndarray


def resample_layer(sweep: Sweep, layer: int) -> LayerScores | None:
    """Return the resampled test scores of a sweep at a layer; None if its runs have no predictions."""
    runs = read_sweep_predictions(sweep, layer)
    return LayerScores(sweep, layer, runs[0][1], resample_scores(sweep.metric, runs)) if runs else None


def compare_layer_scores(one: LayerScores, other: LayerScores) -> Difference | None:
    """Return the score of `one` minus that of `other`; None if they are of different test examples.

    The difference is significant if its confidence interval does not contain 0.
    """
    if not np.array_equal(one.labels, other.labels):
        return None
    difference = one.sweep.mean(one.layer, "test") - other.sweep.mean(other.layer, "test")
    return Difference(difference, *np.percentile(one.scores - other.scores, CONFIDENCE_INTERVAL).tolist())


def read_sweep_predictions(
    sweep: Sweep, layer: int | None = None
) -> list[tuple[np.ndarray, np.ndarray, float | None]]:
    """Return [(predictions (N,), labels (N,), threshold)] with an entry for each seed at a layer.

    layer: None takes the one that is best on dev. threshold: the one that the run chose on dev, None if its
    metric has none. The list is empty if a seed has no predictions, if the labels of two seeds differ, or if
    the metric is not computed from one number per example.
    """
    if sweep.metric not in METRICS or expected_prediction(sweep.metric) == "embedding":
        return []
    runs = []
    for result in sweep.layers[sweep.best_layer if layer is None else layer]:
        if (predictions := read_predictions(result["folder"])) is None:
            return []
        runs.append((*predictions, result["dev"].get("threshold")))
    return runs if all(np.array_equal(labels, runs[0][1]) for _, labels, _ in runs) else []


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


def resample_run(
    metric: str, predicted: np.ndarray, labels: np.ndarray, threshold: float | None, examples: np.ndarray
) -> np.ndarray:
    """Return the metric of a run on each row of `examples`, indices (R, N): (R,)."""
    if metric == "spearman":
        return resample_spearman(predicted, labels, count_rows(examples, len(labels)))
    if metric in RETRIEVAL_METRICS:
        return np.nanmean(predicted[examples], axis=1)  # over the queries that were drawn
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
