"""Writing without tearing: what a killed process leaves, and who removes it."""

import os
import signal
import subprocess
import sys
import time

from conftest import ROOT

from tmft.io.atomic import is_alive, scratch_folder, write_file

KILLED = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tmft.io.atomic import write_file
def write(path):
    path.write_text("x" * 10**6)
    print("half", flush=True)
    time.sleep(60)
write_file(Path({path!r}), write)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path):
    place = tmp_path / "model.bin"
    place.write_text("old")
    words = [sys.executable, "-c", KILLED.format(root=str(ROOT), path=str(place))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "half\n"
        [left] = tmp_path.glob(".writing-*")
        write_file(tmp_path / "other", "text")
        assert left.is_dir()  # its owner still writes
        process.send_signal(signal.SIGKILL)
    assert place.read_text() == "old" and left.is_dir()
    write_file(place, "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.bin", "other"]
    assert place.read_text() == "new"


def test_those_of_other_machines_and_other_files_stay(tmp_path):
    for name in (".writing-elsewhere-1-abc", ".writing-abc", f".writing-{os.uname().nodename}-x-1"):
        (tmp_path / name).mkdir()
    with scratch_folder(tmp_path) as scratch:
        assert len(list(tmp_path.iterdir())) == 4 and str(os.getpid()) in scratch
    assert len(list(tmp_path.iterdir())) == 3


def test_who_is_alive():
    assert is_alive(os.getpid()) and is_alive(1)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    time.sleep(0.05)
    assert not is_alive(process.pid) and not is_alive(10**30)
