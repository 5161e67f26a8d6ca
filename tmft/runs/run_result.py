"""The result of a fine-tuning run: its trained heads, result.json, its scores by name, and its model card.

FineTunedRun reads from a folder what such a run has trained.
"""

import json
import math
import os
import platform
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tmft.callbacks import EpochResult
from tmft.checkpoints.hub import is_hub_id
from tmft.checkpoints.model_card import ModelCardData, display_name, sentence_model_card
from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.save import save_tensors
from tmft.checkpoints.weights import WeightFiles
from tmft.datasets.task_lookup import get_task, replace_files, validate_task
from tmft.device import choose_precision
from tmft.errors import InputError, check_choice, sanitize, short_repr
from tmft.evaluation.evaluators import Evaluation, use_saved_similarity
from tmft.io.atomic import write_file
from tmft.io.files import is_file, reading
from tmft.io.formatting import MAX_NAME_LENGTH, NON_SCORE_KEYS, escape_markdown, percent, to_json
from tmft.loss import Objective
from tmft.losses.objectives import OBJECTIVES
from tmft.metrics import is_computed_on_text
from tmft.models.families import parameter_counts
from tmft.runs.result_json import FORMAT, REMEDY, RESULT_FILE, read_result
from tmft.runs.run_config import Run
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import Task

MAX_PROVENANCE_LENGTH = 1000  # characters of the origin of the weights in a card
HEAD_FILE = "head.safetensors"
GIVEN_EXAMPLES = "data"  # name of the task of a run whose examples were given in Python, by `fine_tune`
TASK_FIELDS = ("columns", "classes", "min_score", "max_score", "label", "objective", "metric")
PACKAGES = ("torch", "safetensors", "tokenizers", "huggingface-hub", "numpy", "scipy")


def save_heads(objectives: dict[str, nn.Module], folder: Path) -> None:
    """Write the weights of the objectives, if they have any, to head.safetensors, as [TASK.]PARAMETER."""
    weights = {
        ".".join(filter(None, [task, name])): weight
        for task, objective in objectives.items()
        for name, weight in objective.state_dict().items()
    }
    if weights:
        write_file(folder / HEAD_FILE, partial(save_tensors, weights))


def load_objective(
    task: Task, width: int, folder: Path, task_name: str = "", other_tasks: Collection[str] = ()
) -> Objective:
    """Return the objective of a task; if it has a head, with the head that the run in `folder` trained.

    task_name, other_tasks: the names of all tasks of the run, if there are several.
    Raises InputError if the file of the head is missing or damaged, or has other weights than this head.
    """
    objective = OBJECTIVES[task.objective](width, task).eval()
    prefix, path = f"{task_name}." if task_name else "", folder / HEAD_FILE
    parameters = {prefix + name: weight for name, weight in objective.named_parameters()}
    if not parameters:
        return objective
    if not is_file(path):
        raise InputError(
            f"{folder} has no {HEAD_FILE}, and {task.objective} needs a trained head: "
            "name a run of train.py on this task, at the layer that it trained"
        )
    file = WeightFiles(path, {})
    names = [name for name in file.names if name.partition(".")[0] not in other_tasks]
    weights = dict(file.iter_tensors(names, torch.float32))
    shapes, expected = ({n: tuple(w.shape) for n, w in named.items()} for named in (weights, parameters))
    if wrong := [name for name in expected | shapes if expected.get(name) != shapes.get(name)]:
        form = f"{wrong[0]} of shape {shapes.get(wrong[0])} instead of {expected.get(wrong[0])}"
        raise InputError(f"{path} has {form}: name a run on this task, at this layer")
    for name, parameter in parameters.items():
        parameter.data.copy_(weights[name])
    return objective


