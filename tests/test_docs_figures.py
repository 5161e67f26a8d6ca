"""The figures of docs/: their text is text, each says what it shows, and stands on a page."""

import itertools
import json
import re

import numpy as np
import pytest
from conftest import ROOT, load_script
from scipy.stats import spearmanr

from tmft.runs.sweeps import load_published_scores

FIGURES = sorted((ROOT / "docs").rglob("*.svg"))


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_text_is_text_and_each_figure_has_a_title_and_a_description(path):
    content = path.read_text("utf-8")
    assert content.count("<text") > 5 and "<title" in content
    [description] = re.findall(r"<(?:dc:description|desc\b[^>]*)>([^<]+)<", content)
    assert len(description) > 40


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_each_figure_is_on_a_page(path):
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(f"{path.name})" in page.read_text("utf-8") for page in pages)


def test_the_first_figure_shows_the_rows_of_the_table_of_students():
    drawing = load_script("docs/quality_by_size.py")
    models = drawing.read_models()
    assert len(models) >= 9 and {model.is_ours for model in models} == {True, False}
    drawn = drawing.figure(models)
    shown = (ROOT / "docs/quality-by-size.svg").read_text("utf-8")
    assert shown == drawn, "the table of docs/students.md has changed: python docs/quality_by_size.py"


OBJECTIVES = json.loads((ROOT / "docs/objectives.json").read_text("utf-8"))["fine_tuned"]["stsb"]


def test_the_figure_of_the_method_shows_the_scores_of_the_authors_and_of_the_twins():
    hero = load_script("docs/hero.py")
    assert (ROOT / "docs/method.svg").read_text("utf-8") == hero.hero()
    electra = hero.published_scores("google/electra-base-discriminator")
    versions = load_published_scores()["electra-base-discriminator", "stsb", ""]
    assert all(score in pair for score, *pair in zip(electra, *versions.values(), strict=True))
    assert [electra[layer] for layer in (3, 9, 12)] == [75.29, 78.14, 66.82]  # those of README
    for objective in ("mlm", "rtd", "clm"):
        test, best = hero.our_scores(objective)
        assert len(test) == 9 and 0 < best < 8
        assert test == pytest.approx(np.mean([*OBJECTIVES[objective]["test"].values()], axis=0))
        dev = np.mean([*OBJECTIVES[objective]["dev"].values()], axis=0)
        assert dev[best] == dev.max()


def test_the_table_of_objectives_has_the_scores_that_were_measured():
    page = (ROOT / "docs/results.md").read_text("utf-8").replace("**", "")
    for scores in OBJECTIVES.values():
        test, dev = (np.array([*scores[split].values()]) for split in ("test", "dev"))  # (runs, layers)
        for mean, std, dev_mean in zip(test.mean(0), test.std(0, ddof=1), dev.mean(0), strict=True):
            assert f"| {mean:.2f} ± {std:.2f} ({dev_mean:.2f}) |" in page


def test_the_script_on_the_loss_and_its_layer_finds_a_drop_that_follows_the_loss(
    tmp_path, monkeypatch, capsys
):
    """Runs as docs/law.py leaves them, in which the layer under the loss has random predictions."""
    pytest.importorskip("matplotlib")
    law = load_script("docs/law.py")
    monkeypatch.setattr(law, "RUNS", tmp_path)
    monkeypatch.setattr(law, "JSON", tmp_path / "law.json")
    monkeypatch.setattr(law, "NUM_RESAMPLES", 100)
    rng, labels = np.random.default_rng(0), np.arange(200.0)
    runs = [(objective, k) for objective in law.NAMES for k in law.DEPTHS[objective]]
    for (objective, k), seed in itertools.product(runs, law.SEEDS):
        for layer in range(k + 1):
            folder = tmp_path / f"stsb/{objective}{k}-0-layer{layer}-seed{seed}"
            folder.mkdir(parents=True)
            score = {"spearman": 0.0 if layer == k else 0.8 + layer / 100}
            (folder / "result.json").write_text(json.dumps({"dev": score}), "utf-8")
            noise = rng.normal(size=200) * (60 - 5 * layer)  # the layer before the loss is best
            predicted = rng.random(200) if layer == k else labels + noise
            np.savez(folder / "predictions.npz", predicted=predicted, labels=labels)
    measured = law.measure(law.collect(tmp_path / "law.npz"))
    law.show(measured)
    answers = measured["stsb"]["answers"]
    for title in law.OBJECTIVES.values():
        for k in (2, 4, 6):
            _, low, high = answers[f"{title}, layer {k}: loss on it - loss above"]
            assert -120 < low < high < -50
        mean, low, high = answers[f"{title}: slope of the best layer"]
        assert mean == pytest.approx(1, abs=0.2) and low <= 1 <= high
    _, low, high = answers["all these layers: replaced - masked tokens"]
    assert low < 0 < high
    assert answers[f"{law.NAMES['cut']}: layer 6 after - before"][2] < -50
    table = capsys.readouterr().out
    assert "(81.00) * | **" in table and len(re.findall(r"\| stsb, replaced tokens, \d \|", table)) == 4


def test_the_page_has_the_answers_on_the_loss_and_its_layer_that_were_measured():
    law = load_script("docs/law.py")
    measured, known = json.loads(law.JSON.read_text("utf-8")), np.load(law.JSON.with_suffix(".npz"))
    page = (ROOT / "docs/results.md").read_text("utf-8")
    assert list(measured) == list(law.TASKS)
    for task, of_task in measured.items():
        for what, (value, low, high) in of_task["answers"].items():
            if "it - layer" not in what and (task == "stsb" or " layer " not in what):
                assert f"{value:+.1f} ({low:+.1f} to {high:+.1f})" in page, (task, what)
        for objective, k, scores in law.models_of(of_task):
            models = [name for seed in law.SEEDS if (name := f"{task}/{objective}{k}-{seed}") in known]
            assert scores["dev"] == np.concatenate([known[f"{name}/dev"] for name in models]).tolist()
            expected = 100 * spearmanr(known[f"{task}/labels"], known[models[0]][0, -1]).statistic
            assert scores["test"][0][-1] == pytest.approx(expected)
