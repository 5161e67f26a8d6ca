"""Softmax regression on frozen sentence embeddings by the protocol of SentEval, many fits at once.

Conneau and Kiela 2018, arXiv:1803.05449. A cross-validation within another one makes 410 fits. SentEval
seeds its generators anew for each, so all fits start from the same weights and take their examples in the
same order of places. Fits that learn from equally many examples can therefore take every step together, as
one batched matrix product, and each comes out as it would alone.

Letters in this file: N examples, D features, C classes, K folds, S fits, n examples that a fit learns from,
B examples of a batch, P = C * D + C parameters of a fit.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.data import Examples, Task
from tmft.errors import InputError
from tmft.metrics import f1, pearson, spearman

Encode = Callable[[list[str]], Tensor]
Read = Callable[[str], Examples]

SEED = 1111
L2 = (1e-5, 1e-4, 1e-3, 1e-2)  # the candidates; of equally good ones the first is taken
HELD_OUT = 0.05  # part of the examples that tells a fit when to stop, where there is no dev
STACK = 40  # fits that take their steps together, at most: with more, their batches leave the cache

# Tasks whose release has no dev split, by folder -> the splits of ours that are its train together. Folds of
# it choose instead of dev. data/get_data.py puts a part of MRPC's train aside, for those who fine-tune.
FOLDED = {"trec": ("train",), "mrpc": ("train", "dev")}


@dataclass(frozen=True)
class Protocol:
    """How a fit goes: rounds of epoch_size passes over its examples, each round scored on its dev part.

    The weights of the best round are kept. Of the rounds that are no better, `tenacity` are forgiven, in a
    row or not; the next one ends the fit, as does a round that has come to more than max_epoch passes.
    folds: of a cross-validation.
    """

    folds: int = 10
    optimizer: str = "adam"
    batch_size: int = 64
    tenacity: int = 5
    epoch_size: int = 4
    max_epoch: int = 200


FULL = Protocol()  # what published figures are made with
FAST = Protocol(folds=5, optimizer="rmsprop", batch_size=128, tenacity=3, epoch_size=2)  # for prototypes
RELATEDNESS = Protocol(tenacity=3, epoch_size=50, max_epoch=1000)


# ------------------------------------------------------------------------------------------------- the suites


def classification(
    encode: Encode,
    task: Task,
    read: Read,
    split: str = "test",
    objective: nn.Module | None = None,
    threshold: float | None = None,
    protocol: Protocol = FULL,
) -> dict:
    """Accuracy of a softmax regression on embeddings: {"pairs": N, "accuracy", "dev_accuracy"}, and "f1" of
    class 1 for pairs of two classes, or "matthews" where that is the task's metric.

    Its features are the embedding of a text, or (|u - v|, u * v) of a pair. The weight of L2 is chosen by
    accuracy on dev, or by cross-validation of train if the release has no dev. A task of one file is
    cross-validated, and for each fold the rest of the file is again, to choose. dev_accuracy is that of the
    choice, and optimistic: what it is measured on also told the fits when to stop. Accuracies are rounded to
    0.0001 wherever SentEval rounds them. NaN if an embedding is not finite. objective, threshold: of other
    suites, not used.
    """
    x, y, rows = table(encode, parts_of(task, read, split))
    problem = Problem(x, y.long(), max(len(task.classes), int(y.max()) + 1), protocol)
    result = {"pairs": len(rows[-1])}
    if not x.isfinite().all():
        return result | {"accuracy": math.nan, "dev_accuracy": math.nan}
    if len(rows) == 1:
        dev_accuracy, test_accuracy = nested(problem, *rows)
        return result | {"accuracy": fraction(test_accuracy), "dev_accuracy": fraction(dev_accuracy)}
    *known, test = rows
    model, dev_accuracy = by_folds(problem, *known) if len(known) == 1 else by_dev(problem, *known)
    test_accuracy = percent(problem.accuracy(model, test))
    result |= {"accuracy": fraction(test_accuracy), "dev_accuracy": fraction(dev_accuracy)}
    predicted, gold = model.logits(x[test]).argmax(1).numpy(), y[test].numpy()
    if len(task.columns) == 2 and problem.classes == 2:
        result["f1"] = f1(predicted == 1, gold)
    if task.metric == "matthews":
        result["matthews"] = matthews(predicted, gold)
    return result


def relatedness(
    encode: Encode,
    task: Task,
    read: Read,
    split: str = "test",
    objective: nn.Module | None = None,
    threshold: float | None = None,
    protocol: Protocol = RELATEDNESS,
) -> dict:
    """Scores learnt from embeddings: {"pairs": N, "pearson", "spearman", "mse", "dev_pearson"}.

    The score is predicted as the mean of a softmax over the whole numbers from 1 to the highest score. Fitted
    with the squared error of the probabilities, without L2; Pearson's correlation on dev tells when to stop.
    Features are those of a pair in classification. objective, threshold: of other suites, not used.
    """
    if task.min_score < 0 or task.max_score < 2:
        bounds = f"scores from {task.min_score:g} to {task.max_score:g}"
        raise InputError(f"{bounds} ({task.files}): relatedness needs 0 or more to 2 or more", "score_range")
    x, y, (train, dev, test) = table(encode, [read(name) for name in ("train", "dev", split)])
    highest = math.ceil(task.max_score)

    def predict(model: Regression, rows: Tensor) -> np.ndarray:
        probabilities = model.logits(x[rows]).softmax(1).double()
        return (probabilities @ torch.arange(1.0, highest + 1).double()).numpy()

    def score(model: Regression, rows: Tensor) -> float:
        value = pearson(predict(model, rows), y[rows].numpy())
        return 0.0 if math.isnan(value) else value

    problem = Problem(x, spread(y, highest), highest, protocol, squared_error, score)
    [model] = fit_all(problem, [Fit(train, dev, 0.0)])
    predicted, gold = predict(model, test), y[test].numpy()
    return {
        "pairs": len(test),
        "pearson": pearson(predicted, gold),
        "spearman": spearman(predicted, gold),
        "mse": float(np.mean((predicted - gold) ** 2)),
        "dev_pearson": model.score,
    }


def matthews(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Matthews's correlation of two classes, 0 and 1: Pearson's; 0 where only one is ever predicted."""
    value = pearson(predicted, gold)
    return 0.0 if math.isnan(value) else value


