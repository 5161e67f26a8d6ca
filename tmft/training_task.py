"""What the training loop trains: a batch of a task, the `embed` that embeds it, and the task with its loss.

PackedEmbedder is the default `embed`. The others are in training/gradient_cache.py (for batches that do not
fit in memory), training/freezing.py (a frozen encoder) and losses/nested.py (all layers at once).

Letters: N examples of a split, P examples of a batch, k texts of an example (2 for pairs), S = k P sentences
of a batch, D dimensions of an embedding.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tmft.data import Examples, labels_to_targets, shuffle_into_batches
from tmft.errors import InputError
from tmft.loss import Objective
from tmft.metrics import METRICS, compute_metrics, correlation_metrics
from tmft.packing import ROWS_MULTIPLE, PackedBatch, TokenizedCorpus, pack
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import Task


@dataclass
class Batch:
    """A batch of P examples of one task, with the function that computes their loss.

    token_ids: token ids of the k * P sentences: the first texts of all examples, then all second texts.
    texts_per_example: k, the number of texts of an example, 2 for pairs.
    target: the labels, as the loss needs them, (P, ...).
    training_loss: that of the task, a function of k embeddings, (P, D) each, and the target; it returns a
        scalar.
    task: name of the task, "" if there is only one.
    """

    token_ids: Sequence[Sequence[int]]
    texts_per_example: int
    target: Tensor
    training_loss: Callable[..., Tensor]
    task: str = ""

    def __len__(self) -> int:
        return len(self.target)

    def select(self, sentences: slice) -> "Batch":
        """Return a copy with only a slice of token_ids; its target is still that of all P examples."""
        return replace(self, token_ids=self.token_ids[sentences])


class Embedder:
    """Base class of the objects that the training loop calls to embed a batch.

    A subclass implements `__call__`; it overrides the other methods where it differs from the plain model.
    width: the number of dimensions of the tensors that it returns, D.
    """

    model: SentenceEncoder
    width: int

    def __init__(self, model: SentenceEncoder):
        self.model, self.width = model, model.dimensions

    @property
    def device(self) -> torch.device:
        """The device of the model's weights."""
        return self.model.device

    def __call__(self, batch: Batch) -> Tensor:
        """Embed the S sentences of a batch for training: return (S, D) float32 with an autograd graph."""
        raise NotImplementedError

    def embed_no_grad(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Embed S sentences, given as token_ids, without dropout and gradient, as `encode` does.

        Returns (S, D) float32 on the CPU.
        """
        return self.model.embed_token_ids(token_ids)


class PackedEmbedder(Embedder):
    """Embeds a batch directly: packs its sentences into rows without padding, then encodes and pools them.

    On a GPU the number of rows is a multiple of ROWS_MULTIPLE, so that few shapes occur.
    """

    def __call__(self, batch: Batch) -> Tensor:
        rows_multiple = 1 if self.device.type == "cpu" else ROWS_MULTIPLE
        return self.embed(pack(batch.token_ids, rows_multiple=rows_multiple).to(self.device))

    def embed(self, batch: PackedBatch) -> Tensor:
        """Return the embeddings of a packed batch, (S, D) float32."""
        return self.model(batch)


@dataclass
class EvalOutput:
    """The evaluation of one split.

    metrics: raw scores, not x 100, by name.
    predictions: name of a task ("" if there is only one) -> (predictions, labels), from which its metric was
        computed: the predictions of the objective, (N, ...), and the labels of the N examples.
    """

    metrics: dict[str, Any]
    predictions: dict[str, tuple[np.ndarray, list[Any] | Tensor]] = field(default_factory=dict)


class TrainingTask:
    """Makes batches of the training examples of a task, computes its loss and evaluates it.

    objective: an object of one of the classes in OBJECTIVES (losses/objectives.py), made for embeddings of
        this width: the loss, and the predictions that the metric scores.
    examples: name of a split -> its examples, of "train", "dev" and, to evaluate it, "test".
    loss_weight: factor of the loss if several tasks are trained at once.
    name: name of the task; "" if there is only one.
    """

    train_token_ids: TokenizedCorpus
    dev_token_ids: list[list[int]]
    device: torch.device

    def __init__(
        self,
        task: Task,
        objective: Objective,
        examples: dict[str, Examples],
        loss_weight: float = 1.0,
        name: str = "",
    ):
        self.task, self.objective, self.examples = task, objective, examples
        self.loss_weight, self.name = loss_weight, name
        self.outer_objective = objective  # or the NestedLoss around it (losses/nested.py)
        self.target = labels_to_targets(examples["train"].labels, task)
        check_dev(examples["dev"], task, name)

    @property
    def objectives(self) -> list[Objective]:
        """The objective, in a list; its weights, if it has any, are trained with the encoder."""
        return [self.objective]

    @property
    def selection_metric(self) -> str:
        """Name of the metric whose value on dev selects the best epoch."""
        return self.task.metric

    @property
    def texts_per_example(self) -> int:
        """k, the number of texts of an example: 2 for pairs."""
        return len(self.examples["train"].texts)

    @property
    def num_examples(self) -> int:
        """N, the number of training examples."""
        return len(self.examples["train"])

    def tokenize(self, model: SentenceEncoder) -> None:
        """Tokenize the sentences of train and dev once, for all epochs."""
        self.train_token_ids = model.tokenize_to_corpus(self.examples["train"].sentences)
        self.dev_token_ids = model.tokenize(self.examples["dev"].sentences)
        self.device = model.device

    def token_ids(self, split: str) -> Iterable[Sequence[int]]:
        """Return the token ids of all sentences of a split. split: "train" or "dev"."""
        return self.train_token_ids if split == "train" else self.dev_token_ids

    def plan_steps(self, batch_size: int, generator: torch.Generator, epoch: int = 0) -> list[list[Any]]:
        """Return the steps of an epoch, with one batch each: [[(task, indices of its examples)], ...].

        batch_size: examples of a batch. generator: draws a new order of the examples. epoch: its number,
        from 0, on which the tasks of several may depend.
        """
        return [
            [(self, indices)] for indices in shuffle_into_batches(self.num_examples, batch_size, generator)
        ]

    def batch(self, indices: Tensor) -> Batch:
        """Return the batch of the training examples with these indices, (P,) int64."""
        N, examples = self.num_examples, indices.tolist()
        # Text j of example i is sentence j * N + i.
        token_ids = [self.train_token_ids[j * N + i] for j in range(self.texts_per_example) for i in examples]
        # Indexed on the CPU: on the GPU, the indices would be copied there first, and the step would wait.
        target = self.target[indices].to(self.device, non_blocking=True)
        return Batch(token_ids, self.texts_per_example, target, self.training_loss, self.name)

    def training_loss(self, *embeddings_and_target: Tensor) -> Tensor:
        """Return loss_weight x the loss of the objective, such as CosineMSE in loss.py: a scalar.

        embeddings_and_target: k embeddings, (P, D) each, then the target, (P, ...).
        """
        loss = self.outer_objective(*embeddings_and_target)
        return loss if self.loss_weight == 1 else self.loss_weight * loss

    def evaluate(self, embed: Embedder, split: str, dev_metrics: dict[str, Any] | None = None) -> EvalOutput:
        """Evaluate the model on a split.

        dev_metrics: the metrics that this method returned for dev, if `split` is test. If the metric is F1,
            they have the decision threshold, which is chosen on dev. With None, the threshold is chosen on
            this split, which is right for dev only.
        Returns the metrics that `compute_metrics` returns, and the predictions. If sub-embeddings are
        trained, too, metrics["sub_embeddings"] is {name: metric of the task} for each of them.
        """
        examples, metric = self.examples[split], self.task.metric
        token_ids = self.dev_token_ids if split == "dev" else embed.model.tokenize(examples.sentences)
        embeddings = embed.embed_no_grad(token_ids).chunk(len(examples.texts))  # k of (N, D)
        self.objective.eval()
        predictions = self.outer_objective.predict(*embeddings)
        by_sub_embedding = self.outer_objective.predict_sub_embeddings(*embeddings)
        threshold = (dev_metrics or {}).get("threshold")
        metrics = compute_metrics(predictions, examples, self.task, threshold)
        if by_sub_embedding:
            metrics["sub_embeddings"] = {
                name: METRICS[metric](predicted, examples.labels, threshold)[metric]
                for name, predicted in by_sub_embedding.items()
            }
        return EvalOutput(metrics, {self.name: (predictions, examples.labels)})


def check_dev(dev: Examples, task: Task, name: str) -> None:
    """Raise InputError if dev has no score, whatever the model predicts, and so could choose no epoch.

    name: that of the task, "" if there is only one. The correlation with equal labels is not defined.
    """
    if METRICS[task.metric] is correlation_metrics and len(set(dev.labels)) < 2:
        problem = f"{name and f'{name}: '}dev has one label only (examples: {len(dev)})"
        remedy = "give dev examples with different labels"
        raise InputError(f"{problem}, so that no {task.metric} can choose the best epoch: {remedy}")


class EpochSteps:
    """The steps of an epoch: iterating yields each one, a list of batches; len() is the number of steps.

    task: it plans the steps of an epoch.
    seed: of the generator, which draws another order in every epoch.
    The state that is saved is the epoch and the position in it: a resumed run continues with the next step.
    """

    def __init__(self, task: TrainingTask, batch_size: int, seed: int):
        self.task, self.batch_size, self.generator = task, batch_size, torch.Generator()
        first = task.plan_steps(batch_size, self.generator)  # only to count them: the seed is set afterwards
        self.num_steps = len(first)
        self.num_examples = sum(len(indices) for step in first for _, indices in step)  # in an epoch
        self.generator.manual_seed(seed)
        self.step, self.epoch_start = 0, self.generator.get_state()  # of the epoch in progress
        self.epoch = 0  # its number

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[list[Batch]]:
        """Yield the steps of the next epoch or, after resuming, those left of the epoch in progress."""
        self.epoch_start = self.generator.get_state()
        for step in self.task.plan_steps(self.batch_size, self.generator, self.epoch)[self.step :]:
            self.step += 1
            yield [task.batch(indices) for task, indices in step]
        self.step, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "step": self.step,
            "generator": self.epoch_start if self.step else self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not 0 <= state["step"] <= self.num_steps:
            raise ValueError(f"step {state['step']} of {self.num_steps}")
        self.epoch, self.step = state["epoch"], state["step"]
        self.generator.set_state(state["generator"])
