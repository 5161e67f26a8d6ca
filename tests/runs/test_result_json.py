"""Damaged and hostile result.json files: every value of a real one in turn is replaced by a wrong one.

Each function that reads the file then raises an error of one line, or does not need the value.
"""

import json
import math
import os
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import reduce
from pathlib import Path

import pytest
from conftest import ROOT
from test_multitask import command, course  # noqa: F401

import train
from tmft.cli import report_command as report
from tmft.errors import InputError
from tmft.evaluation import bootstrap
from tmft.io.formatting import to_json
from tmft.reports.report import make_report
from tmft.runs.result_json import FORMAT, MAX_NUMBER, read_result
from tmft.runs.run_folder import load_finished_result
from tmft.runs.run_result import (
    FineTunedRun,
    card_data_from_result,
    format_provenance,
    read_provenance,
    write_result,
)
from tmft.runs.sweeps import group_into_sweeps, layer_curve, read_results, sweep_summaries

ABSENT = object()
NESTED = reduce(lambda inside, _: [inside], range(200), 0)
HOSTILE = [ABSENT, None, -1, 0, 10**9, 1e308, math.nan, 10**400, True, "", "x" * 5000, "a\x1b]0;b\n|",
           "\ud800", "../../x", "sub_embeddings", [], [[]], {}, {"a\nb": None}, NESTED]  # fmt: skip
UNUSED_KEYS = """
    min_score max_score empty_text classes task_type eval_files test_labels_hidden recipe
    token_weights layers projection max_length loss_weights mini_batch_size optimizer
    dev_fraction files columns label keep_layers environment
    task_sampling stopping_strategy gradient_surgery freeze_layers all_layers matryoshka_dims warmup_ratio
    weight_decay max_grad_norm start sentences text_tokens processes train output_dir
    run_name device text num_seeds steps step gradient_accumulation_steps save_steps save_fp16 vocab_size
    generator_size subsets epoch is_best tokens_per_second symmetric
    mask_duplicate_anchors temperature teacher max_lines similarity_weight dropout dropout_after_features
    rescale_to_labels quantization
""".split()


