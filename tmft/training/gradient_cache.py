"""Gradient caching: the exact gradient of a large batch, with the memory of a small one.

A contrastive loss needs the embeddings of the whole batch at once. So the batch is embedded in mini-batches
without storing activations; the loss gives the gradient with respect to each embedding; then each mini-batch
is embedded again, with the same dropout, and its part of that gradient is backpropagated to the weights.
Several processes can share the mini-batches. Source: Gao et al. 2021, arXiv:2101.06983 (GradCache).
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tmft.device import get_rng_state, seed_generator, set_rng_state
from tmft.distributed import Processes, single_process
from tmft.packing import PackedBatch
from tmft.training.embed import Batch, Embed


class GradientCache(Embed):
    """Embeds a batch without storing activations; the backward pass embeds it again, a mini-batch at a time.

    embed: embeds a mini-batch. mini_batch_size: examples in one; None: an equal share of the batch for each
    process. processes: they share the mini-batches of each batch; each then has the embeddings of the whole
    batch and, after the backward pass, the gradient of the whole batch.
    """

    def __init__(self, embed: Embed, mini_batch_size: int | None, processes: Processes | None = None):
        super().__init__(embed.model)
        self.embed, self.width = embed, embed.width
        self.mini_batch_size = mini_batch_size
        self.processes = processes or single_process(embed.device)

    def __call__(self, batch: Batch) -> Tensor:
        if self.processes.world_size == 1 and len(batch) <= (self.mini_batch_size or len(batch)):
            return self.embed(batch)
        needs_gradient = torch.zeros((), requires_grad=True)  # torch calls backward only for such an input
        return CachedEmbed.apply(needs_gradient, self, batch)

    def mini_batches(self, batch: Batch) -> tuple[list[tuple[slice, int]], int]:
        """The sentences of each mini-batch of this process with a seed for their dropout, and a seed for what
        is drawn after the batch; both are the same in every process."""
        share = math.ceil(len(batch) / self.processes.world_size)
        size = batch.texts_per_example * min(self.mini_batch_size or len(batch), share)  # sentences
        starts = range(0, len(batch.token_ids), size)
        *seeds, seed_after = torch.randint(2**62, (len(starts) + 1,)).tolist()
        slices = [(slice(start, start + size), seed) for start, seed in zip(starts, seeds, strict=True)]
        return slices[self.processes.rank :: self.processes.world_size], seed_after

    def embed_no_grad(self, token_ids: Sequence[list[int]]) -> Tensor:
        return self.embed.embed_no_grad(token_ids)

    def forward_packed(self, packed: PackedBatch) -> Tensor:
        return self.embed.forward_packed(packed)

    def state_dict(self) -> dict:
        return self.embed.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self.embed.load_state_dict(state)


class CachedEmbed(torch.autograd.Function):
    """Checkpointing of the activations of a whole batch, mini-batch by mini-batch."""

    @staticmethod
    def forward(ctx, needs_gradient: Tensor, cache: GradientCache, batch: Batch) -> Tensor:
        """-> (S, D), the embeddings of all S sentences of the batch"""
        device = cache.device
        ctx.cache, ctx.batch, ctx.autocast = cache, batch, autocast_as_it_is(device)
        ctx.mini_batches, seed_after = cache.mini_batches(batch)
        embeddings = torch.zeros(len(batch.token_ids), cache.width, device=device)
        for sentences, seed in ctx.mini_batches:
            seed_generator(device, seed)
            embeddings[sentences] = cache.embed(batch.select(sentences))
        seed_generator(device, seed_after)  # the dropout of a head is then the same in every process
        return cache.processes.all_reduce_(embeddings)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[None, None, None]:
        """gradient: (S, D), of the loss with respect to the embeddings; adds to the weights' gradients"""
        cache, batch = ctx.cache, ctx.batch
        states = get_rng_state(cache.device)
        with own_gradients(cache.model) as parameters:
            for sentences, seed in ctx.mini_batches:
                seed_generator(cache.device, seed)
                with torch.enable_grad(), ctx.autocast:
                    embeddings = cache.embed(batch.select(sentences))
                if embeddings.requires_grad:  # not if all is frozen
                    embeddings.backward(gradient[sentences])
            cache.processes.all_reduce_gradients(parameters)
        set_rng_state(cache.device, states)
        return None, None, None


def autocast_as_it_is(device: torch.device) -> torch.autocast:
    """A context in which autocast is what it is now."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, dtype=torch.get_autocast_dtype(device.type), enabled=enabled)


@contextmanager
def own_gradients(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """A block that begins without gradients; at its end those from before are added.

    So what the processes sum up inside is the gradient of this batch alone: the gradients of other tasks of
    the step, which every process has already, are not counted once for each process.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    yield parameters
    for parameter, gradient in zip(parameters, before, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else gradient + parameter.grad
