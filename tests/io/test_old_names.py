"""Results that version 0.11.0 wrote (tests/data_0_11) are read under the names of today."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import ROOT
from test_multitask import command, course  # noqa: F401

import evaluate
import train
from tmft.io import old_names
from tmft.io.old_names import convert_result, convert_settings, convert_task
from tmft.losses.registry import OBJECTIVES
from tmft.metrics import METRICS
from tmft.runs.result_schema import read_result
from tmft.runs.run_config import FineTuningConfig, FineTuningRecipe, PretrainingConfig
from tmft.runs.run_folder import jsonable
from tmft.runs.sweeps import group_into_sweeps, read_results
from tmft.tasks import TASKS, Task
from tmft.training.loop_state import EpochResult

OLD_FILES = ROOT / "tests/data_0_11"
RUNS = ["single", "chain", "contrastive", "several"]
OLD_RESULTS = [OLD_FILES / f"{name}.json" for name in RUNS]
SHIPPED_RESULTS = sorted((ROOT / "data/twins").glob("*/result.json"))
OLD_RESULTS += [path for path in SHIPPED_RESULTS if "history" in json.loads(path.read_text(encoding="utf-8"))]


def test_every_new_name_exists_today():
    fields = {
        name
        for config in (FineTuningConfig, FineTuningRecipe, PretrainingConfig)
        for name in config.__dataclass_fields__
    }
    fields |= set(PretrainingConfig.__dataclass_fields__["recipe"].type.__dataclass_fields__)
    assert set(old_names.SETTINGS.values()) <= fields and fields.isdisjoint(old_names.SETTINGS)
    assert set(old_names.TASK_FIELDS.values()) <= set(Task.__dataclass_fields__)
    assert set(old_names.EPOCH_FIELDS.values()) <= set(EpochResult.__dataclass_fields__)
    assert set(old_names.OBJECTIVES.values()) <= OBJECTIVES.keys()
    assert OBJECTIVES.keys().isdisjoint(old_names.OBJECTIVES)
    assert set(old_names.METRICS.values()) <= METRICS.keys()
    assert set(old_names.TASKS.values()) <= TASKS.keys()
    args = {
        name
        for objective in OBJECTIVES.values()
        for name in getattr(getattr(objective, "config_class", None), "__dataclass_fields__", {})
    }
    assert set(old_names.OBJECTIVE_ARGS.values()) <= args and args.isdisjoint(old_names.OBJECTIVE_ARGS)


@pytest.mark.parametrize("path", OLD_RESULTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_old_result_has_no_old_names_after_its_conversion(path):
    old = json.loads(path.read_text(encoding="utf-8"))
    new = convert_result(old)
    assert convert_result(new) == new != old
    assert "history" not in new and len(new["provenance"]) == len(old["history"])
    for run in [new, *new["provenance"]]:
        assert run["settings"].keys().isdisjoint(old_names.SETTINGS)
        if isinstance(run["settings"]["task"], dict):
            assert run["settings"]["task"].keys().isdisjoint(old_names.TASK_FIELDS)
    assert new["arguments"].keys().isdisjoint(old_names.ARGUMENTS)
    assert len(new["arguments"]) == len(old["arguments"]) and len(new["settings"]) == len(old["settings"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"order": "round-robin"}, {"task_sampling": "joint"}),
        ({"order": "in-turn"}, {"task_sampling": "round-robin"}),
        ({"task_sampling": "round-robin"}, {"task_sampling": "round-robin"}),  # of today
        ({"order": "one-by-one", "ends": "longest"},
         {"task_sampling": "sequential", "stopping_strategy": "all_exhausted"}),
        ({"order": "by-size", "gradients": "project"},
         {"task_sampling": "proportional", "gradient_surgery": "pcgrad"}),
        ({"gradients": "compare", "every_layer": "taught"},
         {"gradient_surgery": "log", "all_layers": "self-distill"}),
        ({"tokens": "words", "every_layer": None}, {"token_weights": "no-special", "all_layers": None}),
        ({"tokens": "idf", "weights": [1.0]}, {"token_weights": "idf", "loss_weights": [1.0]}),
        ({"half": True, "accumulate": 8}, {"save_fp16": True, "gradient_accumulation_steps": 8}),
        ({"order": ["x"], "task": 3, "keep": {}}, {"task_sampling": ["x"], "task": 3, "keep_layers": {}}),
        (None, None),
        ([], []),
    ],
)  # fmt: skip
def test_settings_are_converted_with_their_values(old, new):
    assert convert_settings(old) == new == convert_settings(new)


def test_the_scores_of_several_tasks_become_nested():
    old = json.loads((OLD_FILES / "several.json").read_text())
    new = convert_result(old)
    assert new["test"] == {
        "pairs": old["test"]["pairs"],
        "overall": old["test"]["overall"],
        "tasks": {
            name: {key: old["test"][f"{name} {key}"] for key in ("pairs", *metrics)}
            for name, metrics in [
                ("sst5", ("f1_macro", "accuracy")),
                ("quora", ("f1_macro", "accuracy")),
                ("cs224n-sts", ("spearman", "pearson")),
            ]
        },
    }
    assert new["epochs"][0]["dev"]["tasks"]["sst5"]["accuracy"] == old["epochs"][0]["dev"]["sst5 accuracy"]
    task = new["settings"]["task"]
    assert task["objective"] == "single_text_head, cosine_head, cosine_mse" and task["metric"] == "overall"
    assert task["subtasks"]["sst5"]["objective"] == "single_text_head"
    assert task["subtasks"]["sst5"]["empty_text"] == "."
    assert new["arguments"]["task"] == "sst5:single_text_head quora:cosine_head cs224n-sts"


def test_the_scores_of_layers_and_dimensions_are_converted():
    old = json.loads((OLD_FILES / "contrastive.json").read_text())
    new = convert_result(old)
    assert new["dev"]["sub_embeddings"] == old["dev"]["views"] and "views" not in new["test"]
    assert new["settings"]["task"]["objective_args"] == {"symmetric": False, "mask_duplicate_anchors": True}


def test_every_task_of_0_11_is_the_same_task_today():
    old_tasks = json.loads((OLD_FILES / "tasks.json").read_text())
    for name, old in old_tasks.items():
        assert convert_task(old) == jsonable(asdict(TASKS[old_names.TASKS.get(name, name)])), name


# ------------------------------------------------------------------------------------------ whole runs


def put_old_result(name: str, folder: Path, ckpt: Path, root: Path) -> None:
    """Replace the result of a run by the one that version 0.11.0 wrote for the same command."""
    text = (OLD_FILES / f"{name}.json").read_text()
    text = text.replace('"CKPT"', json.dumps(str(ckpt))).replace('"TMP', f'"{root}')
    (folder / "result.json").write_text(text)
    if (OLD_FILES / f"{name}-head.safetensors").is_file():
        shutil.copy(OLD_FILES / f"{name}-head.safetensors", folder / "head.safetensors")


OPTIONS = {
    "single": "--layer 1 --token-weights no-special --train-fraction 0.9 --projection 8",
    "chain": "--layer 1 --objective concat_head --dropout-after-features --rescale-scores --dropout 0.1",
    "contrastive": "--keep-layers 0,2 --objective multiple_negatives_ranking --no-symmetric "
    "--mask-duplicate-anchors --mini-batch-size 1 --all-layers sample --matryoshka-dims 8",
    "several": "--gradient-surgery log --task-sampling round-robin --stopping-strategy all_exhausted "
    "--loss-weights 1 2 0.5 --freeze-layers 1 --layer 2 "
    "--task sst5:single_text_head quora:cosine_head cs224n-sts",
}


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_is_the_same_finished_run(name, arguments, request, tiny_folder, tmp_path, capsys):
    """It is kept, scored with its old head, and in tables."""
    line = request.getfixturevalue("command") if name == "several" else arguments
    line = [*line, *OPTIONS[name].split(), "--run-name", name]
    folder = tmp_path / "runs" / f"{name}-layer{2 if name in ('contrastive', 'several') else 1}-seed0"
    if name == "chain":
        first = [*arguments, *OPTIONS["single"].split(), "--run-name", "single"]
        train.main(first)
        line += ["--init-from", str(tmp_path / "runs/single-layer1-seed0")]
    train.main(line)  # for the other files of the folder
    put_old_result(name, folder, tiny_folder, tmp_path)
    capsys.readouterr()
    train.main(line)
    printed = capsys.readouterr().out
    assert "already finished, kept" in printed and re.search(r"layer +seeds", printed)
    with pytest.raises(Exception, match="holds a finished run with lr 0.001, not 0.5"):
        train.main([*line, "--lr", "0.5"])
    sweeps = group_into_sweeps(read_results(tmp_path / "runs"))
    assert {sweep.name for sweep in sweeps} == ({"single", "chain"} if name == "chain" else {name})
    evaluate.main([str(folder), "--device", "cpu"])
    assert read_result(folder)["sweep"] == name
