"""A task in training: its examples as batches, its loss, its evaluation.

Shapes: N examples of a split, P examples of a batch, k texts per example (2 for pairs).
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from tmft.data import Examples, batches, labels_to_targets
from tmft.losses.nested import NestedLoss
from tmft.metrics import METRICS, compute_metrics
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import Task
from tmft.training.embed import Batch, Embed

TOKENIZE_BATCH = 100_000  # sentences tokenized at a time: lists of Python integers take much memory


@dataclass
class EvalOutput:
    """The evaluation of one split. metrics: raw scores by name; predictions: name of a task ("" if there is
    only one) -> what its metric read, and the labels."""

    metrics: dict
    predictions: dict[str, tuple[np.ndarray, list | Tensor]] = field(default_factory=dict)


class TrainingTask:
    """A task in training.

    objective: an entry of OBJECTIVES, made for the width of the embeddings. examples: of each split; "train"
    and "dev" are needed to train. loss_weight: factor of its loss among several tasks. name: "" if there is
    only one.
    """

    def __init__(
        self,
        task: Task,
        objective: nn.Module,
        examples: dict[str, Examples],
        loss_weight: float = 1.0,
        name: str = "",
    ):
        self.task, self.objective, self.examples = task, objective, examples
        self.loss_weight, self.name = loss_weight, name
        self.loss = objective  # or a NestedLoss around it

    @property
    def objectives(self) -> list[nn.Module]:
        """Modules whose weights, if they have any, are trained with the encoder."""
        return [self.objective]

    @property
    def selection_metric(self) -> str:
        """The metric that selects the best epoch."""
        return self.task.metric

    @property
    def texts_per_example(self) -> int:
        """k, texts per example"""
        return len(self.examples["train"].texts)

    @property
    def num_examples(self) -> int:
        """N, examples of the training split"""
        return len(self.examples["train"])

    def tokenize(self, model: SentenceEncoder) -> None:
        """Tokenize the sentences of train and dev once, for all epochs."""
        texts = self.examples["train"].sentences
        parts = (texts[start : start + TOKENIZE_BATCH] for start in range(0, len(texts), TOKENIZE_BATCH))
        self.train_token_ids = [array("i", ids) for part in parts for ids in model.tokenize(part)]
        self.dev_token_ids = model.tokenize(self.examples["dev"].sentences)
        self.target, self.device = labels_to_targets(self.examples["train"].labels, self.task), model.device

    def steps(self, batch_size: int, seed: int) -> "EpochSteps":
        """The steps of an epoch: one batch each, in an order that is drawn anew in every epoch."""

        def plan(generator: torch.Generator) -> list[list]:
            return [[(self, indices)] for indices in batches(self.num_examples, batch_size, generator)]

        return EpochSteps(plan, seed)

    def batch(self, indices: list[int]) -> Batch:
        """The examples with these indices.

        The targets are indexed on the CPU: indexing on the GPU would copy the indices there and make the step
        wait for the one before.
        """
        N = self.num_examples
        token_ids = [self.train_token_ids[j * N + i] for j in range(self.texts_per_example) for i in indices]
        target = self.target[indices].to(self.device, non_blocking=True)
        return Batch(token_ids, self.texts_per_example, target, self.weighted_loss, self.name)

    def weighted_loss(self, *embeddings_and_target: Tensor) -> Tensor:
        """k embeddings, (P, D) each, and the target, (P, ...) -> scalar"""
        loss = self.loss(*embeddings_and_target)
        return loss if self.loss_weight == 1 else self.loss_weight * loss

    def evaluate(self, embed: Embed, split: str, dev_metrics: dict | None = None) -> EvalOutput:
        """Metrics of a split. dev_metrics: those of dev, for a decision threshold that was chosen there; None
        chooses it on this split, which is right for dev only."""
        examples, metric = self.examples[split], self.task.metric
        token_ids = self.dev_token_ids if split == "dev" else embed.model.tokenize(examples.sentences)
        embeddings = embed.embed_no_grad(token_ids).chunk(len(examples.texts))  # k of (N, D)
        self.objective.eval()
        predictions, threshold = self.loss.predict(*embeddings), (dev_metrics or {}).get("threshold")
        metrics = compute_metrics(predictions, examples, self.task, threshold)
        if isinstance(self.loss, NestedLoss) and len(self.loss.sub_embeddings.slices) > 1:
            metrics["sub_embeddings"] = {
                name: METRICS[metric](predicted, examples.labels, threshold)[metric]
                for name, predicted in self.loss.predict_sub_embeddings(*embeddings).items()
            }
        return EvalOutput(metrics, {self.name: (predictions, examples.labels)})


class EpochSteps:
    """Iterating gives the steps of one epoch, each a list of batches; len() is the number of steps.

    plan: draws the steps of an epoch with a generator; each is a list of (TrainingTask, indices of examples).
    The state is the position in the epoch, so that a resumed run continues with the next step.
    """

    def __init__(self, plan: Callable[[torch.Generator], list[list]], seed: int):
        self.plan, self.generator = plan, torch.Generator()
        first = plan(self.generator)
        self.num_steps = len(first)
        self.num_examples = sum(len(indices) for step in first for _, indices in step)  # in an epoch
        self.generator.manual_seed(seed)
        self.step, self.epoch_start = 0, self.generator.get_state()  # of the epoch in progress

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[list[Batch]]:
        """The next epoch, or what is left of the one in progress."""
        self.epoch_start = self.generator.get_state()
        for step in self.plan(self.generator)[self.step :]:
            self.step += 1
            yield [task.batch(indices) for task, indices in step]
        self.step = 0

    def state_dict(self) -> dict:
        return {
            "step": self.step,
            "generator": self.epoch_start if self.step else self.generator.get_state(),
        }

    def load_state_dict(self, state: dict) -> None:
        self.step = state["step"]
        self.generator.set_state(state["generator"])
