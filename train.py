"""Truncated model fine-tuning: keep the first l layers of a checkpoint, tune them on sentence similarity.

    python train.py                                                     a small ELECTRA of ours, offline
    python train.py --ckpt google/electra-base-discriminator --layer 9  the paper's recipe on STS benchmark
    python train.py --ckpt google/electra-base-discriminator --layer all --seeds 5                  a sweep
    torchrun --nproc-per-node 4 train.py --ckpt google/electra-base-discriminator --layer all  shared by four

One run loads the checkpoint, trains, keeps the epoch that is best on dev, and scores that one once on test.
It leaves a folder runs/<name>-layer<l>-seed<s> with the model, a model card and result.json. A sweep can be
stopped at any point and started again: it keeps the runs that are finished.
"""

import sys
from functools import partial
from pathlib import Path

import torch

from tmft.cli.parser import CommandLine, default_command, given, run_command
from tmft.cli.train_options import (
    OBJECTIVE_CONFIGS,
    data_options,
    fine_tuning_options,
    pretraining_options,
    recipe_options,
)
from tmft.data import PACKAGE_DATA, Examples
from tmft.datasets.task_lookup import get_task, read_all_splits, subsample_train
from tmft.distributed import Processes, init_distributed
from tmft.training.model_options import apply_training_options
from tmft.errors import check_range
from tmft.formatting import epoch_line, percent
from tmft.pretraining.loop import PretrainingRecipe
from tmft.runs.bootstrap import save_predictions
from tmft.runs.layer_search import search_rounds
from tmft.runs.pretrain import PRETRAINING, pretrain
from tmft.runs.run_cards import run_header, card_data_from_result
from tmft.runs.run_config import FROM_SCRATCH_DEFAULTS, FineTuningConfig, PretrainingConfig, Run
from tmft.runs.run_folder import fine_tuning_result, load_finished_result, lock_run_folder, save_heads, write_result
from tmft.runs.sweep_plan import expand_grid, run_all
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.loop import Recipe, fit
from tmft.training.multitask import lessons_of, score_all

# What `python train.py` stands for: the method at every layer of a small discriminator that is shipped, see
# docs/twins.md. So narrow a model needs a higher learning rate than the recipe's; this one was chosen on dev.
TWIN = str(PACKAGE_DATA / "twins/mlm-then-rtd")
FIRST_RUN = ["--ckpt", TWIN, "--layer", "all", "--task", "sample", "--lr", "3e-4"]


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(argv)
    if not (args.ckpt or args.from_scratch or args.task in PRETRAINING):
        return main(default_command("train.py", FIRST_RUN, argv))
    seeds = list(range(args.seeds or 1)) if args.seed is None else [args.seed]
    processes = init_distributed(args.device)  # one, unless torchrun started several
    if args.task not in PRETRAINING:
        return sweep(args, seeds, processes)
    usual = FROM_SCRATCH_DEFAULTS if args.from_scratch else {}
    like = given(args, PretrainingConfig) | {
        "recipe": PretrainingRecipe(**usual | given(args, PretrainingRecipe))
    }
    planned = [PretrainingConfig(**like | {"ckpt": c, "seed": s}) for c in args.ckpt or [None] for s in seeds]
    pretrain(planned, args.name, args.runs, processes, vars(args))


def sweep(args, seeds: list[int], processes: Processes) -> None:
    """Fine-tune at every layer and seed that was asked for; often it is a single run."""
    settings = {name: value for kind in OBJECTIVE_CONFIGS for name, value in given(args, kind).items()}
    changes = args.score_range, args.objective, args.metric, settings
    task = get_task(args.task, args.data, args.data_root, *changes)
    recipe = Recipe(**task.recipe | given(args, Recipe))
    settings = {"ckpt": args.ckpt[0], "task": task, "recipe": recipe, "layer": None}
    like = FineTuningConfig(**given(args, FineTuningConfig) | settings)
    with processes.main_process_first():  # something may have to be fetched
        name = Path(args.data or args.task).name.replace(" ", "+").replace(":", "-")
        planned = partial(expand_grid, data=name, runs=args.runs, name=args.name)
        todo = search_rounds(args.ckpt, args.layer, seeds, like, planned, processes)
        runs, data = next(todo), read_all_splits(task)
    while runs:  # --layer auto has several rounds, others one
        run_all(runs, processes, lambda run, who: fine_tune(run, data, who, vars(args)))
        runs = next(todo, None)


def parse_args(argv: list[str]):
    p = CommandLine(__doc__, command="train")
    add_train_options(p)
    args = p.parse_args(argv)
    check_train_options(p, args)
    return args


if __name__ == "__main__":
    run_command(main)
