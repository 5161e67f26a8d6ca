"""The paired bootstrap against scipy's, on data where the answer is known."""

import zipfile

import numpy as np
import pytest
from conftest import ROOT
from scipy import stats

import train
from tmft.cli import report_command as report
from tmft.errors import InputError
from tmft.evaluation.bootstrap import resample_run, resample_scores
from tmft.metrics import spearman, threshold_metrics
from tmft.reports.comparisons import LayerComparison, compare_layers_with_whole, compare_sweeps
from tmft.runs.run_result import PREDICTIONS_FILE, read_predictions, read_sweep_predictions
from tmft.runs.sweeps import Sweep, group_into_sweeps, read_results

N = 300


def sweep(folder, name: str, noises: list[float], dev: float, gold: np.ndarray, seed: int = 0) -> Sweep:
    """A sweep whose seeds predict the gold labels with this much noise."""
    made = Sweep(name, "x", "pairs", "spearman", [], 4)
    for number, noise in enumerate(noises):
        generator = np.random.default_rng([seed, number])
        predicted = gold + noise * generator.normal(size=len(gold))
        where = folder / f"{name}-{number}"
        where.mkdir()
        np.savez(where / PREDICTIONS_FILE, predicted=predicted, labels=gold)
        score = spearman(predicted, gold)
        result = {"folder": where, "dev": {"spearman": dev}, "test": {"spearman": score, "pairs": len(gold)}}
        result["settings"] = {"layer": 2, "seed": number}
        made.layers.setdefault(2, []).append(result)
    return made


@pytest.fixture
def gold() -> np.ndarray:
    return np.random.default_rng(9).normal(size=N)


def test_the_interval_of_one_seed_is_that_of_scipy(tmp_path, gold):
    one, other = sweep(tmp_path, "a", [0.5], 0.9, gold), sweep(tmp_path, "b", [0.8], 0.8, gold, 1)
    [comparison] = compare_sweeps([other, one])
    assert (comparison.first, comparison.second) == ("a at layer 2 of 4", "b at layer 2 of 4")
    mean, low, high = comparison.difference, comparison.low, comparison.high
    (p, labels, _), (q, _, _) = read_sweep_predictions(one, 2)[0], read_sweep_predictions(other, 2)[0]
    assert mean == pytest.approx(spearman(p, labels) - spearman(q, labels))
    theirs = stats.bootstrap(
        (p, q, labels),
        lambda p, q, gold: spearman(p, gold) - spearman(q, gold),
        paired=True, vectorized=False, n_resamples=1000, method="percentile",
        random_state=np.random.default_rng(5),  # rng in scipy 1.15 and later, which take both
    ).confidence_interval  # fmt: skip
    assert low == pytest.approx(theirs.low, abs=0.01) and high == pytest.approx(theirs.high, abs=0.01)
    assert low > 0 and comparison.is_significant


def test_a_difference_by_chance_is_not_significant(tmp_path, gold):
    one, other = sweep(tmp_path, "a", [0.5] * 3, 0.9, gold), sweep(tmp_path, "b", [0.5] * 3, 0.8, gold, 1)
    [comparison] = compare_sweeps([one, other])
    assert comparison.low < 0 < comparison.high and not comparison.is_significant
    assert LayerComparison("a", "b", -0.15, -0.2, -0.1).is_significant


def test_each_layer_is_compared_with_the_whole_model_if_that_was_run(tmp_path, gold):
    made = sweep(tmp_path, "a", [0.5] * 2, 0.9, gold)
    assert compare_layers_with_whole(made) == []  # only layer 2 of 4
    made.layers[4] = sweep(tmp_path, "b", [1.5] * 2, 0.8, gold, 1).layers[2]
    [comparison] = compare_layers_with_whole(made)
    assert (comparison.first, comparison.second) == ("Layer 2", "the whole model")
    assert comparison.is_significant and comparison.low > 0


def test_seeds_that_disagree_widen_the_interval(tmp_path, gold):
    alike, apart = (
        sweep(tmp_path, "a", [0.5] * 3, 0.9, gold),
        sweep(tmp_path, "b", [0.2, 0.5, 1.5], 0.8, gold),
    )
    spread = [np.std(resample_scores(one.metric, read_sweep_predictions(one, 2))) for one in (alike, apart)]
    assert spread[1] > 2 * spread[0]


@pytest.mark.parametrize("size", [3, 40])
def test_the_correlations_of_all_resamples_at_once_are_those_of_each(size):
    """Five different values among 40, so that there are ties, and constant resamples among those of 3."""
    generator = np.random.default_rng(2)
    predicted, labels = (generator.integers(5, size=size).astype(float) for _ in range(2))
    examples = generator.integers(size, size=(200, size))
    together = resample_run("spearman", predicted, labels, None, examples)
    alone = [spearman(predicted[row], labels[row]) for row in examples]
    assert together == pytest.approx(alone, abs=1e-12, nan_ok=True)
    assert np.isnan(together).any() == (size == 3)


