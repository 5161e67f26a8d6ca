"""Memory and open files over a long run, and over many runs in one process; the curve as a figure.

    python tests/harness/soak.py --steps 20000 --output-dir 50 --plot soak.svg

One encoder of random weights, small so that a step takes milliseconds: what is measured is what a step or a
run leaves behind, which does not depend on the size of a model. Memory is the resident set, after a garbage
collection; the first fifth is warm-up. Exit code 1 if the rest grows by more than 10 MB or one open file.
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

GROWTH = 10.0  # MB that are no leak: pages are given back as the allocator likes


def held() -> tuple[float, int]:
    """MB of this process in memory, and its open files."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir("/proc/self/fd"))


def steps(count: int, points: int = 40) -> list[tuple[int, float, int]]:
    """One run of so many steps -> (step, MB, files), measured after each of some epochs."""
    import torch
    from conftest import SENTENCES, tiny_model

    from tmft.data import Examples
    from tmft.tasks import TASKS
    from tmft.distributed import single_process
    from tmft.training.checkpointing import State
    from tmft.training.loop import Recipe, fit
    from tmft.training.multitask import lessons_of

    per_epoch = count // points
    texts = [
        f"{SENTENCES[n % len(SENTENCES)]} {SENTENCES[n % 7 % len(SENTENCES)]}" for n in range(2 * per_epoch)
    ]
    train = Examples((texts, texts[::-1]), [float(n % 6) for n in range(len(texts))])
    dev = Examples((texts[:20], texts[-20:]), [float(n % 6) for n in range(20)])
    model = tiny_model(untrained=True)
    lessons = lessons_of(TASKS["stsb"], model.dimensions, {"": {"train": train, "dev": dev}})
    recipe = Recipe(epochs=points, batch_size=2, lr=1e-4, precision="fp32")
    with tempfile.TemporaryDirectory() as folder:
        state = State(Path(folder) / "state.pt", {}, single_process(torch.device("cpu")))
        return [(epoch.number * per_epoch, *held()) for epoch in fit(model, lessons, recipe, 0, None, state)]


def runs(count: int) -> list[tuple[int, float, int]]:
    """So many runs of train.py in this process -> (run, MB, files)."""
    import train

    found = []
    with tempfile.TemporaryDirectory() as folder:
        words = ["--ckpt", str(ROOT / "data/twins/discriminator"), "--layer", "1", "--task", "sample"]
        words += ["--epochs", "1", "--train-fraction", "0.2", "--precision", "fp32", "--output-dir", folder]
        for seed in range(count):
            with contextlib.redirect_stdout(io.StringIO()):
                train.main([*words, "--seed", str(seed)])
            found.append((seed + 1, *held()))
    return found


def growth(points: list[tuple[int, float, int]]) -> tuple[float, int]:
    """MB and files that the last fifth has more than the second one, medians."""
    fifth = max(1, len(points) // 5)
    start, end = points[fifth : 2 * fifth], points[-fifth:]
    return tuple(median(p[i] for p in end) - median(p[i] for p in start) for i in (1, 2))


def plot(curves: dict[str, list[tuple[int, float, int]]], path: Path) -> None:
    from tmft.reports.plots import line_style, save_figure

    def draw(*every):
        for axes, (name, points) in zip(every, curves.items(), strict=True):
            axes.plot([x for x, *_ in points], [mb for _, mb, _ in points], **line_style(0) | {"marker": ""})
            axes.set_ylim(bottom=0)
            axes.set_xlabel(name)
        every[0].set_ylabel("Memory (MB)")

    save_figure(draw, path, widths=[2.8] * len(curves), height=2.4)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=20000)
    p.add_argument("--output-dir", type=int, default=50)
    p.add_argument("--plot", type=Path)
    args = p.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    curves = {"Steps of one run": steps(args.steps), "Runs in one process": runs(args.runs)}
    leaks = False
    for name, points in curves.items():
        more, files = growth(points)
        leaks |= more > GROWTH or files >= 1
        print(f"{name}: {points[0][0]} to {points[-1][0]}, {points[0][1]:.0f} to {points[-1][1]:.0f} MB, "
              f"growth after the warm-up {more:+.2f} MB, {files:+.1f} open files")  # fmt: skip
    if args.plot:
        plot(curves, args.plot)
    sys.exit(leaks)
