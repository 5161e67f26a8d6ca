"""python -m tmft report: tables of finished runs, from result.json files only."""

import csv
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmft import InputError
from tmft.cli import report_command as report
from tmft.reports.comparisons import compare_sweeps
from tmft.reports.plots import score_curve
from tmft.reports.run_tables import (
    best_layers_table,
    comparison_table,
    score_by_layer_table,
    tidy_scores,
)
from tmft.runs.run_result import PREDICTIONS_FILE, write_result
from tmft.runs.sweeps import group_into_sweeps, load_published_scores, read_results

ELECTRA = "google/electra-base-discriminator"


def result_of(layer, seed, dev, test, sweep="electra-stsb", provenance=(), **settings) -> dict:
    """The content of result.json that reports read."""
    task = {"metric": "spearman"}
    return {
        "sweep": sweep,
        "data": "stsb",
        "provenance": list(provenance),
        "num_hidden_layers": 3,
        "settings": {"ckpt": ELECTRA, "layer": layer, "seed": seed, "task": task}
        | {"train_fraction": 1.0, "lr": 2e-5}
        | settings,
        "parameters": {"paper": 1_000_000 * (1 + layer), "stored": 2_000_000},
        "dev": {"spearman": dev, "pearson": dev},
        "test": {"pairs": 9, "spearman": test, "pearson": test},
    }


def write_run(runs, layer, seed, dev, test, sweep="electra-stsb", more=None, **changes) -> Path:
    """Write a finished run as train.py does, and return its result.json. more: other keys of it."""
    folder = runs / f"{sweep}-layer{layer}-seed{seed}"
    folder.mkdir(parents=True)
    write_result(folder, result_of(layer, seed, dev, test, sweep, **changes) | (more or {}))
    return folder / "result.json"


