"""The parts of gpu.py that ask whether a GPU computes what the CPU does: right, processes.

A check is a number and the most that it may be. What the CPU gives in float32 is what a device has to give,
in float32 up to rounding, in 16 bits up to theirs. A check that raises is wrong, and the others go on.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from elsewhere import DEBERTA, ELECTRA, TWINS
from gpu_process import WRITTEN, end_to_end, learn_together
from gpu_speed import minilm, read_pairs
from torch import Tensor

from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.data import Examples
from tmft.tasks import Task
from tmft.datasets.task_lookup import get_task
from tmft.device import MixedPrecision
from tmft.distributed import Processes, single_process
from tmft.training.model_options import add_projection
from tmft.errors import InputError
from tmft.formatting import markdown_table
from tmft.io.atomic import error_text
from tmft.losses.cosine import CosineMSE
from tmft.models.registry import config_from_dict, random_encoder
from tmft.packing import pack
from tmft.pooling import POOLINGS
from tmft.pretraining.heads import MaskedLM, ReplacedTokenDetection
from tmft.pretraining.loop import PretrainingRecipe
from tmft.pretraining.loop import fit as pretrain
from tmft.pretraining.masking import Masking
from tmft.pretraining.span_corruption import SpanCorruption, SpanMasking
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.checkpointing import State
from tmft.training.freezing import Embedder
from tmft.training.loop import Recipe, fit
from tmft.training.multitask import lessons_of
from tmft.training.optimizers import OPTIMIZERS, parameter_groups

CPU = torch.device("cpu")
# The most that a hidden state may be off, as a part of its largest number, and all gradients together, as a
# part of their norm.
TOLERANCES = {"fp32": (1e-4, 1e-3), "bf16": (5e-2, 5e-2), "fp16": (1e-2, 2e-2)}
LOSSES = 1e-3  # of a few steps, as a part of the loss
LIMIT = 120  # seconds of processes that torchrun started
HUGE = 1e36  # a factor of the loss that is finite; times the scale of fp16 it is not

T5 = {"model_type": "t5", "vocab_size": 8192, "d_model": 64, "num_layers": 4, "num_heads": 4, "d_kv": 16}
T5 |= {"d_ff": 128, "num_decoder_layers": 2}
FAMILIES = {
    "BERT": ELECTRA | {"model_type": "bert", "embedding_size": 64},
    "ELECTRA": ELECTRA,
    "DeBERTa-v3": DEBERTA,
    "DeBERTa-v2 with a convolution": DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu"},
    "T5": T5,
    "T5, gated": T5 | {"feed_forward_proj": "gated-gelu"},
}
SHORT = Recipe(epochs=2, batch_size=8, lr=1e-4, precision="fp32")
FITS = {  # what a recipe says beside SHORT, and the objectives of the pairs: of several tasks one each
    "as it is": ({}, ["cosine_mse"]),
    "in chunks": ({"chunk": 3}, ["multiple_negatives_ranking"]),
    "Adafactor": ({"optimizer": "adafactor"}, ["cosine_mse"]),
    "a frozen layer": ({"freeze": 1}, ["cosine_mse"]),
    "all frozen but a head": ({"freeze": -1}, ["difference"]),
    "every layer": ({"every_layer": "taught"}, ["cosine_mse"]),
    "first dimensions": ({"matryoshka": (16,)}, ["multiple_negatives_ranking"]),
    "three tasks, projected": (
        {"gradients": "project"},
        ["cosine_mse", "multiple_negatives_ranking", "difference"],
    ),
}


class Checks:
    """rows: of each check what it is, the value, the most it may be, and whether it is right."""

    def __init__(self):
        self.rows: list[dict] = []

    def add(self, what: str, most: float, value: Callable[[], float]) -> None:
        try:
            found = float(value())
            row = {"value": found, "most": most, "right": found <= most}  # nan is wrong
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error_text(error)}", "right": False}
        self.rows.append({"what": what} | row)
        print(line_of(self.rows[-1]), flush=True)

    def result(self, **more) -> dict:
        wrong = [row["what"] for row in self.rows if not row["right"]]
        return {"checks": self.rows, "wrong": wrong} | more


def line_of(row: dict) -> str:
    said = row.get("error") or f"{row['value']:.1e} of {row['most']:.0e}"
    return f"{'right' if row['right'] else 'WRONG'}  {row['what']}: {said}"


def table_of(result: dict) -> str:
    lines = [["check", "found", "the most", "right"]]
    for row in result["checks"]:
        found = row["error"] if "error" in row else f"{row['value']:.1e}"
        lines.append([row["what"], found, f"{row.get('most', 0):.0e}", "yes" if row["right"] else "NO"])
    return markdown_table(lines)


def right(bench) -> dict:
    device, checks = bench.device, Checks()
    count = 8 if bench.small else 64
    pairs = read_pairs(bench.data, count)
    shapes = dict(list(FAMILIES.items())[1::3]) if bench.small else FAMILIES
    for name, shape in shapes.items():
        compare(checks, name, made(shape), pairs, device)
    whole = SentenceEncoder.from_pretrained(minilm(bench.small))
    layers = range(len(whole.encoder.layers) + 1)
    for layer in layers[-1:] if bench.small else layers:
        model = SentenceEncoder.from_pretrained(minilm(bench.small), layer)
        compare(checks, f"MiniLM, {layer} layers", model, pairs, device)

    for name in POOLINGS:
        one = made(T5 if name == "decoder" else ELECTRA, name)
        checks.add(f"embeddings, pooling {name}", 1e-4, lambda m=one: embeddings_off(m, pairs, device))
    weighted = made(ELECTRA)
    weighted.set_token_weights("idf", pairs.sentences)
    add_projection(weighted, 16)
    checks.add("embeddings, idf and a projection", 1e-4, lambda: embeddings_off(weighted, pairs, device))

    small = made(ELECTRA | {"num_hidden_layers": 2})
    checks.add("fp16: an overflow skips a step, the next is taken", 0, lambda: overflow(small, pairs, device))
    again = "chunks: largest difference of a sentence embedded again, with its dropout"
    checks.add(again, 1e-6, lambda: embedded_again(small, pairs, device))
    for name, (changes, objectives) in list(FITS.items())[: 2 if bench.small else None]:
        how = replace(SHORT, **changes), objectives
        checks.add(f"losses of fit, {name}", LOSSES, lambda how=how: fit_off(small, pairs, device, *how))
    for precision in ("fp16",) if bench.small else TOLERANCES:
        recipe = replace(SHORT, precision=precision, lr=1e-3)
        same = f"fit in {precision}: weights that differ"
        checks.add(f"{same} in a second run", 0, lambda r=recipe: differing(small, pairs, device, r, None))
        checks.add(f"{same} if it is stopped", 0, lambda r=recipe: differing(small, pairs, device, r, 3))
    for kind in ("mlm",) if bench.small else ("mlm", "span"):
        checks.add(f"pre-training, {kind}: losses", LOSSES, lambda k=kind: pretrain_off(k, pairs, device))
    for kind in ("rtd",) if bench.small else ("mlm", "rtd"):
        what = f"pre-training, {kind}: weights that differ if it is stopped"
        checks.add(what, 0, lambda k=kind: pretrain_differing(k, pairs, device))
    return checks.result()


def right_tables(result: dict) -> list[tuple[str, str]]:
    title = (
        "**Beside the CPU in float32.** Hidden states: largest difference as a part of the largest number; "
    )
    title += "gradients: norm of the difference as a part of theirs; losses as a part of the loss."
    return [(title, table_of(result))]


# -------------------------------------------------------------------------------- one pass, forward and back


def made(shape: dict, pooling: str = "mean") -> SentenceEncoder:
    """Random weights, the same in each call, with the tokenizer of a twin; dropout is off until train()."""
    torch.manual_seed(0)
    config = config_from_dict(shape, ["decoder"] if pooling == "decoder" else [])
    return SentenceEncoder(random_encoder(config), load_tokenizer(TWINS / "mlm"), pooling).eval()


def compare(checks: Checks, name: str, model: SentenceEncoder, pairs: Examples, device: torch.device) -> None:
    """Hidden states and gradients in each precision; fp16 is refused by a T5."""
    states, gradient = one_pass(model, pairs, CPU, "fp32")
    for precision, (of_states, of_gradients) in TOLERANCES.items():
        if precision == "fp16" and model.encoder.config.model_type == "t5":
            checks.add(f"{name}, fp16 is refused", 0, lambda: not refused(model, pairs, device))
            continue
        found = []  # made in the first of the two checks

        def of_both(p=precision, found=found):
            found[:] = found or [one_pass(model, pairs, device, p)]
            return found[0]

        checks.add(f"{name}, hidden states, {precision}", of_states, lambda b=of_both: far(b()[0], states))
        checks.add(
            f"{name}, gradients, {precision}",
            of_gradients,
            lambda b=of_both: (b()[1] - gradient).norm() / gradient.norm(),
        )


def one_pass(
    model: SentenceEncoder, pairs: Examples, device: torch.device, precision: str
) -> tuple[list[Tensor], Tensor]:
    """Each hidden state of the real tokens, (n, D), and all gradients end to end, on the CPU."""
    model, amp = deepcopy(model).to(device), MixedPrecision(device, precision)
    rows = pack(model.tokenize(pairs.sentences)).to(device)
    real = rows.sentence_ids > 0
    with torch.no_grad(), amp:
        states = [state[real].float().cpu() for state in model.encoder.hidden_states(*rows.inputs)]
    with amp:
        loss = CosineMSE()(*model(rows).chunk(2), torch.tensor(pairs.labels, device=device) / 5)
    amp.backward(loss)
    gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in model.parameters()]
    return states, torch.cat([g.flatten().cpu() for g in gradients]) / amp.scaler.get_scale()


def far(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of a hidden state, as a part of its largest number; nan if anything is nan."""
    parts = [(x - y).abs().max() / y.abs().max() for x, y in zip(found, expected, strict=True)]
    return torch.stack(parts).max().item()


