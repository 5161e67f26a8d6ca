"""Train on a million lines: memory of the process and seconds of each stage, from reading to step 300.

    python tests/bench/bench.py memory --lines 1000000 --layer 1

The lines are made of random words of the tokenizer of --ckpt. Each training is a process of its own that runs
a command of train.py with --ckpt cut to --layer layers, and stops after LAST_STEP steps:

    distillation   the lines, and random vectors in place of the embeddings of a teacher, which take longer to
                   compute than everything else here; "again" is the same command once more, which finds them
    contrastive    triplets of the lines, from a TSV file
    mlm, clm       pre-training of all layers on the lines, --ckpt whole

The memory is that of /proc/self/status, so this needs Linux. "own" is RssAnon, the memory that the system
cannot drop; "mapped" is RssFile, pages of mapped files that were used, such as those of the embeddings, which
it can drop at any time; "peak" is the largest sum of both within the stage (VmHWM).
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench_load import MEMORY

ROOT = Path(__file__).resolve().parent.parent.parent
REPORTED_STEPS = (1, 20, 100, 300)
NUM_WORDS = (6, 28)  # words of a line, at least and at most
EMBEDDING_BLOCK = 10_000  # rows of random vectors that are made at a time

# Runs a command of train.py, and prints a line of JSON at the end of each stage: its name, the seconds since
# the one before, and VmHWM, RssAnon and RssFile in KiB.
PROGRAM = """
import sys, time
sys.path[:0] = [{root!r}, {bench!r}]
{memory}
import json
start = time.perf_counter()

def report(stage):
    global start
    numbers = [memory(key) for key in ("VmHWM", "RssAnon", "RssFile")]
    print(json.dumps([stage, time.perf_counter() - start, *numbers]), flush=True)
    open("/proc/self/clear_refs", "w").write("5")  # sets VmHWM to the memory in use
    start = time.perf_counter()

