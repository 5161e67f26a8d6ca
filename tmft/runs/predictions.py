"""The predictions of a run on the test split: written to its folder, and read to compare it with others.

Shapes: N test examples.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tmft.io.atomic import write_file
from tmft.io.files import is_file, reading
from tmft.metrics import METRICS, expected_prediction
from tmft.runs.sweeps import Sweep

PREDICTIONS_FILE = "predictions.npz"


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
        with np.load(path, allow_pickle=False) as arrays:
            predicted, labels = arrays["predicted"], arrays["labels"]
        are_vectors = predicted.ndim == 1 and 0 < len(predicted) and predicted.shape == labels.shape
        are_numbers = all(array.dtype.kind in "biuf" for array in (predicted, labels))
        if not (are_vectors and are_numbers and np.isfinite(labels).all()):
            raise ValueError("it does not hold two arrays of numbers of equal length")
        return predicted, labels


def read_sweep_predictions(sweep: Sweep, layer: int) -> list[tuple[np.ndarray, np.ndarray, float | None]]:
    """Return [(predictions (N,), labels (N,), threshold)] with an entry for each seed at a layer.

    threshold: the one that the run chose on dev, None if its
    metric has none. The list is empty if a seed has no predictions, if the labels of two seeds differ, or if
    the metric is not computed from one number per example.
    """
    if sweep.metric not in METRICS or expected_prediction(sweep.metric) == "embedding":
        return []
    runs = []
    for result in sweep.layers[layer]:
        if (predictions := read_predictions(result["folder"])) is None:
            return []
        runs.append((*predictions, result["dev"].get("threshold")))
    return runs if all(np.array_equal(labels, runs[0][1]) for _, labels, _ in runs) else []
