"""Suites: what a set of embeddings is worth on a task. A suite needs nothing of a model but encode.

A row of SUITES takes encode, a function from N sentences to (N, D) float32, a task, and read, a function from
the name of a split to its Examples; it returns {"pairs": n, metric: raw score, ...} of the split asked for.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tmft.data import Examples, Task, targets
from tmft.evaluation.isotropy import alignment, iso_score, mean_cosine, uniformity
from tmft.metrics import METRICS, at_threshold, score_split
from tmft.objectives import OBJECTIVES
from tmft.sentence import SentenceEncoder

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
    if METRICS[task.metric] is at_threshold and threshold is None and split != "dev":
        dev = read("dev")
        threshold = at_threshold(predict(encode, objective, dev), dev.labels)["threshold"]
    examples = read(split)
    return score_split(predict(encode, objective, examples), examples, task, threshold)


def predict(encode: Encode, objective: nn.Module, examples: Examples):
    return objective.predict(*encode(examples.sentences).chunk(len(examples.texts)))


SUITES = {"similarity": similarity}


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


class EveryLayer:
    """encode for some hidden states of a model; a sentence goes through the model once for all of them."""

    def __init__(self, model: SentenceEncoder, layers: list[int]):
        self.model, self.layers = model, layers
        self.last_alone = layers == [len(model.encoder.layers)]
        self.row: dict[str, int] = {}  # sentence -> its number in states
        self.states = torch.empty(len(layers), 0, model.dimensions)

    def encode(self, layer: int) -> Encode:
        def encode(sentences: list[str]) -> Tensor:
            if new := [sentence for sentence in dict.fromkeys(sentences) if sentence not in self.row]:
                states = self.model.embed(self.model.tokenize(new), not self.last_alone, progress=True)
                states = states[None] if self.last_alone else states[self.layers]
                self.states = torch.cat([self.states, states], dim=1)
                self.row |= {sentence: len(self.row) + n for n, sentence in enumerate(new)}
            return self.states[self.layers.index(layer), [self.row[sentence] for sentence in sentences]]

        return encode
