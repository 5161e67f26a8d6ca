"""result.json: the keys that its description names, values that others can read, and those of 0.3.0."""

import json
import re

import pytest
from conftest import SENTENCES

import evaluate
import train
from tmft import InputError
from tmft.runs import run_folder
from tmft.runs.run_folder import different, finished_run, lineage, provenance_of, read_result, write_result
from tmft.runs.sweeps import read_results, sweeps_of

# --------------------------------------------------------------------------------- what is described


def described() -> tuple[set[str], set[str]]:
    """The keys of result.json that the docstring of runs/run_folder.py names: of fine-tuning, of pre-training."""
    fine, shared, more = re.split(r"That of a pre-training run has|as well, and\n", run_folder.__doc__)

    def of_list(text: str) -> set[str]:
        """Lines of `key, key   meaning; key, key: meaning`; a line that goes on is indented further."""
        lines = re.findall(r"^    (\S.*(?:\n {5,}\S.*)*)", text, re.MULTILINE)
        named = [re.match(r"(?:\w+, )*\w+", line).group() for line in lines]
        named += [found for line in lines for found in re.findall(r"; ((?:\w+, )*\w+):", line)]
        return {key for group in named for key in group.split(", ")}

    in_both = set(re.findall(r"\w+", re.sub(r"\(.*?\)", "", shared))) - {"and"}
    return of_list(fine), in_both | of_list(more)


def test_a_fine_tuning_run_has_the_keys_that_are_described(arguments, tmp_path):
    train.main([*arguments, "--layer", "1"])
    result = read_result(tmp_path / "runs/r-layer1-seed0")
    assert result.keys() == described()[0]
    assert result["history"] == [] and result["parameters"].keys() == {"paper", "stored"}


@pytest.mark.parametrize("task", ["mlm", "rtd"])
def test_a_pre_training_run_has_the_keys_that_are_described(task, tiny_folder, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES * 9), encoding="utf-8")
    source = "--ckpt" if task == "mlm" else "--from-scratch"
    words = ["--task", task, source, str(tiny_folder), "--text", str(tmp_path / "text.txt"), "--steps", "1"]
    train.main([*words, "--runs", str(tmp_path / "runs"), "--max-length", "20", "--precision", "fp32"])
    result = read_result(tmp_path / f"runs/tiny-{task}-seed0")
    assert result.keys() == described()[1]
    assert result["held_out"].keys() == {"before", "after"} and result["data"] == task


def test_undefined_scores_are_null(tmp_path):
    write_result(tmp_path, {"dev": {"spearman": float("nan")}, "test": [float("inf"), 1.0]})
    assert json.loads((tmp_path / "result.json").read_text()) == {
        "dev": {"spearman": None},
        "test": [None, 1.0],
    }


# ------------------------------------------------------------------------------- with which settings


def test_of_a_task_only_what_both_say_is_compared():
    before = {"lr": 1.0, "task": {"files": "x", "metric": "spearman"}}
    assert different(before, {"lr": 1.0, "task": {"files": "x", "metric": "spearman", "suite": "s"}}) is None
    assert different(before, {"lr": 1.0, "task": {"files": "y", "metric": "spearman"}}) == "task"
    assert different(before, {"lr": 2.0, "task": {"files": "x"}}) == "lr"
    assert different(before, {"new": 1}) == "new"


def test_the_lineage_begins_with_a_checkpoint_or_from_scratch():
    steps = [{"data": "wordsim", "settings": {"ckpt": "google/electra", "seed": 0}},
             {"data": "stsb", "settings": {"ckpt": "x", "seed": 3}}]  # fmt: skip
    assert lineage(steps) == "google/electra, then wordsim (seed 0), then stsb (seed 3)"
    scratch = {"data": "rtd", "settings": {"ckpt": None, "from_scratch": "shape", "seed": 1}}
    assert lineage([scratch, steps[1]]) == "rtd from scratch (seed 1), then stsb (seed 3)"


# ---------------------------------------------------------------------------------- a run of 0.3.0


@pytest.fixture
def old_run(arguments, tiny_folder, tiny_data, tmp_path):
    """A run that 0.3.0 finished with these arguments at layer 1: the folder, and its result as it stood."""
    train.main([*arguments, "--layer", "1"])  # for the files beside result.json
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
    assert printed.count("finished before, kept") == 1 and read_result(folder) == result
    assert printed.count("\n    1      1 ") == printed.count("\n    2      1 ") == 1  # both in one table


@pytest.mark.parametrize(
    ("words", "key"),
    [(["--lr", "2e-3"], "lr"), (["--metric", "pearson"], "task"), (["--epochs", "3"], "epochs")],
)
def test_an_old_run_with_other_settings_is_not_overwritten(words, key, old_run, arguments):
    folder, result = old_run
    with pytest.raises(InputError, match=f"holds a finished run with {key} .*: choose another name"):
        train.main([*arguments, "--layer", "1", *words])
    assert read_result(folder) == result


def test_an_old_run_is_scored_on_the_task_it_learnt(old_run, tmp_path):
    folder, _ = old_run
    evaluate.main([str(folder), "--json", str(tmp_path / "scores.json")])
    scores = json.loads((tmp_path / "scores.json").read_text())["layers"]["1"]
    assert list(scores) == ["stsb"] and scores["stsb"]["pairs"] == 3


def test_an_old_run_is_in_a_report(old_run, tmp_path, capsys):
    capsys.readouterr()
    evaluate.main(["--report", str(tmp_path / "runs")])
    line = r"^ *r +1 of 4 +0.01 M +-50.00 +-50.00 +-87.63 +1$"
    assert re.search(line, capsys.readouterr().out, re.MULTILINE)
    (sweep,) = sweeps_of(read_results(tmp_path / "runs"))
    assert (sweep.name, list(sweep.layers), sweep.metric) == ("r", [1], "spearman")


def test_an_old_run_is_the_start_of_a_chain(old_run, arguments, tmp_path):
    folder, result = old_run
    train.main([*arguments, "--layer", "1", "--init-from", str(folder), "--name", "next"])
    (past,) = read_result(tmp_path / "runs/next-layer1-seed0")["history"]
    assert (
        past == {key: result[key] for key in ("data", "settings", "dev", "test")} == provenance_of(folder)[0]
    )


def test_a_result_that_says_nothing_is_of_other_settings(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(InputError, match="holds a finished run with lr None, now 1.0"):
        finished_run(tmp_path, {"lr": 1.0})
