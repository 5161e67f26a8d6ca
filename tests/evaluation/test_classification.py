"""Batched fits equal those that PyTorch makes one by one, and the scores equal those of SentEval.

The expected scores were computed by facebookresearch/SentEval 5d6dc11 on the same vectors, by the function
run_senteval() of docs/research/senteval_reference.py in version 0.25.0.
"""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from tmft.data import Examples
from tmft.datasets.task_lookup import get_task
from tmft.errors import InputError
from tmft.evaluation.classification import (
    DEFAULT_CONFIG,
    L2_PENALTIES,
    PROTOTYPING_CONFIG,
    FitData,
    FitSpec,
    SentEvalConfig,
    embed_features,
    evaluate_classification,
    evaluate_relatedness,
    fit_all,
    matthews_corrcoef,
    scores_to_distributions,
    split_in_folds,
    stratified_folds,
)
from tmft.evaluation.evaluators import EVALUATORS
from tmft.tasks import Task

named = partial(Task, columns=("text",), label="label")
ONE_FILE = named("one.tsv", classes={"0": 0, "1": 1})
WITH_DEV = named("some/{split}.tsv", classes={"a": 0, "b": 1, "c": 2})
TREC = named("trec/{split}.tsv", classes={name: number for number, name in enumerate("abcdef")})
MRPC = Task("mrpc/{split}.tsv", label="label", classes={"0": 0, "1": 1})
SICK = Task("sick/{split}.tsv", min_score=1.0, metric="pearson")
WIDTH = 8


class Corpus:
    """Splits of random texts, and for each text a random vector that depends on its label, with noise.

    The vector of a text lies around the center of its class; the higher the label of a pair, the more similar
    are its texts. signal: how far apart the classes are; with 0 the vectors do not depend on the labels.
    """

    def __init__(self, task: Task, signal: float = 1.0, **sizes: int):
        self.task, self.random = task, np.random.RandomState(0)
        self.vectors, self.splits = {}, {}
        centers = self.random.normal(size=(len(task.classes), WIDTH))
        for split, size in sizes.items():
            labels = self.random.randint(len(task.classes) or 6, size=size)
            if len(task.columns) == 1:
                columns = [[self.text(signal * centers[label]) for label in labels]]
            else:
                labels = labels if task.classes else np.clip(labels * 0.9, 1, 5).round(1)
                near = signal * labels / labels.max()
                first = [self.text(np.zeros(WIDTH)) for _ in labels]
                columns = [
                    first,
                    [self.text(n * self.vectors[text]) for n, text in zip(near, first, strict=True)],
                ]
            self.splits[split] = Examples(tuple(columns), labels.tolist())

    def text(self, center: np.ndarray) -> str:
        """A text of 1 to 4 words."""
        text = " ".join([f"text{len(self.vectors)}"] + ["word"] * self.random.randint(4))
        self.vectors[text] = center + self.random.normal(size=WIDTH)
        return text

    def encode(self, texts: list[str]) -> torch.Tensor:
        return torch.tensor(np.array([self.vectors[text] for text in texts]), dtype=torch.float32)

    def read_split(self, split: str) -> Examples:
        return self.splits[split]

    def score(self, evaluate=evaluate_classification, **how) -> dict:
        return evaluate(self.encode, self.task, self.read_split, **how)


# ----------------------------------------------------------------------------------------- SentEval's scores

SMALL = {
    "one file": (Corpus(ONE_FILE, test=150), PROTOTYPING_CONFIG),
    "with dev": (Corpus(WITH_DEV, train=200, dev=60, test=100), DEFAULT_CONFIG),
    "no dev": (Corpus(TREC, train=200, test=100), DEFAULT_CONFIG),
    "pairs": (Corpus(MRPC, train=120, dev=40, test=100), DEFAULT_CONFIG),
    "pairs, fast": (Corpus(MRPC, train=120, dev=40, test=100), PROTOTYPING_CONFIG),
}
SENTEVAL = {  # percent: accuracy, dev accuracy, F1
    "one file": [76.67, 89.67],
    "with dev": [84.0, 83.33],
    "no dev": [50.0, 57.5],
    "pairs": [68.0, 76.25, 65.22],
    "pairs, fast": [88.0, 89.38, 88.68],
}
RELATED = [0.4582614887, 0.4705205005, 1.278643016, 0.2082880425]  # pearson, spearman, mse, dev pearson


@pytest.mark.parametrize("name", SMALL)
def test_each_way_to_choose_the_l2_penalty_gives_the_scores_of_senteval(name):
    corpus, config = SMALL[name]
    result = corpus.score(config=config)
    expected = SENTEVAL[name]
    assert [
        round(100 * result[key], 2) for key in ("accuracy", "dev_accuracy", "f1")[: len(expected)]
    ] == expected


def test_relatedness_gives_the_scores_of_senteval():
    result = Corpus(SICK, train=150, dev=50, test=80).score(evaluate_relatedness)
    assert result["pairs"] == 80
    assert [result[key] for key in ("pearson", "spearman", "mse", "dev_pearson")] == pytest.approx(
        RELATED, abs=1e-5
    )