def refused(model: SentenceEncoder, pairs: Examples, device: torch.device) -> bool:
    try:
        one_pass(model, pairs, device, "fp16")
    except InputError:
        return True
    return False


def embeddings_off(model: SentenceEncoder, pairs: Examples, device: torch.device) -> float:
    u, v = (deepcopy(model).to(where).embed_columns(pairs.texts) for where in (CPU, device))
    return far([torch.cat(v)], [torch.cat(u)])


def overflow(model: SentenceEncoder, pairs: Examples, device: torch.device) -> int:
    """How many of six facts do not hold of a step whose gradients are infinite, and of the one after it."""
    model, amp = deepcopy(model).to(device).train(), MixedPrecision(device, "fp16")
    optimizer = OPTIMIZERS["adamw"](parameter_groups(model.parameters(), 0.01), lr=1e-3)
    rows, target = pack(model.tokenize(pairs.sentences)).to(device), torch.tensor(pairs.labels) / 5

    def step(factor: float) -> tuple[bool, float]:
        optimizer.zero_grad()
        with amp:
            loss = CosineMSE()(*model(rows).chunk(2), target.to(device))
        amp.backward(loss * factor)
        amp.clip_grad_norm_(optimizer, model.parameters(), 1.0)
        return amp.step(optimizer), amp.scaler.get_scale()

    before = [weight.detach().clone() for weight in model.parameters()]
    scale = amp.scaler.get_scale()
    taken, halved = step(HUGE)
    as_before = all(map(torch.equal, before, model.parameters()))
    taken_next, kept = step(1.0)
    moved = not all(map(torch.equal, before, model.parameters()))
    finite = all(weight.isfinite().all() for weight in model.parameters())
    facts = (not taken, halved == scale / 2, as_before, taken_next and kept == halved, moved, finite)
    return len(facts) - sum(facts)


