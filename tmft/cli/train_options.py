"""The options of train.py: the fields of the dataclasses that configure a run, and the command's own options.

A field is declared in its dataclass alone, with its help (options.py); here is the group in which --help
shows it. Hyperparameters of an objective, also of one that is added to OBJECTIVES, need no line here.
"""

import re
import tomllib
from argparse import SUPPRESS, Namespace, _ArgumentGroup
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from tmft.cli.options import add_data_folder_options, add_device_option, add_field_option
from tmft.cli.parser import CommandLineParser
from tmft.datasets.task_lookup import find_objective
from tmft.errors import MAX_SEEDS, InputError, check_range, short_repr
from tmft.io.files import check_regular_file, reading
from tmft.losses.objectives import OBJECTIVES
from tmft.metrics import METRICS
from tmft.pretraining.pretraining_loop import PretrainingRecipe
from tmft.runs.pretrain import PRETRAINING_TASKS
from tmft.runs.result_json import RESULT_FILE, read_result
from tmft.runs.run_config import (
    FROM_SCRATCH_DEFAULTS,
    FineTuningConfig,
    FineTuningRecipe,
    PretrainingConfig,
    parse_keep_layers,
)
from tmft.runs.run_folder import Digests
from tmft.tasks import TASKS

FINE_TUNING = (FineTuningConfig, FineTuningRecipe)
PRETRAINING = (PretrainingConfig, PretrainingRecipe)
# Options of the command that only fine-tuning has: they choose the data and the loss.
TASK_OPTIONS = {"data", "data_root", "score_range", "objective", "selection_metric"}
# Title of a group -> the fields that its options set.
GROUPS = {
    "changes of the model": "init keep_layers init_from token_weights projection quantization",
    "memory and speed": "mini_batch_size freeze_layers cuda_graphs",
    "several tasks": "task_sampling loss_weights gradient_surgery",
    "one model for several layers and dimensions": "all_layers matryoshka_dims",
    "optimization": "epochs batch_size lr",
    "more of optimization": "precision weight_decay warmup_ratio max_grad_norm optimizer lr_schedule",
    f"pre-training (--task {', '.join(PRETRAINING_TASKS)})": "from_scratch vocab_size generator_size steps "
    "gradient_accumulation_steps save_steps save_fp16",
}
BASIC_GROUPS = {"optimization"}  # --help describes their options, and only names those of the others
# Field -> how its option is written, where that does not follow from its type: arguments of add_argument.
SYNTAX: dict[str, dict[str, Any]] = {
    "text": {"metavar": "FILE"},
    "max_length": {
        "metavar": "TOKENS",
        "default_text": "{}, for pre-training at most 512; with --from-scratch "
        f"{FROM_SCRATCH_DEFAULTS['max_length']}",
    },
    "keep_layers": {"type": parse_keep_layers, "nargs": None, "metavar": "I,J,..."},
    "init_from": {"metavar": "RUN"},
    "freeze_layers": {"nargs": "?", "const": -1},
    "teacher": {"metavar": "MODEL"},
    "second_teacher": {"metavar": "MODEL"},
    "from_scratch": {"metavar": "CONFIG"},
    "rescale_to_labels": {"other_flags": ["--rescale-scores"]},
    "save_fp16": {"default": False},
}
NOT_IN_A_FILE = {"config", "help", "help_all"}  # options of the command line alone
OPTION_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
# The tasks whose objective learns from a teacher; the first one is the default if there is a --teacher.
TEACHER_TASKS = [name for name, task in TASKS.items() if find_objective(task).needs_teacher]
# Name of a task -> what --help adds in brackets, where the name alone does not say what is trained.
TASK_NOTES = {
    "sample": "comes with tmft",
    "nli": "triplets with a contradiction",
} | PRETRAINING_TASKS


def add_train_options(p: CommandLineParser) -> None:
    """Add all options of train.py."""
    add_main_options(p)
    for title, names in (objective_groups() | GROUPS).items():
        add_fields(p.add_argument_group(title, advanced=title not in BASIC_GROUPS), names)
    add_output_options(p)
    p.exclude("seed", "num_seeds")
    p.exclude("epochs", "steps")


def objective_groups() -> dict[str, str]:
    """Return {title of a group: hyperparameters}, as in GROUPS, of those that the same objectives have."""
    groups: dict[str, str] = {}
    for name, owners in objective_fields().items():
        if name not in field_names(*FINE_TUNING, *PRETRAINING):
            title = f"objective {', '.join(owners)}"
            groups[title] = f"{groups.get(title, '')} {name}"
    return groups


def add_fields(group: _ArgumentGroup, names: str) -> None:
    """Add the options of fields, from whichever dataclass has the field."""
    set_by_tasks = {name for task in TASKS.values() for name in task.recipe | task.objective_args}
    for name in names.split():
        config_classes = [*FINE_TUNING, *PRETRAINING, *objective_fields().get(name, {}).values()]
        owner = next(one for one in config_classes if name in field_names(one))
        default = "set by the task, else {}" if name in set_by_tasks else "{}"
        if name in FROM_SCRATCH_DEFAULTS:
            default += f"; with --from-scratch {FROM_SCRATCH_DEFAULTS[name]}"
        for objective, config_class in objective_fields().get(name, {}).items():
            if (other := getattr(config_class, name, None)) != getattr(owner, name, None):
                default += f"; with --objective {objective} {other}"
        add_field_option(group, owner, name, **{"default_text": default} | SYNTAX.get(name, {}))


