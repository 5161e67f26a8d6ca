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
    x, y, (*train_and_dev, test) = embed_features(encode, read_splits(task, read_split, split))
    data = FitData(x, y.long(), max(len(task.classes), int(y.max()) + 1), config)
    result: dict[str, float] = {"pairs": len(test)}
    if not x.isfinite().all():
        return result | {"accuracy": math.nan, "dev_accuracy": math.nan}
    if train_and_dev:
        train, *dev = train_and_dev
        tests, selected = [test], fit_with_best_penalty(data, [train], dev[0] if dev else None)
    else:
        folds = split_in_folds(data, test)
        tests, selected = [fold for _, fold in folds], fit_with_best_penalty(data, [one for one, _ in folds])
    fitted = zip(selected, tests, strict=True)
    accuracies = [rounded(100 * data.accuracy(model, indices)) for (model, _), indices in fitted]
    means = [np.float64(np.mean(scores)) for scores in (accuracies, [score for _, score in selected])]
    result["accuracy"], result["dev_accuracy"] = (round(rounded(mean) / 100, 4) for mean in means)
    if train_and_dev:
        [(model, _)] = selected
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
    """Return the Matthews correlation coefficient, in [-1, 1], of classes 0 and 1 with their labels, (N,).

    It is 0 if only one class is ever predicted. For two classes it is Pearson's correlation.
    """
    correlation = pearson(predictions, labels)
    return 0.0 if math.isnan(correlation) else correlation


# ------------------------------------------------------------------------------ examples, in SentEval's order


def read_splits(task: Task, read_split: ReadSplit, split: str) -> list[Examples]:
    """Read the splits that an evaluation needs; the last one is `split`, on which the score is reported.

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


def embed_features(encode: EncodeFunction, splits: list[Examples]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return features (N, D) float32 and labels (N,) float64 of several splits, and the indices of each.

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
    return torch.cat(x), torch.cat(y), list(indices)


def scores_to_distributions(scores: Tensor, highest: int) -> Tensor:
    """Return, for N scores, probabilities of the integers 1 to `highest` whose mean they are, (N, highest).

    The score 3.6 becomes the probability 0.4 of 3 and 0.6 of 4. A score below 1 loses the share of 0, as in
    SentEval: 0.6 becomes 0.6 of 1 and nothing else.
    """
    distance = (scores.double()[:, None] - torch.arange(1.0, highest + 1)).abs()
    return (1 - distance).clamp(min=0).float()


def stratified_folds(y: np.ndarray, num_folds: int) -> np.ndarray:
    """Return the fold of each example, (N,), from 0 to num_folds - 1; each fold has its share of every class.

    y: (N,), the class of each example. The folds equal those of StratifiedKFold(num_folds, shuffle=True,
    random_state=SEED) of scikit-learn since version 0.22.
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
    """The indices of the n training examples of one fit, those of its dev examples, and its L2 penalty.

    The dev examples decide when to stop; None sets a part of the training examples aside for that.
    """

    train: Tensor
    dev: Tensor | None
    l2: float


class Regression(NamedTuple):
    """A fitted softmax regression: its weight, (C, D), its bias, (C,), and its best score on dev."""

    weight: Tensor
    bias: Tensor
    score: float

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of the classes, (N, C), for the features of N examples, (N, D)."""
        return F.linear(x, self.weight, self.bias)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of logits (S, B, C), summed over fits, averaged over the batch. y: (S, B)."""
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]