# ------------------------------------------------------------------------------------- several steps, stopped


class Stopped(Exception):
    pass


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def learn(
    model: SentenceEncoder,
    pairs: Examples,
    device: torch.device,
    recipe: Recipe,
    objectives: list[str],
    state: State | None = None,
) -> tuple[list[float], dict[str, Tensor]]:
    """A copy of the model learns the pairs -> the loss of each epoch, and its weights."""
    torch.manual_seed(0)
    model = deepcopy(model).to(device)
    parts = {f"{n} {name}": task_of(name) for n, name in enumerate(objectives)}
    task = next(iter(parts.values())) if len(parts) == 1 else Task("", subtasks=parts)
    data = {name: {"train": pairs, "dev": pairs} for name in task.tasks_by_name}
    lessons = lessons_of(task, model.dimensions, data)
    processes = single_process(device)
    with state or State():
        losses = [epoch.loss for epoch in fit(model, lessons, recipe, 0, processes, state)]
    return losses, model.state_dict()


def task_of(objective: str) -> Task:
    return get_task("stsb", objective=objective)


def fit_off(
    model: SentenceEncoder, pairs: Examples, device: torch.device, recipe: Recipe, objectives
) -> float:
    """The largest difference of an epoch's loss, as a part of it."""
    model = without_dropout(deepcopy(model))
    ours, theirs = (np.array(learn(model, pairs, where, recipe, objectives)[0]) for where in (device, CPU))
    return np.abs(ours / theirs - 1).max()


