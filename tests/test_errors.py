"""How a mistake is told: the same line of the library and of a command, which name what is meant."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from tmft.cli.parser import CommandLine, run_command
from tmft.errors import InputError, check_range, did_you_mean, short

# ------------------------------------------------------------------- a message, and that of a command


def test_a_message_is_one_harmless_line_of_bounded_length():
    told = str(InputError("no column \x1b[31m\n" + "x" * 10**6 + "\u202e (a.tsv): rename it"))
    assert (
        len(told) < 1600 and told.startswith("no column ?[31m?xxx") and told.endswith("? (a.tsv): rename it")
    )
    assert short("\x07" * 3) == r"'\x07\x07\x07'" and len(short("y" * 500)) < 100 and short(True) == "True"


@pytest.mark.parametrize(
    ("message", "parameters", "of_command"),
    [
        ("lr -1: choose 0 or more", ["lr"], "--lr -1: choose 0 or more"),
        ("max_length 2: choose 3 or more", ["max_length"], "--max-length 2: choose 3 or more"),
        ("name with several ckpt", ["name", "ckpt"], "--name with several --ckpt"),
        ("init random and init_from: no", ["init", "init_from"], "--init random and --init-from: no"),
        ("task rtd: see from_scratch", ["task", "from_scratch"], "--task rtd: see --from-scratch"),
        ("the lr is in no table", [], "the lr is in no table"),
        ("layers 3: of layer", ["layer"], "layers 3: of --layer"),
    ],
)  # fmt: skip
def test_a_command_shows_parameters_as_its_options(message, parameters, of_command):
    error = InputError(message, *parameters)
    assert str(error) == message and error.of_command() == of_command


@pytest.mark.parametrize(
    ("message", "parameter"),
    [
        ("no such file (/home/me/data/stsb/train.tsv): look", "data"),
        ("runs/my-name-layer1 holds a finished run", "name"),
        ("data.tsv is empty", "data"),
        ("my_data is empty", "data"),
    ],
)
def test_a_path_is_shown_as_it_is(message, parameter):
    assert InputError(message, parameter).of_command() == message


def test_the_words_of_another_library_stay_as_they_are():
    from tmft.device import choose_device

    with pytest.raises(InputError) as error:
        choose_device("nonsense")
    assert error.value.of_command() == f"--{error.value}"


# --------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("value", [0, 0.5, 1])
def test_what_is_in_range_is_accepted(value):
    check_range("warmup", value, 0, 1)
    check_range("lr", value, 0)


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (-1, (0,), "lr -1: choose 0 or more"),
        (math.nan, (0,), "lr nan: choose 0 or more"),
        (math.inf, (0,), "lr inf: choose 0 or more"),
        (1.5, (0, 1), "lr 1.5: choose 0 to 1"),
        (-0.1, (0, 1), "lr -0.1: choose 0 to 1"),
    ],
)
def test_what_is_not_is_one_line_that_names_the_range(value, bounds, message):
    with pytest.raises(InputError) as error:
        check_range("lr", value, *bounds)
    assert str(error.value) == message and error.value.of_command() == f"--{message}"


# ----------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("stsc", "; did you mean stsb?"),
        ("sikr", "; did you mean sickr?"),
        ("stsb-ed", "; did you mean stsb-de?"),
        ("something else", ""),
        ("", ""),
    ],
)
def test_the_name_that_is_most_like_it_is_offered_if_any_is(word, said):
    assert did_you_mean(word, ["stsb", "stsb-de", "sickr", "mrpc"]) == said


# ---------------------------------------------------------------------------------------- command lines


@pytest.fixture
def parser() -> CommandLine:
    p = CommandLine("What it does.\n\nMore of it.")
    p.add_argument("--layer", type=int, help="which; default: the last")
    p.add_argument("--lr", type=float, default=2e-5, help="the rate")
    p.add_argument("--split", choices=["dev", "test"], default="test", help="part; default: test")
    p.add_argument("--fast", action="store_true", help="no checks")
    return p


def test_options_are_read(parser):
    args = parser.parse_args(["--layer", "3", "--fast"])
    assert (args.layer, args.lr, args.split, args.fast) == (3, 2e-5, "test", True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lay", "3"], "no option --lay; did you mean --layer?"),
        (["--leyer=3"], "no option --leyer=3; did you mean --layer?"),
        (["--something"], "no option --something; see --help"),
        (["more"], "no option more; see --help"),
        (["--layer", "two"], "--layer: invalid int value: 'two'; see --help"),
        (["--layer"], "--layer: expected one argument; see --help"),
    ],
)
def test_a_mistake_is_an_input_error_and_no_option_is_cut_short(words, message, parser):
    with pytest.raises(InputError) as error:
        parser.parse_args(words)
    assert str(error.value) == message


def test_a_choice_that_is_none_names_the_choices(parser):
    with pytest.raises(InputError, match="^--split: invalid choice: 'train' .*dev.*test.*; see --help$"):
        parser.parse_args(["--split", "train"])


def test_help_has_the_first_line_of_the_text_and_each_default_once(parser):
    text = " ".join(parser.format_help().split())
    assert "What it does." in text and "More of it." not in text
    assert "which; default: the last" in text and "the rate (default: 2e-05)" in text
    assert text.endswith("--split {dev,test} part; default: test --fast no checks")


def test_an_option_that_does_nothing_is_refused_and_one_that_was_left_out_is_not():
    p = CommandLine("x")
    group = p.add_argument_group("one")
    group.add_argument("--rate", type=float, default=0.5, help="a")
    group.add_argument("--half", action="store_true", help="b")
    p.refuse(p.parse_args([]), group, "--task mlm")
    for words, option in [(["--rate", "1"], "--rate"), (["--half"], "--half")]:
        with pytest.raises(InputError, match=f"^{option} does nothing with --task mlm: leave it out"):
            p.refuse(p.parse_args(words), group, "--task mlm")


# --------------------------------------------------------------------------------------- a command as a whole


def ending(error: BaseException, monkeypatch) -> int | str:
    """The exit code of a command that raises this."""

    def main():
        raise error

    monkeypatch.setattr(sys, "argv", ["/somewhere/train.py"])
    with pytest.raises(SystemExit) as end:
        run_command(main)
    return end.value.code


def test_a_mistake_ends_a_command_with_one_line_and_exit_code_2(monkeypatch, capsys):
    assert ending(InputError("batch_size 0: choose 1 or more", "batch_size"), monkeypatch) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "train.py: --batch-size 0: choose 1 or more\n")


def test_a_command_that_is_stopped_says_so(monkeypatch, capsys):
    assert ending(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err == "\ntrain.py: stopped\n"


def test_a_bug_keeps_its_traceback():
    def main():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_command(main)


def test_a_command_that_works_just_ends():
    done = []
    run_command(lambda: done.append(True))
    assert done == [True]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_onto_a_full_disk_is_one_line():
    code = "from tmft.errors import run_command; run_command(lambda: print('x' * 100))"
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-c", code]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (2, "-c: the disk that the output goes to is full\n")
