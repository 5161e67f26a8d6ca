"""The command line: the parser, the options, grouped by feature, and the commands of `tmft NAME`."""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from tmft.io.packages import missing_packages

COMMAND = Path(sys.argv[0] if sys.argv else "")
IS_MODULE = COMMAND.parts[-2:] == ("tmft", "__main__.py")  # python -m tmft


def stop_while_importing(signal_number: int, frame: FrameType | None) -> None:
    """End a command that is importing torch, which takes seconds, with one line; later `run_command` does.

    An exception would not do: libraries catch it half-way through their imports, and fail in other places.
    """
    os.write(2, f"\n{'tmft' if IS_MODULE else COMMAND.name}: stopped\n".encode())
    os._exit(130)


is_script = COMMAND.name in ("train.py", "evaluate.py", "cka.py", "get_data.py")
is_command = IS_MODULE or is_script or COMMAND.name == "tmft"
if (
    is_command  # not in the program of somebody who imports this
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not ignored, as in the background
):
    signal.signal(signal.SIGINT, stop_while_importing)
if is_script and (missing := missing_packages("this command")):  # `tmft NAME` asks in entry_points.py
    print(f"{COMMAND.name}: {missing}", file=sys.stderr)
    sys.exit(2)