def squared_error(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of the softmax of logits (S, B, C), against probabilities of the same shape.

    It is summed over the fits, and averaged over the batch and the classes.
    """
    return F.mse_loss(logits.softmax(-1), targets) * len(logits)


@dataclass
class FitData:
    """The data and settings that all fits of an evaluation share.

    x: (N, D), the features. y: (N,) class indices, or (N, C) probabilities of the classes. num_classes: C.
    loss: a function of the logits (S, B, C) and the entries of y for the same examples.
    score: a function of a model and the indices of the examples to score it on; None is the accuracy.
    """

    x: Tensor
    y: Tensor
    num_classes: int
    config: SentEvalConfig
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    score: Callable[[Regression, Tensor], float] | None = None

    def accuracy(self, model: Regression, indices: Tensor) -> float:
        """Return the share of the examples with these indices whose class the model predicts."""
        return (model.logits(self.x[indices]).argmax(1) == self.y[indices]).sum().item() / len(indices)


def split_in_folds(data: FitData, indices: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Split examples, (N,) indices, into folds; return for each fold the indices outside and those inside."""
    num_folds = data.config.folds
    if len(indices) < (minimum := max(num_folds, math.ceil(1 / HELD_OUT_FRACTION))):
        raise InputError(f"{len(indices)} training examples: cross-validation needs {minimum} or more")
    folds = torch.from_numpy(stratified_folds(data.y[indices].numpy(), num_folds))
    return [(indices[folds != fold], indices[folds == fold]) for fold in range(num_folds)]


def fit_with_best_penalty(
    data: FitData, trains: list[Tensor], dev: Tensor | None = None
) -> list[tuple[Regression, float]]:
    """Fit a model to each training set, with the L2 penalty that is best on dev or, without, in its folds.

    Returns each model, and the accuracy in percent by which its penalty was chosen. The fits of all training
    sets are made at once, because more fits share a batch.
    """
    pairs = [[(train, dev)] if dev is not None else split_in_folds(data, train) for train in trains]
    fits = [[FitSpec(*pair, l2) for pair in each for l2 in L2_PENALTIES] for each in pairs]
    models = iter(fit_all(data, [fit for each in fits for fit in each]))
    candidates = [[next(models) for _ in each] for each in fits]
    best, scores = zip(*map(choose_best_penalty, candidates), strict=True)
    if dev is not None:  # SentEval fits it again, which gives the same weights
        chosen = [each[index] for each, index in zip(candidates, best, strict=True)]
    else:
        refits = zip(trains, best, strict=True)
        chosen = fit_all(data, [FitSpec(train, None, L2_PENALTIES[index]) for train, index in refits])
    return list(zip(chosen, scores, strict=True))


def choose_best_penalty(models: list[Regression]) -> tuple[int, float]:
    """Choose the best L2 penalty; return its index in L2_PENALTIES, and its mean score in percent.

    models: those of all pairs of training and dev examples, the penalty varying fastest.
    """
    scores = [[model.score for model in models[i :: len(L2_PENALTIES)]] for i in range(len(L2_PENALTIES))]
    means = [np.float64(np.mean(values)) if len(values) > 1 else values[0] for values in scores]
    percents = [rounded(100 * mean) for mean in means]
    return int(np.argmax(percents)), max(percents)


def rounded(percent: float | np.float64) -> float:
    """Round to two decimals: a float as Python does, a numpy number as numpy does.

    They round some halves differently; SentEval mixes both types, and so does this file, to get equal scores.
    """
    return float(round(percent, 2))


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
    score_of, update = data.score or data.accuracy, OPTIMIZERS[config.optimizer]
    train = torch.stack([fit.train for fit in fits])  # (S, n)
    dev = [fit.dev for fit in fits if fit.dev is not None]
    if not dev:
        order, num_held_out = generator.permutation(train.shape[1]), int(HELD_OUT_FRACTION * train.shape[1])
        dev, train = list(train[:, order[:num_held_out]]), train[:, order[num_held_out:]]
    parameters = initial_parameters(data.x.shape[1], data.num_classes).repeat(len(fits), 1)  # (S, P)
    moments = [torch.zeros_like(parameters) for _ in range(2)]
    l2 = torch.tensor([[fit.l2] for fit in fits])  # (S, 1)
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
            score = score_of(Regression(weight, bias, 0.0), dev[index])
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
    """Split parameters (..., P) into the weight (..., C, D) and the bias (..., C)."""
    weight = parameters[..., :-num_classes].unflatten(-1, (num_classes, -1))
    return weight, parameters[..., -num_classes:]


def initial_parameters(num_features: int, num_classes: int) -> Tensor:
    """Return the initial weight and bias of nn.Linear after torch.manual_seed(SEED), flattened: (P,)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        linear = nn.Linear(num_features, num_classes)
    return torch.cat([linear.weight.detach().flatten(), linear.bias.detach()])


def loss_gradients(data: FitData, parameters: Tensor, batch: Tensor) -> Tensor:
    """Return the gradient of the loss of each fit, (S, P). batch: the indices of its examples, (S, B)."""
    x = data.x.index_select(0, batch.flatten()).unflatten(0, batch.shape)  # (S, B, D)
    weight, bias = split_parameters(parameters, data.num_classes)
    with torch.inference_mode(False), torch.enable_grad():
        logits = torch.baddbmm(bias[:, None], x, weight.transpose(1, 2)).requires_grad_()  # (S, B, C)
        [errors] = torch.autograd.grad(data.loss(logits, data.y[batch]), logits)
    return torch.cat([torch.bmm(errors.transpose(1, 2), x).flatten(1), errors.sum(1)], dim=1)


def adam_step(parameters: Tensor, gradient: Tensor, moments: list[Tensor], steps: int) -> None:
    """Take step number `steps`, from 1, of torch.optim.Adam with its default settings, in place.

    parameters, gradient: (S, P). moments: the two running averages, (S, P).
    """
    mean, square = moments
    mean.lerp_(gradient, 1 - 0.9)
    square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
    root = (square.sqrt() / (1 - 0.999**steps) ** 0.5).add_(1e-8)
    parameters.addcdiv_(mean, root, value=-1e-3 / (1 - 0.9**steps))


def rmsprop_step(parameters: Tensor, gradient: Tensor, moments: list[Tensor], steps: int) -> None:
    """Take a step of torch.optim.RMSprop with its default settings, in place; see adam_step."""
    square = moments[0].mul_(0.99).addcmul_(gradient, gradient, value=1 - 0.99)
    parameters.addcdiv_(gradient, square.sqrt().add_(1e-8), value=-1e-2)


# Name -> a function that takes a step, for SentEvalConfig.optimizer.
OPTIMIZERS = {"adam": adam_step, "rmsprop": rmsprop_step}
