"""Kill real commands anywhere, start them again, and compare what they leave with an undisturbed run.

    python tests/harness/kill.py --kills 200                  every kind of work in turn; some minutes
    python tests/harness/kill.py --kills 20 --only sweep      one kind

A trial begins a job in an empty folder and kills it with SIGKILL: at a random moment, or just before one of
its calls that open, rename or remove a file, so that each file is left in the middle of being written. After
at most three kills it may finish. Then all its files must be there, and no others, with the bytes of the
undisturbed run (of result.json all but times). The first process has imported the packages already, so
that a job begins at once.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

TWINS = str(ROOT / "data/twins")
TUNE = f"train.py --ckpt {TWINS}/discriminator --task sample --lr 3e-4 --precision fp32"
WRITES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
TIMES = {"seconds", "tokens_per_second", "pairs_per_second", "environment", "threads"}
KILLS_OF_A_TRIAL = 3

KEEPS = {"export"}  # what is complete already is kept: exit code 2

JOBS = {
    "fine-tuning": f"{TUNE} --layer 2 --epochs 3",
    "all layers at once": f"{TUNE} --layer 2 --epochs 2 --all-layers sample",
    "sweep": f"{TUNE} --layer 0-1 --num-seeds 2 --epochs 1 --train-fraction 0.3",
    "layer auto": f"{TUNE} --layer auto --epochs 2 --train-fraction 0.1",
    "pre-training": f"train.py --task mlm --ckpt {TWINS}/mlm --text text.txt --steps 12 --save-steps 5 "
    "--batch-size 8 --gradient-accumulation-steps 1 --max-length 32 --precision fp32",
    "replaced tokens": f"train.py --task rtd --ckpt {TWINS}/mlm --text text.txt --steps 6 --save-steps 3 "
    "--batch-size 8 --gradient-accumulation-steps 1 --max-length 32 --precision fp32",
    "distillation": f"train.py --ckpt {TWINS}/mlm --layer 2 --teacher {TWINS}/mlm --text text.txt --epochs 1 "
    "--selection-metric teacher_cosine --precision fp32",
    "encode": f"encode {TWINS}/mlm long.txt --layer 1 --out vectors.npy",
    "save": f"evaluate.py {TWINS}/mlm --layer 2 --task sample --postprocess whiten=text.txt --save treated",
    "export": f"export {TWINS}/mlm served --layer 2",
    "download": "evaluate.py someone/tiny-electra --layer 2 --task sample --json scores.json",  # test_hub's
    "grid": f"grid {TWINS}/mlm --layer 1 --task sample --out grid",
}


@dataclass
class Tally:
    """What happened to one kind of work."""

    trials: int = 0
    kills: int = 0
    lost: list[str] = field(default_factory=list)


def run(line: str, folder: Path, at: int | float | None = None) -> tuple[int, int]:
    """Run a command line in a folder -> its exit code, -9 if it was killed, and how often it touched files.

    at: None, the number of the touch before which it is killed, or seconds.
    """
    told = folder.parent / "told"
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        log = os.open(folder.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        count = touches(folder, at if isinstance(at, int) else None)
        code = 1
        try:
            code = command(line)
        finally:
            told.write_text(str(count[0]))
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    if isinstance(at, float):
        time.sleep(at)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, int(told.read_text()) if told.is_file() else 0


def touches(folder: Path, fatal: int | None) -> list[int]:
    """Count, in a list of one, what is done to files below a folder; before number `fatal` comes the end."""
    count, below = [0], str(folder)

    def hook(event: str, arguments: tuple) -> None:
        if event not in WRITES or not os.path.abspath(os.fsdecode(name_of(arguments))).startswith(below):
            return
        if event == "open" and not reads_or_writes(arguments):
            return
        count[0] += 1
        if count[0] == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return count


def name_of(arguments: tuple) -> str | bytes:
    return arguments[0] if isinstance(arguments[0], (str, bytes)) else ""


def reads_or_writes(arguments: tuple) -> bool:
    """Whether an open is for writing."""
    return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))


def command(line: str) -> int:
    """A line of JOBS -> exit code; 2 for an InputError, as on the command line."""
    import evaluate
    import tmft.datasets.distillation_data
    import tmft.training.checkpointing
    import train
    from tmft.cli import encode, export, grid
    from tmft.errors import InputError

    os.environ |= {"HF_HOME": str(Path("hf").absolute()), "HF_HUB_OFFLINE": "0"}
    tmft.training.checkpointing.SAVE_AFTER = 0.05
    tmft.datasets.distillation_data.DATA_FOLDER = Path("../taught").absolute()
    name, *words = line.split()
    commands = {"train.py": train, "evaluate.py": evaluate, "encode": encode, "export": export, "grid": grid}
    try:
        commands[name].main(words)
    except InputError as error:
        print(error)
        return 2
    return 0


def essence(folder: Path) -> dict[str, str]:
    """Every file below a folder, and a digest of what must be the same."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if (folder / "hf") in path.parents:  # the hub's cache is huggingface-hub's own
            continue
        content = path.read_bytes()
        if path.suffix == ".json":
            content = json.dumps(without_times(json.loads(content))).encode()
        same = path.suffix in (".md", ".svg")  # they tell of times
        found[str(path.relative_to(folder))] = "" if same else hashlib.sha256(content).hexdigest()
    return found


