"""Check the five exercises: say for each one whether it is right and, if not, what is probably wrong.

    python docs/lecture/check.py                          # all files of docs/lecture/exercises
    python docs/lecture/check.py 2                        # exercise 2 alone
    python docs/lecture/check.py --folder students/ann    # the files that somebody has sent
    python docs/lecture/check.py --folder docs/lecture/answers

The exit code is 0 if all are right, 1 if one is not, and 2 if a file is missing. In the notebook:
check.exercise(1, attention). A function is called on inputs with a known result; if it fails, it is compared
with the mistakes that are made most often. This file does not need the answers.
"""

import argparse
import importlib.util
import sys
import traceback
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

HERE = Path(__file__).resolve().parent
FILES = {1: "1_attention.py", 2: "2_step.py", 3: "3_layer.py", 4: "4_cka.py", 5: "5_small.py"}
OTHER_NUMBERS = "other numbers than expected: go through the formula of the docstring, term by term"


def exercise(number: int, function) -> bool:
    """Print whether the function of an exercise is right, and return it. number: 1 to 5."""
    check = CHECKS[number]
    name = check.__name__.removeprefix("check_")
    try:
        hint = check(function)
    except NotImplementedError:
        hint = f"not written yet: replace the `raise NotImplementedError` of {name} in {FILES[number]}"
    except Exception as error:  # whatever a student's function raises is told in a line
        hint = f"it stops {describe_error(error, function)}"
        if "does not require grad" in hint:
            hint = "no gradient reaches the weights: `no_grad`, `detach` or `item` stands before `backward`"
    print(f"{number} {name}: {'right' if hint is None else hint}")
    return hint is None


def describe_error(error: Exception, function=None, path: Path | None = None) -> str:
    """Say in which line a function, or the file with this path, has raised an error, and which one."""
    file = str(path or getattr(getattr(function, "__code__", None), "co_filename", ""))
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    name = Path(file).name if Path(file).is_file() else "your code"  # a cell of a notebook is no file
    where = f"in line {lines[-1]} of {name} " if lines else ""
    message = f"{where}with {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    is_about_shapes = isinstance(error, RuntimeError | IndexError | ValueError) and any(
        word in message for word in ("size", "shape", "imension", "broadcast")
    )
    return f"{message} (print the shapes before this line)" if is_about_shapes else message


def close(value, expected, tolerance: float = 1e-4) -> bool:
    """Return whether a number or tensor has the expected shape and values."""
    value, expected = (torch.as_tensor(x).detach().double() for x in (value, expected))
    return value.shape == expected.shape and bool(((value - expected).abs() <= tolerance).all())


def wrong_kind(value, shape: tuple[int, ...]) -> str | None:
    """Return a hint if a result is missing or has the wrong shape."""
    expected = shape or "a single number"
    if value is None:
        return "it returns nothing: is there a `return`?"
    if isinstance(value, tuple | list | dict | str):
        return f"the result is a {type(value).__name__}, expected {expected}"
    if tuple(torch.as_tensor(value).shape) != shape:
        return f"the result has the shape {tuple(torch.as_tensor(value).shape)}, expected {expected}"
    return None


def first_match(value, mistakes: dict[str, Tensor]) -> str | None:
    """Return the sentence of the first mistake that has this result."""
    return next((sentence for sentence, wrong in mistakes.items() if close(value, wrong)), None)


# --------------------------------------------------------------------------------------- exercise 1


class LibraryAttention(TorchFunctionMode):
    """Inside a with block, note whether attention is computed by torch's function for it."""

    is_used = False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.is_used |= function is F.scaled_dot_product_attention
        return function(*args, **(kwargs or {}))


