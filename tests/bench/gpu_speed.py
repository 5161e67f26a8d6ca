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

import numpy as np
import torch
from bench import measure, minilm_folder
from bench_train import (
    WIDTH_768,
    Work,
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
from tmft.runs.run_config import FineTuningRecipe
from tmft.runs.train_run import assemble_training
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.multitask import make_training_tasks

TOKENIZER = Path(__file__).resolve().parent.parent.parent / "data/twins/mlm"
MINILM = {"model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6}
MINILM |= {"num_attention_heads": 12, "intermediate_size": 1536}
ELECTRA = WIDTH_768 | {"model_type": "electra", "vocab_size": 30522, "embedding_size": 768}
TINY = {"hidden_size": 32, "embedding_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
PRECISIONS = {"bf16": True, "fp32": False}


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
    return random_checkpoint(ELECTRA | TINY if small else ELECTRA, layers, TOKENIZER)


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


def installed(package: str) -> str:
    """Return the version of a package, '' if it is not installed. find_spec would also find a mere folder."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def format_number(value: float | None) -> str:
    """Format a number with three significant digits, without an exponent; None becomes ''."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def peer_rows(peers: dict, keys: tuple[str, ...], slower: Callable[[float, float], float]) -> list[list[str]]:
    """Return the rows of a table: of each peer the median, its range, other numbers, and the ratio to tmft.

    slower: how many times as slow a value of a peer is as one of tmft, which has the same precision.
    """
    rows = []
    for name, row in peers.items():
        tmft = peers[f"tmft {next(precision for precision in PRECISIONS if precision in name)}"]
        between = f"{format_number(row['min'])} to {format_number(row['max'])}"
        more = [format_number(row[key]) for key in keys]
        ratio = slower(row["median"], tmft["median"])
        rows.append([name, format_number(row["median"]), between, *more, f"{ratio:.2f}"])
    return rows


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
    result: dict = {"steps": {}, "sizes": {}, "skipped": []}
    for name, (ckpt, layer) in models.items():
        size, steps = next(iter(sizes.items()))
        work = Work.read(SimpleNamespace(data=bench.data, steps=steps), size, bench.device.type)
        peers = step_makers(work, ckpt, layer, result["skipped"])
        result["steps"][name] = time_and_memory(peers, result["skipped"], bench.device, 15.0, steps)
        result["sizes"][name] = {}
        for size, steps in sizes.items():
            work = Work.read(SimpleNamespace(data=bench.data, steps=steps), size, bench.device.type)
            run = {f"tmft bf16, {size} pairs": lambda w=work, c=ckpt, n=layer: w.tmft(c, n, "bf16")}
            [timing] = time_and_memory(run, [], bench.device, 3.0, steps).values()
            result["sizes"][name][size] = timing
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


def step_tables(result: dict) -> list[tuple[str, str]]:
    """Return titles and tables of the result of step."""
    tables = [(" ".join(result["skipped"]), "")] if result["skipped"] else []
    for name, rows in result["steps"].items():
        sizes = result["sizes"][name]
        lines = [["", "ms", "min to max", "MiB", "tmft is x times as fast"]]
        lines += peer_rows(rows, ("MiB",), lambda peer, tmft: peer / tmft)
        title = f"**A training step of {next(iter(sizes))} pairs, {name}.** tmft has the same precision:"
        tables.append((title, markdown_table(lines)))
        lines = [["pairs", "ms", "pairs/s", "MiB"]]
        for size, row in sizes.items():
            numbers = row["median"], 1000 * int(size) / row["median"], row["MiB"]
            lines.append([str(size), *map(format_number, numbers)])
        tables.append((f"**A step of tmft in bf16, {name}, with more pairs:**", markdown_table(lines)))
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
    """Encode sentences with MiniLM, also with sentence-transformers in batches of two sizes."""
    count = 100 if bench.small else 20_000
    texts = random_sentences(bench.data, count)
    device, ckpt = bench.device, minilm(bench.small)
    makers, skipped = {}, []
    for name in PRECISIONS:
        for size in (32, 512):
            timed = partial(sentence_transformers_encode, ckpt, name, size, texts, device)
            makers[f"sentence-transformers {name}, batch {size}"] = timed
        makers[f"tmft {name}"] = partial(tmft_encode, ckpt, name, texts, device)
    peers, _ = make_peers(makers, skipped, device)
    timings = in_turns(peers, "sentences/s", 20.0, 1 if bench.small else 3)
    return {"sentences/s": timings, "skipped": skipped, "count": count}


def tmft_encode(ckpt: Path, precision: str, texts: list[str], device) -> Callable[[], float]:
    """Return a round of encoding with tmft."""
    dtype = "bfloat16" if precision == "bf16" else "float32"
    model = SentenceEncoder.from_pretrained(ckpt, dtype=dtype).to(device)
    return rate(partial(model.encode, texts), len(texts), device)


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


def encode_tables(result: dict) -> list[tuple[str, str]]:
    """Return title and table of the result of encode."""
    lines = [["", "sentences/s", "min to max", "tmft is x times as fast"]]
    lines += peer_rows(result["sentences/s"], (), lambda peer, tmft: tmft / peer)
    title = " ".join([f"**Encoding {result['count']:,} sentences, MiniLM.**", *result["skipped"]])
    return [(title, markdown_table(lines))]