class FineTunedRun:
    """The fine-tuning run in the folder of a model. A model that no run has trained has no result, no tasks.

    Raises InputError if `model` is a path and no folder of a model, before anything else is read for it.
    result: the content of result.json, {} without one.
    task_settings: {name of a task: {field of Task: value}}.
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
            name = (self.arguments.get("task") or GIVEN_EXAMPLES).partition(":")[0]
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

        data, data_root, score_range: replace those of the run.
        Raises InputError for a run with examples that were given in Python, unless data names files of such
        examples.
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
        with reading(self.folder / RESULT_FILE, REMEDY):
            settings = self.task_settings[task_name]
            task = Task(
                "",
                **{field: settings[field] for field in TASK_FIELDS},
                objective_args=settings.get("objective_args") or {},
            )
            check_choice("objective", task.objective, OBJECTIVES)
            if sorted(task.classes.values()) != [*range(len(task.classes))]:
                raise ValueError(f"the classes are {short_repr(dict(task.classes))}")
            return task

    def load_objective(self, task_name: str, task: Task, width: int) -> Objective:
        """Return the objective of a task for embeddings of this width, with the head that the run trained."""
        others = {*self.task_settings} - {task_name}
        return load_objective(task, width, self.folder, task_name if others else "", others)

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

        model: that of this run. layer: what was chosen in place of the layer that the run trained; None if it
        is that one. is_training_free: whether the embeddings are changed without training; a threshold is
        then chosen anew.
        Raises InputError if an objective has a head that the run did not train, or trained on another layer.
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


def fine_tuning_result(
    run: Run,
    model: SentenceEncoder,
    epochs: list[EpochResult],
    test: dict[str, Any],
    arguments: dict[str, Any],
    digests: dict[str, dict[str, str]],
) -> dict[str, Any]:
    """Return the content of result.json for a fine-tuning run; docs/commands.md has its keys."""
    if not any(run.folder.rglob("*.safetensors")):
        raise InputError(f"{run.folder} was removed or emptied during the run: start the run again")
    chosen = max(epoch.epoch for epoch in epochs if epoch.is_best)
    return {
        "sweep": run.sweep,
        "settings": to_json_types(run.config.to_flat_dict()),
        "digests": digests,
        "arguments": to_json_types(arguments),
        "data": run.data,
        "provenance": run.provenance,
        "num_hidden_layers": run.num_hidden_layers,
        "pooling": model.pooling,
        "max_length": model.max_length,
        "epochs": [asdict(epoch) for epoch in epochs],
        "chosen_epoch": chosen,
        "dev": epochs[chosen - 1].dev,
        "test": test,
        "parameters": parameter_counts(model.encoder.config, run.config.layer),
        "precision": choose_precision(run.config.recipe.precision, model.device),
        "seconds": sum(epoch.seconds for epoch in epochs),
        "environment": describe_environment(model.device),
    }


def write_result(folder: Path, result: dict[str, Any], model: SentenceEncoder | None = None) -> None:
    """Write result.json, which marks the run as finished. model: its card, README.md, is written before."""
    if model is not None:
        card_data = card_data_from_result(result)
        card = sentence_model_card(model, card_data)
        write_file(folder / "README.md", card)
    write_file(folder / RESULT_FILE, to_json({"format": FORMAT} | result))


def read_provenance(checkpoint: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return data, settings and scores of the runs that trained the weights in a folder, oldest first."""
    folder = Path(checkpoint)
    if not is_file(folder / RESULT_FILE):
        return []
    result = read_result(folder)
    last_run = {key: result[key] for key in ("data", "settings")}
    last_run |= {split: result.get(split) for split in ("dev", "test")}  # a pre-training run has neither
    return [*result.get("provenance", []), last_run]


