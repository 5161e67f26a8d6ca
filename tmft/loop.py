"""Truncated model fine-tuning (Rep, Dukić and Šnajder 2024): its hyperparameters and its training loop.

One step of `fit`, and what to read of each file:

    token ids of P pairs            Batch, made by TrainingTask.batch   training_task.py
    -> rows of several sentences    PackedEmbedder, which calls pack    packing.py
    -> the last kept hidden state   SentenceEncoder.forward             sentence_encoder.py
                                    BertEncoder, its first l layers     bert.py
    -> u and v, (P, D) each         mean_pooling                        pooling.py
    -> the loss, a scalar           CosineMSE, the loss of the paper    loss.py
    -> gradients, clip, step        `fit`, below                        loop.py

Two more files do what their callers say of them: optimizers.py (parameter groups, learning rate, autocast)
and encoder.py (the attention mask). After each epoch TrainingTask.evaluate embeds dev in the same way
(SentenceEncoder.embed_token_ids, in batches of similar lengths), takes the cosines of the pairs, and scores
them by `spearman` (metrics.py). The examples are read from TSV files by `read_examples` (data.py) before.

docs/lecture/one_file.py has all of it in a single file. What is not the method plugs in from outside, through
`embed` and callbacks (runs/train_run.py).

The letters of shapes mean the same in all of these files; a file names those that it uses:

    N examples or sentences of a whole split    P examples of a batch, S sentences of a batch (2 P for pairs)
    B rows of a batch, T tokens in a row        D dimensions of a hidden state, and so of their mean, u or v
    L layers of the checkpoint, l kept          H heads, A = D / H
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tmft.callbacks import (
    BestWeights,
    Callback,
    EpochResult,
    LoopState,
    ProgressBar,
    StopIfDiverged,
)
from tmft.device import PRECISIONS
from tmft.errors import MAX_COUNT
from tmft.io.arguments import check_fields, choice, in_range
from tmft.optimizers import LR_SCHEDULES, OPTIMIZERS, MixedPrecision, TrainedWeights, parameter_groups
from tmft.sentence_encoder import SentenceEncoder
from tmft.training_task import Embedder, EpochSteps, PackedEmbedder, TrainingTask


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of the paper and, for what it does not say, of the authors' released code.

    epochs: number of passes over the training examples.
    batch_size: number of examples in a step.
    lr: learning rate, the highest one if a schedule changes it.
    weight_decay: weight decay of matrices, not of biases and LayerNorm.
    warmup_ratio: fraction of all steps in which the learning rate rises.
    max_grad_norm: clip the gradients of a step to this L2 norm; 0: do not clip.
    precision: precision of training, by autocast: the weights stay in float32. auto is bf16 where the device
        supports it, else fp32. The authors train in float32; autocast is ours.
    optimizer: how a step changes the weights.
    lr_schedule: linear: the learning rate rises linearly in the warm-up, then falls linearly to 0; constant:
        it stays the same, and there is no warm-up.
    Raises InputError if a value has a wrong type or is out of range.
    Source: Rep et al. 2024, section 4. Warm-up, linear decay, and no decay of biases and LayerNorm are in no
    version of the paper, but in the released code (ir2718/similarity-embedding-quality, d9f600c).
    """

    epochs: int = in_range(10, 1, MAX_COUNT)
    batch_size: int = in_range(32, 1, MAX_COUNT)
    lr: float = in_range(2e-5, 0)
    weight_decay: float = in_range(0.01, 0)
    warmup_ratio: float = in_range(0.1, 0, 1)
    max_grad_norm: float = in_range(1.0, 0)
    precision: str = choice("auto", ["auto", *PRECISIONS])
    optimizer: str = choice("adamw", OPTIMIZERS)
    lr_schedule: str = choice("linear", LR_SCHEDULES)

    def __post_init__(self) -> None:
        check_fields(self)


