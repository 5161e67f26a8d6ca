"""CoLA is scored with Matthews correlation."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tmft.data import read_examples
from tmft.datasets.task_lookup import get_task
from tmft.evaluation.classification import matthews_corrcoef
from tmft.evaluation.evaluators import EVALUATORS


def test_cola_is_scored_with_matthews_correlation(tmp_path: Path):
    """Embeddings that separate the classes score 1, equal embeddings 0."""
    (tmp_path / "glue/cola").mkdir(parents=True)
    for split, count in (("train", 90), ("dev", 6), ("test", 6)):
        lines = ["label\tsentence1", *(f"{n % 2}\t{('bad', 'ok')[n % 2]} {n}" for n in range(count))]
        (tmp_path / f"glue/cola/{split}.tsv").write_text("\n".join(lines) + "\n")
    task = get_task("cola", data_root=str(tmp_path))

    def score(encode: Callable) -> float:
        return EVALUATORS[task.task_type](encode, task, lambda split: read_examples(task, split))["matthews"]

    def apart(texts: list[str]) -> torch.Tensor:
        return torch.tensor([[1.0, 0.0] if text.startswith("ok") else [0.0, 1.0] for text in texts])

    assert score(apart) == pytest.approx(1)
    assert score(lambda texts: torch.ones(len(texts), 2)) == 0.0


def test_matthews_correlation_equals_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    predicted, gold = rng.integers(2, size=(2, 50))
    assert matthews_corrcoef(predicted, gold) == pytest.approx(metrics.matthews_corrcoef(gold, predicted))
