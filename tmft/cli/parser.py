"""The parser of all commands, and how a command reports a user error: one line and exit code 2."""

import argparse
import errno
import io
import os
import shlex
import signal
import sys
import textwrap
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tmft.errors import InputError, did_you_mean, sanitize

# Errors of the system that a path of the user can cause, such as a folder that may not be entered.
PATH_ERRORS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS, errno.ENOTDIR)


stop_signals: list[int] = []  # the signals to stop that this command has received


class CommandLineParser(argparse.ArgumentParser):
    """An argparse parser with examples at the top of --help, whose errors are raised as InputError.

    doc: the docstring of the command: what it does, its examples, indented, and further paragraphs, which are
    shown at the end of --help. subcommand: the word after the name of the command, as in `data convert`.

    Groups of options that few users need are added as advanced: --help only names their options, and
    --help-all describes them. Options cannot be abbreviated, because an abbreviation may become ambiguous
    when options are added.
    """

    def __init__(self, doc: str, subcommand: str = ""):
        summary, *notes = doc.strip("\n").split("\n\n")
        if notes and notes[0].startswith("    "):
            summary += "\n\nexamples:\n" + textwrap.indent(textwrap.dedent(notes.pop(0)), "  ")
        super().__init__(
            prog=f"{Path(sys.argv[0]).name} {subcommand}".rstrip(),
            description=summary,
            epilog="\n\n".join(notes),
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        self.exclusive: list[tuple[str, str]] = []
        self.advanced_groups: list[argparse._ArgumentGroup] = []
        self.shows_all = False  # whether --help-all was given

    def add_argument_group(
        self, *args: Any, advanced: bool = False, **kwargs: Any
    ) -> argparse._ArgumentGroup:
        """Add a group of options; --help only names those of an advanced one."""
        group = super().add_argument_group(*args, **kwargs)
        if advanced:
            if not self.advanced_groups:
                self.add_argument("--help-all", action="help", help="describe all options and exit")
            self.advanced_groups.append(group)
        return group

    def format_help(self) -> str:
        """Return the text of --help or --help-all, whose usage names the positional arguments alone."""
        positionals = (action for action in self._actions if not action.option_strings)
        names = (f"[{p.metavar}]" if p.nargs == "?" else str(p.metavar) for p in positionals)
        self.usage = " ".join(["%(prog)s", *names, "[options]"])
        groups, epilog = self._action_groups, self.epilog
        if not self.shows_all and self.advanced_groups:
            self._action_groups = [group for group in groups if group not in self.advanced_groups]
            self.epilog = f"{self.list_advanced_options()}\n\n{epilog}"
        text = super().format_help()
        self._action_groups, self.epilog = groups, epilog
        return text

    def list_advanced_options(self) -> str:
        """Return a heading and, for each advanced group, its title and the names of its options."""
        lines = ["more options, described by --help-all:"]
        for group in self.advanced_groups:
            names = ", ".join(action.option_strings[0] for action in group._group_actions)
            text = f"  {group.title}: {names}"
            lines += textwrap.wrap(text, 78, subsequent_indent="    ", break_on_hyphens=False)
        return "\n".join(lines)

    def error(self, message: str) -> NoReturn:
        """Raise InputError with the message of argparse, instead of printing it and exiting."""
        raise InputError(f"{message.removeprefix('argument ')}; see --help")

    def parse_args(self, argv: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]  # no namespace
        """Parse argv, by default that of the process; suggest the most similar option for an unknown one."""
        argv = list(sys.argv[1:] if argv is None else argv)
        self.shows_all = "--help-all" in argv
        args, unknown = self.parse_known_args(argv)
        if unknown:
            known = [option.lstrip("-") for option in self._option_string_actions]
            hint = did_you_mean(unknown[0].partition("=")[0].lstrip("-"), known, prefix="--")
            kind = "option" if unknown[0].startswith("-") else "argument"
            raise InputError(f"unknown {kind} {unknown[0]}{hint or '; see --help'}")
        for names in self.exclusive:
            values = [getattr(args, name, None) for name in names]
            if all(value is not None and value is not False for value in values):
                first, second = names
                raise InputError(f"`{first}` and `{second}`: give only one of the two", first, second)
        return args

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Refuse an argument that is an empty text, such as that of an unset shell variable.

        It would otherwise be taken for an option that was not given, or for the current folder.
        """
        if not arg_string:
            name = action.option_strings[0] if action.option_strings else action.metavar
            raise InputError(f"{name} is empty: give a value, or remove it")
        return super()._get_value(action, arg_string)

    def exclude(self, first: str, second: str) -> None:
        """Refuse a command with both of two options, named by their attributes.

        In contrast to argparse's mutually exclusive groups, the two may be in different groups of --help.
        """
        self.exclusive.append((first, second))

    def reject_unused(self, args: argparse.Namespace, names: Container[str], context: str) -> None:
        """Raise InputError if an option is given that has no effect with `context`.

        names: those of the attributes of such options.
        """
        for action in self._actions:
            if action.dest in names and getattr(args, action.dest) != action.default:
                option = action.option_strings[0]
                raise InputError(f"{option} has no effect with {context}: remove {option}")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the examples, and adds the default to each help text that does not mention it.

    Words are not broken at hyphens, which the names of options have.
    """

    def __init__(self, prog: str, **options: Any):
        super().__init__(prog, max_help_position=26, **options)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        has_no_default = action.default in (None, False, argparse.SUPPRESS, [])
        return text if has_no_default or "default" in text else f"{text} (default: %(default)s)"


def default_command(script: str, default_argv: list[str], argv: list[str]) -> list[str]:
    """Complete the arguments of a command that was called without a checkpoint; print and return them.

    Absolute paths among default_argv become relative. The options of the user come last, and take precedence.
    """
    argv = [*(os.path.relpath(word) if os.path.isabs(word) else word for word in default_argv), *argv]
    if os.environ.get("RANK", "0") == "0":  # only one of several processes prints
        print(f"{program_name(script)} {shlex.join(argv)}")
    return argv


def program_name(script: str) -> str:
    """Return how the user calls a command: "python train.py" in a checkout, else "tmft train"."""
    is_installed = sys.argv[0].startswith("tmft ")
    return f"tmft {script.removesuffix('.py')}" if is_installed else f"python {script}"


def run_command(main: Callable[[], None]) -> None:
    """Run a command. An InputError becomes one line on stderr and exit code 2; a bug keeps its traceback.

    The line begins with the name of the command, the last part of sys.argv[0]. Characters that the encoding
    of stdout does not have are escaped.
    """
    stop_signals.clear()
    if hasattr(signal, "SIGTERM"):  # not on every platform
        signal.signal(signal.SIGTERM, on_stop_signal)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as in the background
        signal.signal(signal.SIGINT, on_stop_signal)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")

    def end(message: str, code: int) -> NoReturn:
        print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
        sys.exit(code)

    try:
        try:
            main()
        except Exception:
            if stop_signals:  # it stems from one: torch turns a KeyboardInterrupt into errors of its own
                raise KeyboardInterrupt from None
            raise
        print(end="", flush=True)
    except InputError as error:
        end(error.as_cli_message(), 2)
    except KeyboardInterrupt as error:
        reason = f": {sanitize(str(error))}" if str(error) else ""
        print(file=sys.stderr)
        end(f"stopped{reason}", 130)
    except BrokenPipeError:  # the reading process, such as head, has closed the pipe
        discard_stdout()
        sys.exit(141)
    except OSError as error:
        if error.errno in PATH_ERRORS and error.filename is not None:
            path = sanitize(str(error.filename), 200)
            remedy = "check the path, and the permissions of its folders"
            end(f"{path} cannot be opened ({error.strerror}): {remedy}", 2)
        if error.errno != errno.ENOSPC:
            raise
        discard_stdout()
        end("the disk that the output is written to is full", 2)


def discard_stdout() -> None:
    """Connect stdout to /dev/null, so that flushing its buffer cannot fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def on_stop_signal(signal_number: int, frame: FrameType | None) -> None:
    """Stop the command: SIGTERM, which schedulers send, is treated like Ctrl-C."""
    stop_signals.append(signal_number)
    raise KeyboardInterrupt
