"""Truncated model fine-tuning: keep the first l layers of a checkpoint, tune them on sentence similarity.

    python train.py                                                     a small ELECTRA of ours, offline
    python train.py --ckpt google/electra-base-discriminator --layer 9  the paper's recipe on STS benchmark
    python train.py --ckpt google/electra-base-discriminator --layer all --seeds 5                  a sweep
    torchrun --nproc-per-node 4 train.py --ckpt google/electra-base-discriminator --layer all  shared by four

One run loads the checkpoint, trains, keeps the epoch that is best on dev, and scores that one once on test.
It leaves a folder runs/<name>-layer<l>-seed<s> with the model, a model card and result.json. A sweep can be
stopped at any point and started again: it keeps the runs that are finished.
"""

import argparse
import sys
import time
import traceback
from dataclasses import asdict, fields
from pathlib import Path

import torch

from tmft.checkpoint import parameter_counts
from tmft.data import DATA_FOLDER, SPLITS, TASKS, Pairs, Task, find_task, read_pairs
from tmft.datasets.releases import fetch_if_absent
from tmft.device import Processes, join_processes
from tmft.errors import InputError, run_command
from tmft.files.weights import one_line, write_file
from tmft.metrics import scores
from tmft.objectives import OBJECTIVES, save_head
from tmft.rows import POOLINGS
from tmft.runs.folder import (
    clock,
    environment,
    finished_run,
    lineage,
    open_run,
    percent,
    run_card,
    write_result,
)
from tmft.runs.plan import Run, plan, show
from tmft.runs.pretrain import CONTINUED, FROM_SCRATCH, PRETRAINING, pretrain
from tmft.sentence import SentenceEncoder
from tmft.training import PRECISIONS, Recipe, choose_precision, fit

# What `python train.py` does: the method at every layer of a small ELECTRA discriminator that is shipped, see
# docs/twins.md. So narrow a model needs a higher learning rate than the recipe's; this one was chosen on dev.
FIRST_RUN = {
    "ckpt": [str(DATA_FOLDER / "twins/discriminator")],
    "layer": "all",
    "task": "sample",
    "lr": 3e-4,
}


def parse_args(argv=None):
    show_defaults = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=show_defaults)
    p.add_argument(
        "--ckpt",
        nargs="+",
        help="hub id[@revision] or folder, or several; without it, the first run on what is shipped",
    )
    p.add_argument(
        "--layer", help="9 keeps the first 9 layers; 0-12, 3,6,9 or all is a sweep; None keeps them all"
    )
    p.add_argument("--seeds", type=int, default=1, metavar="N", help="runs per layer, with seeds 0 to N-1")
    p.add_argument("--seed", type=int, help="one run with this seed")
    p.add_argument(
        "--init", choices=["pretrained", "random"], default="pretrained", help="random: shape only"
    )
    p.add_argument(
        "--init-from",
        metavar="RUN",
        help="start from the weights of an earlier run of --ckpt, at the same layer; {layer} and {seed} "
        "stand for those of each run: runs/electra-wordsim-layer{layer}-seed0",
    )
    p.add_argument("--pooling", choices=POOLINGS, help="None: mean, or what a saved model used")
    p.add_argument("--max-length", type=int, metavar="TOKENS", help="None: the limit of the checkpoint")
    p.add_argument(
        "--task", default="stsb", help=f"row of TASKS in tmft/data.py: {', '.join(TASKS)}; or mlm, rtd"
    )
    p.add_argument(
        "--data", metavar="FOLDER", help="train.tsv, dev.tsv, test.tsv to use instead of the task's"
    )
    p.add_argument("--data-root", metavar="FOLDER", help="folder of task folders; None: data/")
    p.add_argument(
        "--score-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="None: that of the task"
    )
    recipe = Recipe()
    p.add_argument(
        "--epochs", type=int, help=f"passes over the training pairs; None: the task's, else {recipe.epochs}"
    )
    p.add_argument(
        "--batch-size", type=int, help=f"pairs per step; None: the task's, else {recipe.batch_size}"
    )
    p.add_argument("--lr", type=float, default=recipe.lr, help="peak learning rate, after the warm-up")
    p.add_argument(
        "--weight-decay", type=float, default=recipe.weight_decay, help="of matrices, not of vectors"
    )
    p.add_argument("--warmup", type=float, default=recipe.warmup, help="share of all steps")
    p.add_argument(
        "--max-grad-norm", type=float, default=recipe.max_grad_norm, help="clip gradients at this norm"
    )
    p.add_argument(
        "--precision", choices=["auto", *PRECISIONS], default="auto", help="auto: bf16 where the chip has it"
    )
    p.add_argument(
        "--device", default="auto", help="auto, cpu, cuda, cuda:1, ...; auto: a GPU if there is one"
    )
    g = p.add_argument_group("pre-training", "--task mlm, also under torchrun, and --task rtd")
    g.add_argument("--text", type=Path, nargs="+", metavar="FILE", help="a sentence per line; .txt, .gz, .xz")
    g.add_argument("--from-scratch", metavar="CONFIG", help="config.json, folder or hub id: random weights")
    g.add_argument("--vocab-size", type=int, help="train a vocabulary of N pieces on the text", metavar="N")
    g.add_argument("--generator-size", type=float, default=0.25, help="its width as a share; of --task rtd")
    g.add_argument("--steps", type=int, metavar="N", help="instead of --epochs")
    g.add_argument("--accumulate", type=int, metavar="N", help="batches per step")
    g.add_argument(
        "--save-every", type=int, metavar="STEPS", help="report, and save to resume; None: ten times in all"
    )
    g.add_argument("--half", action="store_true", help="save the weights in float16: half as large a file")
    p.add_argument("--name", help="name of the run folder; None: checkpoint and task")
    p.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="folder of run folders")
    args = p.parse_args(argv)
    if args.task in PRETRAINING:
        p.set_defaults(**(FROM_SCRATCH if args.from_scratch else CONTINUED))
        args = p.parse_args(argv)
    elif args.ckpt is None:
        p.set_defaults(**FIRST_RUN)
        args = p.parse_args(argv)
    return args


