"""The command line parser, and how a command ends: one line and exit code 2 for a user error."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import ROOT

from tmft.cli import export_command as export
from tmft.cli.parser import CommandLineParser, default_command, run_command
from tmft.errors import InputError

# ---------------------------------------------------------------------------------------------- parser


DOC = """What it does.

    python x.py --layer 3    an example

More of it.
"""


@pytest.fixture
def parser() -> CommandLineParser:
    p = CommandLineParser(DOC)
    p.add_argument("--layer", type=int, help="which; default: the last")
    p.add_argument("--lr", type=float, default=2e-5, help="the rate")
    p.add_argument("--split", choices=["dev", "test"], default="test", help="part; default: test")
    p.add_argument("--fast", action="store_true", help="no checks")
    return p


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lay", "3"], "unknown option --lay; did you mean --layer?"),
        (["--leyer=3"], "unknown option --leyer=3; did you mean --layer?"),
        (["--something"], "unknown option --something; see --help"),
        (["more"], "unknown argument more; see --help"),
        (["--layer", "two"], "--layer: invalid int value: 'two'; see --help"),
        (["--layer"], "--layer: expected one argument; see --help"),
    ],
)
def test_a_mistake_is_an_input_error_and_no_option_is_cut_short(words, message, parser):
    with pytest.raises(InputError) as error:
        parser.parse_args(words)
    assert str(error.value) == message


def test_help_begins_with_the_examples_and_has_each_default_once(parser):
    usage, _, first, _, heading, example, *_ = parser.format_help().splitlines()
    assert usage.startswith("usage: ") and usage.endswith(" [options]") and first == "What it does."
    assert (heading, example) == ("examples:", "  python x.py --layer 3    an example")
    assert parser.format_help().rstrip().endswith("More of it.")
    text = " ".join(parser.format_help().split())
    assert "which; default: the last" in text and "the rate (default: 2e-05)" in text
    assert "--split {dev,test} part; default: test --fast no checks More of it." in text


def test_help_names_advanced_options_and_help_all_describes_them(parser, capsys):
    parser.add_argument_group("rare things", advanced=True).add_argument("--rare", help="of no use to most")
    text = parser.format_help()
    assert "more options, described by --help-all:\n  rare things: --rare\n" in text
    assert "of no use" not in text and "which; default: the last" in text
    with pytest.raises(SystemExit) as end:
        parser.parse_args(["--help-all"])
    printed = capsys.readouterr().out
    assert end.value.code == 0 and "--rare RARE" in printed
    assert "of no use" in printed and "more options" not in printed


def test_the_options_of_the_user_come_after_those_of_the_default_command(capsys):
    argv = default_command("train.py", ["--ckpt", str(Path.cwd() / "a b"), "--lr", "1"], ["--lr", "2"])
    assert argv == ["--ckpt", "a b", "--lr", "1", "--lr", "2"]
    assert capsys.readouterr().out == "python train.py --ckpt 'a b' --lr 1 --lr 2\n"


# --------------------------------------------------------------------------------------- a command as a whole


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (InputError("batch_size 0: choose 1 or more", "batch_size"), 2,
         "train.py: --batch-size 0: choose 1 or more\n"),
        (KeyboardInterrupt(), 130, "\ntrain.py: stopped\n"),
        *(
            (OSError(number, os.strerror(number), "runs/\x1b[31mx"), 2,
             f"train.py: runs/?[31mx cannot be opened ({os.strerror(number)}): check")
            for number in (errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS)
        ),
    ],
)  # fmt: skip
def test_a_mistake_or_an_interrupt_ends_a_command_with_one_line_and_a_code(
    error, code, printed, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["/somewhere/train.py"])
    with pytest.raises(SystemExit) as end:
        run_command(Mock(side_effect=error))
    shown = capsys.readouterr()
    assert end.value.code == code and shown.out == ""
    assert shown.err.startswith(printed) and shown.err.strip().count("\n") == 0


def test_a_bug_keeps_its_traceback():
    def main():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_command(main)


def raise_after_a_signal(number: int, error: BaseException):
    """A library that turns the KeyboardInterrupt of a signal into an exception of its own."""
    try:
        os.kill(os.getpid(), number)
        time.sleep(5)
    except KeyboardInterrupt:
        raise error from None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("error", [AttributeError("of an import that was ended"), InputError("a: do b")])
def test_an_exception_after_a_signal_to_stop_is_not_a_bug(number, error, capsys, request):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(SystemExit) as exit:
        run_command(lambda: raise_after_a_signal(number, error))
    assert exit.value.code == 130
    assert capsys.readouterr().err.endswith(": stopped\n")
    with pytest.raises(ZeroDivisionError):  # of a later command it is one again
        run_command(lambda: 1 / 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_onto_a_full_disk_is_one_line():
    code = "from tmft.cli.parser import run_command; run_command(lambda: print('x' * 100))"
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-c", code]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (2, "-c: the disk that the output is written to is full\n")


def test_output_into_a_pipe_that_is_closed_ends_a_command_without_a_word():
    code = "from tmft.cli.parser import run_command; run_command(lambda: print('x' * 100))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, cwd=ROOT)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_characters_that_the_encoding_of_stdout_lacks_are_escaped():
    code = "from tmft.cli.parser import run_command; run_command(lambda: print('\\xe9 result'))"
    variables = os.environ | {"PYTHONIOENCODING": "ascii"}
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=variables) == b"\\xe9 result\n"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["", "out"], "MODEL"),
        (["m", "out", "--pooling", ""], "--pooling"),
        (["m", "out", "--prune-vocabulary="], "--prune-vocabulary"),
    ],
)
def test_an_empty_argument_is_not_taken_for_one_that_is_absent(words, name):
    with pytest.raises(InputError, match=f"^{name} is empty: give a value, or remove it"):
        export.parse_args(words)
