"""docs/research/objectives.md says what docs/objectives.json holds; the bootstrap is right."""

import json
import sys

import numpy as np
import pytest
from conftest import ROOT

from tmft.data import read_examples
from tmft.datasets.task_lookup import get_task
from tmft.metrics import cosines, spearman
from tmft.sentence_encoder import SentenceEncoder

sys.path.insert(0, str(ROOT / "docs/research"))

from objectives import (  # noqa: E402
    FROZEN,
    NAMES,
    Tuned,
    comparisons,
    draw_seeds,
    measure_pairs,
    pairs_table,
    panels,
    panels_by_layer,
    read_tuned,
    score_table,
)

PAGE = (ROOT / "docs/research/objectives.md").read_text(encoding="utf-8")
CONTENT = json.loads((ROOT / "docs/objectives.json").read_text(encoding="utf-8"))
L, N = 4, 400


def tuned(drop: float, noise: int = 0, level: float = 1.0) -> Tuned:
    """Results of three seeds of pre-training and two of fine-tuning, worse at each further layer."""
    labels = np.random.default_rng(0).random(N)
    rng = np.random.default_rng(noise)
    keys = [(seed, tuning_seed) for seed in range(3) for tuning_seed in range(2)]
    predictions = {
        key: np.stack([labels + (level + drop * n) * rng.normal(size=N) for n in range(L)]) for key in keys
    }
    scores = {key: [-float(drop * n) for n in range(L)] for key in keys}
    return Tuned(scores, scores, predictions, labels)


def test_the_tables_of_the_page_are_those_of_the_measurements():
    for task, models in CONTENT["fine_tuned"].items():
        assert score_table(models) in PAGE, task


def test_the_table_of_labelled_pairs_is_that_of_the_measurements():
    scores = json.loads((ROOT / "docs/pairs.json").read_text(encoding="utf-8"))
    assert pairs_table(scores) in PAGE


def test_runs_with_parts_of_the_labelled_pairs_are_read(tmp_path, tiny_folder):
    import train

    line = ["--ckpt", tiny_folder, "--layer", "1", "--task", "sample", "--epochs", "1", "--num-seeds", "2"]
    for init in ("pretrained", "random"):
        options = ["--init", init, "--train-fraction", "0.5", "--run-name", init]
        train.main([*map(str, line), *options, "--output-dir", str(tmp_path)])
    scores = measure_pairs(tmp_path, total=454)
    assert [list(by_split["dev"]) for by_split in scores.values()] == [["227"], ["227"]]
    result = json.loads((tmp_path / "random-layer1-seed1/result.json").read_text(encoding="utf-8"))
    assert scores["random"]["test"]["227"][1] == 100 * result["test"]["spearman"]


def test_the_models_are_drawn_in_every_panel(tmp_path):
    drawn = panels(CONTENT)
    assert len(drawn) == len(CONTENT["fine_tuned"]) + len(CONTENT["quantities"])
    assert list(next(iter(drawn.values()))) == list(NAMES.values())
    assert all(len(layers) == 9 for models in drawn.values() for layers in models.values())
    pytest.importorskip("matplotlib")
    panels_by_layer(drawn, tmp_path / "figure.svg")
    assert "next token, read both ways" in (tmp_path / "figure.svg").read_text()


@pytest.mark.parametrize("objective", ["mlm", "rtd", "clm"])
def test_a_shipped_checkpoint_has_the_measured_scores_without_fine_tuning(objective, real_data):
    """The checkpoints that come with the code are those of seed 0."""
    task = get_task("stsb", data_root=str(real_data))
    pairs = read_examples(task, "test")
    model = SentenceEncoder.from_pretrained(ROOT / f"data/twins/mlm-then-{objective}", pooling="mean")
    u, v = (model.embed_token_ids(model.tokenize(column), model.forward_all_layers) for column in pairs.texts)
    scores = [100 * spearman(layer, pairs.labels) for (layer,) in zip(cosines(u, v), strict=True)]
    measured = [seeds[0] for seeds in CONTENT["quantities"][FROZEN][objective]]
    assert scores == pytest.approx(measured, abs=0.01)


def test_seeds_are_drawn_in_two_steps():
    """Seeds of pre-training differ by 10, those of fine-tuning by 1: so do the means of what is drawn."""
    by_run = {(seed, tuning): np.full(2000, 10.0 * seed + tuning) for seed in range(2) for tuning in range(2)}
    drawn = draw_seeds(by_run, np.random.default_rng(0))
    assert drawn.shape == (2000,) and drawn.mean() == pytest.approx(5.5, abs=0.5)
    # variance of a mean of two draws: (5² + 0.5² / 2) / 2 with the seeds of fine-tuning within each
    assert drawn.var() == pytest.approx((25 + 0.125) / 2, rel=0.1)
    assert set(draw_seeds({(0, 0): by_run[0, 0]}, np.random.default_rng(0))) == {0.0}


def test_what_differs_is_told_apart_and_what_does_not_is_not():
    models = {"flat": tuned(0.0), "falling": tuned(0.6, noise=1), "flat too": tuned(0.0, noise=2)}
    found = {entry["what"]: (entry["low"], entry["mean"], entry["high"]) for entry in comparisons(models)}
    low, mean, high = found["drop of flat - drop of falling"]
    assert low < mean < high < 0
    low, _, high = found["drop of flat - drop of flat too"]
    assert low < 0 < high
    low, mean, _ = found["drop of falling, layer 0 to the last"]
    assert 0 < low < mean
    low, mean, _ = found["number of the best layer on test: flat - falling"]
    assert mean > 0 and low >= 0


def test_the_drop_is_the_one_of_the_test_scores():
    """The mean over the resamples is near the difference of the scores themselves."""
    model = tuned(0.5)
    [entry] = [entry for entry in comparisons({"a": model}) if entry["what"].startswith("drop of a")]
    plain = [
        100 * (spearman(layers[0], model.labels) - spearman(layers[-1], model.labels))
        for layers in model.predictions.values()
    ]
    assert entry["mean"] == pytest.approx(np.mean(plain), abs=1.0)


def test_sweeps_of_checkpoints_named_by_objective_and_seed_are_read(tmp_path, tiny_folder):
    import train

    checkpoint = tmp_path / "rtd-2"
    checkpoint.symlink_to(tiny_folder)
    line = ["--ckpt", checkpoint, "--layer", "0-1", "--task", "sample", "--epochs", "1", "--num-seeds", "2"]
    train.main([*map(str, line), "--output-dir", str(tmp_path / "runs")])
    models = read_tuned(tmp_path / "runs")["sample"]
    assert list(models) == ["rtd"] and set(models["rtd"].test) == {(2, 0), (2, 1)}
    assert models["rtd"].predictions[2, 1].shape == (2, len(models["rtd"].labels))
    result = json.loads((tmp_path / "runs/rtd-2-sample-layer1-seed1/result.json").read_text())
    assert models["rtd"].test[2, 1][1] == 100 * result["test"]["spearman"]
