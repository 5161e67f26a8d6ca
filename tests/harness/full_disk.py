"""Run real commands on disks that are too small, then on the same disk grown, and compare what they leave.

    sudo python tests/harness/full_disk.py                    Linux: each disk is a tmpfs of its own
    sudo python tests/harness/full_disk.py --only encode

A command on a full disk must end with exit code 2 and no traceback; the same command, once there is room,
must leave the files of an undisturbed run. The jobs and the comparison are those of kill.py.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kill import JOBS, KEEPS, essence, prepare, run  # noqa: E402

SIZES = ("200k", "1m", "5m", "8m", "11m", "16m", "24m")


def attempt(line: str, whole: Path, size: str, keeps: bool) -> str:
    """One disk -> "fits", "full", or what went wrong."""
    disk = whole.parent / size / "disk"
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
    try:
        for name in ("text.txt", "long.txt"):
            shutil.copy(whole / name, disk)
        first = run(line, disk)[0]
        log = (disk.parent / "log").read_text(encoding="utf-8", errors="replace")
        if first not in (0, 2) or "Traceback" in log:
            return f"exit code {first}: {log[-300:]}"
        subprocess.run(["mount", "-o", "remount,size=200m", disk], check=True)
        again = run(line, disk)[0] if first else 0
        found, expected = essence(disk), essence(whole)
        names = found.keys() | expected.keys()
        differs = sorted(name for name in names if found.get(name) != expected.get(name))
        if differs or (again and not (again == 2 and keeps)):
            return f"afterwards exit code {again}, {', '.join(differs[:5])}"
        return "full" if first else "fits"
    finally:
        subprocess.run(["umount", disk], check=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS))
    args = p.parse_args()
    import evaluate  # noqa: F401  once for all children
    import train  # noqa: F401

    wrong = False
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.only:
            whole = prepare(Path(scratch) / name.replace(" ", "-") / "whole")
            if run(JOBS[name], whole)[0]:
                raise SystemExit(
                    f"{name} does not run by itself: {(whole.parent / 'log').read_text()[-500:]}"
                )
            found = {size: attempt(JOBS[name], whole, size, name in KEEPS) for size in SIZES}
            wrong |= not set(found.values()) <= {"full", "fits"}
            print(name, *(f"{size}: {what}" for size, what in found.items()), sep="; ", flush=True)
    sys.exit(wrong)
