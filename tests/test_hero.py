"""docs/method.svg is what docs/hero.py draws, from the published scores and the table of docs/objectives.md."""

import importlib.util
import xml.etree.ElementTree as ET

from conftest import ROOT

from tmft.runs.sweeps import load_published_scores

SVG = "{http://www.w3.org/2000/svg}"


def load_hero():
    spec = importlib.util.spec_from_file_location("hero", ROOT / "docs/hero.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_figure_of_the_readme_is_the_one_that_its_command_draws():
    assert (ROOT / "docs/method.svg").read_text("utf-8") == load_hero().hero()


def test_its_numbers_are_those_of_the_authors_and_of_the_twins():
    hero = load_hero()
    electra = hero.published_scores("google/electra-base-discriminator")
    assert electra == load_published_scores()["electra-base-discriminator", "stsb", ""]
    rtd, mlm = hero.controlled_pair()
    assert len(rtd) == len(mlm) == 9 and (rtd[4], rtd[8], mlm[4], mlm[8]) == (65.88, 61.91, 66.23, 64.60)


def test_it_says_in_words_what_it_shows_and_its_text_is_within_the_picture():
    root = ET.fromstring((ROOT / "docs/method.svg").read_text("utf-8"))
    width = float(root.get("width"))
    title, description = root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")
    assert (
        title == "ELECTRA-base with 9 of its 12 layers: 78.2. With all 12: 66.9." and len(description) > 200
    )
    for text in root.iter(f"{SVG}text"):
        length = 0.6 * float(text.get("font-size")) * len(text.text)
        start = float(text.get("x")) - {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")] * length
        assert -1 <= start and start + length <= width + 1, text.text
