"""Compare the layers of two checkpoints with linear CKA, before any training.

    python cka.py                                     two small models that come with tmft, offline
    python cka.py google/electra-base-discriminator google-bert/bert-base-cased    the paper's comparison
    python cka.py A B --also A2 B2 --plot cka.pdf     several pairs in one figure
    python cka.py 'runs/A-layer{layer}-seed0' 'runs/B-layer{layer}-seed0'    after fine-tuning each layer
    python cka.py A B --all-pairs --plot cka.png      every layer of A with every layer of B
    python cka.py A B --data my-sentences.txt         on your own text

CKA tells how similar two sets of embeddings of the same sentences are: 1 if they are equal up to
rotation, shift and scale, 0 if they are unrelated. A and B are hub ids, folders or saved runs; they may
differ in depth, width and tokenizer. Hidden state l of A is compared with hidden state l of B or, if the
depths differ, with the one at the same relative depth. If the names have {layer}, the last hidden states of
the two runs that kept l layers are compared, for each l. The paper found that discriminators, which learned
to spot replaced words, as ELECTRA did, differ from BERT most in their last layers, those that it removes.
CKA shows where two models differ, not which layers are better: docs/cka.md.
"""

import argparse
import sys
from pathlib import Path

import tmft.cli  # noqa: F401  first: from now on Ctrl-C is one line
from tmft.checkpoints.model_folder import ModelFolder
from tmft.cka import linear_cka  # noqa: F401  for those who call cka.linear_cka(x, y)
from tmft.cli.options import add_device_option, add_dtype_option, add_field_option, command_device
from tmft.cli.parser import CommandLineParser, default_command, program_name, run_command
from tmft.data import PACKAGE_DATA, SPLITS
from tmft.datasets.task_lookup import read_available_split
from tmft.errors import InputError
from tmft.evaluation.compare_layers import (
    MAX_IN_MEMORY,
    compare_layers,
    compare_runs,
    layers_of_runs,
    match_layers,
)
from tmft.io.atomic import check_writable, write_file
from tmft.io.files import DATA_FOLDER, IS_INSTALLED
from tmft.io.formatting import text_bar, text_table, to_json
from tmft.io.text import read_sentences
from tmft.reports import plots
from tmft.reports.drawing import check_figure
from tmft.runs.run_config import FineTuningConfig
from tmft.sentence_encoder import SentenceEncoder

# What `python cka.py` alone compares: a small discriminator with the model of masked words from which its
# pre-training continued. See docs/cka.md. The package does not have the second one, and takes tiny.
DEFAULT_MODELS = [
    str(PACKAGE_DATA / name) for name in ("twins/mlm-then-rtd", "tiny" if IS_INSTALLED else "twins/mlm")
]
DEFAULT_ARGV = [*DEFAULT_MODELS, "--data", str(PACKAGE_DATA / "sample/train.tsv")]


