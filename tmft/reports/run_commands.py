"""The commands that repeat finished runs, from the options that their result.json has recorded.

Names in these files may come from strangers, and the command is there to be pasted into a terminal: every
value is quoted for the shell, control characters are replaced, and keys that are no names of options are left
out.
"""

import re
import shlex
from typing import Any

from tmft.errors import sanitize
from tmft.runs.sweeps import Sweep

# Options that the command gets from the run itself, or that do not change its result.
OWN_OPTIONS = {"ckpt", "layer", "seed", "num_seeds", "device"}
SWITCHES = {"save_fp16"}  # options that are off unless named; other options without a value have a --no- form
COMMA_LISTS = {"keep_layers"}  # lists that are one word on the command line


def repeat_command(runs: list[dict[str, Any]], layers: str | None = None) -> str:
    """Return the command that repeats runs which differ only in their seeds (and layers, if these are given).

    runs: contents of result.json. If the seeds are not 0, 1, ..., there is a line for each.
    """
    layers = str(runs[0]["settings"].get("layer", "")) if layers is None else layers
    seeds = list(dict.fromkeys(run["settings"].get("seed", 0) for run in runs))
    if len(seeds) > 1 and sorted(seeds) == list(range(len(seeds))):
        return train_command(runs[0], layers, ["--num-seeds", str(len(seeds))])
    return "\n".join(train_command(runs[0], layers, ["--seed", str(seed)]) for seed in seeds)


def sweep_command(sweep: Sweep) -> str:
    """Return the command that repeats all layers and seeds of a sweep."""
    runs = [run for runs in sweep.layers.values() for run in runs]
    return repeat_command(runs, format_layers(list(sweep.layers)))


def train_command(run: dict[str, Any], layer: str, seed_options: list[str]) -> str:
    """Return a command of train.py with the options of a run, the content of its result.json.

    layer: value of --layer; "" or, if layers were chosen by --keep-layers, any value leaves the option out.
    """
    arguments, settings = dict(run.get("arguments", {})), run["settings"]
    words = ["python", "train.py"]
    if checkpoint := settings.get("ckpt"):
        words += ["--ckpt", checkpoint]
    if layer and not settings.get("keep_layers") and "text_tokens" not in run:
        words += ["--layer", layer]
    words += seed_options
    for name, value in arguments.items():
        if re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) and name not in OWN_OPTIONS:
            words += option_words(name, value)
    return " ".join(shlex.quote(sanitize(word, 4000)) for word in words)


def option_words(name: str, value: object) -> list[str]:
    """Return the command-line arguments that set the option of an attribute such as "batch_size"."""
    option = f"--{name.replace('_', '-')}"
    if value is None or (value is False and name in SWITCHES):
        return []
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    if name == "task":  # names of several tasks are recorded with spaces between them
        return [option, *str(value).split()]
    if name in COMMA_LISTS and isinstance(value, list):
        return [option, ",".join(map(str, value))]
    if isinstance(value, list):
        return [option, *map(str, value)]
    return [option, str(value)]


def format_layers(layers: list[int]) -> str:
    """Return numbers of layers as --layer takes them: [0, 1, 2, 5] becomes "0-2,5"."""
    parts: list[list[int]] = []
    for layer in sorted(layers):
        if parts and layer == parts[-1][1] + 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
