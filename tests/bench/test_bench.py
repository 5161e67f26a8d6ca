"""The benchmarks, which are started by hand, run with the code of today: one round on a tiny model."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, tiny_config

from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.datasets.task_lookup import get_task
from tmft.sentence_encoder import SentenceEncoder

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
    assert len(values) == 16 and min(values) > 0


def test_a_round_of_a_peer(bench_train, work, tiny_folder):
    pytest.importorskip("transformers")
    assert bench_train.truncated(work, tiny_folder, 1, fused=True)() > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["modernbert", "nomic_bert", "qwen3"])
def test_a_step_and_encoding_of_a_family(family, bench_train, work, tiny_folder, monkeypatch, capsys):
    pytest.importorskip("sentence_transformers")
    values = {}

    def once(peers, *_):
        values.update({name: run() for name, run in peers.items()})
        return values

    monkeypatch.setattr(bench_train, "measure", once)
    monkeypatch.setattr(bench_train, "machine_rates", lambda: (1.0, 1.0, 1.0))
    monkeypatch.setattr(bench_train.Work, "read", classmethod(lambda cls, args: work))
    monkeypatch.setitem(bench_train.BASE_WIDTH, "small", tiny_config(model_type=family))
    options = {"ckpt": tiny_folder, "data": tiny_folder, "layer": 1, "rounds": 1, "sentences": 4}
    bench_train.bench_family(type("Args", (), options), "small")
    assert {"transformers, fused", "sentence-transformers, batch 32", "tmft fp32"} <= values.keys()
    assert min(values.values()) > 0 and "architecture of small" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_libraries_that_load_a_made_checkpoint_have_the_same_weights(dtype, tmp_path):
    module = pytest.importorskip("bench_load")
    pytest.importorskip("transformers")
    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    small |= {"num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 20}
    content = module.QWEN3 | small
    module.write_checkpoint(content, tmp_path)
    sums = []
    for imports, load in module.loaders(tmp_path, "qwen3", 2, dtype).values():
        scope = {"torch": torch}
        exec(imports, scope)
        weights = list(eval(load, scope).parameters())
        assert {weight.dtype for weight in weights} == {getattr(torch, dtype)}
        sums.append(sum(weight.double().sum() for weight in weights).item())
    assert sums[0] == pytest.approx(sums[1], rel=1e-12)


@pytest.fixture
def long_model(tiny_folder, tmp_path):
    """bench_long, the folder of a tiny model that it writes, and a text of 700 tokens."""
    module = pytest.importorskip("bench_long")
    small = {"vocab_size": 100, "hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 20}
    module.write_model(module.SHAPES["ModernBERT-base"] | small, 3, tiny_folder, tmp_path / "long")
    return module, tmp_path / "long", module.random_text(load_tokenizer(tiny_folder), 700)


def test_the_libraries_that_encode_a_long_text_give_the_same_embedding(long_model):
    pytest.importorskip("sentence_transformers")
    module, folder, text = long_model
    embeddings = []
    for code in module.LIBRARIES.values():
        scope = {}
        exec(code.format(folder=str(folder)), scope)
        embeddings.append(scope["encode"](text))
    for embedding in embeddings[1:]:
        np.testing.assert_allclose(embedding, embeddings[0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from /proc")
def test_a_process_of_its_own_measures_the_memory_for_a_long_text(long_model):
    module, folder, text = long_model
    seconds, peak, embedding = module.run_process("tmft", folder, text)
    assert seconds > 0 and 0 <= peak < 500 and len(embedding) == 24


@pytest.fixture
def bench_scaling(monkeypatch):
    module = pytest.importorskip("bench_scaling")
    monkeypatch.setattr(module, "machine_rates", lambda: (1.0, 2.0, 3.0))
    small = {"SIZES": (2, 4), "LENGTHS": (4, 9), "PAIRS": 2, "TOKENS": 36}
    for name, values in (small | {"THREADS": (1,)}).items():  # two threads are slow on a busy machine
        monkeypatch.setattr(module, name, values)
    return module


def test_cost_against_size_has_a_point_for_each_size_length_and_depth(
    bench_scaling, tiny_folder, tiny_data, tmp_path, capsys
):
    threads = torch.get_num_threads()
    file = tmp_path / "scaling.json"
    args = {"ckpt": tiny_folder, "data": tiny_data, "layer": 1, "rounds": 1, "json": file, "plot": None}
    try:
        bench_scaling.bench_scaling(type("Args", (), args))
    finally:
        torch.set_num_threads(threads)
    content = json.loads(file.read_text())
    depth = len(SentenceEncoder.from_pretrained(tiny_folder).encoder.layers)
    by_quantity = {"size": [2, 4], "length": [4, 9], "layers": list(range(depth + 1))}
    assert len(content["lines"]) == 2 * 3 * 2
    for name, line in content["lines"].items():
        kind, quantity, precision, _ = name.split(", ")
        assert [point["x"] for point in line] == by_quantity[quantity]
        assert all(0 < point["fastest"] <= point["median"] <= point["slowest"] for point in line)
        if quantity == "layers":  # each layer adds as many products, a step three times those of encoding
            encoding = [point["limit"] for point in content["lines"][f"encoding, layers, {precision}, 1"]]
            factor = 3 if kind == "training step" else 1
            assert [p["limit"] for p in line] == pytest.approx([factor * x for x in encoding], abs=0.01)
            assert np.diff(encoding) == pytest.approx([encoding[1] - encoding[0]] * depth, abs=0.01)
            assert encoding[1] > encoding[0]
    assert bench_scaling.table(content) in capsys.readouterr().out


def test_the_table_of_the_page_is_that_of_the_measurements():
    module = pytest.importorskip("bench_scaling")
    content = json.loads((ROOT / "docs/scaling.json").read_text(encoding="utf-8"))
    assert module.table(content) in (ROOT / "docs/research/performance.md").read_text(encoding="utf-8")


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


def test_the_table_of_engines_on_the_page_is_that_of_the_measurements():
    module = pytest.importorskip("engines")
    content = json.loads((ROOT / "docs/engines.json").read_text(encoding="utf-8"))
    assert module.table(content) in (ROOT / "docs/speed.md").read_text(encoding="utf-8")
