"""Do two sweeps differ? A bootstrap over test examples and seeds, from what each run predicted.

The examples of a resample are the same for all sweeps, so that what is easy or hard for both falls out of
their difference. Source: Efron and Tibshirani 1993, chapter 13 (percentile intervals).

Letters in this file: N test examples, R resamples.
"""

import zipfile
from pathlib import Path

import numpy as np

from tmft.errors import InputError
from tmft.io.atomic import reason, write_file
from tmft.metrics import METRICS, teacher_cosine
from tmft.runs.sweeps import Sweep
from tmft.training.multitask import Lesson

FILE = "predictions.npz"
LARGEST = 2**24  # bytes of a row: two million numbers
R = 1000
LOW, HIGH = 2.5, 97.5  # per cent: 95 of 100 resamples lie between


def save_predictions(lessons: dict[str, Lesson], folder: Path) -> None:
    """What the metric read of the test split, and the labels, (N,) each, into the folder; of one task."""
    [lesson, *others] = lessons.values()
    predicted, labels = lesson.scored
    if others or predicted.ndim > 1:
        return

    def write(path: Path) -> None:
        with open(path, "wb") as file:  # a name would get another ending
            np.savez(file, predicted=predicted, labels=np.asarray(labels))

    write_file(folder / FILE, write)


def read_predictions(folder: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """(N,) each; None where a run has none, as those of earlier versions."""
    if not (folder / FILE).is_file():
        return None
    try:
        with zipfile.ZipFile(folder / FILE) as parts:
            sizes = [part.file_size for part in parts.infolist()]  # no more than that is unpacked
        if max(sizes, default=0) > LARGEST:
            raise ValueError(f"{max(sizes)} bytes in one of its parts")
        with np.load(folder / FILE, allow_pickle=False) as arrays:
            predicted, labels = arrays["predicted"], arrays["labels"]
        rows = predicted.ndim == 1 and 0 < len(predicted) and predicted.shape == labels.shape
        rows = rows and all(row.dtype.kind in "biuf" for row in (predicted, labels))
    except Exception as error:  # whatever is in the file, nothing of it is run
        raise InputError(f"{folder / FILE} cannot be read ({reason(error)}): remove it") from None
    if not (rows and np.isfinite(labels).all()):
        raise InputError(f"{folder / FILE} does not hold two rows of numbers, equally long: remove it")
    return predicted, labels


def differences(sweeps: list[Sweep]) -> list[tuple[Sweep, Sweep, float, float, float]]:
    """Each sweep on a task against the one that is best on dev, at the layer of each that is best on dev:
    (the best, the other, difference on test, from, to), raw; of those whose test examples are the same."""
    ranked = sorted(sweeps, key=lambda sweep: -np.nan_to_num(sweep.mean(sweep.best_layer, "dev"), nan=-9.0))
    found = [(sweep, runs) for sweep in ranked if (runs := predictions_of(sweep))]
    if len(found) < 2:
        return []
    (best, runs), *others = found
    labels = runs[0][1]
    values, result = resampled(best, runs), []
    for other, runs in others:
        if np.array_equal(runs[0][1], labels):
            gap = values - resampled(other, runs)
            mean = best.mean(best.best_layer, "test") - other.mean(other.best_layer, "test")
            result.append((best, other, mean, *np.percentile(gap, [LOW, HIGH]).tolist()))
    return result


def predictions_of(sweep: Sweep) -> list[tuple[np.ndarray, np.ndarray, float | None]]:
    """Of each seed at its best layer: predicted, labels, and the threshold of dev; [] if one has none, or
    other labels, or what was predicted are no numbers."""
    if getattr(METRICS.get(sweep.metric, teacher_cosine), "reads", "") == "vectors":
        return []
    runs = []
    for result in sweep.layers[sweep.best_layer]:
        if (found := read_predictions(result["folder"])) is None:
            return []
        runs.append((*found, result["dev"].get("threshold")))
    return runs if all(np.array_equal(labels, runs[0][1]) for _, labels, _ in runs) else []


def resampled(sweep: Sweep, runs: list[tuple[np.ndarray, np.ndarray, float | None]]) -> np.ndarray:
    """The score of the sweep in each resample of N examples, a mean over as many seeds as it has, (R,)."""
    generator, of_seeds = np.random.default_rng(0), np.random.default_rng(1)
    N, metric, values = len(runs[0][1]), METRICS[sweep.metric], []
    for _ in range(R):
        drawn = generator.integers(N, size=N)
        seeds, counts = np.unique(of_seeds.integers(len(runs), size=len(runs)), return_counts=True)
        scores = [metric(runs[s][0][drawn], runs[s][1][drawn], runs[s][2])[sweep.metric] for s in seeds]
        values.append(np.average(scores, weights=counts))
    return np.array(values)


def in_words(best: Sweep, other: Sweep, low: float, high: float) -> str:
    if low > 0:
        return f"{best.name} is better"
    return f"{other.name} is better" if high < 0 else "no difference can be told"
