"""How a mistake is told: one line that says what, where and what to do, and exit code 2."""

import difflib
import math
import re
from collections.abc import Iterable


class InputError(Exception):
    """A mistake that the user can fix. The message reads `<what> (<where>): <what to do>`, on one line.

    parameters: the words in it that name a parameter of the library, such as max_length. A command shows them
    as its options, --max-length.
    """

    def __init__(self, message: str, *parameters: str):
        super().__init__(sanitize(message))
        self.parameters = parameters

    def of_command(self) -> str:
        """The message in the words of a command line."""
        message = str(self)
        for name in self.parameters:
            alone = rf"(?<![\w./-]){name}(?![\w/-]|\.\w)"  # not as a part of a path
            message = re.sub(alone, f"--{name.replace('_', '-')}", message, count=1)
        return message


SEEDS = 0, 2**63 - 1  # what torch's generators take
MANY = 10**9  # of what is counted: more is a mistake, and would not fit


def sanitize(text: str, most: int = 1500) -> str:
    """On one line, without what a terminal would obey, its middle cut out if it is long: names from files of
    strangers stand in messages."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def short(value: object) -> str:
    """What a stranger's file says, quoted, in a few words."""
    try:
        return sanitize(repr(value), 80)
    except ValueError:  # a whole number of thousands of digits
        return "a number of thousands of digits"


def check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raises InputError if the parameter called name is not a number from low to high."""
    if not (low <= value <= high and math.isfinite(value)):
        too_many = MANY <= high < value < math.inf
        bounds = f"{low} to {high}" if high < MANY or too_many else f"{low} or more"
        raise InputError(f"{name} {value}: choose {bounds}", name)


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Raises InputError if the parameter called name is none of the known ones."""
    if value not in known:
        raise InputError(
            f"{name} {value!r}: choose one of {', '.join(known)}{did_you_mean(value, known)}", name
        )


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """'; did you mean X?' with the name that is most like the word, '' for none; prefix: put before X."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {prefix}{found[0]}?" if found else ""
