"""The benchmark of GPUs with tiny models on the CPU, so that it works when there is a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import gpu  # noqa: E402
import gpu_right  # noqa: E402
import gpu_speed  # noqa: E402


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """A folder with the results of all parts."""
    folder = tmp_path_factory.mktemp("gpu")
    gpu.main(["--device", "cpu", "--small", "--in-process", "--out", str(folder), "--parts", *gpu.PARTS])
    return folder


def test_every_part_is_measured_and_nothing_is_wrong(out):
    results = {name: json.loads((out / f"{name}.json").read_text())["result"] for name in gpu.PARTS}
    assert not any(results[name]["wrong"] for name in ("right", "graph"))
    timings = results["step"]["steps"]["MiniLM, l = 3"]
    assert min(timing["median"] for timing in timings.values()) > 0
    assert {"tmft bf16", "tmft fp32"} <= timings.keys()
    assert {"tmft bf16, no graphs", "tmft fp32, no graphs"} <= timings.keys()
    assert list(results["step"]["sizes"]["ELECTRA-base, l = 9"]) == ["4", "8"]
    assert all(row["seconds"] > 0 for row in results["recipe"]["rows"].values())
    assert min(timing["median"] for timing in results["encode"]["sentences/s"].values()) > 0


def test_every_part_has_its_tables(out):
    tables = (out / "tables.md").read_text()
    assert "numbers mean nothing" in tables and "| tmft bf16 |" in tables and "WRONG" not in tables
    titles = ["Compared with a CPU", "Steps as CUDA graphs", "The recipe of the paper"]
    for title in [*titles, "A training step of 4 pairs", "Encoding"]:
        assert f"**{title}" in tables


def test_a_part_runs_in_a_process_of_its_own(tmp_path):
    line = [sys.executable, HERE / "gpu.py", "--device", "cpu", "--small", "--parts", "recipe"]
    answer = subprocess.run([*line, "--out", tmp_path], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "result" in json.loads((tmp_path / "recipe.json").read_text())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "finds no GPU: run this on a machine that has one, or test it with --device cpu --small"),
        (["--device", "cpu"], "--device cpu would take hours: add --small"),
        (["--device", "cpu", "--small", "--parts", "steps"], "choose one of right, graph, step,"),
    ],
)
def test_a_mistake_is_a_one_line_error(words, message, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(gpu.InputError) as error:
        gpu.main([*words, "--out", str(tmp_path / "new")])
    assert message in str(error.value) and not (tmp_path / "new").exists()


# ------------------------------------------------------------------------------------- errors are detected


def small_model():
    return gpu_right.make_model(gpu_right.ELECTRA | {"num_hidden_layers": 2})


@pytest.fixture
def pairs():
    return gpu_speed.read_pairs(gpu.find_pairs(), 6)


def test_a_step_taken_in_spite_of_an_overflow_is_detected(pairs, monkeypatch):
    monkeypatch.setattr(gpu_right.MixedPrecision, "clip_grad_norm_", lambda *_: None)
    monkeypatch.setattr(gpu_right.MixedPrecision, "step", lambda self, optimizer: optimizer.step() is None)
    assert gpu_right.count_wrong_after_overflow(small_model(), pairs, gpu_right.CPU) > 0


def test_other_dropout_in_the_second_pass_is_detected(pairs, monkeypatch):
    monkeypatch.setattr("tmft.training.gradient_cache.seed_rng", lambda device, seed: None)
    assert gpu_right.recomputation_error(small_model(), pairs, gpu_right.CPU) > 1e-3


def test_a_random_state_that_is_not_restored_is_detected(pairs, monkeypatch):
    recipe = gpu_right.replace(gpu_right.SHORT, batch_size=2, lr=1e-3)
    training = gpu_right.Training(small_model(), pairs, gpu_right.CPU, recipe)
    assert gpu_right.count_differing(training, at=2) == 0
    monkeypatch.setattr("tmft.training.checkpointing.set_rng_state", lambda device, states: None)
    assert gpu_right.count_differing(training, at=2) > 0
