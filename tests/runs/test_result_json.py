"""result.json: its documented keys, its format, and damaged files, which are one line with a remedy."""

import json
import math
import re
import shutil
import sys
from copy import deepcopy
from functools import reduce
from pathlib import Path

import pytest
from conftest import ROOT, SENTENCES

import evaluate
import train
from tmft.cli import predict_command as predict
from tmft.cli import report_command as report
from tmft.errors import InputError
from tmft.runs.result_json import FORMAT, format_provenance, read_result
from tmft.runs.sweeps import group_into_sweeps, read_results, sweep_summaries

ABSENT = object()


def documented_keys() -> tuple[set[str], set[str]]:
    """The keys of result.json in docs/commands.md: of fine-tuning, of pre-training."""
    page = (ROOT / "docs/commands.md").read_text("utf-8")
    tables = page.split("## The keys of result.json")[1].split("pre-training run")[:2]
    cells = [" ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)) for table in tables]
    fine_tuning, pretraining = (set(re.findall(r"`(\w+)`", text)) for text in cells)
    return fine_tuning, pretraining


def test_a_fine_tuning_run_has_the_documented_keys(arguments, tmp_path):
    train.main([*arguments, "--layer", "1"])
    result = read_result(tmp_path / "runs/r-layer1-seed0")
    assert result.keys() == documented_keys()[0]
    assert result["provenance"] == [] and result["parameters"].keys() == {"paper", "stored"}


@pytest.mark.parametrize("task", ["mlm", "rtd"])
def test_a_pre_training_run_has_the_documented_keys(task, tiny_folder, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES * 9), encoding="utf-8")
    source = "--ckpt" if task == "mlm" else "--from-scratch"
    words = ["--task", task, source, str(tiny_folder), "--text", str(tmp_path / "text.txt"), "--steps", "1"]
    train.main([*words, "--output-dir", str(tmp_path / "runs"), "--max-length", "20", "--precision", "fp32"])
    result = read_result(tmp_path / f"runs/tiny-{task}-seed0")
    assert result.keys() == documented_keys()[1]
    assert result["held_out"].keys() == {"before", "after"} and result["data"] == task


def replaced(result: dict, at: tuple, value: object) -> dict:
    result = deepcopy(result)
    *outer, last = at
    inside = reduce(lambda inside, key: inside[key], outer, result)
    if value is ABSENT:
        del inside[last]
    else:
        inside[last] = value
    return result


def write(folder: Path, **values) -> Path:
    """Write a result with these values; a__b is the key b of a."""
    task = {"metric": "spearman", "objective": "dot_product_head"}
    settings = {"ckpt": "x", "layer": 1, "seed": 0, "task": task}
    result = {
        "format": FORMAT,
        "sweep": "r",
        "data": "pairs",
        "provenance": [],
        "num_hidden_layers": 4,
        "settings": settings,
        "seconds": 1,
    }
    scores = {"spearman": 0.5, "pearson": 0.4}
    result |= {"dev": scores, "test": scores | {"pairs": 9}, "parameters": {"paper": 1, "stored": 2}}
    folder.mkdir(parents=True, exist_ok=True)
    for place, value in values.items():
        result = replaced(result, tuple(place.split("__")), value)
    (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.mark.parametrize("command", [report, evaluate, predict])
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"format": 2}, f"has format 2, this version reads {FORMAT}: run it again"),
        ({"format": ABSENT}, f"has format None, this version reads {FORMAT}: run it again"),
        ({"settings__layer": "1"}, "(layer is '1'): restore it, or run it again"),
        ({"settings__task": "stsb"}, "(task is 'stsb'): restore it"),
        ({"test": None}, "(test is None): restore it"),
        ({"settings__task__metric": 5}, "(metric is 5): restore it"),
        ({"settings__task__classes": {"a": "0"}}, "(classes is {'a': '0'}): restore it"),
        ({"seconds": None}, "(seconds is None): restore it"),
        ({"test__spearman": "0.5"}, "(spearman is '0.5'): restore it"),
        ({"test__a\n\x1b": True}, "(a ? is True): restore it"),
        ({"provenance": [{"settings": 1}]}, "(settings is 1): restore it"),
        ({"settings": ABSENT}, "has no settings: restore it"),
    ],
)
def test_a_damaged_result_is_one_line(command, values, words, tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder, tmp_path / "runs/r")
    write(folder, **values)
    (tmp_path / "texts.txt").write_text("a dog\n")
    given = {report: [tmp_path / "runs"], evaluate: [folder], predict: [folder, tmp_path / "texts.txt"]}
    with pytest.raises(InputError) as error:
        command.main([*map(str, given[command])])
    assert str(error.value).startswith(str(folder / "result.json")) and words in str(error.value)


@pytest.mark.parametrize("place", ["settings__task__metric", "parameters__paper", "sweep"])
def test_a_key_that_a_table_needs_is_named(place, tmp_path):
    write(tmp_path / "runs/r", **{place: ABSENT})
    with pytest.raises(InputError, match=f"result.json has no {place.rpartition('_')[2]}: restore it, or"):
        report.main([str(tmp_path / "runs")])


def test_undefined_scores_are_read_as_nan_and_unknown_keys_are_kept(tmp_path):
    result = read_result(write(tmp_path / "r", dev__spearman=None, test__pearson=math.nan))
    assert math.isnan(result["dev"]["spearman"]) and math.isnan(result["test"]["pearson"])
    result = read_result(write(tmp_path / "r", new={"a": [1, None]}, settings__new="x", test__pairs=9))
    assert result == json.loads((tmp_path / "r/result.json").read_text())


def test_the_results_that_are_shipped_are_read():
    assert len([read_result(path.parent) for path in (ROOT / "data").rglob("result.json")]) >= 5


def test_names_in_tables_are_shortened_and_escaped(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    name = "a\x1b]0;b\x07\n# | c [d](http://e) <b>" + "x" * 5000
    scores = {"spearman": 0.5, "e\x1b|": 0.1}
    write(tmp_path / "runs/one", sweep=name, dev=scores, test=scores, seconds=1)
    report.main([str(tmp_path / "runs"), "--out", str(tmp_path / "report")])
    printed = capsys.readouterr().out
    page = (tmp_path / "report/report.md").read_text()
    for text in (printed, page, *sweep_summaries([tmp_path / "runs/one"])):
        assert "\x1b" not in text and "\x07" not in text and "\n#  |" not in text and "x" * 300 not in text
    rows = [line.replace("\\|", "").count("|") for line in page.splitlines() if line.startswith("|")]
    assert rows == [10] * 3 + [7] * 3 and "[d\\](http" in page and "\\<b\\>" in page
    [sweep] = group_into_sweeps(read_results(tmp_path / "runs"))
    assert sweep.name == name  # complete in report.json
    text = format_provenance([{"data": name, "settings": {"ckpt": name, "seed": 0}}])
    assert text.isprintable() and len(text) < 500


def test_a_provenance_begins_with_a_checkpoint_or_from_scratch():
    steps = [{"data": "wordsim", "settings": {"ckpt": "google/electra", "seed": 0}},
             {"data": "stsb", "settings": {"ckpt": "x", "seed": 3}}]  # fmt: skip
    assert format_provenance(steps) == "google/electra, then wordsim (seed 0), then stsb (seed 3)"
    scratch = {"data": "rtd", "settings": {"ckpt": None, "from_scratch": "shape", "seed": 1}}
    assert format_provenance([scratch, steps[1]]) == "rtd from scratch (seed 1), then stsb (seed 3)"