def main(argv=None):
    args = parse_args(argv)
    processes = join_processes(args.device)  # one, unless torchrun started several
    if args.task in PRETRAINING:
        pretrain(args, processes)
    else:
        sweep(args, processes)


def sweep(args, processes: Processes) -> None:
    """Fine-tune at every layer and seed that was asked for, and show the table; often it is a single run."""
    task = find_task(args.task, args.data, args.data_root, args.score_range)
    recipe = choose_recipe(args, task)
    with processes.first_one_first():
        data = load_data(args, task)  # which may have to be fetched
    runs = plan(args, recipe, task)
    for run in runs[processes.rank :: processes.count]:
        try:
            fine_tune(args, run, recipe, task, data, processes.device)
        except Exception as error:  # the others are still done, and this one is named at the end
            if len(runs) == 1:
                raise
            if not isinstance(error, InputError):
                traceback.print_exc()
            print(f"{run.folder}: died: {one_line(error)}", flush=True)
    processes.wait()
    if processes.rank == 0:
        show(runs)


def fine_tune(args, run: Run, recipe: Recipe, task: Task, data: dict[str, Pairs], device) -> None:
    """Load, train, keep the best epoch, score it once on test, write the run's folder; result.json last."""
    folder, layer, seed = run.folder, run.settings["layer"], run.settings["seed"]
    if finished_run(folder, run.settings):
        print(f"{folder}: finished before, kept")
        return

    torch.manual_seed(seed)  # random weights, if asked for, and dropout
    start = time.perf_counter()
    model = SentenceEncoder.load(run.weights, layer, args.pooling, args.max_length, args.init).to(device)
    objective = OBJECTIVES[task.objective](model.encoder.config.hidden_size, task)
    open_run(folder)
    precision = choose_precision(recipe.precision, device)
    print(f"\n{folder}: {len(data['train'])} training pairs, {precision} on {device}\n{model.report}")
    if run.history:
        print(f"weights from {lineage(run.history)}")
    if model.why_not_saved:
        print(model.why_not_saved)

    epochs = []
    progress = sys.stderr.isatty()
    for epoch in fit(model, objective, data["train"], data["dev"], task, recipe, seed, progress):
        epochs.append(epoch)
        score, mark = percent(epoch.dev[task.metric]), "*" if epoch.best else " "
        left = clock((recipe.epochs - epoch.number) * (time.perf_counter() - start) / epoch.number)
        print(
            f"epoch {epoch.number:2}/{recipe.epochs} | loss {epoch.loss:.4f} | "
            f"dev {task.metric} {score} {mark} | lr {epoch.lr:.1e} | "
            f"{epoch.pairs_per_second:.0f} pairs/s | {left} left",
            flush=True,
        )
        if epoch.best and not model.why_not_saved:
            model.save(folder)  # now, so that a run that is stopped leaves its best model so far
            save_head(objective, folder)

    chosen = max(epoch.number for epoch in epochs if epoch.best)
    dev = epochs[chosen - 1].dev
    predicted = objective.predict(*model.embed_pairs(data["test"].sentence1, data["test"].sentence2))
    test = scores(predicted, data["test"], task, dev.get("threshold"))
    result = {
        "sweep": run.sweep,
        "settings": run.settings,
        "arguments": {
            key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()
        },
        "data": Path(args.data or args.task).name,
        "history": run.history,
        "num_hidden_layers": run.num_hidden_layers,
        "pooling": model.pooling,
        "max_length": model.max_length,
        "epochs": [asdict(epoch) for epoch in epochs],
        "chosen_epoch": chosen,
        "dev": dev,
        "test": test,
        "parameters": parameter_counts(model.encoder.config, layer),
        "precision": precision,
        "seconds": time.perf_counter() - start,
        "environment": environment(device),
    }
    if not model.why_not_saved:
        write_file(folder / "README.md", run_card(model, result))  # beside the best epoch's weights
    write_result(folder, result)
    print(f"test {task.metric} {percent(test[task.metric])} at epoch {chosen}, the best on dev; see {folder}")


def choose_recipe(args, task: Task) -> Recipe:
    """What the command line says, else what the task says, else the paper's recipe for STS benchmark."""
    given = {field.name: getattr(args, field.name) for field in fields(Recipe)}
    return Recipe(**task.recipe | {name: value for name, value in given.items() if value is not None})


def load_data(args, task: Task) -> dict[str, Pairs]:
    """The three splits of a task; a data set that is absent and has a known address is fetched first."""
    if args.data is None:
        fetch_if_absent(args.task, args.data_root)
    return {split: read_pairs(task, split) for split in SPLITS}


if __name__ == "__main__":
    run_command(main)
