"""Read result.json, the record of a finished run; docs/commands.md has its keys.

The file may be damaged or come from somebody else, so the types of the values that a table, a figure, a card
or a comparison shows are checked here, once.
"""

import json
import math
import os
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from tmft.errors import SEED_RANGE, InputError, sanitize, short_repr
from tmft.io.files import is_file, read_json, reading
from tmft.io.formatting import MAX_NAME_LENGTH, NON_SCORE_KEYS
from tmft.losses.objectives import OBJECTIVES

RESULT_FILE = "result.json"
FORMAT = 1  # number of the form of this file; a file with another number is refused
REMEDY = "restore it, or run it again"
MAX_NUMBER = 10**15


def json_types(annotation: Any) -> tuple[Any, ...]:
    """Return what the value of a field has to be: tuple[float, ...] | None -> ([(float, int)], None)."""
    if NoneType in get_args(annotation):
        return (*(kind for one in get_args(annotation) for kind in json_types(one)),)
    if get_origin(annotation) is tuple:
        return ([json_types(get_args(annotation)[0])],)
    return {float: (float, int), NoneType: (None,)}.get(annotation, (annotation,))


# What a value has to be: a type or several, a range of whole numbers, [what each entry of a list has to be],
# or {key: what its value has to be}, where the key "*" stands for all others. Other values are not checked.
NUMBER, SCORE, OPTIONAL_TEXT = (int, float), (float, int, None), (str, None)
SCORES: dict[str, Any] = {"*": SCORE}
TASK_SCORES = SCORES | {"subsets": SCORES, "sub_embeddings": SCORES}
SPLIT_SCORES = TASK_SCORES | {"tasks": {"*": TASK_SCORES}}
OBJECTIVE_ARGS = {"*": ...} | {
    name: json_types(annotation)
    for objective in OBJECTIVES.values()
    for name, annotation in get_type_hints(objective.config_class or object).items()
}
TASK: dict[str, Any] = {
    "columns": [str],
    "classes": {"*": int},
    "min_score": NUMBER,
    "max_score": NUMBER,
    "label": str,
    "eval_files": str,
    "objective": str,
    "metric": str,
    "objective_args": (None, OBJECTIVE_ARGS),
}
SETTINGS = {
    "ckpt": OPTIONAL_TEXT,
    "from_scratch": OPTIONAL_TEXT,
    "init": str,
    "seed": range(SEED_RANGE[1] + 1),
    "layer": range(1001),
    "keep_layers": (None, [range(1001)]),
}
FINE_TUNING_SETTINGS = SETTINGS | {
    "task": TASK | {"subtasks": (None, {"*": TASK})},
    "epochs": int,
    "batch_size": int,
    "lr": NUMBER,
    "train_fraction": NUMBER,
}
EARLIER_RUN = {"data": str, "settings": SETTINGS, "dev": (None, SPLIT_SCORES), "test": (None, SPLIT_SCORES)}
EPOCH = {
    "loss": SCORE,
    "dev": SPLIT_SCORES,
    "pairs_per_second": SCORE,
    "gradient_cosines": (None, {"*": [SCORE]}),
}
RESULT = {
    "sweep": str,
    "data": str,
    "digests": {"*": {"*": str}},
    "arguments": {"task": OPTIONAL_TEXT, "data": OPTIONAL_TEXT, "data_root": OPTIONAL_TEXT},
    "provenance": [EARLIER_RUN],
    "num_hidden_layers": range(1001),
    "pooling": str,
    "epochs": [EPOCH],
    "dev": SPLIT_SCORES,
    "test": SPLIT_SCORES,
    "parameters": {"*": range(1, MAX_NUMBER + 1)},
    "precision": str,
    "seconds": NUMBER,
    "environment": {"versions": {"*": str}},
    "curve": [{"tokens": int, "held_out": SCORES}],
    "held_out": {"*": SCORES},
    "tokens_seen": int,
}


class ResultDict(dict[str, Any]):
    """A dict of a result.json that raises InputError, not KeyError, for a key that it does not have.

    content: the keys and values. path: path of the file. location: the keys that lead to this dict.
    """

    def __init__(self, content: dict[str, Any], path: Path, location: tuple[str, ...]):
        super().__init__(content)
        self.path, self.location = path, location

    def __missing__(self, key: str):
        raise InputError(f"{self.path} has no {'.'.join((*self.location, key))}: {REMEDY}")


def read_result(folder: Path) -> dict[str, Any]:
    """Return the content of the result.json in a run folder; undefined scores are NaN.

    Raises InputError if the file is damaged or has another format. A key that is absent is an InputError when
    it is used.
    """
    path = folder / RESULT_FILE
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {short_repr(content.get('format'))}, this version reads {FORMAT}: "
            "run it again, or read it with the version that wrote it"
        )
    with reading(path, REMEDY):
        settings = FINE_TUNING_SETTINGS if "test" in content else SETTINGS | {"task": str}
        return check_types(content, RESULT | {"settings": settings}, path)


def check_types(value: Any, expected: Any, path: Path, location: tuple[str, ...] = ()) -> Any:
    """Return a copy of a value of a result.json, with undefined scores as NaN and dicts as ResultDict.

    expected: what it has to be, see RESULT. Raises ValueError if it is something else.
    """
    value = None if value != value else value  # NaN
    alternatives = expected if isinstance(expected, tuple) else (expected,)
    kinds = [kind for kind in alternatives if has_type(value, kind)]
    if not kinds:
        raise ValueError(f"{'.'.join(location)} is {short_repr(value)}")
    kind = kinds[0]
    if value is None:
        return math.nan if expected is SCORE else None
    if isinstance(value, list):
        entry = kind[0] if isinstance(kind, list) else ...
        return [check_types(item, entry, path, (*location, str(i))) for i, item in enumerate(value)]
    if isinstance(value, dict):
        fields = kind if isinstance(kind, dict) else {}
        other = fields.get("*", ...)
        checked = {
            key: check_types(item, fields.get(key, other), path, (*location, key))
            for key, item in value.items()
        }
        return ResultDict(checked, path, location)
    return value


def has_type(value: object, kind: object) -> bool:
    """Return whether a value is of a type, in a range, or a list or dict as `kind` is; ... allows all."""
    if isinstance(kind, range):
        return type(value) is int and value in kind
    return kind is ... or type(value) is (kind if isinstance(kind, type) else type(kind))


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
