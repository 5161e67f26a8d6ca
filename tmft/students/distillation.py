"""Distillation: a student is trained to give texts the embeddings that a teacher, another model, gives them.

The embeddings are computed once and kept in a folder for each teacher and text, below data/taught/: text.txt
has the lines and vectors.npy, which is memory-mapped, their embeddings. Sentences of the dev and test sets on
which the student is evaluated are excluded. `extract_sentences` makes the lines of a text of paragraphs.

Shapes: P texts in a batch, N texts in a split, D dimensions of an embedding of student and teacher.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tmft.data import DATA_FOLDER, Examples
from tmft.device import choose_device, choose_precision
from tmft.errors import InputError, check_range
from tmft.io.atomic import write_file
from tmft.io.distributed import single_process
from tmft.io.files import digest, is_file, is_folder, reading
from tmft.io.text import read_lines
from tmft.loss import Objective
from tmft.metrics import cosines, is_computed_on_text
from tmft.pretraining.corpus import read_nonempty_lines
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.encode_file import encode_file
from tmft.tasks import Task

CACHE_FOLDER = "taught"  # an old name, kept so that embeddings from earlier versions are found
SIMILARITY_WEIGHT = 5.0  # of the loss of embeddings that have fewer dimensions than the teacher's
BLOCK_ROWS = 8192  # of the embeddings that are combined at a time
MAX_DEV_LINES = 2000  # maximal size of dev, and of test, if they are lines of the text
# A sentence ends with . ! or ? before white space and a capital, an opening quote or a bracket. This is wrong
# after abbreviations such as Dr., and good enough for text that only has to look like sentences.
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"“‘(]?[A-Z])")
SHORT_LINE = 120  # characters; a line that is not longer stays whole
MIN_LETTERS = 12  # letters and digits that a sentence has at least


@dataclass(frozen=True)
class EmbeddingDistillationConfig:
    """Hyperparameters of distillation: where its data comes from.

    teacher: hub id or folder of a sentence encoder. The model learns its embeddings of the lines of `text`.
        If they have D dimensions and those of the model have not, add `projection` D. Dev and test are STS
        benchmark or, with `selection_metric` teacher_cosine, lines of `text` that are not trained on.
    second_teacher: another one, that counts as much as `teacher`: the model learns embeddings that have the
        mean of the cosines of both, in the dimensions of `teacher`.
    text: names of the files with the training sentences, one per line.
    max_lines: use N lines of `text`, drawn at random; 0: all.
    """

    teacher: str = ""
    second_teacher: str = ""
    text: tuple[str, ...] = ()
    max_lines: int = 0

    def __post_init__(self) -> None:
        check_range("max_lines", self.max_lines, 0)


def teacher_examples(task: Task, split: str, excluded_sentences: Sequence[str]) -> Examples:
    """Return the Examples of one split: N lines of the text, and their embeddings by the teacher as labels.

    task: its objective_args name the teacher and the text (see EmbeddingDistillationConfig).
    split: train, dev or test. If the student is evaluated on lines of the text itself (see
        `is_computed_on_text`), the first lines are dev, the next ones test and the others train; otherwise
        all lines are train.
    excluded_sentences: sentences that must not be among the lines.

    The lines are in random order, without duplicates. The labels are a memory-mapped tensor, (N, D) float32.
    Those of two teachers are combined (see `combine_embeddings`) in memory.
    Embeddings that another run has computed are used again; an interrupted computation is resumed.
    Raises InputError if too few lines are left, or if the embeddings on disk are damaged.
    """
    config = EmbeddingDistillationConfig(**task.objective_args)
    paths = [Path(name) for name in config.text]
    embeddings = []
    for teacher in filter(None, (config.teacher, config.second_teacher)):
        folder = DATA_FOLDER / CACHE_FOLDER / cache_key(teacher, config, paths, excluded_sentences)
        if not is_file(folder / "text.txt"):
            lines = list(deduplicate(read_nonempty_lines(paths), map(normalize_text, excluded_sentences)))
            Random(0).shuffle(lines)
            kept = lines[: config.max_lines or None]
            write_file(folder / "text.txt", "".join(f"{line}\n" for line in kept))
        lines = list(read_lines(folder / "text.txt"))
        num_dev = 0  # and as many are test
        if is_computed_on_text(task.metric):
            num_dev = min(MAX_DEV_LINES, math.ceil(len(lines) / 100))
        if len(lines) < 2 + 2 * num_dev:
            problem = f"text {' '.join(config.text)}: {len(lines)} lines are left, too few"
            raise InputError(f"{problem}: give a longer text", "text")
        embeddings.append(embeddings_by_teacher(teacher, folder, len(lines)))
    combined = combine_embeddings(*embeddings) if config.second_teacher else embeddings[0]
    return split_examples(lines, combined, num_dev, num_dev, split)


def split_examples(lines: list[str], embeddings: Tensor, num_dev: int, num_test: int, split: str) -> Examples:
    """Return the Examples of a split: the first lines are dev, the next ones test, the others train."""
    end = num_dev + num_test
    part = {"dev": slice(num_dev), "test": slice(num_dev, end), "train": slice(end, None)}[split]
    return Examples((lines[part],), embeddings[part])


def embeddings_by_teacher(teacher: str, folder: Path, num_lines: int) -> Tensor:
    """Return the teacher's embeddings of folder/text.txt, (N, D), memory-mapped from vectors.npy beside it.

    They are computed if that file is not there, as training is in bf16 if the device has instructions for it.
    """
    vectors = folder / "vectors.npy"
    if not is_file(vectors):
        device = choose_device("auto")
        dtype = "bfloat16" if choose_precision("auto", device) == "bf16" else "float32"
        model = SentenceEncoder.from_pretrained(teacher, dtype=dtype).to(device)
        print(f"teacher {teacher}: {num_lines} lines, {model.dimensions} dimensions, kept in {folder}")
        encode_file(model, folder / "text.txt", vectors, single_process(device))
    with reading(vectors, "remove the folder, and the embeddings of the teacher are computed again"):
        # Mode "c" is copy on write: torch accepts only arrays that can be written.
        return torch.from_numpy(np.load(vectors, mmap_mode="c", allow_pickle=False))


def combine_embeddings(first: Tensor, second: Tensor) -> Tensor:
    """Return embeddings, (N, D) float32, whose inner products are nearly the mean cosines of two models.

    first, second: (N, D) and (N, E) float32, embeddings of the same texts by each of the models.

    Embeddings of unit length side by side have these inner products exactly. Their D first principal
    components, not centered, have them as nearly as D dimensions can. These are rotated to where they lie
    nearest to the first model's embeddings, so that a student that begins as a part of this model has
    little to unlearn. Source: the rotation is Schönemann's 1966, a generalized solution of the orthogonal
    Procrustes problem.
    """

    def side_by_side(rows: slice) -> Tensor:
        return torch.cat([F.normalize(first[rows], dim=-1), F.normalize(second[rows], dim=-1)], dim=-1)

    dimensions = first.shape[1]
    blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, len(first), BLOCK_ROWS)]
    width = dimensions + second.shape[1]
    products = torch.zeros(width, width, dtype=torch.float64)
    for rows in blocks:
        block = side_by_side(rows)
        products += block.T @ block
    components = torch.linalg.eigh(products).eigenvectors[:, -dimensions:]
    left, _, right = torch.linalg.svd(components.T @ products[:, :dimensions])
    projection = (components @ left @ right / math.sqrt(2)).float()
    return torch.cat([side_by_side(rows) @ projection for rows in blocks])


def cache_key(
    teacher: str, config: EmbeddingDistillationConfig, paths: list[Path], excluded_sentences: Sequence[str]
) -> str:
    """Return the name of the folder for a teacher, one of those of config, and a text.

    It depends on the names, sizes and modification times of the files of both, on max_lines and on the
    excluded sentences, so that embeddings are not used again when one of these has changed.
    paths: the files of the text. excluded_sentences: those that are not used for training.
    """
    teacher_files = sorted(Path(teacher).rglob("*")) if is_folder(Path(teacher)) else []
    file_states = []
    for path in [*paths, *teacher_files]:
        if is_file(path):
            state = path.stat()
            file_states.append([str(path.absolute()), state.st_size, state.st_mtime_ns])
    content = json.dumps(
        [teacher, config.max_lines, list(map(str, paths)), file_states, list(excluded_sentences)]
    )
    name = Path(teacher.partition("@")[0]).name
    return f"{name}-{digest(content)[:12]}"


def deduplicate(lines: Iterable[str], excluded: Iterable[str]) -> Iterator[str]:
    """Yield the lines without duplicates; lines with the same `normalize_text` are duplicates.

    excluded: normalized texts of lines that are not yielded at all. Of each line only a hash is kept.
    """
    seen = set(map(hash, excluded))  # among a million texts, two have the same hash in one case of 4e7
    for line in lines:
        if (number := hash(normalize_text(line))) not in seen:
            seen.add(number)
            yield line


def normalize_text(text: str) -> str:
    """Return the letters and digits of a text, in lower case, to find sentences that are nearly equal."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


