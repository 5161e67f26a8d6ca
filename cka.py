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

import shlex
import sys
from pathlib import Path

import torch
from torch import Tensor

from tmft.cka import CKAError, StreamingCKA, cka_matrix, linear_cka
from tmft.data import DATA_FOLDER, SPLITS
from tmft.datasets.find import find_task, read_sentences, read_split
from tmft.device import choose_device
from tmft.errors import CommandLine, InputError, run_command
from tmft.files.folder import check_writable, write_file
from tmft.runs import plots
from tmft.runs.tables import as_json, bar, table
from tmft.sentence import SentenceEncoder

# What `python cka.py` stands for: the same shape, text and steps, and two objectives. See docs/twins.md.
TWINS = [str(DATA_FOLDER / "twins/discriminator"), str(DATA_FOLDER / "twins/mlm")]
FIRST_RUN = [*TWINS, "--data", str(DATA_FOLDER / "sample/train.tsv")]
IN_MEMORY = 20_000  # sentences; more of them are read in parts, of which only sums are kept


def parse_args(argv: list[str]):
    p = CommandLine(__doc__)
    g = p.add_argument_group("what to compare")
    g.add_argument(
        "a", metavar="A", nargs="?", help="hub id[@revision] or folder; its layers are those to choose from"
    )
    g.add_argument(
        "b", metavar="B", nargs="?", help="what it is compared with, for instance a BERT of its size"
    )
    g.add_argument("--also", nargs=2, action="append", default=[], metavar=("A2", "B2"), help="another pair")
    g.add_argument("--matrix", action="store_true", help="every layer of A with every layer of B")
    g.add_argument("--debiased", action="store_true", help="0 on average for independent embeddings")
    g.add_argument("--pooling", default="mean", help="of both, whatever was saved")
    g.add_argument("--max-length", type=int, metavar="TOKENS", help="default: what each checkpoint can take")
    g = p.add_argument_group("on which sentences")
    g.add_argument("--data", type=Path, metavar="FILE", help="TSV, or one sentence per line; default: STSB")
    g.add_argument("--split", choices=SPLITS, default="test", help="part of STSB")
    g.add_argument("--data-root", metavar="FOLDER", help="folder of task folders; default: data/")
    g = p.add_argument_group("where")
    g.add_argument(
        "--device", default="auto", help="auto, cpu, cuda, cuda:1, ...; auto: a GPU if there is one"
    )
    g.add_argument("--json", type=Path, metavar="FILE", help="write every number, not rounded")
    g.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves, or the matrix: .png .pdf .svg")
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(argv)
    if args.a is None:
        print(f"python cka.py {shlex.join([*FIRST_RUN, *argv])}")
        return main([*FIRST_RUN, *argv])
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
        models[name] = SentenceEncoder.load(name, None, args.pooling, args.max_length).to(device)
        print(f"{name}: {models[name].report}")
    print(f"{len(sentences)} sentences of {source}, pooling {args.pooling}")
    widest = max(model.dimensions for model in models.values())
    if len(sentences) < widest and not args.debiased:
        print(f"fewer sentences than dimensions ({widest}): linear CKA comes out high, see --debiased")

    short, results = plots.short_names(list(models)), []
    for (a, b), value in zip(
        pairs, compare(models, pairs, sentences, args.matrix, args.debiased), strict=True
    ):
        partners = line_up(len(models[a].encoder.layers), len(models[b].encoder.layers))
        curve = (value[range(len(partners)), partners] if args.matrix else value).tolist()
        result = {"a": a, "b": b, "debiased": args.debiased, "layers_of_b": partners, "by_layer": curve}
        result |= {"matrix": value.tolist()} if args.matrix else {}
        result |= advice(curve)
        results.append(result)
        kind = "debiased linear CKA" if args.debiased else "linear CKA"
        print(f"\n{kind} of A = {short[a]} and B = {short[b]}\n{curve_table(result)}")
    print()
    for result in results:
        print(f"{short[result['a']]} beside {short[result['b']]}: {result['advice']}")

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
        texts = read_split(find_task("stsb", data_root=args.data_root), args.split).texts
        sentences, source = [sentence for column in texts for sentence in column], f"stsb {args.split}"
    least = 4 if args.debiased else 2
    if len(sentences) < least:
        raise InputError(f"{len(sentences)} sentences ({source}): give {least} or more, better thousands")
    if args.debiased and len(sentences) > IN_MEMORY:
        raise InputError(
            f"--debiased: {len(sentences)} sentences ({source}) are more than {IN_MEMORY}: leave it out, the "
            "bias of so many is small, or give fewer"
        )
    return sentences, source