def field_names(*config_classes: Any) -> list[str]:
    """Return the names of the fields of dataclasses."""
    return [field.name for config_class in config_classes for field in fields(config_class)]


def objective_fields() -> dict[str, dict[str, Any]]:
    """Return {field: {objective: its config_class}} for the hyperparameters of all objectives."""
    owners: dict[str, dict[str, Any]] = {}
    for objective_name, objective in OBJECTIVES.items():
        for name in field_names(objective.config_class) if objective.config_class else []:
            owners.setdefault(name, {})[objective_name] = objective.config_class
    return owners


def objective_args(args: Namespace) -> dict[str, Any]:
    """Return {field: value} for the hyperparameters of objectives whose option was given."""
    return {name: value for name in objective_fields() if (value := getattr(args, name)) is not None}


def check_train_options(p: CommandLineParser, args: Namespace) -> None:
    """Set args.task to one string, by default "stsb", or one that learns from the teacher if there is one.

    Raises InputError for options that exclude each other, or that have no effect with the task.
    """
    args.task = " ".join(args.task or [TEACHER_TASKS[0] if args.teacher else "stsb"])
    fine_tuning = TASK_OPTIONS.union(field_names(*FINE_TUNING), objective_fields())
    pretraining = set(field_names(*PRETRAINING))
    unused = fine_tuning - pretraining if args.task in PRETRAINING_TASKS else pretraining - fine_tuning
    p.reject_unused(args, unused, f"--task {args.task}")
    if args.data and not args.ckpt:  # without any option, train.py takes a model for demonstration
        raise InputError(
            f"data {args.data}: name the checkpoint to train with `ckpt`, such as "
            "google/electra-base-discriminator, or data/tiny, which comes with tmft",
            "data",
            "ckpt",
        )
    check_range("num_seeds", 1 if args.num_seeds is None else args.num_seeds, 1, MAX_SEEDS)


def describe_trainable_tasks() -> str:
    """Return the names of the tasks that have training data, with notes, by the kind of their labels."""
    trainable = {name: task for name, task in TASKS.items() if task.objective and "{split}" in task.files}
    scores = [name for name, task in trainable.items() if task.label and not task.classes]
    classes = [name for name, task in trainable.items() if task.classes]
    unlabeled = [name for name, task in trainable.items() if not task.label]
    text_tasks = [*TEACHER_TASKS, *PRETRAINING_TASKS]

    def join(names: list[str]) -> str:
        return ", ".join(f"{name} ({TASK_NOTES[name]})" if name in TASK_NOTES else name for name in names)

    return (
        f"Pairs with similarity scores: {join(scores)}; classes: {join(classes)}; pairs without labels: "
        f"{join(unlabeled)}; the lines of --text: {join(text_tasks)}"
    )


def describe_objectives() -> str:
    """Return the names of the objectives: those without a trained head, then those with one."""
    names: dict[str, list[str]] = {"cosine": [], "class": [], "score": [], "embedding": []}
    for name, objective in OBJECTIVES.items():
        names[objective.prediction_type].append(name)
    return (
        f"{', '.join(names['cosine'] + names['embedding'])}; with a trained head that predicts a class: "
        f"{', '.join(names['class'])}; or a score: {', '.join(names['score'])}"
    )


# fmt: off
def add_main_options(p: CommandLineParser) -> None:
    group = p.add_argument_group("main options")
    group.add_argument("--ckpt", "--model", nargs="+", metavar="MODEL", help="checkpoint, as a folder or "
                       "hub id[@revision]; each of several is trained in runs of its own; default: a small "
                       "ELECTRA that comes with tmft, and with it --layer all --task sample --lr 3e-4, "
                       "whose own defaults apply only with --ckpt")
    group.add_argument("--task", nargs="+", metavar="TASK[:OBJECTIVE]", help="data set to train and score "
                       f"on; it sets loss, metric and recipe. {describe_trainable_tasks()}. "
                       "Tasks without labels and "
                       "distillation are scored on stsb. Several tasks, separated by spaces, train one model "
                       "together. OBJECTIVE: another loss, see --objective; default: stsb, or distillation "
                       "with --teacher")
    add_fields(group, "text")
    group.add_argument("--num-seeds", type=int, metavar="N", help="do a run with each of the seeds 0 to "
                       "N-1, in place of --seed; default: 1")
    add_fields(group, "seed max_length")
    add_device_option(group)
    group = p.add_argument_group("model")
    group.add_argument("--layer", metavar="L", help="keep the first L layers, such as 9; 0 keeps only the "
                       "embeddings. 0-12, 3,6,9 or all (0 to the last) are sweeps: each number is a separate "
                       "run (one model for all layers: --all-layers; other than the first layers: "
                       "--keep-layers); default: the whole model, in one run")
    add_fields(group, "pooling")
    group = p.add_argument_group("data")
    add_data_folder_options(p, group, "train.tsv, dev.tsv and test.tsv")
    add_fields(group, "train_fraction dev_fraction")
    group = p.add_argument_group("loss and selection of the epoch", advanced=True)
    group.add_argument("--objective", metavar="NAME", help=f"loss. {describe_objectives()}. For several "
                       "tasks, write TASK:OBJECTIVE instead; default: set by the task")
    group.add_argument("--selection-metric", metavar="NAME", help="keep the epoch in which this metric is "
                       f"highest on dev: {', '.join(METRICS)}. For several tasks it is the mean of their "
                       "scores; default: set by the task")


