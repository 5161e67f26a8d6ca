"""The figures of docs/: their text is text, each says what it shows, and stands on a page."""

import re

import pytest
from conftest import ROOT, load_script

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
