"""What belongs to the process of the caller is as it was after each call: generators, limits, settings."""

import csv
import logging
import random
import signal

import numpy as np
import pytest
import torch
from conftest import PAIRS, SENTENCES, tiny_model

from tmft import SentenceEncoder, fine_tune, linear_cka
from tmft.cli.options import command_device
from tmft.datasets.own_data import convert_tables
from tmft.speed import threads
from tmft.speed.matmul import BACKEND
from tmft.students.distill import distill

PROCESS = {
    "torch's generator": lambda: torch.get_rng_state().tolist(),
    "numpy's generator": lambda: np.random.get_state()[1].tolist(),  # noqa: NPY002
    "Python's generator": random.getstate,
    "threads": torch.get_num_threads,
    "precision of products": lambda: BACKEND.fp32_precision,
    "gradients": torch.is_grad_enabled,
    "default dtype": torch.get_default_dtype,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "longest field of a CSV file": csv.field_size_limit,
    "messages": lambda: (logging.root.manager.disable, logging.root.level, list(logging.root.handlers)),
    "signals": lambda: [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
}


def calls_fine_tune(folder, path):
    rows = [(a, b, float(score)) for a, b, score in (line.split("\t") for line in PAIRS)]
    fine_tune(folder, rows, rows, rows, layer=1, epochs=1, batch_size=2, device="cpu")


def calls_distill(folder, path):
    distill(folder, [f"{'music ' * n} the man" for n in range(1, 30)], layers=1)


def converts_a_table(folder, path):
    (path / "train.csv").write_text("a,b,c\nthe man,music,1\n", encoding="utf-8")
    columns = {"sentence1": "a", "sentence2": "b", "score": "c"}
    convert_tables([str(path / "train.csv")], columns, path / "out")


def encodes(folder, path):
    model = SentenceEncoder.from_pretrained(folder)
    u = model.encode(SENTENCES)
    linear_cka(torch.from_numpy(u), torch.from_numpy(u))
    model.save(path / "saved")  # as in sentence-transformers
    assert np.array_equal(SentenceEncoder.from_pretrained(path / "saved").encode(SENTENCES), u)


def chooses_a_device(folder, path):
    SentenceEncoder.from_pretrained(folder, device="auto")


@pytest.fixture
def quota(tmp_path, monkeypatch):
    """The process is in a container that may use half of a core, and torch has two threads."""
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup/cpu.max").write_text("50000 100000")
    monkeypatch.setattr(threads, "CGROUP", tmp_path / "cgroup")
    for name in threads.OWN_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("quota")
@pytest.mark.parametrize(
    "call", [chooses_a_device, calls_fine_tune, calls_distill, converts_a_table, encodes]
)
def test_the_process_of_the_caller_is_as_it_was(call, tmp_path):
    tiny_model().save_pretrained(tmp_path / "model")
    torch.manual_seed(7)
    before = {name: read() for name, read in PROCESS.items()}
    call(tmp_path / "model", tmp_path)
    assert [name for name, read in PROCESS.items() if read() != before[name]] == []


@pytest.mark.usefixtures("quota")
def test_a_command_has_no_more_threads_than_its_container_allows():
    command_device("auto")
    assert torch.get_num_threads() == 1
