"""The search for a layer: short runs, which cost an eighth of a sweep, and then the run."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
from processes import run_together

import train
from tmft.errors import InputError
from tmft.runs.layer_search import plan_runs, shorten
from tmft.runs.run_config import FineTuningConfig, FineTuningRecipe
from tmft.runs.run_result import write_result
from tmft.runs.sweep_plan import expand_grid
from tmft.tasks import TASKS


def make_config(epochs: int = 10, ckpt="x") -> FineTuningConfig:
    return FineTuningConfig(ckpt=str(ckpt), task=TASKS["sample"], recipe=FineTuningRecipe(epochs=epochs))


@pytest.mark.parametrize(
    ("epochs", "num_epochs", "train_fraction"),
    [(10, 1, 1.0), (3, 1, 0.375), (40, 5, 1.0), (1, 1, 0.125), (15, 1, 1.0)],
)
def test_a_short_run_has_full_epochs_or_a_fraction_of_the_examples(epochs, num_epochs, train_fraction):
    short = shorten(make_config(epochs))
    assert (short.recipe.epochs, short.train_fraction) == (num_epochs, train_fraction)
    unscaled = replace(short, recipe=make_config(epochs).recipe, train_fraction=1.0)
    assert unscaled == make_config(epochs)  # nothing else has changed


def simulated(folder, curve: dict[int, float], epochs: int = 10):
    """Search with given dev scores of the short runs; return these runs and the full ones."""
    make_runs = partial(expand_grid, data="pairs", output_dir=folder / "runs")
    config = make_config(epochs, folder / "tiny")
    rounds = plan_runs([str(folder / "tiny")], "auto", [3, 4], config, make_runs)
    short_runs = next(rounds)
    for run in short_runs:
        run.folder.mkdir(parents=True)
        settings = json.loads(json.dumps(run.config.to_flat_dict()))
        scores = {"spearman": curve.get(run.config.layer, math.nan), "pearson": 0.0}
        result = {"sweep": run.sweep, "data": run.data, "provenance": [], "num_hidden_layers": 4}
        result |= {"settings": settings, "dev": scores, "test": scores, "parameters": {"stored": 1}}
        write_result(run.folder, result | {"seconds": 2.0})
    [full_runs] = rounds
    return short_runs, full_runs


def test_a_search_without_a_score_on_dev_chooses_no_layer(tmp_path, tiny_folder):
    with pytest.raises(InputError, match="layer auto: dev spearman is undefined at each layer"):
        simulated(tmp_path, {})


@pytest.mark.parametrize("epochs", [1, 3, 10, 20])
def test_a_search_costs_an_eighth_of_a_sweep_and_the_full_runs_have_all_seeds(tmp_path, tiny_folder, epochs):
    short_runs, full_runs = simulated(tmp_path, {0: 0.1, 1: 0.5, 2: 0.7, 3: 0.2, 4: 0.6}, epochs)
    assert [(run.config.layer, run.config.seed) for run in short_runs] == [(n, 3) for n in range(5)]
    assert [(run.config.layer, run.config.seed) for run in full_runs] == [(2, 3), (2, 4)]
    assert {(run.config.train_fraction, run.config.recipe.epochs) for run in full_runs} == {(1.0, epochs)}
    configs = [run.config for run in short_runs]
    cost = sum(config.layer * config.recipe.epochs * config.train_fraction for config in configs)
    assert cost <= epochs * (1 + 2 + 3 + 4) / 8 + 0.01
    assert {run.data for run in short_runs} == {"pairs-search"} and {run.data for run in full_runs} == {
        "pairs"
    }


@pytest.mark.parametrize(
    ("curve", "chosen", "words"),
    [
        ({1: 0.699, 2: 0.7, 4: 0.703}, 1, "layer 1 (69.90), 2 (70.00), 4 (70.30) cannot be told apart, and"),
        ({1: 0.61, 2: 0.7, 4: 0.704}, 2, "layer 2 (70.00), 4 (70.40) cannot be told apart, and the smallest"),
        ({1: 0.61, 2: 0.698, 4: 0.704}, 4, "by dev spearman, layer 4 (70.40) is best; now the full run"),
        ({2: 0.698, 4: 0.7}, 2, "layer 2 (69.80), 4 (70.00) cannot be told apart"),
    ],
)
def test_of_layers_that_cannot_be_told_apart_the_smallest_is_taken(
    curve, chosen, words, tmp_path, tiny_folder, capsys
):
    _, full_runs = simulated(tmp_path, curve)
    assert {run.config.layer for run in full_runs} == {chosen}
    assert words in capsys.readouterr().out


def test_the_command_finds_a_layer_and_resumes_an_interrupted_search(
    tiny_folder, tiny_data, tmp_path, capsys
):
    words = ["--ckpt", str(tiny_folder), "--data", str(tiny_data), "--layer", "auto", "--epochs", "2"]
    words += ["--output-dir", str(tmp_path / "runs")]
    train.main(words)
    printed = capsys.readouterr().out
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(folders) == 5 + 1 and printed.count("now the full run") == 1
    [full_run] = [name for name in folders if "search" not in name]
    result = json.loads((tmp_path / "runs" / full_run / "result.json").read_text())
    assert result["settings"]["train_fraction"] == 1.0 and result["settings"]["epochs"] == 2
    (tmp_path / "runs" / full_run / "result.json").unlink()
    train.main(words)
    again = capsys.readouterr().out
    assert again.count("already finished, kept") == 5
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
