"""Pre-training on plain text, from a checkpoint or from scratch: the loop, in the order in which it runs.

A step depends on the seed and its own number alone: they decide which sentences it sees, the masks, dropout
and the sampled words. So a run can be stopped and continued with the same bits, and shared among processes.
"""

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tmft.device import MixedPrecision, progress_bar, seed_generator
from tmft.distributed import Processes
from tmft.errors import MANY, check_range
from tmft.pretraining.corpus import Order, Sentences, hold_out
from tmft.pretraining.heads import MaskedLM, ReplacedTokenDetection, figures, guessed
from tmft.pretraining.masking import Masking
from tmft.pretraining.span_corruption import SpanCorruption, SpanMasking
from tmft.training.checkpointing import State
from tmft.training.loop import CHECK_EVERY, Recipe
from tmft.training.optimizers import (
    OPTIMIZERS,
    divergence_error,
    linear_schedule_with_warmup,
    parameter_groups,
)


@dataclass(frozen=True)
class PretrainingRecipe(Recipe):
    """Continued pre-training as in the TMFT paper: 10 epochs, 8 batches of 32 sentences a step, 15 % masked.

    The learning rate is that of the authors' code.
    """

    accumulate: int = 8  # batches per step
    steps: int | None = None  # instead of epochs
    max_length: int = 128  # tokens of a sentence, and of a row of sentences
    save_every: int | None = None  # steps; None: ten times in all

    def __post_init__(self):
        super().__post_init__()
        for name, low in [("accumulate", 1), ("steps", 1), ("max_length", 3), ("save_every", 1)]:
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), low, MANY)


@dataclass
class Progress:
    """Where a run stands after `step` steps. train: means since the last Progress, None before step 1."""

    step: int
    steps: int
    tokens: int  # seen so far, padding not counted
    train: dict[str, float] | None
    held_out: dict[str, float]
    lr: float
    tokens_per_second: float
    seconds: float


def fit(
    model: MaskedLM | ReplacedTokenDetection | SpanCorruption,
    sentences: Sentences,
    masking: Masking | SpanMasking,
    recipe: PretrainingRecipe,
    seed: int,
    processes: Processes,
    state: State,
) -> Iterator[Progress]:
    """Train every weight; yield before the first step, every recipe.save_every steps, and after the last.

    Each time the state is written first. A run that was stopped goes on from there, after it has yielded
    again what the state tells of the run so far; the final weights are then those of a run that was never
    stopped, to the bit. Raises InputError if the loss is not finite.
    """
    device, rank, world_size = processes.device, processes.rank, processes.world_size
    train, held_out = hold_out(sentences)
    order = Order(train, recipe.batch_size * recipe.accumulate, seed)
    steps = recipe.steps or recipe.epochs * order.steps_per_pass
    save_every = recipe.save_every or math.ceil(steps / 10)

    groups = parameter_groups(model.parameters(), recipe.weight_decay)
    optimizer = OPTIMIZERS[recipe.optimizer](groups, lr=recipe.lr)
    schedule = linear_schedule_with_warmup(optimizer, recipe.warmup, steps)
    amp = MixedPrecision(device, recipe.precision)
    nothing = [], 0, 0, {}, 0.0
    before, first, tokens, sums, seconds = state.read(model, optimizer, schedule, amp.scaler) or nothing
    as_they_were = {"dtype": torch.double, "device": device}  # and added up: the first process goes on
    sums = {name: torch.tensor(value * (rank == 0), **as_they_were) for name, value in sums.items()}
    curve = [Progress(**record) for record in before]
    yield from curve
    state.take_up()
    shared = DistributedDataParallel(model) if world_size > 1 else model
    since = time.perf_counter()
    start, tokens_before = since - seconds, tokens
    bar = progress_bar(steps, "steps", initial=first)

    for step in range(first, steps + 1):
        reported = bool(curve) and step == curve[-1].step
        if (step % save_every == 0 or step == steps) and not reported:
            now = time.perf_counter()
            record = Progress(
                step=step,
                steps=steps,
                tokens=tokens,
                train=figures(processes.all_reduce(sums)) if sums else None,
                held_out=evaluate(model, sentences.take(held_out), masking, recipe.max_length, processes),
                lr=schedule.get_last_lr()[0],
                tokens_per_second=(tokens - tokens_before) / (now - since),
                seconds=time.perf_counter() - start,
            )
            curve.append(record)
            sums = {}
            state.write([asdict(r) for r in curve], step, tokens, sums, record.seconds)
            yield record
            tokens_before, since = tokens, time.perf_counter()
        if step == steps:
            break

        model.train()
        these = sentences.take(order.step(step))
        sizes = split(len(these), recipe.batch_size)
        rng = np.random.default_rng([seed, step])
        batches, masked = masking.batches(these, rng, sizes, recipe.max_length, rank, world_size)
        set_seed(device, seed, step, rank)  # for dropout and for the sampled words
        optimizer.zero_grad()
        for number, batch in enumerate(batches, start=1):
            last = world_size == 1 or number == len(batches)  # processes exchange gradients only then
            with nullcontext() if last else shared.no_sync():
                with amp:
                    part = shared(batch.to(device))
                    loss = model.loss(part, max(masked, 1), len(these.tokens))
                amp.backward(loss * world_size)  # as the processes' gradients are averaged
            part = {name: value.detach().double() for name, value in part.items()}
            sums = {name: value + sums.get(name, 0) for name, value in part.items()}
        amp.clip(optimizer, model.parameters(), recipe.max_grad_norm)
        if amp.step(optimizer):
            schedule.step()

        tokens += len(these.tokens)
        bar.update()
        if (step + 1) % CHECK_EVERY == 0 or (step + 1) % save_every == 0 or step + 1 == steps:
            check_finite(sums, step + 1)
            bar.set_postfix_str(
                f"loss {sums[guessed(sums)].item() / sums['masked'].item():.3f}", refresh=False
            )
        if state.due(step + 1):
            total = processes.all_reduce(sums)
            elapsed = time.perf_counter() - start
            state.write([asdict(r) for r in curve], step + 1, tokens, total, elapsed)
    bar.close()
    model.eval()


@torch.inference_mode()
def evaluate(
    model: MaskedLM | ReplacedTokenDetection | SpanCorruption,
    sentences: Sentences,
    masking: Masking | SpanMasking,
    max_length: int,
    processes: Processes,
) -> dict[str, float]:
    """The figures of held-out sentences, without dropout, in float32; masks are the same in every run."""
    model.eval()
    set_seed(processes.device, 0, 0, processes.rank)  # for the sampled words
    sizes = split(len(sentences), 256)
    rng = np.random.default_rng(0)
    batches, _ = masking.batches(sentences, rng, sizes, max_length, processes.rank, processes.world_size)
    sums: dict[str, Tensor] = {}
    for batch in batches:
        for name, value in model(batch.to(processes.device)).items():
            sums[name] = sums.get(name, 0) + value.double()
    return figures(processes.all_reduce(sums))


def check_finite(sums: dict[str, Tensor], step: int) -> None:
    for name in ("mlm", "rtd", "span"):
        if name in sums and not torch.isfinite(sums[name]):
            kept = "the last saved state is kept; "
            raise divergence_error(f"the {name} loss", sums[name], f"by step {step}", kept)


def split(total: int, size: int) -> list[int]:
    """7 in parts of 3 -> [3, 3, 1]"""
    return [min(size, total - start) for start in range(0, total, size)]


def set_seed(device: torch.device, seed: int, step: int, rank: int) -> None:
    """An unrelated stream of torch's generator of the device for each step and process."""
    seed_generator(device, int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))