def add_output_options(p: CommandLineParser) -> None:
    group = p.add_argument_group("output")
    group.add_argument("--output-dir", type=Path, default=Path("runs"), metavar="FOLDER",
                       help="folder that gets a folder for each run; default: runs")
    group.add_argument("--run-name", metavar="NAME", help="first part of the names of these folders; not "
                       "with several checkpoints; default: checkpoint and task")
    group.add_argument("--config", type=Path, metavar="FILE", default=SUPPRESS, help="take the options from "
                       "FILE: the result.json of a run, which is repeated, or the folder that has it; or a "
                       "TOML file with lines such as lr = 3e-4; options on the command line take precedence")
# fmt: on


# ---------------------------------------------------------------------------------------- --config


def expand_config(parser: CommandLineParser, argv: list[str]) -> tuple[list[str], Digests]:
    """Return argv with the options of FILE in place of --config FILE, before all others.

    The digests are those of the data and weights of the run whose result.json FILE is; {} for a TOML file.
    Of an option that is given twice the last value counts, so options on the command line take precedence.
    Options of the file that exclude one of those are left out.
    """
    typed = vars(parser.parse_args(argv))
    if "config" not in typed:
        return argv, {}
    path = typed["config"]
    options, digests = read_options(path)
    for pair in parser.exclusive:
        for name, other in (pair, pair[::-1]):
            if typed[name] is not None:
                options.pop(other, None)
    words = [word for name, value in options.items() for word in option_words(name, value)]
    try:
        parser.parse_args(words)
    except InputError as error:
        raise InputError(f"{path}: {error.as_cli_message()}") from None
    pairs = pairwise(["", *argv])  # each word, and the one before it
    words += [word for before, word in pairs if "--config" not in (before, word, word.partition("=")[0])]
    return words, digests


def read_options(path: Path) -> tuple[dict[str, object], Digests]:
    """Return the options in a TOML file, or those that repeat a run, by name; and the digests of the run."""
    digests: Digests = {}
    if path.is_dir():  # the folder of a run
        path = path / RESULT_FILE
    if path.name == RESULT_FILE:
        run = read_result(path.parent)
        if "output_dir" not in run["arguments"]:
            raise InputError(f"{path} is not from a run of train.py: write its options to a TOML file")
        options, digests = options_of_run(run), run.get("digests", {})
    else:
        check_regular_file(path)  # to open a pipe would wait for its other end
        with reading(path, f"name a TOML file, or the {RESULT_FILE} of a run"):
            content = tomllib.loads(path.read_text(encoding="utf-8"))
            options = {name.replace("-", "_"): value for name, value in content.items()}
            if len(options) < len(content) or not options:
                raise ValueError("it has an option twice" if options else "it has no options")
        if not NOT_IN_A_FILE.isdisjoint(options):
            raise InputError(f"{path} has {min(NOT_IN_A_FILE & options.keys())}: remove it")
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        are_plain = all(isinstance(value, str | int | float | None) for value in values)
        if not (OPTION_NAME.fullmatch(name) and are_plain) or any(str(v).startswith("--") for v in values):
            raise InputError(
                f"{path} has {name} = {short_repr(value)}: give the name of an option, and a number, a text, "
                "true, false or a list of these"
            )
    return options, digests


def options_of_run(run: dict[str, Any]) -> dict[str, object]:
    """Return the options that repeat a run, by name; of a sweep, the one layer and seed of this run."""
    arguments, settings = run["arguments"], run["settings"]
    chooses_layer = "layer" in settings and not settings.get("keep_layers") and "text_tokens" not in run
    own = {"ckpt": settings.get("ckpt") or None, "seed": settings["seed"], "num_seeds": None}
    return arguments | own | {"layer": str(settings["layer"]) if chooses_layer else None}


def option_words(attribute: str, value: object) -> list[str]:
    """Return the command-line arguments that set the option of an attribute such as "batch_size"."""
    option = f"--{attribute.replace('_', '-')}"
    if value is None or (value is False and attribute == "save_fp16"):  # off unless named
        return []
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    if attribute == "task" and isinstance(value, str):  # several are recorded with spaces between them
        return [option, *value.split()]
    if attribute == "keep_layers" and isinstance(value, list):  # one word
        return [option, ",".join(map(str, value))]
    if isinstance(value, list):
        return [option, *map(str, value)]
    return [option, str(value)]
