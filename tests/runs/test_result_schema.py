"""result.json of a stranger: every value of a real one in turn is replaced by what it must not be.

Whoever reads it then says so in one line, or has no need of it.
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

import evaluate
import train
from tmft.errors import InputError
from tmft.formatting import as_json
from tmft.reports.report import make_report
from tmft.runs import bootstrap as differ
from tmft.runs.result_schema import MOST, read_result
from tmft.runs.run_cards import curve_of, told_by
from tmft.runs.run_folder import finished_run, lineage, provenance_of, write_result
from tmft.runs.sweeps import read_results, summaries, sweeps_of

ABSENT = object()
NESTED = reduce(lambda inside, _: [inside], range(200), 0)
HOSTILE = [ABSENT, None, -1, 0, 10**9, 1e308, math.nan, 10**400, True, "", "x" * 5000, "a\x1b]0;b\n|",
           "\ud800", "../../x", "views", [], [[]], {}, {"a\nb": None}, NESTED]  # fmt: skip
UNREAD = """
    files min_score max_score columns empty label classes suite judge hidden recipe keep pooling tokens layers
    projection max_length weights chunk optimizer order ends gradients freeze every_layer matryoshka warmup
    precision weight_decay max_grad_norm environment start sentences text_tokens processes train runs name
    device text seeds steps step accumulate save_every half vocab_size generator_size subsets number best loss
    tokens_per_second pairs_per_second both distinct temperature teacher lines matrix dropout late scaled
""".split()


def places(value: object, at: tuple = ()) -> Iterator[tuple]:
    """Of every value inside: the keys that lead to it."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inside:
        yield (*at, key)
        yield from places(entry, (*at, key))


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
    """Without what no reader asks for, but for a few, so that the test is."""
    if isinstance(value, list):
        return [shorter(entry) for entry in value[:2]]
    if not isinstance(value, dict):
        return value
    return {key: shorter(entry) for key, entry in value.items() if key not in UNREAD}


@pytest.fixture
def fine(arguments, tmp_path) -> Path:
    """The last of two runs, one after the other."""
    train.main([*arguments, "--layer", "1"])
    before = tmp_path / "runs/r-layer1-seed0"
    train.main([*arguments, "--layer", "1", "--init-from", str(before), "--name", "s"])
    return tmp_path / "runs/s-layer1-seed0"


@pytest.fixture
def several(command, tmp_path) -> Path:  # noqa: F811
    train.main([*command, "--gradients", "compare", "--name", "m"])
    return tmp_path / "runs/m-layer4-seed0"


@pytest.fixture
def pretrained(tmp_path) -> Path:
    write_result(tmp_path / "runs/p", json.loads((ROOT / "data/twins/discriminator/result.json").read_text()))
    return tmp_path / "runs/p"


def readers(folder: Path) -> list:
    """Whatever reads the result of a run in runs/."""

    def told() -> None:
        result = read_result(folder)
        if "test" in result:
            told_by(result, curve_of(folder, result))

    def learnt() -> None:
        learnt = evaluate.what_it_learnt(str(folder))
        parts = evaluate.parts_of(learnt)
        evaluate.find_tasks(evaluate.parse_args([str(folder)]), parts, learnt.get("arguments", {}))

    return [
        lambda: make_report(folder.parent, folder.parent / "report"),
        lambda: as_json({"history": provenance_of(folder)}).encode(),
        lambda: lineage(provenance_of(folder)),
        lambda: finished_run(folder, {"ckpt": "x", "task": {"metric": "f1"}, "lr": 1.0, "new": None}),
        lambda: "\n".join(summaries([folder])).encode(),
        told,
        learnt,
    ]


@pytest.mark.parametrize("kind", ["fine", "several", "pretrained"])
def test_whatever_is_replaced_it_is_read_or_refused_in_one_line(kind, request, monkeypatch):
    folder = request.getfixturevalue(kind)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # this disk is not what is tested
    monkeypatch.setattr(differ, "R", 2)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # figures take long, and have a test of their own
    real = shorter(json.loads((folder / "result.json").read_text()))
    refused = 0
    for at in places(real):
        for value in HOSTILE:
            (folder / "result.json").write_text(json.dumps(replaced(real, at, value)))
            try:
                read_result(folder)
            except InputError as error:  # then every reader says so
                refused += 1
                assert "\n" not in str(error) and "\x1b" not in str(error) and len(str(error)) < 2000
                assert str(folder / "result.json") in str(error)
                continue
            for reader in readers(folder):
                try:
                    reader()
                except InputError as error:
                    assert "\n" not in str(error) and "\x1b" not in str(error), (at, value)
    assert refused > 300


