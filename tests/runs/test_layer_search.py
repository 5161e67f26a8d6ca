"""The search for a layer: two rounds of short runs, cheaper than a quarter of a sweep, and then the run."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import ALONE
from processes import run_together

import train
from tmft.data import Examples
from tmft.datasets.task_lookup import subsample_train
from tmft.errors import InputError
from tmft.runs.layer_search import scale_budget, search_rounds
from tmft.runs.run_config import FineTuningConfig, FineTuningRecipe
from tmft.runs.run_result import write_result
from tmft.runs.sweep_plan import expand_grid
from tmft.tasks import TASKS


def make_config(epochs: int = 10, ckpt="x") -> FineTuningConfig:
    return FineTuningConfig(ckpt=str(ckpt), task=TASKS["sample"], recipe=FineTuningRecipe(epochs=epochs))


@pytest.mark.parametrize(
    ("epochs", "fraction", "num_epochs", "train_fraction"),
    [(10, 1 / 8, 1, 1.0), (3, 1 / 8, 1, 0.375), (3, 0.9, 2, 1.0), (40, 1 / 8, 5, 1.0), (1, 1, 1, 1.0)],
)
def test_a_scaled_budget_is_full_epochs_or_a_fraction_of_the_examples(
    epochs, fraction, num_epochs, train_fraction
):
    short = scale_budget(make_config(epochs), fraction)
    assert (short.recipe.epochs, short.train_fraction) == (num_epochs, train_fraction)
    assert short.recipe.epochs * short.train_fraction <= fraction * epochs
    unscaled = replace(short, recipe=make_config(epochs).recipe, train_fraction=1.0)
    assert unscaled == make_config(epochs)  # nothing else has changed


def simulated(folder, curves: list[dict[int, float]], epochs: int, layers: int):
    """Search with given dev scores, round by round, and return the lists of runs, in order."""
    rounds = []

    def make_runs(ckpts, layers_, seeds, base_config, suffix=""):
        runs = expand_grid(ckpts, layers_, seeds, base_config, "pairs", folder / "runs", None, suffix)
        rounds.append(runs)
        return runs

    for runs in search_rounds(
        [str(folder / "tiny")], "auto", [3, 4], make_config(epochs, folder / "tiny"), make_runs, ALONE
    ):
        if len(rounds) <= len(curves):
            for run in runs:
                run.folder.mkdir(parents=True)
                settings = json.loads(json.dumps(run.config.to_flat_dict()))
                scores = {"spearman": curves[len(rounds) - 1][run.config.layer], "pearson": 0.0}
                result = {"sweep": run.sweep, "data": run.data, "provenance": []}
                result |= {"num_hidden_layers": layers}
                result |= {"settings": settings, "dev": scores, "test": scores, "parameters": {"stored": 1}}
                result |= {"seconds": 2.0}
                write_result(run.folder, result)
    return rounds


@pytest.mark.parametrize("curves", [[dict.fromkeys(range(5), float("nan"))], [{1: 0.5, 2: 0.4, 4: 0.3}] * 2])
def test_a_search_without_a_score_on_dev_chooses_no_layer(tmp_path, tiny_folder, curves):
    nan = float("nan")
    curves = [{layer: curve.get(layer, nan) for layer in range(5)} for curve in curves]
    curves[-1] = dict.fromkeys(range(5), nan)
    with pytest.raises(InputError, match="layer auto: dev spearman is undefined at each layer"):
        simulated(tmp_path, curves, 3, 4)


@pytest.mark.parametrize("epochs", [1, 3, 10, 20])
def test_the_best_three_are_run_longer_and_the_best_of_those_is_chosen(tmp_path, tiny_folder, epochs, capsys):
    first = {0: 0.1, 1: 0.5, 2: 0.4, 3: 0.2, 4: 0.6}
    one, two, last = simulated(tmp_path, [first, {1: 0.61, 2: 0.7, 4: 0.65}], epochs, 4)
    assert [run.config.layer for run in one] == [0, 1, 2, 3, 4] and {run.config.seed for run in one} == {3}
    assert [run.config.layer for run in two] == [1, 2, 4] and {run.config.seed for run in two} == {3}
    assert [(run.config.layer, run.config.seed) for run in last] == [(2, 3), (2, 4)]
    assert {run.config.train_fraction for run in last} == {1.0}
    assert {run.config.recipe.epochs for run in last} == {epochs}
    cost = sum(run.config.layer * run.config.recipe.epochs * run.config.train_fraction for run in one + two)
    assert cost <= epochs * (1 + 2 + 3 + 4) / 4 + 0.01
    printed = capsys.readouterr().out
    assert "layer 2 of 1, 2, 4 is best, dev spearman 70.00; its runs took 0:00:16, now" in printed
    assert {run.data for run in one} == {"pairs-search1"} and {run.data for run in last} == {"pairs"}
    assert all(run.is_trial for run in one + two) and not any(run.is_trial for run in last)


@pytest.mark.parametrize(
    ("second", "chosen", "words"),
    [
        ({1: 0.699, 2: 0.7, 4: 0.703}, 1, "layers 1 (69.90), 2 (70.00), 4 (70.30) of 1, 2, 4 cannot be told"),
        ({1: 0.61, 2: 0.7, 4: 0.704}, 2, "layers 2 (70.00), 4 (70.40) of 1, 2, 4 cannot be told apart"),
        ({1: 0.61, 2: 0.698, 4: 0.704}, 4, "layer 4 of 1, 2, 4 is best, dev spearman 70.40"),
        ({1: float("nan"), 2: 0.698, 4: 0.7}, 2, "layers 2 (69.80), 4 (70.00) of 1, 2, 4 cannot be told"),
    ],
)
def test_of_layers_that_cannot_be_told_apart_the_smallest_is_taken(
    second, chosen, words, tmp_path, tiny_folder, capsys
):
    first = {0: 0.1, 1: 0.5, 2: 0.4, 3: 0.2, 4: 0.6}
    *_, last = simulated(tmp_path, [first, second], 10, 4)
    assert {run.config.layer for run in last} == {chosen}
    assert words in capsys.readouterr().out


def test_a_train_fraction_is_drawn_by_the_seed_from_train_alone():
    train_set = Examples(([f"a{n}" for n in range(40)], [f"b{n}" for n in range(40)]), list(range(40)))
    vectors = Examples(([f"a{n}" for n in range(40)],), torch.arange(80).view(40, 2))
    data = {"x": {"train": train_set, "dev": train_set}, "y": {"train": vectors, "dev": vectors}}
    part = subsample_train(data, 0.25, 0)
    assert len(part["x"]["train"]) == 10 and part["x"]["dev"] is train_set
    for a, b, label in zip(*part["x"]["train"].texts, part["x"]["train"].labels, strict=True):
        assert (a, b) == (f"a{label}", f"b{label}")
    for a, label in zip(*part["y"]["train"].texts, part["y"]["train"].labels, strict=True):
        assert label.tolist() == [2 * int(a[1:]), 2 * int(a[1:]) + 1]
    assert subsample_train(data, 0.25, 0)["x"]["train"].labels == part["x"]["train"].labels
    assert subsample_train(data, 0.25, 1)["x"]["train"].labels != part["x"]["train"].labels
    assert subsample_train(data, 1.0, 0) is data and len(subsample_train(data, 1e-6, 0)["x"]["train"]) == 2


def test_the_command_finds_a_layer_and_resumes_an_interrupted_search(
    tiny_folder, tiny_data, tmp_path, capsys
):
    words = ["--ckpt", str(tiny_folder), "--data", str(tiny_data), "--layer", "auto", "--epochs", "2"]
    words += ["--output-dir", str(tmp_path / "runs")]
    train.main(words)
    printed = capsys.readouterr().out
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(folders) == 5 + 3 + 1 and printed.count("now the full run") == 1
    trials, _, full = printed.partition("now the full run")  # of the candidates, test says nothing
    assert "test spearman" not in trials and trials.count("dev spearman") > 8 and "test spearman" in full
    assert trials.count("dev has ") == 2 and "test has " in full
    [full_run] = [name for name in folders if "search" not in name]
    result = json.loads((tmp_path / "runs" / full_run / "result.json").read_text())
    assert result["settings"]["train_fraction"] == 1.0 and result["settings"]["epochs"] == 2
    (tmp_path / "runs" / full_run / "result.json").unlink()
    train.main(words)
    again = capsys.readouterr().out
    assert again.count("already finished, kept") == 8
    assert json.loads((tmp_path / "runs" / full_run / "result.json").read_text())["dev"] == result["dev"]


@pytest.mark.slow
def test_two_processes_share_the_search(tiny_folder, tiny_data, tmp_path):
    words = ["--ckpt", str(tiny_folder), "--data", str(tiny_data), "--layer", "auto", "--epochs", "1"]
    done = run_together(2, *words, "--output-dir", str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    train.main([*words, "--output-dir", str(tmp_path / "one")])
    names = [sorted(path.name for path in (tmp_path / where).iterdir()) for where in ("one", "two")]
    assert names[0] == names[1]
    assert done.stdout.count("now the full run") == 1
