"""The options of train.py: the fields of the dataclasses that configure a run, and the command's own options.

A field is declared in its dataclass alone, with its help (options.py); here is the group in which --help
shows it. Hyperparameters of an objective, also of one that is added to OBJECTIVES, need no line here.
"""

from argparse import SUPPRESS, Namespace, _ArgumentGroup
from dataclasses import fields
from pathlib import Path
from typing import Any

from tmft.cli.options import add_data_folder_options, add_device_option, add_field_option
from tmft.cli.parser import CommandLineParser
from tmft.datasets.task_lookup import find_objective
from tmft.errors import MAX_SEEDS, InputError, check_range
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
# Field -> how its option is written, where that does not follow from its type: arguments of add_argument.
SYNTAX: dict[str, dict[str, Any]] = {
    "text": {"metavar": "FILE"},
    "max_length": {
        "metavar": "TOKENS",
        "default_text": "{}, for pre-training at most 512; with --from-scratch "
        f"{FROM_SCRATCH_DEFAULTS['max_length']}",
    },
    "keep_layers": {"type": parse_keep_layers, "nargs": None, "metavar": "I,J,..."},
    "freeze_layers": {"nargs": "?", "const": -1},
    "rescale_to_labels": {"other_flags": ["--rescale-scores"]},
}
# The tasks whose objective learns from a teacher; the first one is the default if there is a --teacher.
TEACHER_TASKS = [name for name, task in TASKS.items() if find_objective(task).needs_teacher]


def add_train_options(p: CommandLineParser) -> None:
    """Add all options of train.py."""
    add_main_options(p)
    for title, names in (objective_groups() | GROUPS).items():
        add_fields(p.add_argument_group(title, advanced=title != "optimization"), names)
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


# fmt: off
def add_main_options(p: CommandLineParser) -> None:
    trainable = [name for name, task in TASKS.items() if task.objective and "{split}" in task.files]
    group = p.add_argument_group("main options")
    group.add_argument("--ckpt", "--model", nargs="+", metavar="MODEL", help="checkpoint, as a folder or "
                       "hub id[@revision]; each of several is trained in runs of its own; default: a small "
                       "ELECTRA that comes with tmft, and with it --layer all --task sample --lr 3e-4, "
                       "whose own defaults apply only with --ckpt")
    group.add_argument("--task", nargs="+", metavar="TASK[:OBJECTIVE]", help="data set to train and score "
                       f"on; it sets loss, metric and recipe: {', '.join(trainable)}; or, for the lines "
                       f"of --text: {', '.join([*TEACHER_TASKS, *PRETRAINING_TASKS])}. Tasks without labels "
                       "and distillation are scored on stsb. Several tasks, separated by spaces, train one "
                       "model together. OBJECTIVE: another loss, see --objective; default: stsb, or "
                       "distillation with --teacher")
    add_fields(group, "text")
    group.add_argument("--num-seeds", type=int, metavar="N", help="do a run with each of the seeds 0 to "
                       "N-1, in place of --seed; default: 1")
    add_fields(group, "seed max_length")
    add_device_option(group)
    group = p.add_argument_group("model")
    group.add_argument("--layer", metavar="L", help="keep the first L layers, such as 9; 0 keeps only the "
                       "embeddings. 0-12, 3,6,9 or all (0 to the last) are sweeps: each number is a separate "
                       "run (one model for all layers: --all-layers; other than the first layers: "
                       "--keep-layers). auto: short runs with the first seed, which cost an eighth of a "
                       "sweep, find the number that is best on dev, of those within 0.5 points of it the "
                       "smallest; then a full run with each seed; default: the whole model, in one run")
    add_fields(group, "pooling")
    group = p.add_argument_group("data")
    add_data_folder_options(p, group, "train.tsv, dev.tsv and test.tsv")
    add_fields(group, "train_fraction dev_fraction")
    group = p.add_argument_group("loss and selection of the epoch", advanced=True)
    group.add_argument("--objective", metavar="NAME", help=f"loss: {', '.join(OBJECTIVES)}. For several "
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
    group.add_argument("--config", type=Path, metavar="RUN", default=SUPPRESS, help="repeat a run, given as "
                       "its folder, with the options of its result.json; options on the command line take "
                       "precedence")
# fmt: on


def parse_train_args(p: CommandLineParser, argv: list[str]) -> tuple[Namespace, Digests]:
    """Return the parsed arguments, and the digests of the files that the run of --config has read, else {}.

    The options of that run are defaults, except for those that exclude one on the command line; of a sweep,
    the layer and the seed are those of the run.
    """
    args, digests = p.parse_args(argv), {}
    if "config" in args:
        run = read_result(args.config.parent if args.config.name == RESULT_FILE else args.config)
        digests, arguments, settings = run.get("digests", {}), run["arguments"], run["settings"]
        options = {name: value for name, value in arguments.items() if value is not None}
        unknown = options.keys() - {action.dest for action in p._actions} - {"config"}
        if unknown or "output_dir" not in options:
            problem = f"its options are not those of this train.py ({', '.join(sorted(unknown))})"
            raise InputError(f"{args.config} cannot be repeated: {problem}")
        options |= {"task": options["task"].split(), "seed": settings["seed"]}
        options["ckpt"] = settings.get("ckpt") and [settings["ckpt"]]
        if "layer" in settings and not settings.get("keep_layers") and "text_tokens" not in run:
            options["layer"] = str(settings["layer"])
        for first, second in p.exclusive:
            for name, other in ((first, second), (second, first)):
                if getattr(args, name) is not None:
                    options.pop(other, None)
        options.pop("num_seeds", None)
        for action in p._actions:  # argparse converts defaults that are texts, but no lists of them
            if isinstance(value := options.get(action.dest), list):
                convert = action.type if callable(action.type) else str
                joined = ",".join(map(str, value))  # --keep-layers 0,2,5
                options[action.dest] = [convert(one) for one in value] if action.nargs else joined
        p.set_defaults(**options)
        args = p.parse_args(argv)
        del args.config
    check_train_options(p, args)
    return args, digests
