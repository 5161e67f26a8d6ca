"""result.json, the record of a finished run: its keys, its schema, and the function that reads it.

The result of a fine-tuning run has these keys:

    format              FORMAT, the version of this list
    sweep               name that is shared by the runs that differ only in layer and seed
    data                name of the data
    settings            everything that the scores depend on: the fields of FineTuningConfig
                        (run_config.py), followed by those of its recipe
    digests             digests of the data and of the files of the checkpoint, see run_folder.py
    arguments           the command line: {option: value}
    provenance          the earlier runs that trained the initial weights, oldest first: data, settings, and
                        scores on dev and test of each
    num_hidden_layers   number of layers of the whole checkpoint
    pooling, max_length those of the saved model
    epochs              the fields of EpochResult (loop_state.py) for each epoch
    chosen_epoch        the number, from 1, of the epoch with the best score on dev
    dev, test           scores of the chosen epoch, see below
    parameters          {"paper": n, "stored": n}, see parameter_counts in models/families.py
    precision           "fp32", "bf16" or "fp16"
    seconds             duration of the training
    environment         {"commit", "versions", "device", "threads"}

The scores of a split are {metric: score}, not x 100; an undefined score is null. The same dict has "pairs",
the number of examples, and, where they apply: "threshold", the cosine from which on a pair counts as
positive; "subsets" and "subset_mean", the metric of each subset and their mean; "sub_embeddings", the metric
of each layer or truncated dimension that was trained. If several tasks were trained together, the scores are

    {"overall": score, "pairs": n, "tasks": {name of the task: scores of this task}}

The result of a pre-training run has format, sweep, data (the name of the task),
settings (the fields of PretrainingConfig), digests, arguments, provenance, parameters, precision,
seconds and environment as well, and

    start               description of the initial weights
    sentences           number of sentences of the text
    text_tokens         number of tokens of the text
    tokens_seen         number of tokens in all steps
    curve               the training log: the fields of PretrainingLog (pretraining_loop.py) for each entry
    held_out            {"before": scores, "after": scores}, means on held-out text
    processes           number of processes that trained the model together

`read_result` is the only function that reads the file. It checks every value that is used anywhere, because
the file may be damaged or come from somebody else; ResultDict raises InputError when an absent key is used.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from tmft.errors import SEED_RANGE, InputError, short_repr
from tmft.io.files import file_mode, is_file, read_json

RESULT_FILE = "result.json"
FORMAT = 1  # number of the form of this file; a file with another number is refused
MAX_DEPTH = 20  # levels of nested objects and lists
MAX_FILE_SIZE = 2**26  # bytes
MAX_NUMBER = 10**15  # absolute value of any number
MAX_PATH_BYTES, MAX_FILE_NAME_BYTES = 4000, 255  # length of a path and of each of its components
ANY = ...  # as a schema: any value is allowed; as a key of a schema: stands for all keys that are not listed


@dataclass(frozen=True)
class Rule:
    """A condition on a value. description: completes "expected ...". is_met: tests the value."""

    description: str
    is_met: Callable[[object], bool]


def integer_rule(low: int, high: int = MAX_NUMBER) -> Rule:
    """Return a Rule for whole numbers from low to high, both included; true and false are not numbers."""
    return Rule(
        f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high
    )


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a int or float, not NaN and at most MAX_NUMBER; bools are not numbers."""
    is_bool = isinstance(value, bool)
    return isinstance(value, (int, float)) and not is_bool and abs(value) <= MAX_NUMBER


def is_path(value: object) -> TypeGuard[str]:
    """Return whether a value is a string that can be passed to the file system as a path."""
    if not isinstance(value, str) or "\0" in value or byte_length(value) > MAX_PATH_BYTES:
        return False
    return all(byte_length(name) <= MAX_FILE_NAME_BYTES for name in Path(value).parts)


def byte_length(text: str) -> int:
    """Return the length of a text in UTF-8; a character that UTF-8 cannot encode counts as one byte."""
    return len(text.encode(errors="replace"))


# A schema is one of:
#   a Rule;
#   a dict: an object with a schema for each key;
#   a list with one schema: a list whose entries all have it;
#   a tuple with one schema: a value that has it, or null;
#   ANY.
TEXT = Rule("a text", lambda value: isinstance(value, str))
NAME = Rule("a name, no path", lambda value: is_path(value) and not set(value) & {"/", "\\"})
PATH = Rule("a path", is_path)
NUMBER = Rule("a number", is_number)
SCORE = Rule("a number or null", lambda value: value is None or value != value or is_number(value))
POSITIVE = Rule("a number above 0", lambda value: is_number(value) and value > 0)
NUMBER_OR_BOOL = Rule("a number, true or false", lambda value: isinstance(value, bool) or is_number(value))
METRIC = Rule(  # the run may have had a metric of its user, which METRICS does not have here
    "the name of a metric",
    lambda value: isinstance(value, str) and re.fullmatch(r"[\w.+-]{1,60}", value) is not None,
)
COUNT, LAYER, SEED = integer_rule(0), integer_rule(0, 1000), integer_rule(*SEED_RANGE)
RANGE = Rule(
    "two numbers",
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(is_number, value)),
)

