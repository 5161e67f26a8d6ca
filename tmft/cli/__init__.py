"""The command line: the parser, the options, grouped by feature, and the commands of `tmft NAME`."""

import sys
from pathlib import Path
from types import TracebackType


def end_without_traceback(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Say in one line that a command was stopped while it was still being imported, which takes seconds."""
    if issubclass(kind, KeyboardInterrupt):
        print(f"\n{Path(sys.argv[0]).name}: stopped", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


if sys.excepthook is sys.__excepthook__:  # a notebook or a debugger has its own
    sys.excepthook = end_without_traceback