def write(folder: Path, **values) -> Path:
    """A result that says so; a_b is the key b of a."""
    settings = {"ckpt": "x", "layer": 1, "seed": 0, "task": {"metric": "spearman", "objective": "dot"}}
    result = {"sweep": "r", "data": "pairs", "history": [], "num_hidden_layers": 4, "settings": settings}
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
        (
            {"settings__layer": 10**9},
            "has settings.layer 1000000000: expected a whole number from 0 to 1000;",
        ),
        ({"settings__layer": True}, "has settings.layer True: expected a whole number"),
        ({"settings__task__metric": "bleu"}, "has settings.task.metric 'bleu': expected one of spearman, "),
        ({"settings__seed": -1}, "has settings.seed -1: expected a whole number from 0"),
        ({"data": "../../x"}, "has data '../../x': expected a name, no path"),
        ({"test__spearman": "0.5"}, "has test.spearman '0.5': expected a number or null"),
        ({"test__a\n\x1b": [1]}, "has test.a?? [1]: expected a number or null"),
        ({"parameters__stored": 0}, "has parameters.stored 0: expected a whole number from 1"),
        ({"dev__spearman": 10 * MOST}, "expected a number or null"),
        ({"history": [{"settings": 1}]}, "has history.0.settings 1: expected an object"),
        ({"new": NESTED}, "expected at most 20 keys within keys"),
        ({"new": "\ud800"}, "holds half a letter"),
        ({"settings__seed": 10**4000}, "has settings.seed 1000"),
        ({"sweep": ABSENT}, "has no sweep: it is of another version of this code; run it again"),
        ({"settings__seed": ABSENT}, "has no settings.seed: it is of another version"),
        ({"settings__task__metric": ABSENT}, "has no settings.task.metric: it is of another version"),
        ({"parameters__stored": ABSENT}, "has no parameters.stored: it is of another version"),
    ],
)
def test_the_line_names_file_key_and_what_to_do(values, words, tmp_path):
    write(tmp_path / "runs/r", **values)
    with pytest.raises(InputError) as error:
        make_report(tmp_path / "runs", tmp_path / "report")
        summaries([tmp_path / "runs/r"])
    assert str(error.value).startswith(str(tmp_path / "runs/r/result.json")) and words in str(error.value)
    if "version" not in words:
        assert str(error.value).endswith("restore it, or run it again")


def test_undefined_scores_are_nan_once_they_are_read(tmp_path):
    result = read_result(write(tmp_path / "r", dev__spearman=None, test__pearson=math.nan))
    assert math.isnan(result["dev"]["spearman"]) and math.isnan(result["test"]["pearson"])


def test_a_pre_training_run_whose_loss_is_undefined_is_in_a_report(pretrained, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = json.loads((pretrained / "result.json").read_text())
    result["held_out"]["after"]["mlm_loss"] = math.nan
    write_result(pretrained, result)
    make_report(pretrained.parent, pretrained / "report")
    assert " to nan |" in (pretrained / "report/report.md").read_text()


def test_an_enormous_file_is_not_read(tmp_path):
    with open(write(tmp_path / "r") / "result.json", "r+b") as file:
        file.truncate(2**26 + 1)  # of no bytes on the disk
    with pytest.raises(InputError, match="result.json is no file, or one of more than 64 MB: remove it"):
        read_result(tmp_path / "r")


def test_what_ships_and_what_says_more_is_read_as_it_is(tmp_path):
    for path in (ROOT / "data/twins").glob("*/result.json"):
        assert read_result(path.parent) == json.loads(path.read_text())
    result = read_result(write(tmp_path / "r", new={"a": [1, None]}, settings__new="x", test__pairs=9))
    assert result["new"] == {"a": [1, None]} and result["settings"].get("other") is None
    assert result == json.loads((tmp_path / "r/result.json").read_text())


def test_a_figure_takes_any_name_and_the_largest_numbers(tmp_path):
    pytest.importorskip("matplotlib")
    name = "a$\\frac{$" + "x" * 5000 + "\x00\n"
    cosines = [{"cosines": {name: [1.0]}}, {"cosines": None}, {"cosines": {name: [MOST], "b": []}}]
    write(tmp_path / "runs/one", sweep=name, settings__layer=0, epochs=cosines)
    write(tmp_path / "runs/two", settings__layer=1000, test__spearman=MOST, parameters__stored=MOST)
    page = make_report(tmp_path / "runs", tmp_path / "report")
    assert len(list((tmp_path / "report").glob("*.svg"))) == 3 and not page.absent


def test_figures_are_named_after_the_data_and_lie_in_the_report(tmp_path):
    pytest.importorskip("matplotlib")
    write(tmp_path / "runs/one", data="a b) <img>")
    make_report(tmp_path / "runs", tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert "(a%20b%29%20%3Cimg%3E-layers.svg)" in page and "<img" not in page.replace("\\<", "")
    assert (tmp_path / "report/a b) <img>-layers.svg").is_file()


def test_names_in_tables_are_short_and_do_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    name = "a\x1b]0;b\x07\n# | c [d](http://e) <b>" + "x" * 5000
    scores = {"spearman": 0.5, "e\x1b|": 0.1}
    write(tmp_path / "runs/one", sweep=name, dev=scores, test=scores, seconds=1)
    evaluate.main(["--report", str(tmp_path / "runs"), "--out", str(tmp_path / "report")])
    printed = capsys.readouterr().out
    page = (tmp_path / "report/report.md").read_text()
    for text in (printed, page, *summaries([tmp_path / "runs/one"])):
        assert "\x1b" not in text and "\x07" not in text and "\n#  |" not in text and "x" * 300 not in text
    rows = [line.replace("\\|", "").count("|") for line in page.splitlines() if line.startswith("|")]
    assert rows == [8] * 3 + [6] * 3 and "[d\\](http" in page and "\\<b\\>" in page
    [sweep] = sweeps_of(read_results(tmp_path / "runs"))
    assert sweep.name == name  # in report.json it is whole
    history = [{"data": name, "settings": {"ckpt": name, "seed": 0}}]
    assert lineage(history).isprintable() and len(lineage(history)) < 500
