"""Kill real commands at random moments, start them again, and compare their files with an undisturbed run.

    python tests/harness/kill.py --kills 200                  all jobs in turn; some minutes
    python tests/harness/kill.py --kills 20 --only sweep      one job

A trial starts a job in an empty folder and kills it with SIGKILL: at a random moment, or just before one of
its calls that open, rename or remove a file, so that every file is interrupted while it is written. A part of
the kills are SIGTERM at a random moment, after which the job must stop by itself, with exit code 130 and
without a traceback. After at most three kills the job may finish. Then it must have written the same files as
the undisturbed run, byte by byte (times in result.json are not compared). The first process imports the
packages, so that its child processes start at once.
"""

import argparse
import atexit
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

TWINS = str(ROOT / "data/twins")
TUNE = f"train.py --ckpt {TWINS}/mlm-then-rtd --task sample --lr 3e-4 --precision fp32"
WRITES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
TIMES = {"seconds", "tokens_per_second", "pairs_per_second", "environment", "threads"}
MAX_KILLS_PER_TRIAL = 3
STOPPED = 130  # exit code of a command that was asked to stop

REFUSES_EXISTING = {"export", "export to ONNX"}  # ends with exit code 2 if the folder is complete already

JOBS = {
    "fine-tuning": f"{TUNE} --layer 2 --epochs 3",
    "all layers at once": f"{TUNE} --layer 2 --epochs 2 --all-layers mean",
    "sweep": f"{TUNE} --layer 0-1 --num-seeds 2 --epochs 1 --train-fraction 0.3",
    "pre-training": f"train.py --task mlm --ckpt {TWINS}/mlm --text text.txt --steps 12 --save-steps 5 "
    "--batch-size 8 --gradient-accumulation-steps 1 --max-length 32 --precision fp32",
    "replaced tokens": f"train.py --task rtd --ckpt {TWINS}/mlm --text text.txt --steps 6 --save-steps 3 "
    "--batch-size 8 --gradient-accumulation-steps 1 --max-length 32 --precision fp32",
    "distillation": f"train.py --ckpt {TWINS}/mlm --layer 2 --teacher {TWINS}/mlm --text text.txt --epochs 1 "
    "--selection-metric teacher_cosine --precision fp32",
    "encode": f"encode {TWINS}/mlm long.txt --layer 1 --out vectors.npy",
    "save": f"evaluate.py {TWINS}/mlm --layer 2 --task sample --postprocess whiten=text.txt --save whitened",
    "export": f"export {TWINS}/mlm served --layer 2",
    # from the hub of serve_hub
    "download": "evaluate.py someone/tiny-electra --layer 2 --task sample --json scores.json",
    "tables": f"tables {TWINS}/mlm --layer 1 --table {ROOT}/tests/harness/sample.toml --out tables",
}
if find_spec("onnxscript"):
    JOBS["export to ONNX"] = f"export {TWINS}/mlm served --layer 1 --format onnx"


@dataclass
class Tally:
    """The trials of one job. lost: a line for each trial whose files differ, or that stopped with an error.

    kills: by both signals; stops: those of them by SIGTERM.
    """

    trials: int = 0
    kills: int = 0
    stops: int = 0
    lost: list[str] = field(default_factory=list)