def main(argv: list[str] | None = None) -> None:
    """Run the command. argv: its arguments; None takes those of the command line."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(argv)
    if args.a is None:
        return main(default_command("cka.py", DEFAULT_ARGV, argv))
    if args.b is None:
        raise InputError(f"only one checkpoint ({args.a}): name another one to compare it with")
    if args.plot:
        check_figure(args.plot)
        if args.all_pairs and args.also:
            raise InputError("--all-pairs --plot draws a single pair of checkpoints: remove --also")
    pairs = [(args.a, args.b), *map(tuple, args.also)]
    # Pair of names with {layer} -> the layers for which both have a run
    runs = {pair: layers_of_runs(*pair) for pair in pairs if any("{layer}" in name for name in pair)}
    if runs and args.all_pairs:
        raise InputError("--all-pairs compares every layer of two models: name models without {layer}")
    names = list(dict.fromkeys(name for pair in pairs if pair not in runs for name in pair))
    folders = [
        name.replace("{layer}", str(layer))
        for pair, layers in runs.items()
        for name in pair
        for layer in layers
    ]
    check_writable(args.json, args.plot, inputs=[*names, *folders, args.data, args.data_root, DATA_FOLDER])
    device = command_device(args.device)
    for name in [*names, *folders]:
        ModelFolder.open(name, weights=False)  # an error in a name comes before sentences are downloaded
    sentences, source = find_sentences(args)
    print(f"{len(sentences)} sentences of {source}, pooling {args.pooling}")

    warned_of: set[int] = set()  # numbers of dimensions

    def load(name: str) -> SentenceEncoder:
        model = SentenceEncoder.from_pretrained(
            name, pooling=args.pooling, max_length=args.max_length, dtype=args.dtype or "float32"
        ).to(device)
        print(f"{name}: {model.load_report}")
        dimensions = model.dimensions
        if len(sentences) < dimensions and not args.debiased and dimensions not in warned_of:
            print(f"fewer sentences than dimensions ({dimensions}): CKA is biased upwards, see --debiased")
            warned_of.add(dimensions)
        return model

    models = {name: load(name) for name in names}
    short_names = plots.short_names([name for pair in pairs for name in pair])
    of_models = [pair for pair in pairs if pair not in runs]
    values = iter(compare_layers(models, of_models, sentences, args.all_pairs, args.debiased))
    results = []
    for a, b in pairs:
        result = {"a": a, "b": b, "debiased": args.debiased}
        if layers := runs.get((a, b)):
            by_layer = compare_runs(load, a, b, layers, sentences, args.debiased)
            result |= {"layers_of_a": layers, "layers_of_b": layers, "by_layer": by_layer}
        else:
            value, layers_of_b = next(values), match_layers(models[a], models[b])
            layers = list(range(len(layers_of_b)))
            by_layer = (value[layers, layers_of_b] if args.all_pairs else value).tolist()
            result |= {"layers_of_a": layers, "layers_of_b": layers_of_b, "by_layer": by_layer}
            result |= {"matrix": value.tolist()} if args.all_pairs else {}
        results.append(result)
        measure = "debiased linear CKA" if args.debiased else "linear CKA"
        print(f"\n{measure} of A = {short_names[a]} and B = {short_names[b]}\n{format_result(result)}")
    if (args.a, args.b) not in runs:
        print(
            f"\nto choose a layer by its dev score: {program_name('train.py')} --ckpt {args.a} --layer auto"
        )

    if args.json:
        content = {"sentences": len(sentences), "source": source, "pooling": args.pooling, "pairs": results}
        write_file(args.json, to_json(content))
        print(f"wrote {args.json}")
    if args.plot:
        draw = plots.draw_cka_heat_map if args.all_pairs else plots.draw_cka_by_layer
        draw(results, args.plot)
        print(f"wrote {args.plot}")


def find_sentences(args: argparse.Namespace) -> tuple[list[str], str]:
    """Return the sentences whose embeddings are compared, and the name of their source."""
    if args.data:
        sentences, source = read_sentences(args.data), str(args.data)
    else:
        name, _, examples = read_available_split(args.split, args.data_root)
        sentences, source = examples.sentences, f"{name} {args.split}"
    minimum = 4 if args.debiased else 2
    if len(sentences) < minimum:
        raise InputError(f"{len(sentences)} sentences ({source}): give at least {minimum}, better thousands")
    if args.debiased and len(sentences) > MAX_IN_MEMORY:
        raise InputError(
            f"--debiased takes at most {MAX_IN_MEMORY} sentences, here are {len(sentences)} ({source}): "
            "remove --debiased, as the bias of so many sentences is small, or give fewer"
        )
    return sentences, source


def format_result(result: dict) -> str:
    """Return a text table with a line for each compared hidden state of A, and a bar from 0 to 1 for its CKA.

    If the result has a matrix (every layer of A with every layer of B), a table of it follows.
    result: an entry of "pairs" in the JSON output.
    """
    lines = [["layer of A", "of B", "CKA", "bar: CKA from 0 to 1"]]
    columns = result["layers_of_a"], result["layers_of_b"], result["by_layer"]
    for layer, layer_of_b, value in zip(*columns, strict=True):
        lines.append([str(layer), str(layer_of_b), f"{value:.4f}", text_bar([0.0, 1.0, max(value, 0.0)], 2)])
    if "matrix" not in result:
        return text_table(lines)
    matrix = [["A \\ B", *map(str, range(len(result["matrix"][0]))), ""]]
    for layer, values in enumerate(result["matrix"]):
        matrix.append([str(layer), *(f"{value:.4f}" for value in values), ""])
    return f"{text_table(lines)}\n\n{text_table(matrix)}"


# fmt: off
def parse_args(argv: list[str]) -> argparse.Namespace:
    p = CommandLineParser(__doc__)
    group = p.add_argument_group("checkpoints to compare")
    group.add_argument("a", metavar="A", nargs="?", help="hub id[@revision] or folder: the model of which "
                       "layers are to be kept; {layer} in a folder's name stands for each number of layers")
    group.add_argument("b", metavar="B", nargs="?", help="hub id[@revision] or folder: the model to compare "
                       "it with, for instance a BERT of the same size")
    group.add_argument("--also", nargs=2, action="append", default=[], metavar=("A2", "B2"),
                       help="compare another pair of models, too")
    add_field_option(group, FineTuningConfig, "max_length", metavar="TOKENS")
    group.add_argument("--pooling", default="mean", help="pooling of all models, whatever was saved with "
                       "them")
    add_dtype_option(group)
    add_device_option(group)
    group = p.add_argument_group("what to compute")
    group.add_argument("--all-pairs", action="store_true", help="compare every layer of A with every "
                       "layer of B")
    group.add_argument("--debiased", action="store_true", help="use debiased CKA, which is 0 on average for "
                       "independent embeddings")
    group = p.add_argument_group("sentences")
    group.add_argument("--data", type=Path, metavar="FILE", help="TSV file, or text with a sentence per "
                       "line; default: the STS benchmark or, without a network, the sample that comes "
                       "with tmft")
    group = p.add_argument_group("sentences of the STS benchmark, without --data")
    group.add_argument("--split", choices=SPLITS, default="test", help="split whose sentences are used")
    group.add_argument("--data-root", metavar="FOLDER", help="folder of task folders; default: data/")
    group = p.add_argument_group("output")
    group.add_argument("--json", type=Path, metavar="FILE", help="write all values, not rounded, as JSON")
    group.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves, or the heat map of "
                       "--all-pairs: .png .pdf .svg")
    args = p.parse_args(argv)
    if args.data:
        p.reject_unused(args, {"split", "data_root"}, "--data")
    return args
# fmt: on


if __name__ == "__main__":
    run_command(main)
