"""Run real commands on disks that are too small, then on the same disk made larger; compare their files.

    sudo python tests/harness/full_disk.py                    Linux only: each disk is a tmpfs
    sudo python tests/harness/full_disk.py --only encode

A command on a full disk must end with exit code 2 and without a traceback. The same command, on the disk made
larger, must write the files of an undisturbed run. The jobs and the comparison are those of kill.py.
"""

import argparse
import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kill import JOBS, REFUSES_EXISTING, digests, prepare, run, serve_hub  # noqa: E402

SIZES = ("200k", "1m", "5m", "8m", "11m", "16m", "24m")


def attempt(line: str, undisturbed: Path, size: str, refuses_existing: bool) -> str:
    """Run a job on a disk of this size: return "fits", "full", or a description of the error.

    undisturbed: folder of the undisturbed run. refuses_existing: whether the job refuses to overwrite.
    """
    disk = undisturbed.parent / size / "disk"
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
    try:
        for name in ("text.txt", "long.txt"):
            shutil.copy(undisturbed / name, disk)
        first = run(line, disk)[0]
        log = (disk.parent / "log").read_text(encoding="utf-8", errors="replace")
        if first not in (0, 2) or "Traceback" in log:
            return f"exit code {first}: {log[-300:]}"
        subprocess.run(["mount", "-o", "remount,size=200m", disk], check=True)
        second = run(line, disk)[0] if first else 0
        files, expected = digests(disk), digests(undisturbed)
        names = files.keys() | expected.keys()
        differing = sorted(name for name in names if files.get(name) != expected.get(name))
        if differing or (second and not (second == 2 and refuses_existing)):
            return f"afterwards exit code {second}, {', '.join(differing[:5])}"
        return "full" if first else "fits"
    finally:
        subprocess.run(["umount", disk], check=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS))
    p.add_argument("--sizes", nargs="+", default=SIZES, help="sizes of the disks, as mount reads them")
    args = p.parse_args()
    import evaluate  # noqa: F401  imported once, for all child processes
    import train  # noqa: F401

    hub, os.environ["HF_ENDPOINT"] = serve_hub()
    atexit.register(os.kill, hub, signal.SIGKILL)
    wrong = False
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.only:
            undisturbed = prepare(Path(scratch) / name.replace(" ", "-") / "undisturbed")
            if run(JOBS[name], undisturbed)[0]:
                log = (undisturbed.parent / "log").read_text()
                raise SystemExit(f"{name} fails without any disturbance: {log[-500:]}")
            refuses_existing = name in REFUSES_EXISTING
            outcomes = {size: attempt(JOBS[name], undisturbed, size, refuses_existing) for size in args.sizes}
            wrong |= not set(outcomes.values()) <= {"full", "fits"}
            print(name, *(f"{size}: {outcome}" for size, outcome in outcomes.items()), sep="; ", flush=True)
    sys.exit(wrong)
