"""Atomic writes: what a killed process leaves behind, and when it is removed."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from conftest import ROOT

from tmft.errors import InputError
from tmft.io.atomic import replacing_files, temporary_sibling, write_file

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


def test_the_temporary_folder_of_a_killed_process_is_removed_by_the_next_write(tmp_path):
    path = tmp_path / "model.bin"
    path.write_text("old")
    words = [sys.executable, "-c", KILLED.format(root=str(ROOT), path=str(path))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "half\n"
        [leftover] = tmp_path.glob(".writing-*")
        write_file(tmp_path / "other", "text")
        assert leftover.is_dir()  # its process is still writing
        process.send_signal(signal.SIGKILL)
    assert path.read_text() == "old" and leftover.is_dir()
    write_file(path, "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.bin", "other"]
    assert path.read_text() == "new"


def test_temporary_folders_of_other_machines_and_other_files_are_kept(tmp_path):
    host = os.uname().nodename
    for name in (".writing-elsewhere-1-abc", ".writing-abc", f".writing-{host}-x-1", f".writing-{host}-1-x"):
        (tmp_path / name).mkdir()
    (tmp_path / f".writing-{host}-{2**22 + 1}-x").mkdir()  # no process has this number: it is removed
    with temporary_sibling(tmp_path) as folder:
        assert len(list(tmp_path.iterdir())) == 5 and str(os.getpid()) in folder
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("is_there", [True, False])
def test_files_replace_others_together_or_not_at_all(is_there, tmp_path):
    """The target of a link in the folder is kept; stale files are removed, and other files stay."""
    folder, mine = tmp_path / "model", tmp_path / "mine"
    mine.write_text("mine")
    if is_there:
        folder.mkdir()
        for name in ("config.json", "stale", "other"):
            (folder / name).write_text("old")
    for error in (ZeroDivisionError, None):
        with suppress(ZeroDivisionError), replacing_files(folder, ["stale"]) as new:
            for name in ("config.json", "1_Dense/config.json"):
                (new / name).parent.mkdir(exist_ok=True)
                (new / name).write_text("new")
            if error:
                raise error
        files = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.*")}
        assert files == (
            {"config.json": "old"}
            if error and is_there
            else {}
            if error
            else {"config.json": "new", "1_Dense/config.json": "new"}
        )
    assert (folder / "other").exists() == is_there and not (folder / "stale").exists()
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(mine)
    with (
        pytest.raises(InputError, match="config.json: it is a folder, link, pipe"),
        replacing_files(folder) as new,
    ):
        (new / "config.json").write_text("newer")
    assert mine.read_text() == "mine" and (folder / "config.json").is_symlink()
