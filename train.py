"""Fine-tune the first L layers of a transformer checkpoint as a sentence encoder.

    # without any option: short for --ckpt data/twins/mlm-then-rtd --layer all --task sample --lr 3e-4,
    # a small ELECTRA that comes with tmft, at every layer, without network access
    python train.py
    # the first 9 layers on the STS benchmark, with the recipe of the TMFT paper
    python train.py --ckpt google/electra-base-discriminator --layer 9
    # a sweep: every number of layers, with 5 seeds each; torchrun divides the runs among 4 GPUs
    torchrun --nproc-per-node 4 train.py --ckpt google/electra-base-discriminator --layer all --num-seeds 5
    # your own train.tsv, dev.tsv and test.tsv, with the columns sentence1, sentence2 and score
    python train.py --ckpt google/electra-base-discriminator --layer 9 --data FOLDER --score-range 0 5
    # two tasks that train one model
    python train.py --ckpt google/electra-base-discriminator --layer 9 --task stsb sicke
    # repeat a finished run, here with another seed
    python train.py --config runs/electra-base-discriminator-stsb-layer9-seed0/result.json --seed 1
    # distillation: learn the embeddings that a teacher gives to the lines of a text
    python train.py --ckpt google-bert/bert-base-uncased --layer 6 --teacher MODEL --text FILE
    # pre-training: continue masked language modeling on a text
    python train.py --ckpt google-bert/bert-base-uncased --task mlm --text FILE

The method (TMFT, Rep et al. 2024): keep the embeddings and the first L layers;
the embedding of a sentence is the mean of the last kept layer's output over its
tokens; train until the cosine of two sentences is their similarity score. A run
trains the model, keeps the weights of the epoch with the best score on dev, and
scores the model of that epoch once on test. It writes the model, a model card
and result.json to OUTPUT_DIR/RUN_NAME-layer<L>-seed<S>. A sweep is a set of runs
that differ only in layer and seed. Repeat a command that was interrupted to
resume it; finished runs are skipped. If a folder holds a run with other values
of options that change the result, that is an error; nothing is overwritten.
Pre-training has no dev set: it saves the last weights.
"""

# Where to start reading: the method is fit() in tmft/loop.py, the training loop. On the way there,
# main() calls fine_tune_all(), which calls train_run() in tmft/runs/train_run.py for each run.

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

from tmft.cli.options import command_device, fields_from_args
from tmft.cli.parser import CommandLineParser, default_command, run_command
from tmft.cli.train_options import add_train_options, check_train_options, objective_args, parse_train_args
from tmft.datasets.task_lookup import get_task, read_all_splits
from tmft.io.distributed import Processes, init_distributed
from tmft.io.files import PACKAGE_DATA
from tmft.pretraining.pretraining_loop import PretrainingRecipe
from tmft.runs.layer_search import plan_runs
from tmft.runs.pretrain import PRETRAINING_TASKS, do_pretraining_runs
from tmft.runs.run_config import (
    FROM_SCRATCH_DEFAULTS,
    FineTuningConfig,
    FineTuningRecipe,
    PretrainingConfig,
)
from tmft.runs.run_folder import Digests, check_same_on_all_processes, data_digests, first_change
from tmft.runs.sweep_plan import expand_grid, run_all
from tmft.runs.train_run import train_run

# What `python train.py` runs: the method at every layer of a small ELECTRA that comes with the project, see
# docs/results.md. A model of only 128 dimensions needs a higher learning rate than the paper's 2e-5; 3e-4
# was chosen on dev.
SMALL_ELECTRA = str(PACKAGE_DATA / "twins/mlm-then-rtd")
FIRST_RUN = ["--ckpt", SMALL_ELECTRA, "--layer", "all", "--task", "sample", "--lr", "3e-4"]


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    args, digests = parse_train_args(train_parser(), argv)
    if not (args.ckpt or args.from_scratch or args.task in PRETRAINING_TASKS):
        return main(default_command("train.py", FIRST_RUN, argv))
    seeds = list(range(args.num_seeds or 1)) if args.seed is None else [args.seed]
    processes = init_distributed(command_device(args.device))  # one process, unless torchrun started several
    if args.task in PRETRAINING_TASKS:
        pretrain_all(args, seeds, processes)
    else:
        fine_tune_all(args, seeds, processes, digests)


def fine_tune_all(args: Namespace, seeds: list[int], processes: Processes, digests: Digests) -> None:
    """Fine-tune each checkpoint at each layer with each seed; with most commands that is a single run.

    args: the command line. seeds: one or several. processes: those that torchrun started, or one. digests: of
    what the run that is repeated by --config has read; {} if there is none.
    """
    task_overrides = args.score_range, args.objective, args.selection_metric, objective_args(args)
    task = get_task(args.task, args.data, args.data_root, *task_overrides)
    recipe = FineTuningRecipe(**task.recipe | fields_from_args(args, FineTuningRecipe))
    fields = {"ckpt": args.ckpt[0], "task": task, "recipe": recipe, "layer": None}
    base_config = FineTuningConfig(**fields_from_args(args, FineTuningConfig) | fields)

    with processes.main_process_first():  # the first process downloads what is absent
        data_name = Path(args.data or args.task).name.replace(" ", "+").replace(":", "-")
        make_runs = partial(expand_grid, data=data_name, output_dir=args.output_dir, run_name=args.run_name)
        rounds = plan_runs(args.ckpt, args.layer, seeds, base_config, make_runs, processes.rank == 0)
        runs, data = next(rounds), read_all_splits(task, args.dev_fraction)
    check_same_on_all_processes({"data": data_digests(data)}, processes)
    now = {"data": data_digests(data), "checkpoint": runs[0].checkpoint_digests}
    if processes.rank == 0 and digests and (change := first_change(digests, now)):
        print(f"note: other files are read than by the run that --config names: {change}")
    while runs:  # once, or with --layer auto twice
        run_all(runs, processes, lambda run: train_run(run, data, processes.device, vars(args)))
        runs = next(rounds, [])


def pretrain_all(args: Namespace, seeds: list[int], processes: Processes) -> None:
    """Pre-train each checkpoint, or an architecture from scratch, with each seed.

    args: the command line. seeds: one or several. processes: those that torchrun started, or one.
    """
    defaults = FROM_SCRATCH_DEFAULTS if args.from_scratch else {}
    fields = fields_from_args(args, PretrainingConfig)
    fields["recipe"] = PretrainingRecipe(**defaults | fields_from_args(args, PretrainingRecipe))
    ckpts = args.ckpt or [None]
    configs = [PretrainingConfig(**fields | {"ckpt": ckpt, "seed": seed}) for ckpt in ckpts for seed in seeds]
    do_pretraining_runs(configs, args.run_name, args.output_dir, processes, vars(args))


def train_parser() -> CommandLineParser:
    p = CommandLineParser(__doc__)
    add_train_options(p)
    return p


def parse_args(argv: list[str]) -> Namespace:
    p = train_parser()
    args = p.parse_args(argv)
    check_train_options(p, args)
    return args


if __name__ == "__main__":
    run_command(main)
