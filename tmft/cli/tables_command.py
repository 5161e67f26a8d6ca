"""Score a checkpoint without training under many configurations: the tables of a paper, or your own.

    python -m tmft tables google-bert/bert-base-uncased --table table-4 --text wikitext-2/sentences.txt
    python -m tmft tables google-bert/bert-base-uncased --table table-5 figure-4 mine.toml --fast

The tables and figures are those of Stankevičius and Lukoševičius 2024, each beside the scores of the paper
and random embeddings. data/extraction.toml has them; a file of your own has the same form. They are printed,
and written as tables.md, with all scores as tables.json and, if matplotlib is installed, figures.
"""

from argparse import Namespace
from functools import cache, partial
from glob import glob
from pathlib import Path

import torch

from tmft.cli.options import add_model_options, command_device
from tmft.cli.parser import CommandLineParser
from tmft.cli.report_command import print_page
from tmft.data import DATA_FOLDER, SPLITS
from tmft.datasets.task_lookup import get_task, read_split
from tmft.errors import InputError
from tmft.evaluation.evaluators import Evaluation
from tmft.evaluation.isotropy import iso_score
from tmft.io.atomic import check_output_folder
from tmft.io.text import read_sentences
from tmft.reports.tables_page import write_tables_page
from tmft.sentence_encoder import SentenceEncoder
from tmft.training_free.training_free_tables import MEASURES, Unit, make_unit, read_tables, score_tables


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    out = args.out or Path("runs") / f"tables-{Path(args.model).name}"
    inputs = [args.model, args.data_root, *(name for name in args.table if name.endswith(".toml"))]
    check_output_folder(out, inputs)
    static = dict(pair.partition("=")[::2] for pair in args.static)
    if not all(static.values()):
        raise InputError(f"static {' '.join(args.static)}: give NAME=MODEL", "static")
    tables = read_tables(args.table, static)
    text, average_text = (read_sentences(path) if path else [] for path in (args.text, args.average_text))
    names = list(dict.fromkeys(task for table in tables for task in table.tasks))
    rows = [row for table in tables for row in table.rows]
    needs_text = any("=" in row.token_weights + row.postprocess or row.interpolate for row in rows)
    if (needs_text or "isoscore" in names) and not text:
        problem = f"table {tables[0].name} estimates from another text: give --text, such as WikiText-2"
        raise InputError(problem, "text")
    units, missing = read_units(args, names, text)
    if not units:
        raise InputError(f"no task of the tables has data: {missing[0]}", "data_root")
    torch.manual_seed(0)  # for --init random
    init, dtype = args.init or "pretrained", args.dtype or "float32"
    model = SentenceEncoder.from_pretrained(
        args.model, args.layer, "mean", args.max_length, init, dtype, str(command_device(args.device))
    )
    model.prompt, model.layers = "", None  # those that were saved with the model are ignored
    tables = [table.resolve(len(model.encoder.layers)) for table in tables]
    results = score_tables(model, tables, units, text, average_text)
    results.notes |= dict.fromkeys(missing)
    print_page(write_tables_page(results, tables, units, args.model, out))


def read_units(args: Namespace, names: list[str], text: list[str]) -> tuple[dict[str, Unit], list[str]]:
    """Return {task: what is scored} for the tasks with these names, and why others are left out.

    A task without data is left out; damaged data is an InputError.
    """
    units: dict[str, Unit] = {}
    missing = []
    for name in names:
        if name == "isoscore":
            units[name] = Unit(text, lambda encode: iso_score(encode(text)))
            continue
        task_name, split = ("stsb", "train") if name in MEASURES else (name, args.split)
        task = get_task(task_name, data_root=args.data_root)
        evaluation = Evaluation(task, cache(partial(read_split, task)), split)
        try:
            units[name] = make_unit(name, evaluation, args.fast)
        except InputError as error:
            if glob(str(DATA_FOLDER / task.files.format(split=split))):
                raise  # the data is there, and wrong
            missing.append(f"{name} is left out: {error}")
    return units, missing


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    add_model_options(p)
    group = p.add_argument_group("tables")
    group.add_argument("--table", nargs="+", metavar="NAME", default=["table-4"], help="table-1, -4, -5, -a "
                       "(A1 to A14), figure-1 to -5, -a (A1 to A3), or a file.toml; default: table-4")
    group.add_argument("--text", type=Path, metavar="FILE", help="sentences, a line each, from which what is "
                       "marked =text is estimated; the paper: WikiText-2; default: none")
    group.add_argument("--average-text", type=Path, metavar="FILE", help="sentences over which the vectors "
                       "of Avg. are means; the paper: WikiText-103; default: those of --text")
    group.add_argument("--static", nargs="+", default=[], metavar="NAME=MODEL", help="static models to add "
                       "as columns, such as B2S=runs/b2s; default: none")
    group.add_argument("--fast", action="store_true", help="cluster once with one start, and classify by "
                       "SentEval's prototyping setting; default: 10 runs of 10 starts, its default setting")
    group.add_argument("--data-root", metavar="FOLDER", help="folder that has a folder for each data set; "
                       "default: data/ of the checkout, where absent data sets are downloaded")
    group.add_argument("--split", choices=SPLITS, default="test", help="split of the tasks to score")
    group.add_argument("--out", type=Path, metavar="FOLDER", help="default: runs/tables-<name of MODEL>")
    return p.parse_args(argv)
# fmt: on