# ------------------------------------------------------------------------------ examples, in SentEval's order


def parts_of(task: Task, read: Read, split: str) -> list[Examples]:
    """What is learnt from and what is scored: [all] of a task of one file, [train, test] if the release has
    no dev, otherwise [train, dev, test]. split: which one stands in the place of test."""
    if "{split}" not in task.files:
        return [read(split)]
    together = FOLDED.get(Path(task.files).parent.name)
    if together is None:
        return [read("train"), read("dev"), read(split)]
    if split in together:
        raise InputError(f"split {split} ({task.files}): it is learnt from, choose test", "split")
    train = [read(name) for name in together]
    columns = zip(*(examples.texts for examples in train), strict=True)
    texts = tuple([text for column in same for text in column] for same in columns)
    return [Examples(texts, [label for examples in train for label in examples.labels]), read(split)]


def table(encode: Encode, parts: list[Examples]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Features (N, D) float32 and labels (N,) float64 of splits, one below the other, and the rows of each.

    The features of a text are its embedding, those of a pair (|u - v|, u * v), twice as wide. Folds and
    batches depend on the order within a split: by number of words, of the second text too, then by label.
    """
    x, y = [], []
    for examples in parts:
        words = [[len(text.split()) for text in column] for column in examples.texts]
        keys = list(zip(*words, examples.labels, strict=True))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        u, *v = encode(examples.sentences).float().cpu().chunk(len(examples.texts))
        x.append((torch.cat([(u - v[0]).abs(), u * v[0]], dim=1) if v else u)[order])
        y.append(torch.tensor(examples.labels, dtype=torch.float64)[order])
    rows = torch.arange(sum(map(len, y))).split([len(labels) for labels in y])
    return torch.cat(x), torch.cat(y), list(rows)


def spread(scores: Tensor, highest: int) -> Tensor:
    """(N,) scores -> (N, C) float32 probabilities of 1 to highest with the scores as their means.

    Tai et al. 2015, arXiv:1503.00075, section 4.2: 3.6 is 0.4 of 3 and 0.6 of 4. The part of 0 in a score
    below 1 is lost, as in SentEval: 0.6 is 0.6 of 1.
    """
    distance = (scores.double()[:, None] - torch.arange(1.0, highest + 1)).abs()
    return (1 - distance).clamp(min=0).float()


def stratified_folds(y: np.ndarray, folds: int) -> np.ndarray:
    """(N,) classes -> (N,) the fold of each, 0 to K - 1; every fold has its share of every class.

    As StratifiedKFold(folds, shuffle=True, random_state=SEED) of scikit-learn chooses them, from 0.22 on.
    """
    found, first, y = np.unique(y, return_index=True, return_inverse=True)
    y = np.argsort(np.argsort(first))[y]  # classes are numbered as they first occur
    ordered, generator = np.sort(y), np.random.RandomState(SEED)
    of_example = np.empty(len(y), dtype=int)
    for number in range(len(found)):
        counts = [np.sum(ordered[fold::folds] == number) for fold in range(folds)]
        of_class = np.repeat(np.arange(folds), counts)
        generator.shuffle(of_class)
        of_example[y == number] = of_class
    return of_example


# ------------------------------------------------------------------ which fits are made, and what they choose


class Fit(NamedTuple):
    """train: (n,) row numbers; dev: those that it stops on, None for a part of train; l2: weight of L2."""

    train: Tensor
    dev: Tensor | None
    l2: float


class Regression(NamedTuple):
    """weight: (C, D); bias: (C,); score: on the dev part of its fit."""

    weight: Tensor
    bias: Tensor
    score: float

    def logits(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, C)"""
        return F.linear(x, self.weight, self.bias)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(S, B, C) and (S, B) -> the sum over the fits of their means over the batch"""
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]


def squared_error(logits: Tensor, targets: Tensor) -> Tensor:
    """(S, B, C) and (S, B, C) -> the sum over the fits of their means over batch and classes"""
    return F.mse_loss(logits.softmax(-1), targets) * len(logits)


@dataclass
class Problem:
    """What all fits share. x: (N, D) features; y: (N,) classes or (N, C) probabilities, of the same rows.

    loss: of logits (S, B, C) and their part of y; score: of a model on some rows, None for its accuracy.
    """

    x: Tensor
    y: Tensor
    classes: int
    protocol: Protocol
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    score: Callable[[Regression, Tensor], float] | None = None

    def __post_init__(self):
        self.score = self.score or self.accuracy

    def accuracy(self, model: Regression, rows: Tensor) -> float:
        return (model.logits(self.x[rows]).argmax(1) == self.y[rows]).sum().item() / len(rows)


def split_in_folds(problem: Problem, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each fold the rows outside and those inside it, both in order."""
    folds = problem.protocol.folds
    if len(rows) < (least := max(folds, math.ceil(1 / HELD_OUT))):
        raise InputError(f"{len(rows)} examples to learn from: cross-validation needs {least} or more")
    fold = torch.from_numpy(stratified_folds(problem.y[rows].numpy(), folds))
    return [(rows[fold != number], rows[fold == number]) for number in range(folds)]


def candidates(parts: list[tuple[Tensor, Tensor]]) -> list[Fit]:
    """A fit for each pair of train and dev and each weight of L2."""
    return [Fit(train, dev, l2) for train, dev in parts for l2 in L2]


def choice(models: list[Regression]) -> tuple[int, float]:
    """From the models of candidates(...): the place in L2 of the best one, and its mean score in percent."""
    scores = [[model.score for model in models[place :: len(L2)]] for place in range(len(L2))]
    means = [percent(np.mean(of_l2) if len(of_l2) > 1 else of_l2[0]) for of_l2 in scores]
    return int(np.argmax(means)), max(means)


def by_dev(problem: Problem, train: Tensor, dev: Tensor) -> tuple[Regression, float]:
    """The model that is best on dev, and its accuracy there in percent."""
    models = fit_all(problem, candidates([(train, dev)]))
    place, score = choice(models)
    return models[place], score  # SentEval fits it again, to the same weights


def by_folds(problem: Problem, train: Tensor) -> tuple[Regression, float]:
    """A model of train with the weight of L2 that is best in cross-validation, and its accuracy there."""
    place, score = choice(fit_all(problem, candidates(split_in_folds(problem, train))))
    [model] = fit_all(problem, [Fit(train, None, L2[place])])
    return model, score


def nested(problem: Problem, rows: Tensor) -> tuple[float, float]:
    """by_folds on the rest of each fold, scored on the fold: means of dev and of test accuracy in percent."""
    outer = split_in_folds(problem, rows)
    inner = [candidates(split_in_folds(problem, train)) for train, _ in outer]
    models = iter(fit_all(problem, [fit for fits in inner for fit in fits]))  # at once: more are alike
    chosen = [choice([next(models) for _ in fits]) for fits in inner]
    refits = [Fit(train, None, L2[place]) for (train, _), (place, _) in zip(outer, chosen, strict=True)]
    scored = zip(fit_all(problem, refits), outer, strict=True)
    accuracies = [percent(problem.accuracy(model, test)) for model, (_, test) in scored]
    return rounded(np.mean([score for _, score in chosen])), rounded(np.mean(accuracies))


def percent(score: float | np.float64) -> float:
    return rounded(100 * score)


def rounded(score: float | np.float64) -> float:
    """To two decimals. Python and numpy round a half in different ways: as in SentEval, the type decides."""
    return float(round(score, 2))


def fraction(score: float) -> float:
    """Of a figure in percent."""
    return round(score / 100, 4)


# --------------------------------------------------------------------------------------------------- the fits


def fit_all(problem: Problem, fits: list[Fit]) -> list[Regression]:
    """The model of each fit; those with equally many examples are made together."""
    alike = defaultdict(list)
    for number, fit in enumerate(fits):
        alike[len(fit.train), fit.dev is None].append(number)
    models = {}
    for numbers in alike.values():
        for start in range(0, len(numbers), STACK):
            stack = numbers[start : start + STACK]
            models |= zip(stack, fit_stack(problem, [fits[number] for number in stack]), strict=True)
    return [models[number] for number in range(len(fits))]


def fit_stack(problem: Problem, fits: list[Fit]) -> list[Regression]:
    """The models of S fits with n examples each, none of which sees the others."""
    protocol, order = problem.protocol, np.random.RandomState(SEED)
    rows, dev = torch.stack([fit.train for fit in fits]), [fit.dev for fit in fits]  # (S, n)
    if dev[0] is None:
        places, held_out = order.permutation(rows.shape[1]), int(HELD_OUT * rows.shape[1])
        dev, rows = list(rows[:, places[:held_out]]), rows[:, places[held_out:]]
    weights = first_weights(problem.x.shape[1], problem.classes).repeat(len(fits), 1)  # (S, P)
    moments = [torch.zeros_like(weights) for _ in range(2)]
    l2 = torch.tensor([[fit.l2] for fit in fits])  # (S, 1)
    update = OPTIMIZERS[protocol.optimizer]
    best, misses, going = [None] * len(fits), [0] * len(fits), list(range(len(fits)))
    passes = steps = 0
    while going and passes <= protocol.max_epoch:
        for _ in range(protocol.epoch_size):
            shuffled = rows[:, order.permutation(rows.shape[1])]
            for batch in shuffled.split(protocol.batch_size, dim=1):  # (S, B)
                gradient = torch.addcmul(gradients(problem, weights, batch), weights, l2)
                steps += 1
                update(weights, gradient, moments, steps)
            passes += 1
        for place, number in enumerate(going):
            weight, bias = unpacked(weights[place], problem.classes)
            model = Regression(weight, bias, 0.0)
            score = problem.score(model, dev[number])
            if best[number] is None or score > best[number].score:
                best[number] = Regression(weight.clone(), bias.clone(), score)
            else:
                misses[number] += 1
        staying = [place for place, number in enumerate(going) if misses[number] <= protocol.tenacity]
        if len(staying) < len(going):
            going = [going[place] for place in staying]
            weights, rows, l2, *moments = (value[staying] for value in (weights, rows, l2, *moments))
    return best


def unpacked(weights: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """(..., P) -> weight (..., C, D) and bias (..., C)"""
    return weights[..., :-classes].unflatten(-1, (classes, -1)), weights[..., -classes:]


def first_weights(width: int, classes: int) -> Tensor:
    """(P,) as nn.Linear has them after torch.manual_seed(SEED)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        linear = nn.Linear(width, classes)
    return torch.cat([linear.weight.detach().flatten(), linear.bias.detach()])


def gradients(problem: Problem, weights: Tensor, batch: Tensor) -> Tensor:
    """(S, P) of the loss of each fit, of its own weights (S, P) and rows (S, B)."""
    x = problem.x.index_select(0, batch.flatten()).unflatten(0, batch.shape)  # (S, B, D)
    weight, bias = unpacked(weights, problem.classes)
    with torch.inference_mode(False), torch.enable_grad():
        logits = torch.baddbmm(bias[:, None], x, weight.transpose(1, 2)).requires_grad_()  # (S, B, C)
        [errors] = torch.autograd.grad(problem.loss(logits, problem.y[batch]), logits)
    return torch.cat([torch.bmm(errors.transpose(1, 2), x).flatten(1), errors.sum(1)], dim=1)


def adam(weights: Tensor, gradient: Tensor, moments: list[Tensor], steps: int) -> None:
    """Changes weights and moments in place, all (S, P), as torch.optim.Adam does by default."""
    mean, square = moments
    mean.lerp_(gradient, 1 - 0.9)
    square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
    root = (square.sqrt() / (1 - 0.999**steps) ** 0.5).add_(1e-8)
    weights.addcdiv_(mean, root, value=-1e-3 / (1 - 0.9**steps))


def rmsprop(weights: Tensor, gradient: Tensor, moments: list[Tensor], steps: int) -> None:
    """Changes weights and moments in place, all (S, P), as torch.optim.RMSprop does by default."""
    square = moments[0].mul_(0.99).addcmul_(gradient, gradient, value=1 - 0.99)
    weights.addcdiv_(gradient, square.sqrt().add_(1e-8), value=-1e-2)


OPTIMIZERS = {"adam": adam, "rmsprop": rmsprop}
