"""The figures of docs/: their text is text, each says what it shows, and which-layer.svg draws its tables."""

import importlib.util
import re

import pytest
from conftest import ROOT

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


def test_the_figure_of_the_ways_to_choose_a_layer_shows_what_the_tables_say(tmp_path):
    spec = importlib.util.spec_from_file_location("which_layer", ROOT / "docs/which_layer.py")
    which_layer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(which_layer)
    page = (ROOT / "docs/which-layer.md").read_text("utf-8")
    regrets, costs = which_layer.read_tables(page)
    assert [costs[way] for way in which_layer.WAYS] == ["0 %", "0 %", "7 %", "12.5 %", "22 %", "25 %"]
    assert regrets["first round"]["discriminator"] == [0, 2.69] and regrets["first round"]["mlm"] == [0, 0]
    assert regrets["--layer auto"]["mlm-then-clm, STSB"] == [0.65] and len(regrets["--layer auto"]) == 9
    pytest.importorskip("matplotlib")
    which_layer.draw(tmp_path / "figure.svg", page)
    texts = [
        re.findall(r"<text[^>]*>([^<]+)<", path.read_text("utf-8"))
        for path in (tmp_path / "figure.svg", ROOT / "docs/which-layer.svg")
    ]
    assert texts[0] == texts[1]
