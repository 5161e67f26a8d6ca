"""The figures of docs/: their text is text, each says what it shows, and those of measurements show them."""

import json
import re

import numpy as np
import pytest
import torch
from conftest import ROOT, load_script

from tmft import SentenceEncoder
from tmft.packing import pack

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
    for at, size, label in re.findall(
        r'<text x="([\d.]+)" y="[\d.]+" font-size="(\d+)" text-anchor="start"[^>]*>([^<]+)', shown
    ):
        assert float(at) + 0.5 * int(size) * len(label) < drawing.WIDTH, label


def texts_of(path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)<", path.read_text("utf-8"))


def test_the_table_and_the_figure_of_the_base_size_model_show_what_was_measured(tmp_path):
    base_size = load_script("docs/base_size.py")
    page = (ROOT / "docs/results.md").read_text("utf-8")
    assert base_size.format_table() in page
    means = base_size.mean_of_seven(base_size.MODELS["all-mpnet-base-v2"])
    drops = [means[12] - means[layer] for layer in (11, 10, 6)]
    assert "costs {:.1f} points of the mean, two cost {:.1f}, half of the model {:.1f}".format(*drops) in page
    assert f"last three layers bring {means[12] - means[9]:.1f} points" in page
    model = base_size.MODELS["all-mpnet-base-v2"]
    assert all(max(curve) == curve[12] for curve in [*model["test"].values(), *model["dev"].values()])
    pytest.importorskip("matplotlib")
    base_size.draw(tmp_path / "figure.svg")
    assert texts_of(tmp_path / "figure.svg") == texts_of(ROOT / "docs/base-size.svg")


def test_the_page_and_the_figure_of_all_subsets_of_layers_show_what_was_measured(tmp_path):
    layer_subsets = load_script("docs/research/layer_subsets.py")
    models = json.loads((ROOT / "docs/which-layer.json").read_text("utf-8"))
    pages = ("docs/which-layer.md", "docs/research/which-layer.md")
    page = "".join((ROOT / name).read_text("utf-8") for name in pages)
    for table in layer_subsets.TABLES:
        assert table(models).strip() in page, table.__name__
    pytest.importorskip("matplotlib")
    layer_subsets.draw(models, tmp_path / "figure.svg")
    assert texts_of(tmp_path / "figure.svg") == texts_of(ROOT / "docs/which-layer.svg")


def test_the_rules_that_choose_layers():
    layer_subsets = load_script("docs/research/layer_subsets.py")
    # Layer 1 changes nothing, layer 3 most. Without training, a subset scores the sum of its layers' worth.
    steps = torch.tensor([[1.0, 0], [0, 1], [0, 0], [1, -1], [-3, -2]])
    states = steps.cumsum(0)[:, None] + torch.tensor([[0.01, 0], [0, -0.02], [0.03, 0.05], [0.05, 0]])
    worth = (3.0, 1.0, 2.0, 5.0)
    untrained = {s: sum(worth[n] for n in s) for s in layer_subsets.all_subsets(4)}
    assert len(untrained) == 15
    evidence = layer_subsets.Evidence(untrained, states, torch.tensor([0.3, 0.0, 0.2, 0.9]))
    chosen = {name: rule(evidence, 2) for name, rule in layer_subsets.RULES.items()}
    for name in ("block influence", "scores of single removals", "greedy removal", "best without training"):
        assert chosen[name] == (0, 3), name
    assert chosen["first layers"] == (0, 1) and chosen["last layers"] == (2, 3)
    assert chosen["evenly spaced, with the last"] == (0, 3)
    assert layer_subsets.choose_by_angle(evidence, 3) == (0, 2, 3)
    scores = np.array([*untrained.values()])
    assert layer_subsets.regrets(scores, [*untrained], [(3,), (0, 1), (1, 2, 3)]).tolist() == [0, 4, 2]


def test_embeddings_by_all_subsets_are_those_of_models_with_these_layers_or_blocks():
    layer_subsets = load_script("docs/research/layer_subsets.py")
    model = SentenceEncoder.from_pretrained(ROOT / "data/twins/mlm", layer=2)
    blocks = layer_subsets.split_into_blocks(model)
    batch = pack(model.tokenize(["A dog runs in the park.", "It rains."]))
    with torch.no_grad():
        torch.testing.assert_close(blocks(batch), model(batch), rtol=0, atol=0)
        by_subset = layer_subsets.embed_by_all_subsets(blocks, batch)  # (16, 2, D)
        subsets = layer_subsets.binary_order(4)
        assert set(subsets) == {(), *layer_subsets.all_subsets(4)}
        for subset, embeddings in zip(subsets, by_subset, strict=True):
            kept = layer_subsets.keep(blocks, subset)
            torch.testing.assert_close(embeddings, kept(batch), rtol=0, atol=0)
        without_one = layer_subsets.embed_by_single_removals(blocks, batch)  # (4, 2, D)
        for removed, embeddings in enumerate(without_one):
            kept = layer_subsets.keep(blocks, tuple(n for n in range(4) if n != removed))
            torch.testing.assert_close(embeddings, kept(batch), rtol=0, atol=0)
    worth = [3.0, -1.0, 0.5, 2.0]
    scores = np.array([10 + sum(worth[n] for n in subset) for subset in subsets])
    np.testing.assert_allclose(layer_subsets.worth_of_layers(subsets, scores, 4), worth, atol=1e-9)
