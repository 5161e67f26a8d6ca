"""Truncated model fine-tuning: keep the first l layers of a checkpoint, tune them on sentence similarity.

    python train.py                                                     a small ELECTRA of ours, offline
    python train.py --ckpt google/electra-base-discriminator --layer 9  the paper's recipe on STS benchmark
    python train.py --ckpt google/electra-base-discriminator --layer all --seeds 5                  a sweep
    torchrun --nproc-per-node 4 train.py --ckpt google/electra-base-discriminator --layer all  shared by four

One run loads the checkpoint, trains, keeps the epoch that is best on dev, and scores that one once on test.
It leaves a folder runs/<name>-layer<l>-seed<s> with the model, a model card and result.json. A sweep can be
stopped at any point and started again: it keeps the runs that are finished.
"""

import shlex
import sys
import time
import traceback
from dataclasses import fields
from pathlib import Path

import torch

from tmft.data import DATA_FOLDER, SPLITS, TASKS, Examples
from tmft.datasets.find import find_task, read_split
from tmft.device import PRECISIONS, Processes, choose_precision, join_processes
from tmft.errors import CommandLine, InputError, run_command
from tmft.files.folder import reason, write_file
from tmft.metrics import METRICS, score_split
from tmft.objectives import OBJECTIVES
from tmft.pooling import POOLINGS
from tmft.pretraining.loop import PretrainingRecipe
from tmft.runs.cards import fine_tuning_results
from tmft.runs.folder import fine_tuning_result, finished_run, lineage, open_run, save_head, write_result
from tmft.runs.plan import FineTuning, Run, plan
from tmft.runs.pretrain import FROM_SCRATCH, PRETRAINING, Pretraining, pretrain
from tmft.runs.sweeps import summaries
from tmft.runs.tables import clock, percent
from tmft.sentence import SentenceEncoder
from tmft.training import Recipe, fit

# What `python train.py` stands for: the method at every layer of a small ELECTRA discriminator that is shipped,
# docs/twins.md. So narrow a model needs a higher learning rate than the recipe's; this one was chosen on dev.
TWIN = str(DATA_FOLDER / "twins/discriminator")
FIRST_RUN = ["--ckpt", TWIN, "--layer", "all", "--task", "sample", "--lr", "3e-4"]