def run(
    line: str, folder: Path, at: int | float | None = None, signal_number: int = signal.SIGKILL
) -> tuple[int, int]:
    """Run a command line in a folder: return its exit code, -9 if it was killed, and the number of file
    events.

    at: when it is killed; an int is the number of a file event, a float is in seconds, None is never.
    signal_number: the signal that is sent after a number of seconds.
    """
    event_file = folder.parent / "events"
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        log = os.open(folder.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        count = count_file_events(folder, at if isinstance(at, int) else None)
        code = STOPPED  # if SIGTERM comes when the command has ended
        try:
            try:
                code = command(line)
            except Exception:
                code = 1
                traceback.print_exc()
            event_file.write_text(str(count[0]))
            sys.stdout.flush(), sys.stderr.flush()
        finally:
            os._exit(code)
    if isinstance(at, float):
        time.sleep(at)
        os.kill(child, signal_number)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = event_file.read_text() if event_file.is_file() else ""  # empty: killed while it was written
    return status, int(text or 0)


def count_file_events(folder: Path, fatal: int | None) -> list[int]:
    """Count writes, renames and removals below a folder, in a list of one number, from now on.

    The process kills itself just before event number `fatal`.
    """
    count, prefix = [0], str(folder)

    def hook(event: str, arguments: tuple) -> None:
        if event not in WRITES or not os.path.abspath(os.fsdecode(file_name(arguments))).startswith(prefix):
            return
        if event == "open" and not opens_for_writing(arguments):
            return
        count[0] += 1
        if count[0] == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return count


def file_name(arguments: tuple) -> str | bytes:
    """Return the file name in the arguments of an audit event, '' if there is none."""
    return arguments[0] if isinstance(arguments[0], (str, bytes)) else ""


def opens_for_writing(arguments: tuple) -> bool:
    """Return whether the event "open" with these arguments opens a file for writing."""
    return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))


def command(line: str) -> int:
    """Run an entry of JOBS in this process: return its exit code, which is 2 for an InputError, 130 if it was
    asked to stop.
    """
    import evaluate
    import tmft.students.distillation
    import tmft.training.checkpointing
    import train
    from tmft.cli import encode_command as encode
    from tmft.cli import export_command as export
    from tmft.cli import tables_command as tables
    from tmft.cli.parser import run_command

    os.environ |= {"HF_HOME": str(Path("hf").absolute()), "HF_HUB_OFFLINE": "0"}
    tmft.training.checkpointing.SAVE_INTERVAL = 0.05
    tmft.students.distillation.DATA_FOLDER = Path("../cache").absolute()
    name, *words = line.split()
    commands = {"train.py": train, "evaluate.py": evaluate, "encode": encode, "export": export}
    commands["tables"] = tables
    try:
        run_command(lambda: commands[name].main(words))
    except SystemExit as error:
        return error.code
    return 0


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of every file below a folder, of the part that must be the same in every run."""
    result = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if (folder / "hf") in path.parents:  # the cache of huggingface-hub
            continue
        content = path.read_bytes()
        if path.suffix == ".json":
            content = json.dumps(without_times(json.loads(content)), sort_keys=True).encode()
        has_times = path.suffix in (".md", ".svg")
        result[str(path.relative_to(folder))] = "" if has_times else hashlib.sha256(content).hexdigest()
    return result


def without_times(value: object) -> object:
    """Return a JSON value without the keys in TIMES, at any depth."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def prepare(folder: Path) -> Path:
    """Create a folder with the files that the jobs read."""
    folder.mkdir(parents=True)
    rows = [line.split("\t") for line in (ROOT / "data/sample/train.tsv").read_text("utf-8").splitlines()[1:]]
    lines = list(dict.fromkeys(cell for row in rows for cell in row[:2]))
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "long.txt").write_text("\n".join(lines * 6) + "\n", encoding="utf-8")
    return folder


