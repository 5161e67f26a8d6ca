"""Measure encoding of a table by the plain library, Ray and Spark, and plan it for a billion sentences.

    python tests/bench/clusters.py                      20,000 sentences; needs pyarrow, ray[data] and pyspark
    python tests/bench/clusters.py --sentences 2000 --systems tmft ray     a small trial

The scripts of docs/clusters.md are run as they are, with one and with two workers; only their checkpoint,
their layer, and what is recorded about each batch is put into them. "tmft" is a loop over the files in one
process, or in two that share the files. Each worker has one thread. Sentences per second: all sentences,
divided by the time from the first batch that a worker begins until the last batch ends; starting Ray or Spark
and loading the model are not in it, but in the column "whole command". The memory is the peak of one worker,
without the processes of Ray and the JVM of Spark. Nothing else should run meanwhile.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

PACKAGES = {"tmft": "pyarrow", "ray": "ray", "spark": "pyspark"}
PAGE = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")
FILES = 16  # shards of the table
BILLION = 1_000_000_000
TASK_SECONDS = 300  # work of a shard in the plan: what is lost if its worker dies
IMPORT, SETTINGS = "from tmft import SentenceEncoder\n", r"CHECKPOINT, LAYER = .*"

PLAIN = """
import sys

import numpy
import pyarrow.parquet
import torch

from tmft import SentenceEncoder

CHECKPOINT, LAYER = "data/twins/mlm-then-rtd", 4
torch.set_num_threads(1)
model = SentenceEncoder.from_pretrained(CHECKPOINT, layer=LAYER)
for path in sys.argv[1:]:
    table = pyarrow.parquet.read_table("sentences/" + path)
    embeddings = model.encode(table["text"].to_pylist())
    column = pyarrow.FixedSizeListArray.from_arrays(embeddings.ravel(), embeddings.shape[1])
    pyarrow.parquet.write_table(pyarrow.table({"id": table["id"], "embedding": column}), "vectors/" + path)
"""

# Put into each script: encode, and append a line to a file of this process.
RECORDED = """

def recorded(model, sentences):
    import os, resource, time

    start = time.time()
    embeddings = model.encode(sentences)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with open(f"{folder}/{{os.getpid()}}", "a") as file:
        print(start, time.time(), len(sentences), peak, file=file)
    return embeddings

"""


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    from bench import print_machine

    print_machine()
    print(f"{args.sentences:,} sentences, the first {args.layer} layers of {args.ckpt}")
    print("| system | workers | sentences per second | memory of a worker (MiB) | whole command (s) |")
    print("|---|---:|---:|---:|---:|")
    rates, memory = {}, {}
    for system in args.systems:
        if find_spec(PACKAGES[system]) is None:
            print(f"| {system} | | {PACKAGES[system]} is not installed | | |")
            continue
        for workers in (1, 2):
            rates[system, workers], memory[system, workers], seconds = measure(system, workers, args)
            line = f"{rates[system, workers]:,.0f} | {memory[system, workers]:.0f} | {seconds:.0f}"
            print(f"| {system} | {workers} | {line} |", flush=True)
    if rates:
        from tmft import SentenceEncoder

        dimensions = SentenceEncoder.from_pretrained(args.ckpt, args.layer).dimensions
        for system in args.systems:
            if (system, 2) in rates:
                print_plan(system, rates[system, 2] / 2, memory[system, 2], dimensions)


def measure(system: str, workers: int, args: argparse.Namespace) -> tuple[float, float, float]:
    """Encode the table once; return sentences per second, MiB of a worker, and seconds of the command."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for made in ("log", "sentences", "vectors"):
            (folder / made).mkdir()
        write_table(folder / "sentences", args.sentences)
        names = {"tmft": "plain.py", "ray": "encode_with_ray.py", "spark": "encode_with_spark.py"}
        script = PLAIN if system == "tmft" else script_of_page(names[system])
        (folder / names[system]).write_text(with_record(script, folder / "log", args), encoding="utf-8")
        start = time.perf_counter()
        commands = [[sys.executable, names[system], "sentences", "vectors", str(workers)]]
        if system == "spark":
            submit = ["spark-submit", "--master", f"local[{workers}, 4]", "--driver-memory", "1g"]
            commands = [[*submit, names[system], "sentences", "vectors"]]
        if system == "tmft":
            files = sorted(os.listdir(folder / "sentences"))
            commands = [[sys.executable, names[system], *files[n::workers]] for n in range(workers)]
        run(commands, folder)
        seconds = time.perf_counter() - start
        paths = list((folder / "log").iterdir())
        batches = [list(map(float, line.split())) for p in paths for line in p.read_text().splitlines()]
        starts, ends, counts, peaks = zip(*batches, strict=True)
        check_complete(folder, args.sentences)
        if sum(counts) != args.sentences or len(paths) != workers:
            print(f"{system}: {len(paths)} processes embedded {sum(counts):.0f} sentences", file=sys.stderr)
        return sum(counts) / (max(ends) - min(starts)), max(peaks), seconds


