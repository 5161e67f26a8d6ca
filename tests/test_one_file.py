"""docs/lecture/one_file.py, the method on one page, is the method of train.py."""

import re

import pytest
from conftest import ROOT, load_script, training_task

from tmft.data import read_examples
from tmft.loop import Recipe, fit
from tmft.loss import CosineMSE
from tmft.metrics import spearman
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import TASKS

PATH = ROOT / "docs/lecture/one_file.py"


def test_one_file_uses_nothing_of_the_library():
    imported = re.findall(r"^(?:import|from) (\w+)", PATH.read_text("utf-8"), re.MULTILINE)
    assert {*imported} == {"csv", "json", "sys", "pathlib", "torch", "safetensors", "scipy", "tokenizers"}


def test_one_file_ends_with_the_scores_of_the_training_loop(capsys):
    """Two layers and two epochs; the scores are x 100, and equal to the fourth digit."""
    one_file = load_script("docs/lecture/one_file.py")
    test_score = one_file.main(layer=2, epochs=2)
    dev_scores = [float(line.split("dev")[1]) for line in capsys.readouterr().out.splitlines()[:2]]

    splits = {split: read_examples(TASKS["sample"], split) for split in ("train", "dev", "test")}
    task = training_task(TASKS["sample"], CosineMSE(), splits["train"], splits["dev"])
    model = SentenceEncoder.from_pretrained(one_file.DATA / "twins/mlm-then-rtd", layer=2)
    recipe = Recipe(epochs=2, lr=one_file.PEAK_LR, precision="fp32")
    results = list(fit(model, task, recipe, seed=0))
    embeddings = [model.encode(texts, convert_to_tensor=True) for texts in splits["test"].texts]
    expected = task.objective.predict(*embeddings)
    assert dev_scores == [pytest.approx(100 * result.dev["spearman"], abs=0.006) for result in results]
    assert test_score == pytest.approx(100 * spearman(expected, splits["test"].labels), abs=0.005)