def embedded_again(model: SentenceEncoder, pairs: Examples, device: torch.device) -> float:
    """backward_in_chunks embeds each chunk twice, and the gradients hold for equal embeddings only."""
    seen, embed = [], Embedder.__call__

    def noted(self, sentences):
        seen.append(embed(self, sentences))
        return seen[-1]

    with patch.object(Embedder, "__call__", noted):
        learn(
            model,
            pairs,
            device,
            replace(SHORT, epochs=1, batch_size=len(pairs), chunk=3),
            ["multiple_negatives_ranking"],
        )
    half = len(seen) // 2
    assert half > 1
    return max((x - y).abs().max().item() for x, y in zip(seen[:half], seen[half:], strict=True))


def stopping_at(count: int | None):
    """A run stops the count-th time that it asks whether to write its state; None: never."""
    asked, due = [0], State.due

    def counted(state: State, step: int = 0) -> bool:
        asked[0] += 1
        state.asked = asked[0] == count
        return due(state, step)

    return patch.object(State, "due", counted)


def stopped(run: Callable[[State], object], at: int, device: torch.device) -> object:
    """What run(state) gives if it is stopped once and goes on."""
    with tempfile.TemporaryDirectory() as folder:
        path, processes = Path(folder) / "state.pt", single_process(device)
        with stopping_at(at):
            try:
                run(State(path, {}, processes))
            except KeyboardInterrupt:
                torch.rand(7, device=device)  # what happens between must not matter
                with stopping_at(None):
                    return run(State(path, {}, processes))
        raise RuntimeError("the run ended before it was stopped")


def differing(
    model: SentenceEncoder, pairs: Examples, device: torch.device, recipe: Recipe, at: int | None
) -> int:
    """How many weights have other bits in a second run, which is stopped at a step if one is given."""

    def run(state: State | None = None) -> dict[str, Tensor]:
        return learn(model, pairs, device, recipe, ["cosine_mse"], state)[1]

    return other_bits(run(), run() if at is None else stopped(run, at, device))


def other_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> int:
    return sum(int((weight != other[name]).sum()) for name, weight in one.items())


