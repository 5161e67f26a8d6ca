"""Evaluators: functions that score embeddings on a task, given only a function that encodes sentences.

An entry of EVALUATORS is called with

    encode      a function that takes N sentences and returns their embeddings, (N, D) float32
    task        the Task
    read_split  a function that takes the name of a split and returns its Examples
    split       the name of the split whose score is reported
    objective   the trained objective with its head, or None; used by "similarity" only
    threshold   the decision threshold of a fine-tuned model, or None; used by "similarity" only

and returns {"pairs": number of examples, metric: score, ...}, with scores that are not multiplied by 100.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from tmft.data import Examples, labels_to_targets
from tmft.device import progress_bar
from tmft.embedding.similarity import SIMILARITIES
from tmft.evaluation.classification import (
    EncodeFunction,
    ReadSplit,
    evaluate_classification,
    evaluate_relatedness,
    read_splits,
)
from tmft.evaluation.clustering import evaluate_clustering
from tmft.evaluation.isotropy import alignment, iso_score, mean_cosine, uniformity
from tmft.loss import Objective
from tmft.losses.objectives import OBJECTIVES
from tmft.metrics import METRICS, compute_metrics, expected_prediction, threshold_metrics
from tmft.tasks import Task


def evaluate_similarity(
    encode: EncodeFunction,
    task: Task,
    read_split: ReadSplit,
    split: str = "test",
    objective: Objective | None = None,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Predict a similarity, score or class from the embeddings of each example, and score the predictions.

    encode, task, read_split, split: see the beginning of this file.
    objective: the trained objective, which predicts. None makes a new one for the task, which is enough if
        the objective has no weights.
    threshold: the threshold that was best on dev, for a metric that needs one. None chooses it on dev, never
        on the split that is reported.
    Returns {"pairs": N, metric: value, ...}, as `compute_metrics` does.

    Example:

    >>> from tmft import SentenceEncoder
    >>> from tmft.data import read_examples
    >>> from tmft.tasks import TASKS
    >>> task = TASKS["sample"]
    >>> model = SentenceEncoder.from_pretrained("data/twins/mlm-then-rtd", layer=4)
    >>> encode = lambda sentences: model.encode(sentences, convert_to_tensor=True)
    >>> scores = evaluate_similarity(encode, task, lambda split: read_examples(task, split))
    >>> scores["pairs"], round(scores["spearman"], 2)
    (121, 0.53)
    """
    objective = objective or OBJECTIVES[task.objective](0, task)
    if METRICS[task.metric] is threshold_metrics and threshold is None and split != "dev":
        dev = read_split("dev")
        threshold = threshold_metrics(predict(encode, objective, dev), np.asarray(dev.labels))["threshold"]
    examples = read_split(split)
    return compute_metrics(predict(encode, objective, examples), examples, task, threshold)


class SavedSimilarity(Objective):
    """Predicts the similarity of two texts by an entry of SIMILARITIES; it has no loss."""

    def __init__(self, name: str):
        nn.Module.__init__(self)
        self.name = name

    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        """Return the similarity of each pair, (N,) float64. u, v: (N, D)."""
        _, pairwise = SIMILARITIES[self.name]
        return pairwise(u.double(), v.double()).numpy()


def use_saved_similarity(objective: Objective | None, similarity_fn_name: str) -> Objective | None:
    """Return an objective that compares embeddings as the model does, where the given one takes the cosine.

    An objective that has weights or predicts something else is returned itself. sentence-transformers scores
    in the same way (EmbeddingSimilarityEvaluator): by the function that was saved with the model.
    """
    if similarity_fn_name == "cosine" or objective is None or objective.has_head:
        return objective
    return SavedSimilarity(similarity_fn_name) if objective.prediction_type == "cosine" else objective


def predict(encode: EncodeFunction, objective: Objective, examples: Examples) -> np.ndarray:
    """Return the predictions of the objective for all N examples, (N, ...)."""
    return objective.predict(*encode(examples.sentences).chunk(len(examples.texts)))


EVALUATORS: dict[str, Callable[..., dict[str, Any]]] = {  # Task.task_type -> evaluator
    "similarity": evaluate_similarity,
    "clustering": evaluate_clustering,
    "classification": evaluate_classification,
    "relatedness": evaluate_relatedness,
}

