"""Truncated model fine-tuning: keep the first l layers of a checkpoint, tune them on sentence similarity.

    python train.py                                                     a small untrained ELECTRA, offline
    python train.py --ckpt google/electra-base-discriminator --layer 9  the paper's recipe on STS benchmark
    python train.py --ckpt google/electra-base-discriminator --layer all --seeds 5                  a sweep

One run loads the checkpoint, trains, keeps the epoch that is best on dev, and scores that one once on test.
It leaves a folder runs/<name>-layer<l>-seed<s> with the model, a model card and result.json. A sweep can be
stopped and started again: it keeps what is finished.
"""

import argparse
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path

import torch

from tmft.checkpoint import parameter_counts, read_config
from tmft.data import DATA_FOLDER, SPLITS, TASKS, Pairs, Task, find_task, read_pairs
from tmft.errors import InputError, run_command
from tmft.files import find, write_file
from tmft.metrics import scores
from tmft.pretraining_run import CONTINUED, FROM_SCRATCH, PRETRAINING
from tmft.pretraining_run import run as pretraining_run
from tmft.releases import RELEASES
from tmft.results import clock, environment, finished_run, open_run, percent, run_card, summary, write_result
from tmft.rows import POOLINGS
from tmft.sentence import SentenceEncoder
from tmft.training import PRECISIONS, Recipe, choose_device, choose_precision, fit

# What `python train.py` does: the paper's ablation with random weights (appendix E) in miniature. The
# recipe's learning rate is meant for weights that are good already; this one was chosen on dev.
FIRST_RUN = {
    "ckpt": str(DATA_FOLDER / "electra-tiny"),
    "init": "random",
    "task": "sample",
    "lr": 1e-4,
}


