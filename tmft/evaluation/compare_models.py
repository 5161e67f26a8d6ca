"""Compare two models on the same tasks: scores, their differences by a paired bootstrap, and speed.

Shapes: N examples of a split, R resamples.
"""

import time
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch

from tmft.device import progress_bar
from tmft.evaluation.bootstrap import confidence_interval, resample_scores
from tmft.evaluation.evaluators import Evaluation, MakeEncoders
from tmft.sentence_encoder import SentenceEncoder

MAX_TIMED_SENTENCES = 500
TIMED_ROUNDS = 3
SPEED_TOKENS, SPEED_BATCH_SIZES = (16, 128), (1, 8, 64, 512)  # what --speed measures


class ModelDifference(NamedTuple):
    """The scores of two models on a task, not x 100, and the differences on resampled examples, (R,).

    The latter are None for a metric that is not computed from one prediction per example, such as the
    accuracy of clusters.
    """

    examples: int
    metric: str
    first: float
    second: float
    resampled: np.ndarray | None

    @property
    def difference(self) -> float:
        """The score of the second model minus that of the first."""
        return self.second - self.first

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of its 95 % confidence interval; None also if there are too few examples."""
        return None if self.resampled is None else confidence_interval(self.resampled)

    def to_dict(self) -> dict[str, Any]:
        """Return what evaluate.py --json writes: all but the resampled differences."""
        values = {name: value for name, value in self._asdict().items() if name != "resampled"}
        return values | {"difference": self.difference, "interval": self.interval}


def compare_models(
    make_encoders: Sequence[MakeEncoders], evaluations: Sequence[Mapping[str, Evaluation]]
) -> dict[str, ModelDifference]:
    """Score two models on the same tasks, and return the differences of their scores.

    make_encoders, evaluations: those of each model, which has a single variant.
    """
    differences = {}
    with progress_bar(len(evaluations[0]), "tasks", desc="evaluate") as progress:
        for seed, (name, evaluation) in enumerate(evaluations[0].items()):
            metric, labels = evaluation.task.metric, np.asarray(evaluation.examples.labels)
            scores, resampled = [], []
            for make, own in zip(make_encoders, evaluations, strict=True):
                [encode] = make(own[name].unlabeled_texts).values()
                result, predicted = own[name].score(encode), own[name].predict(encode)
                scores.append(float(result[metric]))
                if predicted is not None:  # on the examples that the seed draws: others for each task
                    run = predicted, labels, result.get("threshold")
                    resampled.append(resample_scores(metric, [run], seed))
            change = resampled[1] - resampled[0] if len(resampled) == 2 else None
            differences[name] = ModelDifference(result["pairs"], metric, scores[0], scores[1], change)
            progress.update()
    return differences


def mean_difference(rows: Sequence[ModelDifference]) -> ModelDifference:
    """Return the difference of the mean scores of several tasks, which are resampled independently."""
    first, second = (mean(getattr(row, name) for row in rows) for name in ("first", "second"))
    resampled = [row.resampled for row in rows if row.resampled is not None]
    average = np.mean(resampled, axis=0) if len(resampled) == len(rows) else None
    return ModelDifference(sum(row.examples for row in rows), "mean", first, second, average)


def sentences_per_second(models: Sequence[SentenceEncoder], sentences: list[str]) -> list[float]:
    """Return how many sentences a second each model embeds: the best of three rounds, in turn."""
    seconds: list[list[float]] = [[] for _ in models]
    for _ in range(TIMED_ROUNDS):
        for times, model in zip(seconds, models, strict=True):
            start = time.perf_counter()
            model.encode(sentences)
            times.append(time.perf_counter() - start)
    return [len(sentences) / min(times) for times in seconds]


def speed_by_shape(model: SentenceEncoder) -> list[dict[str, float]]:
    """Return how many sentences a second a model embeds, by their number of tokens and by how many at once.

    Returns {"tokens", "batch_size", "sentences_per_second"} of each combination of SPEED_TOKENS, up to the
    limit of the model, and SPEED_BATCH_SIZES: the best of TIMED_ROUNDS calls after a first one. The sentences
    are random token ids, all different.
    """
    generator = torch.Generator().manual_seed(0)
    measured = []
    for tokens in [tokens for tokens in SPEED_TOKENS if tokens <= model.max_length]:
        for batch_size in SPEED_BATCH_SIZES:
            seconds = []
            for _ in range(1 + TIMED_ROUNDS):
                shape = batch_size, tokens
                ids = torch.randint(model.encoder.config.vocab_size, shape, generator=generator).tolist()
                start = time.perf_counter()
                model.embed_token_ids(ids)
                seconds.append(time.perf_counter() - start)
            speed = batch_size / min(seconds[1:])
            measured.append({"tokens": tokens, "batch_size": batch_size, "sentences_per_second": speed})
    return measured
