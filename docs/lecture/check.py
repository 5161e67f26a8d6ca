"""Check the exercises: say for each one whether it is right and, if not, what is probably wrong.

    python docs/lecture/check.py                 # exercises.py beside this file
    python docs/lecture/check.py --solutions     # solutions.py
    python docs/lecture/check.py my_file.py

In the notebook: check.exercise(1, mean_pooling). A function is called on data with a known answer; if it
fails, it is compared with the mistakes that are made most often.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import one_file  # noqa: E402
import solutions  # noqa: E402

NAMES = ["mean_pooling", "cosine_loss", "spearman", "all_hidden_states", "linear_cka", "difference_interval"]


def exercise(number: int, function) -> bool:
    """Print whether a solution of an exercise is right, and return it. number: 1 to 6."""
    name = NAMES[number - 1]
    try:
        hint = CHECKS[name](function)
    except NotImplementedError:
        hint = f"not done yet: replace `raise NotImplementedError` in {name}"
    except Exception as error:  # whatever a student's function raises is told in a line
        hint = f"it stops with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    print(f"{number} {name}: {'right' if hint is None else hint}")
    return hint is None


def close(value, expected, tolerance: float = 1e-4) -> bool:
    """Return whether a number, array or tensor has the expected shape and values."""
    if value is None:
        return False
    value, expected = (torch.as_tensor(x).detach().double() for x in (value, expected))
    return value.shape == expected.shape and bool(((value - expected).abs() <= tolerance).all())


def wrong_kind(value, shape: tuple[int, ...]) -> str | None:
    """Return a hint if a result has the wrong shape."""
    if value is None:
        return "it returns nothing: is there a `return`?"
    if tuple(torch.as_tensor(value).shape) != shape:
        return f"the result has the shape {tuple(torch.as_tensor(value).shape)}, expected {shape}"
    return None


def check_mean_pooling(function) -> str | None:
    hidden = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    before, value = hidden.clone(), function(hidden, mask)
    if hint := wrong_kind(value, (2, 3)):
        return hint
    if close(value, hidden.mean(1)):
        return "padding counts: multiply by the mask before you add"
    if close(value, (hidden * mask[:, :, None]).mean(1)):
        return "you divide by T: divide by the number of tokens of the sentence, mask.sum(1)"
    if not torch.equal(hidden, before):
        return "the argument `hidden` is changed: make a new tensor instead"
    return None if close(value, solutions.mean_pooling(hidden, mask)) else "other numbers than expected"


def check_cosine_loss(function) -> str | None:
    u, v = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1))
    scores = torch.tensor([0.0, 5.0, 2.5, 1.0, 4.0])
    value, cosines = function(u, v, scores), torch.cosine_similarity(u, v)
    if hint := wrong_kind(value, ()):
        return f"{hint}: the loss is one number, the mean over the pairs"
    if close(value, (cosines - scores).square().mean()):
        return "the scores are not scaled: a cosine is at most 1, a score up to 5"
    if close(value, (cosines - scores / 5).abs().mean()):
        return "these are absolute differences: the loss takes squared ones"
    if close(value, (cosines - scores / 5).square().sum()):
        return "this is the sum: take the mean, or the loss depends on the size of the batch"
    if close(value, ((u * v).sum(1) - scores / 5).square().mean()):
        return "this is the inner product: divide it by the lengths of u and v"
    if not close(function(u, v, scores, 10.0), solutions.cosine_loss(u, v, scores, 10.0)):
        return "max_score is not used, or other numbers than expected"
    return None if close(value, solutions.cosine_loss(u, v, scores)) else "other numbers than expected"


def check_spearman(function) -> str | None:
    generator = np.random.default_rng(2)
    x, y = generator.normal(size=(2, 20))
    if hint := wrong_kind(function(x, y), ()):
        return hint
    if close(function(x, y), np.corrcoef(x, y)[0, 1]):
        return "this is Pearson's correlation of the numbers: replace them by their ranks first"
    if not close(function(x, y), solutions.spearman(x, y)):
        return "other numbers than expected (argsort gives places, not ranks: argsort it twice)"
    ties = np.round(x)
    right = close(function(ties, np.round(y)), solutions.spearman(ties, np.round(y)))
    return None if right else "wrong where numbers are equal: they get the mean of their ranks"


def check_all_hidden_states(function) -> str | None:
    encoder = one_file.Encoder(one_file.DATA / "twins/mlm-then-rtd", 3)
    encodings = encoder.tokenizer.encode_batch(["A cat.", "A man plays the guitar."])
    ids = torch.tensor([encoding.ids for encoding in encodings])
    mask = torch.tensor([encoding.attention_mask for encoding in encodings])
    calls, attention = [], encoder.attention

    def counted(*arguments):
        calls.append(arguments[-1])
        return attention(*arguments)

    with torch.no_grad():
        expected = solutions.all_hidden_states(encoder, ids, mask)
        encoder.attention = counted
        states = function(encoder, ids, mask)
    if states is None:
        return "it returns nothing: is there a `return`?"
    if len(states) != 4:
        return f"{len(states)} states for 3 layers: expected 4, the embeddings and one for each layer"
    if not all(close(state, other) for state, other in zip(states, expected, strict=True)):
        return "other numbers than expected: compare with hidden_state of one_file.py, line by line"
    return None if len(calls) == 3 else f"attention was computed {len(calls)} times for 3 layers"


def check_linear_cka(function) -> str | None:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(30, 4, generator=generator) + 2, torch.randn(30, 6, generator=generator) - 1
    value = function(x, y)
    if hint := wrong_kind(value, ()):
        return hint
    a, b = x - x.mean(0), y - y.mean(0)
    if close(value, (x.T @ y).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())):
        return "the columns are not centered: subtract x.mean(0) and y.mean(0) first"
    if close(value, (a.T @ b).norm() / ((a.T @ a).norm() * (b.T @ b).norm()).sqrt()):
        return "the square of ||X'Y|| is missing"
    if not close(function(x, x @ torch.linalg.qr(torch.randn(4, 4, generator=generator))[0] * 3), 1.0, 1e-3):
        return "it must be 1 if y is x rotated and scaled"
    return None if close(value, solutions.linear_cka(x, y)) else "other numbers than expected"


def check_difference_interval(function) -> str | None:
    """The two models make the same mistakes, so the interval is narrow if both see the same pairs."""
    generator = np.random.default_rng(4)
    gold = generator.normal(size=80)
    mistakes = generator.normal(size=80)
    first, second = gold + 0.6 * mistakes, gold + 0.7 * mistakes
    interval = function(first, second, gold)
    if interval is None or len(interval) != 2:
        return "return two numbers, the lower and the upper end"
    low, high = interval
    expected = solutions.difference_interval(first, second, gold)
    width = expected[1] - expected[0]
    if low > high:
        return "the lower end comes first"
    if high < 0:
        return "the sign: it is the first model minus the second"
    if high - low > 2 * width:
        return "far too wide: draw the pairs once, and score both models on the same ones"
    if high - low < width / 2:
        return "too narrow: draw as many pairs as there are, with replacement, and take 2.5 and 97.5 percent"
    is_close = abs(low - expected[0]) < width / 4 and abs(high - expected[1]) < width / 4
    return None if is_close else "other numbers than expected"


CHECKS = {name: globals()[f"check_{name}"] for name in NAMES}


def main(argv: list[str]) -> int:
    """Check all exercises of a file; return 0 if all are right, else 1."""
    name = argv[0] if argv else "exercises.py"
    path = HERE / "solutions.py" if name == "--solutions" else Path(name) if argv else HERE / name
    if not path.is_file():
        print(f"no file {path}: name the file with your functions")
        return 2
    spec = importlib.util.spec_from_file_location("answers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = [exercise(number, getattr(module, name, missing)) for number, name in enumerate(NAMES, start=1)]
    print(f"{sum(results)} of {len(results)} right")
    return int(not all(results))


def missing(*unused):
    """Stand for a function that the file does not have."""
    raise NotImplementedError


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
