"""The parts of gpu.py that are about speed: step, attention, encode, pretrain.

A time is taken when the GPU has done all that it was given. Peers run in turns (A B C A B C ...), the first
round is not counted, and the last one begins before its share of the part's time is over.
"""

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MethodType, SimpleNamespace

import numpy as np
import torch
from bench import measure, minilm_folder, transformers_mlm
from bench_train import (
    ELECTRA,
    SHAPES,
    Work,
    least_work,
    library_attention,
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
from tmft.device import MixedPrecision
from tmft.distributed import single_process
from tmft.formatting import markdown_table
from tmft.io.atomic import error_text
from tmft.models.base import block_diagonal_mask
from tmft.models.bert import SelfAttention
from tmft.models.registry import config_from_dict
from tmft.packing import PACKED_LENGTH, pack
from tmft.pretraining.corpus import tokenise
from tmft.pretraining.loop import PretrainingRecipe
from tmft.pretraining.loop import fit as pretrain_fit
from tmft.pretraining.masking import Masking
from tmft.runs.pretrain import from_checkpoint
from tmft.runs.run_config import PretrainingConfig
from tmft.sentence_encoder import SentenceEncoder
from tmft.speed.length_buckets import length_bucketed_batches
from tmft.training.checkpointing import State

TOKENIZER = Path(__file__).resolve().parent.parent.parent / "data/twins/mlm"
MINILM = {"model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6}
MINILM |= {"num_attention_heads": 12, "intermediate_size": 1536}
TINY = {"hidden_size": 32, "embedding_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
PRECISIONS = {"bf16": True, "fp32": False}


@cache
def minilm(small: bool) -> Path:
    """The folder of the real one, if its package is here, else one of its shape; small: two tiny layers."""
    real = minilm_folder()
    if real and not small:
        return real
    layers = 2 if small else MINILM["num_hidden_layers"]
    return random_checkpoint(MINILM | TINY if small else MINILM, layers, TOKENIZER)


@cache
def electra(small: bool, layers: int) -> Path:
    """The shape of ELECTRA-base with random weights."""
    _, sizes, heads = SHAPES["electra-base"]
    shape = ELECTRA | sizes | {"num_attention_heads": heads}
    return random_checkpoint(shape | TINY if small else shape, layers, TOKENIZER)


def read_pairs(data: Path, count: int) -> Examples:
    """The first `count` training pairs of those of a folder, or as many as there are."""
    examples = read_examples(get_task("stsb", data=str(data)), "train")
    return Examples(tuple(column[:count] for column in examples.texts), examples.labels[:count])


def in_turns(peers: dict[str, Callable[[], float]], unit: str, seconds: float, rounds: int = 7) -> dict:
    """measure() for so many seconds -> of each peer its median, least and largest value."""
    values: dict[str, list[float]] = {name: [] for name in peers}

    def noted(name: str) -> float:
        values[name].append(peers[name]())
        return values[name][-1]

    measure({name: partial(noted, name) for name in peers}, rounds, unit, seconds=seconds)
    counted = {name: seen[1:] for name, seen in values.items()}
    return {
        name: {"median": statistics.median(seen), "min": min(seen), "max": max(seen), "rounds": len(seen)}
        for name, seen in counted.items()
    }


def seconds_of(run: Callable[[], object], device: torch.device, least: float = 0.2) -> float:
    """Of one call of many, which take this long together; a few go before them."""
    for _ in range(3):
        run()
    wait(device)
    count, start = 0, time.perf_counter()
    while count < 3 or time.perf_counter() - start < least:
        for _ in range(1 if device.type == "cpu" else 10):
            run()
            count += 1
        wait(device)
    return (time.perf_counter() - start) / count


@cache
def card(bench) -> dict:
    """TFLOP/s of products of large square matrices, TB/s of adding to a long vector in place: measured."""
    side, rates = 128 if bench.small else 8192, {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        x, y = (torch.randn(side, side, device=bench.device).to(dtype) for _ in range(2))
        seconds = min(seconds_of(lambda x=x, y=y: x @ y, bench.device) for _ in range(3))
        rates[name] = 2 * side**3 / seconds / 1e12
    long = torch.zeros(side * side * 4, device=bench.device)
    seconds = min(seconds_of(lambda: long.add_(1.0), bench.device) for _ in range(3))
    return rates | {"memory": 8 * long.numel() / seconds / 1e12, "side": side}


def installed(package: str) -> str:
    """Its version, '' if it is not there. A folder of its name would be enough for find_spec."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def told_of(rates: dict) -> str:
    return (
        f"The card's peak, measured: {rates['bf16']:.3g} TFLOP/s in bf16, {rates['fp32']:.3g} in fp32 "
        f"(products of {rates['side']} x {rates['side']}, no TF32), {rates['memory']:.3g} TB/s added."
    )


def number(value: float | None, digits: int = 3) -> str:
    """As many digits as mean something, without an exponent; nothing for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def made(makers: dict[str, Callable], left_out: list[str], device: torch.device) -> tuple[dict, dict]:
    """Make the peers and run each once -> those that ran, and the MiB that each took on a GPU at most, with
    its weights. left_out: gets a line for another library that failed; what fails of ours is raised."""
    peers, peaks = {}, {}
    for name, make in makers.items():
        free()
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
            line = f"{name} is left out: {type(error).__name__}: {error_text(error)}."
            left_out += [line] * (line not in left_out)
            continue
        if device.type == "cuda":
            peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return peers, peaks


# ------------------------------------------------------------------------------------------- a training step


def step(bench) -> dict:
    """Beside truncated transformers and the trainer of sentence-transformers; ours alone of more pairs."""
    models = {
        "ELECTRA-base, l = 9": (electra(bench.small, 2 if bench.small else 9), 2 if bench.small else 9),
        "MiniLM, l = 3": (minilm(bench.small), 2 if bench.small else 3),
    }
    sizes, steps = ((4, 8), 1) if bench.small else ((32, 128, 512), 8)
    found: dict = {"card": card(bench), "steps": {}, "sizes": {}, "left_out": []}
    for name, (ckpt, layer) in models.items():
        given = SimpleNamespace(data=bench.data, steps=steps)
        work = Work.read(given, sizes[0], bench.device.type)
        peers = step_peers(work, ckpt, layer, found["left_out"])
        found["steps"][name] = with_memory(peers, found["left_out"], bench.device, 60.0, steps)
        found["sizes"][name] = {}
        for size in sizes:
            work = Work.read(given, size, bench.device.type)
            gflop, gigabytes = least_work(work, ckpt, layer)
            run = {f"tmft bf16, {size} pairs": lambda w=work, c=ckpt, n=layer: w.tmft(c, n, "bf16")}
            [row] = with_memory(run, [], bench.device, 15.0, steps).values()
            found["sizes"][name][size] = row | {"gflop": gflop, "gigabytes": gigabytes}
    return found


def step_peers(work: Work, ckpt: Path, layer: int, left_out: list[str]) -> dict[str, Callable]:
    """Name -> what makes it; left_out: gets a line for each that is not here."""
    makers = {}
    for precision, bf16 in PRECISIONS.items():
        if installed("transformers"):
            makers[f"transformers {precision}"] = partial(truncated, work, ckpt, layer, True, bf16)
        if all(map(installed, ("sentence-transformers", "datasets", "accelerate"))):
            trainer = partial(sentence_transformers_trainer, work, ckpt, layer, bf16)
            makers[f"SentenceTransformerTrainer {precision}"] = trainer
        makers[f"tmft {precision}"] = partial(work.tmft, ckpt, layer, precision)
    needs = {"transformers": "transformers"}
    needs["SentenceTransformerTrainer"] = "sentence-transformers, datasets and accelerate"
    for name, packages in needs.items():
        line = f"{name} is left out: it needs {packages}."
        if f"{name} bf16" not in makers and line not in left_out:
            left_out.append(line)
    return makers


def with_memory(makers: dict, left_out: list[str], device: torch.device, seconds: float, steps: int) -> dict:
    """Make the peers and time them in turns, ms, with their MiB."""
    peers, peaks = made(makers, left_out, device)
    found = in_turns(peers, "ms", seconds, 7 if steps > 1 else 1)
    peers.clear()
    free()
    return {name: row | {"MiB": peaks.get(name)} for name, row in found.items()}


def own_precision(name: str) -> str:
    return next(precision for precision in PRECISIONS if precision in name)


def step_tables(found: dict) -> list[tuple[str, str]]:
    rates, tables = found["card"], [(" ".join([told_of(found["card"]), *found["left_out"]]), "")]
    for name, rows in found["steps"].items():
        sizes = found["sizes"][name]
        pairs, work = next(iter(sizes.items()))
        lines = [["", "ms", "min to max", "MiB", "tmft is x times as fast", "share of the peak"]]
        for peer, row in rows.items():
            own = own_precision(peer)
            ratio = row["median"] / rows[f"tmft {own}"]["median"]
            share = work["gflop"] / row["median"] / rates[own]  # GFLOP a ms is TFLOP a second
            between = f"{number(row['min'])} to {number(row['max'])}"
            cells = [number(row["median"]), between, number(row["MiB"]), f"{ratio:.2f}", f"{share:.1%}"]
            lines.append([peer, *cells])
        title = f"**A training step of {pairs} pairs, {name}.** x and the peak are of the same precision, "
        tables.append((f"{title}the share is that of the products of the real tokens:", markdown_table(lines)))
        lines = [["pairs", "ms", "pairs/s", "GFLOP", "TFLOP/s", "share of the peak", "and AdamW", "MiB"]]
        for size, row in sizes.items():
            rate = row["gflop"] / row["median"]
            least = row["gflop"] / rates["bf16"] + row["gigabytes"] / rates["memory"]  # ms
            shares = f"{rate / rates['bf16']:.1%}", f"{least / row['median']:.1%}"
            speed = number(row["median"]), number(1000 * int(size) / row["median"])
            lines.append([str(size), *speed, number(row["gflop"]), number(rate), *shares, number(row["MiB"])])
        title = (
            f"**Our step in bf16, {name}, of more pairs.** And AdamW: the least time of the products and of "
        )
        tables.append((f"{title}28 bytes a trained weight, as a part of the time:", markdown_table(lines)))
    return tables


# -------------------------------------------------------------------------------------------------- attention


def attention(bench) -> dict:
    """SelfAttention of base width, with its four linear maps, in rows that hold four sentences each."""
    shape = {"model_type": "bert", "vocab_size": 10, "num_hidden_layers": 1, "hidden_size": 768}
    shape |= {"num_attention_heads": 12, "intermediate_size": 3072}
    shape |= {"hidden_size": 32, "num_attention_heads": 2} if bench.small else {}
    tokens, widths = (64, (16,)) if bench.small else (16384, (64, 128, 256, 512))
    rows, least = [], 0.02 if bench.small else 0.2
    for precision in ("bf16",) if bench.small else PRECISIONS:
        for T in widths:
            for dropout in (0.0, 0.1):
                module = SelfAttention(config_from_dict(shape | {"attention_probs_dropout_prob": dropout}))
                module = module.to(bench.device).train()
                hidden = torch.randn(tokens // T, T, shape["hidden_size"], device=bench.device)
                sentences = torch.arange(T, device=bench.device).mul(4).div(T, rounding_mode="floor") + 1
                mask = block_diagonal_mask(sentences.expand(tokens // T, T), hidden.dtype)[:, None]
                row = {"precision": precision, "tokens": T, "dropout": dropout}
                for name, forward in (("written", SelfAttention.forward), ("sdpa", library_attention)):
                    row |= timed_attention(module, forward, hidden, mask, precision, name, least)
                rows.append(row)
                print(row, flush=True)
    return {"rows": rows, "batch": tokens, "width": shape["hidden_size"]}


def timed_attention(module, forward, hidden, mask, precision: str, name: str, least: float) -> dict:
    """ms of the forward pass and of both, whose peak of memory, and whether their bits are the same twice."""
    amp, device = MixedPrecision(hidden.device, precision), hidden.device
    module.forward = MethodType(forward, module)
    x = hidden.clone().requires_grad_()

    def both() -> torch.Tensor:
        with amp:
            out = module(x, mask)
        out.float().square().mean().backward()

    def ahead() -> None:
        with torch.no_grad(), amp:
            module(x, mask)

    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        x.grad = None
        module.zero_grad()
        both()
        return [x.grad.clone(), *(weight.grad.clone() for weight in module.parameters())]

    same = all(map(torch.equal, gradients(), gradients()))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    figures = {
        "forward": 1000 * seconds_of(ahead, device, least),
        "both": 1000 * seconds_of(both, device, least),
    }
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None
    return {f"{name} {key}": value for key, value in (figures | {"MiB": peak, "same bits": same}).items()}


def attention_tables(found: dict) -> list[tuple[str, str]]:
    heading = [
        "precision, tokens, dropout",
        "forward, ms",
        "SDPA",
        "x",
        "both, ms",
        "SDPA",
        "x",
        "MiB",
        "SDPA",
    ]
    lines, faster = [[*heading, "same bits twice", "SDPA"]], 0
    for row in found["rows"]:
        cells = [f"{row['precision']}, {row['tokens']}, {row['dropout']}"]
        for what in ("forward", "both"):
            ours, theirs = row[f"written {what}"], row[f"sdpa {what}"]
            cells += [number(ours), number(theirs), f"{ours / theirs:.2f}"]
        faster += row["written both"] > row["sdpa both"]
        cells += [number(row["written MiB"]), number(row["sdpa MiB"])]
        lines.append([*cells, *("yes" if row[f"{way} same bits"] else "NO" for way in ("written", "sdpa"))])
    title = (
        f"**Attention written out beside `scaled_dot_product_attention`,** {found['width']} wide, with its "
        f"linear maps and the mask of rows, {found['batch']} tokens at a time, four sentences in a row; x: "
        f"how many times as fast SDPA is. Both ways it is faster in {faster} of {len(found['rows'])} rows:"
    )
    return [(title, markdown_table(lines))]


# --------------------------------------------------------------------------------------------------- encoding


def encode(bench) -> dict:
    """All of MiniLM: a sample beside sentence-transformers, the same by batches of other sizes, a million."""
    count, part = (200, 100) if bench.small else (1_000_000, 20_000)
    texts = made_up(bench.data, count)
    sample, device, ckpt = texts[:part], bench.device, minilm(bench.small)
    models = {name: SentenceEncoder.from_pretrained(ckpt).to(device) for name in PRECISIONS}
    models["bf16"].bfloat16()
    makers, left_out = {}, []
    for name in PRECISIONS:
        for size in (32, 512):
            timed = partial(sentence_transformers_encode, ckpt, name, size, sample, device)
            makers[f"sentence-transformers {name}, batch {size}"] = timed
        makers[f"tmft {name}"] = lambda n=name: rate(partial(models[n].encode, sample), part, device)
    peers, _ = made(makers, left_out, device)
    found = {"sample": in_turns(peers, "sentences/s", 60.0, 1 if bench.small else 3), "left_out": left_out}

    ids = models["fp32"].tokenize(sample)
    found["batches"] = {}
    for tokens in (256,) if bench.small else (4096, 8192, 16384, 32768, 65536):
        found["batches"][tokens] = {
            name: rate(partial(in_batches, model, ids, tokens), part, device)()
            for name, model in models.items()
        }
    free()
    found["million"] = {name: many(model, texts, device) for name, model in models.items()}
    entries, each = matrix_entries(models["fp32"]), found["million"]["fp32"]["tokens"] / count
    return found | {"count": count, "part": part, "card": card(bench), "gflop": 2 * entries * each / 1e9}


def sentence_transformers_encode(ckpt: Path, precision: str, size: int, sample: list[str], device):
    from sentence_transformers import SentenceTransformer

    quiet_transformers()
    dtype = {"model_kwargs": {"dtype": torch.bfloat16 if precision == "bf16" else torch.float32}}
    model = SentenceTransformer(str(ckpt), device=device.type, **dtype)
    return rate(partial(model.encode, sample, batch_size=size), len(sample), device)


def made_up(data: Path, count: int) -> list[str]:
    """So many sentences, no two alike: as long as those of the training pairs, of their words."""
    examples, rng = read_examples(get_task("stsb", data=str(data)), "train"), np.random.default_rng(0)
    split = [sentence.split() for sentence in examples.sentences]
    words = np.array([word for sentence in split for word in sentence])
    lengths = rng.choice([max(4, len(sentence)) for sentence in split], count)
    chosen, ends = words[rng.integers(len(words), size=lengths.sum())].tolist(), lengths.cumsum().tolist()
    sentences = (" ".join(chosen[end - n : end]) for end, n in zip(ends, lengths.tolist(), strict=True))
    return [f"{sentence} {place}" for place, sentence in enumerate(sentences)]


@torch.inference_mode()
def in_batches(model: SentenceEncoder, ids: list[list[int]], tokens: int) -> None:
    """What encode does with token ids, with another number of tokens in a batch."""
    for batch, width in length_bucketed_batches(list(map(len, ids)), tokens, PACKED_LENGTH):
        model(pack([ids[s] for s in batch], width, model.tokenizer.pad_id).to(model.device)).cpu()


def many(model: SentenceEncoder, texts: list[str], device: torch.device) -> dict:
    """Seconds of the whole, and of its parts one by one: words to ids, ids to rows, rows to embeddings."""
    start = time.perf_counter()
    ids = model.tokenize(texts)
    tokenised = time.perf_counter() - start
    start = time.perf_counter()
    model.embed_token_ids(ids)
    embedded = time.perf_counter() - start
    start = time.perf_counter()
    rows = [rows for _, rows in model.packed_batches(ids)]  # on the device
    wait(device)
    prepacked_weights, tokens = time.perf_counter() - start, sum(map(len, ids))
    start = time.perf_counter()
    with torch.inference_mode():
        for batch in rows:
            model(batch)
        wait(device)
    computed = time.perf_counter() - start
    seconds = {
        "whole": tokenised + embedded,
        "to ids": tokenised,
        "to rows": prepacked_weights,
        "to embeddings": computed,
    }
    return seconds | {"tokens": tokens}


def encode_tables(found: dict) -> list[tuple[str, str]]:
    rows = found["sample"]
    lines = [["", "sentences/s", "min to max", "tmft is x times as fast"]]
    for name, row in rows.items():
        ratio = rows[f"tmft {own_precision(name)}"]["median"] / row["median"]
        between = f"{number(row['min'])} to {number(row['max'])}"
        lines.append([name, number(row["median"]), between, f"{ratio:.2f}"])
    told = " ".join([told_of(found["card"]), *found["left_out"]])
    tables = [(f"**Encoding {found['part']:,} sentences, MiniLM.** {told}", markdown_table(lines))]
    lines = [["tokens in a batch", *(f"{name}, sentences/s" for name in PRECISIONS)]]
    lines += [[str(n), *(number(row[name]) for name in PRECISIONS)] for n, row in found["batches"].items()]
    tables.append(("The same from token ids, by the size of a batch:", markdown_table(lines)))
    lines = [["", "s", "sentences/s", "to ids, s", "to rows", "to embeddings", "share of the peak in this"]]
    for name, row in found["million"].items():
        share = found["gflop"] * found["count"] / row["to embeddings"] / 1000 / found["card"][name]
        parts = [number(row[key]) for key in ("to ids", "to rows", "to embeddings")]
        lines.append(
            [
                f"tmft {name}",
                number(row["whole"]),
                number(found["count"] / row["whole"]),
                *parts,
                f"{share:.1%}",
            ]
        )
    title = f"{found['count']:,} sentences, once, and the parts of it one by one:"
    return [*tables, (title, markdown_table(lines))]


# ----------------------------------------------------------------------------------------------- pre-training


def pretrain(bench) -> dict:
    """Masked words, all layers, tokens a second: few sentences a step and many, beside transformers."""
    sizes, steps = ((8,), 2) if bench.small else ((32, 256), 30)
    models = {"MiniLM": minilm(bench.small), "ELECTRA-base": electra(bench.small, 2 if bench.small else 12)}
    texts = read_examples(get_task("stsb", data=str(bench.data)), "train").sentences
    found: dict = {"card": card(bench), "rows": {}, "left_out": []}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "text.txt"
        path.write_text("\n".join(texts[:400] if bench.small else texts), encoding="utf-8")
        for name, ckpt in models.items():
            for size in sizes:
                row = pretrained(bench, ckpt, path, size, steps, found["left_out"])
                found["rows"][f"{name}, {size} sentences"] = row
                free()
    return found


def pretrained(bench, ckpt: Path, path: Path, size: int, steps: int, left_out: list[str]) -> dict:
    recipe = PretrainingRecipe(batch_size=size, accumulate=1, steps=steps, save_every=steps)
    torch.manual_seed(0)
    model, tokenizer, _ = from_checkpoint(
        PretrainingConfig(task="mlm", ckpt=str(ckpt), text=(path,), recipe=recipe)
    )
    model, masking = model.to(bench.device), Masking.of(tokenizer)
    sentences = tokenise([path], tokenizer, recipe.max_length)
    device = bench.device.type

    def ours(precision: str) -> Callable[[], float]:
        def run() -> float:
            one = single_process(bench.device)
            state = State(path.with_name("state.pt"), {}, one)
            how = replace(recipe, precision=precision)
            *_, last = pretrain_fit(model, sentences, masking, how, 0, one, state)
            state.remove()
            return last.tokens_per_second

        return run

    def theirs() -> Callable[[], float]:
        quiet_transformers()
        return transformers_mlm(ckpt, sentences, steps, size, device, True)

    makers = {"transformers bf16": theirs}
    makers |= {f"tmft {precision}": partial(ours, precision) for precision in PRECISIONS}
    peers, _ = made(makers, left_out, bench.device)
    found = in_turns(peers, "tokens/s", 15.0, 1 if bench.small else 3)
    masked = masking.share * model.encoder.embeddings.word.weight.numel()  # scores of all words, for these
    flop = 6 * (matrix_entries(model.encoder) + masked)
    return found | {"flop": flop}


def pretrain_tables(found: dict) -> list[tuple[str, str]]:
    lines = [["", "tokens/s", "min to max", "tmft is x times as fast", "share of the peak"]]
    for name, rows in found["rows"].items():
        for peer, row in rows.items():
            if isinstance(row, dict):
                own = own_precision(peer)
                share = row["median"] * rows["flop"] / 1e12 / found["card"][own]
                ratio = rows[f"tmft {own}"]["median"] / row["median"]
                between = f"{number(row['min'])} to {number(row['max'])}"
                lines.append(
                    [f"{name}: {peer}", number(row["median"]), between, f"{ratio:.2f}", f"{share:.1%}"]
                )
    told = " ".join([told_of(found["card"]), *found["left_out"]])
    return [
        (f"**Masked language modelling, all layers, a step of so many sentences.** {told}", markdown_table(lines))
    ]
