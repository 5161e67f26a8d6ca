"""Truncated model fine-tuning: keep the first l layers of a checkpoint and fine-tune them on sentence similarity.

    python train.py                                                     a small ELECTRA of ours, offline
    python train.py --ckpt google/electra-base-discriminator --layer 9  the paper's recipe on STS benchmark
    python train.py --ckpt google/electra-base-discriminator --layer all --num-seeds 5              a sweep
    torchrun --nproc-per-node 4 train.py --ckpt google/electra-base-discriminator --layer all       on 4 GPUs

A run loads the checkpoint, trains, keeps the epoch that is best on dev, and scores that one once on test. It
writes a folder runs/<name>-layer<l>-seed<s> with the model, a model card and result.json. A sweep can be
stopped at any time: the same command resumes it and keeps the runs that are finished.

Reading the code: main -> fine_tune_all -> tmft/runs/fine_tune.py -> tmft/training/loop.py, the training loop.
"""

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

from tmft.cli.parser import CommandLine, default_command, fields_from_args, run_command
from tmft.cli.train_options import OBJECTIVE_CONFIGS, add_train_options, check_train_options
from tmft.datasets.task_lookup import get_task, read_all_splits
from tmft.distributed import Processes, init_distributed
from tmft.io.paths import PACKAGE_DATA
from tmft.pretraining.loop import PretrainingRecipe
from tmft.runs.fine_tune import fine_tune
from tmft.runs.layer_search import search_rounds
from tmft.runs.pretrain import PRETRAINING, pretrain
from tmft.runs.run_config import (
    FROM_SCRATCH_DEFAULTS,
    FineTuningConfig,
    FineTuningRecipe,
    PretrainingConfig,
)
from tmft.runs.sweep_plan import expand_grid, run_all

# What `python train.py` runs: the method at every layer of a small discriminator that comes with the project,
# see docs/twins.md. So narrow a model needs a higher learning rate than the paper's; it was chosen on dev.
SMALL_ELECTRA = str(PACKAGE_DATA / "twins/mlm-then-rtd")
FIRST_RUN = ["--ckpt", SMALL_ELECTRA, "--layer", "all", "--task", "sample", "--lr", "3e-4"]


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(argv)
    if not (args.ckpt or args.from_scratch or args.task in PRETRAINING):
        return main(default_command("train.py", FIRST_RUN, argv))
    seeds = list(range(args.num_seeds or 1)) if args.seed is None else [args.seed]
    processes = init_distributed(args.device)  # one process, unless torchrun started several
    (pretrain_all if args.task in PRETRAINING else fine_tune_all)(args, seeds, processes)


def fine_tune_all(args: Namespace, seeds: list[int], processes: Processes) -> None:
    """Fine-tune each checkpoint at each layer with each seed; often that is a single run."""
    objective_args = {k: v for config in OBJECTIVE_CONFIGS for k, v in fields_from_args(args, config).items()}
    changes = args.score_range, args.objective, args.selection_metric, objective_args
    task = get_task(args.task, args.data, args.data_root, *changes)
    recipe = FineTuningRecipe(**task.recipe | fields_from_args(args, FineTuningRecipe))
    fields = {"ckpt": args.ckpt[0], "task": task, "recipe": recipe, "layer": None}
    base_config = FineTuningConfig(**fields_from_args(args, FineTuningConfig) | fields)

    with processes.main_process_first():  # the first process downloads what is absent
        data_name = Path(args.data or args.task).name.replace(" ", "+").replace(":", "-")
        make_runs = partial(expand_grid, data=data_name, output_dir=args.output_dir, run_name=args.run_name)
        rounds = search_rounds(args.ckpt, args.layer, seeds, base_config, make_runs, processes)
        runs, data = next(rounds), read_all_splits(task)
    while runs:  # one round, or with --layer auto three
        run_all(runs, processes, lambda run, processes: fine_tune(run, data, processes, vars(args)))
        runs = next(rounds, None)


def pretrain_all(args: Namespace, seeds: list[int], processes: Processes) -> None:
    """Pre-train each checkpoint, or an architecture from scratch, with each seed."""
    defaults = FROM_SCRATCH_DEFAULTS if args.from_scratch else {}
    fields = fields_from_args(args, PretrainingConfig)
    fields["recipe"] = PretrainingRecipe(**defaults | fields_from_args(args, PretrainingRecipe))
    ckpts = args.ckpt or [None]
    configs = [PretrainingConfig(**fields | {"ckpt": ckpt, "seed": seed}) for ckpt in ckpts for seed in seeds]
    pretrain(configs, args.run_name, args.output_dir, processes, vars(args))


def parse_args(argv: list[str]):
    p = CommandLine(__doc__, command="train")
    groups = add_train_options(p)
    args = p.parse_args(argv)
    check_train_options(p, args, *groups)
    return args


if __name__ == "__main__":
    run_command(main)
