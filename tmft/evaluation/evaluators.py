"""Evaluators: the score of a set of embeddings on a task. An evaluator needs nothing of a model but `encode`.

An entry of EVALUATORS is called with

    encode      a function from N sentences to their embeddings, (N, D) float32
    task        the Task
    read_split  a function from the name of a split to its Examples
    split       the split whose score is reported
    objective   the trained objective with its head, if the task has one
    threshold   the decision threshold of a fine-tuned model, if the task has one

and returns {"pairs": number of examples, metric: score, ...}, with scores that are not multiplied by 100.
"""

import numpy as np
from torch import nn

from tmft.data import Examples, labels_to_targets
from tmft.evaluation.classification import (
    Encode,
    ReadSplit,
    evaluate_classification,
    evaluate_relatedness,
)
from tmft.evaluation.clustering import evaluate_clustering
from tmft.evaluation.isotropy import alignment, iso_score, mean_cosine, uniformity
from tmft.losses.registry import OBJECTIVES
from tmft.metrics import METRICS, compute_metrics, threshold_metrics
from tmft.tasks import Task


def evaluate_similarity(
    encode: Encode,
    task: Task,
    read_split: ReadSplit,
    split: str = "test",
    objective: nn.Module | None = None,
    threshold: float | None = None,
) -> dict:
    """Score what the objective predicts from the embeddings of each example, with the metrics of the task.

    objective: the trained objective; None makes that of the task, which is enough if it has no weights.
    threshold: the threshold that was best on dev, for a metric that needs one. None chooses it on dev, never
    on the split that is reported.
    """
    objective = objective or OBJECTIVES[task.objective]()
    if METRICS[task.metric] is threshold_metrics and threshold is None and split != "dev":
        dev = read_split("dev")
        threshold = threshold_metrics(predict(encode, objective, dev), dev.labels)["threshold"]
    examples = read_split(split)
    return compute_metrics(predict(encode, objective, examples), examples, task, threshold)


def predict(encode: Encode, objective: nn.Module, examples: Examples) -> np.ndarray:
    """The objective's prediction for each example."""
    return objective.predict(*encode(examples.sentences).chunk(len(examples.texts)))


EVALUATORS = {  # by the type of a task
    "similarity": evaluate_similarity,
    "clustering": evaluate_clustering,
    "classification": evaluate_classification,
    "relatedness": evaluate_relatedness,
}
CLASSIFIERS = ("classification", "relatedness")  # types of tasks whose evaluator is fitted to train


ISOTROPY_METRICS = ("mean_cosine", "iso_score", "alignment", "uniformity")


def evaluate_isotropy(encode: Encode, task: Task, examples: Examples) -> dict:
    """Compute ISOTROPY_METRICS of a task with pairs and similarity scores.

    Mean cosine, IsoScore and uniformity are those of the distinct sentences. Alignment is that of the pairs
    above 0.8 of the score range (above 4 of 5), as in Gao et al. 2021 (SimCSE).
    """
    x = encode(list(dict.fromkeys(examples.sentences)))
    u, v = (encode(column) for column in examples.texts)
    is_similar = labels_to_targets(examples.labels, task) > 0.8
    values = mean_cosine(x), iso_score(x), alignment(u[is_similar], v[is_similar]), uniformity(x)
    return dict(zip(ISOTROPY_METRICS, values, strict=True))


def unlabeled_texts(task: Task, read_split: ReadSplit, split: str) -> list[str]:
    """Return the texts on which token weights and post-processing may be estimated for this task.

    These are the texts of the split that is scored or, where a classifier is fitted to train, those of train.
    """
    return read_split("train" if is_trained_on_train(task) else split).sentences


def is_trained_on_train(task: Task) -> bool:
    """Whether the evaluator of the task fits a classifier to the train split."""
    return task.task_type in CLASSIFIERS and "{split}" in task.files
