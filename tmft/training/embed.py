"""How the training loop turns a batch into embeddings: it calls `embed`, an object of a subclass of Embed.

PackedEmbed is the default. The others are in gradient_cache.py (for batches that do not fit in memory or are
shared by several processes), freezing.py (for a frozen encoder) and all_layers.py (for all layers at once).

Shapes: S sentences, D dimensions of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tmft.packing import PackedBatch, pack
from tmft.sentence_encoder import SentenceEncoder


@dataclass
class Batch:
    """A batch of P examples of one task, with the function that computes their loss.

    token_ids: token ids of the k * P sentences: the first texts of all examples, then all second texts.
    texts_per_example: k, the number of texts of an example, 2 for pairs.
    target: the labels, as the loss needs them, (P, ...).
    loss_fn: called with k embeddings, (P, D) each, and the target; returns a scalar.
    task: name of the task, "" if there is only one.
    """

    token_ids: Sequence[Sequence[int]]
    texts_per_example: int
    target: Tensor
    loss_fn: Callable[..., Tensor]
    task: str = ""

    def __len__(self) -> int:
        return len(self.target)

    def select(self, sentences: slice) -> Batch:
        """Return a copy with only a slice of token_ids; its target is still that of all P examples.

        sentences: the slice.
        """
        return replace(self, token_ids=self.token_ids[sentences])


class Embed:
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
        """Embed S sentences, given as token_ids, without dropout and gradient.

        Returns (S, D) float32 on the CPU.
        """
        return self.model.map_batches(token_ids, self.forward_packed, False)

    def forward_packed(self, packed: PackedBatch) -> Tensor:
        """Embed a packed batch of S sentences: return (S, D) float32."""
        return self.model(packed)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on; an Embed without a state returns {}."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class PackedEmbed(Embed):
    """Embeds a batch directly: packs its sentences into rows without padding, then encodes and pools them."""

    def __call__(self, batch: Batch) -> Tensor:
        return self.forward_packed(pack(batch.token_ids).to(self.device))