# -------------------------------------------------------------------------------------------------- the loss


def distillation_loss(u: Tensor, target: Tensor) -> Tensor:
    """Return 1 - cosine(student, teacher); a scalar.

    u: (P, D), embeddings of P texts by the student. target: (P, D), their embeddings by the teacher.

    If u has only the first dimensions of an embedding (Matryoshka), its cosine with the wider target is
    undefined. The loss is then SIMILARITY_WEIGHT times the mean squared difference between the (P, P) cosine
    similarities of the student's embeddings and those of the teacher's.
    Source: Reimers and Gurevych 2020, arXiv:2004.09813 (embeddings of a teacher as targets); Tung and Mori
    2019, arXiv:1907.09682 (the similarities of a batch).

    Example:

    >>> import torch
    >>> teacher = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> distillation_loss(teacher, teacher).item()
    0.0
    >>> distillation_loss(-teacher, teacher).item()  # the opposite directions
    2.0
    """
    u, target = F.normalize(u, dim=-1), F.normalize(target.to(u.dtype), dim=-1)
    if u.shape[-1] < target.shape[-1]:
        return SIMILARITY_WEIGHT * F.mse_loss(u @ u.T, target @ target.T)
    return 1 - (u * target).sum(-1).mean()


class EmbeddingDistillation(Objective):
    """Trains a student to give each text the embedding that the teacher gives it, see `distillation_loss`.

    The student is evaluated on the cosines of sentence pairs (those of `task.eval_files`) or, with the metric
    `teacher_cosine`, on how close its embeddings of single texts are to the teacher's.
    """

    prediction_type, allowed_num_texts, config_class = "cosine", (1,), EmbeddingDistillationConfig
    min_batch_size = 2  # the texts of a batch are compared with each other
    needs_teacher, read_examples = True, staticmethod(teacher_examples)

    def __init__(self, dimensions: int, task: Task):
        super().__init__(dimensions, task)
        self.dimensions = dimensions

    def forward(self, u: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar.

        u: (P, D) float32, embeddings of the student, or only their first dimensions. target: (P, D), those of
        the teacher. Raises InputError if student and teacher differ in D.
        """
        if self.dimensions != target.shape[-1]:
            what = (
                f"the teacher's embeddings have {target.shape[-1]} dimensions, "
                f"the student's {self.dimensions}"
            )
            raise InputError(f"{what}: add `projection` {target.shape[-1]}", "projection")
        return distillation_loss(u, target)

    def predict(self, u: Tensor, v: Tensor | None = None) -> np.ndarray:
        """Return the cosine of each pair, (N,) float64, or u itself if there is no v. u, v: (N, D)."""
        return u.numpy() if v is None else cosines(u, v)


# --------------------------------------------------------------------------------- paragraphs into sentences


def line_to_sentences(line: str, max_length: int) -> list[str]:
    """Return the sentences of a line and, if it is not longer than max_length characters, the line itself.

    A line of at most SHORT_LINE characters is not split.
    """
    if len(line) <= SHORT_LINE:
        return [line]
    sentences = SENTENCE_END.split(line)
    return [*sentences, line] if len(sentences) > 1 and len(line) <= max_length else sentences


def extract_sentences(
    lines: Iterable[str], min_length: int, max_length: int, excluded: Iterable[str] = ()
) -> Iterator[str]:
    """Yield the distinct sentences of a text.

    lines: sentences or paragraphs. min_length, max_length: characters; shorter and longer sentences are left
    out. excluded: sentences that are left out, such as those of test sets. Sentences with the same letters
    and digits count as equal.
    """
    sentences = (
        sentence.strip() for line in lines for sentence in line_to_sentences(line.strip(), max_length)
    )
    fitting = (
        sentence
        for sentence in sentences
        if min_length <= len(sentence) <= max_length and len(normalize_text(sentence)) >= MIN_LETTERS
    )
    yield from deduplicate(fitting, map(normalize_text, excluded))
