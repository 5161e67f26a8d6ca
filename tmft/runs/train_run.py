"""One fine-tuning run: load the model, train it, score its best epoch on test once, and write the results.

`assemble_training` is the one place that knows everything that can be plugged into the training loop. To add
something of your own, write a callback (tmft/callbacks.py), an `embed` (tmft/training_task.py) or a
loss, and add it there.
"""

import logging
import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from tmft.callbacks import Callback
from tmft.checkpoints.model_card import describe_compatibility
from tmft.checkpoints.st_folder import read_settings
from tmft.data import Examples
from tmft.datasets.task_lookup import subsample_train
from tmft.device import choose_precision
from tmft.embedding.modules import make_projection
from tmft.errors import InputError
from tmft.io.distributed import single_process
from tmft.io.formatting import format_duration, percent
from tmft.loop import fit
from tmft.losses.nested import AllLayersEmbedder, NestedLoss, SubEmbeddingSlices
from tmft.runs.predictor import save_heads
from tmft.runs.result_json import format_provenance
from tmft.runs.run_config import FineTuningRecipe, Run
from tmft.runs.run_folder import data_digests, open_run_folder
from tmft.runs.run_result import fine_tuning_result, save_predictions, write_result
from tmft.sentence_encoder import SentenceEncoder
from tmft.speed.cuda_graphs import GraphedEmbedder
from tmft.students.quantized_weights import QuantizedWeights
from tmft.training.checkpointing import Checkpointing, TrainingCheckpoint
from tmft.training.freezing import FreezeLayers, PrecomputedEmbedder
from tmft.training.gradient_cache import GradientCache
from tmft.training.gradient_surgery import GRADIENT_SURGERY
from tmft.training.multitask import MultiTask, make_training_tasks
from tmft.training_task import Embedder, PackedEmbedder, TrainingTask

log: logging.Logger = logging.getLogger("tmft")


def train_run(
    run: Run,
    data: dict[str, dict[str, Examples]],
    device: torch.device,
    arguments: dict[str, Any],
    callbacks: Sequence[Callback] = (),
) -> None:
    """Do one run and write its folder: the model, a model card and, last, result.json.

    A run that is finished already is skipped; an interrupted one is resumed.
    data: name of a task ("" if there is only one) -> split -> examples. arguments: the options of the command
    line. callbacks: those of the user.
    """
    config, folder, recipe = run.config, run.folder, run.config.recipe
    digests = {"data": data_digests(data), "checkpoint": run.checkpoint_digests}
    # The checkpoint has the state of an interrupted run, if there was one.
    with open_run_folder(folder, config.to_flat_dict(), digests, single_process(device)) as checkpoint:
        if checkpoint is None:
            return
        torch.manual_seed(config.seed)  # random weights, if asked for, and dropout
        num_layers = config.keep_layers[-1] + 1 if config.keep_layers else config.layer  # to be read
        model = SentenceEncoder.from_pretrained(
            run.init_folder, num_layers, config.pooling, config.max_length, config.init
        )
        model.to(device).source = config.init_from or config.ckpt
        if mix := read_settings(run.init_folder, config.pooling).layer_mix:
            log.warning(
                "%s pools a mean of layers, %s: training pools the last layer alone", model.source, mix
            )
        model.similarity_fn_name = "cosine"  # what the losses and the score on dev compare embeddings by
        if config.projection:
            model.truncate_dim = None  # the projection takes all dimensions
            modules = make_projection(model.head_modules, model.dimensions, config.projection, model.source)
            model.head_modules = modules.to(device)
        if config.keep_layers:
            model.keep_layers(config.keep_layers)
        if config.token_weights:
            sentences = [sentence for splits in data.values() for sentence in splits["train"].sentences]
            model.set_token_weights(config.token_weights, sentences)
        data = subsample_train(data, config.train_fraction, config.seed)
        tasks = make_training_tasks(config.task, model.dimensions, data, config.loss_weights)

        print(run_header(run, model, {name: len(splits["train"]) for name, splits in data.items()}))
        task, embed, own = assemble_training(model, tasks, recipe, checkpoint)
        metric, epochs = config.task.metric, []
        for epoch in fit(model, task, recipe, config.seed, embed, [*own, *callbacks]):
            epochs.append(epoch)
            mark = "*" if epoch.is_best else " "  # the best score on dev so far
            seconds_left = (recipe.epochs - epoch.epoch) * statistics.mean(e.seconds for e in epochs)
            print(
                f"epoch {epoch.epoch:2}/{recipe.epochs} | loss {epoch.loss:.4f} | "
                f"dev {metric} {percent(epoch.dev[metric])} {mark} | lr {epoch.lr:.1e} | "
                f"{epoch.pairs_per_second:.0f} pairs/s | {format_duration(seconds_left)} left",
                flush=True,
            )
            if epoch.is_best:
                best = epoch
                model.save_pretrained(folder)  # now, so that a run that is stopped leaves its best model
                save_heads({name: task.objective for name, task in tasks.items()}, folder)

        test = task.evaluate(embed, "test", best.dev)
        save_predictions(test.predictions, folder)
        result = fine_tuning_result(run, model, epochs, test.metrics, arguments, digests)
        write_result(folder, result, model)
    choice = "the best on dev"
    if math.isnan(best.dev[metric]):
        choice = f"the last, because dev {metric} is undefined in each (do all embeddings become equal?)"
    print(f"test {metric} {percent(test.metrics[metric])} at epoch {best.epoch}, {choice}: {folder}")


