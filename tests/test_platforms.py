"""What differs between systems, made absent or awkward: locks, memory, signals, encodings, paths."""

import ast
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PAIRS, ROOT, SENTENCES, tiny_model
from test_rings import TREES

import cka
import evaluate
import train
from tmft import InputError, SentenceEncoder
from tmft.cli import encode_command as encode
from tmft.cli import export_command as export
from tmft.cli import report_command as report
from tmft.cli.parser import run_command
from tmft.io import atomic
from tmft.io.distributed import Processes
from tmft.training.checkpointing import TrainingCheckpoint

# ------------------------------------------------------------------------------------------ what is POSIX


def test_without_fcntl_files_are_written_and_no_process_is_signalled(tmp_path, monkeypatch):
    """As on Windows, where os.kill(process, 0) would send Ctrl-C and a folder cannot be opened."""
    monkeypatch.setattr(atomic, "fcntl", None)
    monkeypatch.setattr(os, "kill", None)  # would be called
    leftover = tmp_path / f".writing-{atomic.socket.gethostname()}-1-x"
    leftover.mkdir()
    os_open = os.open

    def open_files(path, flags, *mode, **options):
        if sys._getframe(1).f_globals["__name__"] == atomic.__name__ and Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return os_open(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", open_files)
    with atomic.folder_lock(tmp_path), atomic.folder_lock(tmp_path):
        atomic.write_file(tmp_path / "a.txt", "1\n2\n")
    assert (tmp_path / "a.txt").read_bytes() == b"1\n2\n"
    assert leftover.is_dir()  # its process may be alive


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_a_file_system_without_locks_is_worked_on_without_one(tmp_path, monkeypatch, number):
    pytest.importorskip("fcntl")

    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic.fcntl, "flock", flock)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    with atomic.folder_lock(tmp_path), atomic.folder_lock(tmp_path):
        atomic.write_file(tmp_path / "a.txt", "text")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "text"
    assert before in (0, len(os.listdir("/proc/self/fd")))


def test_where_an_open_file_cannot_be_removed_the_error_is_still_the_first_one(tmp_path, monkeypatch):
    """As on NFS and FUSE, which keep its folder, and on Windows."""

    def rmdir(path, *arguments, **options):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))

    monkeypatch.setattr(os, "rmdir", rmdir)
    with pytest.raises(InputError, match="^the weights are damaged$"), atomic.temporary_sibling(tmp_path):
        raise InputError("the weights are damaged")


def test_without_sigterm_commands_and_training_stop_by_ctrl_c_alone(tmp_path, monkeypatch, capsys):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.delattr(signal, "SIGTERM")
    done = []
    try:
        run_command(lambda: done.append(True))
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [True]
    with TrainingCheckpoint(tmp_path / "state.pt", {}, Processes(0, 1, torch.device("cpu"))) as checkpoint:
        assert list(checkpoint.handlers) == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is before


# -------------------------------------------------------------------------------------------- text files

# Name of a call that opens a text file, or pipes of text -> the arguments that it needs.
NEEDED = dict.fromkeys(["open", "TextIOWrapper", "write_text"], {"encoding", "newline"})
NEEDED |= dict.fromkeys(["read_text", "run", "Popen"], {"encoding"})
NO_TEXT = {"os", "export_format", "ModelFolder", "repository", "gzip", "lzma", "tarfile", "zipfile"}


def unnamed(tree: ast.AST) -> list[str]:
    """The calls that open a text file without its encoding or, to write it or by open(), its newlines."""
    found = []
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        owner, _, name = ast.unparse(node.func).rpartition(".")
        given, call = {keyword.arg for keyword in node.keywords}, ast.unparse(node)
        is_binary = owner in NO_TEXT or re.search(r"'[rwxa]?b\+?'", call)
        is_binary = is_binary or (name in ("run", "Popen") and not given & {"text", "universal_newlines"})
        is_named = None in given or (name == "read_text" and node.args)  # **options; its first argument
        if name in NEEDED and NEEDED[name] - given and not (is_binary or is_named):
            found.append(f"line {node.lineno}: {call[:80]} without {NEEDED[name] - given}")
    return found


@pytest.mark.parametrize("module", TREES)
def test_a_text_file_is_opened_with_its_encoding_and_its_newlines(module):
    assert unnamed(TREES[module]) == []