def run(commands: list[list[str]], folder: Path) -> None:
    """Run commands at the same time. Raises SystemExit, with their output, if one of them fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # its default is 15
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with open(folder / "output", "w") as output:
        processes = [
            subprocess.Popen(words, cwd=folder, env=environment, stdout=output, stderr=output)
            for words in commands
        ]
        codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit((folder / "output").read_text(errors="replace"))


def script_of_page(name: str) -> str:
    """Return the script of docs/clusters.md with this name."""
    return re.search(rf"`{name}`[^`]*?:\n\n```python\n(.*?)```", PAGE, re.DOTALL)[1]


def with_record(script: str, log: Path, args: argparse.Namespace) -> str:
    """Return a script that also records its batches, and has the checkpoint and the layer of the options."""
    script, num_calls = re.subn(r"([\w.]+)\.encode\(", r"recorded(\1, ", script)
    script, num_settings = re.subn(SETTINGS, f"CHECKPOINT, LAYER = {args.ckpt!r}, {args.layer}", script)
    assert num_calls == num_settings == 1
    return script.replace(IMPORT, IMPORT + RECORDED.format(folder=log), 1)


def write_table(folder: Path, count: int) -> None:
    """Write a table of distinct sentences, with the columns id and text, in FILES files.

    Each sentence is the beginning of one and the end of another sentence of data/sample.
    """
    import pyarrow
    import pyarrow.parquet

    lines = (ROOT / "data/sample/train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    words = [text.rstrip(".").split() for line in lines for text in line.split("\t")[:2]]
    texts = []
    for i in range(count):
        first, second = words[i % len(words)], words[(i // len(words) * 7 + i) % len(words)]
        texts.append(" ".join([*first[: 1 + len(first) // 2], *second[len(second) // 2 :]]))
    for shard in range(FILES):
        ids = list(range(shard, count, FILES))
        table = pyarrow.table({"id": ids, "text": [texts[i] for i in ids]})
        pyarrow.parquet.write_table(table, folder / f"{shard:02}.parquet")


def check_complete(folder: Path, count: int) -> None:
    """Raise SystemExit if the keys of the embeddings are not those of the sentences, each once."""
    import pyarrow.dataset

    ids = pyarrow.dataset.dataset(folder / "vectors").to_table(columns=["id"])["id"].to_pylist()
    if sorted(ids) != list(range(count)):
        sys.exit(f"{len(ids)} embeddings of {count} sentences, of which {len(set(ids))} are different")


def print_plan(system: str, rate: float, memory: float, dimensions: int) -> None:
    """Print what a billion sentences need.

    rate: sentences per second of one worker with one core, while two work. memory: MiB of a worker.
    """
    hours = BILLION / rate / 3600
    print(f"\nA billion sentences with {system}, {rate:,.0f} a second on a core: {hours:,.0f} core hours")
    for cores in (1, 16, 64, 256, 1024):
        gib = cores * memory / 1024
        print(f"  cores: {cores:4}, {hours / cores:8.1f} hours, {gib:,.1f} GiB of memory for the workers")
    for name, size in (("float32", 4), ("float16", 2), ("int8", 1)):
        print(f"  {dimensions} dimensions in {name}: {BILLION * dimensions * size / 1e12:.2f} TB")
    rows = round(rate * TASK_SECONDS)
    size, files = rows * dimensions * 4 / 1e6, -(-BILLION // rows)
    print(f"  {files:,} files of {TASK_SECONDS} seconds of work: {rows:,} sentences, {size:,.0f} MB each")


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--sentences", type=int, default=20_000, help="rows of the table")
    p.add_argument("--ckpt", default=str(ROOT / "data/twins/mlm-then-rtd"), help="folder of the model")
    p.add_argument("--layer", type=int, default=4, help="layers that are kept")
    p.add_argument("--systems", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    return p.parse_args(argv)


if __name__ == "__main__":
    main()
