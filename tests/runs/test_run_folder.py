"""result.json: its documented keys, the comparison of settings, and results that version 0.3.0 wrote."""

import json
import re

import pytest
from conftest import SENTENCES

import evaluate
import train
from tmft import InputError
from tmft.cli import report
from tmft.io.old_names import convert_result
from tmft.runs import result_schema
from tmft.runs.run_folder import (
    check_run_name,
    first_difference,
    format_provenance,
    load_finished_result,
    provenance_of,
    read_result,
    write_result,
)
from tmft.runs.sweeps import group_into_sweeps, read_results

# --------------------------------------------------------------------------- the keys of result.json


def documented_keys() -> tuple[set[str], set[str]]:
    """The keys of result.json in the docstring of runs/result_schema.py: of fine-tuning, of pre-training."""
    text = result_schema.__doc__
    fine_tuning = text.partition("The result of a fine-tuning run has these keys:\n")[2]
    fine_tuning = fine_tuning.partition("\nThe scores of")[0]
    pretraining = text.partition("The result of a pre-training run has")[2].partition("`read_result`")[0]
    shared, _, more = pretraining.partition("as well, and\n")

    def listed_keys(text: str) -> set[str]:
        """Of lines `key, key   meaning; key, key: meaning`; continuation lines are indented further."""
        lines = re.findall(r"^    (\S.*(?:\n {5,}\S.*)*)", text, re.MULTILINE)
        groups = [re.match(r"(?:\w+, )*\w+", line).group() for line in lines]
        groups += [group for line in lines for group in re.findall(r"; ((?:\w+, )*\w+):", line)]
        return {key for group in groups for key in group.split(", ")}

    shared_keys = set(re.findall(r"\w+", re.sub(r"\(.*?\)", "", shared))) - {"and"}
    return listed_keys(fine_tuning), shared_keys | listed_keys(more)


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


def test_undefined_scores_are_null(tmp_path):
    write_result(tmp_path, {"dev": {"spearman": float("nan")}, "test": [float("inf"), 1.0]})
    assert json.loads((tmp_path / "result.json").read_text()) == {
        "dev": {"spearman": None},
        "test": [None, 1.0],
    }


# ------------------------------------------------------------------------- comparing settings


def test_only_the_fields_that_both_tasks_have_are_compared():
    before = {"lr": 1.0, "task": {"files": "x", "metric": "spearman"}}
    assert (
        first_difference(before, {"lr": 1.0, "task": {"files": "x", "metric": "spearman", "task_type": "s"}})
        is None
    )
    assert first_difference(before, {"lr": 1.0, "task": {"files": "y", "metric": "spearman"}}) == "task"
    assert first_difference(before, {"lr": 2.0, "task": {"files": "x"}}) == "lr"
    assert first_difference(before, {"new": 1}) == "new"


def test_each_subtask_is_compared_like_a_task():
    def settings(**subtasks) -> dict:
        return {"task": {"subtasks": subtasks}}

    before = settings(a={"metric": "f1"}, b={"metric": "spearman"})
    assert first_difference(before, settings(a={"metric": "f1"}, b={"metric": "spearman", "new": 1})) is None
    assert first_difference(before, settings(a={"metric": "f1"}, b={"metric": "pearson"})) == "task"
    assert first_difference(before, settings(a={"metric": "f1"})) == "task"
    assert first_difference(before, settings(a={"metric": "f1"}, c={"metric": "spearman"})) == "task"


def test_a_provenance_begins_with_a_checkpoint_or_from_scratch():
    steps = [{"data": "wordsim", "settings": {"ckpt": "google/electra", "seed": 0}},
             {"data": "stsb", "settings": {"ckpt": "x", "seed": 3}}]  # fmt: skip
    assert format_provenance(steps) == "google/electra, then wordsim (seed 0), then stsb (seed 3)"
    scratch = {"data": "rtd", "settings": {"ckpt": None, "from_scratch": "shape", "seed": 1}}
    assert format_provenance([scratch, steps[1]]) == "rtd from scratch (seed 1), then stsb (seed 3)"


# ------------------------------------------------------------------------ a run of version 0.3.0


