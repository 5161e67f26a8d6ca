"""Recommend token weights, a prompt and post-processing for the sentences of a file, without training.

    python -m tmft recommend google-bert/bert-base-uncased sentences.txt
    python -m tmft recommend google-bert/bert-base-uncased sentences.txt --task sickr

It is the variant of `tmft grid` that is best on the dev split of a similarity task, if token weights and
post-processing are estimated from the sentences of FILE. So it fits if the pairs resemble your sentences.
"""

import math
import shlex
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
from tmft.datasets.task_lookup import read_available_split, read_split
from tmft.embedding.prompts import PROMPTS
from tmft.embedding.token_weights import NEEDS_TEXT
from tmft.errors import InputError
from tmft.io.formatting import percent, text_table
from tmft.io.text import read_sentences
from tmft.runs.run_result import FineTunedRun
from tmft.training_free.grid import GridResults, run_grid
from tmft.training_free.variants import Variant

MIN_GAIN = 0.01  # smaller gains of the score may be chance: other pairs may change a score as much


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    run = FineTunedRun(args.model)
    sentences = read_sentences(args.file)
    if args.task or args.data or args.data_root or run.task_settings:
        name, task = only_similarity_task(tasks_from_args(args, ["stsb"], run))
        pairs = read_split(task, "dev")
    else:
        name, task, pairs = read_available_split("dev")
        args.task = None if name == "stsb" else [name]  # for the command that is recommended
    model = load_mean_pooling_model(args)
    print(
        f"{args.model}: {len(sentences)} sentences of {args.file}, scored on {len(pairs)} pairs of {name} dev"
    )
    results = run_grid(model, {name: task}, {name: lambda split: pairs}, own_sentences=sentences)
    print(f"\n{recommend(results, evaluate_options(args), args.file)}")


def recommend(results: GridResults, evaluate_args: list[str], sentences_file: Path) -> str:
    """Return the recommendation: a table with the best variant, the unchanged model and random embeddings.

    Below it the best variant is recommended, with the command that saves it as a model, or the unchanged
    model if the best one gains less than MIN_GAIN over it.
    results: the scores on dev. evaluate_args: the arguments of evaluate.py that name the model and the
    labeled pairs. sentences_file: the file with the user's sentences. Raises InputError if the unchanged
    model has no score.
    """
    scores = {
        variant: score
        for variant in results.scores
        if not math.isnan(score := results.mean_score(variant, "similarity", "dev"))
        and variant.postprocess != "quantile"  # which cannot be saved with a model
    }
    unchanged = results.baseline
    if unchanged not in scores:
        raise InputError(
            f"{evaluate_args[0]} has no score without changes (all embeddings are equal): check its weights"
        )
    best = max((variant for variant in scores if variant.source != "random"), key=scores.__getitem__)
    random = max((variant for variant in scores if variant.source == "random"), key=scores.__getitem__)
    remarks = {"best": best, "unchanged": unchanged, "random embeddings, their best": random}
    lines = [[variant.name, percent(scores[variant]), remark] for remark, variant in remarks.items()]
    comparison = f"{percent(scores[best])} instead of {percent(scores[unchanged])} unchanged"
    if scores[best] < scores[unchanged] + MIN_GAIN:
        text = f"Keep the model unchanged: the best variant has {comparison}, which is no reliable gain."
    else:
        command = save_command(best, evaluate_args, unchanged.source, sentences_file)
        text = f"Use {best.name}: {comparison}. To save it as a model:\n    {command}"
    if scores[random] >= scores[best]:
        text += (
            "\nRandom embeddings are as good here: this checkpoint adds nothing to counting the words that "
            "two sentences share."
        )
    return f"{text_table([['variant', 'labeled pairs', ''], *lines])}\n\n{text}"


def save_command(variant: Variant, evaluate_args: list[str], last_layer: str, sentences_file: Path) -> str:
    """Return the shell command that saves the model of a variant. last_layer: that of the checkpoint."""
    has_prompt, token_weights = variant.source in PROMPTS, variant.token_weights
    words = ["python", "evaluate.py", *evaluate_args]
    words += ["--layer", last_layer if has_prompt else variant.source]
    words += ["--prompt", variant.source if has_prompt else "[X]"]  # [X] is no prompt, whatever was saved
    if token_weights != "uniform":
        needs_text = token_weights in NEEDS_TEXT
        words += ["--token-weights", f"{token_weights}={sentences_file}" if needs_text else token_weights]
    if variant.postprocess:
        words += ["--postprocess", f"{variant.postprocess}={sentences_file}"]
    return shlex.join([*words, "--save", "recommended"])


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
    default = "the task that the run was trained on, else stsb or, without a network, sample"
    add_task_options(p, default, several=False, split=False)
    return p.parse_args(argv)
# fmt: on
