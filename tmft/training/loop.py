"""Fine-tuning: the paper's hyperparameters and the training loop, in the order in which it runs.

Shapes: P examples (pairs) in a batch, D dimensions of an embedding.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from tmft.device import MixedPrecision
from tmft.errors import MAX_COUNT, check_choice, check_range
from tmft.sentence_encoder import SentenceEncoder
from tmft.speed.occurring_words import occurring_words
from tmft.training.best_weights import BestWeights
from tmft.training.callbacks import Callback, CallbackList, DivergedError, ProgressBar, StopIfDiverged
from tmft.training.embed import Embed, PackedEmbed
from tmft.training.loop_state import EpochResult, Loop, TrainerState
from tmft.training.optimizers import (
    ELEMENTWISE_OPTIMIZERS,
    OPTIMIZERS,
    linear_schedule_with_warmup,
    parameter_groups,
)
from tmft.training.task import TrainingTask


@dataclass(frozen=True)
class Recipe:
    """The paper's hyperparameters. Source: Rep et al. 2024, appendix; their released training script."""

    epochs: int = 10
    batch_size: int = 32  # examples in a step
    lr: float = 2e-5  # peak learning rate, after the warm-up
    weight_decay: float = 0.01  # of matrices; biases and LayerNorm are not decayed
    warmup_ratio: float = 0.1  # share of all steps in which the learning rate rises
    max_grad_norm: float = 1.0
    precision: str = "auto"  # fp32, bf16, fp16, or auto: bf16 where the device computes in it
    optimizer: str = "adamw"

    def __post_init__(self):
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        for name in ("epochs", "batch_size", "lr", "weight_decay", "warmup_ratio", "max_grad_norm"):
            is_count = name in ("epochs", "batch_size")
            highest = 1 if name == "warmup_ratio" else MAX_COUNT if is_count else math.inf
            check_range(name, getattr(self, name), int(is_count), highest)


def fit(
    model: SentenceEncoder,
    task: TrainingTask,
    recipe: Recipe,
    seed: int = 0,
    embed: Embed | None = None,
    callbacks: Sequence[Callback] = (),
) -> Iterator[EpochResult]:
    """Fine-tune all weights; yield after each epoch; end with the weights of the epoch that was best on dev.

    When an epoch is yielded, the model has the weights of that epoch, so that the caller can save it. The
    order of the examples depends on `seed`; dropout comes from torch's global generator.

    task: examples and their loss, or a MultiTask, which has the same members. embed: how a batch becomes
    embeddings, by default sentences packed into rows and pooled; others are GradientCache, FrozenEmbeddings
    and AllLayersEmbed. callbacks: what happens besides, such as Checkpointing, FreezeLayers or PCGrad;
    tmft/runs/fine_tune.py puts all of them together. Raises DivergedError if the loss is not finite; the
    model then has the best weights so far.
    """
    amp = MixedPrecision(model.device, recipe.precision)
    embed = embed or PackedEmbed(model)

    # Data: every sentence is tokenized once; the order of the batches is drawn anew in each epoch.
    task.tokenize(model)
    steps = task.steps(recipe.batch_size, seed)  # a step is a list of batches: one, or one of each task

    # Weights: the encoder and, where the loss has one, its head. Word embeddings that never occur in the
    # training text are left out of the steps, with the same result: tmft/speed/occurring_words.py
    trained = nn.ModuleList([model, *(objective.to(model.device) for objective in task.objectives)])
    elementwise = recipe.optimizer in ELEMENTWISE_OPTIMIZERS
    occurring = occurring_words(model.encoder.embeddings, task.train_token_ids, elementwise)
    with occurring:
        parameters = [p for p in trained.parameters() if p.requires_grad]
        encoder_parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = OPTIMIZERS[recipe.optimizer](parameter_groups(parameters, recipe.weight_decay), lr=recipe.lr)
    scheduler = linear_schedule_with_warmup(optimizer, recipe.warmup_ratio, recipe.epochs * len(steps))

    best, state = BestWeights(trained), TrainerState(model.device)
    everything = trained, encoder_parameters, occurring, optimizer, scheduler, amp.scaler, steps, embed, best
    loop = Loop(state, *everything)  # what callbacks may see and change
    callbacks = CallbackList([*callbacks, ProgressBar(), StopIfDiverged()], loop)
    try:
        callbacks.on_train_begin()  # a resumed run: finished epochs, best weights
        yield from state.epochs
        while len(state.epochs) < recipe.epochs:
            state.begin_epoch()
            trained.train()
            with occurring:
                callbacks.on_epoch_begin()  # a resumed run: weights, optimizer, random states
                for step in steps:
                    optimizer.zero_grad()
                    for batch in step:
                        with amp:
                            embeddings = embed(batch).chunk(batch.num_texts)  # u and v of a pair: (P, D) each
                            loss = batch.loss_fn(*embeddings, batch.target)
                        amp.backward(loss)
                        state.add(loss, len(batch))
                        callbacks.on_substep_end(batch)  # gradient surgery: set this task's gradient aside
                    callbacks.on_pre_optimizer_step()  # gradient surgery: put the combined gradient in place
                    amp.clip_grad_norm_(optimizer, parameters, recipe.max_grad_norm)
                    if amp.step(optimizer):
                        scheduler.step()
                    callbacks.on_step_end()  # progress bar; now and then a checkpoint
                callbacks.on_epoch_end()
            state.end_steps()  # the speed that is reported does not count the evaluation

            dev = task.evaluate(
                embed, "dev"
            ).metrics  # Spearman of cosine and score, unless the task says else
            is_best = best.update(dev[task.selection_metric])
            yield state.finish_epoch(dev, is_best, scheduler.get_last_lr()[0])
            callbacks.on_evaluate()
        best.restore()
    except DivergedError:
        best.restore()
        raise
    finally:
        callbacks.on_train_end()
    model.eval()
