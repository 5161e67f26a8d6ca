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
