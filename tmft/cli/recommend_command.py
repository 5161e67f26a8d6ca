"""Recommend token weights, a prompt and post-processing for the sentences of a file, without training.

    python -m tmft recommend google-bert/bert-base-uncased sentences.txt
    python -m tmft recommend google-bert/bert-base-uncased sentences.txt --task sickr

Token weights and post-processing are estimated from the sentences of FILE. Every combination is scored on the
dev split of a similarity task, so the recommendation fits if its pairs resemble your sentences.
"""

from argparse import Namespace
from pathlib import Path

from tmft.cli.options import (
    add_model_options,
    add_task_options,
    load_mean_pooling_model,
    only_similarity_task,
    tasks_from_args,
)
from tmft.cli.parser import CommandLineParser
from tmft.datasets.task_lookup import read_sentences, read_split
from tmft.io.formatting import text_table
from tmft.runs.run_result import FineTunedRun
from tmft.training_free.recommend import recommend, score_variants


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    name, task = only_similarity_task(tasks_from_args(args, ["stsb"], FineTunedRun(args.model)))
    sentences, pairs = read_sentences(args.file), read_split(task, "dev")
    model = load_mean_pooling_model(args)
    print(
        f"{args.model}: {len(sentences)} sentences of {args.file}, scored on {len(pairs)} pairs of {name} dev"
    )
    scores = score_variants(model, sentences, task, pairs)
    result = recommend(scores, evaluate_options(args), len(model.encoder.layers), args.file)
    print(f"\n{text_table(result.table)}\n\n{result.text}")


def evaluate_options(args: Namespace) -> list[str]:
    """Return the arguments with which evaluate.py scores the same model on the same task."""
    words = [args.model, "--pooling", "mean"]
    for name in ("task", "data", "data_root", "max_length"):
        if (value := getattr(args, name)) is not None:
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    return words


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    add_model_options(p)
    p.add_argument("file", metavar="FILE", type=Path, help="sentences to choose for: a text with one per "
                   "line, or a TSV file with a column sentence, or sentence1 and sentence2")
    add_task_options(p, "the task that the run was trained on, else stsb", several=False, split=False)
    return p.parse_args(argv)
# fmt: on