def line_up(layers_of_a: int, layers_of_b: int) -> list[int]:
    """For each hidden state of A the one of B: of equal number, or of equal relative depth, rounded."""
    return [int(layer * layers_of_b / max(layers_of_a, 1) + 0.5) for layer in range(layers_of_a + 1)]


def compare(
    models: dict[str, SentenceEncoder],
    pairs: list[tuple[str, str]],
    sentences: list[str],
    matrix: bool,
    debiased: bool,
) -> list[Tensor]:
    """CKA of each pair of models, (L1,) or as a matrix (L1, L2), in one pass over the sentences."""
    streams = [StreamingCKA() for _ in pairs]
    try:
        for start in range(0, len(sentences), IN_MEMORY):
            part = sentences[start : start + IN_MEMORY]
            states = {
                name: model.embed(model.tokenize(part), every_layer=True, progress=True)
                for name, model in models.items()
            }  # (L, N, D) each
            sides = [(states[a], states[b]) for a, b in pairs]
            if not matrix:
                sides = [(x, y[line_up(len(x) - 1, len(y) - 1)]) for x, y in sides]
            if len(part) == len(sentences):
                return [
                    cka_matrix(x, y, debiased) if matrix else equal_layers(x, y, debiased) for x, y in sides
                ]
            for stream, (x, y) in zip(streams, sides, strict=True):
                stream.update(x[:, None] if matrix else x, y)
        return [stream.value() for stream in streams]
    except CKAError as error:
        raise InputError(f"no CKA of {', '.join(models)} ({error}): check weights and sentences") from None


def equal_layers(x: Tensor, y: Tensor, debiased: bool) -> Tensor:
    """(L, N, D1), (L, N, D2) -> (L,) float64, CKA of layer l of both."""
    values = [linear_cka(u, v, debiased) for u, v in zip(x, y, strict=True)]
    return torch.tensor(values, dtype=torch.float64)


def advice(curve: list[float]) -> dict:
    """{"falls_after": layer or None, "advice": the same in words}: a heuristic, not a result of the paper.

    Look at the later half of the layers only. The curve falls if the last value is at least 0.05 below the
    highest one there; it starts to fall after the last layer that still lacks at most a quarter of that
    difference. So a dip that recovers is no fall, and a slow slope before a steep one is forgiven. What the
    paper found is that similarity to BERT and STS scores fall in the same layers; only a sweep over --layer,
    judged on dev, says which layer is best.
    """
    last = len(curve) - 1
    if last < 2:
        return {"falls_after": None, "advice": f"{last + 1} hidden states are too few to see a fall"}
    top = max(range(last // 2, last + 1), key=lambda layer: curve[layer])
    fall = curve[top] - curve[last]
    if fall < 0.05:
        words = f"no fall in the later half ({curve[last]:.4f} at the last layer, {curve[top]:.4f} at most)"
        return {"falls_after": None, "advice": f"{words}: try all layers first, --layer {last}"}
    start = max(layer for layer in range(top, last) if curve[layer] >= curve[top] - fall / 4)
    words = f"CKA falls after layer {start}, from {curve[start]:.4f} to {curve[last]:.4f} at layer {last}"
    return {"falls_after": start, "advice": f"{words}: try --layer {start} first (a heuristic)"}


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


if __name__ == "__main__":
    run_command(main)