def format_provenance(provenance: list[dict[str, Any]]) -> str:
    """Describe the origin of weights: "google/electra-base-discriminator, then wordsim (seed 0)"."""
    checkpoint = provenance[0]["settings"]["ckpt"]
    names = [sanitize(run["data"], MAX_NAME_LENGTH) for run in provenance]
    steps = [f"{name} (seed {run['settings']['seed']})" for name, run in zip(names, provenance, strict=True)]
    if checkpoint is None:
        return ", then ".join([steps[0].replace(" (", " from scratch ("), *steps[1:]])
    return ", then ".join([sanitize(checkpoint, MAX_NAME_LENGTH), *steps])


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return what scores may depend on beyond the settings: commit, versions, device and threads."""
    git = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(git, capture_output=True, encoding="utf-8", check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "commit": commit,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
    }


def to_json_types(values: dict[str, Any]) -> dict[str, Any]:
    """Return a dict as it would be after writing and reading JSON: tuples become lists, paths strings."""
    return json.loads(json.dumps(values, default=str))


def list_score_names(scores: dict[str, Any]) -> list[str]:
    """Return the names of the scores of a split: "spearman" or, with several tasks, "TASK spearman"."""
    names = [name for name in scores if name not in NON_SCORE_KEYS]
    for task, task_scores in scores.get("tasks", {}).items():
        names += [f"{task} {name}" for name in task_scores if name not in NON_SCORE_KEYS]
    return names


def find_score(scores: dict[str, Any], score_name: str) -> float | None:
    """Return the score with this name, one of `list_score_names(scores)`; None if it is undefined."""
    task, _, metric = score_name.rpartition(" ")
    tasks = scores.get("tasks", {})
    return tasks[task][metric] if task in tasks else scores[score_name]


def card_data_from_result(result: dict[str, Any], curve: str = "") -> ModelCardData:
    """Return the part of a model card that describes a run. curve: the Markdown of `layer_curve`."""
    runs = [*result["provenance"], result]
    task, scored_data = result["settings"]["task"], result["data"]
    if task.get("eval_files") and not is_computed_on_text(task["metric"]):
        scored_data = Path(task["eval_files"]).parent.name  # such as stsb/{split}.tsv
    defined = tuple(
        (scored_data, split, name, score)
        for split in ("dev", "test")
        for name in list_score_names(result["test"])
        if (score := get_score(result[split], name)) is not None and not math.isnan(score)
    )
    is_random = runs[0]["settings"].get("init") == "random"
    checkpoints = filter(None, (run["settings"]["ckpt"] for run in runs))  # pre-training may have had none
    task_options = task.get("objective_args") or {}
    return ModelCardData(
        fine_tuning_to_markdown(result) + curve,
        "" if is_random else next(checkpoints, ""),
        defined,
        teachers=find_teachers(task_options),
        kept_layers=kept_layers(result),
        full_depth=None if result["provenance"] else result.get("num_hidden_layers"),
    )


def find_teachers(task_options: dict[str, Any]) -> tuple[str, ...]:
    """Return the models whose embeddings a task learns, by its options; () for most tasks."""
    names = (task_options.get(option) for option in ("teacher", "second_teacher"))
    return tuple(name for name in names if name)


def kept_layers(result: dict[str, Any]) -> tuple[int, ...] | None:
    """Return which layers of the first checkpoint are left after all runs; None: the first ones."""
    kept: tuple[int, ...] | None = None
    for run in (*result["provenance"], result):
        indices = run["settings"].get("keep_layers")
        if indices and (kept is None or max(indices) < len(kept)):
            kept = tuple(index if kept is None else kept[index] for index in indices)
        elif kept is not None:
            kept = kept[: run["settings"].get("layer")]
    return kept


def get_score(scores: dict[str, Any], score_name: str) -> float | None:
    """Return the score with this name, one of those of `list_score_names`; None if the split has none."""
    return find_score(scores, score_name) if score_name in list_score_names(scores) else None


def fine_tuning_to_markdown(result: dict[str, Any]) -> str:
    """Return Markdown about a fine-tuning run: its training, its scores and the number of parameters."""
    settings, dev, test = result["settings"], result["dev"], result["test"]
    provenance = result["provenance"]
    if provenance:
        initial_weights = f"the weights of {format_provenance(provenance)}"
    else:
        initial_weights = f"{settings['init']} weights"
    initial_weights = escape_markdown(initial_weights, MAX_PROVENANCE_LENGTH)
    names = list_score_names(dev)
    data, objective = escape_markdown(result["data"]), escape_markdown(settings["task"]["objective"])

    def cells(scores: dict[str, Any]) -> str:
        return " | ".join(percent(find_score(scores, name)) for name in names)

    note = ""
    if "threshold" in dev:
        note = f"\nA pair is classified as 1 if its cosine is at least {dev['threshold']:.4f}."
    trained = f"Fine-tuned on {data}"
    task_options = settings["task"].get("objective_args") or {}
    if teachers := find_teachers(task_options):
        lines = escape_markdown(", ".join(Path(name).name for name in task_options["text"]))
        embeddings = escape_markdown(" and ".join(map(display_name, teachers)))
        trained = f"Trained to give the lines of {lines} the embeddings of {embeddings}"
    return f"""
{trained}, starting from {initial_weights}: objective {objective},
{settings["epochs"]} epochs of batches of {settings["batch_size"]} examples, learning rate {settings["lr"]:g},
seed {settings["seed"]}, {escape_markdown(result["precision"])}.

| split | {" | ".join(f"{escape_markdown(name)} x 100" for name in names)} |
|---|{"---|" * len(names)}
| dev, at the best epoch, {result["chosen_epoch"]} | {cells(dev)} |
| test, scored once, {test["pairs"]} pairs | {cells(test)} |
{note}{sub_embeddings_table(dev, test)}
{result["parameters"]["stored"]:,} parameters. All settings: result.json.
"""


def sub_embeddings_table(dev: dict[str, Any], test: dict[str, Any]) -> str:
    """Return a Markdown table of the scores of trained layers and truncated dimensions; "" without any."""
    rows = []
    for task, dev_scores in [("", dev), *dev.get("tasks", {}).items()]:
        test_scores = test["tasks"][task] if task else test
        for name, score in dev_scores.get("sub_embeddings", {}).items():
            label = escape_markdown(f"{task} {name}".strip())
            rows.append(f"| {label} | {percent(score)} | {percent(test_scores['sub_embeddings'][name])} |")
    return "\n| truncated to | dev | test |\n|---|---:|---:|\n" + "\n".join(rows) + "\n" if rows else ""
