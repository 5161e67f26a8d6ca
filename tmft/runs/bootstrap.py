"""Test whether two sweeps differ, by a paired bootstrap over test examples and seeds.

The predictions of each run are read from its folder. All sweeps are scored on the same resampled examples, so
that the difficulty of the examples cancels in the difference of two scores.
Source: Efron and Tibshirani 1993, chapter 13 (percentile intervals).

Shapes: N test examples, R resamples.
"""

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tmft.errors import InputError
from tmft.io.atomic import error_text, write_file
from tmft.metrics import METRICS, teacher_cosine
from tmft.runs.sweeps import Sweep

PREDICTIONS_FILE = "predictions.npz"
MAX_ARRAY_BYTES = 2**24  # size of an array in the file: two million numbers of 8 bytes
NUM_RESAMPLES = 1000
CONFIDENCE_INTERVAL = 2.5, 97.5  # percentiles of the resampled differences: 95 % lie between them


class Comparison(NamedTuple):
    """The difference between two sweeps on test: score of `best` minus score of `other`, not x 100.

    best: the sweep with the highest score on dev. low, high: ends of the 95 % confidence interval.
    """

    best: Sweep
    other: Sweep
    difference: float
    low: float
    high: float


def save_predictions(predictions: dict[str, tuple[np.ndarray, object]], folder: Path) -> None:
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
    """Read the predictions and the labels of the test split from a run folder, (N,) each.

    Returns None if the folder has none, as those of early versions. Raises InputError if the file is damaged
    or too large.
    """
    path = folder / PREDICTIONS_FILE
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = [entry.file_size for entry in archive.infolist()]  # nothing larger is unpacked
        if max(sizes, default=0) > MAX_ARRAY_BYTES:
            raise ValueError(f"an array of {max(sizes)} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            predicted, labels = arrays["predicted"], arrays["labels"]
        are_vectors = predicted.ndim == 1 and 0 < len(predicted) and predicted.shape == labels.shape
        are_numbers = all(array.dtype.kind in "biuf" for array in (predicted, labels))
    except Exception as error:  # the file may be anything; nothing in it is run as code
        raise InputError(f"{path} cannot be read ({error_text(error)}): remove it") from None
    if not (are_vectors and are_numbers and np.isfinite(labels).all()):
        raise InputError(f"{path} does not hold two arrays of numbers of equal length: remove it")
    return predicted, labels


def paired_bootstrap(sweeps: list[Sweep]) -> list[Comparison]:
    """Compare the sweep with the highest score on dev with each of the others, by their scores on test.

    sweeps: all on one task; each is compared at its layer that is best on dev. Sweeps without predictions,
    and sweeps whose test examples differ from those of the best one, are left out.
    """
    ranked = sorted(sweeps, key=lambda sweep: -np.nan_to_num(sweep.mean(sweep.best_layer, "dev"), nan=-9.0))
    with_predictions = [(sweep, runs) for sweep in ranked if (runs := read_sweep_predictions(sweep))]
    if len(with_predictions) < 2:
        return []
    (best, best_runs), *others = with_predictions
    labels = best_runs[0][1]
    best_scores, comparisons = resample_scores(best, best_runs), []
    for other, runs in others:
        if np.array_equal(runs[0][1], labels):
            differences = best_scores - resample_scores(other, runs)  # (R,)
            difference = best.mean(best.best_layer, "test") - other.mean(other.best_layer, "test")
            interval = np.percentile(differences, CONFIDENCE_INTERVAL).tolist()
            comparisons.append(Comparison(best, other, difference, *interval))
    return comparisons


def read_sweep_predictions(sweep: Sweep) -> list[tuple[np.ndarray, np.ndarray, float | None]]:
    """Return [(predictions (N,), labels (N,), threshold)] with an entry for each seed at the best layer.

    threshold: the one that the run chose on dev, None if its metric has none. The list is empty if a seed has
    no predictions, if the labels of two seeds differ, or if the metric is not computed from one number per
    example.
    """
    if getattr(METRICS.get(sweep.metric, teacher_cosine), "expects", "") == "embedding":
        return []
    runs = []
    for result in sweep.layers[sweep.best_layer]:
        if (predictions := read_predictions(result["folder"])) is None:
            return []
        runs.append((*predictions, result["dev"].get("threshold")))
    return runs if all(np.array_equal(labels, runs[0][1]) for _, labels, _ in runs) else []


def resample_scores(sweep: Sweep, runs: list[tuple[np.ndarray, np.ndarray, float | None]]) -> np.ndarray:
    """Return the score of a sweep in each of R resamples, (R,).

    A resample draws N of the N examples and as many seeds as there are, both with replacement. The generators
    start from fixed seeds, so all sweeps are scored on the same examples.
    runs: (predictions (N,), labels (N,), threshold) of each seed.
    """
    example_generator, seed_rng = np.random.default_rng(0), np.random.default_rng(1)
    N, metric, resampled = len(runs[0][1]), METRICS[sweep.metric], []
    for _ in range(NUM_RESAMPLES):
        examples = example_generator.integers(N, size=N)
        seeds, counts = np.unique(seed_rng.integers(len(runs), size=len(runs)), return_counts=True)
        scores = [
            metric(runs[seed][0][examples], runs[seed][1][examples], runs[seed][2])[sweep.metric]
            for seed in seeds
        ]
        resampled.append(np.average(scores, weights=counts))
    return np.array(resampled)


def verdict(best: Sweep, other: Sweep, low: float, high: float) -> str:
    """Say in words which of two sweeps is better. low, high: ends of the interval of best minus other.

    A difference is significant if its confidence interval does not contain 0.
    """
    if low > 0:
        return f"{best.name} is better"
    return f"{other.name} is better" if high < 0 else "no significant difference"
