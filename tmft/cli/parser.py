"""The command line parser of all commands, and how a command reports a user error: one line and exit code 2."""

import argparse
import errno
import os
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import FrameType

from tmft.errors import InputError, did_you_mean, sanitize


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
            like = did_you_mean(unknown[0].partition("=")[0].lstrip("-"), known, prefix="--")
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


def default_command(command: str, words: list[str], argv: list[str]) -> list[str]:
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
        saved = f": {sanitize(str(error))}" if str(error) else ""
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
