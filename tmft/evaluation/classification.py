"""SentEval's classification of frozen sentence embeddings by softmax regression, with many fits at once.

The protocol is that of Conneau and Kiela 2018 (arXiv:1803.05449), and the scores equal those of their code.
One task can take 410 fits, because a cross-validation runs inside another one. SentEval seeds its generators
again for every fit, so all fits start from the same weights and visit their examples in the same order of
positions. Fits with equally many training examples can therefore take every step together, as one batched
matrix product; each of them ends with the weights that it would have if it were trained alone.

A fit is the training of one regression model on some of the examples, with one L2 penalty.

Letters in this file: N examples, D features, C classes, K folds, S fits, n training examples of a fit,
B examples of a batch, P = C * D + C parameters of a fit.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.data import Examples
from tmft.errors import InputError
from tmft.metrics import f1, pearson, spearman
from tmft.tasks import Task

EncodeFunction = Callable[[list[str]], Tensor]  # N sentences -> (N, D) float32
ReadSplit = Callable[[str], Examples]  # name of a split -> its examples

SEED = 1111
L2_PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)  # the candidates; of equally good ones, the first is chosen
HELD_OUT_FRACTION = 0.05  # of the training examples, to stop early where a fit has no dev split
MAX_BATCHED_FITS = 40  # fits that take their steps together: with more, their batches leave the cache

# Folder of a task that was released without a dev split -> our splits that make up the released train split.
# It is cross-validated in place of dev. (Our MRPC has a dev split, for fine-tuning, which is a part of the
# released train split.)
NO_DEV_SPLIT: dict[str, tuple[str, ...]] = {"trec": ("train",), "mrpc": ("train", "dev")}


@dataclass(frozen=True)
class SentEvalConfig:
    """Hyperparameters of a fit, with the names of SentEval.

    folds: number of folds of a cross-validation.
    optimizer: an entry of OPTIMIZERS.
    batch_size: number of examples in a step.
    tenacity: number of evaluations on dev that may bring no improvement, in total; one more ends the fit.
    epoch_size: number of passes over the training examples between two evaluations on dev.
    max_epoch: an evaluation after more passes than this also ends the fit.
    The model has the weights of the best evaluation on dev.
    """

    folds: int = 10
    optimizer: str = "adam"
    batch_size: int = 64
    tenacity: int = 5
    epoch_size: int = 4
    max_epoch: int = 200


DEFAULT_CONFIG = SentEvalConfig()  # the one that is used for published scores
PROTOTYPING_CONFIG = SentEvalConfig(  # SentEval's faster setting
    folds=5, optimizer="rmsprop", batch_size=128, tenacity=3, epoch_size=2
)
RELATEDNESS_CONFIG = SentEvalConfig(tenacity=3, epoch_size=50, max_epoch=1000)


# --------------------------------------------------------------------------------------------- the evaluators


def evaluate_classification(
    encode: EncodeFunction,
    task: Task,
    read_split: ReadSplit,
    split: str = "test",
    objective: nn.Module | None = None,
    threshold: float | None = None,
    config: SentEvalConfig = DEFAULT_CONFIG,
) -> dict[str, Any]:
    """Fit a softmax regression to frozen embeddings, by the protocol of SentEval, and return its accuracy.

    The features are the embedding of a text, or (|u - v|, u * v) for a pair. The L2 penalty is chosen by the
    accuracy on dev, or by cross-validation of train if the task was released without a dev split. A task with
    a single file is cross-validated; within each fold, the penalty is chosen by cross-validation of the
    other folds.

    Returns {"pairs": N, "accuracy", "dev_accuracy"}, with "f1" of class 1 for pairs with two classes, and
    "matthews" if that is the metric of the task. dev_accuracy is the accuracy by which the penalty was
    chosen; it is optimistic, because the same examples also decided when to stop. Accuracies are rounded to
    0.0001 wherever SentEval rounds them; they are NaN if an embedding is not finite.
    """
    x, y, indices = embed_features(encode, read_splits(task, read_split, split))
    data = FitData(x, y.long(), max(len(task.classes), int(y.max()) + 1), config)
    result: dict[str, float] = {"pairs": len(indices[-1])}
    if not x.isfinite().all():
        return result | {"accuracy": math.nan, "dev_accuracy": math.nan}
    if len(indices) == 1:
        dev_accuracy, test_accuracy = nested_cross_validation(data, *indices)
        return result | {"accuracy": from_percent(test_accuracy), "dev_accuracy": from_percent(dev_accuracy)}
    *train_and_dev, test = indices
    select = select_by_cross_validation if len(train_and_dev) == 1 else select_on_dev
    model, dev_accuracy = select(data, *train_and_dev)
    test_accuracy = to_percent(data.accuracy(model, test))
    result |= {"accuracy": from_percent(test_accuracy), "dev_accuracy": from_percent(dev_accuracy)}
    predictions, labels = model.logits(x[test]).argmax(1).numpy(), y[test].numpy()
    if len(task.columns) == 2 and data.num_classes == 2:
        result["f1"] = f1(predictions == 1, labels)
    if task.metric == "matthews":
        result["matthews"] = matthews_corrcoef(predictions, labels)
    return result


def evaluate_relatedness(
    encode: EncodeFunction,
    task: Task,
    read_split: ReadSplit,
    split: str = "test",
    objective: nn.Module | None = None,
    threshold: float | None = None,
    config: SentEvalConfig = RELATEDNESS_CONFIG,
) -> dict[str, Any]:
    """Predict similarity scores from frozen embeddings by a regression; return correlations with the labels.

    A softmax regression predicts the probabilities of the integers from 1 to the highest score; the predicted
    score is their mean. It is fitted with the squared error of the probabilities, without an L2 penalty, and
    stopped by Pearson's correlation on dev. The features are those of pairs in `evaluate_classification`.

    Returns {"pairs": N, "pearson", "spearman", "mse", "dev_pearson"}, where mse is the mean squared error of
    the predicted scores.
    Source: Tai et al. 2015, arXiv:1503.00075, section 4.2, as in SentEval.
    """
    if task.min_score < 0 or task.max_score < 2:
        bounds = f"scores from {task.min_score:g} to {task.max_score:g}"
        raise InputError(
            f"{bounds} ({task.files}): relatedness needs a minimum of 0 or more and a maximum of 2 or more",
            "score_range",
        )
    splits = [read_split(name) for name in ("train", "dev", split)]
    x, y, (train, dev, test) = embed_features(encode, splits)
    highest = math.ceil(task.max_score)

    def predict(model: Regression, indices: Tensor) -> np.ndarray:
        probabilities = model.logits(x[indices]).softmax(1).double()
        return (probabilities @ torch.arange(1.0, highest + 1).double()).numpy()

    def score(model: Regression, indices: Tensor) -> float:
        correlation = pearson(predict(model, indices), y[indices].numpy())
        return 0.0 if math.isnan(correlation) else correlation

    data = FitData(x, scores_to_distributions(y, highest), highest, config, squared_error, score)
    [model] = fit_all(data, [FitSpec(train, dev, 0.0)])
    predictions, labels = predict(model, test), y[test].numpy()
    return {
        "pairs": len(test),
        "pearson": pearson(predictions, labels),
        "spearman": spearman(predictions, labels),
        "mse": float(np.mean((predictions - labels) ** 2)),
        "dev_pearson": model.score,
    }


def matthews_corrcoef(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Return the Matthews correlation coefficient, in [-1, 1], of predicted classes 0 and 1 with the labels.

    predictions, labels: (N,). It is 0 if only one class is ever predicted. For two classes it equals
    Pearson's correlation, by which it is computed.
    """
    correlation = pearson(predictions, labels)
    return 0.0 if math.isnan(correlation) else correlation


