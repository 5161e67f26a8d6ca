"""tests/bench/students.py measures runs of distillation; docs/research/students.md says what it measured."""

import json
import sys
from pathlib import Path

import pytest
from conftest import ROOT

sys.path.insert(0, str(Path(__file__).resolve().parent))

from students import measure_run, scaling_table  # noqa: E402

RUNS = json.loads((ROOT / "docs/students-scaling.json").read_text(encoding="utf-8"))


def test_the_table_of_the_page_is_that_of_the_measurements():
    assert scaling_table(RUNS) in (ROOT / "docs/research/students.md").read_text(encoding="utf-8")


def test_a_run_is_measured_by_its_result_and_its_saved_model(tmp_path, tiny_folder, real_data, monkeypatch):
    import train

    monkeypatch.setattr("students.STS", ("stsb",))
    text = tmp_path / "lines.txt"
    text.write_text(
        "".join(f"a man plays {word}\n" for word in "guitar piano music cards chess chess".split())
    )
    line = ["--ckpt", tiny_folder, "--teacher", tiny_folder, "--text", text, "--layer", "1", "--epochs", "2"]
    options = ["--data-root", real_data, "--precision", "fp32", "--output-dir", tmp_path / "runs"]
    train.main([*map(str, line), *map(str, options)])
    [folder] = (tmp_path / "runs").iterdir()
    measured = measure_run("narrow", folder, str(real_data))
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert (measured["lines"], measured["epochs"]) == (5, 2)
    assert measured["parameters"] == result["parameters"]["stored"]
    assert measured["test"] == {"stsb": pytest.approx(100 * result["test"]["spearman"], abs=0.001)}
