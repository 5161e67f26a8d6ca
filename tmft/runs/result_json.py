"""Read result.json, the record of a finished run; docs/commands.md has its keys.

The file may be damaged or come from somebody else, so the types of the values that a table, a figure, a card
or a comparison shows are checked here, once.
"""

import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from tmft.errors import InputError, sanitize, short_repr
from tmft.io.arguments import fits_annotation
from tmft.io.files import is_file, reading
from tmft.io.formatting import MAX_NAME_LENGTH, NON_SCORE_KEYS
from tmft.runs.run_config import FineTuningConfig, FineTuningRecipe
from tmft.tasks import Task

RESULT_FILE = "result.json"
FORMAT = 1  # number of the form of this file; a file with another number is refused
REMEDY = "restore it, or run it again"

# The type of each value; those of the settings and of the task are declared by their dataclasses.
RESULT = {
    "sweep": str,
    "data": str,
    "settings": dict,
    "digests": dict[str, dict[str, str]],
    "arguments": dict,
    "provenance": tuple[dict, ...],
    "num_hidden_layers": int,
    "pooling": str,
    "epochs": tuple[dict, ...],
    "dev": dict,
    "test": dict,
    "parameters": dict[str, int],
    "precision": str,
    "seconds": float,
    "environment": dict,
    "curve": tuple[dict, ...],
    "held_out": dict,
    "tokens_seen": int,
}
EARLIER_RUN = RESULT | {"dev": dict | None, "test": dict | None}  # None after pre-training
SETTINGS = get_type_hints(FineTuningConfig) | get_type_hints(FineTuningRecipe)
SETTINGS |= {"layer": int, "ckpt": str | None, "from_scratch": str | None}
TASK = get_type_hints(Task) | {"subtasks": dict}
SCORES = {"dev", "test", "held_out", "gradient_cosines"}  # of a run, an epoch or an entry of the curve


class ResultDict(dict[str, Any]):
    """A dict of the result.json at `path` that raises InputError, not KeyError, for a key that is absent."""

    def __init__(self, path: Path, content: dict[str, Any]):
        super().__init__(content)
        self.path = path

    def __missing__(self, key: str):
        raise InputError(f"{self.path} has no {key}: {REMEDY}")


def read_result(folder: Path) -> dict[str, Any]:
    """Return the content of the result.json in a run folder; undefined scores are NaN.

    Raises InputError if the file is damaged or has another format. A key that is absent is an InputError when
    it is used.
    """
    path = folder / RESULT_FILE
    with reading(path, REMEDY):
        result = json.loads(path.read_text(encoding="utf-8"), object_hook=partial(ResultDict, path))
        if (number := result.get("format")) != FORMAT:
            raise InputError(
                f"{path} has format {short_repr(number)}, this version reads {FORMAT}: "
                "run it again, or read it with the version that wrote it"
            )
        check_types(result, RESULT)
        earlier_runs = result.get("provenance", [])
        for run in earlier_runs:
            check_types(run, EARLIER_RUN)
        for run in (result, *earlier_runs):
            settings, is_pretraining = run["settings"], run.get("test") is None
            check_types(settings, SETTINGS | {"task": str if is_pretraining else dict})
            if not is_pretraining:
                for task in (settings["task"], *settings["task"].get("subtasks", {}).values()):
                    check_types(task, TASK)
        for part in (result, *earlier_runs, *result.get("epochs", []), *result.get("curve", [])):
            for name in SCORES & part.keys():
                if part[name] is not None:
                    part[name] = read_scores(part[name], name)
    return result


def check_types(values: dict[str, Any], annotations: dict[str, Any]) -> None:
    """Raise ValueError if a value does not have the type that `annotations` gives for its name."""
    for name, value in values.items():
        if not fits_annotation(value, annotations.get(name, Any)):
            raise ValueError(f"{name} is {short_repr(value)}")


def read_scores(value: Any, name: str) -> Any:
    """Return a score, or dicts and lists of scores, with NaN for null. Raises ValueError for other values."""
    if isinstance(value, ResultDict):
        return ResultDict(value.path, {key: read_scores(item, key) for key, item in value.items()})
    if isinstance(value, list):
        return [read_scores(item, name) for item in value]
    if value is not None and not fits_annotation(value, float):
        raise ValueError(f"{name} is {short_repr(value)}")
    return math.nan if value is None else value


# ------------------------------------------------------------------------------------ what it says


def to_json_types(values: dict[str, Any]) -> dict[str, Any]:
    """Return a dict as it would be after writing and reading JSON: tuples become lists, paths strings."""
    return json.loads(json.dumps(values, default=str))


def list_score_names(scores: dict[str, Any]) -> list[str]:
    """Return the names of the scores of a split: "spearman" or, with several tasks, "TASK spearman"."""
    names = [name for name in scores if name not in NON_SCORE_KEYS]
    for task, task_scores in scores.get("tasks", {}).items():
        names += [f"{task} {name}" for name in task_scores if name not in NON_SCORE_KEYS]
    return names


def find_score(scores: dict[str, Any], score_name: str) -> float | None:
    """Return the score with this name, one of `list_score_names(scores)`; None if it is undefined."""
    task, _, metric = score_name.rpartition(" ")
    tasks = scores.get("tasks", {})
    return tasks[task][metric] if task in tasks else scores[score_name]


def read_provenance(checkpoint: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return data, settings and scores of the runs that trained the weights in a folder, oldest first."""
    folder = Path(checkpoint)
    if not is_file(folder / RESULT_FILE):
        return []
    result = read_result(folder)
    last_run = {key: result[key] for key in ("data", "settings")}
    last_run |= {split: result.get(split) for split in ("dev", "test")}  # a pre-training run has neither
    return [*result.get("provenance", []), last_run]


def format_provenance(provenance: list[dict[str, Any]]) -> str:
    """Describe the origin of weights: "google/electra-base-discriminator, then wordsim (seed 0)"."""
    checkpoint = provenance[0]["settings"]["ckpt"]
    names = [sanitize(run["data"], MAX_NAME_LENGTH) for run in provenance]
    steps = [f"{name} (seed {run['settings']['seed']})" for name, run in zip(names, provenance, strict=True)]
    if checkpoint is None:
        return ", then ".join([steps[0].replace(" (", " from scratch ("), *steps[1:]])
    return ", then ".join([sanitize(checkpoint, MAX_NAME_LENGTH), *steps])
