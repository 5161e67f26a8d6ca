"""Processes: ranks, collectives, the backend, and which process goes first."""

import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT

from tmft.io.distributed import Processes, init_distributed, single_process

CPU = torch.device("cpu")


def torchrun(count: int, *arguments, command: str = "train.py") -> subprocess.CompletedProcess:
    """A command in several processes of one thread each."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count]
    words = [str(word) for word in [*launcher, ROOT / command, *arguments]]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120)


def test_without_torchrun_there_is_a_single_process(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    process = init_distributed(CPU)
    assert process == single_process(CPU) and (process.rank, process.world_size) == (0, 1)


@pytest.mark.parametrize(("gpus", "local", "backend"), [(4, 4, "nccl"), (1, 4, "gloo"), (8, 4, "nccl")])
def test_nccl_is_used_if_each_process_has_its_own_gpu(gpus, local, backend, monkeypatch):
    """nccl refuses two processes that share a GPU; here torchrun has started 2 * local on two machines."""
    calls = []
    environment = {"RANK": 5, "WORLD_SIZE": 2 * local, "LOCAL_RANK": 3, "LOCAL_WORLD_SIZE": local}
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout: calls.append(backend))
    monkeypatch.setattr("atexit.register", lambda *_: None)
    gpu = torch.device("cuda", 3 % gpus)
    assert init_distributed(torch.device("cuda")) == Processes(5, 2 * local, gpu) and calls == [gpu, backend]


def test_the_other_processes_enter_after_the_main_process(monkeypatch):
    """Two threads stand for two processes; the first one stays until the second has had time to enter."""
    meet, order = threading.Barrier(2), []
    monkeypatch.setattr(Processes, "barrier", lambda self: meet.wait(timeout=30))

    def second() -> None:
        with Processes(1, 2, CPU).main_process_first():
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with Processes(0, 2, CPU).main_process_first():
        thread.join(timeout=0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads from /proc")
def test_at_the_end_no_thread_of_the_process_group_is_left(tmp_path):
    """One that outlives the interpreter may abort a process whose run has ended well."""
    command = tmp_path / "train_and_list_threads.py"
    command.write_text(
        "import atexit, os, sys\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "def list_threads():\n"
        "    names = [path.read_text().strip() for path in Path('/proc/self/task').glob('*/comm')]\n"
        "    line = f'threads {sorted(name for name in names if \"gloo\" in name)}\\n'\n"
        "    os.write(1, line.encode())\n"  # whole, although the other process writes, too
        "atexit.register(list_threads)\n"  # runs after what init_distributed registers
        "import torch\n"
        "from tmft.io.distributed import init_distributed\n"
        "processes = init_distributed(torch.device('cpu'))\n"
        "processes.all_reduce_dict({'x': torch.ones(())})\n"
        "parameter = torch.nn.Parameter(torch.ones(2))\n"
        "torch.optim.AdamW([parameter])\n",  # imports torch.distributed.nn
        encoding="utf-8",
    )
    done = torchrun(2, command=command)
    assert done.returncode == 0 and done.stdout.splitlines() == ["threads []"] * 2, done.stdout + done.stderr


@pytest.mark.slow
def test_a_mistake_in_the_input_is_one_line_of_one_process(tmp_path):
    words = ["--ckpt", ROOT / "data/twins/mlm", "--layer", "1", "--task", "stsb", "--data-root", tmp_path]
    result = torchrun(2, *words)
    assert "train.py: no such file" in result.stderr
    assert "exitcode  : 2" in result.stderr and "exitcode  : 1" not in result.stderr
    assert result.stderr.count("Traceback") == 1 and "gloo" not in result.stderr  # that of torchrun itself
