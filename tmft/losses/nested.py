"""Training several sub-embeddings of a text at once, so that the trained model can be cut to any of them.

A sub-embedding is the embedding from one of the layers, or its first dimensions. The embeddings of all layers
are concatenated in one tensor; the last one is that of the last layer, the full embedding.
Source: Kusupati et al. 2022, arXiv:2205.13147 (Matryoshka: the first dimensions); Li et al. 2024,
arXiv:2402.14776 (first dimensions of every layer); Zhuang et al. 2024, arXiv:2410.13230 (Starbucks: a fixed
number of dimensions for each layer, here without its KL divergence, which added 0.1 points on dev).

Letters: P examples of k texts, S texts, N examples of a split, D dimensions of an embedding, l layers,
K sub-embeddings, width = (l + 1) D, or D if only the last layer is used.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tmft.errors import InputError
from tmft.loss import Objective
from tmft.packing import pack
from tmft.sentence_encoder import SentenceEncoder
from tmft.training_task import Batch, Embedder

ALL_LAYERS = ("mean", "widening")  # which dimensions of each layer are trained: all, or more in a higher one


class SubEmbeddingSlices:
    """Says where each sub-embedding is in the concatenated tensor, (S, width).

    D: number of dimensions of the full embedding.
    dims: increasing numbers below D; the first 64 dimensions are a sub-embedding if 64 is among them.
    num_layers: l; the embeddings of the hidden states 0 to l are concatenated. None: the last one only.
    widening: instead of `dims`, layer n has one sub-embedding, its first D n / l dimensions; layer 0 none.
    Raises InputError if one of `dims` is not below D.
    """

    def __init__(
        self, D: int, dims: Sequence[int] = (), num_layers: int | None = None, widening: bool = False
    ):
        if dims and dims[-1] >= D:
            raise InputError(
                f"matryoshka_dims {dims[-1]}: the model has {D} dimensions, give fewer", "matryoshka_dims"
            )
        self.slices: dict[str, slice] = {}  # "layer 3 first 64" and so on; "" is the full embedding
        layers = [None] if num_layers is None else range(num_layers + 1)
        sizes = [*dims, D]
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


class AllLayersEmbedder(Embedder):
    """Embeds each sentence as its pooled hidden states 0 to l, concatenated, for a model with l layers.

    Raises InputError for a model that averages several layers.
    """

    def __init__(self, model: SentenceEncoder):
        super().__init__(model)
        if model.layers is not None:
            raise InputError(
                "all_layers: the model averages several layers, so that none can be cut: name one layer",
                "all_layers",
            )
        self.width = model.dimensions * (len(model.encoder.layers) + 1)

    def __call__(self, batch: Batch) -> Tensor:
        pooled = self.model.forward_all_layers(pack(batch.token_ids).to(self.device))  # (l + 1, S, D)
        return pooled.transpose(0, 1).flatten(1)  # (S, (l + 1) D)

    def embed_no_grad(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        pooled = self.model.embed_token_ids(token_ids, self.model.forward_all_layers)  # (l + 1, S, D)
        return pooled.transpose(0, 1).flatten(1)  # (S, (l + 1) D)


class NestedLoss(Objective):
    """Applies the loss of an objective to every sub-embedding; the loss is the mean of these losses.

    objective: an instance of an entry of OBJECTIVES, made for embeddings of D dimensions. It must not have a
        head if there are sub-embeddings with fewer dimensions.
    """

    objective: Objective
    sub_embeddings: SubEmbeddingSlices

    def __init__(self, objective: Objective, sub_embeddings: SubEmbeddingSlices):
        super().__init__(sub_embeddings.width, None)
        self.objective, self.sub_embeddings = objective, sub_embeddings

    def forward(self, *embeddings_and_target: Tensor) -> Tensor:
        """Return the loss, a scalar.

        embeddings_and_target: one tensor (P, width) for each of the k texts, then the target, (P, ...).
        """
        *embeddings, target = embeddings_and_target
        split_texts = [self.sub_embeddings.split(u).values() for u in embeddings]  # k of K of (P, size)
        sub_embeddings = zip(*split_texts, strict=True)  # K of k of (P, size)
        return torch.stack([self.objective(*texts, target) for texts in sub_embeddings]).mean()

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
