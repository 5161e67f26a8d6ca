"""What a fine-tuning run has trained: its model and its heads.

FineTunedRun reads a run folder; Predictor is a model with a head, which predicts classes or scores.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from tmft.checkpoints.hub import is_hub_id
from tmft.checkpoints.model_folder import MODEL_FILES, ModelFolder
from tmft.checkpoints.save import save_tensors
from tmft.checkpoints.weights import WeightFiles
from tmft.datasets.task_lookup import get_task, replace_files, validate_task
from tmft.errors import InputError, check_choice, check_not_blank, short_repr
from tmft.evaluation.evaluators import Evaluation, use_saved_similarity
from tmft.io.atomic import replacing_files, write_file
from tmft.io.files import is_file, reading
from tmft.loss import Objective
from tmft.losses.objectives import OBJECTIVES
from tmft.runs.result_json import REMEDY, RESULT_FILE, read_result
from tmft.runs.run_result import write_result
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import Task
from tmft.tokenizer import check_sentences

HEAD_FILE = "head.safetensors"
GIVEN_EXAMPLES = "data"  # name of the task of a run whose examples were given in Python, by `fine_tune`
TASK_FIELDS = ("columns", "classes", "min_score", "max_score", "label", "objective", "metric")


# ----------------------------------------------------------------------------------------- the run folder


def save_heads(objectives: dict[str, nn.Module], folder: Path) -> None:
    """Write the weights of the objectives, if they have any, to head.safetensors, as [TASK.]PARAMETER."""
    weights = {
        ".".join(filter(None, [task, name])): weight
        for task, objective in objectives.items()
        for name, weight in objective.state_dict().items()
    }
    if weights:
        write_file(folder / HEAD_FILE, partial(save_tensors, weights))


def load_objective(task: Task, width: int, folder: Path, task_name: str = "") -> Objective:
    """Return the objective of a task; if it has a head, with the head that the run in `folder` trained.

    task_name: the name of the task, if the run had several.
    Raises InputError if the file of the head is missing or damaged, or has other weights than this head.
    """
    objective = OBJECTIVES[task.objective](width, task).eval()
    prefix, path = f"{task_name}." if task_name else "", folder / HEAD_FILE
    if not objective.has_head:
        return objective
    if not is_file(path):
        raise InputError(
            f"{folder} has no {HEAD_FILE}, and {task.objective} needs a trained head: "
            "name a run of train.py on this task, at the layer that it trained"
        )
    with reading(path, "name a run on this task, at this layer"):
        file = WeightFiles(path, {})
        tensors = file.iter_tensors([name for name in file.names if name.startswith(prefix)], torch.float32)
        objective.load_state_dict({name.removeprefix(prefix): weight for name, weight in tensors})
    return objective


class FineTunedRun:
    """The fine-tuning run in the folder of a model. A model that no run has trained has no result, no tasks.

    result: the content of result.json, {} without one. task_settings: {name of a task: {field: value}}.
    """

    def __init__(self, model: str):
        if not is_hub_id(model) and not is_file(Path(model)):  # a file of word vectors
            ModelFolder.open(model)
        self.folder = Path(model)
        result = read_result(self.folder) if is_file(self.folder / RESULT_FILE) else {}
        self.result: dict[str, Any] = result if "test" in result else {}  # a pre-training run has no task
        self.arguments: dict[str, Any] = self.result.get("arguments", {})
        self.task_settings: dict[str, dict[str, Any]] = {}
        if self.result:
            task = self.result["settings"]["task"]
            name = str(self.arguments.get("task") or GIVEN_EXAMPLES).partition(":")[0]
            self.task_settings = task.get("subtasks") or {name: task}

    @property
    def has_given_examples(self) -> bool:
        """Whether the run was trained on examples that were given in Python, and so are in no file."""
        return [*self.task_settings] == [GIVEN_EXAMPLES]

    @property
    def scores_any_data(self) -> bool:
        """Whether any files are scored as the task of the run, because they have its columns and classes."""
        has_classes = [bool(settings["classes"]) for settings in self.task_settings.values()]
        return self.has_given_examples or has_classes == [True]

    def tasks(
        self,
        data: str | None = None,
        data_root: str | None = None,
        score_range: tuple[float, float] | None = None,
    ) -> dict[str, Task]:
        """Return {name: Task}, each with the objective, metric, hyperparameters and data of the run.

        data, data_root, score_range: replace those of the run; `data` is needed if it has none in files.
        """
        if self.has_given_examples:
            if data is None:
                raise InputError(
                    f"{self.folder} was trained on examples given in Python, which it does not keep: name a "
                    "folder with a test.tsv of such examples as `data`, or a `task`",
                    "data",
                    "task",
                )
            task = self.recorded_task(GIVEN_EXAMPLES)
            if not task.label:  # dev and test of anchors and positives are pairs with scores
                task = Task("", task.min_score, task.max_score, metric=task.metric)
            validate_task(task)
            return {GIVEN_EXAMPLES: replace_files(task, GIVEN_EXAMPLES, data, None, score_range)}
        tasks = {}
        with reading(self.folder / RESULT_FILE, REMEDY):
            data = data or self.arguments.get("data")
            data_root = data_root or self.arguments.get("data_root")
            score_range = score_range or self.arguments.get("score_range")
            for name, recorded in self.task_settings.items():
                settings = recorded["objective"], recorded["metric"], recorded.get("objective_args")
                tasks[name] = get_task(name, data, data_root, score_range, *settings)
        return tasks

    def recorded_task(self, task_name: str) -> Task:
        """Return a task with the columns, classes, scores, objective and metric of the run, without files."""
        settings = self.task_settings[task_name]
        recorded = {field: settings[field] for field in TASK_FIELDS}
        check_choice("objective", recorded["objective"], OBJECTIVES)
        return Task("", **recorded, objective_args=settings.get("objective_args") or {})

    def load_objective(self, task_name: str, task: Task, width: int) -> Objective:
        """Return the objective of a task for embeddings of this width, with the head that the run trained."""
        return load_objective(task, width, self.folder, task_name if len(self.task_settings) > 1 else "")

    def find_threshold(self, task_name: str) -> float | None:
        """Return the threshold on the cosine that the run chose for a task on dev; None if there is none."""
        if task_name not in self.task_settings:
            return None
        dev = self.result["dev"]
        threshold = (dev["tasks"][task_name] if len(self.task_settings) > 1 else dev).get("threshold")
        if threshold is not None and not math.isfinite(threshold):  # every pair would be in class 0
            raise InputError(f"{self.folder / RESULT_FILE} has no number as the threshold of dev: {REMEDY}")
        return threshold

    def add_trained_parts(
        self,
        evaluations: Mapping[str, Evaluation],
        model: SentenceEncoder,
        layer: str | None = None,
        is_training_free: bool = False,
    ) -> dict[str, Evaluation]:
        """Return the evaluations with the objectives and thresholds that predict from embeddings of a model.

        layer: what was chosen in place of the layer that the run trained; None if it is that one.
        is_training_free: whether the embeddings are changed without training, and a threshold chosen anew.
        """
        trained = {}
        for name, evaluation in evaluations.items():
            objective, task = None, evaluation.task
            if task.objective:
                objective = self.load_objective(name, task, model.dimensions)
                if objective.has_head and layer is not None:
                    head = f"the head of {task.objective} fits only the layer that it was trained on"
                    raise InputError(f"layer {layer}: {head}: remove `layer`", "layer")
                objective = use_saved_similarity(objective, model.similarity_fn_name)
            is_as_trained = layer is None and not is_training_free
            threshold = self.find_threshold(name) if is_as_trained else None
            trained[name] = replace(evaluation, objective=objective, threshold=threshold)
        return trained


# ------------------------------------------------------------------------------------------- predicting


class Predictions(NamedTuple):
    """What a Predictor predicts for N texts or pairs.

    labels: the name of the class of each, or its score. probabilities: of the classes, in the order of
    Predictor.classes, (N, C) float64; None for scores, and if a threshold on the cosine decides.
    """

    labels: list[Any]
    probabilities: np.ndarray | None


@dataclass(eq=False, repr=False)
class Predictor:
    """A fine-tuned model that predicts the classes or scores of texts, as it was trained to.

    model: the model. objective: the objective that it was trained with, which has the trained head.
    task: the task that it was trained on. threshold: on the cosine of a pair, from which on it is in class 1,
    for an objective without a head; None if there is none.
    result: the content of the result.json of the run, which `save_pretrained` writes. task_name: the name of
    the task in it, if the run had several tasks; else "".
    """

    model: SentenceEncoder
    objective: Objective
    task: Task
    threshold: float | None
    result: dict[str, Any]
    task_name: str = ""

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the probabilities; [] if scores are predicted."""
        return sorted(self.task.classes, key=lambda name: self.task.classes[name])

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
        sentences = check_sentences(texts) if count == 1 else join_columns(texts, count)
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


def join_columns(examples: Sequence[Any], count: int) -> list[str]:
    """Return the texts of N examples of `count` texts each, (count N): the first of all, then the second."""
    for number, example in enumerate(examples):
        if isinstance(example, str) or not isinstance(example, Sequence) or len(example) != count:
            raise InputError(f"example {number} is {short_repr(example)}: give {count} texts, as a tuple")
    return [example[column] for column in range(count) for example in examples]
