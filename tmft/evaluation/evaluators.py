"""Suites: what a set of embeddings is worth on a task. A suite needs nothing of a model but encode.

A row of SUITES takes encode, a function from N sentences to (N, D) float32, a task, and read, a function from
the name of a split to its Examples; it returns {"pairs": n, metric: raw score, ...} of the split asked for.
"""

from collections.abc import Callable

from torch import Tensor, nn

from tmft.data import Examples, Task, targets
from tmft.evaluation.classification import classification, relatedness
from tmft.evaluation.clustering import clustering
from tmft.evaluation.isotropy import alignment, iso_score, mean_cosine, uniformity
from tmft.losses.registry import OBJECTIVES
from tmft.metrics import METRICS, compute_metrics, threshold_metrics

Encode = Callable[[list[str]], Tensor]
Read = Callable[[str], Examples]


def similarity(
    encode: Encode,
    task: Task,
    read: Read,
    split: str = "test",
    objective: nn.Module | None = None,
    threshold: float | None = None,
) -> dict:
    """Examples of several texts, judged by what the objective predicts of their embeddings.

    objective: with its trained head, if the task's has one; None: it has none. threshold: the one that was
    best on dev, for a metric that has one; None: it is looked for on dev, never on the split asked for.
    """
    objective = objective or OBJECTIVES[task.objective]()
    if METRICS[task.metric] is threshold_metrics and threshold is None and split != "dev":
        dev = read("dev")
        threshold = threshold_metrics(predict(encode, objective, dev), dev.labels)["threshold"]
    examples = read(split)
    return compute_metrics(predict(encode, objective, examples), examples, task, threshold)


def predict(encode: Encode, objective: nn.Module, examples: Examples):
    return objective.predict(*encode(examples.sentences).chunk(len(examples.texts)))


SUITES = {
    "similarity": similarity,
    "clustering": clustering,
    "classification": classification,
    "relatedness": relatedness,
}


ISOTROPY = ("mean_cosine", "iso_score", "alignment", "uniformity")


def isotropy(encode: Encode, task: Task, examples: Examples) -> dict:
    """How the embeddings of the distinct sentences fill their space, and how near those of alike pairs are.

    Alignment is over the pairs above 0.8 of the score range, 4 of 5, as in Gao et al. 2021 (SimCSE).
    """
    x = encode(list(dict.fromkeys(examples.sentences)))
    u, v = (encode(column) for column in examples.texts)
    close = targets(examples.labels, task) > 0.8
    values = mean_cosine(x), iso_score(x), alignment(u[close], v[close]), uniformity(x)
    return dict(zip(ISOTROPY, values, strict=True))


def to_learn_from(task: Task, read: Read, split: str) -> list[str]:
    """The texts without labels that a treatment of this task may learn from: those that are scored, and where
    a classifier learns from train, those of train."""
    own_train = SUITES[task.suite] in (classification, relatedness) and "{split}" in task.files
    return read("train" if own_train else split).sentences
