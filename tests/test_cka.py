"""Linear CKA: its known properties, the fast matrix, the debiased estimate, streaming; and the command."""

import itertools
import json
import math
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from conftest import SENTENCES, tiny_model

import cka
from tmft import InputError, SentenceEncoder
from tmft.cka import StreamingCKA, center_and_scale, cka_matrix, feature_products, gram_products, linear_cka
from tmft.evaluation import compare_layers


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Y = gaussian(60, 7), gaussian(60, 7) @ gaussian(7, 9, seed=1) + 2 * gaussian(60, 9, seed=2)


# ------------------------------------------------------------------------------------- linear_cka


def test_a_value_worked_out_by_hand():
    """X'X = 2 I, so ||X'X|| = sqrt 8; X'y = (2, 0), so ||X'y||² = 4; y'y = 2: 4 / (sqrt 8 x 2)."""
    x = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    y = torch.tensor([[1.0], [-1], [0], [0]])
    assert linear_cka(x, y) == pytest.approx(1 / math.sqrt(2), abs=1e-15)


def test_it_is_the_cosine_of_doubly_centered_distance_matrices():
    """Another way to the same number, in numpy: -1/2 H (squared distances) H is the centered Gram matrix."""

    def centered_gram(z):
        distances = ((z[:, None] - z[None]) ** 2).sum(-1)
        H = np.eye(len(z)) - 1 / len(z)
        return -0.5 * H @ distances @ H

    K, L = centered_gram(X.numpy()), centered_gram(Y.numpy())
    expected = (K * L).sum() / math.sqrt((K * K).sum() * (L * L).sum())
    assert 0.2 < expected < 0.8 and linear_cka(X, Y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", [(40, 5, 8), (9, 30, 40), (700, 6, 5)])
def test_the_matrix_and_both_ways_to_compute_it_equal_the_definition(shape):
    """Few features, few sentences, and more than two tiles of the Gram matrices."""
    N, D1, D2 = shape
    x, y = gaussian(2, N, D1, seed=1), gaussian(3, N, D2, seed=2)
    y[0, :, : min(D1, D2)] += x[1, :, : min(D1, D2)]
    expected = torch.tensor([[linear_cka(u, v) for v in y] for u in x], dtype=torch.float64)
    torch.testing.assert_close(cka_matrix(x, y), expected, rtol=1e-12, atol=0)
    for products in (feature_products, gram_products):
        xx, xy, yy = products(center_and_scale(x, torch.float64), center_and_scale(y, torch.float64))
        torch.testing.assert_close(xy / (xx[:, None] * yy).sqrt(), expected, rtol=1e-12, atol=0)


def test_equal_sets_score_1_whatever_their_scale():
    assert linear_cka(X, X) == pytest.approx(1, abs=1e-14)
    assert linear_cka(1e200 * X, 1e-200 * X) == pytest.approx(1, abs=1e-12)
    assert linear_cka(X, X, debiased=True) == pytest.approx(1, abs=1e-14)


def test_independent_gaussians_score_their_known_value_and_debiased_0():
    """E||X'Y||² = (N - 1) D1 D2 and, of a Wishart matrix, E||X'X||² = (N - 1) D1 (N + D1); X, Y centered."""
    N, D1, D2 = 100, 30, 60
    pairs = [(gaussian(N, D1, seed=s), gaussian(N, D2, seed=1000 + s)) for s in range(40)]
    expected = math.sqrt(D1 * D2 / ((N + D1) * (N + D2)))
    assert expected == pytest.approx(0.294, abs=1e-3)
    assert np.mean([linear_cka(x, y) for x, y in pairs]) == pytest.approx(expected, abs=0.003)
    debiased = [linear_cka(x, y, debiased=True) for x, y in pairs]
    assert abs(np.mean(debiased)) < 0.01 and min(debiased) < 0


def test_debiased_is_the_mean_over_distinct_sentences():
    """Song et al. 2012, equation 4: unbiased HSIC summed over tuples of distinct rows, the slow way."""

    def hsic(K, L):
        n = len(K)
        two = np.mean([K[i, j] * L[i, j] for i, j in itertools.permutations(range(n), 2)])
        four = np.mean([K[i, j] * L[q, r] for i, j, q, r in itertools.permutations(range(n), 4)])
        three = np.mean([K[i, j] * L[i, q] for i, j, q in itertools.permutations(range(n), 3)])
        return two + four - 2 * three

    x, y = X[:7].numpy(), Y[:7].numpy()
    K, L = x @ x.T, y @ y.T
    expected = hsic(K, L) / math.sqrt(hsic(K, K) * hsic(L, L))
    assert linear_cka(x, y, debiased=True) == pytest.approx(expected, rel=1e-10)


def test_debiased_is_never_nan_however_few_the_sentences():
    for seed in range(200):
        value = linear_cka(gaussian(4, 50, seed=seed), gaussian(4, 3, seed=500 + seed), debiased=True)
        assert -1 - 1e-9 <= value <= 1 + 1e-9


def test_arguments_are_left_alone_and_float32_arrays_are_taken():
    x = X.float().numpy().copy()
    assert linear_cka(x, Y) == pytest.approx(linear_cka(X, Y), rel=1e-6)
    assert (x == X.float().numpy()).all()


BAD = [
    (X, Y[:-1], "embeddings: row i of both must be the same sentence"),
    (X, torch.full((60, 3), 0.1), "all embeddings of one set are equal"),
    (X[:1], Y[:1], "1 sentences: CKA needs at least 2"),
    (X, torch.where(Y > 2, math.nan, Y), "a value is not finite"),
    (X, torch.where(Y > 2, math.inf, Y), "a value is not finite"),
]


@pytest.mark.parametrize(("x", "y", "message"), BAD, ids=[message for *_, message in BAD])
def test_undefined_cka_is_an_error(x, y, message):
    for compare in (
        linear_cka,
        lambda x, y: linear_cka(y, x),
        lambda x, y: cka_matrix(x[None], y[None]),
        lambda x, y: feed(x, y).value(),
    ):
        with pytest.raises(ValueError, match=message):
            compare(x, y)


def test_float32_products_are_exact_enough_far_from_the_origin():
    """A dimension with a large mean and a large one, as hidden states have them."""
    x = torch.cat([X, 500 + 0.3 * X[:, :1], -80 + 9 * X[:, 1:2]], 1).float()
    exact = linear_cka(x, Y)
    assert cka_matrix(x[None], Y[None].float()).item() == pytest.approx(exact, rel=1e-6)
    centered = center_and_scale(x[None], torch.float32), center_and_scale(Y[None], torch.float32)
    for products in (feature_products, gram_products):
        xx, xy, yy = products(*centered)
        assert (xy / (xx * yy).sqrt()).item() == pytest.approx(exact, rel=1e-6)


def test_debiased_cka_needs_more():
    with pytest.raises(ValueError, match="3 sentences: debiased CKA needs at least 4"):
        linear_cka(X[:3], Y[:3], debiased=True)
    with pytest.raises(ValueError, match="equally far apart"):
        linear_cka(X[:5], torch.linalg.qr(gaussian(5, 5, seed=3)).Q, debiased=True)
    with pytest.raises(ValueError, match=r"shapes \(60,\) and \(60, 9\)"):
        linear_cka(X[:, 0], Y)


# ------------------------------------------------------------------------------ layers, and streams


def test_the_debiased_matrix_has_the_value_of_each_pair():
    x, y = gaussian(3, 80, 5).float(), gaussian(2, 80, 6).cumsum(0).float()
    y[:, :, :5] += x[1]
    expected = torch.tensor([[linear_cka(u, v, debiased=True) for v in y] for u in x]).double()
    torch.testing.assert_close(cka_matrix(x, y, debiased=True), expected, rtol=1e-6, atol=1e-7)


def test_products_in_reduced_precision_are_not_used(monkeypatch):
    """If a setting allows bfloat16 or TF32 products, which have three digits less, float64 is used."""
    x, y = X[None].float(), Y[None].float()
    exact = cka_matrix(x.double(), y.double())
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    in_float32 = cka_matrix(x, y)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    assert torch.equal(cka_matrix(x, y), exact) and not torch.equal(in_float32, exact)


def feed(x, y, sizes=7) -> StreamingCKA:
    """A stream of all sentences, `sizes` at a time."""
    stream = StreamingCKA()
    for start in range(0, max(x.shape[-2], y.shape[-2]), sizes):
        stream.update(x[..., start : start + sizes, :], y[..., start : start + sizes, :])
    return stream


@pytest.mark.parametrize("sizes", [7, 1])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_the_stream_equals_all_sentences_at_once(sizes, offset):
    """Also far from the origin, where squares would cancel, and with a last batch of another size."""
    x = X + offset
    assert feed(x, Y, sizes).value() == pytest.approx(linear_cka(x, Y), rel=1e-9)


# -------------------------------------------------------------------------------------- the command

PAIRS = [(a, b, 5 - number % 6) for number, (a, b) in enumerate(itertools.permutations(SENTENCES, 2))]
TEXTS = [a for a, _, _ in PAIRS] + [b for _, b, _ in PAIRS]


@pytest.fixture
def checkpoints(tmp_path) -> list[str]:
    """An ELECTRA of 4 layers, the same cut to 2, and a narrower one of 3 layers."""
    tiny_model().save_pretrained(tmp_path / "a")
    SentenceEncoder.from_pretrained(tmp_path / "a", layer=2).save_pretrained(tmp_path / "cut")
    tiny_model(hidden_size=16, num_hidden_layers=3).save_pretrained(tmp_path / "b")
    return [str(tmp_path / name) for name in ("a", "cut", "b")]


@pytest.fixture
def root(tmp_path):
    """A folder of task folders, with a test split of STSB."""
    (tmp_path / "data/stsb").mkdir(parents=True)
    lines = ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{score}" for a, b, score in PAIRS)]
    (tmp_path / "data/stsb/test.tsv").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "data")