# ----------------------------------------------------------------------------------------------- pre-training


def pretrained(
    kind: str, pairs: Examples, device: torch.device, dropout: bool, state: State | None = None
) -> tuple[list[float], dict[str, Tensor]]:
    """Six steps from random weights -> the held-out losses before and after them, and the weights."""
    base = made(T5 if kind == "span" else ELECTRA | {"num_hidden_layers": 2})
    makers = {
        "mlm": lambda: MaskedLM(base.encoder),
        "rtd": lambda: ReplacedTokenDetection(base.encoder.config, 0.5, base.encoder),
        "span": lambda: SpanCorruption(base.encoder.config),
    }
    model = makers[kind]()
    model = (model if dropout else without_dropout(model)).to(device)
    sentences = end_to_end(base.tokenize(pairs.sentences))
    masking = SpanMasking.of(base.tokenizer) if kind == "span" else Masking.of(base.tokenizer)
    recipe = PretrainingRecipe(batch_size=4, accumulate=2, steps=6, lr=1e-4, save_every=6, precision="fp32")
    processes = single_process(device)
    with tempfile.TemporaryDirectory() as folder:
        with state or State(Path(folder) / "state.pt", {}, processes) as state:
            records = list(pretrain(model, sentences, masking, recipe, 0, processes, state))
    loss = "span_loss" if kind == "span" else "mlm_loss"
    return [record.held_out[loss] for record in records], model.state_dict()


def pretrain_off(kind: str, pairs: Examples, device: torch.device) -> float:
    ours, theirs = (np.array(pretrained(kind, pairs, where, False)[0]) for where in (device, CPU))
    return np.abs(ours / theirs - 1).max()


def pretrain_differing(kind: str, pairs: Examples, device: torch.device) -> int:
    """How many weights have other bits if it is stopped after three of the steps."""

    def run(state: State | None = None) -> dict[str, Tensor]:
        return pretrained(kind, pairs, device, True, state)[1]

    return other_bits(run(), stopped(run, 3, device))


# ------------------------------------------------------------------------------------------ several processes


def processes(bench) -> dict:
    """What learn_together gives alone, and in a process of torchrun that goes the way of several, by nccl or,
    on CPUs, gloo; and in two that share the GPU."""
    checks, alone = Checks(), learn_together(single_process(bench.device))
    kinds = {"one process, as if it were one of several": ("alone", 1)}
    if not bench.small:
        kinds["two processes that share the GPU, by gloo"] = ("shared", 2)
    for name, (how, count) in kinds.items():
        found: dict = {}

        def run(how=how, count=count, found=found) -> float:
            found |= torchrun(count, how, bench.device.type)
            return found["wrong"]

        checks.add(f"{name}: collectives that are wrong", 0, run)
        for loss, values in alone.items():
            expected = np.array(values)
            checks.add(
                f"{name}: losses of {loss}",
                LOSSES,
                lambda f=found, e=expected, n=loss: np.abs(np.array(f[n]) / e - 1).max(),
            )
    return checks.result()


def torchrun(count: int, *words: str) -> dict:
    """gpu_process.py in so many processes -> what the first one wrote."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    program = str(Path(__file__).with_name("gpu_process.py"))
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"OMP_NUM_THREADS": "1", WRITTEN: f"{folder}/found.json"}
        line, pipe = [*launcher, program, *words], subprocess.PIPE
        with subprocess.Popen(
            line, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True
        ) as ended:
            try:
                said, _ = ended.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                ended.terminate()  # torchrun then ends what it started
                raise
        if ended.returncode:
            told = [text for text in said.splitlines() if "Error" in text]
            raise RuntimeError((told or [f"torchrun ended with code {ended.returncode}"])[0])
        return json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))


def processes_tables(result: dict) -> list[tuple[str, str]]:
    return [
        (
            "**Processes.** Losses beside those of a single process that was not started by torchrun.",
            table_of(result),
        )
    ]
