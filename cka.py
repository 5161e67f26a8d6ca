"""Linear CKA of two checkpoints, layer by layer: see where they part before training anything.

    python cka.py                                     the small twins that are shipped, offline
    python cka.py google/electra-base-discriminator google-bert/bert-base-cased    the paper's comparison
    python cka.py A B --also A2 B2 --plot cka.pdf     several pairs in one figure
    python cka.py A B --matrix --plot cka.png         every layer of A with every layer of B
    python cka.py A B --frozen stsb                   and how A's layers score as they are

A and B are hub ids, folders or saved runs, also of different depth, width and tokenizer. The sentences are
those of the test split of STSB, unless --data names a file; without A and B those of data/sample. Hidden
state l of A stands beside hidden state l of B or, if B is deeper or less deep, beside the one at the same
share of its depth. The paper found that discriminators part from BERT in their last layers, and that these
are the layers to leave out.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from tmft.cka import CKAError, StreamingCKA, cka_matrix, linear_cka
from tmft.data import DATA_FOLDER, SPLITS, Pairs, Task, find_task, read_pairs, read_sentences, scale
from tmft.datasets.releases import fetch_if_absent
from tmft.errors import InputError, run_command
from tmft.evaluation.isotropy import alignment, iso_score, mean_cosine, uniformity
from tmft.files.weights import write_file
from tmft.metrics import spearman
from tmft.rows import POOLINGS
from tmft.runs import plots
from tmft.runs.folder import bar, table, without_nan
from tmft.sentence import SentenceEncoder, cosines
from tmft.training import choose_device

# What `python cka.py` compares: the same shape, text and steps, and two objectives. See docs/twins.md.
TWINS = {
    "a": str(DATA_FOLDER / "twins/discriminator"),
    "b": str(DATA_FOLDER / "twins/mlm"),
    "data": DATA_FOLDER / "sample/train.tsv",
}

IN_MEMORY = 20_000  # sentences; more of them are read in parts, of which only sums are kept


def parse_args(argv=None):
    show_defaults = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=show_defaults)
    p.add_argument(
        "a", metavar="A", nargs="?", help="hub id[@revision] or folder; its layers are those to choose from"
    )
    p.add_argument(
        "b", metavar="B", nargs="?", help="what it is compared with, for instance a BERT of its size"
    )
    p.add_argument("--also", nargs=2, action="append", default=[], metavar=("A2", "B2"), help="another pair")
    p.add_argument("--matrix", action="store_true", help="every layer of A with every layer of B")
    p.add_argument("--debiased", action="store_true", help="0 on average for independent embeddings")
    p.add_argument("--frozen", metavar="TASK", help="score A's layers as they are, and their isotropy")
    p.add_argument("--split", choices=SPLITS, default="test", help="part of STSB and of the frozen TASK")
    p.add_argument("--data", type=Path, metavar="FILE", help="TSV, or one sentence per line; None: STSB")
    p.add_argument("--data-root", metavar="FOLDER", help="folder of task folders; None: data/")
    p.add_argument("--pooling", choices=POOLINGS, default="mean", help="of both, whatever was saved")
    p.add_argument("--max-length", type=int, metavar="TOKENS", help="None: the limit of each checkpoint")
    p.add_argument(
        "--device", default="auto", help="auto, cpu, cuda, cuda:1, ...; auto: a GPU if there is one"
    )
    p.add_argument("--json", type=Path, metavar="FILE", help="write every number, not rounded")
    p.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves, or the matrix: .png .pdf .svg")
    args = p.parse_args(argv)
    if args.a is None:
        p.set_defaults(**TWINS)
        args = p.parse_args(argv)
    return args


def main(argv=None):
    args = parse_args(argv)
    if args.b is None:
        raise InputError(f"{args.a} alone: name another checkpoint to compare it with")
    if args.plot:
        plots.check_figure(args.plot)
        if args.matrix and args.also:
            raise InputError("--matrix --plot draws one pair: leave out --also")
    device = choose_device(args.device)
    sentences, source = find_sentences(args)
    frozen_task = find_frozen(args) if args.frozen else None
    couples = [(args.a, args.b), *map(tuple, args.also)]
    models = {}
    for name in dict.fromkeys(name for couple in couples for name in couple):
        models[name] = SentenceEncoder.load(name, None, args.pooling, args.max_length).to(device)
        print(f"{name}: {models[name].report}")
    short = plots.short_names(list(models))
    widest = max(model.encoder.config.hidden_size for model in models.values())
    print(f"{len(sentences)} sentences of {source}, pooling {args.pooling}")
    if len(sentences) < widest and not args.debiased:
        print(f"fewer sentences than dimensions ({widest}): linear CKA comes out high, see --debiased")

    values, states = compare(models, couples, sentences, args.matrix, args.debiased)
    results = []
    for (a, b), value in zip(couples, values, strict=True):
        partners = line_up(len(models[a].encoder.layers), len(models[b].encoder.layers))
        curve = (value[range(len(partners)), partners] if args.matrix else value).tolist()
        results.append(
            {"a": a, "b": b, "debiased": args.debiased, "layers_of_b": partners, "by_layer": curve}
        )
        results[-1] |= ({"matrix": value.tolist()} if args.matrix else {}) | advice(curve)
        kind = "debiased linear CKA" if args.debiased else "linear CKA"
        print(f"\n{kind} of A = {short[a]} and B = {short[b]}\n{curve_table(results[-1])}")
    content = {"sentences": len(sentences), "source": source, "pooling": args.pooling, "pairs": results}
    if frozen_task:
        frozen = score_frozen(models[args.a], *frozen_task, sentences, states and states[args.a])
        content["frozen"] = {"model": args.a, "task": args.frozen, "split": args.split, "layers": frozen}
        print(f"\n{short[args.a]} as it is, on {args.frozen} {args.split}\n{frozen_table(frozen)}")
    print()
    for result in results:
        print(f"{short[result['a']]} beside {short[result['b']]}: {result['advice']}")

    if args.json:
        write_file(args.json, json.dumps(without_nan(content), indent=2) + "\n")
        print(f"wrote {args.json}")
    if args.plot:
        plots.cka_matrix(results[0], args.plot) if args.matrix else plots.cka_by_layer(results, args.plot)
        print(f"wrote {args.plot}")


def find_sentences(args) -> tuple[list[str], str]:
    """The sentences to compare on, and where they are from. Raises InputError if they are too few."""
    if args.data:
        sentences, source = read_sentences(args.data), str(args.data)
    else:
        fetch_if_absent("stsb", args.data_root)
        pairs = read_pairs(find_task("stsb", data_root=args.data_root), args.split)
        sentences, source = pairs.sentence1 + pairs.sentence2, f"stsb {args.split}"
    least = 4 if args.debiased else 2
    if len(sentences) < least:
        raise InputError(f"{len(sentences)} sentences ({source}): give {least} or more, better thousands")
    return sentences, source


def find_frozen(args) -> tuple[Task, Pairs]:
    task = find_task(args.frozen, data_root=args.data_root)
    if task.metric != "spearman":
        raise InputError(f"--frozen {args.frozen}: choose a task of graded similarity, such as stsb")
    fetch_if_absent(args.frozen, args.data_root)
    return task, read_pairs(task, args.split)


def line_up(layers_of_a: int, layers_of_b: int) -> list[int]:
    """For each hidden state of A the one of B: of equal number, or of equal relative depth, rounded."""
    return [int(layer * layers_of_b / max(layers_of_a, 1) + 0.5) for layer in range(layers_of_a + 1)]


def compare(
    models: dict[str, SentenceEncoder],
    couples: list[tuple[str, str]],
    sentences: list[str],
    matrix: bool,
    debiased: bool,
) -> tuple[list[Tensor], dict[str, Tensor] | None]:
    """CKA of each couple, (L1,) or as a matrix (L1, L2), in one pass over the sentences.

    Also the hidden states of each model, (L, N, D) float32, unless there are too many sentences to keep them.
    """
    streams = [StreamingCKA() for _ in couples]
    try:
        for start in range(0, len(sentences), IN_MEMORY):
            part = sentences[start : start + IN_MEMORY]
            states = {
                name: model.embed(model.tokenize(part), every_layer=True, progress=sys.stderr.isatty())
                for name, model in models.items()
            }
            sides = [(states[a], states[b]) for a, b in couples]
            if not matrix:
                sides = [(x, y[line_up(len(x) - 1, len(y) - 1)]) for x, y in sides]
            if len(part) == len(sentences):
                measure = cka_matrix if matrix else equal_layers
                return [measure(x, y, debiased) for x, y in sides], states
            for stream, (x, y) in zip(streams, sides, strict=True):
                stream.update(x[:, None] if matrix else x, y)
        return [stream.value(debiased) for stream in streams], None
    except CKAError as error:
        who = ", ".join(models)
        raise InputError(f"no CKA of {who} ({error}): check weights and sentences") from None


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


def score_frozen(
    model: SentenceEncoder, task: Task, pairs: Pairs, sentences: list[str], states: Tensor | None
) -> list[dict]:
    """Spearman and isotropy of every hidden state on a task; states: (L, N, D) of the sentences, if at hand.

    Alignment is over the pairs above 0.8 of the score range, 4 of 5, as in Gao et al. 2021 (SimCSE).
    """
    distinct = list(dict.fromkeys(pairs.sentence1 + pairs.sentence2))
    if states is None or not set(distinct) <= set(sentences):
        sentences = distinct
        states = model.embed(model.tokenize(distinct), every_layer=True, progress=sys.stderr.isatty())
    row = {sentence: number for number, sentence in enumerate(sentences)}
    everything, first, second = (
        [row[sentence] for sentence in side] for side in (distinct, pairs.sentence1, pairs.sentence2)
    )
    close = scale(pairs.scores, task) > 0.8
    layers = []
    for state in states:
        x, u, v = state[everything], state[first], state[second]
        scores = {"spearman": spearman(cosines(u, v), pairs.scores), "mean_cosine": mean_cosine(x)}
        scores |= {"iso_score": iso_score(x), "alignment": alignment(u[close], v[close])}
        layers.append(scores | {"uniformity": uniformity(x)})
    return layers


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


def frozen_table(layers: list[dict]) -> str:
    lines = [["layer", *(name.replace("_", " ") for name in layers[0]), ""]]
    curve = [scores["spearman"] for scores in layers]
    for layer, scores in enumerate(layers):
        lines.append([str(layer), *(f"{value:.4f}" for value in scores.values()), bar(curve, layer)])
    return table(lines)


if __name__ == "__main__":
    run_command(main)
