"""Gradient caching: the exact gradient of a large batch, with the memory of a small one.

A contrastive loss needs the embeddings of the whole batch at once. So the batch is embedded in mini-batches
without storing activations, and the loss gives the gradient with respect to each embedding. Then each
mini-batch is embedded again, with the dropout masks of the first time, and its part of that gradient is
backpropagated to the weights.
Source: Gao et al. 2021, arXiv:2101.06983 (GradCache).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tmft.device import get_rng_state, seed_rng, set_rng_state
from tmft.training_task import Batch, Embedder


class GradientCache(Embedder):
    """Embeds a batch without storing activations; the backward pass embeds it again, a mini-batch at a time.

    embed: what embeds a mini-batch. mini_batch_size: number of examples in a mini-batch.
    """

    def __init__(self, embed: Embedder, mini_batch_size: int):
        super().__init__(embed.model)
        self.embed, self.width = embed, embed.width
        self.mini_batch_size = mini_batch_size

    def __call__(self, batch: Batch) -> Tensor:
        if len(batch) <= self.mini_batch_size:
            return self.embed(batch)
        needs_gradient = torch.zeros((), requires_grad=True)  # torch calls backward only for such an input
        return RecomputedEmbedding.apply(needs_gradient, self, batch)

    def embed_no_grad(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Embed S sentences as `Embedder.embed_no_grad` does. token_ids: the ids of each sentence."""
        return self.embed.embed_no_grad(token_ids)


class RecomputedEmbedding(torch.autograd.Function):
    """Embeds a batch without a graph; its backward pass embeds each mini-batch again, with a graph."""

    @staticmethod
    def forward(ctx: Any, needs_gradient: Tensor, cache: GradientCache, batch: Batch) -> Tensor:
        """Return the embeddings of all S sentences of the batch, (S, D).

        ctx: what torch keeps for `backward`. needs_gradient: any scalar that requires a gradient, without
        which torch would not call `backward`.
        """
        device = cache.device
        ctx.cache, ctx.batch = cache, batch
        enabled, dtype = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
        ctx.autocast = torch.autocast(device.type, dtype=dtype, enabled=enabled)  # the same in `backward`
        size = batch.texts_per_example * cache.mini_batch_size  # sentences
        starts = range(0, len(batch.token_ids), size)
        *seeds, seed_after = torch.randint(2**62, (len(starts) + 1,)).tolist()  # of the dropout
        slices = [slice(start, start + size) for start in starts]
        ctx.mini_batches = list(zip(slices, seeds, strict=True))
        embeddings = torch.zeros(len(batch.token_ids), cache.width, device=device)
        for sentences, seed in ctx.mini_batches:
            seed_rng(device, seed)
            embeddings[sentences] = cache.embed(batch.select(sentences))
        seed_rng(device, seed_after)
        return embeddings

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        """Backpropagate to the weights, whose .grad it adds to.

        ctx: what `forward` has kept. gradient: (S, D), the gradient of the loss with respect to the
        embeddings.
        """
        cache, batch = ctx.cache, ctx.batch
        states = get_rng_state(cache.device)
        for sentences, seed in ctx.mini_batches:
            seed_rng(cache.device, seed)
            with torch.enable_grad(), ctx.autocast:
                embeddings = cache.embed(batch.select(sentences))
            if embeddings.requires_grad:  # False if all weights are frozen
                embeddings.backward(gradient[sentences])
        set_rng_state(cache.device, states)
        return None, None, None
