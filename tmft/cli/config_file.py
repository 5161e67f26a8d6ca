"""train.py --config FILE: the options of a TOML file, or those that repeat a run, from its result.json."""

import tomllib
from itertools import pairwise
from pathlib import Path

from tmft.cli.parser import CommandLineParser
from tmft.errors import InputError, short_repr
from tmft.io.files import check_regular_file, reading
from tmft.reports.run_commands import OPTION_NAME, option_words, run_options
from tmft.runs.result_json import RESULT_FILE, read_result
from tmft.runs.run_folder import Digests

NOT_IN_A_FILE = {"config", "help", "help_all"}  # options of the command line alone


def expand_config(parser: CommandLineParser, argv: list[str]) -> tuple[list[str], Digests]:
    """Return argv with the options of FILE in place of --config FILE, before all others.

    The digests are those of the data and weights of the run whose result.json FILE is; {} for a TOML file.
    Of an option that is given twice the last value counts, so options on the command line take precedence.
    Options of the file that exclude one of those are left out.
    """
    typed = vars(parser.parse_args(argv))
    if "config" not in typed:
        return argv, {}
    path = typed["config"]
    options, digests = read_options(path)
    for pair in parser.exclusive:
        for name, other in (pair, pair[::-1]):
            if typed[name] is not None:
                options.pop(other, None)
    words = [word for name, value in options.items() for word in option_words(name, value)]
    try:
        parser.parse_args(words)
    except InputError as error:
        raise InputError(f"{path}: {error.as_cli_message()}") from None
    pairs = pairwise(["", *argv])  # each word, and the one before it
    words += [word for before, word in pairs if "--config" not in (before, word, word.partition("=")[0])]
    return words, digests


def read_options(path: Path) -> tuple[dict[str, object], Digests]:
    """Return the options in a TOML file, or those that repeat a run, by name; and the digests of the run."""
    digests: Digests = {}
    if path.is_dir():  # the folder of a run
        path = path / RESULT_FILE
    if path.name == RESULT_FILE:
        run = read_result(path.parent)
        arguments, settings = run["arguments"], run["settings"]
        if "output_dir" not in arguments:
            raise InputError(f"{path} is not from a run of train.py: write its options to a TOML file")
        layer = str(settings["layer"]) if "layer" in settings else ""
        options = run_options(run, layer, settings["seed"]) | {"device": arguments.get("device")}
        digests = run.get("digests", {})
    else:
        check_regular_file(path)  # to open a pipe would wait for its other end
        with reading(path, f"name a TOML file, or the {RESULT_FILE} of a run"):
            content = tomllib.loads(path.read_text(encoding="utf-8"))
            options = {name.replace("-", "_"): value for name, value in content.items()}
            if len(options) < len(content) or not options:
                raise ValueError("it has an option twice" if options else "it has no options")
        if not NOT_IN_A_FILE.isdisjoint(options):
            raise InputError(f"{path} has {min(NOT_IN_A_FILE & options.keys())}: remove it")
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        are_plain = all(isinstance(value, str | int | float | None) for value in values)
        if not (OPTION_NAME.fullmatch(name) and are_plain) or any(str(v).startswith("--") for v in values):
            raise InputError(
                f"{path} has {name} = {short_repr(value)}: give the name of an option, and a number, a text, "
                "true, false or a list of these"
            )
    return options, digests