def test_sweeps_with_other_test_examples_or_no_predictions_are_not_compared(tmp_path, gold):
    one, other = sweep(tmp_path, "a", [0.5], 0.9, gold), sweep(tmp_path, "b", [0.5], 0.8, gold[:200])
    assert compare_sweeps([one, other]) == [] == compare_sweeps([one])
    (tmp_path / "a-0" / PREDICTIONS_FILE).unlink()
    assert read_sweep_predictions(one, 2) == [] and read_predictions(tmp_path / "a-0") is None
    (tmp_path / "a-0" / PREDICTIONS_FILE).write_bytes(b"nothing")
    with pytest.raises(InputError, match=f"{PREDICTIONS_FILE} cannot be read .*: remove it"):
        read_predictions(tmp_path / "a-0")


def array(shape: str, descr: str = "<f8", data: bytes = bytes(80)) -> bytes:
    """A .npy file with this header."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    ("predicted", "words"),
    [
        (array("(10,)", "O"), "allow_pickle=False"),  # what could run code is not read
        (b"no array", "cannot be read"),
        (array("(2, 5)"), "two arrays of numbers"),
    ],
)
def test_a_damaged_predictions_file_is_one_clear_line(predicted, words, tmp_path):
    with zipfile.ZipFile(tmp_path / PREDICTIONS_FILE, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("predicted.npy", predicted)
        file.writestr("labels.npy", array("(10,)"))
    with pytest.raises(InputError, match=words) as error:
        read_predictions(tmp_path)
    assert str(error.value).startswith(str(tmp_path / PREDICTIONS_FILE)) and str(error.value).endswith(
        "remove it"
    )


def test_labels_are_finite_and_the_same_for_all_seeds(tmp_path, gold):
    one, other = sweep(tmp_path, "a", [0.5] * 2, 0.9, gold), sweep(tmp_path, "b", [0.5], 0.8, gold)
    assert compare_sweeps([one, other])
    np.savez(tmp_path / "a-1" / PREDICTIONS_FILE, predicted=gold[:9], labels=gold[:9])
    assert read_sweep_predictions(one, 2) == [] == compare_sweeps([one, other])
    np.savez(tmp_path / "a-1" / PREDICTIONS_FILE, predicted=gold, labels=np.full(N, np.nan))
    with pytest.raises(InputError, match="two arrays of numbers"):
        compare_sweeps([one, other])


@pytest.mark.parametrize("metric", ["overall", "teacher_cosine"])
def test_metrics_without_one_number_per_example_are_not_compared(metric, tmp_path, gold):
    one, other = sweep(tmp_path, "a", [0.5], 0.9, gold), sweep(tmp_path, "b", [0.5], 0.8, gold)
    for made in (one, other):
        made.metric = metric
        made.layers[2][0]["dev"] = made.layers[2][0]["test"] = {metric: 0.5}
    assert compare_sweeps([one, other]) == []


def test_sweeps_of_a_classification_task_are_compared_by_its_metric_also_in_a_report(tmp_path, capsys):
    task = ["--ckpt", str(ROOT / "data/twins/mlm"), "--layer", "0"]
    task += ["--task", "mrpc", "--data", str(tmp_path / "d")]
    (tmp_path / "d").mkdir()
    rows = "".join(
        f"a man plays {n}\tthe man {'plays' if n % 2 else 'eats'} {n}\t{n % 2}\n" for n in range(12)
    )
    for split in ("train", "dev", "test"):
        (tmp_path / "d" / f"{split}.tsv").write_text("sentence1\tsentence2\tlabel\n" + rows)
    for name in ("one", "two"):
        train.main([*task, "--epochs", "1", "--output-dir", str(tmp_path / "runs"), "--run-name", name])
    sweeps = group_into_sweeps(read_results(tmp_path / "runs"))
    [comparison] = compare_sweeps(sweeps)
    assert comparison.difference == comparison.low == comparison.high == 0.0
    assert not comparison.is_significant
    predicted, labels = read_predictions(tmp_path / "runs/one-layer0-seed0")
    threshold = sweeps[0].layers[0][0]["dev"]["threshold"]
    assert threshold_metrics(predicted, labels, threshold)["f1"] == sweeps[0].scores(0, "test")[0]
    capsys.readouterr()
    report.main([str(tmp_path / "runs")])
    assert "are the differences on test significant?" in capsys.readouterr().out
