"""Print a script with which bash completes the commands and options of tmft.

    source <(tmft completion bash)
    tmft completion bash > ~/.local/share/bash-completion/completions/tmft

The first line is for this shell only; the second one is for all that are started later, if the package
bash-completion is installed. Where no option or choice fits, names of files are completed.
"""

import io
import re
from argparse import Namespace
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from importlib import import_module

from tmft.cli.entry_points import COMMANDS, module_name
from tmft.cli.parser import CommandLineParser

SUBCOMMANDS = {"data": ("convert", "sentences")}
BASH = """_tmft() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} words=
    if [[ $COMP_CWORD == 1 ]]; then
        words="%s"
    else
        case "$command ${COMP_WORDS[COMP_CWORD-1]} $word" in
%s
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _tmft tmft"""


def main(argv: list[str] | None = None) -> None:
    parse_args(argv)
    print(format_bash_script())


def parse_args(argv: list[str] | None) -> Namespace:
    p = CommandLineParser(__doc__)
    p.add_argument("shell", metavar="SHELL", choices=["bash"], help="the shell: bash")
    return p.parse_args(argv)


def format_bash_script() -> str:
    """Return the script: the words that may follow each command, and each option that has choices."""
    choice_cases, option_cases = [], []
    for command in COMMANDS:
        run, subcommands = import_module(module_name(command)).main, SUBCOMMANDS.get(command, ())
        options: dict[str, list[str]] = {}
        for words in [[], *([name] for name in subcommands)]:
            options |= read_help_options(run, words)
        for name, choices in options.items():
            if choices:
                choice_cases.append(f'"{command} {name} "*) words="{" ".join(choices)}" ;;')
        option_cases.append(f'"{command} "*" -"*) words="{" ".join(options)}" ;;')
        if subcommands:
            option_cases.append(f'"{command} {command} "*) words="{" ".join(subcommands)}" ;;')
    cases = "\n".join(f"            {case}" for case in choice_cases + option_cases)
    return BASH % (" ".join(COMMANDS), cases)


def read_help_options(run: Callable[[list[str]], None], words: list[str]) -> dict[str, list[str]]:
    """Return {option: choices} of a command, from its --help-all, or from --help if that describes all."""
    text = io.StringIO()
    for option in ("--help", "--help-all"):
        if option == "--help" or "--help-all" in text.getvalue():
            with redirect_stdout(text), suppress(SystemExit):
                run([*words, option])
    options = {}
    for line in text.getvalue().split("\n"):
        if line.startswith("  -"):
            invocation = line.strip().split("  ")[0]
            choices = re.search(r"\{(.*)\}", invocation)
            for name in re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", invocation):
                options[name] = choices[1].split(",") if choices else []
    return options
