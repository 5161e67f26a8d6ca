"""Options of train.py about how, not what: the recipe, pre-training. option: argparse's add_argument."""

from collections.abc import Callable
from pathlib import Path

from tmft.device import PRECISIONS
from tmft.optimizers import OPTIMIZERS
from tmft.runs.run import FROM_SCRATCH
from tmft.training import Recipe


# fmt: off
def recipe_options(option: Callable) -> None:
    recipe, scratch = Recipe(), FROM_SCRATCH
    option("--epochs", type=int, help=f"default: the task's, else {recipe.epochs}")
    option("--batch-size", type=int, help=f"default: the task's, else {recipe.batch_size}; from scratch "
           f"{scratch['batch_size']}")
    option("--lr", type=float, help=f"the peak; default: {recipe.lr}, from scratch {scratch['lr']}")
    option("--weight-decay", type=float, help=f"of matrices, not vectors; default: {recipe.weight_decay}")
    option("--warmup", type=float, help=f"share of all steps; default: {recipe.warmup}")
    option("--max-grad-norm", type=float, help=f"clip gradients at it; default: {recipe.max_grad_norm}")
    option("--optimizer", choices=OPTIMIZERS, help="default: adamw")
    option("--precision", choices=["auto", *PRECISIONS], help="default: auto, bf16 where the chip has it")


def pretraining_options(option: Callable) -> None:
    option("--text", type=Path, nargs="+", metavar="FILE", help="a sentence per line; .txt, .gz, .xz")
    option("--from-scratch", metavar="CONFIG", help="config.json, folder or hub id: random weights")
    option("--vocab-size", type=int, metavar="N", help="make a vocabulary of N pieces from the text")
    option("--generator-size", type=float, help="its width as a share, of --task rtd; default: 0.25")
    option("--steps", type=int, metavar="N", help="instead of --epochs")
    option("--accumulate", type=int, metavar="N", help="batches per step; default: 8, from scratch 1")
    option("--save-every", type=int, metavar="STEPS", help="report, and save to resume; default: ten times")
    option("--half", action="store_true", help="save in float16: half as large a file")
# fmt: on
