"""Distill a sentence encoder into a smaller one, in Python.

    from tmft import distill

    teacher = "sentence-transformers/all-MiniLM-L6-v2"  # or a SentenceEncoder
    student = distill(teacher, lines, layers=3)   # lines: a list of sentences, the more the better
    student = distill(teacher, layers=3)          # random words of the teacher's vocabulary
    student.save_pretrained("student")

The student has some of the teacher's layers or, with a `hidden_size`, layers of its own that are narrower.
The commands are `python train.py --teacher`, which also resumes an interrupted run, and `python -m tmft
student` for narrow ones; docs/students.md has what each kind of student reaches.
"""

import re
import sys
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from os import PathLike
from random import Random
from typing import Any, get_type_hints

import numpy as np
import torch

from tmft.checkpoints.compact import NUMBER_RANGES
from tmft.checkpoints.model_card import ModelCardData
from tmft.checkpoints.st_folder import check_can_be_saved
from tmft.datasets.task_lookup import get_task, read_all_splits
from tmft.device import keep_random_state
from tmft.errors import SEED_RANGE, InputError, check_choice, check_range
from tmft.io.arguments import check_arguments
from tmft.loop import Recipe, fit
from tmft.sentence_encoder import SentenceEncoder
from tmft.students.distillation import (
    MAX_DEV_LINES,
    EmbeddingDistillation,
    combine_embeddings,
    deduplicate,
    split_examples,
)
from tmft.students.narrow_models import factorize_embeddings, narrow_student
from tmft.students.quantized_weights import QuantizedWeights
from tmft.students.vocabulary_pruning import prune_vocabulary
from tmft.tasks import TASKS
from tmft.tokenizer import check_sentences
from tmft.training_task import TrainingTask

DEFAULT_RECIPE = Recipe(**TASKS["distillation"].recipe)
MIN_LINES = 4  # two to train on and two to choose the epoch by
NUM_RANDOM_LINES = 20_000  # lines of random words, if there is no text
RANDOM_LINE_WORDS = 3, 13  # lowest number of words in one of them, and the first number above the highest


