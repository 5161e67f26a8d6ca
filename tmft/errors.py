"""InputError, the exception for mistakes that the user can fix, and checks of parameters that raise it."""

import difflib
import math
import re
from collections.abc import Iterable
from numbers import Integral, Real


class InputError(Exception):
    """A mistake that the user can fix, described in one line: `<what> (<where>): <what to do>`.

    message: the line. Control characters in it are replaced by "?".
    parameters: names of library parameters in the message, such as max_length, which the commands show
    as the options --max-length. A name is found at the beginning of the message, or anywhere between
    backticks, which are not shown; a name with an underscore, which is no word of English, also where it
    stands first.

    Example:

    >>> error = InputError("max_length 0: choose 1 or more", "max_length")
    >>> str(error), error.as_cli_message()
    ('max_length 0: choose 1 or more', '--max-length 0: choose 1 or more')
    """

    def __init__(self, message: str, *parameters: str):
        self.marked_message, self.parameters = sanitize(message), parameters
        message = self.marked_message
        for name in parameters:
            message = message.replace(f"`{name}`", name)
        super().__init__(message)

    def as_cli_message(self) -> str:
        """Return the message with self.parameters written as options: max_length becomes --max-length."""
        message = self.marked_message
        for name in self.parameters:
            option = f"--{name.replace('_', '-')}"
            message = message.replace(f"`{name}`", option)
            start = r"(?<![\w./-])" if "_" in name else "^"
            whole_word = rf"{start}{name}(?![\w/-]|\.\w)"  # not within a longer word or a path
            message = re.sub(whole_word, option, message, count=1)
        return message


def describe_error(error: BaseException) -> str:
    """Return the message of an error, on one line and cut to 200 characters; its type if it has none."""
    if isinstance(error, KeyError):
        return f"{short_repr(error.args[0])} is missing" if error.args else "a key is missing"
    return " ".join(str(error).split())[:200] or type(error).__name__


SEED_RANGE = 0, 2**63 - 1  # the seeds that torch's generators accept
MAX_SEEDS = 10_000  # of one sweep: more are a mistake, and each writes a folder
MAX_COUNT = 10**9  # upper bound of all counts: a larger one is a mistake, and would not fit in memory


def sanitize(text: str, max_length: int = 1500) -> str:
    """Return a text that is safe to print: on one line, without control characters, and not too long.

    Messages quote names from downloaded files, and a terminal would obey control characters in them. Every
    character that is not printable, line ends included, is replaced by "?". If the text is longer than
    max_length characters, its middle is replaced by " ... ".
    """
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= max_length else f"{text[: max_length // 2]} ... {text[-max_length // 2 :]}"


def short_repr(value: object) -> str:
    """Return the repr of a value for an error message, shortened to about 80 characters by sanitize."""
    try:
        return sanitize(repr(value), 80)
    except ValueError:  # Python refuses to print an int of more than 4300 digits
        return "a number of thousands of digits"


def check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise InputError unless the value is a finite number with low <= value <= high.

    name: the name of the parameter that has this value, for the message.
    """
    if not isinstance(value, Real) or isinstance(value, bool):  # NumPy's numbers are some of these
        raise InputError(f"{name} {value!r}: give a number", name)
    if not (low <= value <= high and -math.inf < value < math.inf):  # isfinite fails for an int of 400 digits
        above_max_count = MAX_COUNT <= high < value < math.inf
        bounds = f"{low} to {high}" if high < MAX_COUNT or above_max_count else f"{low} or more"
        shown = short_repr(value) if isinstance(value, int) else value
        raise InputError(f"{name} {shown}: choose {bounds}", name)


def check_not_blank(name: str, value: object) -> None:
    """Raise InputError for an empty text, such as that of a variable that is not set.

    name: as in check_range. As a path it would be the current folder.
    """
    if value == "":
        raise InputError(f"{name} is empty: give a value", name)


def check_count(name: str, value: int, low: int, high: float = math.inf) -> None:
    """Raise InputError unless the value is a whole number with low <= value <= high; 3.0 is none.

    name: as in check_range.
    """
    if not isinstance(value, Integral):
        raise InputError(f"{name} {short_repr(value)}: give a whole number", name)
    check_range(name, value, low, high)


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise InputError unless the value is one of the choices.

    name: the name of the parameter that has this value, for the message.
    """
    if value not in [*choices]:  # a list, as value may be one, which is no key of a dict
        suggestion = did_you_mean(value, choices)
        raise InputError(f"{name} {value!r}: choose one of {', '.join(choices)}{suggestion}", name)


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean X?", where X is the known name most similar to the word; "" if none is similar.

    prefix: written before X, such as "--" if the names are those of options.
    """
    others = [name for name in known if name != word]
    matches = difflib.get_close_matches(str(word), others, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{matches[0]}?" if matches else ""