def parse_args(argv: list[str]):
    p, recipe, more = CommandLine(__doc__), Recipe(), PretrainingRecipe()
    g = p.add_argument_group("what to train")
    g.add_argument(
        "--ckpt", nargs="+", help="hub id[@revision] or folder, or several; without it, the first run"
    )
    g.add_argument(
        "--task", default="stsb", help=f"{', '.join(TASKS)}, or to pre-train {', '.join(PRETRAINING)}"
    )
    g.add_argument(
        "--max-length",
        type=int,
        metavar="TOKENS",
        help="default: what the checkpoint can take; 128 to pre-train",
    )
    g.add_argument("--seeds", type=int, metavar="N", help="a run for each seed from 0 to N-1; default: 1")
    g.add_argument("--seed", type=int, help="one run with this seed")
    fine = p.add_argument_group("fine-tuning")
    fine.add_argument(
        "--layer", help="9 keeps the first 9; 0-12, 3,6,9 or all is a sweep; default: all are kept"
    )
    fine.add_argument(
        "--init", choices=["pretrained", "random"], help="random: shape only; default: pretrained"
    )
    fine.add_argument("--init-from", metavar="RUN", help="weights of an earlier run of --ckpt at the same layer; {layer} and "
                      "{seed} stand for those of each run: runs/electra-wordsim-layer{layer}-seed0")  # fmt: skip
    fine.add_argument(
        "--pooling",
        help=f"{', '.join(POOLINGS)}, or several as in max+mean; default: what was saved, else mean",
    )
    fine.add_argument("--objective", help=f"{', '.join(OBJECTIVES)}; default: the task's")
    fine.add_argument("--metric", help=f"which chooses the epoch: {', '.join(METRICS)}; default: the task's")
    fine.add_argument("--data", metavar="FOLDER", help="train.tsv, dev.tsv, test.tsv in place of the task's")
    fine.add_argument("--data-root", metavar="FOLDER", help="folder of task folders; default: data/")
    fine.add_argument(
        "--score-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="default: the task's"
    )
    pre = p.add_argument_group("pre-training, --task mlm or rtd")
    pre.add_argument(
        "--text", type=Path, nargs="+", metavar="FILE", help="a sentence per line; .txt, .gz, .xz"
    )
    pre.add_argument("--from-scratch", metavar="CONFIG", help="config.json, folder or hub id: random weights")
    pre.add_argument(
        "--vocab-size", type=int, metavar="N", help="make a vocabulary of N pieces from the text"
    )
    pre.add_argument("--generator-size", type=float, help="its width as a share, for rtd; default: 0.25")
    pre.add_argument("--steps", type=int, metavar="N", help="instead of --epochs")
    pre.add_argument("--accumulate", type=int, metavar="N", help=f"batches per step; default: {more.accumulate}, "
                     f"from scratch {FROM_SCRATCH['accumulate']}")  # fmt: skip
    pre.add_argument(
        "--save-every", type=int, metavar="STEPS", help="report, and save to resume; default: 10 times in all"
    )
    pre.add_argument(
        "--half", action="store_true", default=None, help="save in float16: half as large a file"
    )
    g = p.add_argument_group("recipe")
    g.add_argument("--epochs", type=int, help=f"default: the task's, else {recipe.epochs}")
    g.add_argument("--batch-size", type=int, help=f"examples per batch; default: the task's, else {recipe.batch_size}; "
                   f"from scratch {FROM_SCRATCH['batch_size']}")  # fmt: skip
    g.add_argument(
        "--lr",
        type=float,
        help=f"peak learning rate, after the warm-up; default: {recipe.lr:g}, from scratch {FROM_SCRATCH['lr']:g}",
    )
    g.add_argument(
        "--weight-decay", type=float, help=f"of matrices, not of vectors; default: {recipe.weight_decay}"
    )
    g.add_argument("--warmup", type=float, help=f"share of all steps; default: {recipe.warmup}")
    g.add_argument(
        "--max-grad-norm", type=float, help=f"clip gradients at this norm; default: {recipe.max_grad_norm}"
    )
    g.add_argument(
        "--precision",
        choices=["auto", *PRECISIONS],
        help="default: auto, which is bf16 where the chip has it",
    )
    g = p.add_argument_group("where")
    g.add_argument(
        "--device", default="auto", help="auto, cpu, cuda, cuda:1, ...; auto: a GPU if there is one"
    )
    g.add_argument("--name", help="of the run folder; default: checkpoint and task")
    g.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="folder of run folders")
    args = p.parse_args(argv)
    p.refuse(args, fine if args.task in PRETRAINING else pre, f"--task {args.task}")
    if args.seed is not None and args.seeds is not None:
        raise InputError("--seed and --seeds: give one of the two")
    return args


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(argv)
    if not (args.ckpt or args.from_scratch or args.task in PRETRAINING):
        print(f"python train.py {shlex.join([*FIRST_RUN, *argv])}")
        return main([*FIRST_RUN, *argv])
    if args.seeds is not None and args.seeds < 1:
        raise InputError(f"--seeds {args.seeds}: choose 1 or more")
    seeds = range(args.seeds or 1) if args.seed is None else [args.seed]
    processes = join_processes(args.device)  # one, unless torchrun started several
    if args.task not in PRETRAINING:
        return sweep(args, seeds, processes)
    for ckpt in args.ckpt or [None]:
        for seed in seeds:
            recipe = PretrainingRecipe(
                **(FROM_SCRATCH if args.from_scratch else {}) | given(args, PretrainingRecipe)
            )
            what = Pretraining(**given(args, Pretraining) | {"ckpt": ckpt, "seed": seed, "recipe": recipe})
            pretrain(what, args.name or what.name, args.runs, processes, vars(args))


