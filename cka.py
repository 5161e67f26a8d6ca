"""Linear CKA of two checkpoints, layer by layer: see where they part before training anything.

    python cka.py                                     the small twins that are shipped, offline
    python cka.py google/electra-base-discriminator google-bert/bert-base-cased    the paper's comparison
    python cka.py A B --also A2 B2 --plot cka.pdf     several pairs in one figure
    python cka.py A B --matrix --plot cka.png         every layer of A with every layer of B

A and B are hub ids, folders or saved runs, also of different depth, width and tokenizer. The sentences are
those of the test split of STSB, unless --data names a file; without A and B those of data/sample. Hidden
state l of A stands beside hidden state l of B or, if B is deeper or less deep, beside the one at the same
share of its depth. The paper found that discriminators part from BERT in their last layers, and that these
are the layers to leave out.
"""

import sys
from pathlib import Path

from tmft.cka import linear_cka  # noqa: F401  cka.linear_cka(x, y) for those who import this file
from tmft.cli.parser import CommandLine, default_command, run_command
from tmft.data import SHIPPED, SPLITS
from tmft.datasets.task_lookup import get_task, read_sentences, read_split
from tmft.device import choose_device
from tmft.errors import InputError
from tmft.evaluation.compare_layers import IN_MEMORY, compare, line_up
from tmft.formatting import as_json, bar, table
from tmft.io.atomic import check_writable, write_file
from tmft.reports import plots
from tmft.sentence_encoder import SentenceEncoder

# What `python cka.py` stands for: the same shape, text and steps, and two objectives. See docs/twins.md.
TWINS = [str(SHIPPED / "twins/discriminator"), str(SHIPPED / "twins/mlm")]
FIRST_RUN = [*TWINS, "--data", str(SHIPPED / "sample/train.tsv")]


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(argv)
    if args.a is None:
        return main(default_command("cka.py", FIRST_RUN, argv))
    if args.b is None:
        raise InputError(f"{args.a} alone: name another checkpoint to compare it with")
    if args.plot:
        plots.check_figure(args.plot)
        if args.matrix and args.also:
            raise InputError("--matrix --plot draws one pair: leave out --also")
    check_writable(args.json, args.plot)
    device = choose_device(args.device)
    sentences, source = find_sentences(args)
    pairs = [(args.a, args.b), *map(tuple, args.also)]
    models = {}
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        models[name] = SentenceEncoder.from_pretrained(name, pooling=args.pooling, max_length=args.max_length)
        models[name].to(device)
        print(f"{name}: {models[name].load_report}")
    print(f"{len(sentences)} sentences of {source}, pooling {args.pooling}")
    widest = max(model.dimensions for model in models.values())
    if len(sentences) < widest and not args.debiased:
        print(f"fewer sentences than dimensions ({widest}): linear CKA comes out high, see --debiased")

    short, results = plots.short_names(list(models)), []
    values = compare(models, pairs, sentences, args.matrix, args.debiased)
    for (a, b), value in zip(pairs, values, strict=True):
        partners = line_up(len(models[a].encoder.layers), len(models[b].encoder.layers))
        curve = (value[range(len(partners)), partners] if args.matrix else value).tolist()
        result = {"a": a, "b": b, "debiased": args.debiased, "layers_of_b": partners, "by_layer": curve}
        result |= {"matrix": value.tolist()} if args.matrix else {}
        results.append(result)
        kind = "debiased linear CKA" if args.debiased else "linear CKA"
        print(f"\n{kind} of A = {short[a]} and B = {short[b]}\n{curve_table(result)}")
    print(f"\nwhere they part; which layer to keep: python train.py --ckpt {args.a} --layer auto")

    if args.json:
        content = {"sentences": len(sentences), "source": source, "pooling": args.pooling, "pairs": results}
        write_file(args.json, as_json(content))
        print(f"wrote {args.json}")
    if args.plot:
        draw = plots.cka_heat_map if args.matrix else plots.cka_by_layer
        draw(results, args.plot)
        print(f"wrote {args.plot}")


def find_sentences(args) -> tuple[list[str], str]:
    """The sentences to compare on, and where they are from; InputError if they are too few, or too many."""
    if args.data:
        sentences, source = read_sentences(args.data), str(args.data)
    else:
        task = get_task("stsb", data_root=args.data_root)
        sentences, source = read_split(task, args.split).sentences, f"stsb {args.split}"
    least = 4 if args.debiased else 2
    if len(sentences) < least:
        raise InputError(f"{len(sentences)} sentences ({source}): give {least} or more, better thousands")
    if args.debiased and len(sentences) > IN_MEMORY:
        raise InputError(
            f"--debiased: {len(sentences)} sentences ({source}) are more than {IN_MEMORY}: leave it out, the "
            "bias of so many is small, or give fewer"
        )
    return sentences, source


def curve_table(result: dict) -> str:
    """A line per hidden state of A, with a bar of length 0 to 1; and then the matrix, if there is one."""
    lines = [["layer of A", "of B", "CKA", ""]]
    for layer, (partner, value) in enumerate(zip(result["layers_of_b"], result["by_layer"], strict=True)):
        lines.append([str(layer), str(partner), f"{value:.4f}", bar([0.0, 1.0, max(value, 0.0)], 2)])
    if "matrix" not in result:
        return table(lines)
    matrix = [["A \\ B", *map(str, range(len(result["matrix"][0]))), ""]]
    for layer, row in enumerate(result["matrix"]):
        matrix.append([str(layer), *(f"{value:.4f}" for value in row), ""])
    return f"{table(lines)}\n\n{table(matrix)}"


# fmt: off
def parse_args(argv: list[str]):
    p = CommandLine(__doc__)
    _, option = p.group("what to compare")
    option("a", metavar="A", nargs="?", help="hub id[@revision] or folder; its layers are to be chosen from")
    option("b", metavar="B", nargs="?", help="what it is compared with, for instance a BERT of its size")
    option("--also", nargs=2, action="append", default=[], metavar=("A2", "B2"), help="another pair")
    option("--matrix", action="store_true", help="every layer of A with every layer of B")
    option("--debiased", action="store_true", help="0 on average for independent embeddings")
    option("--pooling", default="mean", help="of both, whatever was saved")
    option("--max-length", type=int, metavar="TOKENS", help="default: all that fits, of each")
    option("--data", type=Path, metavar="FILE", help="TSV, or one sentence per line; default: STSB")
    stsb, option = p.group("of STSB")
    option("--split", choices=SPLITS, default="test", help="part of it")
    option("--data-root", metavar="FOLDER", help="folder of task folders; default: data/")
    _, option = p.group("where")
    option("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...; auto: a GPU if there is one")
    option("--json", type=Path, metavar="FILE", help="write every number, not rounded")
    option("--plot", type=Path, metavar="FILE", help="draw the curves, or the matrix: .png .pdf .svg")
    args = p.parse_args(argv)
    if args.data:
        p.refuse(args, stsb, "--data")
    return args
# fmt: on


if __name__ == "__main__":
    run_command(main)