@pytest.fixture(autouse=True, scope="module")
def no_figures():
    """Figures are tested in test_plots.py and test_page.py, and take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        yield


@pytest.fixture
def runs(tmp_path):
    """Layers 0, 1 and 3 of 3, not 2; layer 1 with one seed of two; layer 3 collapsed once."""
    for layer, seed, dev, test in [
        (0, 0, 0.50, 0.60),
        (0, 1, 0.52, 0.62),
        (1, 0, 0.80, 0.70),
        (3, 0, 0.90, 0.75),
        (3, 1, math.nan, math.nan),
    ]:
        write_run(tmp_path, layer, seed, dev, test)
    return tmp_path


score = st.one_of(st.none(), st.floats(0, 1), st.just(math.nan))


@given(
    st.dictionaries(
        st.integers(0, 3), st.dictionaries(st.integers(0, 4), st.tuples(score, score), min_size=1), min_size=1
    )
)
def test_every_table_has_the_scores_of_the_runs(runs):
    """Held against numpy: {layer: {seed: scores on dev and test}}; an undefined score is never a 0."""
    results = [result_of(layer, seed, *pair) for layer, seeds in runs.items() for seed, pair in seeds.items()]
    (sweep,) = group_into_sweeps([(Path(f"runs/{i}/result.json"), r) for i, r in enumerate(results)])
    arrays = {
        layer: np.array([[math.nan if x is None else x for x in pair] for pair in seeds.values()])
        for layer, seeds in runs.items()
    }  # (S, 2) each

    def cell(values):
        std = f" ± {100 * values.std(ddof=1):.2f}" if len(values) > 1 else ""
        return "nan" if np.isnan(values).any() else f"{100 * values.mean():.2f}{std}"

    _, *lines = score_by_layer_table(sweep)
    cells = [[str(layer), *map(cell, arrays[layer].T)] for layer in sorted(runs)]
    assert [[line[0], *line[2:4]] for line in lines] == cells
    means = {layer: array[:, 0].mean() for layer, array in arrays.items() if not np.isnan(array[:, 0]).any()}
    _, best, *last = best_layers_table([sweep])
    assert [line[1:3] for line in last] == [["3", "3"]] * (3 in runs and sweep.best_layer != 3)
    if means:
        assert means[sweep.best_layer] == pytest.approx(max(means.values()), abs=1e-12)
    assert best[1:3] == [str(sweep.best_layer), "3"] and best[4] == cell(arrays[sweep.best_layer][:, 0])
    scores = {(one["layer"], one["seed"], one["split"], one["score"]) for one in tidy_scores([sweep])}
    assert scores == {
        (layer, seed, split, None if x is None or math.isnan(x) else x)
        for layer, seeds in runs.items()
        for seed, pair in seeds.items()
        for split, x in zip(("dev", "test"), pair, strict=True)
    }
    finite = {
        layer: 100 * test for layer, array in sorted(arrays.items()) if np.isfinite(test := array[:, 1]).all()
    }
    assert list(curve := score_curve(sweep)) == list(finite)
    expected = [(values.mean(), values.std(ddof=1) if len(values) > 1 else 0.0) for values in finite.values()]
    assert np.array([*curve.values()]) == pytest.approx(np.array(expected), abs=1e-9)


def test_the_table_by_layer_has_mean_std_and_the_difference_to_published_scores(runs):
    (sweep,) = group_into_sweeps(read_results(runs))
    heading, *lines = score_by_layer_table(sweep)
    assert (
        ", ".join(heading) == "layer, seeds, dev Spearman, test Spearman, published (arXiv), "
        "difference (arXiv), published (EMNLP), difference (EMNLP), million parameters, examples per second"
    )
    assert lines[0] == ["0", "2", "51.00 ± 1.41", "61.00 ± 1.41", "60.59", "+0.41", "–", "–", "1.00", "–"]
    assert lines[1] == ["1", "1", "80.00", "70.00", "72.14", "-2.14", "–", "–", "2.00", "–"]
    assert lines[2] == ["3", "2", "nan", "nan", "75.29", "nan", "75.29", "nan", "4.00", "–"]


def test_the_best_layer_and_the_last_one_have_both_metrics_on_both_splits_as_in_the_paper(tmp_path):
    for layer, dev, test in [(2, 0.8, 0.7), (3, 0.75, 0.72)]:
        scores = {"dev": {"spearman": dev, "pearson": dev + 0.01}}
        scores["test"] = {"pairs": 9, "spearman": test, "pearson": test + 0.02}
        write_run(tmp_path, layer, 0, dev, test, more=scores)
    heading, *lines = best_layers_table(group_into_sweeps(read_results(tmp_path)))
    scores = "dev Spearman, dev Pearson, test Spearman, test Pearson"
    assert ", ".join(heading) == f"run, layer, of, million parameters, {scores}, seeds"
    assert lines == [
        ["electra-stsb", "2", "3", "3.00", "80.00", "81.00", "70.00", "72.00", "1"],
        ["electra-stsb", "3", "3", "4.00", "75.00", "76.00", "72.00", "74.00", "1"],
    ]


def test_a_chain_is_compared_with_the_published_scores_of_that_chain(tmp_path):
    earlier = {"data": "wordsim", "settings": {"ckpt": f"{ELECTRA}@main", "seed": 0}}
    write_run(tmp_path, 1, 0, 0.8, 0.7, provenance=[earlier], ckpt="/some/folder")
    (sweep,) = group_into_sweeps(read_results(tmp_path))
    published = ["72.65", "-2.65", "–", "–"]
    assert score_by_layer_table(sweep)[1] == ["1", "1", "80.00", "70.00", *published, "2.00", "–"]


def test_models_are_told_apart_in_the_csv_also_if_their_pre_training_began_with_one(tmp_path):
    scratch = {"data": "mlm", "settings": {"ckpt": None, "from_scratch": "shapes/small", "seed": 0}}
    chains = {
        "runs/mlm": [scratch],
        "runs/rtd": [scratch, scratch | {"data": "rtd"}],
        "runs/other": [scratch],
    }
    for name, chain in chains.items():
        write_run(tmp_path, 1, 0, 0.5, 0.6, sweep=name[5:], provenance=chain, ckpt=name, init="pretrained")
    write_run(tmp_path, 1, 0, 0.5, 0.6, sweep="random", ckpt="runs/mlm", init="random")
    sweeps = group_into_sweeps(read_results(tmp_path))
    assert {sweep.checkpoint for sweep in sweeps} == {"shapes/small", "runs/mlm"}
    columns = ("run", "checkpoint", "init", "pretrained_on")
    assert sorted({tuple(row[column] for column in columns) for row in tidy_scores(sweeps)}) == [
        ("mlm", "runs/mlm", "pretrained", "mlm"),
        ("other", "runs/other", "pretrained", "mlm"),
        ("random", "runs/mlm", "random", ""),
        ("rtd", "runs/rtd", "pretrained", "mlm+rtd"),
    ]


def test_runs_that_several_tasks_trained_have_a_row_per_task_and_metric(runs):
    [sweep] = group_into_sweeps(read_results(runs))
    tasks = {"stsb": {"spearman": 0.4}, "sst5": {"accuracy": 0.6}}
    sweep.layers[0][0]["test"] = {"overall": 0.5, "pairs": 3, "tasks": tasks}
    found = {row["metric"]: row["score"] for row in tidy_scores([sweep])[2:5]}
    assert found == {"overall": 0.5, "stsb spearman": 0.4, "sst5 accuracy": 0.6}


def test_the_speed_of_runs_is_the_median_over_their_epochs(tmp_path):
    speeds = {0: [100.0, 500.0, 120.0], 1: [math.nan, 0], 2: []}
    for layer, values in speeds.items():
        epochs = [{"pairs_per_second": value} for value in values]
        write_run(tmp_path, layer, 0, 0.5, 0.5, more={"epochs": epochs})
    (sweep,) = group_into_sweeps(read_results(tmp_path))
    assert [line[-1] for line in score_by_layer_table(sweep)[1:]] == ["120", "–", "–"]


def test_runs_with_different_settings_are_shown_apart_and_not_averaged(runs):
    write_run(runs, 2, 0, 0.5, 0.5, lr=1e-3)
    write_run(runs, 2, 1, 0.7, 0.5, lr=1e-3)
    first, second = group_into_sweeps(read_results(runs))
    assert (list(first.layers), list(second.layers)) == ([0, 1, 3], [2])
    assert second.mean(2, "dev") == pytest.approx(0.6)
    remarks = {line[0]: line[-1] for line in best_layers_table([first, second])[1:]}
    assert remarks == {"electra-stsb": "lr 2e-05", "electra-stsb (2)": "lr 0.001"}


def test_a_run_with_the_layer_and_seed_of_another_one_is_not_one_more_seed(runs, capsys):
    """A copy of the folder, and a run that was repeated, such as with another version of the code."""
    shutil.copytree(runs / "electra-stsb-layer0-seed1", runs / "electra-stsb-layer0-seed1-copy")
    result = json.loads((runs / "electra-stsb-layer1-seed0/result.json").read_text())
    (runs / "later").mkdir()
    (runs / "later/result.json").write_text(json.dumps(result | {"seconds": 77.0}))
    (sweep,) = group_into_sweeps(read_results(runs))
    assert [len(layer) for layer in sweep.layers.values()] == [2, 1, 2]
    assert sweep.layers[1][0]["folder"].name == "electra-stsb-layer1-seed0"
    copies = ["electra-stsb-layer0-seed1-copy", "later"]
    assert [folder.name for folder in sweep.copies] == copies
    report.main([str(runs)])
    printed, page = capsys.readouterr().out, (runs / "report/report.md").read_text()
    for name in copies:
        note = f"{name} has the layer and the seed of another run of electra-stsb: it is not counted as one"
        assert note in printed and note in page


def test_runs_with_other_settings_are_marked_and_so_is_the_winner(runs, capsys):
    short = {"task": {"metric": "spearman", "objective": "cosine_bce"}, "lr": 1e-3, "epochs": 1}
    write_run(runs, 1, 0, 0.9, 0.9, sweep="short", **short, train_fraction=0.1)
    sweeps = group_into_sweeps(read_results(runs))
    heading, *lines = best_layers_table(sweeps)
    assert heading[-1] == "settings that differ"
    assert {line[0]: line[-1] for line in lines} == {
        "electra-stsb": "train_fraction 1.0, lr 2e-05",
        "short": "train_fraction 0.1, lr 0.001",
    }
    for folder in runs.glob("*/"):
        if folder.name != "short-layer1-seed0":
            np.savez(folder / PREDICTIONS_FILE, predicted=np.arange(9.0), labels=np.arange(9.0))
    np.savez(
        runs / f"short-layer1-seed0/{PREDICTIONS_FILE}", predicted=-np.arange(9.0), labels=np.arange(9.0)
    )
    [comparison] = compare_sweeps(sweeps)
    line = ["short at layer 1 of 3", "electra-stsb at layer 1 of 3", "+20.00", "-200.00", "-200.00", "yes"]
    assert comparison_table([comparison])[1] == line
    report.main([str(runs)])
    printed = capsys.readouterr().out
    assert "stsb: the runs were not made with the same settings (last column)" in printed
    assert "train_fraction 0.1, lr 0.001" in printed


def test_runs_that_differ_in_the_checkpoint_are_not_marked(runs, capsys):
    write_run(runs, 1, 0, 0.9, 0.9, sweep="other", ckpt="bert", init="random")
    heading, *_ = best_layers_table(group_into_sweeps(read_results(runs)))
    assert heading[-1] == "seeds"
    report.main([str(runs)])
    assert "same settings" not in capsys.readouterr().out


def test_a_run_with_a_metric_of_its_user_has_tables_of_its_own(runs, capsys):
    write_run(runs, 1, 0, 0.9, 0.9, sweep="mine", task={"metric": "kendall"})
    path = runs / "mine-layer1-seed0/result.json"
    path.write_text(path.read_text().replace('"pearson"', '"kendall"'))
    report.main([str(runs)])
    printed = capsys.readouterr().out
    assert "stsb, spearman: each run at" in printed and "stsb, kendall: each run" in printed
    assert "test Kendall" in printed


def test_a_folder_without_finished_runs_is_an_error(tmp_path):
    (tmp_path / "mlm").mkdir()
    (tmp_path / "mlm/result.json").write_text(
        '{"format": 1, "settings": {"task": "mlm"}}'
    )  # not a fine-tuning run
    with pytest.raises(InputError, match="no finished run below .*: name a folder with run folders"):
        report.main([str(tmp_path)])


def write_pretraining(runs, task: str) -> None:
    """A finished pre-training run as train.py writes it, with the keys that reports read."""

    def figures(step: int) -> dict:
        masked = {"mlm_loss": 9 - 0.04 * step, "mlm_accuracy": 0.002 * step}
        return masked | (
            {"rtd_loss": 0.5, "rtd_accuracy": 0.9, "rtd_baseline": 0.88} if task == "rtd" else {}
        )

    result = {
        "sweep": f"small-{task}",
        "settings": {"task": task, "seed": 0},
        "curve": [{"step": n, "tokens": 10_000 * n, "held_out": figures(n)} for n in (0, 50, 100)],
        "held_out": {"before": figures(0), "after": figures(100)},
        "tokens_seen": 1_000_000,
        "seconds": 500.0,
        "parameters": {"paper": 2_000_000, "stored": 2_500_000},
    }
    (runs / task).mkdir(parents=True)
    write_result(runs / task, result)


def test_pre_training_runs_have_a_table_of_their_own(tmp_path):
    write_pretraining(tmp_path, "mlm")
    report.main([str(tmp_path)])  # nothing else is there
    write_pretraining(tmp_path, "rtd")
    report.main([str(tmp_path)])
    page = (tmp_path / "report/report.md").read_text()
    begin = "2.50 | 1.0 | 9.000 | 5.000 | 20.00"
    assert f"| small-mlm, seed 0 | {begin} | – | – | 2000 | 0.14 |" in page
    assert f"| small-rtd, seed 0 | {begin} | 90.00 | 88.00 | 2000 | 0.14 |" in page
    assert "\n## Pre-training\n" in page


def test_the_published_scores_are_those_of_both_versions_of_the_paper():
    scores = load_published_scores()
    versions = [version for published in scores.values() for version in published]
    assert (versions.count("arXiv"), versions.count("EMNLP")) == (27, 29)
    assert all(len(layers) in (3, 5, 9, 13, 25) for both in scores.values() for layers in both.values())
    assert scores["electra-base-discriminator", "stsb", ""]["arXiv"][9] == 78.21
    large = scores["electra-large-discriminator", "stsb", ""]["EMNLP"]
    assert (large[15], large[24]) == (82.77, 25.84) and math.isnan(large[17])


@pytest.mark.parametrize("group", ["data", "checkpoint"])
def test_runs_that_read_different_files_are_neither_averaged_nor_one_curve(group, tmp_path, capsys):
    """The file was replaced between two seeds, and between two layers."""
    for number, (layer, seed) in enumerate([(0, 0), (0, 1), (1, 0), (3, 0)]):
        digests = {"data": {"train": "same"}, group: {"file": "before" if number < 1 else "after"}}
        write_run(tmp_path, layer, seed, 0.5, 0.5 + 0.1 * number, more={"digests": digests})
    first, second = group_into_sweeps(read_results(tmp_path))
    assert (first.name, second.name) == ("electra-stsb", "electra-stsb (2)")
    assert list(first.layers) == [0] and list(second.layers) == [0, 1, 3]
    report.main([str(tmp_path)])
    printed, page = capsys.readouterr().out, (tmp_path / "report/report.md").read_text()
    for digest in ("before", "after"):
        assert f"{group} file '{digest}'" in printed and f"{group} file '{digest}'" in page
    with open(tmp_path / "report/runs.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["run"] for line in lines} == {first.name, second.name}


def test_runs_of_a_chain_start_from_other_weights_at_each_layer_and_are_one_sweep(tmp_path):
    for layer in (0, 1):
        more = {"digests": {"data": {"train": "same"}, "checkpoint": {"model.safetensors": str(layer)}}}
        write_run(tmp_path, layer, 0, 0.5, 0.5, init_from=f"runs/earlier-layer{layer}", more=more)
    (sweep,) = group_into_sweeps(read_results(tmp_path))
    assert list(sweep.layers) == [0, 1]
