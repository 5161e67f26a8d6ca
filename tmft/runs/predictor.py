"""Predictor: a fine-tuned model with the head that was trained on it, which predicts classes or scores."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tmft.checkpoints.model_folder import MODEL_FILES
from tmft.errors import InputError, check_choice, check_not_blank, short_repr
from tmft.io.atomic import replacing_files
from tmft.loss import Objective
from tmft.runs.result_json import RESULT_FILE
from tmft.runs.run_result import FineTunedRun, save_heads, write_result
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import Task
from tmft.tokenizer import check_sentences


class Predictions(NamedTuple):
    """What a Predictor predicts for N texts or pairs.

    labels: the name of the class of each, or its score. probabilities: of the classes, in the order of
    Predictor.classes, (N, C) float64; None for scores, and if a threshold on the cosine decides.
    """

    labels: list[Any]
    probabilities: np.ndarray | None


class Predictor:
    """A fine-tuned model that predicts the classes or scores of texts, as it was trained to.

    model: the model. objective: the objective that it was trained with, which has the trained head.
    task: the task that it was trained on. threshold: on the cosine of a pair, from which on it is in class 1,
    for an objective without a head; None if there is none.
    result: the content of the result.json of the run, which `save_pretrained` writes. task_name: the name of
    the task in it, if the run had several tasks; else "".
    classes: the names of the classes, in the order of the probabilities; [] if scores are predicted.
    """

    classes: list[str]

    def __init__(
        self,
        model: SentenceEncoder,
        objective: Objective,
        task: Task,
        threshold: float | None,
        result: dict[str, Any],
        task_name: str = "",
    ):
        self.model, self.objective, self.task, self.threshold = model, objective, task, threshold
        self.result, self.task_name = result, task_name
        self.classes = sorted(task.classes, key=lambda name: task.classes[name])

    @classmethod
    def from_pretrained(
        cls, folder: str | os.PathLike[str], task: str | None = None, device: str | None = None
    ) -> "Predictor":
        """Return what the run in a folder has trained.

        folder: a run folder of train.py or `fine_tune`, or one that `save_pretrained` wrote.
        task: the name of a task, if the run had several. device: as in SentenceEncoder.from_pretrained.
        Raises InputError if no run has trained this model, or if a file is damaged.
        """
        run = FineTunedRun(str(folder))
        names = [*run.task_settings]
        if not names:
            raise InputError(f"{folder} has no {RESULT_FILE} of a run that fine-tuned it: name a run folder")
        if task is None and len(names) > 1:
            raise InputError(
                f"{folder} was trained on {', '.join(names)}: name one of them as `task`", "task"
            )
        name = names[0] if task is None else task
        check_choice("task", name, names)
        trained = run.recorded_task(name)
        model = SentenceEncoder.from_pretrained(folder, device=device)
        objective = run.load_objective(name, trained, model.dimensions)
        several = name if len(names) > 1 else ""
        return cls(model, objective, trained, run.find_threshold(name), run.result, several)

    def predict(self, texts: Sequence[Any]) -> Predictions:
        """Return the labels of N texts or pairs and, if classes are predicted, their probabilities.

        texts: a list of texts or, if pairs were trained on, of pairs (text, text).
        Raises InputError if the objective of the run predicts no labels, such as cosine_mse, and for an
        example that is no pair.

        Example:

        >>> from tmft import fine_tune
        >>> rows = [(f"The dog {n} sleeps.", "animals") for n in range(20)]
        >>> rows += [(f"It rains, day {n}.", "weather") for n in range(20)]
        >>> result = fine_tune(
        ...     "data/twins/mlm", rows, layer=1, epochs=5, lr=3e-3, objective="single_text_head"
        ... )  # doctest: +ELLIPSIS
        <BLANKLINE>
        ...
        >>> labels, probabilities = result.predict(["A dog sleeps.", "It rains."])
        >>> labels, probabilities.shape
        (['animals', 'weather'], (2, 2))
        """
        objective, count = self.objective, len(self.task.columns)
        by_threshold = objective.prediction_type == "cosine" and self.threshold is not None
        if not (objective.has_head or by_threshold):
            raise InputError(
                f"the objective {self.task.objective} has no head that predicts labels: compare "
                "embeddings with model.similarity"
            )
        columns = [check_sentences(texts)] if count == 1 else transpose_texts(texts, count)
        sentences = [text for column in columns for text in column]
        embeddings = torch.as_tensor(self.model.encode(sentences, convert_to_tensor=True)).chunk(count)
        predicted = objective.predict(*embeddings)
        if by_threshold:
            predicted = (predicted >= self.threshold).astype(int)
        labels = [self.classes[index] for index in predicted] if self.classes else predicted.tolist()
        return Predictions(labels, objective.predict_probabilities(*embeddings))

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write the model, its head and result.json to a folder that `from_pretrained` opens.

        folder: as in SentenceEncoder.save_pretrained; SentenceEncoder.from_pretrained opens it, too.
        """
        check_not_blank("folder", folder)
        with replacing_files(Path(folder), stale=MODEL_FILES) as new:
            self.model.save_pretrained(new)
            save_heads({self.task_name: self.objective}, new)
            write_result(new, self.result, self.model)


def transpose_texts(examples: Sequence[Any], count: int) -> list[list[str]]:
    """Return the columns of N examples of `count` texts each: a list of N texts for each column."""
    for number, example in enumerate(examples):
        if isinstance(example, str) or not isinstance(example, Sequence) or len(example) != count:
            raise InputError(f"example {number} is {short_repr(example)}: give {count} texts, as a tuple")
    return [check_sentences([example[column] for example in examples]) for column in range(count)]
