"""InputError: one line, which the library and a command phrase with their own names; and checks of
parameters.
"""

import math
import re

import numpy as np
import pytest
import tokenizers

from tmft.errors import InputError, check_choice, check_count, check_range, did_you_mean, short_repr
from tmft.io.files import reading

# ------------------------------------------------------------------- a message, and that of a command


def test_a_message_is_one_line_of_bounded_length_without_control_characters():
    message = str(InputError("no column \x1b[31m\n" + "x" * 10**6 + "\u202e (a.tsv): rename it"))
    assert len(message) < 1600
    assert message.startswith("no column ?[31m?xxx") and message.endswith("? (a.tsv): rename it")


def test_short_repr_is_short_and_has_no_control_characters():
    assert short_repr("\x07" * 3) == r"'\x07\x07\x07'" and len(short_repr("y" * 500)) < 100
    assert short_repr(True) == "True"


@pytest.mark.parametrize(
    ("message", "parameters", "as_cli_message"),
    [
        ("lr -1: choose 0 or more", ["lr"], "--lr -1: choose 0 or more"),
        ("max_length 2: choose 3 or more", ["max_length"], "--max-length 2: choose 3 or more"),
        ("name with several `ckpt`", ["name", "ckpt"], "--name with several --ckpt"),
        ("init random and init_from: no", ["init", "init_from"], "--init random and --init-from: no"),
        ("task rtd: see from_scratch", ["task", "from_scratch"], "--task rtd: see --from-scratch"),
        ("the lr is in no table", [], "the lr is in no table"),
        ("layers 3: of `layer`, not layer", ["layer"], "layers 3: of --layer, not layer"),
        ("no data here: `data` names a folder", ["data"], "no data here: --data names a folder"),
        ("write text and seed to data", ["data", "text", "seed"], "write text and seed to data"),
        ("no `x` and `data`: use data_root", ["data_root"], "no `x` and `data`: use --data-root"),
        # paths and names of files
        *((text, [name], text) for text, name in [
            ("no such file (/home/me/data/stsb/train.tsv): look", "data"),
            ("runs/my-name-layer1 holds a finished run", "name"),
            ("data.tsv is empty", "data"),
            ("my_data is empty", "data"),
        ]),
    ],
)  # fmt: skip
def test_a_command_shows_parameters_as_its_options(message, parameters, as_cli_message):
    error = InputError(message, *parameters)
    shown = message
    for name in parameters:
        shown = shown.replace(f"`{name}`", name)
    assert str(error) == shown and error.as_cli_message() == as_cli_message


# --------------------------------------------------------------------------------------------- numbers


def test_a_value_in_range_is_accepted():
    for value in (0, 0.5, 1, np.int64(1), np.float32(0.5)):
        check_range("warmup", value, 0, 1)
    check_range("truncate_dim", 10**400, 1)  # which no float can be
    check_count("top_k", np.int64(2), 1)
    check_choice("optimizer", "adamw", ["adamw", "adafactor"])


@pytest.mark.parametrize(
    ("check", "arguments", "message"),
    [
        (check_range, (-1, 0), "lr -1: choose 0 or more"),
        (check_range, (math.nan, 0), "lr nan: choose 0 or more"),
        (check_range, (math.inf, 0), "lr inf: choose 0 or more"),
        (check_range, (1.5, 0, 1), "lr 1.5: choose 0 to 1"),
        (check_range, (-0.1, 0, 1), "lr -0.1: choose 0 to 1"),
        (
            check_choice,
            ("adamv", ["adamw", "sgd"]),
            "lr 'adamv': choose one of adamw, sgd; did you mean adamw?",
        ),
    ],
)
def test_a_value_out_of_range_is_one_line_that_names_the_range(check, arguments, message):
    with pytest.raises(InputError) as error:
        check("lr", *arguments)
    assert str(error.value) == message and error.value.as_cli_message() == f"--{message}"


@pytest.mark.parametrize("value", [2.0, np.float64(2), "2", None, True, [2]])
def test_a_count_is_a_whole_number(value):
    with pytest.raises(InputError, match=rf"^top_k {re.escape(repr(value))}: give a (whole )?number$"):
        check_count("top_k", value, 1)


# ----------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [
        ("stsc", "; did you mean stsb?"),
        ("sikr", "; did you mean sickr?"),
        ("stsb-ed", "; did you mean stsb-de?"),
        ("something else", ""),
        ("", ""),
    ],
)
def test_did_you_mean_suggests_the_closest_name_if_one_is_close(word, suggestion):
    assert did_you_mean(word, ["stsb", "stsb-de", "sickr", "mrpc"]) == suggestion


@pytest.mark.parametrize(
    ("read", "cause"),
    [
        (lambda: {}["layers"], "'layers' is missing"),
        (lambda: [][3], "list index out of range"),
        (lambda: None + 1, "unsupported operand type"),
        (lambda: b"\xff".decode(), "invalid start byte"),
        (lambda: tokenizers.Tokenizer.from_str("{}"), "Model missing"),
        (lambda: open("/nowhere/at/all"), "No such file"),
    ],
)
def test_whatever_goes_wrong_while_a_file_is_read_is_one_line_that_names_the_file(read, cause):
    with pytest.raises(InputError, match=f"^config.json cannot be read \\(.*{cause}.*\\): restore the file$"):
        with reading("config.json"):
            read()


def test_an_interrupt_and_a_message_of_ours_pass_the_boundary_unchanged():
    with pytest.raises(KeyboardInterrupt), reading("config.json"):
        raise KeyboardInterrupt
    with pytest.raises(InputError, match=r"^layer 14: choose 0 to 12$"), reading("config.json"):
        raise InputError("layer 14: choose 0 to 12")
