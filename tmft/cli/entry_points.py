"""The program `tmft NAME`, and `python -m tmft NAME` in a checkout: find the command NAME and run it."""

import ast
import os
import platform
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tmft import __doc__ as tmft_docstring
from tmft import __version__
from tmft.cli.parser import run_command
from tmft.errors import InputError, did_you_mean, short_repr
from tmft.io.files import PACKAGE_DATA, missing_packages

SCRIPTS = ("train", "evaluate", "cka")  # in the root of a checkout; in an installation in tmft.commands
COMMANDS = (*SCRIPTS, *"encode predict serve export student report tables data".split())


def main() -> None:
    """Run the command that the first argument in sys.argv names."""
    run_command(dispatch)


def dispatch() -> None:
    """Call the main function of the command, or print all commands or the versions.

    Raises InputError for an unknown name, and if a package is missing.
    """
    name, *argv = sys.argv[1:] or ["--help"]
    sys.argv[0] = "tmft"  # the name that usage and error messages begin with
    if name in ("-h", "--help"):
        print(format_help())
        return
    if name == "--version":
        print(format_versions())
        return
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f"; choose one of {', '.join(COMMANDS)}"
        raise InputError(f"unknown command {name!r}{hint}")
    sys.argv[0] = f"tmft {name}"
    if name == "encode" and len(argv) == 1 and not argv[0].startswith("-"):
        print_embedding(argv[0])
        return
    if missing := missing_packages("this command"):
        raise InputError(missing)
    import_module(module_name(name)).main(argv)


def print_embedding(text: str) -> None:
    """Print the embedding of a text by data/tiny as a list in JSON, on one line.

    It is that of `SentenceEncoder.from_pretrained("tiny")`, which needs torch, and a second to import it.
    """
    if not text.strip() or os.path.exists(text):
        problem = f"{short_repr(text)} is empty, a file or a folder, and no text"
        raise InputError(f"{problem}: give a sentence, or MODEL FILE --out FILE.npy; see --help")
    from tmft.export.numpy_encoder import Encoder  # numpy takes a moment, and --help needs none

    [embedding] = Encoder(PACKAGE_DATA / "tiny").encode([text])
    print(f"[{', '.join(map(str, embedding))}]")


def module_name(command: str) -> str:
    """Return the name of the module that has the main function of a command."""
    if command not in SCRIPTS:
        return f"tmft.cli.{command}_command"
    if find_spec("tmft.commands"):
        return f"tmft.commands.{command}"
    checkout = str(Path(__file__).resolve().parents[2])
    if checkout not in sys.path:
        sys.path.insert(0, checkout)
    return command


def format_help() -> str:
    """Return the text of --help: what tmft is, and each command with the first line of its docstring.

    The docstrings are read from the source files, because importing all commands would take long.
    """
    lines = []
    for name in COMMANDS:
        spec = find_spec(module_name(name))
        assert spec is not None and spec.origin is not None  # each command is a file of tmft
        docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8"))) or ""
        summary, *_ = docstring.split("\n")
        lines.append(f"  {name:<10} {summary}")
    subject = (tmft_docstring or "").partition("\n")[0]
    usage = ["usage: tmft COMMAND [options]", "", subject, "", "commands:", *lines, ""]
    usage.append("tmft COMMAND --help shows examples and the options of a command.")
    return "\n".join([*usage, "tmft --version shows the versions of tmft, Python and torch, and the device."])


def format_versions() -> str:
    """Return what a bug report needs: the versions of tmft, Python and torch, and the device that is used.

    The device is the one of --device auto, with the precision of --precision auto on it.
    """
    lines = [f"tmft {__version__}", f"python {platform.python_version()}, {platform.platform()}"]
    if missing := missing_packages("all but tmft encode TEXT"):
        return "\n".join([*lines, missing])
    import torch  # these take a second, which the other uses of this module need not wait

    from tmft.cli.options import command_device
    from tmft.device import choose_precision

    device = command_device("auto")
    precision = choose_precision("auto", device)
    is_gpu = device.type == "cuda"
    details = torch.cuda.get_device_name(device) if is_gpu else f"threads {torch.get_num_threads()}"
    return "\n".join([*lines, f"torch {torch.__version__}", f"device {device.type}, {details}, {precision}"])
