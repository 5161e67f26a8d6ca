"""InputError, the exception for mistakes that the user can fix, and checks of parameters that raise it."""

import difflib
import math
import re
from collections.abc import Iterable


class InputError(Exception):
    """A mistake that the user can fix, described in one line: `<what> (<where>): <what to do>`.

    message: the line; it is sanitized. parameters: the words of the message that are names of parameters of
    the library, such as max_length; a command shows them as its options, such as --max-length.
    """

    def __init__(self, message: str, *parameters: str):
        super().__init__(sanitize(message))
        self.parameters = parameters

    def as_cli_message(self) -> str:
        """Return the message with parameters written as options: max_length becomes --max-length."""
        message = str(self)
        for name in self.parameters:
            whole_word = rf"(?<![\w./-]){name}(?![\w/-]|\.\w)"  # not a part of a path
            message = re.sub(whole_word, f"--{name.replace('_', '-')}", message, count=1)
        return message


SEED_RANGE = 0, 2**63 - 1  # the seeds that torch's generators accept
MAX_COUNT = 10**9  # upper bound of all counts: more is a mistake, and would not fit in memory


def sanitize(text: str, max_length: int = 1500) -> str:
    """Return the text on one line, without control characters, at most about max_length characters long.

    Messages quote names from downloaded files. A terminal would obey control characters in them; each is
    replaced by "?". The middle of a long text is replaced by " ... ".
    """
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= max_length else f"{text[: max_length // 2]} ... {text[-max_length // 2 :]}"


def short_repr(value: object) -> str:
    """Return the repr of a value, shortened to about 80 characters and sanitized."""
    try:
        return sanitize(repr(value), 80)
    except ValueError:  # Python refuses to print an int of more than 4300 digits
        return "a number of thousands of digits"


def check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise InputError unless the parameter `name` has a finite value from low to high, both included."""
    if not (low <= value <= high and math.isfinite(value)):
        above_max_count = MAX_COUNT <= high < value < math.inf
        bounds = f"{low} to {high}" if high < MAX_COUNT or above_max_count else f"{low} or more"
        raise InputError(f"{name} {value}: choose {bounds}", name)


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise InputError unless the value of the parameter `name` is one of the choices."""
    if value not in choices:
        suggestion = did_you_mean(value, choices)
        raise InputError(f"{name} {value!r}: choose one of {', '.join(choices)}{suggestion}", name)


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean X?" with the known name closest to the word, or "" if none is close.

    prefix: written before X, such as "--" for options.
    """
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {prefix}{matches[0]}?" if matches else ""
