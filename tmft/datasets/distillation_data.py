"""The data of distillation: lines of text with the embeddings that a teacher gives them as labels.

The embeddings are computed once. They are kept in a folder for each teacher and text, below data/taught/: the
lines in text.txt, their embeddings in vectors.npy, which is memory-mapped. Sentences of the dev and test sets
that evaluate the student are excluded.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import torch

from tmft.data import DATA_FOLDER, Examples
from tmft.device import choose_device
from tmft.distributed import single_process
from tmft.errors import InputError
from tmft.io.atomic import write_file
from tmft.losses.distillation import EmbeddingDistillationConfig
from tmft.metrics import expected_prediction
from tmft.pretraining.corpus import read_nonempty_lines
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.encode_file import encode_file
from tmft.tasks import Task

CACHE_FOLDER = "taught"  # the name that older versions gave it: what they computed is found again
MAX_DEV_LINES = 2000  # size of a dev (and of a test) split of lines; at most 1 in 100 lines


def teacher_examples(task: Task, split: str, excluded_sentences: Sequence[str]) -> Examples:
    """Return one split of a text: N lines, with the teacher's embeddings, (N, D) float32, as labels.

    The lines are in random order, and duplicates are removed. If the student is evaluated on lines of the
    text itself (`has_own_dev`), the first lines are dev and the next ones test; otherwise all lines are
    train.
    excluded_sentences: sentences that must not be among the lines.

    Embeddings that another run has computed are used again; an interrupted computation resumes. The labels
    are memory-mapped. Raises InputError if too few lines are left.
    """
    config = EmbeddingDistillationConfig(**task.objective_args)
    paths = [Path(name) for name in config.text]
    folder = DATA_FOLDER / CACHE_FOLDER / cache_key(config, paths, excluded_sentences)
    if not (folder / "text.txt").is_file():
        lines = list(deduplicate(read_nonempty_lines(paths), map(normalize_text, excluded_sentences)))
        Random(0).shuffle(lines)
        write_file(folder / "text.txt", "\n".join(lines[: config.max_lines or None]) + "\n")
    lines = (folder / "text.txt").read_text(encoding="utf-8").split("\n")[:-1]
    dev_size = min(MAX_DEV_LINES, math.ceil(len(lines) / 100)) if has_own_dev(task) else 0
    if len(lines) < 2 + 2 * dev_size:
        raise InputError(
            f"text {' '.join(map(str, paths))}: {len(lines)} lines are left, too few: give a longer text",
            "text",
        )
    vectors = folder / "vectors.npy"
    if not vectors.is_file():
        embed_with_teacher(config.teacher, paths, folder, len(lines))
    # Mode "c" is copy on write: torch accepts only arrays that can be written.
    embeddings = torch.from_numpy(np.load(vectors, mmap_mode="c"))
    start, end = {"dev": (0, dev_size), "test": (dev_size, 2 * dev_size), "train": (2 * dev_size, None)}[
        split
    ]
    return Examples((lines[start:end],), embeddings[start:end])


def embed_with_teacher(teacher: str, paths: list[Path], folder: Path, num_lines: int) -> None:
    """Write the teacher's embeddings of text.txt to vectors.npy, and their origin to about.json."""
    device = choose_device("auto")
    model = SentenceEncoder.from_pretrained(teacher).to(device)
    print(f"teacher {teacher}: {num_lines} lines, {model.dimensions} dimensions, kept in {folder}")
    encode_file(model, folder / "text.txt", folder / "vectors.npy", single_process(device))
    about = {"teacher": teacher, "text": list(map(str, paths)), "lines": num_lines}
    write_file(folder / "about.json", json.dumps(about, indent=2) + "\n")


def has_own_dev(task: Task) -> bool:
    """Whether dev and test are lines of the text itself, and not the sentence pairs of `task.eval_files`."""
    return expected_prediction(task.metric) == "embedding"


def deduplicate(lines: Iterable[str], excluded: Iterable[str]) -> Iterator[str]:
    """Yield each line once, compared by `normalize_text`, without those whose normalized text is excluded."""
    seen = set(excluded)
    for line in lines:
        if (normalized := normalize_text(line)) not in seen:
            seen.add(normalized)
            yield line


def normalize_text(text: str) -> str:
    """Keep only the letters and digits, in lower case; sentences that are equal then count as duplicates."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


def cache_key(
    config: EmbeddingDistillationConfig, paths: list[Path], excluded_sentences: Sequence[str]
) -> str:
    """Name of the folder for a teacher and a text.

    It depends on the names, sizes and modification times of their files, and on the excluded sentences.
    """
    teacher = Path(config.teacher)
    teacher_files = sorted(teacher.rglob("*")) if teacher.is_dir() else []
    file_states = []
    for path in [*paths, *teacher_files]:
        if path.is_file():
            state = path.stat()
            file_states.append([str(path.absolute()), state.st_size, state.st_mtime_ns])
    content = json.dumps(
        [config.teacher, config.max_lines, list(map(str, paths)), file_states, list(excluded_sentences)]
    )
    name = Path(config.teacher.partition("@")[0]).name
    return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