def locations(value: object, at: tuple = ()) -> Iterator[tuple]:
    """Yield the keys that lead to each value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inside:
        yield (*at, key)
        yield from locations(entry, (*at, key))


def replaced(result: dict, at: tuple, value: object) -> dict:
    result = deepcopy(result)
    *outer, last = at
    inside = reduce(lambda inside, key: inside[key], outer, result)
    if value is ABSENT:
        del inside[last]
    else:
        inside[last] = value
    return result


def shorter(value: object) -> object:
    """Remove keys that nothing reads and shorten lists, so that the test takes less time."""
    if isinstance(value, list):
        return [shorter(entry) for entry in value[:2]]
    if not isinstance(value, dict):
        return value
    return {key: shorter(entry) for key, entry in value.items() if key not in UNUSED_KEYS}


@pytest.fixture
def fine(arguments, tmp_path) -> Path:
    """A run that starts from another run."""
    train.main([*arguments, "--layer", "1"])
    before = tmp_path / "runs/r-layer1-seed0"
    train.main([*arguments, "--layer", "1", "--init-from", str(before), "--run-name", "s"])
    return tmp_path / "runs/s-layer1-seed0"


@pytest.fixture
def several(command, tmp_path) -> Path:  # noqa: F811
    train.main([*command, "--gradient-surgery", "log", "--run-name", "m"])
    return tmp_path / "runs/m-layer4-seed0"


@pytest.fixture
def pretrained(tmp_path) -> Path:
    write_result(tmp_path / "runs/p", read_result(ROOT / "data/twins/mlm-then-rtd"))
    return tmp_path / "runs/p"


def readers(folder: Path) -> list:
    """All functions that read the result of a run in runs/."""

    def make_card() -> None:
        result = read_result(folder)
        if "test" in result:
            card_data_from_result(result, layer_curve(folder, result))

    def find_tasks() -> None:
        FineTunedRun(str(folder)).tasks()

    return [
        lambda: make_report(folder.parent, folder.parent / "report"),
        lambda: to_json({"provenance": read_provenance(folder)}).encode(),
        lambda: format_provenance(read_provenance(folder)),
        lambda: load_finished_result(folder, {"ckpt": "x", "task": {"metric": "f1"}, "lr": 1.0, "new": None}),
        lambda: "\n".join(sweep_summaries([folder])).encode(),
        make_card,
        find_tasks,
    ]


@pytest.mark.parametrize("kind", ["fine", "several", "pretrained"])
def test_every_replaced_value_is_read_or_refused_in_one_line(kind, request, monkeypatch):
    folder = request.getfixturevalue(kind)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # for speed
    monkeypatch.setattr(bootstrap, "NUM_RESAMPLES", 2)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # figures are slow and tested below
    real = shorter(json.loads((folder / "result.json").read_text()))
    refused = 0
    for number, at in enumerate(locations(real)):
        for value in HOSTILE[number % 7 :: 7]:
            (folder / "result.json").write_text(json.dumps(replaced(real, at, value)))
            try:
                read_result(folder)
            except InputError as error:  # all other readers would raise the same
                refused += 1
                assert "\n" not in str(error) and "\x1b" not in str(error) and len(str(error)) < 2000
                assert str(folder / "result.json") in str(error)
                continue
            for reader in readers(folder):
                try:
                    reader()
                except InputError as error:
                    assert "\n" not in str(error) and "\x1b" not in str(error), (at, value)
    assert refused > 40


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
    }
    scores = {"spearman": 0.5, "pearson": 0.4}
    result |= {"dev": scores, "test": scores | {"pairs": 9}, "parameters": {"paper": 1, "stored": 2}}
    folder.mkdir(parents=True, exist_ok=True)
    for place, value in values.items():
        result = replaced(result, tuple(place.split("__")), value)
    (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"settings__layer": 10**9}, "(settings.layer is 1000000000)"),
        ({"settings__layer": True}, "(settings.layer is True)"),
        ({"settings__task__metric": "a b"}, "has no dev.a b: restore it"),
        ({"settings__task__metric": 1}, "(settings.task.metric is 1)"),
        ({"settings__seed": -1}, "(settings.seed is -1)"),
        ({"seconds": math.nan}, "(seconds is None)"),
        ({"test__spearman": "0.5"}, "(test.spearman is '0.5')"),
        ({"test__a\n\x1b": [1]}, "(test.a ? is [1])"),
        ({"parameters__stored": 0}, "(parameters.stored is 0)"),
        ({"dev__spearman": 10 * MAX_NUMBER}, f"(dev.spearman is {10 * MAX_NUMBER})"),
        ({"provenance": [{"settings": 1}]}, "(provenance.0.settings is 1)"),
        ({"new": NESTED}, "(new.0.0.0.0"),
        ({"new": "\ud800"}, "surrogates not allowed"),
        ({"settings__seed": 10**4000}, "(settings.seed is 1000"),
        ({"sweep": ABSENT}, "has no sweep: restore it, or run it again"),
        ({"settings__seed": ABSENT}, "has no settings.seed: restore it"),
        ({"settings__task__metric": ABSENT}, "has no settings.task.metric: restore it"),
        ({"parameters__stored": ABSENT}, "has no parameters.stored: restore it"),
    ],
)
def test_the_error_names_file_key_and_remedy(values, words, tmp_path):
    write(tmp_path / "runs/r", **values)
    with pytest.raises(InputError) as error:
        make_report(tmp_path / "runs", tmp_path / "report")
        sweep_summaries([tmp_path / "runs/r"])
    assert str(error.value).startswith(str(tmp_path / "runs/r/result.json")) and words in str(error.value)
    assert str(error.value).endswith("restore it, or run it again")


def test_undefined_scores_are_read_as_nan(tmp_path):
    result = read_result(write(tmp_path / "r", dev__spearman=None, test__pearson=math.nan))
    assert math.isnan(result["dev"]["spearman"]) and math.isnan(result["test"]["pearson"])


def test_a_report_shows_a_pre_training_run_with_an_undefined_loss(pretrained, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = json.loads((pretrained / "result.json").read_text())
    result["held_out"]["after"]["mlm_loss"] = math.nan
    write_result(pretrained, result)
    make_report(pretrained.parent, pretrained / "report")
    assert " to nan |" in (pretrained / "report/report.md").read_text()


def test_an_enormous_file_is_not_read(tmp_path):
    with open(write(tmp_path / "r") / "result.json", "r+b") as file:
        file.truncate(2**26 + 1)  # a sparse file: it takes no space
    with pytest.raises(InputError, match="result.json is not a file of at most 64 MB: remove it"):
        read_result(tmp_path / "r")


def test_unknown_keys_are_kept(tmp_path):
    result = read_result(write(tmp_path / "r", new={"a": [1, None]}, settings__new="x", test__pairs=9))
    assert result["new"] == {"a": [1, None]} and result["settings"].get("other") is None
    assert result == json.loads((tmp_path / "r/result.json").read_text())


def test_a_figure_takes_any_name_and_the_largest_numbers(tmp_path):
    pytest.importorskip("matplotlib")
    name = "a$\\frac{$" + "x" * 5000 + "\x00\n"
    cosines = [{name: [1.0]}, None, {name: [MAX_NUMBER], "b": []}]
    epochs = [{"gradient_cosines": of_epoch} for of_epoch in cosines]
    write(tmp_path / "runs/one", sweep=name, settings__layer=0, epochs=epochs)
    large = {"test__spearman": MAX_NUMBER, "parameters__stored": MAX_NUMBER}
    write(tmp_path / "runs/two", settings__layer=1000, **large)
    page = make_report(tmp_path / "runs", tmp_path / "report")
    assert len(list((tmp_path / "report").glob("*.svg"))) == 4 and not page.skipped_figures


def test_figures_are_named_after_the_data_and_are_in_the_report(tmp_path):
    pytest.importorskip("matplotlib")
    write(tmp_path / "runs/one", data="a b) <img>")
    make_report(tmp_path / "runs", tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert "(a-b-img-layers.svg)" in page and "<img" not in page.replace("\\<", "")
    assert (tmp_path / "report/a-b-img-layers.svg").is_file()


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
    assert rows == [8] * 3 + [6] * 3 and "[d\\](http" in page and "\\<b\\>" in page
    [sweep] = group_into_sweeps(read_results(tmp_path / "runs"))
    assert sweep.name == name  # complete in report.json
    text = format_provenance([{"data": name, "settings": {"ckpt": name, "seed": 0}}])
    assert text.isprintable() and len(text) < 500
