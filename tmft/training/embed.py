"""From a batch to its embeddings: the `embed` of the training loop.

PackedEmbed is the ordinary one. The others are gradient_cache.py (batches that do not fit in memory, or are
shared by several processes), freezing.py (the whole encoder is frozen) and all_layers.py (every layer).

Shapes: S sentences, D dimensions of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tmft.packing import PackedBatch, pack
from tmft.sentence_encoder import SentenceEncoder


@dataclass
class Batch:
    """P examples of one task, as the loop sees them.

    token_ids: of the k * P sentences: the first texts of all examples, then the second ones.
    texts_per_example: k, 2 for pairs.
    target: what the loss compares with, (P, ...).
    loss_fn: called with k embeddings, (P, D) each, and the target; returns a scalar.
    task: its name, "" if there is only one.
    """

    token_ids: list[Sequence[int]]
    texts_per_example: int
    target: Tensor
    loss_fn: Callable[..., Tensor]
    task: str = ""

    def __len__(self) -> int:
        return len(self.target)

    def select(self, sentences: slice) -> Batch:
        """The same batch with some of its sentences only, to be embedded."""
        return replace(self, token_ids=self.token_ids[sentences])


class Embed:
    """What the loop calls with a batch. Children override what is special about them.

    width: numbers in an embedding, D.
    """

    def __init__(self, model: SentenceEncoder):
        self.model, self.width = model, model.dimensions

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(self, batch: Batch) -> Tensor:
        """A batch of S sentences -> (S, D) float32, with a graph for the backward pass."""
        raise NotImplementedError

    def embed_no_grad(self, token_ids: Sequence[list[int]]) -> Tensor:
        """Token ids of S sentences -> (S, D) float32 on the CPU, without dropout and gradient."""
        return self.model.map_batches(token_ids, self.forward_packed, False)

    def forward_packed(self, packed: PackedBatch) -> Tensor:
        """A packed batch of S sentences -> (S, D) float32."""
        return self.model(packed)

    def state_dict(self) -> dict:
        """What changes from step to step: nothing here."""
        return {}

    def load_state_dict(self, state: dict) -> None: ...


class PackedEmbed(Embed):
    """Packs the sentences of a batch into rows without padding, encodes and pools them."""

    def __call__(self, batch: Batch) -> Tensor:
        return self.forward_packed(pack(batch.token_ids).to(self.device))
