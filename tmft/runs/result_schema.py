"""What a result.json may hold, and its one reader: the file may be a stranger's, or damaged.

A shape is a Rule; a dict, shapes by key; a list of one shape, for each entry; a tuple of one, for that or
null; or ANY. A key may be absent, as results of earlier versions say less: who needs it is told when asking.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tmft.errors import SEEDS, InputError, short
from tmft.io.atomic import read_json
from tmft.metrics import METRICS
from tmft.training.multitask import OVERALL

DEEPEST = 20  # keys within keys
LARGEST = 2**26  # bytes
MOST = 10**15  # of any number
ANY = ...  # whatever it is; as a key: all others


@dataclass(frozen=True)
class Rule:
    """What a value must be, in words, and whether it is."""

    words: str
    fits: Callable[[object], bool]


def whole(low: int, high: int = MOST) -> Rule:
    words = f"a whole number from {low} to {high}"
    return Rule(words, lambda value: type(value) is int and low <= value <= high)


def is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= MOST


def is_path(value: object) -> bool:
    """Whether the system can be asked for it."""
    if not isinstance(value, str) or "\0" in value or size(value) > 4000:
        return False
    return all(size(part) <= 255 for part in Path(value).parts)


def size(text: str) -> int:
    return len(text.encode(errors="replace"))


TEXT = Rule("a text", lambda value: isinstance(value, str))
NAME = Rule("a name, no path", lambda value: is_path(value) and not set(value) & {"/", "\\"})
PATH = Rule("a path", is_path)
NUMBER = Rule("a number", is_number)
SCORE = Rule("a number or null", lambda value: value is None or value != value or is_number(value))
POSITIVE = Rule("a number above 0", lambda value: is_number(value) and value > 0)
SETTING = Rule("a number, true or false", lambda value: isinstance(value, bool) or is_number(value))
METRIC = Rule(f"one of {', '.join([*METRICS, OVERALL])}", lambda value: value in [*METRICS, OVERALL])
COUNT, LAYER, SEED = whole(0), whole(0, 1000), whole(*SEEDS)
RANGE = Rule(
    "two numbers",
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(is_number, value)),
)

SCORES = {ANY: SCORE}
SPLIT = SCORES | {"subsets": SCORES, "views": SCORES}  # of several tasks "sst5 views"
START = {"ckpt": (TEXT,), "from_scratch": (TEXT,), "init": TEXT, "seed": SEED}
TASK = {
    "objective": TEXT,
    "metric": METRIC,
    "settings": ({ANY: SETTING, "teacher": PATH, "text": [PATH]},),
}
RESULT = {
    "sweep": TEXT,
    "data": NAME,
    "history": [{"data": NAME, "settings": START, "dev": (SPLIT,), "test": (SPLIT,)}],
    "arguments": {"task": (TEXT,), "data": (PATH,), "data_root": (PATH,), "score_range": (RANGE,)},
    "parameters": {"paper": whole(1), "stored": whole(1)},
    "precision": TEXT,
    "seconds": POSITIVE,
    "num_hidden_layers": LAYER,
    "epochs": [{"cosines": ({ANY: [SCORE]},)}],
    "chosen_epoch": COUNT,
    "dev": SPLIT,
    "test": SPLIT,
    "curve": [{"tokens": COUNT, "held_out": SCORES}],
    "held_out": {"before": SCORES, "after": SCORES},
    "tokens_seen": COUNT,
}
TUNED = {"layer": LAYER, "task": TASK | {"parts": {ANY: TASK}}}
TUNED |= {"epochs": COUNT, "batch_size": COUNT, "lr": NUMBER}
FINE_TUNING = RESULT | {"settings": START | TUNED}
PRETRAINING = RESULT | {"settings": START | {"task": TEXT}}


class Part(dict):
    """An object of a result.json; a key that it lacks is an InputError."""

    def __init__(self, content: dict, path: Path, at: tuple[str, ...]):
        super().__init__(content)
        self.path, self.at = path, at

    def __missing__(self, key: str):
        what = f"{self.path} has no {'.'.join((*self.at, key))}"
        raise InputError(f"{what}: it is of another version of this code; run it again")


def read_result(folder: Path) -> dict:
    """What the result.json of a run folder holds; undefined scores are NaN. Raises InputError if something in
    it is not what the readers of results take it for."""
    path = folder / "result.json"
    if path.exists() and not (path.is_file() and path.stat().st_size <= LARGEST):
        raise InputError(f"{path} is no file, or one of more than {LARGEST >> 20} MB: remove it")
    content = read_json(path)
    result = checked(content, FINE_TUNING if "test" in content else PRETRAINING, path)
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError(f"{path} holds half a letter (UTF-16): restore it, or run it again") from None
    return result


def checked(value: object, shape: object, path: Path, at: tuple[str, ...] = ()) -> object:
    """The value if it is of that shape. Raises InputError that names its key."""
    words = None
    if len(at) > DEEPEST:
        words = f"at most {DEEPEST} keys within keys"
    elif isinstance(shape, tuple):
        if value is None:
            return None
        [shape] = shape
    if isinstance(shape, Rule):
        words = None if shape.fits(value) else shape.words
    elif shape is not ANY and not isinstance(value, type(shape)):
        words = "a list" if isinstance(shape, list) else "an object"
    if words:
        where = ".".join(at)
        raise InputError(f"{path} has {where} {short(value)}: expected {words}; restore it, or run it again")
    if value is None and shape is SCORE:
        return math.nan
    if isinstance(value, list):
        inner = shape[0] if isinstance(shape, list) else ANY
        return [checked(entry, inner, path, (*at, str(i))) for i, entry in enumerate(value)]
    if isinstance(value, dict):
        shapes = shape if isinstance(shape, dict) else {}
        others = shapes.get(ANY, ANY)
        parts = {
            key: checked(entry, shapes.get(key.rpartition(" ")[2], others), path, (*at, key))
            for key, entry in value.items()
        }
        return Part(parts, path, at)
    return value