def fit(
    model: SentenceEncoder,
    task: TrainingTask,
    recipe: Recipe,
    seed: int = 0,
    embed: Embedder | None = None,
    callbacks: Sequence[Callback] = (),
) -> Iterator[EpochResult]:
    """Fine-tune all weights that require a gradient, and yield the EpochResult of each epoch.

    This is a generator: nothing happens until it is iterated. When it yields the result of an epoch, the
    model has the weights of that epoch, so that the caller can save them. At the end the model has the
    weights of the epoch that was best on dev, also if the caller stops early or an error ends the training. A
    run that is resumed (by the callback Checkpointing) first yields the results of its finished epochs again,
    while the model has the best weights so far.

    task: the examples and their loss; several tasks are one MultiTask (training/multitask.py).
    seed: determines the order of the examples. Dropout draws from torch's global generator.
    embed: turns a batch into embeddings; None packs the sentences into rows without padding, encodes and
        pools them (PackedEmbedder).
    callbacks: objects with methods that are called at certain times, for instance to save checkpoints.
        (FreezeLayers freezes already when it is made, before `fit`.) tmft/runs/train_run.py makes those of a
        run.
    Raises DivergedError if the loss is not finite; in the first epoch the model then has the weights that it
    began with. Raises InputError if the weights of the model have 16 bits.
    """
    embed = embed or PackedEmbedder(model)

    # Data: every sentence is tokenized once; the order of the batches is drawn anew in each epoch.
    task.tokenize(model)
    # Iterating over `steps` gives one epoch; a step is a list of batches, one for each task that it trains.
    steps = EpochSteps(task, recipe.batch_size, seed)

    # Weights: those of the encoder and, if the loss has one, of its head. Matrices decay, vectors do not.
    weights = TrainedWeights(model, task.objectives, task.token_ids("train"), recipe.optimizer)
    groups = parameter_groups(weights.parameters, recipe.weight_decay)
    optimizer = OPTIMIZERS[recipe.optimizer](groups, lr=recipe.lr)
    schedule = LR_SCHEDULES[recipe.lr_schedule]
    scheduler = schedule(optimizer, recipe.warmup_ratio, recipe.epochs * len(steps))

    # Its methods are those of torch that they are named after: torch.autocast(), loss.backward(),
    # clip_grad_norm_() and optimizer.step(). In float32 they change no result beyond rounding.
    amp = MixedPrecision(model.device, recipe.precision)

    best_weights = BestWeights(weights.module)
    state = LoopState(
        weights=weights,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=amp.scaler,
        steps=steps,
        embed=embed,
        best_weights=best_weights,
        callbacks=[*callbacks, ProgressBar(), StopIfDiverged()],
    )
    try:
        state.call("on_train_begin")  # a resumed run loads its finished epochs and its best weights here
        yield from state.finished_epochs
        while len(state.finished_epochs) < recipe.epochs:
            state.begin_epoch()
            weights.module.train()  # dropout is on
            with weights.occurring_words_only():  # for speed, with the same result
                state.call("on_epoch_begin")  # a resumed run loads weights, optimizer and random states here
                for step in steps:  # a resumed epoch continues with its next step
                    optimizer.zero_grad()
                    for batch in step:  # the gradients of several batches add up
                        with amp.autocast():
                            # one tensor (P, D) for each text of an example: u and v for pairs
                            embeddings = embed(batch).chunk(batch.texts_per_example)
                            loss = batch.training_loss(*embeddings, batch.target)  # CosineMSE.forward
                        state.add_loss(loss, num_examples=len(batch))
                        amp.backward(loss)
                        state.call("on_substep_end", batch)  # gradient surgery sets its gradient aside
                    state.call("on_pre_optimizer_step")  # gradient surgery puts the combined one in place
                    amp.clip_grad_norm_(optimizer, weights.parameters, recipe.max_grad_norm)
                    if amp.step(optimizer):  # False if an fp16 gradient overflowed and the step was skipped
                        scheduler.step()
                    state.call("on_step_end")  # progress bar; now and then a checkpoint
                state.call("on_epoch_end")
            state.stop_clock()  # the speed that is reported does not count the evaluation

            # Dev is scored without dropout (Embedder.embed_no_grad) and, without autocast, in float32. The
            # metric is the Spearman correlation of cosines and scores, unless the task has another one.
            dev_metrics = task.evaluate(embed, "dev").metrics
            is_best = best_weights.update(dev_metrics[task.selection_metric])
            yield state.finish_epoch(dev_metrics, is_best)
            state.call("on_evaluate")  # a checkpoint is written after the caller has saved the epoch
    finally:
        best_weights.restore()
        model.eval()
        state.call("on_train_end")
