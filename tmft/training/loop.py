"""Truncated model fine-tuning (Rep, Dukić and Šnajder 2024): its hyperparameters and its training loop.

Shapes: P examples (pairs) in a batch, D dimensions of an embedding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from tmft.device import MixedPrecision, check_training_dtype
from tmft.errors import MAX_COUNT, check_choice, check_range
from tmft.sentence_encoder import SentenceEncoder
from tmft.speed.occurring_words import occurring_words
from tmft.training.best_weights import BestWeights
from tmft.training.callbacks import Callback, CallbackList, DivergedError, ProgressBar, StopIfDiverged
from tmft.training.embed import Embed, PackedEmbed
from tmft.training.loop_state import EpochResult, LoopContext, TrainerState
from tmft.training.multitask import MultiTask
from tmft.training.optimizers import (
    ELEMENTWISE_OPTIMIZERS,
    OPTIMIZERS,
    linear_schedule_with_warmup,
    parameter_groups,
)
from tmft.training.task import TrainingTask


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of the paper; only the precision differs, which was float32 there.

    epochs: number of passes over the training examples. max_grad_norm: the gradients of a step are clipped to
    this L2 norm. optimizer: an entry of OPTIMIZERS.
    Raises InputError if a value is out of range.
    Source: Rep et al. 2024, appendix, and their released training script.
    """

    epochs: int = 10
    batch_size: int = 32  # examples in a step
    lr: float = 2e-5  # peak learning rate, after the warm-up
    weight_decay: float = 0.01  # of weight matrices; biases and LayerNorm are not decayed
    warmup_ratio: float = 0.1  # share of all steps in which the learning rate rises
    max_grad_norm: float = 1.0
    precision: str = "auto"  # fp32, bf16, fp16, or auto: bf16 if the device supports it, else fp32
    optimizer: str = "adamw"

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        for name in ("epochs", "batch_size"):
            check_range(name, getattr(self, name), 1, MAX_COUNT)
        for name in ("lr", "weight_decay", "max_grad_norm"):
            check_range(name, getattr(self, name), 0)
        check_range("warmup_ratio", self.warmup_ratio, 0, 1)


def fit(
    model: SentenceEncoder,
    task: TrainingTask | MultiTask,
    recipe: Recipe,
    seed: int = 0,
    embed: Embed | None = None,
    callbacks: Sequence[Callback] = (),
) -> Iterator[EpochResult]:
    """Fine-tune all weights that require a gradient, and yield the EpochResult of each epoch.

    This is a generator: nothing happens until it is iterated. When it yields the result of an epoch, the
    model has the weights of that epoch, so that the caller can save them; at the end the model has the
    weights of the epoch that was best on dev. A run that is resumed (by the callback Checkpointing) first
    yields the results of its finished epochs again, while the model has the best weights so far.

    task: the examples and their loss; a MultiTask for several tasks.
    seed: determines the order of the examples. Dropout draws from torch's global generator.
    embed: turns a batch into embeddings; None packs the sentences into rows without padding, encodes and
        pools them (PackedEmbed).
    callbacks: objects with methods that are called at certain times, for instance to save checkpoints.
        (FreezeLayers freezes already when it is made, before `fit`.) tmft/runs/fine_tune.py makes those of a
        run.
    Raises DivergedError if the loss is not finite; the model then has the weights of the best epoch or, in
    the first epoch, those that it began with. Raises InputError if the weights of the model have 16 bits.
    """
    check_training_dtype(model.dtype)
    amp = MixedPrecision(model.device, recipe.precision)
    embed = embed or PackedEmbed(model)

    # Data: every sentence is tokenized once; the order of the batches is drawn anew in each epoch.
    task.tokenize(model)
    # Iterating over `steps` gives one epoch; a step is a list of batches, one for each task that it trains.
    steps = task.steps(recipe.batch_size, seed)

    # Weights: those of the encoder and, if the loss has one, of its head. To save time, a step leaves out the
    # word embeddings of tokens that do not occur in the training text: they have no gradient, and AdamW would
    # only shrink them by the weight decay, which is made up for at the end of each
    # `with only_occurring_words`. Inside it the word embeddings are a smaller Parameter, always the same one.
    # See tmft/speed/occurring_words.py.
    trainable = nn.ModuleList([model, *(objective.to(model.device) for objective in task.objectives)])
    is_elementwise = recipe.optimizer in ELEMENTWISE_OPTIMIZERS
    only_occurring_words = occurring_words(model.encoder.embeddings, task.train_token_ids, is_elementwise)
    with only_occurring_words:
        parameters = [p for p in trainable.parameters() if p.requires_grad]
        encoder_parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = OPTIMIZERS[recipe.optimizer](parameter_groups(parameters, recipe.weight_decay), lr=recipe.lr)
    scheduler = linear_schedule_with_warmup(optimizer, recipe.warmup_ratio, recipe.epochs * len(steps))

    best_weights, state = BestWeights(trainable), TrainerState(model.device)
    context = LoopContext(
        state,
        trainable,
        encoder_parameters,
        only_occurring_words,
        optimizer,
        scheduler,
        amp.scaler,
        steps,
        embed,
        best_weights,
    )
    events = CallbackList([*callbacks, ProgressBar(), StopIfDiverged()], context)
    try:
        events.on_train_begin()  # a resumed run loads its finished epochs and its best weights here
        yield from state.finished_epochs
        while len(state.finished_epochs) < recipe.epochs:
            state.begin_epoch()
            trainable.train()
            with only_occurring_words:
                events.on_epoch_begin()  # a resumed run loads weights, optimizer and random states here
                for step in steps:  # a resumed epoch continues with its next step
                    optimizer.zero_grad()
                    for batch in step:  # the gradients of several batches add up
                        with amp:
                            # one tensor (P, D) for each text of an example: u and v for pairs
                            embeddings = embed(batch).chunk(batch.texts_per_example)
                            loss = batch.loss_fn(*embeddings, batch.target)
                        amp.backward(loss)
                        state.add_loss(loss, num_examples=len(batch))
                        events.on_substep_end(batch)  # gradient surgery: set this task's gradient aside
                    events.on_pre_optimizer_step()  # gradient surgery: put the combined gradient in place
                    amp.clip_grad_norm_(optimizer, parameters, recipe.max_grad_norm)
                    if amp.step(optimizer):  # False if an fp16 gradient overflowed and the step was skipped
                        scheduler.step()
                    events.on_step_end()  # progress bar; now and then a checkpoint
                events.on_epoch_end()
            state.stop_clock()  # the speed that is reported does not count the evaluation

            # The metric is the Spearman correlation of cosines and scores, unless the task has another one.
            dev_metrics = task.evaluate(embed, "dev").metrics
            is_best = best_weights.update(dev_metrics[task.selection_metric])
            yield state.finish_epoch(dev_metrics, is_best, float(scheduler.get_last_lr()[0]))
            events.on_evaluate()  # a checkpoint is written after the caller has saved the epoch
        best_weights.restore()
    except DivergedError:
        best_weights.restore()
        raise
    finally:
        events.on_train_end()
    model.eval()
