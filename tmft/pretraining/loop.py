"""Pre-training on plain text, from a checkpoint or from scratch: the loop, in the order in which it runs.

A step depends on the seed and its own number alone: they decide which sentences it sees, the masks, dropout
and the sampled words. So a run can be stopped and continued with the same bits, and shared among processes.
"""

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tmft.device import Amp, Processes, progress_bar, seed_generator
from tmft.errors import MANY, InputError, check_range
from tmft.files.folder import reason, write_file
from tmft.optimizers import OPTIMIZERS, linear_schedule, parameter_groups
from tmft.pretraining.corpus import Order, Sentences, hold_out
from tmft.pretraining.heads import MaskedLM, ReplacedTokenDetection, figures, guessed
from tmft.pretraining.masking import Masking
from tmft.pretraining.spans import SpanCorruption, SpanMasking
from tmft.training import CHECK_EVERY, Recipe


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
    state_file: Path,
    settings: dict,
) -> Iterator[Progress]:
    """Train every weight; yield before the first step, every recipe.save_every steps, and after the last.

    Each time the state is written to state_file first. A run with the same settings goes on from there, after
    it has yielded again what the file tells of the run so far; the final weights are then those of a run that
    was never stopped, to the bit.
    Raises InputError if the loss is not finite, or the state is that of another run.
    """
    device, rank, world_size = processes.device, processes.rank, processes.world_size
    train, held_out = hold_out(sentences)
    order = Order(train, recipe.batch_size * recipe.accumulate, seed)
    steps = recipe.steps or recipe.epochs * order.steps_per_pass
    save_every = recipe.save_every or math.ceil(steps / 10)

    groups = parameter_groups(model.parameters(), recipe.weight_decay)
    optimizer = OPTIMIZERS[recipe.optimizer](groups, lr=recipe.lr)
    schedule = linear_schedule(optimizer, recipe.warmup, steps)
    amp = Amp(device, recipe.precision)
    state = State(
        state_file, settings, model=model, optimizer=optimizer, schedule=schedule, scaler=amp.scaler
    )
    curve = state.read()
    yield from curve
    shared = DistributedDataParallel(model) if world_size > 1 else model
    first, tokens, before = (curve[-1].step, curve[-1].tokens, curve[-1].seconds) if curve else (0, 0, 0.0)
    start = since = time.perf_counter()
    sums, tokens_before = None, tokens  # since the last report
    bar = progress_bar(steps, "steps", initial=first)

    for step in range(first, steps + 1):
        due = step > first and (step % save_every == 0 or step == steps)
        if due or not curve:
            now = time.perf_counter()
            record = Progress(
                step=step,
                steps=steps,
                tokens=tokens,
                train=sums and figures(processes.all_reduce(sums)),
                held_out=evaluate(model, sentences.take(held_out), masking, recipe.max_length, processes),
                lr=schedule.get_last_lr()[0],
                tokens_per_second=(tokens - tokens_before) / (now - since),
                seconds=before + time.perf_counter() - start,
            )
            curve.append(record)
            if rank == 0:
                state.write(curve)
            yield record
            sums, tokens_before, since = None, tokens, time.perf_counter()
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
            sums = part if sums is None else {name: sums[name] + part[name] for name in part}
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


class State:
    """All that a run needs to go on, in one file of tensors and plain values."""

    def __init__(self, path: Path, settings: dict, **parts):
        """parts: what has a state_dict, by name."""
        self.path, self.settings, self.parts = path, settings, parts

    def write(self, curve: list[Progress]) -> None:
        content = {name: part.state_dict() for name, part in self.parts.items()}
        content |= {"settings": self.settings, "curve": [asdict(record) for record in curve]}
        write_file(self.path, lambda path: torch.save(content, path))

    def read(self) -> list[Progress]:
        """Take up the state in the file, if there is one -> what the run has reported so far."""
        if not self.path.is_file():
            return []
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
            before, curve = dict(content["settings"]), [Progress(**record) for record in content["curve"]]
        except Exception as error:  # whatever is in the file, nothing of it is run
            raise InputError(
                f"{self.path} cannot be read ({reason(error)}): remove it to start anew"
            ) from None
        for key, value in self.settings.items():
            if before.get(key, value) != value:  # an earlier version said less
                raise InputError(
                    f"{self.path.parent} holds an unfinished run with {key} {before.get(key)}, "
                    f"now {value}: choose another name, or remove the folder",
                    "name",
                )
        try:
            for name, part in self.parts.items():
                part.load_state_dict(content[name])
        except Exception as error:  # an optimizer says what it misses in many ways
            what = f"{self.path} is not the state of this run ({reason(error)})"
            raise InputError(f"{what}: remove it to start anew") from None
        return curve


def check_finite(sums: dict[str, Tensor], step: int) -> None:
    for name in ("mlm", "rtd", "span"):
        if name in sums and not torch.isfinite(sums[name]):
            raise InputError(
                f"the {name} loss is {sums[name].item()} (by step {step}): the last saved state is kept; "
                "try a lower lr, or precision fp32",
                "lr",
                "precision",
            )


def split(total: int, size: int) -> list[int]:
    """7 in parts of 3 -> [3, 3, 1]"""
    return [min(size, total - start) for start in range(0, total, size)]


def set_seed(device: torch.device, seed: int, step: int, rank: int) -> None:
    """An unrelated stream of torch's generator of the device for each step and process."""
    seed_generator(device, int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))
