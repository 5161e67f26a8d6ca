"""The options of evaluate.py, and checks of their combinations."""

from argparse import Namespace
from pathlib import Path

from tmft.cli.options import (
    add_embedding_options,
    add_model_options,
    add_task_options,
    add_training_free_options,
    has_similarity_scores,
)
from tmft.cli.parser import CommandLineParser
from tmft.errors import InputError
from tmft.io.atomic import check_output_folder, check_writable
from tmft.io.paths import DATA_FOLDER
from tmft.runs.result_json import RESULT_FILE
from tmft.tasks import Task
from tmft.training_free.training_free import TrainingFreeConfig


# fmt: off
def add_evaluate_options(p: CommandLineParser) -> None:
    add_model_options(p, "; all: score every hidden state", int8=True)
    p.add_argument("other", metavar="OTHER", nargs="?", help="a second model, directly after MODEL, to be "
                   "compared with it: its scores and speed with the same options, and each difference with "
                   "its 95 %% interval")
    add_task_options(p, "the tasks that the run was trained on, else stsb")
    add_embedding_options(p)
    add_training_free_options(p)
    group = p.add_argument_group("output")
    group.add_argument("--isotropy", action="store_true", help="also compute measures of the isotropy of "
                       "the embeddings")
    group.add_argument("--speed", action="store_true", help="also measure sentences per second, by length "
                       "and number of sentences at once")
    group.add_argument("--json", type=Path, metavar="FILE", help="write all scores, also those of "
                       "subsets, not x 100")
    group.add_argument("--cs224n-predictions", type=Path, metavar="FOLDER", help="write the predictions of "
                       "a run on the tasks of the course CS 224N, in the format of its leaderboard")
    group.add_argument("--save", type=Path, metavar="FOLDER", help="save the model that was scored")
# fmt: on


def check_evaluate_options(args: Namespace) -> None:
    """Raise InputError for options that have no meaning together, and outputs that cannot be written.

    An output must not replace an input, nor another run.
    """
    for name in ("isotropy", "speed", "cs224n_predictions", "save", "interpolate") if args.other else ():
        if getattr(args, name):
            option = "--" + name.replace("_", "-")
            raise InputError(f"{option} with two models: remove {option}, or name one model")
    if args.other and args.layer == "all":
        raise InputError("--layer all with two models: give the number of a layer, or name one model")
    if args.layer == "all" and args.interpolate:
        raise InputError("--layer all and --interpolate: give --layer the layer to interpolate, such as 1+12")
    if args.dtype == "int8" and args.save:
        raise InputError("--dtype int8 and --save: weights of 8 bits cannot be saved: remove --dtype")
    models = [args.model, args.other, *(args.interpolate or [])[:1]]
    inputs = [*models, args.data, args.data_root, args.static_from]
    check_writable(args.json, inputs=[*inputs, DATA_FOLDER])
    check_output_folder(args.cs224n_predictions)
    check_output_folder(args.save, inputs)
    if args.save and (args.save / RESULT_FILE).exists():
        raise InputError(f"--save {args.save}: it is the folder of a run: name another folder")


def check_tasks(args: Namespace, tasks: dict[str, Task], config: TrainingFreeConfig) -> None:
    """Raise InputError if --isotropy has no meaning for a task, or --save would write another model."""
    others = [name for name, task in tasks.items() if not has_similarity_scores(task)]
    if args.isotropy and others:
        raise InputError(f"--isotropy with {others[0]}: choose a task with similarity scores, such as stsb")
    if args.save and args.interpolate:
        raise InputError("--interpolate and --save: two models cannot be saved as one: remove --save")
    if args.save and args.layer == "all":
        raise InputError("--layer all and --save: give --layer the number of the layer to save")
    if args.save and len(tasks) > 1 and config.transductive:
        names = " and ".join(config.transductive)
        raise InputError(f"--save: {names} would be estimated for each task: give one task, or {names}=FILE")
    if args.save and "quantile" in config.postprocess:
        raise InputError(
            f"--postprocess {config.postprocess} cannot be saved with a model: choose zscore, which can"
        )
