"""tmft with numpy and tokenizers alone: one text is embedded, and all else says in one line what it needs."""

import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, assert_same_embeddings

from tmft import SentenceEncoder
from tmft.io.files import TORCH_PACKAGES, missing_packages

TEXT = "A man plays the guitar."
NEEDS = "needs torch, safetensors, scipy: pip install -r requirements.txt"
PROGRAM = """
import runpy, sys
sys.modules |= dict.fromkeys({absent}, None)  # as if they were not installed
sys.argv = {argv}
{code}
"""
TMFT = "runpy.run_module('tmft', run_name='__main__', alter_sys=True)"


def run(code: str, *argv: str, absent=TORCH_PACKAGES) -> subprocess.CompletedProcess:
    program = PROGRAM.format(absent=absent, argv=["tmft", *argv], code=code)
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)


def test_one_text_is_embedded_as_with_torch():
    done = run(TMFT, "encode", TEXT)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 1
    expected = SentenceEncoder.from_pretrained("tiny").encode([TEXT])
    assert_same_embeddings(np.array([json.loads(done.stdout)]), expected, 1e-6)


def test_the_names_of_all_commands_are_listed():
    assert "  train " in run(TMFT, "--help").stdout


def test_the_versions_say_what_is_missing():
    assert run(TMFT, "--version").stdout.splitlines()[-1] == f"all but tmft encode TEXT {NEEDS}"


ROWS = [  # what runs, its arguments, the code of its exit, the last line on stderr
    (TMFT, ["train"], 2, f"tmft train: this command {NEEDS}"),
    (TMFT, ["encode", "tiny", "lines.txt", "--out", "x.npy"], 2, f"tmft encode: this command {NEEDS}"),
    (TMFT, ["encode"], 2, f"tmft encode: this command {NEEDS}"),
    (TMFT, ["encode", "README.md"], 2, "tmft encode: 'README.md' is empty, a file or a folder, an"),
    (TMFT, ["encode", " "], 2, "tmft encode: ' ' is empty, a"),
    ("from tmft import SentenceEncoder", [], 1, f"ImportError: SentenceEncoder {NEEDS}"),
    ("from tmft import fine_tune", [], 1, f"ImportError: fine_tune {NEEDS}"),
    *(
        (f"sys.argv = [{name!r}]; runpy.run_path({name!r}, run_name='__main__')", [], 2, f"{line} {NEEDS}")
        for name in ("train.py", "evaluate.py", "cka.py", "data/get_data.py")
        for line in [f"{name.rpartition('/')[2]}: this command"]
    ),
]


@pytest.mark.parametrize(("code", "argv", "exit_code", "line"), ROWS, ids=[" ".join(row[1]) for row in ROWS])
def test_what_needs_torch_says_so_in_one_line(code, argv, exit_code, line):
    done = run(code, *argv)
    lines = done.stderr.splitlines()
    assert done.returncode == exit_code and lines[-1].startswith(line) and done.stdout == ""
    assert exit_code == 1 or len(lines) == 1


def test_only_what_is_absent_is_named():
    done = run(TMFT, "train", absent=("scipy",))
    assert done.stderr == "tmft train: this command needs scipy: pip install -r requirements.txt\n"


def test_outside_a_clone_the_packages_themselves_are_to_be_installed(monkeypatch):
    """Not tmft, whose name somebody else could take on a package index."""
    monkeypatch.setattr("tmft.io.files.IS_INSTALLED", True)
    monkeypatch.setattr("tmft.io.files.find_spec", lambda name: None if name != "scipy" else sys)
    assert missing_packages("x") == "x needs torch, safetensors: pip install torch safetensors"
