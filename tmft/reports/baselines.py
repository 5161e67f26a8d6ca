"""Scores of two methods without any model, for comparison: words in common, and random word vectors.

They need the test sentences that the runs were scored on. These are read again from the files that
result.json names, and used only if their digest is the one that the run has recorded.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tmft.data import DATA_FOLDER, PACKAGE_DATA, Examples, read_examples
from tmft.errors import InputError
from tmft.io.files import is_file
from tmft.metrics import METRICS, correlation_metrics
from tmft.runs.sweeps import Sweep
from tmft.tasks import Task

NUM_DIMENSIONS = 300  # of the random word vectors
MAX_TEST_FILE = 2**26  # bytes of a file of test sentences


def baseline_scores(sweep: Sweep) -> dict[str, float]:
    """Return {"words in common": score, "random word vectors": score} on the test split of a sweep.

    The scores are of the metric of the sweep, not x 100. Returns {} if the task has no pairs with scores, or
    if its test sentences are not there or are no longer those that the runs were scored on.
    """
    run = next(iter(sweep.layers.values()))[0]
    if METRICS.get(sweep.metric) is not correlation_metrics or (examples := read_test_examples(run)) is None:
        return {}
    similarities: dict[str, Callable[..., Any]] = {
        "words in common": words_in_common,
        "random word vectors": random_vector_cosines,
    }
    pairs = [[split_into_words(text) for text in column] for column in examples.texts]
    labels = np.asarray(examples.labels)
    return {
        name: correlation_metrics(similarity(*pairs), labels)[sweep.metric]
        for name, similarity in similarities.items()
    }


def read_test_examples(run: dict[str, Any]) -> Examples | None:
    """Return the test examples of a run; None if they cannot be read or differ from those that it had."""
    settings, digest = run["settings"]["task"], run.get("digests", {}).get("data", {}).get("test")
    fields = ("files", "eval_files", "label", "min_score", "max_score", "empty_text", "metric")
    try:
        values = {name: settings[name] for name in fields if name in settings}
        task = Task(**values, columns=tuple(settings["columns"]))
        if task.eval_files:
            task = Task(task.eval_files, metric=task.metric)
        if len(task.columns) != 2 or not task.label or digest is None:
            return None
        if "*" in task.files or "{split}" not in task.files:  # any file on this machine, or many
            return None
        name = task.files.replace("{split}", "test")
        path = next(path for folder in (DATA_FOLDER, PACKAGE_DATA) if is_file(path := folder / name))
        if path.stat().st_size > MAX_TEST_FILE:
            return None
        examples = read_examples(task, "test")
    except (
        InputError,
        KeyError,
        TypeError,
        ValueError,
        OSError,
        StopIteration,
    ):  # the record may hold anything
        return None
    return examples if examples.digest == digest else None


def split_into_words(text: str) -> list[str]:
    """Return the words of a text in small letters, without punctuation."""
    return re.findall(r"\w+", text.lower())


def words_in_common(first: list[list[str]], second: list[list[str]]) -> np.ndarray:
    """Return the share of words that the texts of each pair have in common, (N,) from 0 to 1.

    It is the number of different words in both, divided by the geometric mean of their numbers in each.
    """
    shares = []
    for a, b in zip(map(set, first), map(set, second), strict=True):
        shares.append(len(a & b) / max(1.0, (len(a) * len(b)) ** 0.5))
    return np.array(shares)


def random_vector_cosines(first: list[list[str]], second: list[list[str]]) -> np.ndarray:
    """Return the cosine of the mean random word vectors of each pair, (N,); a word has one vector."""
    vocabulary = {word: i for i, word in enumerate(sorted({w for text in [*first, *second] for w in text}))}
    vectors = np.random.default_rng(0).normal(size=(len(vocabulary) + 1, NUM_DIMENSIONS))
    u, v = (
        np.stack([vectors[[vocabulary[word] for word in text] or [-1]].mean(0) for text in column])
        for column in (first, second)
    )  # (N, NUM_DIMENSIONS)
    return (u * v).sum(1) / (np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1))
