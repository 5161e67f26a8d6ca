"""The training loop of pre-training on plain text, from a checkpoint or from scratch.

Everything random in a step (its sentences, the masks, dropout and the sampled tokens) is determined by the
seed, the number of the step and the rank of the process. So a run can be interrupted and resumed, and ends
with the same bits.

`fit` here has no callbacks, unlike the one in loop.py: there is one kind of pre-training step, which
several processes share, its unit is the step and not the epoch, and the last weights are kept, not the best.
"""

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tmft.callbacks import LOG_EVERY, Stateful
from tmft.device import progress_bar, seed_rng
from tmft.errors import MAX_COUNT, InputError
from tmft.io.arguments import in_range
from tmft.io.distributed import Processes
from tmft.io.files import reading
from tmft.loop import Recipe
from tmft.optimizers import LR_SCHEDULES, OPTIMIZERS, MixedPrecision, parameter_groups
from tmft.pretraining.corpus import TokenizedCorpus, held_out_split
from tmft.pretraining.masking import Masking
from tmft.pretraining.token_heads import MaskedLM, ReplacedTokenDetection, means_from_sums
from tmft.training.checkpointing import START_AGAIN, TrainingCheckpoint

PretrainingObjective = MaskedLM | ReplacedTokenDetection
EVAL_BATCH_SIZE = 256  # sentences per batch of an evaluation


@dataclass(frozen=True)
class PretrainingRecipe(Recipe):
    """The hyperparameters of pre-training; by default those of continued pre-training in the TMFT paper.

    These are 10 epochs and steps of 8 batches of 32 sentences; the learning rate is that of the authors'
    code.
    gradient_accumulation_steps: batches per optimizer step, each of `batch_size` sentences.
    steps: number of optimizer steps, in place of `epochs`.
    max_length: maximum number of tokens of a sentence, and length of a packed row; None: 512, as in the
        authors' code, or the limit of the model if that is less.
    save_steps: after every N optimizer steps, print the losses and save a checkpoint from which the same
        command resumes; None: ten times in all.
    """

    gradient_accumulation_steps: int = in_range(8, 1, MAX_COUNT)
    steps: int | None = in_range(None, 1, MAX_COUNT)
    max_length: int | None = in_range(None, 3, MAX_COUNT)
    save_steps: int | None = in_range(None, 1, MAX_COUNT)

    def length_for(self, model: PretrainingObjective) -> int:
        """Return the maximum number of tokens of a sentence, which depends on the model by default."""
        return self.max_length or min(512, model.encoder.config.max_tokens)


@dataclass
class PretrainingLog:
    """An entry of the training log, made after `step` of `steps` optimizer steps.

    tokens: number of tokens trained on so far, without padding. train: means over the steps since the
    previous entry, None before the first step. held_out: means on the held-out sentences. The keys of both
    are described at `means_from_sums`. lr: learning rate. tokens_per_second: since the previous entry.
    seconds: since the start, without interruptions.
    """

    step: int
    steps: int
    tokens: int
    train: dict[str, float] | None
    held_out: dict[str, float]
    lr: float
    tokens_per_second: float
    seconds: float


