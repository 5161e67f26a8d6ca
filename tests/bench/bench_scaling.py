"""Measure the time per token of training and encoding by size, beside that of the matrix products alone.

    python tests/bench/bench.py scaling --rounds 3 --json docs/scaling.json --plot docs/scaling.svg
    python tests/bench/bench_scaling.py --json docs/scaling.json --plot docs/scaling.svg

The first command measures, in some minutes; the second one only prints and draws what --json holds. One
quantity varies at a time: the pairs of a step (or the sentences that are encoded at once), the tokens of a
text, and the layers; each in float32 and in bfloat16, with one thread and with two. The others stay at 32
pairs (64 sentences) of STSB and --layer layers. Texts of one length are random words; a step has TOKENS of
their tokens. Every round measures everything once. The time of tokenizing does not count.

A point is the fastest of the rounds, because whatever else runs on the machine only adds to the time.
The limit is the time of the matrix products alone, with those of the attention, at the speed of the fastest
product that the machine computes before or after the rounds with as many threads.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_train import Work, least_work, machine_rates, matrix_entries

from tmft import SentenceEncoder
from tmft.export.quantization import set_encode_precision
from tmft.io.formatting import markdown_table
from tmft.reports.drawing import COLORS, MARKERS, save_figure

SIZES = (8, 16, 32, 64, 128, 256)  # pairs of a step, sentences that are encoded at once
LENGTHS = (8, 16, 32, 64, 128, 256, 512)  # tokens of a text, with the special tokens
PAIRS = 32  # of a step when something else varies
TOKENS = 2048  # of a step when the length varies, and at least so many are encoded before the clock stops
PRECISIONS, THREADS = ("fp32", "bf16"), (1, 2)
MAX_SECONDS = 330
FITTED = 64  # the largest size of the fitted lines; above it, times grow for another reason
SUMMARIES = {"fastest": min, "median": statistics.median, "slowest": max}
KINDS = {"training step": 6, "encoding": 2}  # operations per token and entry of a matrix, with those backward
# Quantity -> what a step has of it, what encoding has of it.
QUANTITIES = {
    "size": ("pairs in a step", "sentences encoded at once"),
    "length": ("tokens of a text", "tokens of a text"),
    "layers": ("layers", "layers"),
}


def bench_scaling(args) -> None:
    """Measure, print the table, and write the files of --json and --plot."""
    start = time.monotonic()
    content = measure(args)
    print(f"{time.monotonic() - start:.0f} s")
    if args.json:
        args.json.write_text(
            json.dumps(content).replace("], ", "],\n") + "\n", encoding="utf-8", newline="\n"
        )
    show(content, args.plot)


def measure(args) -> dict[str, Any]:
    """Return the measurements as --json has them.

    They are {"layer", "rounds": how many were made, "rates": GFLOP/s of products and GB/s of memory,
    "adamw_gb": what AdamW reads and writes in a step, "lines": {name: points}}. A point has x; tokens: of a
    step or a call; fastest, median, slowest: microseconds per token over the rounds; limit: those of the
    products alone. No round begins after MAX_SECONDS.
    """
    work = Work.read(argparse.Namespace(data=args.data, steps=-(-max(SIZES) // PAIRS)))
    last, runs = len(SentenceEncoder.from_pretrained(args.ckpt).encoder.layers), {}
    # the layers -> the model that is trained; the layers and the precision -> the model that encodes
    trained = [
        SentenceEncoder.from_pretrained(args.ckpt, depth, max_length=max(LENGTHS))
        for depth in range(last + 1)
    ]
    encoders = {
        key: SentenceEncoder.from_pretrained(args.ckpt, key[0])
        for key in product(range(last + 1), PRECISIONS)
    }
    for (_, precision), model in encoders.items():
        set_encode_precision(model, precision)
    for quantity, x, part, layer in points(work, args.layer, last, trained[0].tokenizer):
        ids = trained[layer].tokenize(part.texts[0] + part.texts[1])
        few = ids[: x if quantity == "size" else None]
        tokens = sum(map(len, ids)) * part.size / len(part.scores)
        for precision in PRECISIONS:
            step = part.tmft_with(trained[layer], precision)
            runs["training step", quantity, x, precision] = step, ids, tokens, layer
            encode = encoding(encoders[layer, precision], few)
            runs["encoding", quantity, x, precision] = encode, few, sum(map(len, few)), layer
    milliseconds: dict[Any, list[float]] = {key: [] for key in product(runs, THREADS)}
    rates, start = [machine_speeds()], time.monotonic()
    for number in range(args.rounds):
        if number and time.monotonic() > start + MAX_SECONDS:
            break
        for threads, (key, (run, *_)) in product(THREADS, runs.items()):
            torch.set_num_threads(threads)
            milliseconds[key, threads].append(run())
        print(f"round {number + 1}/{args.rounds}", file=sys.stderr, flush=True)
    rates.append(machine_speeds())
    best = {name: round(max(rate[name] for rate in rates), 1) for name in rates[0]}
    lines: dict[str, list[dict[str, float]]] = {}
    for (key, threads), times in milliseconds.items():
        (kind, quantity, x, precision), (_, ids, tokens, layer) = key, runs[key]
        per_token = KINDS[kind] * product_entries(trained[layer], ids) / sum(map(len, ids))
        point = {name: 1000 * pick(times) / tokens for name, pick in SUMMARIES.items()}
        point |= {"limit": per_token / best[f"{precision}, {threads}"] / 1000, "tokens": tokens}
        line = lines.setdefault(f"{kind}, {quantity}, {precision}, {threads}", [])
        line.append({"x": x} | {name: round(value, 3) for name, value in point.items()})
    adamw_gb = least_work(first_pairs(work, PAIRS, PAIRS), args.ckpt, args.layer)[1]
    about = {
        "layer": args.layer,
        "rounds": len(next(iter(milliseconds.values()))),
        "adamw_gb": round(adamw_gb, 4),
    }
    return about | {"rates": best, "lines": lines}


def first_pairs(work: Work, count: int, size: int) -> Work:
    """Return the work of the first pairs. count: how many; size: of a step."""
    texts = work.texts[0][:count], work.texts[1][:count]
    return replace(work, texts=texts, scores=work.scores[:count], size=size)


def points(work: Work, layer: int, last: int, tokenizer) -> Iterator[tuple[str, int, Work, int]]:
    """Yield each point: the quantity that varies, its value, the pairs of a round, and the layers.

    work: pairs of STSB. layer: the layers when something else varies. last: the number of all layers.
    """
    for size in SIZES:
        yield "size", size, first_pairs(work, max(size, 2 * PAIRS), size), layer
    choose = random.Random(0)
    words = sorted(word for word in tokenizer.backend.get_vocab() if word.isalpha() and word.islower())
    special = len(tokenizer.backend.encode("").ids)
    for length in LENGTHS:
        count = max(2, TOKENS // length)
        texts = [" ".join(choose.choices(words, k=length - special)) for _ in range(count)]
        texts = texts[: count // 2], texts[count // 2 :][: count // 2]
        part = replace(work, texts=texts, scores=[2.5] * (count // 2), size=count // 2)
        yield "length", length, part, layer
    for layers in range(last + 1):
        yield "layers", layers, first_pairs(work, PAIRS, PAIRS), layers


def encoding(model: SentenceEncoder, ids: list[list[int]]) -> Callable[[], float]:
    """Return a function that encodes tokenized sentences, in ms: a mean if they are few."""
    times = -(-TOKENS // sum(map(len, ids)))

    def run() -> float:
        start = time.perf_counter()
        for _ in range(times):
            model.embed_token_ids(ids)
        return 1000 * (time.perf_counter() - start) / times

    return run


def machine_speeds() -> dict[str, float]:
    """Return the GFLOP/s of the fastest products and the GB/s of memory, by the number of threads."""
    speeds = {}
    for threads in THREADS:
        torch.set_num_threads(threads)
        names = [f"{name}, {threads}" for name in (*PRECISIONS, "memory")]
        speeds |= dict(zip(names, machine_rates(), strict=True))
    return speeds


def product_entries(model: SentenceEncoder, ids: list[list[int]]) -> int:
    """Return the multiplications of a forward pass: of tokens with matrices, and of the attention.

    The attention of a text of T tokens has two products of T x T entries and D columns in each layer.
    """
    attention = (
        2 * model.encoder.config.hidden_size * len(model.encoder.layers) * sum(len(t) ** 2 for t in ids)
    )
    return sum(map(len, ids)) * matrix_entries(model) + attention


def table(content: dict[str, Any]) -> str:
    """Return the Markdown table of the lines fitted to the time of a step or call."""
    rows = [["", "by pairs or sentences", "by layers"]]
    for kind, precision, threads in product(KINDS, PRECISIONS, THREADS):
        cells = [fitted_line(content, kind, quantity, precision, threads) for quantity in ("size", "layers")]
        rows.append([f"{kind}, {precision}, {threads} thread{'s' * (threads > 1)}", *cells])
    return markdown_table(rows)


def fitted_line(content: dict[str, Any], kind: str, quantity: str, precision: str, threads: int) -> str:
    """Fit a line to the time by pairs or sentences up to FITTED, or by layers: "fixed + slope (least) ms".

    The points are weighted by 1 / tokens, so that the relative distance of small sizes counts as much. least:
    the slope of the limit.
    """
    line = content["lines"][f"{kind}, {quantity}, {precision}, {threads}"]
    kept = [point for point in line if point["x"] <= FITTED]
    x, times, limits, tokens = (
        np.array([point[name] for point in kept]) for name in ("x", "fastest", "limit", "tokens")
    )
    slope, fixed = np.polyfit(x, times * tokens / 1000, 1, w=1 / tokens)
    least = np.polyfit(x, limits * tokens / 1000, 1, w=1 / tokens)[0]
    return f"{fixed:.1f} + {slope:.2f} ({least:.2f})"


def show(content: dict[str, Any], plot: Path | None) -> None:
    """Print the speeds of the machine and the table; draw the figure."""
    print("GFLOP/s of products, GB/s of memory, by the number of threads:", content["rates"])
    adamw = [1000 * content["adamw_gb"] / content["rates"][f"memory, {threads}"] for threads in THREADS]
    print(
        "AdamW takes at least",
        ", ".join(f"{ms:.1f} ms" for ms in adamw),
        "of a step, by the number of threads",
    )
    print(table(content))
    if plot:
        draw(content, plot)
        print(f"wrote {plot}")


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw a panel for each kind and quantity; dotted lines are the limits."""

    def on(*panels) -> None:
        for axes, (kind, quantity) in zip(panels, product(KINDS, QUANTITIES), strict=True):
            for (n, precision), threads in product(enumerate(PRECISIONS), THREADS):
                line = content["lines"][f"{kind}, {quantity}, {precision}, {threads}"]
                x, fastest, median, limit = (
                    [point[name] for point in line] for name in ("x", "fastest", "median", "limit")
                )
                style = {"color": COLORS[n], "linestyle": "-" if threads == 2 else "--"}
                label = f"{precision}, {threads} thread{'s' * (threads > 1)}"
                axes.plot(x, fastest, marker=MARKERS[2 * n + threads - 1], label=label, **style)
                axes.fill_between(x, fastest, median, color=COLORS[n], alpha=0.18, linewidth=0)
                style |= {"linestyle": ":", "linewidth": 1.8 if threads == 2 else 0.9}
                axes.plot(x, limit, **style)
            if quantity != "layers":
                axes.set_xscale("log", base=2)
                axes.set_xticks(x, [str(number) for number in x])
                axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.set_xlabel(QUANTITIES[quantity][list(KINDS).index(kind)])
            axes.set_title(kind.capitalize() if quantity == "length" else "", fontsize=9)
        for axes in panels[:: len(QUANTITIES)]:
            axes.set_ylabel("µs per token")
        panels[len(QUANTITIES) - 1].legend(loc="upper left", fontsize=7)  # lines begin low by layers

    save_figure(
        on,
        path,
        widths=[3.0] * len(QUANTITIES),
        height=2.3,
        rows=len(KINDS),
        title="Time per token of a training step and of encoding",
        note=f"Points: the fastest of {content['rounds']} rounds; bands: up to the median. Dotted: the "
        "limit, which is the matrix products alone at this machine's speed of products (thin: one thread). "
        f"{content['layer']} layers and {PAIRS} pairs where these do not vary. Axes of sizes and lengths are "
        "logarithmic.",
    )


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--json", type=Path, required=True, help="measurements of bench.py scaling")
    p.add_argument("--plot", type=Path, metavar="FILE", help="write the figure")
    args = p.parse_args()
    show(json.loads(args.json.read_text(encoding="utf-8")), args.plot)


if __name__ == "__main__":
    main()
