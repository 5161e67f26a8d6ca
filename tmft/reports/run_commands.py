"""The options and the command that repeat a finished run, from what its result.json has recorded.

Names in these files may come from strangers, and the command is there to be pasted into a terminal: every
value is quoted for the shell, control characters are replaced, and keys that are no names of options are left
out.
"""

import re
import shlex
from typing import Any

from tmft.errors import sanitize

# Options that the command gets from the run itself, or that do not change its result.
OWN_OPTIONS = {"ckpt", "layer", "seed", "num_seeds", "device"}
SWITCHES = {"save_fp16"}  # options that are off unless named; other options without a value have a --no- form
OPTION_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
COMMA_LISTS = {"keep_layers"}  # lists that are one word on the command line


def repeat_command(runs: list[dict[str, Any]]) -> str:
    """Return the command that repeats runs which differ only in layer and seed; "" for runs of `fine_tune`.

    runs: contents of result.json. If the seeds are not 0, 1, ..., there is a line for each.
    """
    first = runs[0]
    if "test" in first and "task" not in first.get("arguments", {"task": ""}):
        return ""  # their examples were given in Python, and are no task of train.py
    layers = sorted({run["settings"]["layer"] for run in runs if "layer" in run["settings"]})
    seeds = list(dict.fromkeys(run["settings"].get("seed", 0) for run in runs))
    choices = [{"seed": seed} for seed in seeds]
    if len(seeds) > 1 and sorted(seeds) == list(range(len(seeds))):
        choices = [{"num_seeds": len(seeds)}]
    lines = []
    for choice in choices:
        options = run_options(first, ",".join(map(str, layers))) | choice
        words = [word for name, value in options.items() for word in option_words(name, value)]
        lines.append(" ".join(shlex.quote(sanitize(word, 4000)) for word in ["python", "train.py", *words]))
    return "\n".join(lines)


def run_options(run: dict[str, Any], layer: str) -> dict[str, object]:
    """Return {name: value} of the options of train.py that repeat a run, but for its seed and device.

    layer: value of --layer; "" or, if layers were chosen by --keep-layers, any value leaves the option out.
    An option whose value is None is left out of the command.
    """
    arguments, settings = dict(run.get("arguments", {})), run["settings"]
    has_layer = layer and not settings.get("keep_layers") and "text_tokens" not in run
    own = {"ckpt": settings.get("ckpt") or None, "layer": layer if has_layer else None}
    names = [name for name in arguments if OPTION_NAME.fullmatch(name) and name not in OWN_OPTIONS]
    return own | {name: arguments[name] for name in names}


def option_words(attribute: str, value: object) -> list[str]:
    """Return the command-line arguments that set the option of an attribute such as "batch_size"."""
    option = f"--{attribute.replace('_', '-')}"
    if value is None or (value is False and attribute in SWITCHES):
        return []
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    if attribute == "task" and isinstance(value, str):  # several are recorded with spaces between them
        return [option, *str(value).split()]
    if attribute in COMMA_LISTS and isinstance(value, list):
        return [option, ",".join(map(str, value))]
    if isinstance(value, list):
        return [option, *map(str, value)]
    return [option, str(value)]
