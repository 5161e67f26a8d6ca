"""Measure memory and open files over a long run, and over many runs in one process.

    python tests/harness/soak.py --steps 20000 --runs 50

The encoder has random weights and is so small that a step takes milliseconds: a leak per step or per run does
not depend on the size of the model. Memory is the resident set after a garbage collection; the first fifth is
warm-up. The exit code is 1 if memory then grows by more than 10 MB, or by one open file.
"""

import argparse
import contextlib
import gc
import io
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

MAX_GROWTH = 10.0  # MB that are not counted as a leak, because the allocator keeps some freed pages


def memory_and_files() -> tuple[float, int]:
    """Return the resident set of this process in MB, and the number of its open files."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir("/proc/self/fd"))


def measure_steps(count: int, points: int = 40) -> list[tuple[int, float, int]]:
    """Do a run of so many steps: return (step, MB, files) after each of its epochs. points: epochs."""
    import torch
    from conftest import SENTENCES, tiny_model

    from tmft.data import Examples
    from tmft.io.distributed import single_process
    from tmft.loop import Recipe, fit
    from tmft.loss import CosineMSE
    from tmft.tasks import TASKS
    from tmft.training.checkpointing import Checkpointing, TrainingCheckpoint
    from tmft.training_task import TrainingTask

    per_epoch = count // points
    texts = [
        f"{SENTENCES[n % len(SENTENCES)]} {SENTENCES[n % 7 % len(SENTENCES)]}" for n in range(2 * per_epoch)
    ]
    train = Examples((texts, texts[::-1]), [float(n % 6) for n in range(len(texts))])
    dev = Examples((texts[:20], texts[-20:]), train.labels[:20])
    model = tiny_model(untrained=True)
    task = TrainingTask(TASKS["stsb"], CosineMSE(), {"train": train, "dev": dev})
    recipe = Recipe(epochs=points, batch_size=2, lr=1e-4, precision="fp32")
    with tempfile.TemporaryDirectory() as folder:
        path, process = Path(folder) / "state.pt", single_process(torch.device("cpu"))
        callbacks = [Checkpointing(TrainingCheckpoint(path, {}, process))]
        epochs = fit(model, task, recipe, callbacks=callbacks)
        return [(epoch.epoch * per_epoch, *memory_and_files()) for epoch in epochs]


def measure_runs(count: int) -> list[tuple[int, float, int]]:
    """Do so many runs of train.py in this process: return (run, MB, files) after each."""
    import train

    points = []
    with tempfile.TemporaryDirectory() as folder:
        words = ["--ckpt", str(ROOT / "data/twins/mlm-then-rtd"), "--layer", "1", "--task", "sample"]
        words += ["--epochs", "1", "--train-fraction", "0.2", "--precision", "fp32", "--output-dir", folder]
        for seed in range(count):
            with contextlib.redirect_stdout(io.StringIO()):
                train.main([*words, "--seed", str(seed)])
            points.append((seed + 1, *memory_and_files()))
    return points


def growth(points: list[tuple[int, float, int]]) -> tuple[float, int]:
    """Return the growth in MB and in files from the second fifth to the last fifth, by medians."""
    fifth = max(1, len(points) // 5)
    start, end = points[fifth : 2 * fifth], points[-fifth:]
    return tuple(median(p[i] for p in end) - median(p[i] for p in start) for i in (1, 2))


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=20000)
    p.add_argument("--runs", type=int, default=50)
    args = p.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    curves = {"Steps of one run": measure_steps(args.steps), "Runs in one process": measure_runs(args.runs)}
    leaks = False
    for name, points in curves.items():
        more, files = growth(points)
        leaks |= more > MAX_GROWTH or files >= 1
        print(f"{name}: {points[0][0]} to {points[-1][0]}, {points[0][1]:.0f} to {points[-1][1]:.0f} MB, "
              f"growth after the warm-up {more:+.2f} MB, {files:+.1f} open files")  # fmt: skip
    sys.exit(leaks)
