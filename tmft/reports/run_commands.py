"""The options and the command that repeat a finished run, from what its result.json has recorded.

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
OPTION_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
COMMA_LISTS = {"keep_layers"}  # lists that are one word on the command line


def repeat_command(runs: list[dict[str, Any]], layers: str | None = None) -> str:
    """Return the command that repeats runs which differ only in their seeds (and layers, if these are given).

    runs: contents of result.json. If the seeds are not 0, 1, ..., there is a line for each.
    """
    layers = str(runs[0]["settings"].get("layer", "")) if layers is None else layers
    seeds = list(dict.fromkeys(run["settings"].get("seed", 0) for run in runs))
    if len(seeds) > 1 and sorted(seeds) == list(range(len(seeds))):
        return train_command(runs[0], layers, num_seeds=len(seeds))
    return "\n".join(train_command(runs[0], layers, seed) for seed in seeds)


def sweep_command(sweep: Sweep) -> str:
    """Return the command that repeats all layers and seeds of a sweep."""
    runs = [run for runs in sweep.layers.values() for run in runs]
    return repeat_command(runs, format_layers(list(sweep.layers)))


def train_command(
    run: dict[str, Any], layer: str, seed: int | None = None, num_seeds: int | None = None
) -> str:
    """Return a command of train.py with the options of a run, the content of its result.json.

    Of a run with examples that were given in Python it is the call of `fine_tune`, as a comment of the shell.
    """
    if "test" in run and "task" not in run.get("arguments", {"task": ""}):
        return fine_tune_call(run, layer, [seed] if num_seeds is None else num_seeds)
    options = run_options(run, layer, seed, num_seeds)
    words = [word for name, value in options.items() for word in option_words(name, value)]
    return " ".join(shlex.quote(sanitize(word, 4000)) for word in ["python", "train.py", *words])


def fine_tune_call(run: dict[str, Any], layer: str, seeds: list[int | None] | int) -> str:
    """Return the call that repeats a run of `fine_tune`, but for its examples, as a comment of the shell."""
    settings = run["settings"]
    task, layer_option = settings["task"], {} if settings.get("keep_layers") else {"layer": layer}
    scores = {} if task["classes"] else {"score_range": (task["min_score"], task["max_score"])}
    options = {"objective": task["objective"], "metric": task["metric"]} | scores | layer_option
    names = [name for name in run["arguments"] if OPTION_NAME.fullmatch(name)]
    options |= {"seeds": seeds} | {name: run["arguments"][name] for name in names}
    words = [repr(settings["ckpt"]), "train", "dev", "test"]
    words += [f"{name}={value!r}" for name, value in options.items()]
    return sanitize(f"# in Python: fine_tune({', '.join(words)})", 4000)


def run_options(
    run: dict[str, Any], layer: str, seed: int | None = None, num_seeds: int | None = None
) -> dict[str, object]:
    """Return {name: value} of the options of train.py that repeat a run; None stands for an absent option.

    layer: value of --layer; "" or, if layers were chosen by --keep-layers, any value leaves the option out.
    """
    arguments, settings = dict(run.get("arguments", {})), run["settings"]
    has_layer = layer and not settings.get("keep_layers") and "text_tokens" not in run
    own = {"ckpt": settings.get("ckpt") or None, "layer": layer if has_layer else None}
    seeds = {"seed": seed, "num_seeds": num_seeds}
    names = [name for name in arguments if OPTION_NAME.fullmatch(name) and name not in OWN_OPTIONS]
    return own | seeds | {name: arguments[name] for name in names}


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


def format_layers(layers: list[int]) -> str:
    """Return numbers of layers as --layer takes them: [0, 1, 2, 5] becomes "0-2,5"."""
    parts: list[list[int]] = []
    for layer in sorted(layers):
        if parts and layer == parts[-1][1] + 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
