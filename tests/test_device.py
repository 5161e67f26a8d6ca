"""The device of a run, seeds and the progress bar."""

import io
from contextlib import contextmanager

import pytest
import torch

from tmft.device import (
    PRECISIONS,
    choose_device,
    choose_precision,
    progress_bar,
    seed_rng,
)

CPU = torch.device("cpu")


# ------------------------------------------------------------------------------- device and precision


@pytest.mark.parametrize(
    ("capabilities", "chosen"), [({"avx512_bf16": True}, "bf16"), ({"neon": True}, "fp32")]
)
def test_auto_precision_is_bf16_on_a_cpu_that_computes_in_it(capabilities, chosen, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert choose_precision("auto", CPU) == chosen
    assert [choose_precision(name, CPU) for name in PRECISIONS] == ["fp32", "bf16", "fp16"]


@pytest.mark.parametrize(("has_gpu", "chosen"), [(True, "cuda"), (False, "cpu")])
def test_auto_device_is_a_gpu_if_there_is_one(has_gpu, chosen, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert choose_device("auto") == torch.device(chosen) and choose_device("cpu") == CPU


@pytest.mark.parametrize("index", [None, 1])
def test_the_generator_of_the_given_gpu_is_seeded_not_of_the_current_one(index, monkeypatch):
    current, seeded = [None], []

    @contextmanager
    def at(device):
        current[0] = device.index
        yield
        current[0] = None

    monkeypatch.setattr(torch.cuda, "device", at)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: seeded.append((seed, current[0])))
    seed_rng(torch.device("cuda", index), 7)
    assert seeded == [(7, index)] and current == [None]


# --------------------------------------------------------------------------------------- progress bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_bar_is_drawn_only_on_a_terminal_by_the_main_process_and_unless_hidden(monkeypatch):
    def drawn(file, shown=True):
        with progress_bar(3, "sentences", shown, file=file) as bar:
            bar.update(3)
        return "sentences" in file.getvalue()

    monkeypatch.delenv("RANK", raising=False)
    assert drawn(Terminal()) and not drawn(io.StringIO()) and not drawn(Terminal(), shown=False)
    monkeypatch.setenv("RANK", "1")
    assert not drawn(Terminal())


def test_without_a_terminal_long_work_prints_a_line_now_and_then_and_short_work_none(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    clock, file = [0.0], io.StringIO()
    monkeypatch.setattr("tqdm.std.time", lambda: clock[0])
    with progress_bar(13, "tasks", desc="evaluate", file=file) as tasks:
        for _ in range(3):
            with progress_bar(1000, "sentences", desc="encode", file=file, initial=200) as bar:
                for _ in range(2):
                    clock[0] += 35
                    bar.update(100)
            tasks.update()
        with progress_bar(None, "lines", file=file) as bar:
            clock[0] += 100
            bar.update(1234)
    for _ in range(2):
        with progress_bar(3, "sentences", file=file) as bar:
            clock[0] += 1
            bar.update(3)
        clock[0] += 1000
    assert file.getvalue().splitlines() == [
        "encode: 400 of 1000 sentences, 03:30 left",
        "evaluate: 1 of 13 tasks, 14:00 left",
        "encode: 400 of 1000 sentences, 03:30 left",
        "evaluate: 2 of 13 tasks, 12:50 left",
        "encode: 400 of 1000 sentences, 03:30 left",
        "evaluate: 3 of 13 tasks, 11:40 left",
        "1234 lines",
    ]