def run(tmp_path, *arguments) -> dict:
    cka.main([*arguments, "--json", str(tmp_path / "cka.json")])
    return json.loads((tmp_path / "cka.json").read_text())


def test_the_command_compares_matching_hidden_states(checkpoints, root, tmp_path, capsys):
    a, _, b = checkpoints
    result = run(tmp_path, a, a, "--also", a, b, "--data-root", root)
    assert result["sentences"] == 2 * len(PAIRS)
    same, other = result["pairs"]
    assert same["by_layer"] == pytest.approx([1.0] * 5) and other["layers_of_b"] == [0, 1, 2, 2, 3]
    models = [SentenceEncoder.from_pretrained(where, layer=2) for where in (a, b)]
    expected = linear_cka(*(model.encode(TEXTS) for model in models))
    assert other["by_layer"][2] == pytest.approx(expected, rel=1e-5)
    printed = capsys.readouterr().out
    assert f"    2     2  {expected:.4f}  █" in printed
    assert printed.count("A = ") == 2 and "choose a layer by its dev score: python train.py" in printed


@pytest.mark.parametrize("options", [[], ["--all-pairs"]])
def test_sentences_read_in_parts_give_the_same_result(options, checkpoints, root, tmp_path, monkeypatch):
    a, _, b = checkpoints
    arguments = [a, b, "--data-root", root, *options]
    at_once = run(tmp_path, *arguments)
    monkeypatch.setattr(compare_layers, "MAX_IN_MEMORY", 7)
    in_parts = run(tmp_path, *arguments)
    for one, other in zip(at_once["pairs"], in_parts["pairs"], strict=True):
        assert other["by_layer"] == pytest.approx(one["by_layer"], abs=1e-5)
        assert np.allclose(other.get("matrix", 0), one.get("matrix", 0), atol=1e-5)


