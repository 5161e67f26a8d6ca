"""Losses on parts of an embedding: every layer, and the first dimensions, trained at once in one run.

Afterwards the model can be cut to any of them. Each text then has several sub-embeddings: one for each layer,
from 0, and for each of these its first dimensions. They are concatenated in one tensor; the full embedding of
the last layer comes last. Source: Kusupati et al. 2022, arXiv:2205.13147 (Matryoshka: the first dimensions);
Li et al. 2024, arXiv:2402.14776 (of every layer).

Shapes: P examples of k texts, D dimensions of an embedding, L layers, K sub-embeddings.
"""

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import torch
from torch import Tensor, nn

from tmft.errors import InputError
from tmft.losses.distillation import EmbeddingDistillationConfig, distillation_loss

Texts = tuple[Tensor, ...]  # one sub-embedding of the k texts of each example: k of (P, size)


class SubEmbeddings:
    """Where each sub-embedding is in the concatenated tensor, (S, width).

    D: dimensions of a full embedding. dims: how many first dimensions are trained as well, increasing.
    num_layers: L, for the hidden states 0 to L; None: the last one only. seed: for those that are sampled.
    Raises InputError if the dimensions do not fit.
    """

    def __init__(self, D: int, dims: Sequence[int] = (), num_layers: int | None = None, seed: int = 0):
        sizes = [*dims, D]
        if sorted(set([0, *sizes])) != [0, *sizes]:
            numbers = " ".join(map(str, dims))
            raise InputError(
                f"matryoshka_dims {numbers}: give increasing numbers, from 1 to {D - 1}", "matryoshka_dims"
            )
        self.random = Random(seed)
        self.slices: dict[str, slice] = {}  # "layer 3 first 64" and so on; "" is the full embedding
        layers = [None] if num_layers is None else range(num_layers + 1)
        for index, layer in enumerate(layers):
            for size in sizes:
                words = [f"layer {layer}"] * (layer is not None) + [f"first {size}"] * (size < D)
                is_full = index == len(layers) - 1 and size == D
                self.slices["" if is_full else " ".join(words)] = slice(index * D, index * D + size)
        self.width = D * len(layers)

    def split(self, embeddings: Tensor) -> dict[str, Tensor]:
        """(S, width) -> (S, size) for each sub-embedding, by name; the full one, "", is last."""
        return {name: embeddings[:, part] for name, part in self.slices.items()}

    def state_dict(self) -> dict:
        return {"random": self.random.getstate()}

    def load_state_dict(self, state: dict) -> None:
        self.random.setstate(state["random"])


def mean_loss(loss: Callable[[Texts], Tensor], sub_embeddings: list[Texts], random: Random) -> Tensor:
    """The mean of the losses of all sub-embeddings."""
    return torch.stack([loss(texts) for texts in sub_embeddings]).mean()


def sample_loss(loss: Callable[[Texts], Tensor], sub_embeddings: list[Texts], random: Random) -> Tensor:
    """The mean of the loss of the full embedding and that of one other, sampled anew in each step."""
    return (loss(sub_embeddings[-1]) + loss(random.choice(sub_embeddings[:-1]))) / 2


def self_distill_loss(loss: Callable[[Texts], Tensor], sub_embeddings: list[Texts], random: Random) -> Tensor:
    """The loss of the full embedding; the others are distilled from it, see losses/distillation.py."""
    teacher = torch.cat(sub_embeddings[-1]).detach()
    students = [
        distillation_loss(torch.cat(texts), teacher, EmbeddingDistillationConfig.similarity_weight)
        for texts in sub_embeddings[:-1]
    ]
    return loss(sub_embeddings[-1]) + torch.stack(students).mean()


# How the losses of all layers are combined in a step.
ALL_LAYERS = {"mean": mean_loss, "sample": sample_loss, "self-distill": self_distill_loss}


class NestedLoss(nn.Module):
    """A loss of all sub-embeddings, made of the loss of one.

    objective: an entry of OBJECTIVES, made for embeddings of D dimensions; it has no head if dimensions are
    cut. combine: an entry of ALL_LAYERS.
    """

    def __init__(self, objective: nn.Module, sub_embeddings: SubEmbeddings, combine: str = "mean"):
        super().__init__()
        self.objective, self.sub_embeddings = objective, sub_embeddings
        self.combine = ALL_LAYERS[combine if len(sub_embeddings.slices) > 1 else "mean"]

    def forward(self, *embeddings_and_target: Tensor) -> Tensor:
        """k concatenated embeddings, (P, width) each, and the target, (P, ...) -> scalar"""
        *embeddings, target = embeddings_and_target
        of_each_text = [self.sub_embeddings.split(u).values() for u in embeddings]
        of_all_texts = list(zip(*of_each_text, strict=True))  # K of k of (P, size)
        return self.combine(
            lambda texts: self.objective(*texts, target), of_all_texts, self.sub_embeddings.random
        )

    def predict(self, *embeddings: Tensor) -> np.ndarray:
        """What the metric reads, from the full embeddings; k of (N, width)."""
        return self.objective.predict(*(self.sub_embeddings.split(u)[""] for u in embeddings))

    def predict_sub_embeddings(self, *embeddings: Tensor) -> dict[str, np.ndarray]:
        """The same from each other sub-embedding, by its name."""
        of_each_text = [self.sub_embeddings.split(u) for u in embeddings]
        names = [name for name in self.sub_embeddings.slices if name]
        return {name: self.objective.predict(*(parts[name] for parts in of_each_text)) for name in names}