@keep_random_state
def distill(
    teacher: str | PathLike[str] | SentenceEncoder,
    lines: Iterable[str] | None = None,
    layers: int = 3,
    hidden_size: int | None = None,
    vocab_size: int | None = None,
    recipe: Recipe = DEFAULT_RECIPE,
    seed: int = 0,
    quantization: str | None = None,
    embedding_size: int | None = None,
    second_teacher: str | PathLike[str] | SentenceEncoder | None = None,
    **settings: Any,
) -> SentenceEncoder:
    """Return a smaller encoder that has learned to give texts the embeddings that a teacher gives them.

    Its load_report and its model card say how near it has come, on lines that were held out. Progress is
    shown on stderr, and at the end this report and what to do next.
    teacher: a hub id, a folder, or a SentenceEncoder, which is not changed and embeds the lines in the dtype
        of its weights.
    lines: sentences, at least MIN_LINES different ones; one in a hundred, at most MAX_DEV_LINES, is not
        trained on and decides, by its cosine to the teacher, which epoch is kept. None: the sentences of the
        task sample and random words of the teacher's vocabulary (`draw_random_lines`), for a first student;
        real text brings it nearer to its teacher.
    layers: number of layers of the student. Without a hidden_size they are layers of the teacher, evenly
        spaced, the last one among them (of 6 layers, 3 are number 0, 2 and 5).
    hidden_size: if it is given, the student is a `narrow_student` of this width.
    vocab_size: keep only so many tokens, those that are most frequent in the lines; None keeps all.
    recipe: epochs, batch size, learning rate and so on; settings: fields of it that replace its own, such as
        epochs=1. A narrow student needs a higher learning rate than the default, about 2e-3 for 128
        dimensions.
    seed: of the held-out lines, the weights that are new, and the order of the lines.
    quantization: "int4" or "int8" trains with weights that are rounded as the export format compact stores
        them; None trains with all digits.
    embedding_size: the dimensions of the token embeddings, fewer than the layers have, with a linear map
        after them (`factorize_embeddings`); None keeps them as wide as the layers.
    second_teacher: another one, that counts as much: the student learns the mean of the cosines of both, in
        the dimensions of `teacher`, whose layers and tokens it has (`combine_embeddings`).

    `student.save_pretrained("student", dtype="float16")` writes half of the bytes of float32, and `export`
    of tmft/export/export.py, with the format compact and the dtype of quantization, an eighth or a quarter.

    Raises InputError, before any work, for an argument of a wrong type or out of range, then for too few
    lines and for a vocab_size with a tokenizer from which no tokens can be removed, and TypeError if lines is
    a single string or has something else than strings.
    Source: Reimers and Gurevych 2020, arXiv:2004.09813.
    """
    given = {name: value for name, value in locals().items() if name != "lines"}  # see check_sentences
    check_arguments(given, get_type_hints(distill))
    check_range("seed", seed, *SEED_RANGE)
    recipe = replace(recipe, **settings)
    if quantization is not None:
        check_choice("quantization", quantization, NUMBER_RANGES)
    teachers = [
        one if isinstance(one, SentenceEncoder) else SentenceEncoder.from_pretrained(one)
        for one in (teacher, second_teacher)
        if one is not None
    ]
    teacher = teachers[0]
    if hidden_size is None:
        kept_layers = space_layers_evenly(layers, len(teacher.encoder.layers))
    if vocab_size is not None:
        check_range("vocab_size", vocab_size, 1, len(teacher.tokenizer.vocabulary))
    if embedding_size is not None:
        width = hidden_size or teacher.encoder.config.hidden_size
        check_range("embedding_size", embedding_size, 2, width - 1)
    no_text = lines is None
    if lines is None:
        sample = read_all_splits(get_task("sample"))[""].values()
        lines = [sentence for split in sample for sentence in split.sentences]
        lines += draw_random_lines(teacher, seed)
    lines = list(deduplicate(check_sentences(lines), [""]))
    if len(lines) < MIN_LINES:
        raise InputError(f"distill: {len(lines)} different lines: give at least {MIN_LINES}")
    Random(seed).shuffle(lines)
    torch.manual_seed(seed)
    if hidden_size is None:
        student = deepcopy(teacher).float()
        student.keep_layers(kept_layers)
        check_can_be_saved(student)
        if vocab_size is not None:
            student = prune_vocabulary(student, lines, vocab_size)
    else:
        student = narrow_student(teacher, lines, layers, hidden_size, vocab_size)
    if embedding_size is not None:
        student = factorize_embeddings(student, lines, embedding_size)

    targets = [
        torch.as_tensor(one.encode(lines, convert_to_tensor=True, show_progress_bar=True)) for one in teachers
    ]
    target = combine_embeddings(*targets) if len(targets) == 2 else targets[0]
    num_dev = max(2, min(MAX_DEV_LINES, len(lines) // 100))
    task = replace(TASKS["distillation"], metric="teacher_cosine", eval_files="")
    examples = {split: split_examples(lines, target, num_dev, 0, split) for split in ("train", "dev")}
    objective = EmbeddingDistillation(student.dimensions, task)
    callbacks = [QuantizedWeights(student, quantization)] if quantization else []
    names = [one.source or "a teacher" for one in teachers]
    for epoch in fit(student, TrainingTask(task, objective, examples), recipe, seed, callbacks=callbacks):
        if epoch.is_best:  # fit draws a progress bar, and keeps the weights of this epoch
            cosine = f"mean cosine {epoch.dev['teacher_cosine']:.4f} on {num_dev} lines that were held out"
            text = "; these are random words: real text brings it nearer to its teacher" if no_text else ""
            student.load_report = f"distilled from {' and '.join(names)}: {cosine}{text}"
    print(f"{student.load_report}; next: student.save_pretrained(FOLDER)", file=sys.stderr)
    kind = "lines, most of them of random words," if no_text else "lines"
    vocab_sizes = [f"{model.encoder.config.vocab_size:,}" for model in (student, teacher)]
    student.card_data = ModelCardData(
        f"\nTrained to give {len(lines) - num_dev:,} {kind} the embeddings of its teacher: {cosine}.\n"
        f"It has {' of the '.join(vocab_sizes)} tokens of its teacher.\n",
        teachers=tuple(names),
        kept_layers=student.encoder.kept_layers if hidden_size is None else (),
    )
    return student.eval()


def draw_random_lines(model: SentenceEncoder, seed: int) -> list[str]:
    """Return NUM_RANDOM_LINES lines of random words of a model's vocabulary.

    The word of rank r in the vocabulary, which is ordered by frequency, is drawn with a probability
    proportional to 1 / (r + 10), as in a text (Zipf's law).
    """
    tokens = model.tokenizer.vocabulary
    begins_word = "[\u0120\u2581]" if any(token[0] in "\u0120\u2581" for token in tokens if token) else ""
    matches = (re.fullmatch(rf"{begins_word}([^\W\d_]{{2,}})", token) for token in tokens)
    words = [match[1] for match in matches if match]
    if not words:
        raise InputError("the vocabulary has no whole words, of which random lines are made: give a text")
    weights = 1 / np.arange(10, 10 + len(words))
    random = np.random.default_rng(seed)
    lengths = random.integers(*RANDOM_LINE_WORDS, size=NUM_RANDOM_LINES)
    drawn = random.choice(len(words), size=lengths.sum(), p=weights / weights.sum())
    return [" ".join(words[i] for i in line) for line in np.split(drawn, lengths.cumsum()[:-1])]


def space_layers_evenly(count: int, num_layers: int) -> list[int]:
    """Return the indices of `count` layers of a model, evenly spaced, the first and the last one among them.

    num_layers: those of the model. A single layer is the last one, which maps into the space of the
    embeddings. Raises InputError if the model has fewer layers.
    """
    check_range("layers", count, 1, num_layers)
    return [num_layers - 1] if count == 1 else np.linspace(0, num_layers - 1, count).astype(int).tolist()