def test_all_pairs_debiased_have_the_values_of_the_library(checkpoints, root, tmp_path, capsys):
    a, _, b = checkpoints
    pair = run(tmp_path, a, b, "--debiased", "--all-pairs", "--data-root", root)["pairs"][0]
    x, y = (
        model.embed_token_ids(model.tokenize(TEXTS), model.forward_all_layers)
        for model in map(SentenceEncoder.from_pretrained, (a, b))
    )
    assert pair["debiased"] and np.allclose(pair["matrix"], cka_matrix(x, y, debiased=True), atol=1e-12)
    assert pair["by_layer"] == [pair["matrix"][n][m] for n, m in enumerate(pair["layers_of_b"])]
    printed = r"\ndebiased linear CKA of A = a and B = b.*A \\ B +0 +1 +2 +3\n +0  \d.\d+"
    assert re.search(printed, capsys.readouterr().out, re.DOTALL)


def test_debiased_takes_only_as_many_sentences_as_fit_in_memory(checkpoints, tmp_path):
    path = tmp_path / "many.txt"
    plain = cka.parse_args([*checkpoints[:2], "--data", str(path)])
    debiased = cka.parse_args([*checkpoints[:2], "--data", str(path), "--debiased"])
    path.write_text("the cat eats\n" * 20_000)
    assert len(cka.find_sentences(debiased)[0]) == 20_000
    path.write_text("the cat eats\n" * 20_001)
    assert len(cka.find_sentences(plain)[0]) == 20_001
    with pytest.raises(InputError, match="--debiased takes at most 20000 sentences, here are 20001"):
        cka.find_sentences(debiased)


@pytest.fixture
def sweeps(tmp_path) -> tuple[str, str]:
    """Runs that kept 0, 2 and 3 layers of one model, and 0, 1 and 2 of another: other weights in each."""
    for name, size, layers in (("one", 24, (0, 2, 3)), ("two", 16, (0, 1, 2))):
        for layer in layers:
            model = tiny_model(num_hidden_layers=layer, hidden_size=size)
            words = model.encoder.embeddings.word.weight.data
            words += 0.1 * layer * words.roll(1)
            model.save_pretrained(tmp_path / f"runs/{name}-layer{layer}-seed0")
    return tuple(str(tmp_path / f"runs/{name}-layer{{layer}}-seed0") for name in ("one", "two"))


