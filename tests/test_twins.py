"""The small checkpoints in data/twins: they are what their cards say; commands without arguments use them."""

import json
import re
from itertools import takewhile

import numpy as np
import pytest
from conftest import ROOT, assert_equal_hidden_states, load_encoder, open_in_transformers

import cka
import evaluate
from tmft import InputError, SentenceEncoder
from tmft.cli import report_command
from tmft.evaluation.evaluators import ISOTROPY_METRICS
from tmft.runs.result_json import read_result

TWINS = ROOT / "data/twins"
CONTINUED = {  # from mlm
    "mlm-then-rtd": "ElectraForPreTraining",
    "mlm-then-mlm": "BertForMaskedLM",
    "mlm-then-clm": "BertLMHeadModel",
}
CLASSES = {"mlm": "BertForMaskedLM"} | CONTINUED  # in transformers, with the head
SENTENCES = ["A man plays the guitar.", "Two dogs run in the park, not a cat!", "Música?"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_a_twin_opens_in_transformers_with_its_head_and_equal_hidden_states(name):
    import transformers

    whole = open_in_transformers(CLASSES[name], TWINS / name)
    model = SentenceEncoder.from_pretrained(TWINS / name)
    theirs = transformers.AutoTokenizer.from_pretrained(TWINS / name)
    ids = model.tokenize(SENTENCES)
    assert theirs(SENTENCES)["input_ids"] == ids
    ours = load_encoder(TWINS / name).double()  # float32 has rounding errors
    assert_equal_hidden_states(ours, whole.base_model.double(), ids, tolerance=1e-10)


def test_the_continued_twins_differ_in_nothing_but_their_task():
    """Their ancestor, text, steps, seed, number of tokens and all other settings are equal."""
    results = [read_result(TWINS / name) for name in CONTINUED]
    settings = [result["settings"] for result in results]
    assert [setting["task"] for setting in settings] == [name.removeprefix("mlm-then-") for name in CONTINUED]
    common = set.intersection(*(set(setting) for setting in settings)) - {"task", "generator_size"}
    assert common > {"ckpt", "seed", "text", "steps", "batch_size", "lr", "max_length", "precision"}
    for key in common:
        assert all(setting[key] == settings[0][key] for setting in settings), key
    assert settings[0]["ckpt"] == "data/twins/mlm" and len({r["tokens_seen"] for r in results}) == 1


def test_one_checkpoint_alone_has_nothing_to_be_compared_with():
    with pytest.raises(InputError, match=r"only one checkpoint \(x\): name another one to compare it with"):
        cka.main(["x"])


def printed_table(page: str, first_column: str) -> list[list[float]]:
    """Return the numbers of the output in a page of docs/ whose first line starts with that column."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lines = text.partition(f"\n{first_column}  ")[2].splitlines()
    rows = takewhile(lambda line: line.strip()[:1].isdigit(), lines[1:])
    return [[float(cell) for cell in row.rstrip(" █").split()] for row in rows]


def test_cka_without_arguments_compares_the_twins_as_documented(tmp_path, capsys):
    cka.main(["--json", str(tmp_path / "cka.json")])
    assert "A = mlm-then-rtd and B = mlm" in capsys.readouterr().out
    (pair,) = json.loads((tmp_path / "cka.json").read_text())["pairs"]
    documented = [value for _, _, value in printed_table("cka.md", "layer of A")]
    assert pair["by_layer"] == pytest.approx(documented, abs=2e-4) and len(documented) == 9


def test_the_scores_and_the_isotropy_of_a_twin_are_the_documented_ones(tmp_path):
    words = "--task sample --split dev --layer all --isotropy --json".split()
    evaluate.main([str(TWINS / "mlm-then-rtd"), *words, str(tmp_path / "scores.json")])
    layers = json.loads((tmp_path / "scores.json").read_text())["layers"]
    keys = ["spearman", "pearson", *ISOTROPY_METRICS]
    found = [[int(layer), *(scores["sample"][key] for key in keys)] for layer, scores in layers.items()]
    documented = printed_table("cka.md", "layer  spearman  pearson")
    assert np.array(found) == pytest.approx(np.array(documented), abs=2e-4) and len(documented) == 9


def test_the_runs_that_made_the_twins_have_a_table_whatever_their_task_was(tmp_path, capsys):
    report_command.main([str(TWINS), "--out", str(tmp_path / "report")])
    printed = capsys.readouterr().out
    for line in ("mlm-then-clm, seed 0 .* 11.141 +4.079 ", "twin-t5, seed 0 .* 9.844 +2.327 "):
        assert re.search(line, printed)
