"""Gradient caching: the exact gradient of a large batch, with the memory of a small one.

A contrastive loss needs the embeddings of the whole batch at once. So the batch is embedded in mini-batches
without storing activations, and the loss gives the gradient with respect to each embedding. Then each
mini-batch is embedded again, with the dropout masks of the first time, and its part of that gradient is
backpropagated to the weights. Several processes can share the mini-batches.
Source: Gao et al. 2021, arXiv:2101.06983 (GradCache).
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tmft.device import get_rng_state, seed_rng, set_rng_state
from tmft.io.distributed import Processes, single_process
from tmft.training_task import Batch, Embedder


class GradientCache(Embedder):
    """Embeds a batch without storing activations; the backward pass embeds it again, a mini-batch at a time.

    embed: what embeds a mini-batch.
    mini_batch_size: number of examples in a mini-batch; None splits the batch evenly among the processes.
    processes: the processes that share the mini-batches of each batch. Each process then has the embeddings
        of the whole batch and, after the backward pass, the gradient of the whole batch. None: a single one.
    """

    embed: Embedder
    width: int
    processes: Processes

    def __init__(self, embed: Embedder, mini_batch_size: int | None, processes: Processes | None = None):
        super().__init__(embed.model)
        self.embed, self.width = embed, embed.width
        self.mini_batch_size = mini_batch_size
        self.processes = processes or single_process(embed.device)

    def __call__(self, batch: Batch) -> Tensor:
        if self.processes.world_size == 1 and len(batch) <= (self.mini_batch_size or len(batch)):
            return self.embed(batch)
        needs_gradient = torch.zeros((), requires_grad=True)  # torch calls backward only for such an input
        return RecomputedEmbedding.apply(needs_gradient, self, batch)

    def mini_batches(self, batch: Batch) -> tuple[list[tuple[slice, int]], int]:
        """Split a batch; return [(sentences, seed), ...] of this process, and the seed to use afterwards.

        sentences: the slice of batch.token_ids that is one mini-batch. seed: for its dropout. All seeds are
        drawn from torch's global generator and are the same in every process.
        """
        share = math.ceil(len(batch) / self.processes.world_size)
        size = batch.texts_per_example * min(self.mini_batch_size or len(batch), share)  # sentences
        starts = range(0, len(batch.token_ids), size)
        *seeds, seed_after = torch.randint(2**62, (len(starts) + 1,)).tolist()
        slices = [(slice(start, start + size), seed) for start, seed in zip(starts, seeds, strict=True)]
        return slices[self.processes.rank :: self.processes.world_size], seed_after

    def embed_no_grad(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Embed S sentences as `Embedder.embed_no_grad` does. token_ids: the ids of each sentence."""
        return self.embed.embed_no_grad(token_ids)

    def state_dict(self) -> dict[str, Any]:
        return self.embed.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.embed.load_state_dict(state)


class RecomputedEmbedding(torch.autograd.Function):
    """Embeds a batch without a graph; its backward pass embeds each mini-batch again, with a graph."""

    @staticmethod
    def forward(ctx: Any, needs_gradient: Tensor, cache: GradientCache, batch: Batch) -> Tensor:
        """Return the embeddings of all S sentences of the batch, (S, D).

        ctx: what torch keeps for `backward`. needs_gradient: any scalar that requires a gradient, without
        which torch would not call `backward`.
        """
        device = cache.device
        ctx.cache, ctx.batch, ctx.autocast = cache, batch, copy_autocast(device)
        ctx.mini_batches, seed_after = cache.mini_batches(batch)
        embeddings = torch.zeros(len(batch.token_ids), cache.width, device=device)
        for sentences, seed in ctx.mini_batches:
            seed_rng(device, seed)
            embeddings[sentences] = cache.embed(batch.select(sentences))
        seed_rng(device, seed_after)  # the dropout of a head is then the same in every process
        return cache.processes.all_reduce_(embeddings)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        """Backpropagate to the weights, whose .grad it adds to.

        ctx: what `forward` has kept. gradient: (S, D), the gradient of the loss with respect to the
        embeddings.
        """
        cache, batch = ctx.cache, ctx.batch
        states = get_rng_state(cache.device)
        with set_gradients_aside(cache.model) as parameters:
            for sentences, seed in ctx.mini_batches:
                seed_rng(cache.device, seed)
                with torch.enable_grad(), ctx.autocast:
                    embeddings = cache.embed(batch.select(sentences))
                if embeddings.requires_grad:  # False if all weights are frozen
                    embeddings.backward(gradient[sentences])
            cache.processes.all_reduce_gradients(parameters)
        set_rng_state(cache.device, states)
        return None, None, None


def copy_autocast(device: torch.device) -> torch.autocast:
    """Return a context in which autocast has its present setting, for use in the backward pass.

    device: the model's.
    """
    enabled = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, dtype=torch.get_autocast_dtype(device.type), enabled=enabled)


@contextmanager
def set_gradients_aside(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Set all gradients to None inside the block, and add the earlier gradients when it ends.

    Yields the parameters that require a gradient. The processes thus sum the gradient of this batch alone,
    without those of the step's other tasks, which every process has already.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    yield parameters
    for parameter, gradient in zip(parameters, before, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else gradient + parameter.grad