def test_runs_of_a_sweep_are_compared_by_their_last_layers_beside_the_models_before(
    checkpoints, sweeps, root, tmp_path, monkeypatch, capsys
):
    a, _, b = checkpoints
    drawn = []
    monkeypatch.setattr(cka.plots, "draw_cka_by_layer", lambda pairs, path: drawn.append(pairs))
    line = [a, b, "--also", *sweeps, "--data-root", root, "--plot", str(tmp_path / "cka.svg")]
    before, after = run(tmp_path, *line)["pairs"]
    assert before["layers_of_a"] == [0, 1, 2, 3, 4] and before["layers_of_b"] == [0, 1, 2, 2, 3]
    assert after["layers_of_a"] == after["layers_of_b"] == [0, 2] and drawn == [[before, after]]
    for layer, value in zip([0, 2], after["by_layer"], strict=True):
        models = [SentenceEncoder.from_pretrained(name.format(layer=layer)) for name in sweeps]
        assert value == pytest.approx(linear_cka(*(model.encode(TEXTS) for model in models)), rel=1e-5)
    printed = r"A = one-layer\{layer\}-seed0 and B = two.*\n.*\n +0 +0  0.*\n +2 +2  0"
    assert re.search(printed, capsys.readouterr().out)


def test_what_cannot_be_compared_is_one_line(checkpoints, sweeps, root, tmp_path):
    one, two = sweeps
    none, wrong = (two.replace("two", name) for name in ("none", "wrong"))
    shutil.copytree(one.format(layer=3), wrong.format(layer=2))
    files = {"empty": "", "one": "one sentence\n", "equal": "the cat\nthe cat\nthe cat\n"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    at_root = ["--data-root", root]
    empty, single, equal = ([*checkpoints[:2], "--data", str(tmp_path / name)] for name in files)
    for words, message in [
        ([one, checkpoints[0], *at_root], r"only one name of a pair has \{layer\}, not .*a: runs are"),
        ([one, none, *at_root], "no number of layers has a run folder .* and a run folder .*none"),
        ([one, two, "--all-pairs", *at_root], "--all-pairs compares every layer of two models: name models"),
        ([one, wrong, *at_root], "wrong-layer2-seed0 has 3 layers, not 2: rename it"),
        (empty, "no sentences "),
        (single, "1 sentences "),
        (equal, "CKA of .* is undefined .*all embeddings of one set are equal"),
    ]:
        with pytest.raises(InputError, match=message) as error:
            cka.main(words)
        assert "\n" not in str(error.value)


def test_a_checkpoint_without_layers_has_one_hidden_state(tmp_path, root, capsys):
    tiny_model(num_hidden_layers=0).save_pretrained(tmp_path / "none")
    pair = run(tmp_path, str(tmp_path / "none"), str(tmp_path / "none"), "--data-root", root)["pairs"][0]
    assert pair["by_layer"] == pytest.approx([1.0])
    assert "choose a layer by its dev score: python train.py --ckpt" in capsys.readouterr().out


def test_fewer_sentences_than_dimensions_give_a_warning(checkpoints, tmp_path, capsys):
    (tmp_path / "few.txt").write_text("\n".join(SENTENCES))
    cka.main([*checkpoints[:2], "--data", str(tmp_path / "few.txt")])
    assert "fewer sentences than dimensions (24): CKA is biased upwards" in capsys.readouterr().out


def test_without_matplotlib_the_values_are_written(checkpoints, root, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    figure = tmp_path / "cka.png"
    with pytest.raises(InputError, match="need matplotlib, which is not installed: pip install matplotlib"):
        run(tmp_path, checkpoints[0], checkpoints[2], "--data-root", root, "--plot", str(figure))
    assert "linear CKA of A = a and B = b" in capsys.readouterr().out
    assert (tmp_path / "cka.json").is_file() and not figure.exists()


def test_the_curves_or_the_matrix_are_drawn(checkpoints, root, tmp_path, monkeypatch):
    """The figure shows the values that --json has: as lines, or as a heat map."""
    figure = pytest.importorskip("matplotlib.figure")
    drawn = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda figure, path, **_: drawn.append(figure.axes[0]))
    line = [checkpoints[0], checkpoints[2], "--data-root", root, "--plot", str(tmp_path / "cka.png")]
    curve, matrix = (run(tmp_path, *line, *options)["pairs"][0] for options in ([], ["--all-pairs"]))
    assert drawn[0].get_lines()[0].get_ydata().tolist() == curve["by_layer"]
    assert np.array_equal(drawn[1].get_images()[0].get_array(), matrix["matrix"])