def pretrain(
    model: PretrainingObjective,
    corpus: TokenizedCorpus,
    masking: Masking,
    recipe: PretrainingRecipe,
    seed: int,
    processes: Processes,
    checkpoint: TrainingCheckpoint,
) -> Iterator[PretrainingLog]:
    """Train all weights; yield a log entry before the first step, every save_steps steps, and after the last.

    model: the encoder with the heads of its objective. corpus: the text, a part of which is held out.
    seed: of the order of the sentences, the masks and dropout.
    masking: makes the batches. processes: they share each step.
    checkpoint: the training checkpoint, written before an entry is yielded and from time to time. If it holds
    an interrupted run, the entries of that run are yielded first, and the final weights are bit-identical to
    those of an uninterrupted run. Raises InputError if the loss is not finite; the last checkpoint is kept.
    """
    amp = MixedPrecision(processes.device, recipe.precision)
    device, rank, world_size = processes.device, processes.rank, processes.world_size
    train, held_out = held_out_split(corpus)
    step_size = recipe.batch_size * recipe.gradient_accumulation_steps  # sentences; the last step has fewer
    steps_per_epoch = math.ceil(len(train) / step_size)
    num_steps = recipe.steps or recipe.epochs * steps_per_epoch
    save_steps = recipe.save_steps or math.ceil(num_steps / 10)
    max_length = recipe.length_for(model)

    parameters = parameter_groups(model.parameters(), recipe.weight_decay)
    optimizer = OPTIMIZERS[recipe.optimizer](parameters, lr=recipe.lr)
    scheduler = LR_SCHEDULES[recipe.lr_schedule](optimizer, recipe.warmup_ratio, num_steps)

    stateful: dict[str, Stateful] = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": amp.scaler,
    }
    progress: dict[str, Any] = {"log": [], "step": 0, "tokens": 0, "sums": {}, "seconds": 0.0}
    progress |= checkpoint.load(stateful)
    with reading(checkpoint.path, START_AGAIN):
        log = [PretrainingLog(**entry) for entry in progress["log"]]
        first_step, tokens = int(progress["step"]), int(progress["tokens"])
        seconds = float(progress["seconds"])
        # the saved sums are those of all processes together, so only the main process starts with them
        sums = {
            name: torch.tensor(float(value) * (rank == 0), dtype=torch.double, device=device)
            for name, value in progress["sums"].items()
        }
    yield from log
    checkpoint.restore()
    ddp_model = DistributedDataParallel(model) if world_size > 1 else model
    log_time, log_tokens = time.perf_counter(), tokens
    start_time = log_time - seconds
    with progress_bar(num_steps, "steps", initial=first_step) as bar:
        for step in range(first_step, num_steps + 1):
            is_logged = bool(log) and step == log[-1].step
            if (step % save_steps == 0 or step == num_steps) and not is_logged:
                now = time.perf_counter()
                entry = PretrainingLog(
                    step=step,
                    steps=num_steps,
                    tokens=tokens,
                    train=means_from_sums(processes.all_reduce_dict(sums)) if sums else None,
                    held_out=evaluate(model, corpus.select(held_out), masking, max_length, processes),
                    lr=float(scheduler.get_last_lr()[0]),
                    tokens_per_second=(tokens - log_tokens) / (now - log_time),
                    seconds=time.perf_counter() - start_time,
                )
                log.append(entry)
                sums = {}
                saved = {"step": step, "tokens": tokens, "sums": {}, "seconds": entry.seconds}
                checkpoint.save(log=[asdict(one) for one in log], **saved)
                yield entry
                log_time, log_tokens = time.perf_counter(), tokens
            if step == num_steps:
                break

            model.train()
            epoch, step_in_epoch = divmod(step, steps_per_epoch)
            if step == first_step or step_in_epoch == 0:  # the seed and the epoch determine the order
                order = np.random.default_rng([seed, epoch]).permutation(train)
            sentences = corpus.select(order[step_in_epoch * step_size :][:step_size])
            rng = np.random.default_rng([seed, step])
            batch_sizes = split_size(len(sentences), recipe.batch_size)
            batches, num_labels = masking.make_batches(
                sentences, rng, batch_sizes, max_length, rank, world_size
            )
            set_seed(device, seed, step, rank)  # for dropout and for the sampled tokens
            optimizer.zero_grad()
            for batch in batches:
                with (
                    ddp_model.no_sync()  # gradients are exchanged once per step, after its last batch
                    if isinstance(ddp_model, DistributedDataParallel) and batch is not batches[-1]
                    else nullcontext()
                ):
                    with amp.autocast():
                        batch_sums = ddp_model(batch.to(device))
                        loss = model.loss(batch_sums, max(num_labels, 1), len(sentences.tokens))
                    amp.backward(loss * world_size)  # because DistributedDataParallel averages the gradients
                batch_sums = {name: value.detach().double() for name, value in batch_sums.items()}
                sums = {name: value + sums.get(name, 0) for name, value in batch_sums.items()}
            amp.clip_grad_norm_(optimizer, model.parameters(), recipe.max_grad_norm)
            if amp.step(optimizer):
                scheduler.step()

            tokens += len(sentences.tokens)
            bar.update()
            if (step + 1) % LOG_EVERY == 0 or (step + 1) % save_steps == 0 or step + 1 == num_steps:
                check_finite_loss(sums, step + 1)
                mean_loss = sums["mlm"].item() / max(1, sums["masked"].item())  # no token may be masked
                bar.set_postfix_str(f"loss {mean_loss:.3f}", refresh=False)
            if checkpoint.should_save(step + 1):
                total, seconds = processes.all_reduce_dict(sums), time.perf_counter() - start_time
                saved = {"step": step + 1, "tokens": tokens, "sums": total, "seconds": seconds}
                checkpoint.save(log=[asdict(one) for one in log], **saved)
    model.eval()


@torch.inference_mode()
def evaluate(
    model: PretrainingObjective,
    corpus: TokenizedCorpus,
    masking: Masking,
    max_length: int,
    processes: Processes,
) -> dict[str, float]:
    """Return the means over a held-out corpus (see `means_from_sums`), computed in float32, without dropout.

    The masks are drawn from a fixed seed, so that they are equal in all evaluations and runs.
    """
    model.eval()
    set_seed(processes.device, 0, 0, processes.rank)  # for the sampled tokens
    batch_sizes = split_size(len(corpus), EVAL_BATCH_SIZE)
    rng = np.random.default_rng(0)
    batches, _ = masking.make_batches(
        corpus, rng, batch_sizes, max_length, processes.rank, processes.world_size
    )
    sums: dict[str, Tensor] = {}
    for batch in batches:
        for name, value in model(batch.to(processes.device)).items():
            sums[name] = sums.get(name, 0) + value.double()
    return means_from_sums(processes.all_reduce_dict(sums))


def check_finite_loss(sums: dict[str, Tensor], step: int) -> None:
    """Raise InputError if a loss is infinite or NaN. sums: of the objective; step: number for the message."""
    for name in ("mlm", "rtd"):
        if name in sums and not torch.isfinite(sums[name]):
            raise InputError(
                f"the {name} loss is {sums[name].item()} (by step {step}): "
                "the last saved state is kept; try a lower `lr`, or `precision` fp32",
                "lr",
                "precision",
            )


def split_size(total: int, size: int) -> list[int]:
    """Split a total into parts of equal size and a remainder: split_size(7, 3) returns [3, 3, 1]."""
    return [min(size, total - start) for start in range(0, total, size)]


def set_seed(device: torch.device, seed: int, step: int, rank: int) -> None:
    """Seed torch's generator of the device, with another seed for each step and process."""
    seed_rng(device, int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))