def check_attention(function) -> str | None:
    """Try several shapes, first without padding; then padding, then large scores."""
    for seed, (B, H, T, A, C) in enumerate([(2, 3, 5, 4, 6), (1, 1, 2, 9, 11), (3, 2, 7, 16, 20)]):
        generator = torch.Generator().manual_seed(seed)
        q, k = torch.randn(2, B, H, T, A, generator=generator)
        v = torch.randn(B, H, T, C, generator=generator)  # of another width, so that a wrong root is seen
        with LibraryAttention() as library:
            hint = check_one_attention(function, q, k, v)
        if library.is_used:
            return "F.scaled_dot_product_attention is called: write its products and the softmax yourself"
        if hint:
            return hint
    large = F.scaled_dot_product_attention(100 * q, k, v)
    is_finite = close(function(100 * q, k, v, torch.ones(B, T, dtype=torch.long)), large, 1e-3)
    return None if is_finite else "large scores overflow: use torch.softmax, which subtracts the largest one"


def check_one_attention(function, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    B, H, T, A = q.shape
    C = v.shape[-1]
    everything, mask = torch.ones(B, T, dtype=torch.long), torch.ones(B, T, dtype=torch.long)
    mask[-1, (T + 1) // 2 :] = 0
    before = [x.clone() for x in (q, k, v)]
    value = function(q, k, v, everything)
    if not all(map(torch.equal, (q, k, v), before)) or not everything.all():
        return "an argument is changed: make a new tensor instead"
    if isinstance(value, Tensor) and value.shape == (B, H, T, T):
        return "these are the weights, (B, H, T, T): multiply them by V"
    if hint := wrong_kind(value, (B, H, T, C)):
        return hint
    scores, root = q @ k.mT, A**0.5

    def attend(scores, dim=-1):
        return scores.softmax(dim) @ v

    if not close(value, attend(scores / root)):
        mistakes = {
            "the scores are not scaled: divide them by the root of the head size A": attend(scores),
            "the scores are divided by A: divide them by its root": attend(scores / A),
            "the scores are divided by the root of D: take that of A = D / H": attend(
                scores / (A * H) ** 0.5
            ),
            "the scores are divided by the root of the width of V: take the width of Q, the head size A": (
                attend(scores / C**0.5)
            ),
            "the scores are divided by the root of T: take that of the head size A": attend(scores / T**0.5),
            "the scores are multiplied by the root of A: divide them": attend(scores * root),
            "the weights are scaled: scale the scores, before the softmax": attend(scores) / root,
            "the softmax is over the queries: take the last dimension, the keys": attend(scores / root, 2),
            "the softmax is over the heads: take the last dimension, the keys": attend(scores / root, 1),
            "the softmax is over the sentences: take the last dimension, the keys": attend(scores / root, 0),
            "queries and keys are swapped: the scores are Q K^T": attend(scores.mT / root),
            "there is no softmax": scores / root @ v,
            "the mask is the wrong way round: 1 is a token, 0 is padding": attend(0 * scores),
        }
        return first_match(value, mistakes) or OTHER_NUMBERS

    # With padding. What its queries get does not matter: it is set to 0 before the comparison.
    scores, keys, is_token = scores / root, mask[:, None, None, :], mask[:, None, :, None] == 1
    lowest = torch.finfo(q.dtype).min
    value = function(q, k, v, mask) * is_token
    if value.isnan().any():
        return "some numbers are nan: use torch.finfo(q.dtype).min in place of minus infinity"
    if close(value, attend(scores.masked_fill(keys == 0, lowest)) * is_token):
        return None
    mistakes = {
        "padding is attended to: give the scores of its keys the lowest number": attend(scores),
        "the scores of padding are 0, which is not low: give them the lowest number": attend(scores * keys),
        "1 is added to the scores of tokens, too little: give padding the lowest number": attend(
            scores + keys
        ),
        "q, k and v are multiplied by the mask, so scores of padding are 0: give them the lowest number": (
            (scores * keys).softmax(-1) @ (v * is_token)
        ),
        "the mask comes after the softmax, so the weights do not sum to 1: mask the scores": (
            scores.softmax(-1) * keys @ v
        ),
    }
    if hint := first_match(value, {sentence: wrong * is_token for sentence, wrong in mistakes.items()}):
        return hint
    changed = function(q, k, v + 10 * ~is_token, mask) * is_token  # padding alone has other values
    is_seen = not close(changed, value)
    return (
        "padding is attended to: mask the keys, the last dimension of the scores"
        if is_seen
        else OTHER_NUMBERS
    )


# --------------------------------------------------------------------------------------- exercises 2 and 5


class Table:
    """A model that looks up the vector of each token or text: one matrix of weights, without dropout."""

    method = "hidden_state(ids, mask)"  # what the exercise calls

    def __init__(self, size: tuple[int, int], seed: int, texts: tuple[str, ...] = ()):
        generator = torch.Generator().manual_seed(seed)
        self.matrix = torch.randn(size, generator=generator).add_(0.5).requires_grad_()
        self.weights = {"matrix": self.matrix}
        self.row = {text: i for i, text in enumerate(texts)}
        if texts:
            self.method = "embed(texts)"
        self.embedded: list[str] = []  # with a gradient

    def hidden_state(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of the tokens, those of padding, too."""
        return self.matrix[ids]

    def embed(self, texts: list[str]) -> Tensor:
        """Return the vectors of the texts."""
        if isinstance(texts, str) or not set(texts) <= self.row.keys():
            raise ValueError(f"embed takes a list of texts that are in `lines`, not {texts!r}")
        embeddings = self.matrix[[self.row[text] for text in texts]]
        self.embedded += texts if embeddings.requires_grad else []
        return embeddings

    def train(self, mode: bool = True) -> "Table":
        """Do nothing: without dropout, training and evaluation are the same."""
        return self

    eval = train

    def __call__(self, *unused, **unused_too):
        raise TypeError(f"this model is not called itself: call its {self.method}")

    def __getattr__(self, name: str):
        raise AttributeError(f"this model has no `{name}`: call its {self.method}")


class Recorder(torch.optim.SGD):
    """An optimizer that records the gradient of each of its steps, and the texts embedded since the last."""

    def __init__(self, model: Table):
        super().__init__([model.matrix], lr=0.5)
        self.model, self.gradients, self.texts, self.before = model, [], [], []

    def step(self, closure=None):
        gradient = self.model.matrix.grad
        self.gradients.append(torch.zeros_like(self.model.matrix) if gradient is None else gradient.clone())
        self.before.append(self.model.matrix.detach().clone())
        self.texts.append(self.model.embedded)
        self.model.embedded = []
        super().step(closure)


def wrong_gradient(gradient: Tensor, expected: Tensor, previous: list[Tensor]) -> str | None:
    """Return what is wrong with the gradient at a step. previous: those of the steps before it."""
    if close(gradient, expected, 1e-5):
        return None
    if close(gradient, torch.zeros(()).expand_as(gradient)):
        return "the gradient is 0 at the step: `zero_grad`, then `backward`, then `step`"
    if close(gradient, -expected, 1e-5):
        return "the sign of the loss is wrong: the optimizer makes it smaller"
    if previous and close(gradient, expected + previous[-1], 1e-5):
        return "`optimizer.zero_grad` is missing: the gradients of the batches add up"
    return "the gradient at the step is not that of the loss"


def check_training_step(function) -> str | None:
    encoder = Table((20, 7), seed=1)
    optimizer, generator = Recorder(encoder), torch.Generator().manual_seed(2)
    previous: list[Tensor] = []
    for P, T in ((3, 5), (4, 7), (2, 3)):
        ids = torch.randint(1, 20, (2 * P, T), generator=generator)
        mask = (torch.arange(T) < torch.randint(1, T, (2 * P, 1), generator=generator)).long()
        mask[0] = 1
        scores = torch.arange(P) * 5 / P + 0.5
        hidden = encoder.matrix.detach()[ids].requires_grad_()
        keys = mask[:, :, None]
        mean = (hidden * keys).sum(1) / keys.sum(1)
        expected = loss_of_pairs(mean, scores)
        [gradient] = torch.autograd.grad(expected, hidden)
        gradient = torch.zeros(20, 7).index_put_((ids,), gradient, accumulate=True)
        steps = len(optimizer.gradients)
        value = function(encoder, optimizer, ids, mask, scores)
        if hint := wrong_kind(value, ()):
            return hint
        if not close(value, expected):
            return wrong_loss(value, hidden, keys, mean, scores) or OTHER_NUMBERS
        if len(optimizer.gradients) == steps:
            return "the weights do not change: `optimizer.step` is missing"
        if len(optimizer.gradients) > steps + 1:
            return "there is more than one step for a batch"
        if hint := wrong_gradient(optimizer.gradients[-1], gradient, previous):
            return hint
        previous.append(optimizer.gradients[-1])
    return None


def loss_of_pairs(embeddings: Tensor, scores: Tensor) -> Tensor:
    u, v = embeddings.chunk(2)
    return F.mse_loss(F.cosine_similarity(u, v), scores / 5)


def wrong_loss(value, hidden: Tensor, keys: Tensor, mean: Tensor, scores: Tensor) -> str | None:
    """Return the sentence of the mistake that gives this loss."""
    u, v = mean.chunk(2)
    cosine = F.cosine_similarity(u, v)
    rounded = scores / 5
    mistakes = {
        "padding counts: multiply by the mask before the mean": loss_of_pairs(hidden.mean(1), scores),
        "the first token is taken: a sentence is the mean of its tokens": loss_of_pairs(hidden[:, 0], scores),
        "the largest values are taken: a sentence is the mean of its tokens": loss_of_pairs(
            hidden.masked_fill(keys == 0, -9e9).amax(1), scores
        ),
        "the scores are not divided by 5: a cosine is at most 1": F.mse_loss(cosine, scores),
        "the cosines are multiplied by 5: divide the scores, so that the loss is at most 4": F.mse_loss(
            5 * cosine, scores
        ),
        "these are absolute differences: take squared ones": (cosine - rounded).abs().mean(),
        "this is the sum: take the mean over the pairs": (cosine - rounded).square().sum(),
        "this is the root of the loss: leave it out": (cosine - rounded).square().mean().sqrt(),
        "this is the inner product: divide it by the lengths of u and v": F.mse_loss((u * v).sum(1), rounded),
        "the sign of the loss is wrong: the optimizer makes it smaller": -F.mse_loss(cosine, rounded),
        "the wrong sentences are paired: the first half of the rows are the first sentences": F.mse_loss(
            F.cosine_similarity(mean[::2], mean[1::2]), rounded
        ),
    }
    return first_match(value, mistakes)


# --------------------------------------------------------------------------------------- exercise 3

# (layer, seed) -> score on dev, score on test. On dev the mean is best for 4 layers, a single seed for 6; on
# test 8 layers are best. LOW_SCORES has two layers that are equally good, and no score above 0; its first
# layer is neither the best nor the worst.
SCORES = {
    (0, 0): (40.0, 45.0), (0, 1): (41.0, 46.0), (2, 0): (50.0, 52.0), (2, 1): (52.0, 51.0),
    (4, 0): (60.0, 58.0), (4, 1): (62.0, 56.0), (6, 0): (45.0, 50.0), (6, 1): (65.0, 55.0),
    (8, 0): (55.0, 70.0), (8, 1): (56.0, 71.0),
}  # fmt: skip
LOW_SCORES = {(3, 5): (-6.0, -4.0), (4, 5): (-2.0, -5.0), (7, 5): (-2.0, -1.0), (9, 5): (-9.0, -3.0)}
BELOW_ZERO = "no layer is chosen if all scores are below 0: begin with the first one, or with minus infinity"


def check_best_layer(function) -> str | None:
    for table in (SCORES, LOW_SCORES):
        hint = check_one_choice(function, table)
        if hint:
            return hint
    return None


def check_one_choice(function, table: dict[tuple[int, int], tuple[float, float]]) -> str | None:
    layers, seeds = (sorted({key[i] for key in table}) for i in (0, 1))
    trained, scored = [], []

    def fine_tune(layer, seed):
        trained.append((layer, seed))
        return layer, seed

    def score(encoder, pairs):
        scored.append((encoder[0], pairs))
        return table[encoder][pairs == "test"]

    def mean(layer, is_test):
        return sum(table[layer, seed][is_test] for seed in seeds) / len(seeds)

    try:
        result = function(list(layers), list(seeds), fine_tune, score, "dev", "test")
    except Exception:
        if table is LOW_SCORES:  # with SCORES, it has not stopped
            return BELOW_ZERO
        raise
    if result is None:
        return "it returns nothing: is there a `return`?"
    if not isinstance(result, tuple | list) or len(result) != 2:
        return "return two numbers: the layer and its test score"
    layer, value = result
    if value in layers and layer not in layers:
        return "the two numbers are swapped: return (layer, test score)"
    if never := set(layers) - {layer for layer, _ in trained}:
        return f"a number of layers was never trained: {min(never)}"
    if missing := set(table) - set(trained):
        return "{} layers with seed {} were never trained: use all seeds".format(*min(missing))
    if len(trained) > len(table):
        return f"fine_tune was called {len(trained)} times for {len(table)} encoders: keep them in a dict"
    best, worst, best_on_test = (
        max(layers, key=lambda n: sign * mean(n, is_test)) for sign, is_test in ((1, 0), (-1, 0), (1, 1))
    )
    equal = [n for n in layers if mean(n, 0) == mean(best, 0)]
    if table is LOW_SCORES and layer in (None, 0, -1, layers[0]):
        return BELOW_ZERO
    if layer != best:
        best_seed = max(table, key=lambda key: table[key][0])
        mistakes = {
            best_on_test: "test has chosen the layer: dev chooses, test is looked at once, at the end",
            layers.index(best): "this is the place of the layer in `layers`: return layers[place]",
            worst: "this is the lowest score: take the highest",
            best_seed[0]: "the best seed has chosen the layer: take the mean over the seeds",
        }
        if layer in equal:
            return "two layers are equally good on dev: the fewer layers win"
        return mistakes.get(layer, f"{layer} layers are chosen, expected {best}")
    if any(pairs == "test" and n != best for n, pairs in scored):
        return "test is scored for several layers: score it for the chosen layer alone"
    if close(value, mean(best, 0)):
        return "this is the score on dev, which has chosen the layer and is too good: return that on test"
    singles = [table[best, seed][1] for seed in seeds]
    if len(seeds) > 1 and any(close(value, single) for single in singles):
        return "this is the test score of one seed: take the mean over the seeds"
    if len(seeds) > 1 and close(value, sum(singles)):
        return "this is the sum over the seeds: take their mean"
    return None if close(value, mean(best, 1)) else "another test score than expected"


# --------------------------------------------------------------------------------------- exercise 4


def check_linear_cka(function) -> str | None:
    generator = torch.Generator().manual_seed(3)
    for N, D1, D2 in ((30, 4, 6), (12, 5, 5), (6, 8, 3)):
        x, y = torch.randn(N, D1, generator=generator) + 2, torch.randn(N, D2, generator=generator) - 1
        y[:, :2] += x[:, :2]
        before = x.clone(), y.clone()
        value = function(x, y)
        if not (torch.equal(x, before[0]) and torch.equal(y, before[1])):
            return "an argument is changed: write x = x - ..., not x -= ..."
        if hint := wrong_kind(value, ()):
            return hint
        a, b = x - x.mean(0), y - y.mean(0)
        if not close(value, cka(a, b)):
            xy, xx, yy = (torch.linalg.matrix_norm(m, 2) for m in (a.T @ b, a.T @ a, b.T @ b))
            mistakes = {
                "it is not centered: subtract x.mean(0) and y.mean(0) first": cka(x, y),
                "the rows are centered: subtract the mean of each column, x.mean(0)": cka(
                    x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
                ),
                "the mean of all numbers is subtracted: take that of each column, x.mean(0)": cka(
                    x - x.mean(), y - y.mean()
                ),
                "only x is centered": cka(a, y),
                "only y is centered": cka(x, b),
                "the square of ||X'Y|| is missing": (a.T @ b).norm() / ((a.T @ a).norm() * (b.T @ b).norm()),
                "this is the root of CKA: leave it out": cka(a, b).sqrt(),
                "the norms of X'X and Y'Y are squared: only ||X'Y|| is": cka(a, b)
                / ((a.T @ a).norm() * (b.T @ b).norm()),
                "only one of ||X'X|| and ||Y'Y|| divides: it is / (||X'X|| * ||Y'Y||)": (
                    (a.T @ b).norm() ** 2 / (a.T @ a).norm() * (b.T @ b).norm()
                ),
                "the columns are scaled: only the mean is subtracted": cka(a / a.std(0), b / b.std(0)),
                "this is the spectral norm: take Frobenius, torch.linalg.norm(matrix)": xy**2 / (xx * yy),
            }
            return first_match(value, mistakes) or OTHER_NUMBERS
    return None


def cka(x: Tensor, y: Tensor) -> Tensor:
    """Return the cosine of the two Gram matrices: CKA, if the columns of x and y have the mean 0."""
    return F.cosine_similarity((x @ x.T).flatten(), (y @ y.T).flatten(), dim=0)


# --------------------------------------------------------------------------------------- exercise 5


def check_distill(function) -> str | None:
    training = [f"Line {i} of the text." for i in range(11)]
    held_out = ["A sentence of dev.", " A sentence of test. "]
    leaked = [" A sentence of dev.\n", "a sentence of dev.", "A sentence of test.", "A Sentence of Test."]
    texts = [*training, *held_out, *leaked]
    texts += [changed for text in texts for changed in (text.strip(), text.lower(), text.strip().lower())]
    texts = tuple(dict.fromkeys(texts))
    for epochs, batch_size, repeated in ((2, 4, []), (1, 11, []), (3, 1, training[2:3])):
        teacher, student = (Table((len(texts), 6), seed, texts) for seed in (4, 5))
        optimizer = Recorder(student)
        lines = [held_out[0], *training[:5], *leaked, held_out[1], *training[5:], *repeated]
        targets, given = teacher.matrix.detach().clone(), (list(lines), list(held_out))
        function(teacher, student, optimizer, lines, held_out, epochs, batch_size)
        in_order = [text for batch in optimizer.texts for text in batch]
        seen = Counter(in_order)
        if (lines, held_out) != given:
            return "an argument is changed: make a new list instead"
        if not optimizer.gradients:
            return "the student does not change: `optimizer.step` is missing"
        if not seen:
            return "the student is never called with a gradient: student.embed(texts) belongs to the loss"
        if seen.keys() & set(held_out):
            return "the student is trained on test text: leave out its lines, strip().lower() on both sides"
        if leaks := seen.keys() & set(leaked):
            differences = {"spaces": str.lower, "capitals": str.strip}  # what does not make these equal
            found = [
                name
                for name, change in differences.items()
                if leaks <= {text for text in leaked if change(text) not in map(change, held_out)}
            ]
            difference = found[0] if found else "capitals and spaces"
            return (
                f"test text with other {difference} is trained on: compare line.strip().lower() on both sides"
            )
        if seen.keys() - set(training):
            return (
                "the lines are changed: lower() is for the comparison, the models get the lines as they are"
            )
        if max(map(len, optimizer.texts)) > batch_size:
            return "a step has more than batch_size lines"
        if hint := wrong_lines(in_order, [*training, *repeated], epochs, batch_size):
            return hint
        if teacher.matrix.grad is not None or not torch.equal(teacher.matrix.detach(), targets):
            return "a gradient reaches the teacher: call it inside `with torch.no_grad()`"
        # If the teacher embeds all lines before some are left out, a line gets the target of an earlier one.
        shifted = dict(zip(training, lines[: len(training)], strict=True))
        previous: list[Tensor] = []
        for gradient, batch, before in zip(
            optimizer.gradients, optimizer.texts, optimizer.before, strict=True
        ):
            rows, shifted_rows = ([student.row[t] for t in b] for b in (batch, [shifted[t] for t in batch]))
            target, wrong_target = targets[rows], targets[shifted_rows]
            if hint := wrong_distillation(gradient, before, rows, target, wrong_target, previous):
                return hint
            previous.append(gradient)
    return None


def wrong_lines(in_order: list[str], lines: list[str], epochs: int, batch_size: int) -> str | None:
    """Return why some lines are trained on too often or too seldom. in_order: those of all steps."""
    seen, expected = Counter(in_order), Counter(lines * epochs)
    if seen == expected:
        return None
    if seen == Counter(dict.fromkeys(lines, epochs)):
        return "a line that occurs twice is trained on once: is there a `set` or a dict of lines?"
    passes = len(in_order) / len(lines)
    if seen == Counter(lines * int(passes)):
        times = "once" if passes == 1 else f"{int(passes)} times"
        return f"each line is trained on {times} in {epochs} epochs: in each epoch, go through all lines"
    whole = len(lines) // batch_size * batch_size  # lines of an epoch without its last batch
    size = len(lines) if len(in_order) % epochs else len(in_order) // epochs  # of an epoch
    if any(Counter(in_order[i : i + size]) - Counter(lines) for i in range(0, len(in_order), size)):
        return "lines are drawn with replacement, some twice in an epoch: draw an order, torch.randperm"
    if size == whole < len(lines):
        return "the last batch of an epoch is left out: it may have fewer than batch_size lines"
    return f"{len(expected - seen)} of {len(lines)} lines miss an epoch"


def wrong_distillation(gradient, before, rows, target, wrong_target, previous) -> str | None:
    """Return what is wrong with the gradient of a step.

    before: the weights of the student before it; rows: those of the batch; target, wrong_target: the
    embeddings of its lines by the teacher, and of other lines.
    """
    weights = before.requires_grad_()
    cosine = F.cosine_similarity(weights[rows], target)
    losses = {
        "this is the squared error: the loss is 1 - cosine": F.mse_loss(weights[rows], target),
        "this is the sum: the loss is the mean over the lines": (1 - cosine).sum(),
        "the targets are those of other lines: leave out lines before the teacher embeds them": (
            1 - F.cosine_similarity(weights[rows], wrong_target).mean()
        ),
    }
    [expected] = torch.autograd.grad((1 - cosine).mean(), weights, retain_graph=True)
    hint = wrong_gradient(gradient, expected, previous)
    if hint is None or "not that of the loss" not in hint:
        return hint
    for sentence, loss in losses.items():
        [wrong] = torch.autograd.grad(loss, weights, retain_graph=True)
        if not close(wrong, expected, 1e-5) and close(gradient, wrong, 1e-5):
            return sentence
    return hint


CHECKS = dict(
    enumerate(
        [check_attention, check_training_step, check_best_layer, check_linear_cka, check_distill], start=1
    )
)


def load(path: Path):
    """Run a file, and return it as a module."""
    spec = importlib.util.spec_from_file_location(f"exercise_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def missing(*unused):
    """Stand for a function that the file does not have."""
    raise NotImplementedError


def main(argv: list[str] | None = None) -> int:
    """Check one exercise or all, and return the exit code."""
    parser = argparse.ArgumentParser(description="Say what is right and what is wrong in the exercises.")
    parser.add_argument("number", type=int, nargs="?", choices=FILES, help="check this exercise alone")
    parser.add_argument(
        "--folder",
        type=Path,
        default=HERE / "exercises",
        help="folder with the files 1_attention.py to 5_small.py",
    )
    args = parser.parse_args(argv)
    results = []
    for number in [args.number] if args.number else FILES:
        path = args.folder / FILES[number]
        if not path.is_file():
            print(f"{number} there is no file {path}")
            return 2
        try:
            module = load(path)
        except Exception as error:  # a file with a mistake in its syntax
            print(
                f"{number} {path.name} cannot be read: it stops {describe_error(error, path=path.absolute())}"
            )
            results.append(False)
            continue
        name = CHECKS[number].__name__.removeprefix("check_")
        results.append(exercise(number, getattr(module, name, missing)))
    print(f"{sum(results)} of {len(results)} right")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