# ------------------------------------------------------------------------------ examples, in SentEval's order


def read_splits(task: Task, read_split: ReadSplit, split: str) -> list[Examples]:
    """Read the splits that an evaluation needs; the last one is `split`, on which the score is
    reported.

    Returns [all examples] for a task with a single file, [train, test] if the task was released without a dev
    split, otherwise [train, dev, test].
    """
    if "{split}" not in task.files:
        return [read_split(split)]
    train_splits = NO_DEV_SPLIT.get(Path(task.files).parent.name)
    if train_splits is None:
        return [read_split("train"), read_split("dev"), read_split(split)]
    if split in train_splits:
        raise InputError(
            f"split {split} ({task.files}): it is part of the training data, choose test", "split"
        )
    parts = [read_split(name) for name in train_splits]
    columns = zip(*(examples.texts for examples in parts), strict=True)
    texts = tuple([text for column in same for text in column] for same in columns)
    return [Examples(texts, [label for examples in parts for label in examples.labels]), read_split(split)]


class Features(NamedTuple):
    """The examples of several splits: what a regression reads, what it is to say, and where a split is."""

    x: Tensor  # (N, D) float32
    y: Tensor  # (N,) float64
    indices: list[Tensor]  # of the examples of each split


def embed_features(encode: EncodeFunction, splits: list[Examples]) -> Features:
    """Embed the examples of several splits.

    The features of a text are its embedding, those of a pair (|u - v|, u * v), twice as wide. Examples are
    sorted within a split as in SentEval, because folds and batches depend on the order: by the number of
    words of the first text, then of the second one, then by label.
    """
    x, y = [], []
    for examples in splits:
        num_words = [[len(text.split()) for text in column] for column in examples.texts]
        keys = list(zip(*num_words, examples.labels, strict=True))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        u, *v = encode(examples.sentences).float().cpu().chunk(len(examples.texts))
        x.append((torch.cat([(u - v[0]).abs(), u * v[0]], dim=1) if v else u)[order])
        y.append(torch.tensor(examples.labels, dtype=torch.float64)[order])
    indices = torch.arange(sum(map(len, y))).split([len(labels) for labels in y])
    return Features(torch.cat(x), torch.cat(y), list(indices))