# ------------------------------------------------------------------------------------------------- paths

REFUSED_BY_WINDOWS = re.compile(r'(con|prn|aux|nul|com\d|lpt\d)(\..*)?|.*[<>:"\\|?*].*|.*[. ]', re.IGNORECASE)


def test_every_system_can_hold_the_files_of_the_repository():
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    done = subprocess.run(git, capture_output=True, encoding="utf-8")
    if done.returncode:
        pytest.skip("not a clone")
    names = done.stdout.rstrip("\0").split("\0")
    spellings = {unicodedata.normalize("NFC", name).casefold() for name in names}
    assert len(names) == len(spellings) > 300  # no two that macOS or Windows would take for the same
    assert not [name for name in names if any(map(REFUSED_BY_WINDOWS.fullmatch, name.split("/")))]


AWKWARD = ["my  models (2) ", "Übung größer 한국 é", "it's 50% $HOME & co", "x" * 200]


def test_every_command_works_in_a_folder_with_awkward_names_on_its_path(tmp_path):
    place = tmp_path.joinpath(*AWKWARD)
    (place / "pairs").mkdir(parents=True)
    tiny_model().save_pretrained(place / "tiny")
    for split in ("train", "dev", "test"):
        rows = "\n".join(["sentence1\tsentence2\tscore", *PAIRS]) + "\n"
        (place / "pairs" / f"{split}.tsv").write_text(rows, encoding="utf-8")
    (place / "lines.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    options = ["--data", str(place / "pairs"), "--layer", "1", "--epochs", "1", "--precision", "fp32"]
    train.main(["--ckpt", str(place / "tiny"), *options, "--output-dir", str(place / "runs")])
    [run] = (place / "runs").iterdir()
    evaluate.main([str(run)])
    lines, vectors = str(place / "lines.txt"), place / "vectors.npy"
    encode.main([str(run), lines, "--out", str(vectors)])
    export.main([str(run), str(place / "exported")])
    report.main([str(place / "runs"), "--out", str(place / "report")])
    cka.main([str(run), str(place / "tiny"), "--data", lines])
    expected = SentenceEncoder.from_pretrained(place / "exported").encode(SENTENCES)
    np.testing.assert_allclose(np.load(vectors), expected, atol=1e-5)


PROGRAM = """
import sys, warnings
warnings.filterwarnings("error", category=EncodingWarning, module=r"tmft\\.|train|evaluate|cka|__main__")
sys.path.insert(0, {root!r})
from tmft.cli import entry_points
for words in {commands!r}:
    sys.argv = ["tmft", *words.split()]
    entry_points.main()
"""


@pytest.mark.slow
def test_commands_work_where_the_default_encoding_is_not_utf_8(tiny_folder, tmp_path):
    """stdout in cp1252, files in ASCII unless their encoding is named, an EncodingWarning if it is not."""
    shutil.copytree(tiny_folder, tmp_path / "model")
    for split in ("train", "dev", "test"):
        rows = "\n".join(["sentence1\tsentence2\tscore", *PAIRS, "한국 é\tü 가\t1"]) + "\n"
        (tmp_path / f"{split}.tsv").write_text(rows, encoding="utf-8")
    (tmp_path / "lines.txt").write_text("한국 가 é\nein Mann, der Gitarre spielt ü\n", encoding="utf-8")
    commands = [
        "train --ckpt model --data . --layer 1 --epochs 1 --run-name r --objective concat_head",
        "evaluate runs/r-layer1-seed0",
        "encode runs/r-layer1-seed0 lines.txt --out vectors.npy",
        "predict runs/r-layer1-seed0 test.tsv",
        "report runs --out report",
    ]
    settings = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONWARNDEFAULTENCODING": "1"}
    settings |= {"LC_ALL": "C", "PYTHONIOENCODING": "cp1252"}
    line = [sys.executable, "-c", PROGRAM.format(root=str(ROOT), commands=commands)]
    settings = os.environ | settings
    done = subprocess.run(line, cwd=tmp_path, env=settings, capture_output=True, encoding="cp1252")
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    assert r"\ud55c\uad6d" in printed and "\tü \\uac00\n" in printed  # escaped where cp1252 lacks it
    [page] = (tmp_path / "report").glob("*.md")
    assert b"\r" not in page.read_bytes()
