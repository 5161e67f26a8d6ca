"""How a mistake is told: one line that says what, where and what to do, and exit code 2."""

import argparse
import difflib
import errno
import math
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from types import FrameType


class InputError(Exception):
    """A mistake that the user can fix. The message reads `<what> (<where>): <what to do>`, on one line.

    parameters: the words in it that name a parameter of the library, such as max_length. A command shows them
    as its options, --max-length.
    """

    def __init__(self, message: str, *parameters: str):
        super().__init__(harmless(message))
        self.parameters = parameters

    def of_command(self) -> str:
        """The message in the words of a command line."""
        message = str(self)
        for name in self.parameters:
            alone = rf"(?<![\w./-]){name}(?![\w/-]|\.\w)"  # not as a part of a path
            message = re.sub(alone, f"--{name.replace('_', '-')}", message, count=1)
        return message


SEEDS = 0, 2**63 - 1  # what torch's generators take
MANY = 10**9  # of what is counted: more is a mistake, and would not fit


def harmless(text: str, most: int = 1500) -> str:
    """On one line, without what a terminal would obey, its middle cut out if it is long: names from files of
    strangers stand in messages."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def short(value: object) -> str:
    """What a stranger's file says, quoted, in a few words."""
    try:
        return harmless(repr(value), 80)
    except ValueError:  # a whole number of thousands of digits
        return "a number of thousands of digits"


def check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raises InputError if the parameter called name is not a number from low to high."""
    if not (low <= value <= high and math.isfinite(value)):
        too_many = MANY <= high < value < math.inf
        bounds = f"{low} to {high}" if high < MANY or too_many else f"{low} or more"
        raise InputError(f"{name} {value}: choose {bounds}", name)


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Raises InputError if the parameter called name is none of the known ones."""
    if value not in known:
        raise InputError(f"{name} {value!r}: choose one of {', '.join(known)}{nearest(value, known)}", name)


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """'; did you mean X?' with the name that is most like the word, '' for none; prefix: put before X."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {prefix}{found[0]}?" if found else ""


class CommandLine(argparse.ArgumentParser):
    """argparse, but a mistake is an InputError, no option is cut short, and --help tells real defaults."""

    def __init__(self, doc: str):
        first_line = doc.splitlines()[0]
        super().__init__(description=first_line, formatter_class=Help, allow_abbrev=False)

    def error(self, message: str):
        raise InputError(f"{message.removeprefix('argument ')}; see --help")

    def parse_args(self, argv: list[str] | None = None) -> object:
        options, unknown = self.parse_known_args(argv)
        if unknown:
            known = [option.lstrip("-") for option in self._option_string_actions]
            like = nearest(unknown[0].partition("=")[0].lstrip("-"), known, prefix="--")
            raise InputError(f"no option {unknown[0]}{like or '; see --help'}")
        return options

    def group(self, title: str) -> tuple:
        """A named group of options -> itself and its add_argument."""
        group = self.add_argument_group(title)
        return group, group.add_argument

    def one_of(self, options: object, one: str, other: str) -> None:
        """Raises InputError if two options are given of which one replaces the other."""
        if all(getattr(options, name) not in (None, False) for name in (one, other)):
            raise InputError(f"{one} and {other}: give one of the two", one, other)

    def refuse(self, options: object, group: argparse._ArgumentGroup, where: str) -> None:
        """Raises InputError if an option of a group is given that does nothing `where` it is."""
        for action in group._group_actions:
            if getattr(options, action.dest) != action.default:
                raise InputError(f"{action.option_strings[0]} does nothing with {where}: leave it out")


def first_run(command: str, words: list[str], argv: list[str]) -> list[str]:
    """What a command line that names no checkpoint stands for, printed. words: paths in them are absolute."""
    argv = [*(os.path.relpath(word) if os.path.isabs(word) else word for word in words), *argv]
    if os.environ.get("RANK", "0") == "0":  # of several processes one says it
        print(f"python {command} {shlex.join(argv)}")
    return argv


def given(options: object, kind: type) -> dict:
    """The fields of a dataclass that a command line names: those with a value."""
    named = {field.name: getattr(options, field.name, None) for field in fields(kind)}
    return {name: value for name, value in named.items() if value is not None}


class Help(argparse.HelpFormatter):
    """Adds the default to each help text that does not say it itself."""

    def _get_help_string(self, action: argparse.Action) -> str:
        plain = action.default in (None, False, argparse.SUPPRESS, []) or "default" in action.help
        return action.help if plain else f"{action.help} (default: %(default)s)"


def run_command(main: Callable[[], None]) -> None:
    """Run a command: an InputError becomes one line on stderr and exit code 2, a bug keeps its traceback."""
    signal.signal(signal.SIGTERM, interrupt)
    try:
        main()
        sys.stdout.flush()
    except InputError as error:
        print(f"{Path(sys.argv[0]).name}: {error.of_command()}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as error:
        saved = f": {harmless(str(error))}" if str(error) else ""
        print(f"\n{Path(sys.argv[0]).name}: stopped{saved}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader, such as head, wanted no more
        silence()
        sys.exit(141)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        silence()
        print(f"{Path(sys.argv[0]).name}: the disk that the output goes to is full", file=sys.stderr)
        sys.exit(2)


def silence() -> None:
    """Nothing more goes to stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def interrupt(number: int, frame: FrameType | None) -> None:
    """Somebody asks the process to end, as a scheduler does: the same as Ctrl-C."""
    raise KeyboardInterrupt
