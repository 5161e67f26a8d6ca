"""Score a checkpoint without training under every combination of layers, token weights and post-processing.

    python -m tmft grid google-bert/bert-base-uncased
    python -m tmft grid google-bert/bert-base-uncased --task sts --text wikipedia.txt --out grid/

Random embeddings are scored under the same combinations, for comparison. The tables are printed. They are
also written as grid.md, with all scores as grid.json and, if matplotlib is installed, figures.
"""

from argparse import Namespace
from functools import cache, partial
from pathlib import Path

from tmft.cli.options import (
    add_model_options,
    add_task_options,
    load_mean_pooling_model,
    tasks_from_args,
)
from tmft.cli.parser import CommandLineParser
from tmft.cli.report_command import print_page
from tmft.datasets.task_lookup import find_objective, read_split
from tmft.errors import InputError
from tmft.io.atomic import check_output_folder
from tmft.io.text import read_sentences
from tmft.reports.grid_page import write_grid_page
from tmft.runs.run_result import FineTunedRun
from tmft.training_free.grid import run_grid

DEFAULT_TASKS = ["sts", "clustering", "classification"]


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    out = args.out or Path("runs") / f"grid-{Path(args.model).name}"
    check_output_folder(out, [args.model, args.data, args.data_root])
    tasks = tasks_from_args(args, DEFAULT_TASKS, FineTunedRun(args.model))
    readers = {name: cache(partial(read_split, task)) for name, task in tasks.items()}
    for read in readers.values():
        read("test")  # so that missing or damaged data is reported before a model is loaded
    if heads := [name for name, task in tasks.items() if find_objective(task)(1, task).has_head]:
        raise InputError(f"task {heads[0]}: it needs a trained head, remove it", "task")
    sentences = read_sentences(args.text) if args.text else []
    results = run_grid(load_mean_pooling_model(args), tasks, readers, sentences)
    print_page(write_grid_page(results, args.model, out))


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    add_model_options(p)
    p.add_argument("--text", type=Path, metavar="FILE", help="text with a sentence per line, from "
                   "which idf weights and mean word vectors are estimated in addition; default: only from "
                   "the sentences of the tasks")
    p.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write; default: runs/grid-<name of "
                   "MODEL>")
    add_task_options(p, f"the tasks that the run was trained on, else {' '.join(DEFAULT_TASKS)}", split=False)
    return p.parse_args(argv)
# fmt: on