ISOTROPY_METRICS = (
    *("mean_cosine", "iso_score", "alignment", "uniformity"),
    *("printed_alignment", "printed_uniformity"),  # as printed in Ni et al. 2021: distances are not squared
)


def evaluate_isotropy(encode: EncodeFunction, task: Task, examples: Examples) -> dict[str, Any]:
    """Return {name: value} of the ISOTROPY_METRICS, for a task with sentence pairs and similarity scores.

    Mean cosine, IsoScore and uniformity are computed from the distinct sentences, alignment from the pairs
    with scores above 0.8 of the range (above 4 of 5), as in Gao et al. 2021 (SimCSE); printed_uniformity from
    all sentences.
    """
    x, both = encode(list(dict.fromkeys(examples.sentences))), encode(examples.sentences)
    u, v = both.chunk(2)
    is_similar = labels_to_targets(examples.labels, task) > 0.8
    u, v = u[is_similar], v[is_similar]
    measures = mean_cosine(x), iso_score(x), alignment(u, v), uniformity(x)
    printed = -alignment(u, v, power=1), uniformity(both, power=1)
    return dict(zip(ISOTROPY_METRICS, (*measures, *printed), strict=True))


def is_trained_on_train(task: Task) -> bool:
    """Return whether the evaluator of the task fits a classifier or regression to the train split."""
    return task.task_type in ("classification", "relatedness") and "{split}" in task.files


# ----------------------------------------------------------------------------------- a model on several tasks

Results = dict[str, dict[float, dict[str, Any]]]  # task -> layer, or another variant of a model -> scores
# Texts without labels -> {layer or another variant: encode}, see TrainingFreeEncoders.encoders.
MakeEncoders = Callable[[Sequence[str]], Mapping[Any, EncodeFunction]]


@dataclass(frozen=True)
class Evaluation:
    """A split of a task on which models are scored; see the beginning of this file for the fields."""

    task: Task
    read_split: ReadSplit
    split: str = "test"
    objective: Objective | None = None
    threshold: float | None = None

    def read(self) -> list[Examples]:
        """Return all splits that are needed; missing or damaged data is then reported early."""
        if is_trained_on_train(self.task):
            return read_splits(self.task, self.read_split, self.split)
        return [self.read_split(self.split)]

    @property
    def examples(self) -> Examples:
        """The examples of the split that is scored."""
        return self.read_split(self.split)

    @property
    def unlabeled_texts(self) -> list[str]:
        """The texts, used without labels, from which token weights and post-processing are estimated.

        These are the texts that are scored or, if a classifier or regression is fitted to train, those of
        train. The texts of the first column come before those of the second; duplicates are kept.
        """
        return self.read_split("train" if is_trained_on_train(self.task) else self.split).sentences

    def score(self, encode: EncodeFunction) -> dict[str, Any]:
        """Return the scores of the evaluator of the task."""
        evaluate = EVALUATORS[self.task.task_type]
        return evaluate(encode, self.task, self.read_split, self.split, self.objective, self.threshold)

    def predict(self, encode: EncodeFunction) -> np.ndarray | None:
        """Return a prediction per example, (N,), from which the metric is computed; None without."""
        if self.task.task_type != "similarity" or expected_prediction(self.task.metric) == "embedding":
            return None
        return predict(encode, self.objective or OBJECTIVES[self.task.objective](0, self.task), self.examples)


def score_tasks(
    make_encoders: MakeEncoders, evaluations: Mapping[str, Evaluation], isotropy: bool = False
) -> Results:
    """Score all variants of a model, such as its layers, on all tasks, and on request their isotropy."""
    results: Results = {}
    with progress_bar(len(evaluations), "tasks", desc="evaluate") as progress:
        for name, evaluation in evaluations.items():
            results[name] = {}
            for variant, encode in make_encoders(evaluation.unlabeled_texts).items():
                results[name][variant] = evaluation.score(encode)
                if isotropy:
                    results[name][variant] |= evaluate_isotropy(encode, evaluation.task, evaluation.examples)
            progress.update()
    return results