def given(args, kind: type) -> dict:
    """The fields of a dataclass that the command line names."""
    named = {field.name: getattr(args, field.name, None) for field in fields(kind)}
    return {name: value for name, value in named.items() if value is not None}


def sweep(args, seeds, processes: Processes) -> None:
    """Fine-tune at every layer and seed that was asked for, and show the table; often it is a single run."""
    task = find_task(args.task, args.data, args.data_root, args.score_range, args.objective, args.metric)
    recipe = Recipe(**task.recipe | given(args, Recipe))
    like = FineTuning(
        **given(args, FineTuning) | {"ckpt": args.ckpt[0], "task": task, "recipe": recipe, "layer": None}
    )
    with processes.first_one_first():  # something may have to be fetched
        data = {split: read_split(task, split) for split in SPLITS}
        data_name = Path(args.data or args.task).name
        runs = plan(args.ckpt, args.layer, seeds, like, data_name, args.runs, args.name)
    for run in runs[processes.rank :: processes.world_size]:
        try:
            fine_tune(run, data, processes.device, vars(args))
        except Exception as error:  # the others are still done, and this one is named at the end
            if len(runs) == 1:
                raise
            if not isinstance(error, InputError):
                traceback.print_exc()
            print(f"{run.folder}: died: {reason(error)}", flush=True)
    processes.barrier()
    if processes.rank == 0:
        print(*summaries([run.folder for run in runs]), sep="\n")
        if died := [run.folder.name for run in runs if not finished_run(run.folder, run.what.settings)]:
            raise InputError(
                f"{len(died)} of {len(runs)} runs died ({', '.join(died)}): the reasons are above; the same "
                "command runs them again and keeps the others"
            )


def fine_tune(run: Run, data: dict[str, Examples], device: torch.device, arguments: dict) -> None:
    """Load, train, keep the best epoch, score it once on test, write the run's folder; result.json last."""
    what, folder, task, recipe = run.what, run.folder, run.what.task, run.what.recipe
    if finished_run(folder, what.settings):
        print(f"{folder}: finished before, kept")
        return

    torch.manual_seed(what.seed)  # random weights, if asked for, and dropout
    start = time.perf_counter()
    model = SentenceEncoder.load(run.weights, what.layer, what.pooling, what.max_length, what.init).to(device)
    model.source = what.init_from or what.ckpt
    objective = OBJECTIVES[task.objective](model.dimensions, task)
    open_run(folder)
    precision = choose_precision(recipe.precision, device)
    print(f"\n{folder}: {len(data['train'])} training examples, {precision} on {device}\n{model.report}")
    if run.history:
        print(f"weights from {lineage(run.history)}")
    if model.what_differs:
        print(model.what_differs)

    epochs = []
    for epoch in fit(model, objective, data["train"], data["dev"], task, recipe, what.seed):
        epochs.append(epoch)
        score, mark = percent(epoch.dev[task.metric]), "*" if epoch.best else " "
        left = clock((recipe.epochs - epoch.number) * (time.perf_counter() - start) / epoch.number)
        print(
            f"epoch {epoch.number:2}/{recipe.epochs} | loss {epoch.loss:.4f} | "
            f"dev {task.metric} {score} {mark} | lr {epoch.lr:.1e} | "
            f"{epoch.pairs_per_second:.0f} pairs/s | {left} left",
            flush=True,
        )
        if epoch.best:
            model.save(folder)  # now, so that a run that is stopped leaves its best model so far
            save_head(objective, folder)

    chosen = [epoch for epoch in epochs if epoch.best][-1]
    predicted = objective.predict(*model.embed_texts(data["test"].texts))
    test = score_split(predicted, data["test"], task, chosen.dev.get("threshold"))
    result = fine_tuning_result(run, model, epochs, test, time.perf_counter() - start, arguments)
    write_file(
        folder / "README.md", model.card(fine_tuning_results(result))
    )  # beside the best epoch's weights
    write_result(folder, result)
    print(
        f"test {task.metric} {percent(test[task.metric])} at epoch {chosen.number}, best on dev; see {folder}"
    )


if __name__ == "__main__":
    run_command(main)
