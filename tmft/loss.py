"""The loss on embeddings: the interface of an objective, and the two losses of the paper.

An objective is a loss together with the predictions that the metric scores. The losses of the paper are on
the cosine of a pair: its squared error and, for two classes, its cross-entropy.
Letters: P examples (pairs) of a batch, N of a split, D dimensions of an embedding.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.data import Examples, read_examples
from tmft.metrics import cosines
from tmft.tasks import Task


class Objective(nn.Module):
    """Base class of the entries of OBJECTIVES (tmft/losses/objectives.py).

    dimensions: number of dimensions D of the embeddings.
    task: the task to be trained, from which the objective takes classes, range of scores and objective_args.

    Parameters that an objective creates, such as a classification head, are trained together with the encoder
    and saved next to it in the run folder (head.safetensors).

    The class attributes say which tasks the objective fits and how it must be run:

    prediction_type: what `predict` returns for each example: "cosine", "class" (the index of a class),
        "score" (a number in the range of the labels, or the index of one of two classes) or "embedding".
    allowed_num_texts: the numbers of texts that an example may have, such as (2,) for pairs.
    config_class: the dataclass of the objective's hyperparameters, each an option of train.py; `config` is
        made of it with the task's objective_args. None if it has none.
    min_batch_size: the smallest batch for which the loss is meaningful.
    needs_labels: whether its tasks must have labels.
    needs_teacher: whether the labels are the embeddings that another model, a teacher, gives to the texts.
    """

    prediction_type: str = "cosine"
    allowed_num_texts: tuple[int, ...] = (2,)
    config_class: Any = None
    config: Any
    min_batch_size: int = 1
    needs_labels: bool = True
    needs_teacher: bool = False

    def __init__(self, dimensions: int = 0, task: Task | None = None):
        super().__init__()
        if self.config_class is not None:
            self.config = self.config_class(**(task.objective_args if task else {}))

    @property
    def has_head(self) -> bool:
        """Whether it has parameters, which are trained with the encoder."""
        return any(True for _ in self.parameters())

    @staticmethod
    def read_examples(task: Task, split: str, excluded_sentences: Sequence[str]) -> Examples:
        """Read one split of a task: the rows of its TSV files, unless a subclass has other examples.

        excluded_sentences: those of dev and test, if the objective needs a teacher: any text can be learned
        from one, also text in which these sentences occur.
        """
        return read_examples(task, split)

    # The two methods of a subclass. They are declared by their types, because an objective has one parameter
    # for each text of an example: u and v for pairs.

    # Returns the loss of a batch, a scalar. Parameters: one tensor (P, D) for each text of an example, then
    # the target, (P, ...): the labels as `labels_to_targets` converts them.
    forward: Callable[..., Tensor]

    # Returns the predictions for N examples, (N, ...), of the kind that `prediction_type` names. Parameters:
    # one tensor (N, D) for each text of an example, on the CPU.
    predict: Callable[..., np.ndarray]

    def predict_probabilities(self, *embeddings: Tensor) -> np.ndarray | None:
        """Return the probabilities of the C classes, (N, C) float64; None if `predict` chooses by none.

        embeddings: as for `predict`.
        """
        return None

    def predict_sub_embeddings(self, *embeddings: Tensor) -> dict[str, np.ndarray]:
        """Return the predictions from parts of the embeddings by name; {} unless the loss is on parts, too.

        embeddings: as for `predict`. NestedLoss (losses/nested.py) is the loss that has parts.
        """
        return {}


class CosineMSE(Objective):
    """Mean squared error of the cosine similarity of u and v, compared with a target in [0, 1].

    The target is the similarity score of the pair, rescaled to [0, 1]. There are no parameters.

    Source: Rep et al. 2024, section 3; Reimers and Gurevych 2019, arXiv:1908.10084.

    Example:

    >>> import torch
    >>> u, v = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> CosineMSE()(u, v, torch.tensor([1.0, 0.5])).item()  # the mean of (1 - 1)² and (0 - 0.5)²
    0.125
    """

    prediction_type = "cosine"

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar. u, v: (P, D) float32; target: (P,), scores in [0, 1]."""
        return F.mse_loss(F.cosine_similarity(u, v), target.to(u.dtype))

    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        """Return the cosine similarity of each pair, (N,) float64. u, v: (N, D)."""
        return cosines(u, v)


class CosineBCE(CosineMSE):
    """Binary cross-entropy with the cosine similarity of u and v as the logit of class 1.

    A cosine lies in [-1, 1], so the predicted probability of class 1 stays between 0.27 and 0.73. That does
    no harm: the metric (`threshold_metrics` in tmft/metrics.py) looks for the cosine that separates the
    classes best on dev, and needs no probability.
    Source: the released code of Rep et al. 2024, for MRPC.
    """

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar. u, v: (P, D) float32; target: (P,), class indices 0 and 1."""
        return F.binary_cross_entropy_with_logits(F.cosine_similarity(u, v), target.to(u.dtype))
