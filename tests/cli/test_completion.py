"""tmft completion bash: what bash proposes for a line that is typed up to its last word."""

import shlex
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

from tmft.cli import completion_command as completion
from tmft.cli.entry_points import COMMANDS
from tmft.losses.nested import ALL_LAYERS

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> str:
    """The printed script, as a user gets it."""
    words = [sys.executable, "-m", "tmft", "completion", "bash"]
    path = tmp_path_factory.mktemp("bash") / "tmft"
    path.write_text(subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    return str(path)


def proposals(script: str, line: str) -> list[str]:
    """The words with which bash completes a line, by the function that `complete` has bound to tmft."""
    words = line.split(" ")
    run = f"""source {shlex.quote(script)}
        bound=$(complete -p tmft); [[ $bound == *"-F _tmft tmft" ]] || exit 1
        COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}
        _tmft; printf '%s\\n' "${{COMPREPLY[@]}}\""""
    done = subprocess.run(["bash", "--norc", "-c", run], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tmft ", list(COMMANDS)),
        ("tmft e", ["evaluate", "encode", "export"]),
        ("tmft train --score", ["--score-range"]),
        ("tmft train --ckpt data/tiny --no-sym", ["--no-symmetric"]),  # an advanced option
        ("tmft train --all-layers ", list(ALL_LAYERS)),
        ("tmft train --ckpt x --precision b", ["bf16"]),
        ("tmft encode --all-l", []),  # not an option of encode
        ("tmft data c", ["convert"]),
        ("tmft data convert --dec", ["--decimal"]),
        ("tmft encode data/", []),  # names of files, by -o default
        ("tmft unknown --", []),
    ],
)
def test_bash_completes(script, line, words):
    assert proposals(script, line) == words


def test_every_command_offers_its_help(script):
    assert all("--help" in proposals(script, f"tmft {command} --h") for command in COMMANDS)


def test_the_script_is_that_of_the_function(script):
    with open(script) as file:
        assert file.read() == completion.format_bash_script() + "\n"
