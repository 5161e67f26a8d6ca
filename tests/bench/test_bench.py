"""The benchmarks, which are started by hand, run with the code of today: one round on a tiny model."""

import json
import sys
from pathlib import Path

import pytest
from conftest import ROOT, tiny_config

from tmft.datasets.task_lookup import get_task

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bench_train  # noqa: E402
import engines  # noqa: E402


@pytest.fixture
def work():
    texts = ["a man plays", "the cat eats", "music"], ["guitar", "a dog eats", "two dogs"]
    return bench_train.Work(get_task("stsb"), texts, [1.0, 2.0, 4.0], [*texts[0], *texts[1]])


def test_a_round_of_tmft_and_of_each_technique_switched_off(work, tiny_folder, monkeypatch):
    assert work.tmft(tiny_folder, 1, "fp32")() > 0
    values = []
    monkeypatch.setattr(
        bench_train, "measure", lambda peers, *_: values.extend(run() for run in peers.values())
    )
    monkeypatch.setattr(bench_train.Work, "read", classmethod(lambda cls, args: work))
    args = type("Args", (), {"ckpt": tiny_folder, "layer": 1, "rounds": 1})
    bench_train.bench_techniques(args)
    assert len(values) == 14 and min(values) > 0


@pytest.mark.slow
def test_a_step_of_a_family(work, tiny_folder, monkeypatch, capsys):
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


@pytest.mark.slow
def test_engines_are_measured_in_processes(tiny_data, tmp_path):
    """A row of each function of engine_process.py; the fused graph is that of a BERT."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("sentence_transformers")
    names = "ONNX Runtime, fused, int8", "tmft, bf16", "sentence-transformers, fp32 (default)"
    file, args = tmp_path / "engines.json", type("Args", (), {"data": tiny_data, "rounds": 1, "sentences": 3})
    args.ckpt, args.engines, args.json = ROOT / "data/twins/mlm", names, file
    engines.bench_engines(args)
    content = json.loads(file.read_text())
    rows = content["engines"]
    assert rows.keys() == set(names) and engines.table(content).count("\n") == 2 + len(names)
    assert rows[names[2]]["distance"] == pytest.approx(0, abs=1e-6)
    assert all(1e-7 < rows[name]["distance"] < 0.05 for name in names[:2])
    assert min(row[key] for row in rows.values() for key in ("speed", "milliseconds", "start")) > 0
    assert rows[names[0]]["megabytes"] < rows[names[1]]["megabytes"]


def test_the_rows_of_engines_on_the_page_are_those_of_the_measurements():
    content = json.loads((ROOT / "docs/engines.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/speed.md").read_text(encoding="utf-8")
    shown = page.partition("| engine |")[2].partition("\n\n")[0].split("\n")[2:]
    assert len(shown) > 10 and set(shown) <= set(engines.table(content).split("\n"))
