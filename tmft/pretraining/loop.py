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
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from tmft.device import Processes
from tmft.errors import InputError
from tmft.files.weights import one_line, write_file
from tmft.pretraining.corpus import Sentences, hold_out
from tmft.pretraining.heads import MaskedLM, ReplacedTokenDetection, figures
from tmft.pretraining.masking import Masking, Order, masked_batches
from tmft.speed.matmul import fast_matmul
from tmft.training import (
    CHECK_EVERY,
    PRECISIONS,
    Recipe,
    choose_precision,
    linear_schedule,
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
            value = getattr(self, name)
            if value is not None and value < low:
                raise InputError(f"--{name.replace('_', '-')} {value}: choose {low} or more")


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
    model: MaskedLM | ReplacedTokenDetection,
    sentences: Sentences,
    masking: Masking,
    recipe: PretrainingRecipe,
    seed: int,
    processes: Processes,
    state_file: Path,
    settings: dict,
    progress: bool = False,
) -> Iterator[Progress]:
    """Train every weight; yield before the first step, every recipe.save_every steps, and after the last.

    Each time the state is written to state_file first. A run with the same settings goes on from there, after
    it has yielded again what the file tells of the run so far; the final weights are then those of a run that
    was never stopped, to the bit.
    Raises InputError if the loss is not finite, or the state is that of another run.
    """
    device, rank, count = processes.device, processes.rank, processes.count
    train, held_out = hold_out(sentences)
    order = Order(train, recipe.batch_size * recipe.accumulate, seed)
    steps = recipe.steps or recipe.epochs * order.steps_per_pass
    save_every = recipe.save_every or math.ceil(steps / 10)

    precision = choose_precision(recipe.precision, device)
    autocast = torch.autocast(device.type, PRECISIONS[precision], enabled=precision != "fp32")
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")  # only fp16 needs a scaled loss
    optimizer = torch.optim.AdamW(
        parameter_groups(model.parameters(), recipe.weight_decay), lr=recipe.lr, fused=True
    )
    schedule = linear_schedule(optimizer, recipe.warmup, steps)
    state = State(state_file, settings, model, optimizer, schedule, scaler)
    curve = state.read()
    shared = DistributedDataParallel(model) if count > 1 else model
    last = curve[-1] if curve else None
    first, tokens_seen, before = (last.step, last.tokens, last.seconds) if last else (0, 0, 0.0)
    start = interval = time.perf_counter()

    def report(step: int, sums: dict[str, Tensor] | None) -> Progress:
        tokens = tokens_seen - (curve[-1].tokens if curve else 0)
        speed = tokens / (time.perf_counter() - interval)
        record = Progress(
            step=step,
            steps=steps,
            tokens=tokens_seen,
            train=sums and figures(processes.sum(sums)),
            held_out=evaluate(model, sentences.take(held_out), masking, recipe.max_length, processes),
            lr=schedule.get_last_lr()[0],
            tokens_per_second=speed,
            seconds=before + time.perf_counter() - start,
        )
        curve.append(record)
        if rank == 0:
            state.write(curve)
        return record

    yield from curve if curve else [report(0, None)]
    sums, interval = None, time.perf_counter()
    bar = tqdm(total=steps, initial=first, unit=" steps", leave=False, disable=not progress)
    for step in range(first, steps):
        model.train()
        batch_sentences = sentences.take(order.step(step))
        sizes = split(len(batch_sentences), recipe.batch_size)
        rng = np.random.default_rng([seed, step])
        batches, masked = masked_batches(batch_sentences, masking, rng, sizes, recipe.max_length, rank, count)
        set_seed(device, seed, step, rank)  # for dropout and for the sampled words

        optimizer.zero_grad()
        for number, batch in enumerate(batches, start=1):
            gather = count == 1 or number == len(batches)  # exchange gradients only at the last
            with nullcontext() if gather else shared.no_sync(), fast_matmul():
                with autocast:
                    part = shared(batch.to(device))
                    loss = model.loss(part, max(masked, 1), len(batch_sentences.tokens))
                scaler.scale(loss * count).backward()  # times count, as the processes' gradients are averaged
            part = {name: value.detach().double() for name, value in part.items()}
            sums = part if sums is None else {name: sums[name] + part[name] for name in part}
        scaler.unscale_(optimizer)  # before the clip, which must see the true gradients
        nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        scale_before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale_before:  # a smaller scale says that the step was skipped
            schedule.step()

        done = step + 1
        tokens_seen += len(batch_sentences.tokens)
        saving = done % save_every == 0 or done == steps
        if saving or done % CHECK_EVERY == 0:
            check_finite(sums, done)
            bar.set_postfix_str(f"loss {sums['mlm'].item() / sums['masked'].item():.3f}", refresh=False)
        bar.update()
        if saving:
            yield report(done, sums)
            sums, interval = None, time.perf_counter()
    bar.close()
    model.eval()


@torch.inference_mode()
def evaluate(
    model: nn.Module, sentences: Sentences, masking: Masking, max_length: int, processes: Processes
) -> dict[str, float]:
    """The figures of held-out sentences, without dropout, in float32; masks are the same in every run."""
    model.eval()
    set_seed(processes.device, 0, 0, processes.rank)  # for the sampled words
    sizes = split(len(sentences), 256)
    rng = np.random.default_rng(0)
    batches, _ = masked_batches(sentences, masking, rng, sizes, max_length, processes.rank, processes.count)
    sums: dict[str, Tensor] = {}
    for batch in batches:
        for name, value in model(batch.to(processes.device)).items():
            sums[name] = sums.get(name, 0) + value.double()
    return figures(processes.sum(sums))


class State:
    """All that a run needs to go on, in one file of tensors and plain values."""

    def __init__(self, path: Path, settings: dict, model: nn.Module, optimizer, schedule, scaler):
        self.path, self.settings = path, settings
        self.parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}

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
        except Exception as error:  # whatever is in the file, nothing of it is run
            raise InputError(
                f"{self.path} cannot be read ({one_line(error)}): remove it to start anew"
            ) from None
        for key, value in self.settings.items():
            if content["settings"].get(key) != value:
                raise InputError(
                    f"{self.path.parent} holds an unfinished run with {key} {content['settings'].get(key)}, "
                    f"now {value}: choose another --name, or remove the folder"
                )
        for name, part in self.parts.items():
            part.load_state_dict(content[name])
        return [Progress(**record) for record in content["curve"]]


def check_finite(sums: dict[str, Tensor], step: int) -> None:
    for name in ("mlm", "rtd"):
        if name in sums and not torch.isfinite(sums[name]):
            raise InputError(
                f"the {name} loss is {sums[name].item()} (by step {step}): the last saved state is kept; "
                "try a lower --lr, or --precision fp32"
            )


def split(total: int, size: int) -> list[int]:
    """7 in parts of 3 -> [3, 3, 1]"""
    return [min(size, total - start) for start in range(0, total, size)]


def set_seed(device: torch.device, seed: int, step: int, rank: int) -> None:
    """Seed torch's generator of the device: an unrelated stream for each step and process.

    torch.manual_seed would do, but takes a while to note the call for GPUs that are not in use.
    """
    number = int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])
    if device.type == "cuda":
        torch.cuda.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)
