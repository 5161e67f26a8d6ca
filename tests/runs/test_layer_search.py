"""--layer auto: two rounds of short runs, cheaper than a quarter of a sweep, and then the run."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import torchrun

import train
from tmft.data import TASKS, Examples
from tmft.datasets.task_lookup import with_share
from tmft.distributed import Processes
from tmft.errors import InputError
from tmft.runs.layer_search import round_of, stages
from tmft.runs.run_config import FineTuningConfig
from tmft.runs.run_folder import write_result
from tmft.runs.sweep_plan import plan
from tmft.training.loop import Recipe

ALONE = Processes(0, 1, torch.device("cpu"))


def like_of(epochs: int = 10, ckpt="x") -> FineTuningConfig:
    return FineTuningConfig(ckpt=str(ckpt), task=TASKS["sample"], recipe=Recipe(epochs=epochs))


@pytest.mark.parametrize(
    ("epochs", "part", "whole", "share"),
    [(10, 1 / 8, 1, 1.0), (3, 1 / 8, 1, 0.375), (3, 0.9, 2, 1.0), (40, 1 / 8, 5, 1.0), (1, 1, 1, 1.0)],
)
def test_a_part_of_the_epochs_is_whole_ones_or_a_share_of_the_examples(epochs, part, whole, share):
    short = round_of(like_of(epochs), part)
    assert (short.recipe.epochs, short.share) == (whole, share)
    assert short.recipe.epochs * short.share <= part * epochs
    assert replace(short, recipe=like_of(epochs).recipe, share=1.0) == like_of(epochs)  # nothing else


def simulated(folder, curves: list[dict[int, float]], epochs: int, layers: int):
    """Runs whose dev scores are given, round by round -> the lists of runs, in order."""
    asked = []

    def planned(ckpts, layers_, seeds, like, mark=""):
        runs = plan(ckpts, layers_, seeds, like, "pairs", folder / "runs", None, mark)
        asked.append(runs)
        return runs

    for runs in stages(
        [str(folder / "tiny")], "auto", [3, 4], like_of(epochs, folder / "tiny"), planned, ALONE
    ):
        if len(asked) <= len(curves):
            for run in runs:
                run.folder.mkdir(parents=True)
                settings = json.loads(json.dumps(run.what.settings))
                scores = {"spearman": curves[len(asked) - 1][run.what.layer], "pearson": 0.0}
                result = {"sweep": run.sweep, "data": run.data, "history": [], "num_hidden_layers": layers}
                result |= {"settings": settings, "dev": scores, "test": scores, "parameters": {"stored": 1}}
                (run.folder / "result.json").write_text(json.dumps(result))
    return asked


@pytest.mark.parametrize("epochs", [1, 3, 10, 20])
def test_the_best_three_are_run_longer_and_the_best_of_those_is_chosen(tmp_path, tiny_folder, epochs, capsys):
    first = {0: 0.1, 1: 0.5, 2: 0.4, 3: 0.2, 4: 0.6}
    one, two, last = simulated(tmp_path, [first, {1: 0.61, 2: 0.7, 4: 0.65}], epochs, 4)
    assert [run.what.layer for run in one] == [0, 1, 2, 3, 4] and {run.what.seed for run in one} == {3}
    assert [run.what.layer for run in two] == [1, 2, 4] and {run.what.seed for run in two} == {3}
    assert [(run.what.layer, run.what.seed) for run in last] == [(2, 3), (2, 4)]
    assert {run.what.share for run in last} == {1.0} and {run.what.recipe.epochs for run in last} == {epochs}
    cost = sum(run.what.layer * run.what.recipe.epochs * run.what.share for run in one + two)
    assert cost <= epochs * (1 + 2 + 3 + 4) / 4 + 0.01
    assert "layer 2 of 1, 2, 4, dev spearman 70.00" in capsys.readouterr().out
    assert {run.data for run in one} == {"pairs-search1"} and {run.data for run in last} == {"pairs"}


def test_a_layer_whose_score_is_undefined_is_not_chosen(tmp_path, tiny_folder):
    first = {0: float("nan"), 1: 0.5, 2: float("nan"), 3: 0.2, 4: 0.6}
    _, two, last = simulated(tmp_path, [first, {1: 0.6, 3: float("nan"), 4: 0.5}], 10, 4)
    assert [run.what.layer for run in two] == [1, 3, 4] and last[0].what.layer == 1


def test_results_that_are_not_of_one_search_are_one_line(tmp_path, tiny_folder):
    def planned(ckpts, layers, seeds, like, mark=""):
        return plan(ckpts, layers, seeds, like, "pairs", tmp_path / "runs", None, mark)

    rounds = stages([str(tiny_folder)], "auto", [0], like_of(ckpt=tiny_folder), planned, ALONE)
    for run in next(rounds):
        scores = {"spearman": 0.5}
        result = {"sweep": f"x{run.what.layer}", "data": "pairs", "history": [], "num_hidden_layers": 4}
        result |= {"settings": run.what.settings, "dev": scores, "test": scores, "parameters": {"stored": 1}}
        write_result(run.folder, result)
    with pytest.raises(InputError, match="are not of one search .result.json.: remove them"):
        next(rounds)


def test_other_layers_are_one_list_of_runs(tmp_path, tiny_folder):
    def planned(ckpts, layers, seeds, like, mark=""):
        return plan(ckpts, layers, seeds, like, "pairs", tmp_path, None, mark)

    [runs] = stages([str(tiny_folder)], "1,2", [0], like_of(ckpt=tiny_folder), planned, ALONE)
    assert [run.folder.name for run in runs] == ["tiny-pairs-layer1-seed0", "tiny-pairs-layer2-seed0"]


def test_a_share_is_drawn_by_the_seed_from_train_alone():
    train_set = Examples(([f"a{n}" for n in range(40)], [f"b{n}" for n in range(40)]), list(range(40)))
    vectors = Examples(([f"a{n}" for n in range(40)],), torch.arange(80).view(40, 2))
    data = {"x": {"train": train_set, "dev": train_set}, "y": {"train": vectors, "dev": vectors}}
    part = with_share(data, 0.25, 0)
    assert len(part["x"]["train"]) == 10 and part["x"]["dev"] is train_set
    for a, b, label in zip(*part["x"]["train"].texts, part["x"]["train"].labels, strict=True):
        assert (a, b) == (f"a{label}", f"b{label}")
    for a, label in zip(*part["y"]["train"].texts, part["y"]["train"].labels, strict=True):
        assert label.tolist() == [2 * int(a[1:]), 2 * int(a[1:]) + 1]
    assert with_share(data, 0.25, 0)["x"]["train"].labels == part["x"]["train"].labels
    assert with_share(data, 0.25, 1)["x"]["train"].labels != part["x"]["train"].labels
    assert with_share(data, 1.0, 0) is data and len(with_share(data, 1e-6, 0)["x"]["train"]) == 2


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_is_above_0_and_at_most_1(share):
    with pytest.raises(InputError, match="share"):
        replace(like_of(), share=share)


def test_the_command_finds_a_layer_and_goes_on_where_it_was_stopped(tiny_folder, tiny_data, tmp_path, capsys):
    words = ["--ckpt", str(tiny_folder), "--data", str(tiny_data), "--layer", "auto", "--epochs", "2"]
    words += ["--runs", str(tmp_path / "runs")]
    train.main(words)
    said = capsys.readouterr().out
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(folders) == 5 + 3 + 1 and said.count("now the whole run") == 1
    [whole] = [name for name in folders if "search" not in name]
    result = json.loads((tmp_path / "runs" / whole / "result.json").read_text())
    assert result["settings"]["share"] == 1.0 and result["settings"]["epochs"] == 2
    (tmp_path / "runs" / whole / "result.json").unlink()
    train.main(words)
    again = capsys.readouterr().out
    assert again.count("finished before, kept") == 8
    assert json.loads((tmp_path / "runs" / whole / "result.json").read_text())["dev"] == result["dev"]


@pytest.mark.slow
def test_two_processes_share_the_search(tiny_folder, tiny_data, tmp_path):
    words = ["--ckpt", str(tiny_folder), "--data", str(tiny_data), "--layer", "auto", "--epochs", "1"]
    done = torchrun(2, *words, "--runs", str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    train.main([*words, "--runs", str(tmp_path / "one")])
    names = [sorted(path.name for path in (tmp_path / where).iterdir()) for where in ("one", "two")]
    assert names[0] == names[1]
    assert done.stdout.count("now the whole run") == 1
