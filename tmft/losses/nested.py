"""Losses on several sub-embeddings of a text at once, so that the trained model can be cut to any of them.

A sub-embedding is the embedding from one of the layers, or its first dimensions. The embeddings of all layers
are concatenated in one tensor; the last one is that of the last layer, the full embedding.
Source: Kusupati et al. 2022, arXiv:2205.13147 (Matryoshka: the first dimensions); Li et al. 2024,
arXiv:2402.14776 (first dimensions of every layer); Zhuang et al. 2024, arXiv:2410.13230 (Starbucks: a fixed
number of dimensions for each layer, here without its KL divergence, which added 0.1 points on dev).

Letters: P examples of k texts, S texts, N examples of a split, D dimensions of an embedding, l layers,
K sub-embeddings, width = (l + 1) D, or D if only the last layer is used.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tmft.errors import InputError
from tmft.loss import Objective

Texts = tuple[Tensor, ...]  # one sub-embedding of each of the k texts of P examples: k of (P, size)


class SubEmbeddingSlices:
    """Says where each sub-embedding is in the concatenated tensor, (S, width).

    D: number of dimensions of the full embedding.
    dims: increasing numbers below D; the first 64 dimensions are a sub-embedding if 64 is among them.
    num_layers: l; the embeddings of the hidden states 0 to l are concatenated. None: the last one only.
    seed: for the generator that `sample_loss` uses to choose sub-embeddings.
    widening: instead of `dims`, layer n has one sub-embedding, its first D n / l dimensions; layer 0 none.
    Raises InputError if `dims` are not increasing numbers from 1 to D - 1.
    """

    random: Random
    width: int

    def __init__(
        self,
        D: int,
        dims: Sequence[int] = (),
        num_layers: int | None = None,
        seed: int = 0,
        widening: bool = False,
    ):
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
            if widening and num_layers:
                sizes = [D * index // num_layers] if index else []
            for size in sizes:
                words = [f"layer {layer}"] * (layer is not None) + [f"first {size}"] * (size < D)
                is_full = index == len(layers) - 1 and size == D
                self.slices["" if is_full else " ".join(words)] = slice(index * D, index * D + size)
        self.width = D * len(layers)

    def split(self, embeddings: Tensor) -> dict[str, Tensor]:
        """Return {name: sub-embedding, (S, size)}; the last is the full one, "". embeddings: (S, width)."""
        return {name: embeddings[:, part] for name, part in self.slices.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.setstate(state["random"])


# The functions below combine the losses of the sub-embeddings of a batch into one scalar.
# loss: returns the loss of one sub-embedding; sub_embeddings: all of them, the full one last; random: a
# generator, which only sample_loss uses.


def mean_loss(loss: Callable[[Texts], Tensor], sub_embeddings: list[Texts], random: Random) -> Tensor:
    """Return the mean of the losses of all sub-embeddings.

    loss: returns the loss of one sub-embedding. sub_embeddings: all of them, the full one last. random: not
    used.
    """
    return torch.stack([loss(texts) for texts in sub_embeddings]).mean()


def sample_loss(loss: Callable[[Texts], Tensor], sub_embeddings: list[Texts], random: Random) -> Tensor:
    """Return the mean of two losses: of the full embedding, and of another one, drawn at random.

    loss: returns the loss of one sub-embedding. sub_embeddings: all of them, the full one last. random:
    draws.
    """
    return (loss(sub_embeddings[-1]) + loss(random.choice(sub_embeddings[:-1]))) / 2


# The ways to combine the losses, by name. "widening" also chooses the sub-embeddings (SubEmbeddingSlices).
ALL_LAYERS = {"mean": mean_loss, "sample": sample_loss, "widening": mean_loss}


class NestedLoss(Objective):
    """Applies the loss of an objective to every sub-embedding, and combines these losses into one.

    objective: an instance of an entry of OBJECTIVES, made for embeddings of D dimensions. It must not have a
        head if there are sub-embeddings with fewer dimensions.
    combine: an entry of ALL_LAYERS.
    """

    objective: Objective
    sub_embeddings: SubEmbeddingSlices

    def __init__(self, objective: Objective, sub_embeddings: SubEmbeddingSlices, combine: str = "mean"):
        super().__init__(sub_embeddings.width, None)
        self.objective, self.sub_embeddings = objective, sub_embeddings
        self.combine = ALL_LAYERS[combine if len(sub_embeddings.slices) > 1 else "mean"]

    def forward(self, *embeddings_and_target: Tensor) -> Tensor:
        """Return the loss, a scalar.

        embeddings_and_target: one tensor (P, width) for each of the k texts, then the target, (P, ...).
        """
        *embeddings, target = embeddings_and_target
        split_texts = [self.sub_embeddings.split(u).values() for u in embeddings]  # k of K of (P, size)
        sub_embeddings = list(zip(*split_texts, strict=True))  # K of k of (P, size)
        return self.combine(
            lambda texts: self.objective(*texts, target), sub_embeddings, self.sub_embeddings.random
        )

    def predict(self, *embeddings: Tensor) -> np.ndarray:
        """Return the predictions of the objective, (N, ...), from the full embedding.

        embeddings: one tensor (N, width) for each of the k texts of an example.
        """
        return self.objective.predict(*(self.sub_embeddings.split(u)[""] for u in embeddings))

    def predict_sub_embeddings(self, *embeddings: Tensor) -> dict[str, np.ndarray]:
        """Return {name: predictions of the objective} for every sub-embedding but the full one; {} if none.

        embeddings: one tensor (N, width) for each of the k texts of an example.
        """
        split_texts = [self.sub_embeddings.split(u) for u in embeddings]
        names = [name for name in self.sub_embeddings.slices if name]
        return {name: self.objective.predict(*(parts[name] for parts in split_texts)) for name in names}