def assemble_training(
    model: SentenceEncoder,
    tasks: dict[str, TrainingTask],
    recipe: FineTuningRecipe,
    checkpoint: TrainingCheckpoint | None = None,
) -> tuple[TrainingTask, Embedder, list[Callback]]:
    """Return the task, the `embed` and the callbacks with which `fit` does all that a recipe asks for.

    If all options have their defaults, these are the only task, a PackedEmbedder and no callback.
    tasks: name -> TrainingTask; if sub-embeddings are trained, the loss of each is wrapped in place.
    """
    gradient_surgery = GRADIENT_SURGERY[recipe.gradient_surgery]
    # Both keep gradients for longer than a CUDA graph leaves them as they are.
    has_graphs = recipe.cuda_graphs and not (recipe.mini_batch_size or gradient_surgery)
    embed: Embedder = GraphedEmbedder(model) if has_graphs else PackedEmbedder(model)
    callbacks: list[Callback] = []
    if recipe.quantization:
        callbacks.append(QuantizedWeights(model, recipe.quantization))
    if checkpoint is not None:
        callbacks.append(Checkpointing(checkpoint))
    [first_task, *others] = tasks.values()
    task: TrainingTask = first_task
    if others:
        task = MultiTask(tasks, recipe.task_sampling, recipe.epochs)

    if recipe.freeze_layers is not None:
        freeze = FreezeLayers(model, recipe.freeze_layers)
        callbacks.append(freeze)
        for name, single in tasks.items():
            weights = [*model.parameters(), *single.objective.parameters()]
            if not any(weight.requires_grad for weight in weights):
                raise InputError(
                    f"freeze_layers: nothing is left to train for {name or 'this task'}: "
                    "choose an objective with a head, such as concat_head",
                    "freeze_layers",
                )
        if freeze.freezes_all:
            embed = frozen = PrecomputedEmbedder(model)
            callbacks.append(frozen)

    if recipe.all_layers or recipe.matryoshka_dims:
        num_layers = len(model.encoder.layers) if recipe.all_layers else None
        dims, widening = recipe.matryoshka_dims or (), recipe.all_layers == "widening"
        sub_embeddings = SubEmbeddingSlices(model.dimensions, dims, num_layers, widening)
        for name, single in tasks.items():
            if (dims or widening) and single.objective.has_head:
                option = "matryoshka_dims" if dims else "all_layers"
                raise InputError(
                    f"{option}: the head of {name or 'this task'} needs all dimensions: "
                    "choose an objective without a head",
                    option,
                )
            single.outer_objective = NestedLoss(single.objective, sub_embeddings)
        if recipe.all_layers:
            embed = AllLayersEmbedder(model)

    if recipe.mini_batch_size:
        embed = GradientCache(embed, recipe.mini_batch_size)
    if gradient_surgery:
        callbacks.append(gradient_surgery())
    return task, embed, callbacks


def run_header(run: Run, model: SentenceEncoder, num_examples: dict[str, int]) -> str:
    """Return the lines that are printed when a run begins: folder, data, device and origin of the weights."""
    where = f"{choose_precision(run.config.recipe.precision, model.device)} on {model.device}"
    if model.device.type == "cpu":
        threads = torch.get_num_threads()
        where += f", {threads} thread{'s' * (threads > 1)}"
    examples = " + ".join(f"{number} {name}".strip() for name, number in num_examples.items())
    provenance = f"weights from {format_provenance(run.provenance)}" if run.provenance else ""
    lines = [
        f"\n{run.folder}: {examples} training examples, {where}",
        model.load_report,
        provenance,
        describe_compatibility(model),
    ]
    return "\n".join(str(line) for line in lines if line)
