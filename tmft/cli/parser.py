"""The parser of all commands, and how a command reports a user error: one line and exit code 2."""

import argparse
import errno
import os
import shlex
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from types import FrameType

from tmft.cli.old_options import check_old_options
from tmft.errors import InputError, did_you_mean, sanitize


class CommandLine(argparse.ArgumentParser):
    """An argparse parser with examples at the top of --help, whose errors are raised as InputError.

    doc: the docstring of the command. Its first paragraph says what the command does, an indented second one
    lists examples, and what follows is shown at the end of --help.
    command: the name by which old_options.py knows the options that this command had in earlier versions.

    Groups of options that few users need are added as advanced: --help only names their options, and
    --help-all describes them. A parser without advanced groups has no --help-all.

    Options cannot be abbreviated: an option that is added later would change what a script means.
    """

    def __init__(self, doc: str, command: str = ""):
        summary, *notes = doc.strip("\n").split("\n\n")
        if notes and notes[0].startswith("    "):
            summary += "\n\nexamples:\n" + textwrap.indent(textwrap.dedent(notes.pop(0)), "  ")
        super().__init__(
            description=summary,
            epilog="\n\n".join(notes),
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        self.command = command

    def add_argument_group(self, title: str, advanced: bool = False) -> argparse._ArgumentGroup:
        """Add a group of options. advanced: --help only names them; --help-all describes them."""
        group = super().add_argument_group(title)
        group.advanced = advanced
        if advanced and "--help-all" not in self._option_string_actions:
            self.add_argument("--help-all", action=HelpAllAction, help="describe all options and exit")
        return group

    def format_help(self, show_all: bool = False) -> str:
        """Return the text of --help or, if show_all is True, of --help-all."""
        positionals = (action for action in self._actions if not action.option_strings)
        names = (f"[{p.metavar}]" if p.nargs == "?" else str(p.metavar) for p in positionals)
        self.usage = " ".join(["%(prog)s", *names, "[options]"])
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in self._action_groups:
            if show_all or not group.advanced:
                formatter.start_section(group.title)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
        if not show_all:
            formatter.add_text(self.list_advanced_options(formatter._width))
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def list_advanced_options(self, width: int) -> str:
        """Return a heading and, for each advanced group, its title and the names of its options.

        width: maximum length of a line. Returns "" if there are no advanced groups.
        """
        lines = []
        for group in (group for group in self._action_groups if group.advanced):
            names = ", ".join(action.option_strings[0] for action in group._group_actions)
            text = f"{group.title}: {names}"
            lines += textwrap.wrap(
                text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
            )
        return "\n".join(["more options, described by --help-all:", *lines]) if lines else ""

    def error(self, message: str):
        raise InputError(f"{message.removeprefix('argument ')}; see --help")

    def parse_args(self, argv: list[str] | None = None) -> argparse.Namespace:
        """Parse argv, or sys.argv. Raises InputError for a mistake, with the option that was meant."""
        argv = sys.argv[1:] if argv is None else argv
        check_old_options(self.command, argv)
        args, unknown = self.parse_known_args(argv)
        if unknown:
            known = [option.lstrip("-") for option in self._option_string_actions]
            hint = did_you_mean(unknown[0].partition("=")[0].lstrip("-"), known, prefix="--")
            kind = "option" if unknown[0].startswith("-") else "argument"
            raise InputError(f"unknown {kind} {unknown[0]}{hint or '; see --help'}")
        self.check_not_empty(args)
        return args

    def check_not_empty(self, args: argparse.Namespace) -> None:
        """Raise InputError for an argument that is an empty text, such as that of an unset shell variable.

        It would otherwise be taken for an option that was not given.
        """
        for action in self._actions:
            value = getattr(args, action.dest, None)
            if "" in (value if isinstance(value, list) else [value]):
                name = action.option_strings[0] if action.option_strings else action.metavar
                raise InputError(f"{name} is empty: give a value, or remove it")

    def mutually_exclusive(self, args: argparse.Namespace, first: str, second: str) -> None:
        """Raise InputError if both options are given. first, second: names of attributes of args.

        Unlike those of argparse's mutually exclusive groups, the two may stand in different groups of --help.
        """
        values = getattr(args, first), getattr(args, second)
        if all(value is not None and value is not False for value in values):
            raise InputError(f"{first} and {second}: give only one of the two", first, second)

    def reject_unused(
        self, args: argparse.Namespace, groups: Iterable[argparse._ArgumentGroup], context: str
    ) -> None:
        """Raise InputError if an option of the groups is given, which has no effect in this context."""
        for action in (action for group in groups for action in group._group_actions):
            if getattr(args, action.dest) != action.default:
                option = action.option_strings[0]
                raise InputError(f"{option} has no effect with {context}: remove {option}")


class HelpAllAction(argparse.Action):
    """Prints the help of all options and exits. The option leaves no attribute in the parsed arguments."""

    def __init__(self, option_strings: list[str], dest: str, help: str):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: CommandLine, *unused):
        print(parser.format_help(show_all=True), end="")
        parser.exit()


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the examples, and adds the default to each help text that does not name it.

    Values of options are not broken at hyphens, and the metavar of an option with two names is shown once.
    """

    def __init__(self, prog: str, **options):
        super().__init__(prog, max_help_position=26, **options)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        metavar = self._get_default_metavar_for_optional(action)
        return f"{', '.join(action.option_strings)} {self._format_args(action, metavar)}"

    def _get_help_string(self, action: argparse.Action) -> str:
        has_no_default = action.default in (None, False, argparse.SUPPRESS, [])
        return (
            action.help
            if has_no_default or "default" in action.help
            else f"{action.help} (default: %(default)s)"
        )


def default_command(script: str, default_argv: list[str], argv: list[str]) -> list[str]:
    """Return the arguments of a command that was called without a checkpoint, and print the whole command.

    script: its file in a checkout, such as train.py; in an installation it is started as `tmft train`.
    default_argv: arguments that stand for "no checkpoint"; absolute paths among them are shortened.
    argv: the options that the user gave, which come last and so take precedence.
    """
    argv = [*(os.path.relpath(word) if os.path.isabs(word) else word for word in default_argv), *argv]
    if os.environ.get("RANK", "0") == "0":  # only one of several processes prints
        program = sys.argv[0] if sys.argv[0].startswith("tmft ") else f"python {script}"
        print(f"{program} {shlex.join(argv)}")
    return argv


def fields_from_args(args: argparse.Namespace, config_class: type) -> dict:
    """Return {field: value} for the fields of a dataclass that have a value on the command line."""
    values = {field.name: getattr(args, field.name, None) for field in fields(config_class)}
    return {name: value for name, value in values.items() if value is not None}


def run_command(main: Callable[[], None]) -> None:
    """Run a command. An InputError becomes one line on stderr and exit code 2; a bug keeps its traceback.

    The line begins with the name of the command, the last part of sys.argv[0].
    """
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        main()
        sys.stdout.flush()
    except InputError as error:
        print(f"{Path(sys.argv[0]).name}: {error.as_cli_message()}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as error:
        reason = f": {sanitize(str(error))}" if str(error) else ""
        print(f"\n{Path(sys.argv[0]).name}: stopped{reason}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reading process, such as head, has closed the pipe
        discard_stdout()
        sys.exit(141)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        discard_stdout()
        print(f"{Path(sys.argv[0]).name}: the disk that the output is written to is full", file=sys.stderr)
        sys.exit(2)


def discard_stdout() -> None:
    """Send everything that is still in the buffer of stdout to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def on_sigterm(signal_number: int, frame: FrameType | None) -> None:
    """Treat SIGTERM, which schedulers send, like Ctrl-C."""
    raise KeyboardInterrupt
