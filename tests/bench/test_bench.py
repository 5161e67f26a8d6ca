"""The benchmarks, which are started by hand, run with the code of today: one round on a tiny model."""

import json
import sys
from pathlib import Path

import pytest
from conftest import ROOT, tiny_config

from tmft.datasets.task_lookup import get_task

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture
def bench_train():
    module = pytest.importorskip("bench_train")
    yield module


@pytest.fixture
def work(bench_train):
    texts = ["a man plays", "the cat eats", "music"], ["guitar", "a dog eats", "two dogs"]
    return bench_train.Work(get_task("stsb"), texts, [1.0, 2.0, 4.0], [*texts[0], *texts[1]])


def test_a_round_of_tmft_and_of_each_technique_switched_off(bench_train, work, tiny_folder, monkeypatch):
    assert work.tmft(tiny_folder, 1, "fp32")() > 0
    values = []
    monkeypatch.setattr(
        bench_train, "measure", lambda peers, *_: values.extend(run() for run in peers.values())
    )
    monkeypatch.setattr(bench_train.Work, "read", classmethod(lambda cls, args: work))
    args = type("Args", (), {"ckpt": tiny_folder, "layer": 1, "rounds": 1})
    bench_train.bench_techniques(args)
    assert len(values) == 14 and min(values) > 0


def test_a_round_of_a_peer(bench_train, work, tiny_folder):
    pytest.importorskip("transformers")
    assert bench_train.truncated(work, tiny_folder, 1, fused=True)() > 0


@pytest.mark.slow
def test_a_step_of_a_family(bench_train, work, tiny_folder, monkeypatch, capsys):
    pytest.importorskip("sentence_transformers")
    values = {}

    def once(peers, *_):
        values.update({name: run() for name, run in peers.items()})
        return values

    monkeypatch.setattr(bench_train, "measure", once)
    monkeypatch.setattr(bench_train.Work, "read", classmethod(lambda cls, args: work))
    monkeypatch.setitem(bench_train.BASE_WIDTH, "small", tiny_config(model_type="modernbert"))
    options = {"ckpt": tiny_folder, "data": tiny_folder, "layer": 1, "rounds": 1}
    bench_train.bench_family(type("Args", (), options), "small")
    assert {"transformers, fused", "tmft fp32"} <= values.keys()
    assert min(values.values()) > 0 and "architecture of small" in capsys.readouterr().out


@pytest.fixture
def engines(tmp_path, monkeypatch):
    """engines.py with an environment that is complete, and which holds 500,000 bytes of packages."""
    module = pytest.importorskip("engines")
    packages = tmp_path / "own/lib/python3.11/site-packages"
    for name, size in {"numpy/a.so": 300_000, "six.py": 200_000, "pip/b.py": 999_999}.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_bytes(b"x" * size)
    python = tmp_path / "own/bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "own/installed.json").write_text("[]")
    monkeypatch.setattr(module, "ENVIRONMENTS", {"own": [], "none": ["--no-index", "absent-package"]})
    return module


def test_engines_are_measured_in_processes_and_those_that_fail_are_listed_with_the_reason(
    engines, tiny_folder, tiny_data, tmp_path, monkeypatch
):
    rows = {"fp32": ("own", "tmft", {"precision": "fp32"}), "int5": ("own", "tmft", {"precision": "int5"})}
    rows |= {"half": ("own", "tmft", {"precision": "fp32"}), "not installed": ("none", "tmft", {})}
    model = {"half": "small"}
    monkeypatch.setattr(
        engines,
        "ENGINES",
        [
            engines.Engine(name, environment, function, model.get(name, engines.MINILM), options)
            for name, (environment, function, options) in rows.items()
        ],
    )
    options = {"format": "sentence-transformers", "dtype": "bfloat16"}
    monkeypatch.setattr(engines, "MODELS", {"small": ("own", "export", engines.MINILM, options)})
    file = tmp_path / "engines.json"
    args = {"ckpt": tiny_folder, "data": tiny_data, "environments": tmp_path, "engines": None, "json": file}
    engines.bench_engines(type("Args", (), args | {"rounds": 1, "sentences": 3}))
    content = json.loads(file.read_text())
    assert content["missing"].keys() == {"int5", "not installed"}
    assert "int5" in content["missing"]["int5"] and "absent-package" in content["missing"]["not installed"]
    exact, half = (content["engines"][name] for name in ("fp32", "half"))
    assert exact["distance"] == pytest.approx(0, abs=1e-6) and 1e-7 < half["distance"] < 0.01
    assert 0 < half["megabytes"] < exact["megabytes"]
    assert min(row[key] for row in (exact, half) for key in ("speed", "milliseconds", "start")) > 0
    assert content["environments"]["own"]["megabytes"] == 0.5
    assert engines.table(content).count("\n") == 4


def test_the_rows_of_engines_on_the_page_are_those_of_the_measurements():
    module = pytest.importorskip("engines")
    content = json.loads((ROOT / "docs/engines.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/speed.md").read_text(encoding="utf-8")
    shown = page.partition("| engine |")[2].partition("\n\n")[0].split("\n")[2:]
    assert len(shown) > 10 and set(shown) <= set(module.table(content).split("\n"))
