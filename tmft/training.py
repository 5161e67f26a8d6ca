"""Fine-tuning: the recipe of the paper and the loop, in the order in which it runs.

Letters in this file: N examples of k texts each, P of them in a batch.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from tmft.contrastive import backward_in_chunks
from tmft.data import Examples, Task, batches, targets
from tmft.device import Amp, Processes, progress_bar
from tmft.errors import InputError, check_choice, check_range
from tmft.metrics import METRICS
from tmft.optimizers import OPTIMIZERS, ROW_BY_ROW, parameter_groups
from tmft.rows import pack
from tmft.sentence import SentenceEncoder
from tmft.speed.occurring_words import AllWords, OccurringWords

CHECK_EVERY = 20  # steps between two looks at the loss; each look makes a GPU wait


@dataclass(frozen=True)
class Recipe:
    """The paper's hyperparameters. Source: Rep et al. 2024, appendix; their released training script."""

    epochs: int = 10
    batch_size: int = 32  # examples
    lr: float = 2e-5  # peak, after the warm-up
    weight_decay: float = 0.01  # not on biases and LayerNorm
    warmup: float = 0.1  # share of all steps
    max_grad_norm: float = 1.0
    precision: str = "auto"
    chunk: int | None = None  # examples that are embedded at a time, of a batch that is too large for memory
    optimizer: str = "adamw"

    def __post_init__(self):
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_range("chunk", 1 if self.chunk is None else self.chunk, 1)
        for name in ("epochs", "batch_size", "lr", "weight_decay", "warmup", "max_grad_norm"):
            least, most = int(name in ("epochs", "batch_size")), 1 if name == "warmup" else math.inf
            check_range(name, getattr(self, name), least, most)


@dataclass
class Epoch:
    """What one epoch did; number counts from 1, scores are raw, seconds include the dev set."""

    number: int
    loss: float
    dev: dict[str, float]  # task.metric, which chooses the epoch, and what is reported beside it
    best: bool  # better on dev than every epoch before
    lr: float
    pairs_per_second: float
    seconds: float


def fit(
    model: SentenceEncoder,
    objective: nn.Module,
    train: Examples,
    dev: Examples,
    task: Task,
    recipe: Recipe,
    seed: int,
    processes: Processes | None = None,
) -> Iterator[Epoch]:
    """Fine-tune every weight on the train examples; yield after each epoch; keep the best epoch by dev.

    objective: made by a row of OBJECTIVES; its weights, if any, are trained and kept like the model's. While
    an Epoch is handed out the model holds its weights, to be saved; after the last one, those of the best.
    The order of the examples comes from `seed`, dropout from torch's global generator. processes: they share
    each batch. Raises InputError if the loss is not finite; the model then holds the best epoch so far.
    """
    device, N, k = model.device, len(train), len(train.texts)
    processes = processes or Processes(0, 1, device)
    train_ids, dev_ids = model.tokenize(train.sentences), model.tokenize(dev.sentences)
    target = targets(train.labels, task).to(device)
    learnt = nn.ModuleList([model, objective.to(device)])

    words = (OccurringWords if recipe.optimizer in ROW_BY_ROW else AllWords)(
        model.encoder.embeddings, train_ids, model.tokens
    )
    train_ids = words.renumber(train_ids)
    with words:  # whose rows are trained in place of the whole table
        weights = list(learnt.parameters())
    groups = parameter_groups(weights, recipe.weight_decay)
    optimizer = OPTIMIZERS[recipe.optimizer](groups, lr=recipe.lr)
    schedule = linear_schedule(optimizer, recipe.warmup, recipe.epochs * math.ceil(N / recipe.batch_size))
    amp = Amp(device, recipe.precision)
    generator = torch.Generator().manual_seed(seed)
    best_metric, best_weights = -math.inf, copy_weights(learnt)

    for number in range(1, recipe.epochs + 1):
        start, total_loss = time.perf_counter(), torch.zeros((), device=device)
        model.train()
        with words, progress_bar(N, "examples", desc=f"epoch {number}") as bar:
            for step, batch in enumerate(batches(N, recipe.batch_size, generator), start=1):
                sentences = [train_ids[j * N + i] for j in range(k) for i in batch]
                optimizer.zero_grad()
                if (recipe.chunk or len(batch)) < len(batch) or processes.world_size > 1:
                    how = recipe.chunk, amp, processes
                    loss = backward_in_chunks(model, objective, target[batch], sentences, *how)
                else:
                    with amp:
                        embeddings = model(pack(sentences).to(device)).chunk(k)  # k of (P, D)
                        loss = objective(*embeddings, target[batch])
                    amp.backward(loss)
                amp.clip(optimizer, weights, recipe.max_grad_norm)
                if amp.step(optimizer):
                    schedule.step()

                total_loss += loss.detach() * len(batch)
                bar.update(len(batch))
                if step % CHECK_EVERY == 0:
                    if not torch.isfinite(total_loss):
                        break
                    bar.set_postfix_str(f"loss {total_loss.item() / step / recipe.batch_size:.4f}", False)
        if not torch.isfinite(total_loss):
            learnt.load_state_dict(best_weights)
            what = f"the loss is {total_loss.item()} (epoch {number}, by step {step})"
            remedy = "the best epoch before it is kept; try a lower lr, or precision fp32"
            raise InputError(f"{what}: {remedy}", "lr", "precision")
        train_seconds = time.perf_counter() - start

        predicted = objective.predict(*model.embed(dev_ids).chunk(len(dev.texts)))
        dev_scores = METRICS[task.metric](predicted, dev.labels)
        metric = dev_scores[task.metric]
        best = metric > best_metric or number == 1  # NaN, from embeddings that are all equal, is never better
        if best:
            best_metric, best_weights = -math.inf if math.isnan(metric) else metric, copy_weights(learnt)
        loss, rate, seconds = total_loss.item() / N, schedule.get_last_lr()[0], time.perf_counter() - start
        yield Epoch(number, loss, dev_scores, best, rate, N / train_seconds, seconds)
    learnt.load_state_dict(best_weights)
    model.eval()


def linear_schedule(optimizer: torch.optim.Optimizer, warmup: float, steps: int) -> LambdaLR:
    """Learning rate from 0 to its peak over the first `warmup` share of the steps, then to 0 at the last."""
    warmup_steps = int(warmup * steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return max(0.0, (steps - step) / max(1, steps - warmup_steps))

    return LambdaLR(optimizer, factor)


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}