@pytest.fixture
def old_run(arguments, tiny_folder, tiny_data, tmp_path):
    """The folder of a run with these arguments at layer 1, and its result as version 0.3.0 wrote it."""
    train.main([*arguments, "--layer", "1"])  # for the other files of the folder
    scores = {"spearman": -0.4999999999999999, "pearson": -0.8763373535828155}
    task = {
        "files": f"{tiny_data}/{{split}}.tsv",
        "min_score": 0.0,
        "max_score": 5.0,
        "label": "score",
        "classes": {},
        "objective": "cosine_mse",
        "metric": "spearman",
        "recipe": {},
    }
    recipe = {
        "epochs": 2,
        "batch_size": 2,
        "lr": 0.001,
        "weight_decay": 0.01,
        "warmup": 0.1,
        "max_grad_norm": 1.0,
        "precision": "fp32",
    }
    start = {
        "ckpt": str(tiny_folder),
        "init": "pretrained",
        "layer": 1,
        "seed": 0,
        "init_from": None,
        "pooling": None,
        "max_length": None,
    }
    result = {
        "sweep": "r",
        "settings": start | {"task": task} | recipe,
        "arguments": start | recipe | {
            "ckpt": [str(tiny_folder)], "layer": "1", "seeds": 1, "seed": None, "task": "stsb",
            "data": str(tiny_data), "data_root": None, "score_range": None, "device": "auto", "text": None,
            "from_scratch": None, "vocab_size": None, "generator_size": 0.25, "steps": None,
            "accumulate": None, "save_every": None, "half": False, "name": "r",
            "runs": str(tmp_path / "runs"),
        },
        "data": "pairs",
        "history": [],
        "num_hidden_layers": 4,
        "pooling": "mean",
        "max_length": 40,
        "epochs": [
            {"number": 1, "loss": 0.16752934455871582, "dev": scores, "best": True, "lr": 0.0005,
             "pairs_per_second": 57.2339201253318, "seconds": 0.06039634999979171},
            {"number": 2, "loss": 0.1668348511060079, "dev": scores, "best": False, "lr": 0.0,
             "pairs_per_second": 173.34583580502022, "seconds": 0.024233846999777597},
        ],
        "chosen_epoch": 1,
        "dev": scores,
        "test": {"pairs": 3} | scores,
        "parameters": {"paper": 6004, "stored": 6316},
        "precision": "fp32",
        "seconds": 2.27206672300008,
        "environment": {"commit": "f815bba9633cfac5d5aeabaa164f68eda68ec018", "versions": {"torch": "2.13.0"},
                        "device": "x86_64", "threads": 1},
    }  # fmt: skip
    folder = tmp_path / "runs/r-layer1-seed0"
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return folder, result


def test_an_old_run_with_the_same_settings_is_kept(old_run, arguments, capsys):
    folder, result = old_run
    capsys.readouterr()
    train.main([*arguments, "--layer", "1-2"])
    printed = capsys.readouterr().out
    assert printed.count("already finished, kept") == 1 and read_result(folder) == convert_result(result)
    assert printed.count("\n    1      1 ") == printed.count("\n    2      1 ") == 1  # both in one table


@pytest.mark.parametrize(
    ("words", "key"),
    [(["--lr", "2e-3"], "lr"), (["--selection-metric", "pearson"], "task"), (["--epochs", "3"], "epochs")],
)
def test_an_old_run_with_other_settings_is_not_overwritten(words, key, old_run, arguments):
    folder, result = old_run
    with pytest.raises(InputError, match=f"holds a finished run with {key} .*: choose another run_name"):
        train.main([*arguments, "--layer", "1", *words])
    assert json.loads((folder / "result.json").read_text()) == result


def test_an_old_run_is_scored_on_the_task_that_it_was_trained_on(old_run, tmp_path):
    folder, _ = old_run
    evaluate.main([str(folder), "--json", str(tmp_path / "scores.json")])
    scores = json.loads((tmp_path / "scores.json").read_text())["layers"]["1"]
    assert list(scores) == ["stsb"] and scores["stsb"]["pairs"] == 3


def test_an_old_run_is_in_a_report(old_run, tmp_path, capsys):
    capsys.readouterr()
    report.main([str(tmp_path / "runs")])
    line = r"^ *r +1 of 4 +0.01 M +-50.00 +-50.00 +-87.63 +1$"
    assert re.search(line, capsys.readouterr().out, re.MULTILINE)
    (sweep,) = group_into_sweeps(read_results(tmp_path / "runs"))
    assert (sweep.name, list(sweep.layers), sweep.metric) == ("r", [1], "spearman")


def test_an_old_run_is_the_start_of_a_chain(old_run, arguments, tmp_path):
    folder, result = old_run
    train.main([*arguments, "--layer", "1", "--init-from", str(folder), "--run-name", "next"])
    (past,) = read_result(tmp_path / "runs/next-layer1-seed0")["provenance"]
    converted = convert_result(result)
    expected = {key: converted[key] for key in ("data", "settings", "dev", "test")}
    assert past == expected == provenance_of(folder)[0]


def test_a_result_without_settings_has_other_settings(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(InputError, match="holds a finished run with lr None, not 1.0"):
        load_finished_result(tmp_path, {"lr": 1.0})


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "a\x9bb", "caf\udce9", "a/b", ".hidden", " "])
def test_a_run_name_that_no_terminal_or_folder_should_get_is_refused(name):
    with pytest.raises(InputError, match="use letters and digits, not a path"):
        check_run_name(name)


@pytest.mark.parametrize("name", [None, "stsb-layer9", "한국어", "two words"])
def test_an_ordinary_run_name_is_accepted(name):
    check_run_name(name)
