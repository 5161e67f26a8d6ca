"""The options of train.py by subject. option: argparse's add_argument."""

from collections.abc import Callable
from pathlib import Path

from tmft.data import TASKS
from tmft.datasets.contrastive_tasks import UNLABELLED
from tmft.datasets.cs224n_tasks import COURSE
from tmft.datasets.distillation_data import TAUGHT
from tmft.device import PRECISIONS
from tmft.embedding.token_weights import TOKENS
from tmft.losses.distillation import DistillSettings, distillation_options
from tmft.losses.heads import HeadSettings
from tmft.losses.multiple_negatives import Settings, contrastive_options
from tmft.losses.nested import nested_options
from tmft.losses.registry import OBJECTIVES
from tmft.metrics import METRICS
from tmft.pooling import POOLINGS
from tmft.runs.pretrain import PRETRAINING
from tmft.runs.run_config import FROM_SCRATCH, parse_keep
from tmft.training.loop import Recipe
from tmft.training.multitask import multitask_options
from tmft.training.optimizers import OPTIMIZERS

SETTINGS = (Settings, HeadSettings, DistillSettings)  # of objectives


# fmt: off
def data_options(option: Callable) -> None:
    rows = ", ".join(TASKS | UNLABELLED | COURSE | TAUGHT | PRETRAINING)
    option("--task", nargs="+", metavar="TASK[:OBJECTIVE]",
           help=f"{rows}; several are learnt at once; default: stsb, or distill with a --teacher")
    option("--text", type=Path, nargs="+", metavar="FILE", help="a sentence per line; .txt, .gz, .xz: to be "
           "pre-trained on, or to be taught")
    option("--max-length", type=int, metavar="TOKENS", help="default: all that fits; 128 to pre-train")


def fine_tuning_options(option: Callable) -> None:
    option("--layer", help="9 keeps the first 9; 0-12, 3,6,9 or all is a sweep; auto: found by short "
           "runs, at a quarter of a sweep's cost; default: all are kept")
    option("--keep", type=parse_keep, metavar="0,2,5", help="these layers, numbered from 0, not the first "
           "ones; default: none")
    option("--init", choices=["pretrained", "random"], help="random: shape only; default: pretrained")
    option("--init-from", metavar="RUN", help="weights of an earlier run of --ckpt at the same layer; "
           "{layer} and {seed} stand for those of each run: runs/electra-wordsim-layer{layer}-seed0")
    option("--pooling", help=f"{', '.join(POOLINGS)}, or as max+mean; default: what was saved, else mean")
    option("--tokens", help=f"what they weigh: {', '.join(TOKENS)}; default: what was saved, else all")
    option("--objective", help=f"{', '.join(OBJECTIVES)}; default: the task's")
    option("--metric", help=f"chooses the epoch: {', '.join(METRICS)}; default: the task's")
    contrastive_options(option)
    multitask_options(option)
    distillation_options(option)
    nested_options(option)
    option("--data", metavar="FOLDER", help="train.tsv, dev.tsv, test.tsv in place of the task's")
    option("--data-root", metavar="FOLDER", help="folder of task folders; default: data/")
    option("--share", type=float, metavar="S", help="learn from a share of the train examples; default: 1")
    option("--score-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="default: the task's")


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
    option("--from-scratch", metavar="CONFIG", help="config.json, folder or hub id: random weights")
    option("--vocab-size", type=int, metavar="N", help="make a vocabulary of N pieces from the text")
    option("--generator-size", type=float, help="its width as a share, of --task rtd; default: 0.25")
    option("--steps", type=int, metavar="N", help="instead of --epochs")
    option("--accumulate", type=int, metavar="N", help="batches per step; default: 8, from scratch 1")
    option("--save-every", type=int, metavar="STEPS", help="report, and save to resume; default: ten times")
    option("--half", action="store_true", help="save in float16: half as large a file")
# fmt: on