def serve_hub() -> tuple[int, str]:
    """Start a process with a hub that has one repository, the MLM twin; return its process id and its
    address.
    """
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/checkpoints")]
    from test_hub import Hub

    state = {"requests": [], "cut": [], "status": 200, "changed_headers": {}, "damaged": []}
    handler = type("Twin", (Hub,), state | {"folder": Path(TWINS) / "mlm"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    child = os.fork()
    if child == 0:
        server.serve_forever()
    server.server_close()
    return child, f"http://127.0.0.1:{server.server_port}"


def trial(line: str, folder: Path, expected: dict[str, str], num_events: int, seconds: float,
          rng: random.Random, refuses_existing: bool, share: float, tally: Tally) -> None:  # fmt: skip
    """Start a job, kill it, start it again until it ends, and compare its files.

    expected: digests of the undisturbed run, which had num_events file events and took so many seconds.
    share: of the kills that are SIGTERM.
    """
    prepare(folder)
    log = folder.parent / "log"
    moments, start = [], log.stat().st_size
    for _ in range(rng.randint(1, MAX_KILLS_PER_TRIAL)):
        number = signal.SIGTERM if rng.random() < share else signal.SIGKILL
        is_event = number == signal.SIGKILL and rng.random() < 0.8
        at = rng.randint(1, num_events) if is_event else rng.uniform(0, seconds)
        status, _ = run(line, folder, at, number)
        moments.append(f"file event {at}" if is_event else f"{at:.2f} s ({number.name})")
        if status not in (-signal.SIGKILL, -signal.SIGTERM, STOPPED):  # -SIGTERM: before it was handled
            break
        tally.kills += 1
        tally.stops += number == signal.SIGTERM
    status = 0 if status == 0 else run(line, folder)[0]
    tally.trials += 1
    with open(log, encoding="utf-8", errors="replace") as file:
        file.seek(start)
        output = file.read()
    files = digests(folder)
    names = expected.keys() | files.keys()
    differing = sorted(name for name in names if expected.get(name) != files.get(name))
    if differing or "Traceback" in output or (status and not (status == 2 and refuses_existing)):
        what = f"exit code {status}, {', '.join(differing[:5])} {output[-300:] * ('Traceback' in output)}"
        tally.lost.append(f"killed at {', '.join(moments)}: {what}")


def harness(kills: int, only: list[str], seed: int, sigterm_share: float) -> dict[str, Tally]:
    """Do trials until there were so many kills, the same number for each job. only: jobs; []: all."""
    import evaluate  # noqa: F401  imported once, for all child processes
    import train  # noqa: F401

    hub, os.environ["HF_ENDPOINT"] = serve_hub()
    atexit.register(os.kill, hub, signal.SIGKILL)
    rng, tallies = random.Random(seed), {}
    names = only or list(JOBS)
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(names):
            line, tally = JOBS[name], tallies.setdefault(name, Tally())
            start = time.perf_counter()
            undisturbed = prepare(Path(scratch) / name.replace(" ", "-") / "undisturbed")
            status, num_events = run(line, undisturbed)
            seconds = time.perf_counter() - start
            if status or not num_events:
                output = (undisturbed.parent / "log").read_text(encoding="utf-8")
                raise SystemExit(f"{name} fails without any disturbance: {output[-500:]}")
            expected = digests(undisturbed)
            share = kills * (number + 1) // len(names) - kills * number // len(names)
            while tally.kills < share:
                folder = undisturbed.parent / f"trial-{tally.trials}"
                refuses_existing = name in REFUSES_EXISTING
                trial(
                    line, folder, expected, num_events, seconds, rng, refuses_existing, sigterm_share, tally
                )
            kinds = f"{tally.kills} kills, {tally.stops} of them SIGTERM"
            print(f"{name}: {tally.trials} trials, {kinds}, {len(tally.lost)} lost"
                + "".join(f"\n    {description}" for description in tally.lost), flush=True)  # fmt: skip
    return tallies


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--kills", type=int, default=200)
    p.add_argument("--only", nargs="+", choices=JOBS, default=[])
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--sigterm-share", type=float, default=0.2, help="share of the kills that are SIGTERM")
    args = p.parse_args()
    tallies = harness(args.kills, args.only, args.seed, args.sigterm_share)
    names = ("trials", "kills", "stops")
    sums = [sum(getattr(tally, name) for tally in tallies.values()) for name in names]
    print("{} trials, {} kills, {} of them SIGTERM".format(*sums))
    sys.exit(any(tally.lost for tally in tallies.values()))
