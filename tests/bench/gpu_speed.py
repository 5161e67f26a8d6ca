"""The parts of gpu.py that measure speed: step, recipe, encode.

A clock is read only after the GPU has finished its work. Peers run in turns (A B C A B C ...), the first
round is not counted, and no round begins after the time limit.
"""

import gc
import statistics
import time
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
from bench import measure, minilm_folder
from bench_train import (
    ELECTRA,
    SHAPES,
    Work,
    least_work,
    matrix_entries,
    quiet_transformers,
    random_checkpoint,
    rate,
    sentence_transformers_trainer,
    truncated,
    wait,
)

from tmft.data import Examples, read_examples
from tmft.datasets.task_lookup import get_task
from tmft.errors import describe_error
from tmft.io.formatting import markdown_table
from tmft.loop import fit
from tmft.packing import TokenizedCorpus, length_bucketed_batches
from tmft.runs.run_config import FineTuningRecipe
from tmft.runs.train_run import assemble_training
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.multitask import make_training_tasks

TOKENIZER = Path(__file__).resolve().parent.parent.parent / "data/twins/mlm"
MINILM = {"model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6}
MINILM |= {"num_attention_heads": 12, "intermediate_size": 1536}
TINY = {"hidden_size": 32, "embedding_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
PRECISIONS = {"bf16": True, "fp32": False}
# What a step of 32 pairs took before, to compare with.
SEEN = {
    "ELECTRA-base, l = 9": "One H100 (torch 2.11): tmft bf16 7.0 ms, 34.4 without graphs, transformers 42.6. "
}


@cache
def minilm(small: bool) -> Path:
    """Return the folder of all-MiniLM-L6-v2 if its package is installed, else of one with random weights."""
    installed_folder = minilm_folder()
    if installed_folder and not small:
        return installed_folder
    layers = 2 if small else MINILM["num_hidden_layers"]
    return random_checkpoint(MINILM | TINY if small else MINILM, layers, TOKENIZER)


@cache
def electra(small: bool, layers: int) -> Path:
    """Return the folder of an ELECTRA-base with random weights."""
    _, sizes, heads = SHAPES["electra-base"]
    shape = ELECTRA | sizes | {"num_attention_heads": heads}
    return random_checkpoint(shape | TINY if small else shape, layers, TOKENIZER)


def read_pairs(data: Path, count: int) -> Examples:
    """Return the first `count` training pairs of a folder, or fewer if it has fewer."""
    examples = read_examples(get_task("stsb", data=str(data)), "train")
    return Examples(tuple(column[:count] for column in examples.texts), examples.labels[:count])


def in_turns(peers: dict[str, Callable[[], float]], unit: str, seconds: float, rounds: int = 7) -> dict:
    """Run measure() for so many seconds; return median, minimum and maximum of each peer."""
    values: dict[str, list[float]] = {name: [] for name in peers}

    def recorded(name: str) -> float:
        values[name].append(peers[name]())
        return values[name][-1]

    measure({name: partial(recorded, name) for name in peers}, rounds, unit, seconds=seconds)
    counted = {name: all_values[1:] for name, all_values in values.items()}
    return {
        name: {"median": statistics.median(peer), "min": min(peer), "max": max(peer), "rounds": len(peer)}
        for name, peer in counted.items()
    }


def seconds_per_call(run: Callable[[], object], device: torch.device, min_seconds: float = 0.2) -> float:
    """Return the mean seconds of a call; calls are repeated for min_seconds, after a few uncounted ones."""
    for _ in range(3):
        run()
    wait(device)
    count, start = 0, time.perf_counter()
    while count < 3 or time.perf_counter() - start < min_seconds:
        for _ in range(1 if device.type == "cpu" else 10):
            run()
            count += 1
        wait(device)
    return (time.perf_counter() - start) / count


@cache
def peak_rates(bench) -> dict:
    """Measure the peak: TFLOP/s of products of large matrices, TB/s of adding to a long vector in place."""
    side, rates = 128 if bench.small else 8192, {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        x, y = (torch.randn(side, side, device=bench.device).to(dtype) for _ in range(2))
        seconds = min(seconds_per_call(lambda x=x, y=y: x @ y, bench.device) for _ in range(3))
        rates[name] = 2 * side**3 / seconds / 1e12
    long = torch.zeros(side * side * 4, device=bench.device)
    seconds = min(seconds_per_call(lambda: long.add_(1.0), bench.device) for _ in range(3))
    return rates | {"memory": 8 * long.numel() / seconds / 1e12, "side": side}


def installed(package: str) -> str:
    """Return the version of a package, '' if it is not installed. find_spec would also find a mere folder."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def describe_peak(rates: dict) -> str:
    """Return a sentence about the measured peak."""
    return (
        f"The measured peak of the GPU: {rates['bf16']:.3g} TFLOP/s in bf16, {rates['fp32']:.3g} in fp32 "
        f"(products of {rates['side']} x {rates['side']}, no TF32), {rates['memory']:.3g} TB/s of addition."
    )


def format_number(value: float | None, digits: int = 3) -> str:
    """Format a number with its significant digits, without an exponent; None becomes ''."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def free_memory() -> None:
    """Release the memory of models that are not used any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def make_peers(makers: dict[str, Callable], skipped: list[str], device: torch.device) -> tuple[dict, dict]:
    """Make the peers and run each once: return those that ran, and their peak memory on a GPU in MiB.

    The memory includes the weights. skipped: gets a line for every library that failed; an error of tmft is
    raised.
    """
    peers, peaks = {}, {}
    for name, make in makers.items():
        free_memory()
        if device.type == "cuda":
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        try:
            peers[name] = make()
            peers[name]()
        except Exception as error:
            if name.startswith("tmft"):
                raise
            peers.pop(name, None)
            line = f"{name} is skipped: {type(error).__name__}: {describe_error(error)}."
            skipped += [line] * (line not in skipped)
            continue
        if device.type == "cuda":
            peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return peers, peaks


# ------------------------------------------------------------------------------------------- a training step


def step(bench) -> dict:
    """Time a step of tmft, transformers and the trainer of sentence-transformers; and larger batches."""
    models = {
        "ELECTRA-base, l = 9": (electra(bench.small, 2 if bench.small else 9), 2 if bench.small else 9),
        "MiniLM, l = 3": (minilm(bench.small), 2 if bench.small else 3),
    }
    # pairs -> steps of a round
    sizes = {4: 1, 8: 1} if bench.small else {32: 40, 128: 20, 512: 10}
    result: dict = {"peak": peak_rates(bench), "steps": {}, "sizes": {}, "skipped": []}
    for name, (ckpt, layer) in models.items():
        size, steps = next(iter(sizes.items()))
        work = Work.read(SimpleNamespace(data=bench.data, steps=steps), size, bench.device.type)
        peers = step_makers(work, ckpt, layer, result["skipped"])
        result["steps"][name] = time_and_memory(peers, result["skipped"], bench.device, 15.0, steps)
        result["sizes"][name] = {}
        for size, steps in sizes.items():
            work = Work.read(SimpleNamespace(data=bench.data, steps=steps), size, bench.device.type)
            gflop, gigabytes = least_work(work, ckpt, layer)
            run = {f"tmft bf16, {size} pairs": lambda w=work, c=ckpt, n=layer: w.tmft(c, n, "bf16")}
            [timing] = time_and_memory(run, [], bench.device, 3.0, steps).values()
            result["sizes"][name][size] = timing | {"gflop": gflop, "gigabytes": gigabytes}
    return result


def step_makers(work: Work, ckpt: Path, layer: int, skipped: list[str]) -> dict[str, Callable]:
    """Return name -> function that makes the peer; skipped: gets a line for each that is not installed."""
    makers = {}
    for precision, bf16 in PRECISIONS.items():
        if installed("transformers"):
            makers[f"transformers {precision}"] = partial(truncated, work, ckpt, layer, True, bf16)
        if all(map(installed, ("sentence-transformers", "datasets", "accelerate"))):
            trainer = partial(sentence_transformers_trainer, work, ckpt, layer, bf16)
            makers[f"SentenceTransformerTrainer {precision}"] = trainer
        makers[f"tmft {precision}"] = partial(work.tmft, ckpt, layer, precision)
        usual = partial(work.tmft, ckpt, layer, precision, cuda_graphs=False)
        makers[f"tmft {precision}, no graphs"] = usual
    needs = {"transformers": "transformers"}
    needs["SentenceTransformerTrainer"] = "sentence-transformers, datasets and accelerate"
    for name, packages in needs.items():
        line = f"{name} is skipped: it needs {packages}."
        if f"{name} bf16" not in makers and line not in skipped:
            skipped.append(line)
    return makers


def time_and_memory(
    makers: dict, skipped: list[str], device: torch.device, seconds: float, steps: int
) -> dict:
    """Make the peers and time them in turns: return their ms and MiB."""
    peers, peaks = make_peers(makers, skipped, device)
    timings = in_turns(peers, "ms", seconds, 7 if steps > 1 else 1)
    peers.clear()
    free_memory()
    return {name: timing | {"MiB": peaks.get(name)} for name, timing in timings.items()}


def precision_of_peer(name: str) -> str:
    """Return the precision in the name of a peer."""
    return next(precision for precision in PRECISIONS if precision in name)


def step_tables(result: dict) -> list[tuple[str, str]]:
    """Return titles and tables of the result of step."""
    rates, tables = result["peak"], [(" ".join([describe_peak(result["peak"]), *result["skipped"]]), "")]
    for name, rows in result["steps"].items():
        sizes = result["sizes"][name]
        pairs, work = next(iter(sizes.items()))
        lines = [["", "ms", "min to max", "MiB", "tmft is x times as fast", "fraction of the peak"]]
        for peer, row in rows.items():
            precision = precision_of_peer(peer)
            ratio = row["median"] / rows[f"tmft {precision}"]["median"]
            share = work["gflop"] / row["median"] / rates[precision]  # GFLOP per ms is TFLOP per second
            between = f"{format_number(row['min'])} to {format_number(row['max'])}"
            cells = [
                format_number(row["median"]),
                between,
                format_number(row["MiB"]),
                f"{ratio:.2f}",
                f"{share:.1%}",
            ]
            lines.append([peer, *cells])
        title = f"**A training step of {pairs} pairs, {name}.** {SEEN.get(name, '')}"
        title += "tmft and the peak have the same precision; "
        tables.append(
            (f"{title}of the peak only the products of the real tokens are counted:", markdown_table(lines))
        )
        lines = [["pairs", "ms", "pairs/s", "GFLOP", "TFLOP/s", "fraction of the peak", "with AdamW", "MiB"]]
        for size, row in sizes.items():
            rate = row["gflop"] / row["median"]
            min_ms = row["gflop"] / rates["bf16"] + row["gigabytes"] / rates["memory"]
            shares = f"{rate / rates['bf16']:.1%}", f"{min_ms / row['median']:.1%}"
            speed = format_number(row["median"]), format_number(1000 * int(size) / row["median"])
            lines.append(
                [
                    str(size),
                    *speed,
                    format_number(row["gflop"]),
                    format_number(rate),
                    *shares,
                    format_number(row["MiB"]),
                ]
            )
        title = (
            f"**A step of tmft in bf16, {name}, with more pairs.** With AdamW: the minimal time of the "
            "products and of "
        )
        tables.append((f"{title}28 bytes per trained weight, divided by the time:", markdown_table(lines)))
    return tables


# ------------------------------------------------------------------------------------ the recipe of the paper


def recipe(bench) -> dict:
    """Fine-tune with the recipe of the paper, as train.py does, and time it: seconds, ms per step, memory."""
    layers = (1, 2) if bench.small else (3, 9, 12)
    rows, examples = {}, read_pairs(bench.data, 40 if bench.small else 5749)
    for layer in layers:
        model = SentenceEncoder.from_pretrained(electra(bench.small, max(layers)), layer).to(bench.device)
        task = get_task("stsb", data=str(bench.data))
        data = {"": {"train": examples, "dev": Examples(*few(examples, 1500))}}
        tasks = make_training_tasks(task, model.dimensions, data)
        hyperparameters = FineTuningRecipe(epochs=1 if bench.small else 10)
        if bench.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        training_task, embed, callbacks = assemble_training(model, tasks, hyperparameters)
        epochs = list(fit(model, training_task, hyperparameters, 0, embed, callbacks))
        wait(bench.device)
        seconds = time.perf_counter() - start
        peak = torch.cuda.max_memory_allocated() / 2**20 if bench.device.type == "cuda" else None
        steps = len(epochs) * -(-len(examples) // hyperparameters.batch_size)
        pairs_per_second = statistics.median(epoch.pairs_per_second for epoch in epochs)
        rows[layer] = {"seconds": seconds, "steps": steps, "pairs/s": pairs_per_second, "MiB": peak}
        print(rows[layer], flush=True)
        del model, training_task, embed, callbacks, tasks
        free_memory()
    return {"rows": rows}


def few(examples: Examples, count: int) -> tuple:
    """Return the first texts and labels of examples."""
    return tuple(column[:count] for column in examples.texts), examples.labels[:count]


def recipe_tables(result: dict) -> list[tuple[str, str]]:
    """Return title and table of the result of recipe."""
    lines = [["layers", "seconds", "steps", "pairs/s", "MiB"]]
    for layer, row in result["rows"].items():
        numbers = [format_number(row[key]) for key in ("seconds", "steps", "pairs/s", "MiB")]
        lines.append([str(layer), *numbers])
    title = (
        "**The recipe of the paper**, ELECTRA-base, bf16, with an evaluation of 1,500 pairs in each epoch:"
    )
    return [(title, markdown_table(lines))]


# --------------------------------------------------------------------------------------------------- encoding


def encode(bench) -> dict:
    """Encode with MiniLM: a sample, also with sentence-transformers and in batches of other sizes; more."""
    count, sample_size = (200, 100) if bench.small else (200_000, 20_000)
    texts = random_sentences(bench.data, count)
    sample, device, ckpt = texts[:sample_size], bench.device, minilm(bench.small)
    models = {name: SentenceEncoder.from_pretrained(ckpt).to(device) for name in PRECISIONS}
    models["bf16"].bfloat16()
    makers, skipped = {}, []
    for name in PRECISIONS:
        for size in (32, 512):
            timed = partial(sentence_transformers_encode, ckpt, name, size, sample, device)
            makers[f"sentence-transformers {name}, batch {size}"] = timed
        makers[f"tmft {name}"] = lambda n=name: rate(partial(models[n].encode, sample), sample_size, device)
    peers, _ = make_peers(makers, skipped, device)
    result = {"sample": in_turns(peers, "sentences/s", 20.0, 1 if bench.small else 3), "skipped": skipped}

    ids = models["fp32"].tokenize_to_corpus(sample)
    result["batches"] = {}
    for tokens in (256,) if bench.small else (4096, 8192, 16384, 32768, 65536):
        result["batches"][tokens] = {
            name: rate(partial(encode_in_batches, model, ids, tokens), sample_size, device)()
            for name, model in models.items()
        }
    free_memory()
    result["million"] = {name: time_stages(model, texts, device) for name, model in models.items()}
    tokens_per_sentence = result["million"]["fp32"]["tokens"] / count
    gflop = 2 * matrix_entries(models["fp32"]) * tokens_per_sentence / 1e9
    return result | {"count": count, "sample_size": sample_size, "peak": peak_rates(bench), "gflop": gflop}


def sentence_transformers_encode(ckpt: Path, precision: str, size: int, sample: list[str], device):
    """Return a round of encoding with sentence-transformers. size: of its batches."""
    from sentence_transformers import SentenceTransformer

    quiet_transformers()
    dtype = {"model_kwargs": {"dtype": torch.bfloat16 if precision == "bf16" else torch.float32}}
    model = SentenceTransformer(str(ckpt), device=device.type, **dtype)
    return rate(partial(model.encode, sample, batch_size=size), len(sample), device)


def random_sentences(data: Path, count: int) -> list[str]:
    """Return distinct random sentences, with words and lengths of the training pairs."""
    examples, rng = read_examples(get_task("stsb", data=str(data)), "train"), np.random.default_rng(0)
    split = [sentence.split() for sentence in examples.sentences]
    words = np.array([word for sentence in split for word in sentence])
    lengths = rng.choice([max(4, len(sentence)) for sentence in split], count)
    drawn, ends = words[rng.integers(len(words), size=lengths.sum())].tolist(), lengths.cumsum().tolist()
    sentences = (" ".join(drawn[end - n : end]) for end, n in zip(ends, lengths.tolist(), strict=True))
    return [f"{sentence} {index}" for index, sentence in enumerate(sentences)]


@torch.inference_mode()
def encode_in_batches(model: SentenceEncoder, ids: TokenizedCorpus, tokens_per_batch: int) -> None:
    """Embed token ids as encode does, with another number of tokens in a batch."""

    def batches(lengths, _, packed_length, max_scores):
        return length_bucketed_batches(lengths, tokens_per_batch, packed_length, max_scores)

    with patch("tmft.packing.length_bucketed_batches", batches):
        model.embed_token_ids(ids)


def time_stages(model: SentenceEncoder, texts: list[str], device: torch.device) -> dict:
    """Return the seconds of encoding, and of each stage by itself: tokenize, pack, compute."""
    start = time.perf_counter()
    model.encode(texts)
    encode_seconds = time.perf_counter() - start
    start = time.perf_counter()
    ids = model.tokenize_to_corpus(texts)
    tokenize_seconds = time.perf_counter() - start
    start = time.perf_counter()
    batches = [packed for _, packed in model.packed_batches(ids)]  # on the device
    wait(device)
    pack_seconds, tokens = time.perf_counter() - start, len(ids.tokens)
    start = time.perf_counter()
    with torch.inference_mode():
        for packed in batches:
            model(packed)
        wait(device)
    compute_seconds = time.perf_counter() - start
    seconds = {
        "encode": encode_seconds,
        "tokenize": tokenize_seconds,
        "pack": pack_seconds,
        "compute": compute_seconds,
    }
    return seconds | {"tokens": tokens}


def encode_tables(result: dict) -> list[tuple[str, str]]:
    """Return titles and tables of the result of encode."""
    rows = result["sample"]
    lines = [["", "sentences/s", "min to max", "tmft is x times as fast"]]
    for name, row in rows.items():
        ratio = rows[f"tmft {precision_of_peer(name)}"]["median"] / row["median"]
        between = f"{format_number(row['min'])} to {format_number(row['max'])}"
        lines.append([name, format_number(row["median"]), between, f"{ratio:.2f}"])
    notes = " ".join([describe_peak(result["peak"]), *result["skipped"]])
    tables = [(f"**Encoding {result['sample_size']:,} sentences, MiniLM.** {notes}", markdown_table(lines))]
    lines = [["tokens in a batch", *(f"{name}, sentences/s" for name in PRECISIONS)]]
    lines += [
        [str(n), *(format_number(row[name]) for name in PRECISIONS)] for n, row in result["batches"].items()
    ]
    tables.append(("From token ids, by the size of a batch:", markdown_table(lines)))
    lines = [["", "s", "sentences/s", "tokenize, s", "pack", "compute", "fraction of the peak in compute"]]
    for name, row in result["million"].items():
        share = result["gflop"] * result["count"] / row["compute"] / 1000 / result["peak"][name]
        stages = [format_number(row[key]) for key in ("tokenize", "pack", "compute")]
        lines.append(
            [
                f"tmft {name}",
                format_number(row["encode"]),
                format_number(result["count"] / row["encode"]),
                *stages,
                f"{share:.1%}",
            ]
        )
    title = f"{result['count']:,} sentences, once, and each stage of it by itself:"
    return [*tables, (title, markdown_table(lines))]