import train
report("import")
import bench_memory
bench_memory.report_stages(report, {scratch!r})
train.main({arguments!r})
"""


def report_stages(report, scratch: str) -> None:
    """Make the functions of each stage call `report` when they end, and the process end after the last step.

    report: called with the name of a stage. scratch: the folder in which the embeddings of the teacher are.
    """
    import train
    from tmft.optimizers import MixedPrecision
    from tmft.runs import pretrain, train_run
    from tmft.students import distillation_data
    from tmft.training_task import TrainingTask

    def report_after(owner, name: str, stage: str) -> None:
        function = getattr(owner, name)

        def reporting(*args, **options):
            result = function(*args, **options)
            report(stage)
            return result

        setattr(owner, name, reporting)

    report_after(train, "read_all_splits", "reading")
    report_after(train, "data_digests", "digests of the data")
    report_after(train_run, "make_training_tasks", "loading the model")
    report_after(TrainingTask, "tokenize", "tokenizing")
    report_after(pretrain, "source_digests", "digests of the checkpoint")
    report_after(pretrain, "tokenize_files", "tokenizing")
    step, num_steps = MixedPrecision.step, 0

    def counted_step(amp, optimizer):
        nonlocal num_steps
        result, num_steps = step(amp, optimizer), num_steps + 1
        if num_steps in REPORTED_STEPS:
            report(f"step {num_steps}")
        if num_steps == REPORTED_STEPS[-1]:
            raise SystemExit
        return result

    MixedPrecision.step = counted_step
    distillation_data.DATA_FOLDER = Path(scratch)
    distillation_data.encode_file = random_embeddings


def random_embeddings(model, path: Path, out: Path, processes) -> None:
    """Write a file of random vectors, a substitute for `encode_file`, which has the same parameters."""
    import numpy as np

    with open(path, encoding="utf-8") as lines:
        num_lines, rng = sum(1 for _ in lines), np.random.default_rng(0)
    with open(out, "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (num_lines, model.dimensions)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, num_lines, EMBEDDING_BLOCK):
            shape = min(EMBEDDING_BLOCK, num_lines - start), model.dimensions
            file.write(rng.standard_normal(shape, dtype=np.float32).data)


def write_lines(ckpt: Path, num_lines: int, folder: Path) -> None:
    """Write text.txt, of random words of the tokenizer of a checkpoint, and triplets of its lines, train.tsv.

    ckpt: folder of the checkpoint. num_lines: lines of the text, and triplets. folder: to write them to.
    """
    from tmft.checkpoints.tokenizers import load_tokenizer

    words = sorted(word for word in load_tokenizer(ckpt).backend.get_vocab() if word.isalpha())
    rng = random.Random(0)
    (folder / "nli-triplets").mkdir()
    shutil.copytree(ROOT / "data/sample", folder / "stsb")  # for dev and test
    with (
        open(folder / "text.txt", "w", encoding="utf-8") as text,
        open(folder / "nli-triplets/train.tsv", "w", encoding="utf-8") as triplets,
    ):
        triplets.write("anchor\tpositive\tnegative\n")
        previous = [" ".join(words[:6]), " ".join(words[6:12])]
        for _ in range(num_lines):
            line = " ".join(rng.choices(words, k=rng.randint(*NUM_WORDS)))
            text.write(f"{line}\n")
            triplets.write("\t".join([line, *previous]) + "\n")
            previous = [line, previous[0]]


def commands(ckpt: Path, layer: int, folder: Path) -> dict[str, list[str]]:
    """Return {name of a training: the arguments of train.py}. folder: that of write_lines."""
    text = ["--text", str(folder / "text.txt")]
    own_steps = ["--batch-size", "32", "--gradient-accumulation-steps", "1", "--save-steps", "100000"]
    kept = ["--layer", str(layer)]
    distillation = ["distillation", *kept, *text, "--teacher", str(ckpt)]
    trainings = {
        "distillation": [*distillation, "--selection-metric", "teacher_cosine"],
        "distillation, again": [*distillation, "--selection-metric", "teacher_cosine"],
        "contrastive": ["nli", *kept, "--data-root", str(folder), "--batch-size", "64"],
        "mlm": ["mlm", *text, *own_steps],
        "clm": ["clm", *text, *own_steps],
    }
    return {
        name: ["--ckpt", str(ckpt), "--output-dir", str(folder / name), "--task", *arguments]
        for name, arguments in trainings.items()
    }


def run_process(arguments: list[str], scratch: Path) -> Iterator[tuple[str, float, float, float, float]]:
    """Run a command of train.py in a process of its own; yield each stage when it has ended.

    A stage is its name, the seconds, and the MiB of its peak, of own and of mapped memory at its end.
    """
    program = PROGRAM.format(
        root=str(ROOT), bench=str(ROOT / "tests/bench"), memory=MEMORY, scratch=str(scratch),
        arguments=arguments,
    )  # fmt: skip
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    line = [sys.executable, "-c", program]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for printed in process.stdout:
            if printed.startswith("["):  # the other lines are those of train.py
                name, seconds, peak, own, mapped = json.loads(printed)
                yield name, seconds, peak / 1024, own / 1024, mapped / 1024
    if process.returncode:
        raise SystemExit(f"train.py {' '.join(arguments)} failed")


def measurements(ckpt: Path, layer: int, num_lines: int, names: list[str]) -> Iterator[str]:
    """Yield the lines of a table: the stages of each training.

    ckpt: folder of the checkpoint, of which `layer` layers are trained. names: of the trainings.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_lines(ckpt, num_lines, folder)
        for name, arguments in commands(ckpt, layer, folder).items():
            if name not in names:
                continue
            yield f"\n{name}, {num_lines:,} lines"
            yield f"{'stage':26} {'s':>7} {'peak MiB':>9} {'own MiB':>9} {'mapped MiB':>10}"
            for stage, seconds, peak, own, mapped in run_process(arguments, folder):
                yield f"{stage:26} {seconds:7.1f} {peak:9,.0f} {own:9,.0f} {mapped:10,.0f}"


def bench_memory(args) -> None:
    """Print the memory and the seconds of each stage of training on many lines."""
    for line in measurements(args.ckpt, args.layer, args.lines, args.trainings):
        print(line, flush=True)
