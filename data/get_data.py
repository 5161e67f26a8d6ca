"""Download a data set: the same as `python -m tmft data`, for use without installing anything."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the root folder of the checkout

from tmft.cli.data_command import main  # noqa: E402
from tmft.cli.parser import run_command  # noqa: E402

if __name__ == "__main__":
    run_command(main)