def parse_args(argv=None):
    show_defaults = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=show_defaults)
    p.add_argument("--ckpt", help="hub id[@revision] or folder; without it, the first run on what is shipped")
    p.add_argument(
        "--layer", help="9 keeps the first 9 layers; 0-12, 3,6,9 or all is a sweep; None keeps them all"
    )
    p.add_argument("--seeds", type=int, default=1, metavar="N", help="runs per layer, with seeds 0 to N-1")
    p.add_argument("--seed", type=int, help="one run with this seed")
    p.add_argument(
        "--init", choices=["pretrained", "random"], default="pretrained", help="random: shape only"
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
    p.add_argument("--epochs", type=int, default=recipe.epochs, help="passes over the training pairs")
    p.add_argument("--batch-size", type=int, default=recipe.batch_size, help="pairs per step")
    p.add_argument("--lr", type=float, default=recipe.lr, help="peak learning rate, after the warm-up")
    p.add_argument(
        "--weight-decay", type=float, default=recipe.weight_decay, help="of matrices, not of vectors"
    )
    p.add_argument("--warmup", type=float, default=recipe.warmup, help="share of all steps")
    p.add_argument(
        "--max-grad-norm", type=float, default=recipe.max_grad_norm, help="clip gradients at this norm"
    )
    p.add_argument(
        "--precision", choices=["auto", *PRECISIONS], default="auto", help="auto: bf16 on a GPU that has it"
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
    if args.task in PRETRAINING:
        return [pretraining_run(args, seed) for seed in parse_seeds(args)]
    recipe = Recipe(**{field.name: getattr(args, field.name) for field in fields(Recipe)})
    device = choose_device(args.device)
    layers = parse_layers(args.layer, read_config(find(args.ckpt, weights=False)))
    seeds = parse_seeds(args)
    task, data = load_data(args)

    results = [run(args, recipe, layer, seed, task, data, device) for layer in layers for seed in seeds]
    print(f"\n{summary(results)}")


def run(args, recipe: Recipe, layer: int, seed: int, task: Task, data: dict[str, Pairs], device) -> dict:
    """One fine-tuning run -> its result, from result.json if it was finished before."""
    data_name = Path(args.data or args.task).name
    name = args.name or f"{Path(args.ckpt.partition('@')[0]).name}-{data_name}"
    folder = args.runs / f"{name}-layer{layer}-seed{seed}"
    settings = {"ckpt": args.ckpt, "init": args.init, "layer": layer, "seed": seed, "pooling": args.pooling}
    settings |= {"max_length": args.max_length, "task": asdict(task)} | asdict(recipe)
    if finished := finished_run(folder, settings):
        print(f"{folder}: finished before, kept")
        return finished

    torch.manual_seed(seed)  # random weights, if asked for, and dropout
    start = time.perf_counter()
    model = SentenceEncoder.load(args.ckpt, layer, args.pooling, args.max_length, args.init).to(device)
    open_run(folder)
    precision = choose_precision(recipe.precision, device)
    print(f"\n{folder}: {len(data['train'])} training pairs, {precision} on {device}\n{model.report}")
    if model.why_not_saved:
        print(model.why_not_saved)

    epochs = []
    for epoch in fit(model, data["train"], data["dev"], task, recipe, seed, progress=sys.stderr.isatty()):
        epochs.append(epoch)
        left = clock((recipe.epochs - epoch.number) * (time.perf_counter() - start) / epoch.number)
        print(
            f"epoch {epoch.number:2}/{recipe.epochs} | loss {epoch.loss:.4f} | "
            f"dev spearman {percent(epoch.dev_spearman)} {'*' if epoch.best else ' '} | lr {epoch.lr:.1e} | "
            f"{epoch.pairs_per_second:.0f} pairs/s | {left} left",
            flush=True,
        )
        if epoch.best and not model.why_not_saved:
            model.save(folder)  # now, so that a run that is stopped leaves its best model so far

    test = scores(model.similarities(data["test"].sentence1, data["test"].sentence2), data["test"])
    chosen = max(epoch.number for epoch in epochs if epoch.best)
    dev = epochs[chosen - 1]
    result = {
        "settings": settings,
        "arguments": {
            key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()
        },
        "data": data_name,
        "pooling": model.pooling,
        "max_length": model.max_length,
        "epochs": [asdict(epoch) for epoch in epochs],
        "chosen_epoch": chosen,
        "dev": {"spearman": dev.dev_spearman, "pearson": dev.dev_pearson},
        "test": test,
        "parameters": parameter_counts(model.encoder.config, layer),
        "precision": precision,
        "seconds": time.perf_counter() - start,
        "environment": environment(device),
    }
    if not model.why_not_saved:
        write_file(
            folder / "README.md", run_card(model, result)
        )  # the best epoch's weights are there already
    write_result(folder, result)
    print(f"test spearman {percent(test['spearman'])} at epoch {chosen}, the best on dev; see {folder}")
    return result


def load_data(args) -> tuple[Task, dict[str, Pairs]]:
    """The task and its three splits; a data set that is absent and has a known release is fetched first."""
    task = find_task(args.task, args.data, args.data_root, args.score_range)
    absent = args.task in RELEASES and args.data is None and args.data_root is None
    if absent and not (DATA_FOLDER / args.task).is_dir():
        print(f"{DATA_FOLDER / args.task} is absent: fetching the official release")
        print(RELEASES[args.task]())
    return task, {split: read_pairs(task, split) for split in SPLITS}


def parse_layers(text: str | None, config) -> list[int]:
    """'9' -> [9]; '0-12', '3,6,9' and 'all' -> several; None -> the last."""
    if text is None:
        return [config.num_hidden_layers]
    if text == "all":
        return list(range(config.num_hidden_layers + 1))
    layers = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"--layer {text}: write 9, 0-12, 3,6,9 or all")
        layers += range(int(first), int(last or first) + 1)
    return [config.check_layer(layer) for layer in layers]


def parse_seeds(args) -> list[int]:
    if args.seeds < 1:
        raise InputError(f"--seeds {args.seeds}: choose 1 or more")
    return list(range(args.seeds)) if args.seed is None else [args.seed]


if __name__ == "__main__":
    run_command(main)
