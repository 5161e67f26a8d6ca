"""The command line: the parser, the options, grouped by feature, and the commands of `tmft NAME`."""

import sys
from pathlib import Path

from tmft.io.files import missing_packages

COMMAND = Path(sys.argv[0] if sys.argv else "").name
is_script = COMMAND in ("train.py", "evaluate.py", "cka.py", "get_data.py")
if is_script and (missing := missing_packages("this command")):  # `tmft NAME` asks in entry_points.py
    print(f"{COMMAND}: {missing}", file=sys.stderr)
    sys.exit(2)
