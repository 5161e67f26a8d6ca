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
    SETTINGS,
    data_options,
    fine_tuning_options,
    pretraining_options,
    recipe_options,
)
from tmft.data import SHIPPED, Examples
from tmft.datasets.task_lookup import get_task, read_all, with_share
from tmft.distributed import Processes, init_distributed
from tmft.embedding.saved import prepare
from tmft.errors import check_range
from tmft.formatting import epoch_line, percent
from tmft.pretraining.loop import PretrainingRecipe
from tmft.runs.bootstrap import save_predictions
from tmft.runs.layer_search import stages
from tmft.runs.pretrain import PRETRAINING, pretrain
from tmft.runs.run_cards import opening, told_by
from tmft.runs.run_config import FROM_SCRATCH, FineTuningConfig, PretrainingConfig, Run
from tmft.runs.run_folder import fine_tuning_result, finished_run, lock_run_folder, save_heads, write_result
from tmft.runs.sweep_plan import plan, run_all
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.loop import Recipe, fit
from tmft.training.multitask import lessons_of, score_all

# What `python train.py` stands for: the method at every layer of a small discriminator that is shipped, see
# docs/twins.md. So narrow a model needs a higher learning rate than the recipe's; this one was chosen on dev.
TWIN = str(SHIPPED / "twins/mlm-then-rtd")
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
    usual = FROM_SCRATCH if args.from_scratch else {}
    like = given(args, PretrainingConfig) | {
        "recipe": PretrainingRecipe(**usual | given(args, PretrainingRecipe))
    }
    planned = [PretrainingConfig(**like | {"ckpt": c, "seed": s}) for c in args.ckpt or [None] for s in seeds]
    pretrain(planned, args.name, args.runs, processes, vars(args))


def sweep(args, seeds: list[int], processes: Processes) -> None:
    """Fine-tune at every layer and seed that was asked for; often it is a single run."""
    settings = {name: value for kind in SETTINGS for name, value in given(args, kind).items()}
    changes = args.score_range, args.objective, args.metric, settings
    task = get_task(args.task, args.data, args.data_root, *changes)
    recipe = Recipe(**task.recipe | given(args, Recipe))
    settings = {"ckpt": args.ckpt[0], "task": task, "recipe": recipe, "layer": None}
    like = FineTuningConfig(**given(args, FineTuningConfig) | settings)
    with processes.main_process_first():  # something may have to be fetched
        name = Path(args.data or args.task).name.replace(" ", "+").replace(":", "-")
        planned = partial(plan, data=name, runs=args.runs, name=args.name)
        todo = stages(args.ckpt, args.layer, seeds, like, planned, processes)
        runs, data = next(todo), read_all(task)
    while runs:  # --layer auto has several rounds, others one
        run_all(runs, processes, lambda run, who: fine_tune(run, data, who, vars(args)))
        runs = next(todo, None)


def fine_tune(run: Run, data: dict[str, dict[str, Examples]], processes: Processes, arguments: dict) -> None:
    """Load, train, keep the best epoch, score it once on test, write the run's folder; result.json last."""
    what, folder, task, recipe = run.what, run.folder, run.what.task, run.what.recipe
    if finished_run(folder, what.settings):
        print(f"{folder}: finished before, kept")
        return

    torch.manual_seed(what.seed)  # random weights, if asked for, and dropout
    model = SentenceEncoder.from_pretrained(run.weights, what.depth, what.pooling, what.max_length, what.init)
    model.to(processes.device).source = what.init_from or what.ckpt
    sentences = [sentence for splits in data.values() for sentence in splits["train"].sentences]
    prepare(model, what.tokens, sentences, what.projection, what.keep)
    data = with_share(data, what.share, what.seed)
    lessons = lessons_of(task, model.dimensions, data, what.weights)
    with lock_run_folder(folder, what.settings, processes) as state:  # of an earlier start, which goes on
        print(opening(run, model, {name: len(splits["train"]) for name, splits in data.items()}))
        epochs = []
        for epoch in fit(model, lessons, recipe, what.seed, processes, state):
            epochs.append(epoch)
            print(epoch_line(epochs, task.metric, recipe.epochs), flush=True)
            if epoch.best:
                chosen = epoch
                model.save_pretrained(
                    folder
                )  # now, so that a run that is stopped leaves its best model so far
                save_heads(lessons, folder)

        test = score_all(model, lessons, "test", chosen.dev)
        save_predictions(lessons, folder)
        result = fine_tuning_result(run, model, epochs, test, arguments)
        write_result(folder, result, model.model_card(told_by(result)))  # beside the best epoch's weights
    print(f"test {task.metric} {percent(test[task.metric])} at epoch {chosen.number}, best on dev: {folder}")


# fmt: off
def parse_args(argv: list[str]):
    p = CommandLine(__doc__)
    _, option = p.group("what to train")
    option("--ckpt", nargs="+", help="hub id[@revision] or folder, or several; without it, the first run")
    data_options(option)
    option("--seeds", type=int, metavar="N", help="a run for each seed from 0 to N-1; default: 1")
    option("--seed", type=int, help="one run with this seed")
    fine, option = p.group("fine-tuning")
    fine_tuning_options(option)
    pre, option = p.group("pre-training")
    pretraining_options(option)
    _, option = p.group("recipe")
    recipe_options(option)
    _, option = p.group("where")
    option("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...; auto: a GPU if there is one")
    option("--name", help="of the run folder; default: checkpoint and task")
    option("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="folder of run folders")
    args = p.parse_args(argv)
    args.task = " ".join(args.task or ["distill" if args.teacher else "stsb"])
    p.refuse(args, fine if args.task in PRETRAINING else pre, f"--task {args.task}")
    for one, other in (("seed", "seeds"), ("epochs", "steps"), ("data", "data_root")):
        p.one_of(args, one, other)
    check_range("seeds", 1 if args.seeds is None else args.seeds, 1)
    return args
# fmt: on


if __name__ == "__main__":
    run_command(main)