# ------------------------------------------------------------------------------------------------------ folds


@pytest.mark.parametrize("folds", [2, 5, 10])
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.3, 0.7), (0.05, 0.2, 0.3, 0.15, 0.2, 0.1)])
def test_folds_are_those_of_scikit_learn(folds, shares):
    model_selection = pytest.importorskip("sklearn.model_selection")
    generator = np.random.RandomState(folds)
    for size in (307, 1000, 1233):
        y = generator.choice(len(shares), p=shares, size=size)
        splitter = model_selection.StratifiedKFold(folds, shuffle=True, random_state=1111)
        for number, (_, inside) in enumerate(splitter.split(y, y)):
            assert np.array_equal(np.flatnonzero(stratified_folds(y, folds) == number), inside)


# ------------------------------------------------------------------------------------------------------- fits


def make_data(config: SentEvalConfig, size: int = 300, classes: int = 3, width: int = 10, **how) -> FitData:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (size,), generator=generator)
    centers = torch.randn(classes, width, generator=generator)
    x = torch.randn(size, width, generator=generator) + 0.7 * centers[y]
    return FitData(x, y, classes, config, **how)


def fit_alone(data: FitData, fit: FitSpec) -> tuple[nn.Linear, float, int]:
    """Fit with PyTorch's optimizers; return the model, its accuracy on dev and the number of evaluations.

    Evaluations without improvement are counted over the whole fit, despite improvements in between.
    """
    config, generator = data.config, np.random.RandomState(1111)
    torch.manual_seed(1111)
    model = nn.Linear(data.x.shape[1], data.num_classes)
    optimizer_class = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[config.optimizer]
    optimizer = optimizer_class(model.parameters(), weight_decay=fit.l2)
    train, dev = fit.train, fit.dev
    if dev is None:
        order = generator.permutation(len(train))
        dev, train = train[order[: len(train) // 20]], train[order[len(train) // 20 :]]
    best, kept, patience_used, num_evaluations = -1.0, None, 0, 0
    while patience_used <= config.tenacity and num_evaluations * config.epoch_size <= config.max_epoch:
        for _ in range(config.epoch_size):
            for indices in train[generator.permutation(len(train))].split(config.batch_size):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(data.x[indices]), data.y[indices]).backward()
                optimizer.step()
        accuracy = (model(data.x[dev]).argmax(1) == data.y[dev]).float().mean().item()
        num_evaluations += 1
        if accuracy > best:
            best, kept = accuracy, copy.deepcopy(model)
        else:
            patience_used += 1
    return kept, best, num_evaluations


@pytest.mark.parametrize("config", [SentEvalConfig(max_epoch=60), PROTOTYPING_CONFIG])
@pytest.mark.parametrize("held_out", [False, True])
def test_batched_fits_equal_those_made_one_by_one(config, held_out):
    shared = make_data(config)
    folds = split_in_folds(shared, torch.arange(200))
    fits = [FitSpec(*pair, l2) for pair, l2 in zip(folds, L2_PENALTIES, strict=False)]
    fits = [fit._replace(dev=None) for fit in fits] if held_out else fits
    num_evaluations = set()
    for fit, model in zip(fits, fit_all(shared, fits), strict=True):
        torch_model, accuracy, count = fit_alone(shared, fit)
        torch.testing.assert_close(model.weight, torch_model.weight, rtol=0, atol=1e-5)
        torch.testing.assert_close(model.bias, torch_model.bias, rtol=0, atol=1e-5)
        assert model.score == pytest.approx(accuracy)
        num_evaluations.add(count)
    assert held_out or len(num_evaluations) > 1  # some stop before others


def test_more_fits_than_a_batch_holds_with_different_sizes_are_returned_in_order():
    shared = make_data(SentEvalConfig(max_epoch=0))
    train, dev = [torch.arange(100 + n) for n in range(3)], torch.arange(200, 300)
    fits = [FitSpec(train[n % 3], dev, L2_PENALTIES[n % 4]) for n in range(130)]
    together = fit_all(shared, fits)
    for number in (0, 1, 2, 64, 129):
        [alone] = fit_all(shared, [fits[number]])
        torch.testing.assert_close(together[number].weight, alone.weight, rtol=0, atol=1e-6)


# --------------------------------------------------------------------------------------------- the evaluators


def test_features_are_sorted_by_words_then_label_and_pairs_become_differences_and_products():
    vectors = {"a b": [1.0, 2.0], "c d": [3.0, -1.0], "e": [0.0, 5.0], "f g": [2.0, 2.0]}
    encode = lambda texts: torch.tensor([vectors[text] for text in texts])  # noqa: E731
    alone, labels, _ = embed_features(encode, [Examples((["a b", "c d", "e"],), [1, 0, 1])])
    assert alone.tolist() == [[0.0, 5.0], [3.0, -1.0], [1.0, 2.0]] and labels.tolist() == [1, 0, 1]
    parts = [Examples((["a b", "a b"], ["c d", "e"]), [0, 1]), Examples((["e"], ["f g"]), [0])]
    x, y, indices = embed_features(encode, parts)
    assert x.tolist() == [[1, 3, 0, 10], [2, 3, 3, -2], [2, 3, 0, 10]]
    assert y.tolist() == [1, 0, 0] and [part.tolist() for part in indices] == [[0, 1], [2]]


def test_all_of_a_release_without_dev_is_trained_on():
    """MRPC: train and the dev split that was taken from it; it does not matter how they are divided."""
    corpus = Corpus(MRPC, train=80, dev=40, test=60)
    train, dev = corpus.splits["train"], corpus.splits["dev"]
    whole = [one + two for one, two in zip(train.texts, dev.texts, strict=True)]
    labels = train.labels + dev.labels
    before = corpus.score(config=PROTOTYPING_CONFIG)
    corpus.splits["train"] = Examples(tuple(column[:50] for column in whole), labels[:50])
    corpus.splits["dev"] = Examples(tuple(column[50:] for column in whole), labels[50:])
    assert corpus.score(config=PROTOTYPING_CONFIG) == before
    assert set(before) == {"pairs", "accuracy", "dev_accuracy", "f1"}


def test_the_given_split_is_scored():
    corpus = Corpus(WITH_DEV, train=100, dev=50, test=60)
    result = corpus.score(split="dev", config=PROTOTYPING_CONFIG)
    assert result["pairs"] == 50 and result["accuracy"] == result["dev_accuracy"]


def test_scores_are_reproducible_and_the_global_random_state_is_not_used():
    corpus = Corpus(WITH_DEV, train=100, dev=40, test=60)
    pairs = Corpus(SICK, train=60, dev=30, test=30)
    torch.manual_seed(5), np.random.seed(5)  # noqa: NPY002
    before = torch.get_rng_state()
    first = corpus.score(config=PROTOTYPING_CONFIG), pairs.score(evaluate_relatedness)
    assert torch.equal(torch.get_rng_state(), before)
    np.random.random(7)  # noqa: NPY002
    assert (corpus.score(config=PROTOTYPING_CONFIG), pairs.score(evaluate_relatedness)) == first


def test_embeddings_made_in_inference_mode_can_be_trained_on():
    corpus = Corpus(WITH_DEV, train=100, dev=40, test=60)
    expected = corpus.score(config=PROTOTYPING_CONFIG)
    with torch.inference_mode():
        assert corpus.score(config=PROTOTYPING_CONFIG) == expected


def test_embeddings_that_are_not_finite_have_no_accuracy():
    corpus = Corpus(WITH_DEV, train=100, dev=40, test=60)
    corpus.vectors[corpus.splits["test"].texts[0][0]][0] = np.inf
    result = corpus.score()
    assert result["pairs"] == 60 and np.isnan(result["accuracy"]) and np.isnan(result["dev_accuracy"])


def test_cola_is_scored_with_matthews_correlation():
    """Embeddings that separate the classes score 1, equal embeddings 0."""
    task = get_task("cola")
    corpus = Corpus(task, signal=20.0, train=90, dev=10, test=10)
    assert corpus.score(EVALUATORS[task.task_type])["matthews"] == pytest.approx(1)
    corpus.vectors = dict.fromkeys(corpus.vectors, np.ones(WIDTH))
    assert corpus.score(EVALUATORS[task.task_type])["matthews"] == 0.0


def test_matthews_correlation_equals_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    predicted, gold = np.random.default_rng(0).integers(2, size=(2, 50))
    assert matthews_corrcoef(predicted, gold) == pytest.approx(metrics.matthews_corrcoef(gold, predicted))


def test_scores_become_probabilities_of_the_neighboring_integers():
    shares = scores_to_distributions(torch.tensor([3.6, 5.0, 1.0, 0.6, 0.0]), 5)
    expected = [[0, 0, 0.4, 0.6, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0], [0.6, 0, 0, 0, 0], [0] * 5]
    torch.testing.assert_close(shares, torch.tensor(expected))


def test_equal_predictions_on_dev_have_a_correlation_of_0():
    corpus = Corpus(SICK, train=60, dev=30, test=30)
    for text in corpus.splits["dev"].sentences:
        corpus.vectors[text] = np.ones(WIDTH)
    assert corpus.score(evaluate_relatedness)["dev_pearson"] == 0.0


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda: Corpus(MRPC, train=80, dev=40, test=60).score(split="dev"), "split dev (mrpc/{split}.tsv)"),
        (lambda: Corpus(ONE_FILE, test=15).score(), "15 training examples: cross-validation needs 20"),
        (lambda: Corpus(ONE_FILE, test=21).score(), "18 training examples: cross-validation needs 20"),
        (
            lambda: evaluate_relatedness(None, Task("x/{split}.tsv", max_score=1.0), None),
            "scores from 0 to 1 (x/{split}.tsv): relatedness needs a minimum of 0 or more",
        ),
    ],
)
def test_each_error_is_one_line(score, message):
    with pytest.raises(InputError) as error:
        score()
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
