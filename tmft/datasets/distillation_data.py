"""What a student learns from: lines of text, and a teacher's embeddings of them, computed once and kept.

Both lie in data/taught/, in a folder for each teacher and text: the lines in text.txt, their embeddings in
vectors.npy, which is mapped, not read. What stands in the files of the judge's dev and test is left out.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import torch

from tmft.data import DATA_FOLDER, Examples, Task
from tmft.device import choose_device
from tmft.distributed import Processes
from tmft.errors import InputError
from tmft.io.atomic import write_file
from tmft.losses.distillation import DistillSettings
from tmft.metrics import METRICS
from tmft.pretraining.corpus import lines_of
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.encode_file import encode_file

# A row like those of TASKS. The rate is high, since the targets are many numbers and not one of a pair.
TAUGHT = {
    "distill": Task(
        "",
        columns=("text",),
        label="embedding",
        objective="distill",
        judge="stsb/{split}.tsv",
        recipe={"epochs": 2, "batch_size": 128, "lr": 5e-4},
    )
}

MOST = 2000  # lines that are kept aside, of a long text


def taught(task: Task, split: str, held: Sequence[str]) -> Examples:
    """The lines of a text with the teacher's embeddings as labels: (N,) texts and (N, D) float32, mapped.

    Lines are in a random order, each is there once. Where they judge the student, too, the first are dev and
    the next are test. held: sentences that are left out. What another run has computed is used again; one
    that was stopped goes on. Raises InputError if too few lines are left.
    """
    said = DistillSettings(**task.settings)
    paths = [Path(name) for name in said.text]
    folder = DATA_FOLDER / "taught" / key_of(said, paths, held)
    if not (folder / "text.txt").is_file():
        lines = list(distinct(lines_of(paths), map(normal, held)))
        Random(0).shuffle(lines)
        write_file(folder / "text.txt", "\n".join(lines[: said.lines or None]) + "\n")
    lines = (folder / "text.txt").read_text(encoding="utf-8").split("\n")[:-1]
    count = min(MOST, math.ceil(len(lines) / 100)) if judges_itself(task) else 0
    if len(lines) < 2 + 2 * count:
        raise InputError(
            f"{' '.join(map(str, paths))}: {len(lines)} lines of text are left, give more", "text"
        )
    vectors = folder / "vectors.npy"
    if not vectors.is_file():
        device = choose_device("auto")
        teacher = SentenceEncoder.from_pretrained(said.teacher).to(device)
        print(
            f"teacher {said.teacher}: {len(lines)} lines, {teacher.dimensions} dimensions, kept in {folder}"
        )
        encode_file(teacher, folder / "text.txt", vectors, Processes(0, 1, device))
        about = {"teacher": said.teacher, "text": list(map(str, paths)), "lines": len(lines)}
        write_file(folder / "about.json", json.dumps(about, indent=2) + "\n")
    mapped = np.load(vectors, mmap_mode="c")  # copy on write: torch takes no array that cannot be written
    first, last = {"dev": (0, count), "test": (count, 2 * count), "train": (2 * count, None)}[split]
    return Examples((lines[first:last],), torch.from_numpy(mapped)[first:last])


def judges_itself(task: Task) -> bool:
    """Whether lines that are kept aside are dev and test, not the pairs of another task."""
    return getattr(METRICS[task.metric], "reads", "") == "vectors"


def distinct(lines: Iterable[str], held: Iterable[str]) -> Iterator[str]:
    """Each line once, without those whose words are in held."""
    seen = set(held)
    for line in lines:
        if (words := normal(line)) not in seen:
            seen.add(words)
            yield line


def normal(text: str) -> str:
    """Letters and digits in lower case, by which two sentences are the same."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


def key_of(said: DistillSettings, paths: list[Path], held: Sequence[str]) -> str:
    """A name for the teacher and the text, by names, sizes and times of their files, and what is held."""
    files = [*paths, *sorted(Path(said.teacher).rglob("*")) * Path(said.teacher).is_dir()]
    states = []
    for path in files:
        if path.is_file():
            state = path.stat()
            states.append([str(path.absolute()), state.st_size, state.st_mtime_ns])
    named = list(map(str, paths))
    content = json.dumps([said.teacher, said.lines, named, states, list(held)])
    name = Path(said.teacher.partition("@")[0]).name
    return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
