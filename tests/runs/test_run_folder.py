"""result.json: its documented keys, its format, and the comparison of settings."""

import json
import re

import pytest
from conftest import ROOT, SENTENCES

import train
from tmft import InputError
from tmft.runs.result_json import FORMAT, format_provenance
from tmft.runs.run_folder import check_run_name, first_difference, load_finished_result, read_result

# --------------------------------------------------------------------------- the keys of result.json


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


# ------------------------------------------------------------------------- comparing settings


def test_the_first_setting_with_another_value_is_found(tiny_folder, tmp_path):
    task = {"files": "x", "subtasks": {"a": {"metric": "f1"}}}
    before = {"lr": 1.0, "task": task, "seed": 0, "ckpt": str(tiny_folder)}
    assert first_difference(before, before) is None
    assert first_difference(before, {"lr": 1.0, "task": task | {"subtasks": {}}}) == "task"
    assert first_difference(before, {"lr": 2.0, "task": {}}) == "lr"
    assert first_difference(before, {"new": None}) is None and first_difference(before, {"new": 1}) == "new"
    (tmp_path / "link").symlink_to(tiny_folder)
    assert first_difference(before, {"ckpt": tmp_path / "link"}) is None
    assert first_difference(before, {"ckpt": tmp_path / "other"}) == "ckpt"


def test_a_provenance_begins_with_a_checkpoint_or_from_scratch():
    steps = [{"data": "wordsim", "settings": {"ckpt": "google/electra", "seed": 0}},
             {"data": "stsb", "settings": {"ckpt": "x", "seed": 3}}]  # fmt: skip
    assert format_provenance(steps) == "google/electra, then wordsim (seed 0), then stsb (seed 3)"
    scratch = {"data": "rtd", "settings": {"ckpt": None, "from_scratch": "shape", "seed": 1}}
    assert format_provenance([scratch, steps[1]]) == "rtd from scratch (seed 1), then stsb (seed 3)"


# -------------------------------------------------------------------------------------- a finished run


def test_a_finished_run_is_kept_and_never_overwritten(arguments, tmp_path, capsys):
    train.main([*arguments, "--layer", "1"])
    path = tmp_path / "runs/r-layer1-seed0/result.json"
    content = path.read_bytes()
    for words, key in [("--lr 2e-3", "lr"), ("--selection-metric pearson", "task"), ("--epochs 3", "epochs")]:
        with pytest.raises(InputError, match=f"holds a finished run with {key} .*: choose another run_name"):
            train.main([*arguments, "--layer", "1", *words.split()])
    capsys.readouterr()
    train.main([*arguments, "--layer", "1-2"])
    printed = capsys.readouterr().out
    assert printed.count("already finished, kept") == 1 and path.read_bytes() == content
    assert printed.count("\n    1      1 ") == printed.count("\n    2      1 ") == 1  # both in one table


@pytest.mark.parametrize("number", [None, 0, 2, "1"])
def test_a_result_of_another_format_is_refused(number, tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({} if number is None else {"format": number}))
    with pytest.raises(InputError, match=f"result.json has format .*, this version reads {FORMAT}: run it"):
        load_finished_result(tmp_path, {})


def test_the_results_that_are_shipped_have_this_format():
    assert len([read_result(path.parent) for path in (ROOT / "data").rglob("result.json")]) >= 5


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "a\x9bb", "caf\udce9", "a/b", ".hidden", " "])
def test_a_run_name_that_no_terminal_or_folder_should_get_is_refused(name):
    with pytest.raises(InputError, match="use letters and digits, not a path"):
        check_run_name(name)
