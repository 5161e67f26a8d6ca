"""The one kind of error that is shown to a user as a single line."""

import os
import sys
from collections.abc import Callable
from pathlib import Path


class InputError(Exception):
    """A mistake that the user can fix. The message reads `<what> (<where>): <what to do>`, on one line."""


def run_command(main: Callable[[], None]) -> None:
    """Run a command: an InputError becomes one line on stderr and exit code 2, a bug keeps its traceback."""
    try:
        main()
    except InputError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"\n{Path(sys.argv[0]).name}: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader, such as head, wanted no more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