SCORES = {ANY: SCORE}
TASK_SCORES = SCORES | {"subsets": SCORES, "sub_embeddings": SCORES}
SPLIT_SCORES = TASK_SCORES | {"tasks": {ANY: TASK_SCORES}}
COMMON_SETTINGS: dict[Any, Any] = {"ckpt": (TEXT,), "from_scratch": (TEXT,), "init": TEXT, "seed": SEED}
TASK: dict[Any, Any] = {
    "objective": TEXT,
    "metric": METRIC,
    "objective_args": ({ANY: NUMBER_OR_BOOL, "teacher": PATH, "text": [PATH]},),
}
RESULT: dict[Any, Any] = {
    "sweep": TEXT,
    "data": NAME,
    "digests": {ANY: {ANY: TEXT}},
    "provenance": [
        {"data": NAME, "settings": COMMON_SETTINGS, "dev": (SPLIT_SCORES,), "test": (SPLIT_SCORES,)}
    ],
    "arguments": {"task": (TEXT,), "data": (PATH,), "data_root": (PATH,), "score_range": (RANGE,)},
    "parameters": {"paper": integer_rule(1), "stored": integer_rule(1)},
    "precision": TEXT,
    "seconds": POSITIVE,
    "num_hidden_layers": LAYER,
    "epochs": [
        {
            "loss": SCORE,
            "dev": SPLIT_SCORES,
            "pairs_per_second": SCORE,
            "gradient_cosines": ({ANY: [SCORE]},),
        }
    ],
    "chosen_epoch": COUNT,
    "dev": SPLIT_SCORES,
    "test": SPLIT_SCORES,
    "curve": [{"tokens": COUNT, "held_out": SCORES}],
    "held_out": {"before": SCORES, "after": SCORES},
    "tokens_seen": COUNT,
    "pooling": TEXT,
    "environment": {"commit": (TEXT,), "versions": {ANY: TEXT}, "device": TEXT, "threads": COUNT},
}
FINE_TUNING_SETTINGS: dict[Any, Any] = COMMON_SETTINGS | {
    "layer": LAYER,
    "task": TASK | {"subtasks": {ANY: TASK}},
    "epochs": COUNT,
    "batch_size": COUNT,
    "lr": NUMBER,
    "train_fraction": NUMBER,
}
FINE_TUNING_SCHEMA: dict[Any, Any] = RESULT | {"settings": FINE_TUNING_SETTINGS}
PRETRAINING_SCHEMA: dict[Any, Any] = RESULT | {"settings": COMMON_SETTINGS | {"task": TEXT}}


class ResultDict(dict):
    """A dict from a result.json that raises InputError, not KeyError, for a key that it does not have.

    content: the keys and values. path: path of the file. location: the keys that lead to this dict from the
    top of the file.
    """

    path: Path
    location: tuple[str, ...]

    def __init__(self, content: dict[str, Any], path: Path, location: tuple[str, ...]):
        super().__init__(content)
        self.path, self.location = path, location

    def __missing__(self, key: str):
        raise InputError(f"{self.path} has no {'.'.join((*self.location, key))}: restore it, or run it again")


def read_result(folder: Path) -> dict[str, Any]:
    """Read and check the result.json in a run folder.

    Undefined scores are NaN. Raises an InputError that names the file and, if a value does not fit the
    schema, its key.
    """
    path = folder / RESULT_FILE
    if file_mode(path) and not (is_file(path) and path.stat().st_size <= MAX_FILE_SIZE):
        raise InputError(f"{path} is not a file of at most {MAX_FILE_SIZE >> 20} MB: remove it")
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {short_repr(content.get('format'))}, this version reads {FORMAT}: "
            "run it again, or read it with the version that wrote it"
        )
    result = validate(content, FINE_TUNING_SCHEMA if "test" in content else PRETRAINING_SCHEMA, path)
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # an unpaired surrogate, which could not be written to any file
        raise InputError(f"{path} holds half a character (UTF-16): restore it, or run it again") from None
    return result


def validate(value: object, schema: object, path: Path, location: tuple[str, ...] = ()) -> Any:
    """Check that a JSON value fits a schema; return a copy, with null scores as NaN and dicts as ResultDict.

    path: the file, for messages. location: the keys that lead to the value. Raises an InputError that names
    both if the value does not fit.
    """
    expected = None  # description of the condition that the value does not meet
    if len(location) > MAX_DEPTH:
        expected = f"at most {MAX_DEPTH} keys within keys"
    elif isinstance(schema, tuple):
        if value is None:
            return None
        [schema] = schema
    if isinstance(schema, Rule):
        expected = None if schema.is_met(value) else schema.description
    elif schema is not ANY and not isinstance(value, type(schema)):
        expected = "a list" if isinstance(schema, list) else "an object"
    if expected:
        raise InputError(
            f"{path} has {'.'.join(location)} {short_repr(value)}: expected {expected}; "
            "restore it, or run it again"
        )
    if value is None and schema is SCORE:
        return math.nan
    if isinstance(value, list):
        entry_schema = schema[0] if isinstance(schema, list) else ANY
        return [validate(entry, entry_schema, path, (*location, str(i))) for i, entry in enumerate(value)]
    if isinstance(value, dict):
        schemas = schema if isinstance(schema, dict) else {}
        other_keys = schemas.get(ANY, ANY)
        entries = {
            key: validate(entry, schemas.get(key, other_keys), path, (*location, key))
            for key, entry in value.items()
        }
        return ResultDict(entries, path, location)
    return value