def scores_to_distributions(scores: Tensor, highest: int) -> Tensor:
    """Return, for each score, probabilities of the integers 1 to `highest` whose mean is the score.

    scores: (N,). The result is (N, highest) float32. The score 3.6 becomes the probability 0.4 of 3 and 0.6
    of 4. A score below 1 loses the share of 0, as in SentEval: 0.6 becomes 0.6 of 1 and nothing else.
    Source: Tai et al. 2015, arXiv:1503.00075, section 4.2.
    """
    distance = (scores.double()[:, None] - torch.arange(1.0, highest + 1)).abs()
    return (1 - distance).clamp(min=0).float()


def stratified_folds(y: np.ndarray, num_folds: int) -> np.ndarray:
    """Return the fold of each example, (N,), from 0 to num_folds - 1; each fold has its share of every class.

    y: (N,), the class of each example.

    The folds equal those of StratifiedKFold(num_folds, shuffle=True, random_state=SEED) of scikit-learn since
    version 0.22.
    """
    classes, first_index, y = np.unique(y, return_index=True, return_inverse=True)
    y = np.argsort(np.argsort(first_index))[y]  # classes are numbered in the order in which they first occur
    sorted_classes, generator = np.sort(y), np.random.RandomState(SEED)
    folds = np.empty(len(y), dtype=int)
    for class_index in range(len(classes)):
        counts = [np.sum(sorted_classes[fold::num_folds] == class_index) for fold in range(num_folds)]
        class_folds = np.repeat(np.arange(num_folds), counts)
        generator.shuffle(class_folds)
        folds[y == class_index] = class_folds
    return folds


