"""docs/method.svg is what docs/hero.py draws, from the published scores and docs/objectives.json."""

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from conftest import ROOT, load_script

from tmft.runs.sweeps import load_published_scores

SVG = "{http://www.w3.org/2000/svg}"


def test_the_figure_of_the_readme_is_the_one_that_its_command_draws():
    assert (ROOT / "docs/method.svg").read_text("utf-8") == load_script("docs/hero.py").hero()


def test_its_numbers_are_those_of_the_authors_and_of_the_twins():
    hero = load_script("docs/hero.py")
    electra = hero.published_scores("google/electra-base-discriminator")
    assert electra == load_published_scores()["electra-base-discriminator", "stsb", ""]
    content = json.loads((ROOT / "docs/objectives.json").read_text())["fine_tuned"]["stsb"]
    for objective in ("mlm", "rtd", "clm"):
        test, best = hero.our_scores(objective)
        assert len(test) == 9 and 0 < best < 8
        runs = content[objective]["test"].values()
        assert test[8] == pytest.approx(np.mean([scores[8] for scores in runs]))
        dev = np.mean(list(content[objective]["dev"].values()), axis=0)
        assert dev[best] == dev.max()


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
