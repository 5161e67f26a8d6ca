"""Damaged result.json files: the error names file, key and remedy, and names from a file do no harm."""

import json
import math
import sys
from copy import deepcopy
from functools import reduce
from pathlib import Path

import pytest

from tmft.cli import report_command as report
from tmft.errors import InputError
from tmft.reports.report import make_report
from tmft.runs.result_json import FORMAT, format_provenance, read_result
from tmft.runs.sweeps import group_into_sweeps, read_results, sweep_summaries

ABSENT = object()


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
        ({"settings__task__metric": "a b"}, "has no dev.a b: restore it"),
        ({"seconds": math.nan}, "(seconds is None)"),
        ({"test__spearman": "0.5"}, "(test.spearman is '0.5')"),
        ({"test__a\n\x1b": [1]}, "(test.a ? is [1])"),
        ({"parameters__stored": 0}, "(parameters.stored is 0)"),
        ({"provenance": [{"settings": 1}]}, "(provenance.0.settings is 1)"),
        ({"settings__seed": 10**4000}, "(settings.seed is 1000"),
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


def test_unknown_keys_are_kept(tmp_path):
    result = read_result(write(tmp_path / "r", new={"a": [1, None]}, settings__new="x", test__pairs=9))
    assert result["new"] == {"a": [1, None]} and result["settings"].get("other") is None
    assert result == json.loads((tmp_path / "r/result.json").read_text())


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