# ----------------------------------------------------------------- which fits are made, and how one is chosen


class FitSpec(NamedTuple):
    """The examples and the penalty of one fit.

    train: (n,) indices of the training examples.
    dev: indices of the examples that decide when to stop; None sets a part of train aside for that.
    l2: weight of the L2 penalty.
    """

    train: Tensor
    dev: Tensor | None
    l2: float


class Regression(NamedTuple):
    """A fitted softmax regression, which predicts a class from the features of an example.

    weight: (C, D). bias: (C,).
    score: its score on the dev examples of its fit, the best of all evaluations there.
    """

    weight: Tensor
    bias: Tensor
    score: float

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of the classes, (N, C), for N examples. x: (N, D), their features."""
        return F.linear(x, self.weight, self.bias)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy, summed over the fits and averaged over the batch, a scalar.

    logits: (S, B, C). y: (S, B), class indices.
    """
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]


def squared_error(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of probabilities, summed over fits, averaged over batch and classes.

    logits: (S, B, C), of which the softmax is taken. targets: (S, B, C), probabilities.
    """
    return F.mse_loss(logits.softmax(-1), targets) * len(logits)


@dataclass
class FitData:
    """The data and settings that all fits of an evaluation share.

    x: (N, D), the features. y: (N,) class indices, or (N, C) probabilities of the classes.
    num_classes: C. config: the settings of the protocol.
    loss: a function of the logits (S, B, C) and the entries of y for the same examples.
    score: a function of a model and the indices of the examples to score it on; None is the accuracy.
    """

    x: Tensor
    y: Tensor
    num_classes: int
    config: SentEvalConfig
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    score: Callable[[Regression, Tensor], float] | None = None

    def evaluate(self, model: Regression, indices: Tensor) -> float:
        """Return the score of a model on the examples with these indices."""
        return (self.score or self.accuracy)(model, indices)

    def accuracy(self, model: Regression, indices: Tensor) -> float:
        """Return the share of the examples with these indices whose class the model predicts."""
        return (model.logits(self.x[indices]).argmax(1) == self.y[indices]).sum().item() / len(indices)


def split_in_folds(data: FitData, indices: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Split examples into folds; return a pair for each fold: the indices outside of it, and those inside.

    indices: (N,).
    """
    num_folds = data.config.folds
    if len(indices) < (minimum := max(num_folds, math.ceil(1 / HELD_OUT_FRACTION))):
        raise InputError(f"{len(indices)} training examples: cross-validation needs {minimum} or more")
    folds = torch.from_numpy(stratified_folds(data.y[indices].numpy(), num_folds))
    return [(indices[folds != fold], indices[folds == fold]) for fold in range(num_folds)]


def make_penalty_candidates(train_dev_pairs: list[tuple[Tensor, Tensor]]) -> list[FitSpec]:
    """Return a FitSpec for each pair (train, dev) and each L2 penalty; the penalty varies fastest."""
    return [FitSpec(train, dev, l2) for train, dev in train_dev_pairs for l2 in L2_PENALTIES]


def choose_best_penalty(models: list[Regression]) -> tuple[int, float]:
    """Choose the best L2 penalty; return its index in L2_PENALTIES, and its mean score in percent."""
    scores = [[model.score for model in models[i :: len(L2_PENALTIES)]] for i in range(len(L2_PENALTIES))]
    means = [to_percent(np.float64(np.mean(values)) if len(values) > 1 else values[0]) for values in scores]
    return int(np.argmax(means)), max(means)


def select_on_dev(data: FitData, train: Tensor, dev: Tensor) -> tuple[Regression, float]:
    """Fit a model with each L2 penalty; return the best one on dev, and its accuracy there in percent."""
    models = fit_all(data, make_penalty_candidates([(train, dev)]))
    best, score = choose_best_penalty(models)
    return models[best], score  # SentEval fits it again, which gives the same weights


def select_by_cross_validation(data: FitData, train: Tensor) -> tuple[Regression, float]:
    """Choose the L2 penalty by cross-validation of train, and fit a model with it to all of train.

    train: indices of examples. Returns the model, and the mean accuracy of its penalty over the folds in
    percent.
    """
    best, score = choose_best_penalty(fit_all(data, make_penalty_candidates(split_in_folds(data, train))))
    [model] = fit_all(data, [FitSpec(train, None, L2_PENALTIES[best])])
    return model, score


def nested_cross_validation(data: FitData, indices: Tensor) -> tuple[float, float]:
    """Score, on each fold, a model whose L2 penalty is chosen by cross-validation of the other folds.

    indices: of the examples. Returns two means over the folds, in percent: of the accuracies by which the
    penalties were chosen, and of the accuracies on the folds.
    """
    outer = split_in_folds(data, indices)
    inner = [make_penalty_candidates(split_in_folds(data, train)) for train, _ in outer]
    models = iter(fit_all(data, [fit for fits in inner for fit in fits]))  # at once: more fits share a batch
    chosen = [choose_best_penalty([next(models) for _ in fits]) for fits in inner]
    refits = [
        FitSpec(train, None, L2_PENALTIES[best]) for (train, _), (best, _) in zip(outer, chosen, strict=True)
    ]
    fitted = zip(fit_all(data, refits), outer, strict=True)
    accuracies = [to_percent(data.accuracy(model, test)) for model, (_, test) in fitted]
    means = np.mean([score for _, score in chosen]), np.mean(accuracies)
    return round_to_cents(np.float64(means[0])), round_to_cents(np.float64(means[1]))


def to_percent(score: float | np.float64) -> float:
    """Return score x 100, rounded to two decimals."""
    return round_to_cents(100 * score)


def round_to_cents(score: float | np.float64) -> float:
    """Round to two decimals: a float as Python does, a numpy number as numpy does.

    They round some halves differently; SentEval mixes both types, and so does this file, to get equal scores.
    """
    return float(round(score, 2))


def from_percent(score: float) -> float:
    """Return score / 100, rounded to four decimals."""
    return round(score / 100, 4)


# --------------------------------------------------------------------------------------------------- the fits


def fit_all(data: FitData, fits: list[FitSpec]) -> list[Regression]:
    """Fit a model for each of the specifications `fits`; return the models in the same order.

    Fits with equally many training examples take their steps together.
    """
    groups = defaultdict(list)
    for index, fit in enumerate(fits):
        groups[len(fit.train), fit.dev is None].append(index)
    models: dict[int, Regression] = {}
    for group in groups.values():
        for start in range(0, len(group), MAX_BATCHED_FITS):
            indices = group[start : start + MAX_BATCHED_FITS]
            models |= zip(indices, fit_batched(data, [fits[index] for index in indices]), strict=True)
    return [models[index] for index in range(len(fits))]


def fit_batched(data: FitData, fits: list[FitSpec]) -> list[Regression]:
    """Fit a model for each of S specifications, which all have n training examples, and return the models.

    All fits take their steps together; no fit influences another one.
    """
    config, generator = data.config, np.random.RandomState(SEED)
    train = torch.stack([fit.train for fit in fits])  # (S, n)
    dev = [fit.dev for fit in fits if fit.dev is not None]
    if not dev:
        order, num_held_out = generator.permutation(train.shape[1]), int(HELD_OUT_FRACTION * train.shape[1])
        dev, train = list(train[:, order[:num_held_out]]), train[:, order[num_held_out:]]
    parameters = initial_parameters(data.x.shape[1], data.num_classes).repeat(len(fits), 1)  # (S, P)
    moments = [torch.zeros_like(parameters) for _ in range(2)]
    l2 = torch.tensor([[fit.l2] for fit in fits])  # (S, 1)
    update = OPTIMIZERS[config.optimizer]
    best: dict[int, Regression] = {}
    patience_used, active = [0] * len(fits), list(range(len(fits)))
    epochs = steps = 0
    while active and epochs <= config.max_epoch:
        for _ in range(config.epoch_size):
            shuffled = train[:, generator.permutation(train.shape[1])]
            for batch in shuffled.split(config.batch_size, dim=1):  # (S, B)
                gradient = torch.addcmul(loss_gradients(data, parameters, batch), parameters, l2)
                steps += 1
                update(parameters, gradient, moments, steps)
            epochs += 1
        for position, index in enumerate(active):  # of a fit: among the active ones, among all
            weight, bias = split_parameters(parameters[position], data.num_classes)
            score = data.evaluate(Regression(weight, bias, 0.0), dev[index])
            if index not in best or score > best[index].score:
                best[index] = Regression(weight.clone(), bias.clone(), score)
            else:
                patience_used[index] += 1
        kept = [n for n, index in enumerate(active) if patience_used[index] <= config.tenacity]
        if len(kept) < len(active):
            active = [active[position] for position in kept]
            parameters, train, l2, *moments = (value[kept] for value in (parameters, train, l2, *moments))
    return [best[index] for index in range(len(fits))]


def split_parameters(parameters: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Split parameters (..., P) into the weight (..., C, D) and the bias (..., C). num_classes: C."""
    weight = parameters[..., :-num_classes].unflatten(-1, (num_classes, -1))
    return weight, parameters[..., -num_classes:]


def initial_parameters(num_features: int, num_classes: int) -> Tensor:
    """Return the initial weight and bias of nn.Linear after torch.manual_seed(SEED), flattened: (P,)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        linear = nn.Linear(num_features, num_classes)
    return torch.cat([linear.weight.detach().flatten(), linear.bias.detach()])


def loss_gradients(data: FitData, parameters: Tensor, batch: Tensor) -> Tensor:
    """Return the gradient of the loss of each fit, (S, P).

    parameters: (S, P). batch: (S, B), the indices of the examples in the batch of each fit.
    """
    x = data.x.index_select(0, batch.flatten()).unflatten(0, batch.shape)  # (S, B, D)
    weight, bias = split_parameters(parameters, data.num_classes)
    with torch.inference_mode(False), torch.enable_grad():
        logits = torch.baddbmm(bias[:, None], x, weight.transpose(1, 2)).requires_grad_()  # (S, B, C)
        [errors] = torch.autograd.grad(data.loss(logits, data.y[batch]), logits)
    return torch.cat([torch.bmm(errors.transpose(1, 2), x).flatten(1), errors.sum(1)], dim=1)


def adam_step(parameters: Tensor, gradient: Tensor, moments: list[Tensor], steps: int) -> None:
    """Take a step of torch.optim.Adam with its default settings, in place.

    parameters, gradient: (S, P). moments: the two running averages, (S, P). steps: number of this step, from
    1.
    """
    mean, square = moments
    mean.lerp_(gradient, 1 - 0.9)
    square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
    root = (square.sqrt() / (1 - 0.999**steps) ** 0.5).add_(1e-8)
    parameters.addcdiv_(mean, root, value=-1e-3 / (1 - 0.9**steps))


def rmsprop_step(parameters: Tensor, gradient: Tensor, moments: list[Tensor], steps: int) -> None:
    """Take a step of torch.optim.RMSprop with its default settings, in place.

    parameters, gradient: (S, P). moments: the first of them is the running average, (S, P).
    """
    square = moments[0].mul_(0.99).addcmul_(gradient, gradient, value=1 - 0.99)
    parameters.addcdiv_(gradient, square.sqrt().add_(1e-8), value=-1e-2)


# Name -> a function that takes a step, for SentEvalConfig.optimizer.
OPTIMIZERS = {"adam": adam_step, "rmsprop": rmsprop_step}
