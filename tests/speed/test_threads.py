"""The number of threads: at most the quota of the container, unless the user has chosen it."""

import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

from tmft.speed import threads
from tmft.speed.threads import cpu_quota, limit_threads


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "?\n"}, None),
        ({}, None),
    ],
)
def test_a_quota_is_read_in_both_forms(files, cores, tmp_path):
    write(tmp_path, files)
    assert cpu_quota(tmp_path) == cores


@pytest.mark.parametrize(
    ("quota", "chosen", "expected"),
    [("150000", "", 1), ("50000", "", 1), ("200000", "", 2), ("100000", "3", 3), ("900000", "", 3)],
)
def test_torch_gets_no_more_threads_than_the_quota_allows(quota, chosen, expected, tmp_path, monkeypatch):
    before = torch.get_num_threads()
    write(tmp_path, {"cpu.max": f"{quota} 100000"})
    monkeypatch.setattr(threads, "CGROUP", tmp_path)
    for name in threads.OWN_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    torch.set_num_threads(3)
    try:
        limit_threads()
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


FORKED = """
import os, sys, torch
from tmft import SentenceEncoder
torch.set_num_threads(int(sys.argv[1]))
load = lambda: SentenceEncoder.from_pretrained("data/tiny")
model = None if sys.argv[2] == "only imports" else load()
texts = [f"{n} men play the guitar in {n} parks and sleep" for n in range(200)]
expected = model.encode(texts) if sys.argv[2] == "embeds" else None
if (child := os.fork()) == 0:
    found = (model or load()).encode(texts)
    assert expected is None or abs(found - expected).max() < 1e-5
    print(torch.get_num_threads(), flush=True)
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process")
@pytest.mark.parametrize(
    ("count", "parent", "expected"),
    [(2, "embeds", 1), (2, "only loads", 1), (2, "only imports", 2), (1, "embeds", 1)],
)
def test_a_forked_process_embeds_with_one_thread_and_says_so(count, parent, expected):
    """With the threads of its parent, which are not there, it would wait for ever."""
    command = [sys.executable, "-c", FORKED, str(count), parent]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and run.stdout == f"{expected}\n", run.stderr
    assert ("was forked from one in which torch had" in run.stderr) == (count > expected)
    assert len(run.stderr.splitlines()) == (count > expected)