def without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def prepare(folder: Path) -> Path:
    """A folder with what the jobs read."""
    folder.mkdir(parents=True)
    rows = [line.split("\t") for line in (ROOT / "data/sample/train.tsv").read_text("utf-8").splitlines()[1:]]
    lines = list(dict.fromkeys(cell for row in rows for cell in row[:2]))
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "long.txt").write_text("\n".join(lines * 6) + "\n", encoding="utf-8")
    return folder


def serve_hub() -> tuple[int, str]:
    """A process with a hub that has one repository, the MLM twin -> its number, its address."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/checkpoints")]
    from test_hub import Hub

    handler = type("Twin", (Hub,), {"folder": Path(TWINS) / "mlm", "requests": [], "cut": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    child = os.fork()
    if child == 0:
        server.serve_forever()
    server.server_close()
    return child, f"http://127.0.0.1:{server.server_port}"


def trial(line: str, folder: Path, whole: dict[str, str], count: int, seconds: float, draw: random.Random,
          keeps: bool, tally: Tally) -> None:  # fmt: skip
    """Begin, kill, begin again, until it ends; compare."""
    prepare(folder)
    moments = []
    for _ in range(draw.randint(1, KILLS_OF_A_TRIAL)):
        at = draw.randint(1, count) if draw.random() < 0.7 else draw.uniform(0, seconds)
        status, _ = run(line, folder, at)
        moments.append(f"{at:.2f} s" if isinstance(at, float) else f"touch {at}")
        if status != -signal.SIGKILL:
            break
        tally.kills += 1
    status = 0 if status == 0 else run(line, folder)[0]
    tally.trials += 1
    found = essence(folder)
    differs = sorted({name for name in whole.keys() | found.keys() if whole.get(name) != found.get(name)})
    if differs or (status and not (status == 2 and keeps)):
        tally.lost.append(f"killed at {', '.join(moments)}: exit code {status}, {', '.join(differs[:5])}")


def harness(kills: int, only: list[str], seed: int, say: Callable[[str], None] = print) -> dict[str, Tally]:
    """So many kills, shared by the jobs."""
    import evaluate  # noqa: F401  once for all children
    import train  # noqa: F401

    hub, os.environ["HF_ENDPOINT"] = serve_hub()
    atexit.register(os.kill, hub, signal.SIGKILL)
    draw, tallies = random.Random(seed), {}
    names = only or list(JOBS)
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(names):
            line, tally = JOBS[name], tallies.setdefault(name, Tally())
            began = time.perf_counter()
            place = prepare(Path(scratch) / name.replace(" ", "-") / "whole")
            status, count = run(line, place)
            seconds = time.perf_counter() - began
            if status or not count:
                log = (place.parent / "log").read_text(encoding="utf-8")
                raise SystemExit(f"{name} does not run by itself: {log[-500:]}")
            whole, share = essence(place), kills * (number + 1) // len(names) - kills * number // len(names)
            while tally.kills < share:
                folder = place.parent / f"trial-{tally.trials}"
                trial(line, folder, whole, count, seconds, draw, name in KEEPS, tally)
            say(f"{name}: {tally.trials} trials, {tally.kills} kills, {len(tally.lost)} lost"
                + "".join(f"\n    {what}" for what in tally.lost))  # fmt: skip
    return tallies


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--kills", type=int, default=200)
    p.add_argument("--only", nargs="+", choices=JOBS, default=[])
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    found = harness(args.kills, args.only, args.seed)
    print(f"{sum(t.trials for t in found.values())} trials, {sum(t.kills for t in found.values())} kills")
    sys.exit(any(tally.lost for tally in found.values()))
