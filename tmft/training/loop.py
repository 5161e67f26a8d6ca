"""Fine-tuning: the recipe of the paper and the loop, in the order in which it runs.

Letters in this file: P examples of k texts each in a batch.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import nn

from tmft.device import MixedPrecision, progress_bar
from tmft.distributed import Processes
from tmft.errors import MANY, check_choice, check_range
from tmft.losses.multiple_negatives import backward_in_chunks
from tmft.sentence_encoder import SentenceEncoder
from tmft.speed.occurring_words import AllWords, OccurringWords
from tmft.training.checkpointing import Best, State
from tmft.training.multitask import (
    ENDS,
    GRADIENTS,
    ORDERS,
    Lesson,
    Order,
    check_learns,
    chosen_by,
    embedder,
    together,
)
from tmft.training.optimizers import (
    ELEMENTWISE_OPTIMIZERS,
    OPTIMIZERS,
    divergence_error,
    linear_schedule_with_warmup,
    parameter_groups,
)

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
    order: str = "round-robin"  # of the batches of several tasks
    ends: str = "shortest"  # set of examples that ends an epoch of theirs
    gradients: str = "sum"  # what becomes of theirs in a step
    freeze: int | None = None  # layers that stay as they are, and the embeddings; -1: all layers
    every_layer: str | None = None  # how all layers are trained at once, a row of EVERY_LAYER
    matryoshka: tuple[int, ...] | None = None  # so many first dimensions are trained to stand alone

    def __post_init__(self):
        known = {"optimizer": OPTIMIZERS, "order": ORDERS, "ends": ENDS, "gradients": GRADIENTS}
        for name, rows in known.items():
            check_choice(name, getattr(self, name), rows)
        check_range("chunk", 1 if self.chunk is None else self.chunk, 1)
        for name in ("epochs", "batch_size", "lr", "weight_decay", "warmup", "max_grad_norm"):
            counted = name in ("epochs", "batch_size")
            most = 1 if name == "warmup" else MANY if counted else math.inf
            check_range(name, getattr(self, name), int(counted), most)


@dataclass
class Epoch:
    """What one epoch did; number counts from 1, scores are raw, seconds include the dev set."""

    number: int
    loss: float
    dev: dict[str, float]  # what chooses the epoch, task.metric or overall, and what is reported beside it
    best: bool  # better on dev than every epoch before
    lr: float
    pairs_per_second: float
    seconds: float
    cosines: dict[str, list[float]]  # of the gradients of two tasks, if they are compared: mean of some steps


def fit(
    model: SentenceEncoder,
    lessons: dict[str, Lesson],
    recipe: Recipe,
    seed: int,
    processes: Processes | None = None,
    state: State | None = None,
) -> Iterator[Epoch]:
    """Fine-tune every weight on the train examples; yield after each epoch; keep the best epoch by dev.

    lessons: tasks by name, with their objectives and examples; often it is one. Weights of an objective are
    trained and kept like the model's. While an Epoch is handed out the model holds its weights, to be saved;
    after the last one, those of the best. The order of the examples comes from `seed`, dropout from torch's
    global generator. processes: they share each batch. state: a run that was stopped goes on; its epochs
    come first, with the best weights. Raises InputError if the loss is not finite; the best are kept.
    """
    device, processes = model.device, processes or Processes(0, 1, model.device)
    learnt = nn.ModuleList([model, *(lesson.objective.to(device) for lesson in lessons.values())])
    token_ids = [ids for lesson in lessons.values() for ids in lesson.tokenize(model)]
    embed = embedder(model, lessons, recipe.freeze, recipe.every_layer, recipe.matryoshka, seed)

    by_row = recipe.optimizer in ELEMENTWISE_OPTIMIZERS and recipe.freeze is None
    words = (OccurringWords if by_row else AllWords)(model.encoder.embeddings, token_ids, model.tokens)
    for lesson in lessons.values():
        lesson.train_ids = words.renumber(lesson.train_ids)
    with words:  # whose rows are trained in place of the whole table
        weights = [weight for weight in learnt.parameters() if weight.requires_grad]
        gradients = GRADIENTS[recipe.gradients](w for w in model.parameters() if w.requires_grad)
    check_learns(model, lessons)
    optimizer = OPTIMIZERS[recipe.optimizer](parameter_groups(weights, recipe.weight_decay), lr=recipe.lr)
    order = Order(lessons, recipe.order, recipe.ends, recipe.batch_size, seed)
    schedule = linear_schedule_with_warmup(optimizer, recipe.warmup, recipe.epochs * order.steps)
    amp, best, state = MixedPrecision(device, recipe.precision), Best(learnt), state or State()

    nothing = [], 0, torch.zeros((), device=device), 0.0
    parts = learnt, words, optimizer, schedule, amp.scaler, order, gradients, embed
    before, seen, total_loss, seconds = state.read(*parts, best=best) or nothing
    epochs = [Epoch(**epoch) for epoch in before]
    yield from epochs
    while len(epochs) < recipe.epochs:
        start, number = time.perf_counter() - seconds, len(epochs) + 1
        learnt.train()
        embed.hold()
        with words, progress_bar(order.examples, "examples", desc=f"epoch {number}", initial=seen) as bar:
            state.take_up()
            for parts in order.epoch():
                optimizer.zero_grad()
                for name, batch in parts:  # of the one task; in round-robin of each of several
                    lesson = lessons[name]
                    sentences, target = lesson.batch(batch)
                    if (recipe.chunk or len(batch)) < len(batch) or processes.world_size > 1:
                        how = recipe.chunk, amp, processes
                        loss = backward_in_chunks(embed, lesson.loss, target, sentences, *how)
                    else:
                        with amp:
                            embeddings = embed(sentences).chunk(lesson.texts)  # k of (P, D)
                            loss = lesson.loss(*embeddings, target)
                        amp.backward(loss)
                    gradients.take(name)
                    total_loss = total_loss + loss.detach() * len(batch)
                    seen += len(batch)
                gradients.give()
                amp.clip(optimizer, weights, recipe.max_grad_norm)
                if amp.step(optimizer):
                    schedule.step()

                bar.update(seen - bar.n)
                if order.step % CHECK_EVERY == 0:
                    if not torch.isfinite(total_loss):
                        break
                    bar.set_postfix_str(f"loss {total_loss.item() / seen:.4f}", refresh=False)
                if state.due(order.step):
                    state.write([asdict(e) for e in epochs], seen, total_loss, time.perf_counter() - start)
        if not torch.isfinite(total_loss):
            best.give_back()
            state.remove()
            kept = "the best epoch before it is kept; " * (number > 1)
            raise divergence_error("the loss", total_loss, f"epoch {number}, by example {seen}", kept)
        train_seconds = time.perf_counter() - start

        dev = together({name: lesson.dev(embed) for name, lesson in lessons.items()}, lessons)
        better = best.take(dev[chosen_by(lessons)])
        rates = schedule.get_last_lr()[0], seen / train_seconds, time.perf_counter() - start
        epochs.append(Epoch(number, total_loss.item() / seen, dev, better, *rates, gradients.noted()))
        yield epochs[-1]
        _, seen, total_loss, seconds = nothing
        if state.due():
            with words:
                state.write([asdict(e) for e in epochs], seen, total_loss, seconds)
    best.give_back()
    embed.release()
    model.eval()
