"""Replay the forward and the backward pass of a training step on a GPU as CUDA graphs.

A GPU computes the kernels of a small batch faster than Python can start them. A CUDA graph records the
kernels of a pass once. A replay starts all of them at once, on the same memory, into which the next batch is
copied before. So a graph fits batches of one shape; there are few shapes, because PackedEmbedder rounds the
number of rows up to a multiple of ROWS_MULTIPLE.

The embeddings and gradients are those of passes that are computed as usual, to the last bit, because the same
kernels run in the same order, and torch lets a replay draw the random numbers of dropout that would have been
next. The first batch of a shape is computed as usual. With the second one the passes are captured, and their
first replay is compared with passes as usual.

Source: the idea of replacing both passes of a part of a model is that of torch.cuda.make_graphed_callables.
"""

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tmft.device import get_rng_state, set_rng_state
from tmft.packing import PackedBatch
from tmft.speed.matmul import list_modules
from tmft.training_task import PackedEmbedder

log: logging.Logger = logging.getLogger("tmft")

# Batches of more positions, B * T, are computed as usual: their kernels take longer than it takes to start
# them, and each batch has another shape.
MAX_POSITIONS = 8192
MAX_SHAPES = 32  # shapes whose passes are captured; batches of further ones are computed as usual
# Largest difference of embeddings and gradients, relative to their norm. On an H100 they have the same bits;
# with another dropout the difference is about 1.
TOLERANCE = 1e-4

# Takes a function of no arguments, which computes on a GPU, and returns a function that computes it again.
Capture = Callable[[Callable[[], None]], Callable[[], None]]


class GraphedEmbedder(PackedEmbedder):
    """Embeds a batch as PackedEmbedder; with CUDA, the passes of shapes that come again are replayed."""

    @cached_property
    def graphs(self) -> "CudaGraphs":
        return CudaGraphs(self.model)

    def embed(self, batch: PackedBatch) -> Tensor:
        return self.graphs(batch) if self.device.type == "cuda" else self.model(batch)


class CudaGraphs:
    """Embeds batches as a model does, with its forward and backward pass replayed for shapes that come again.

    model: maps a packed batch of S sentences to embeddings, (S, D).
    capture: how a pass is captured; None: as a CUDA graph. (Tests without a GPU compute it again.)

    A batch has to be backpropagated before the next one is embedded. Its gradients are in memory that the
    next backward pass overwrites: if they are still the .grad of a parameter then, they are copied before.
    If a pass cannot be captured, or its replay computes something else, all batches are computed as usual
    from then on, and a line is logged.
    """

    capture: Capture | None

    def __init__(self, model: nn.Module, capture: Capture | None = None):
        self.model, self.capture = model, capture
        self.passes: dict[Any, CapturedPasses | None] = {}  # shape -> passes; None: seen once
        self.state: list[Any] | None = None  # the result of current_state for which the passes were captured
        self.parameters: dict[str, nn.Parameter] = {}  # those that are trained, by name
        self.gradients: list[Tensor] = []  # of each of them, where the replays write it
        self.is_possible = True
        self.num_calls = 0

    def __call__(self, batch: PackedBatch) -> Tensor:
        """Return the embeddings of the S sentences of a batch, (S, D), which is on the GPU."""
        self.num_calls += 1
        is_small = batch.input_ids.numel() <= MAX_POSITIONS
        if not (self.is_possible and is_small and torch.is_grad_enabled() and self.model.training):
            return self.model(batch)
        self.forget_other_weights()
        device_type = batch.input_ids.device.type
        autocast_dtype = torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type)
        shape = batch.input_ids.shape, batch.num_sentences, autocast_dtype
        if shape not in self.passes or not self.parameters:
            if len(self.passes) < MAX_SHAPES:
                self.passes[shape] = None
            return self.model(batch)
        passes = self.passes[shape] or self.capture_passes(batch)
        if passes is None:
            self.is_possible = False
            self.passes.clear()
            return self.model(batch)
        self.passes[shape] = passes
        needs_gradient = torch.zeros((), requires_grad=True)  # torch calls backward only for such an input
        return Replay.apply(needs_gradient, self, passes, batch)

    def forget_other_weights(self) -> None:
        """Forget what was captured if a weight is elsewhere in memory now, or is not trained any more."""
        state = self.current_state()
        if state != self.state:
            self.state = state
            self.passes.clear()
            named = self.model.named_parameters()
            self.parameters = {name: parameter for name, parameter in named if parameter.requires_grad}
            self.gradients = []

    def current_state(self) -> list[Any]:
        """Return all modules, and of each weight its address and whether it is trained."""
        modules = list_modules(self.model)
        tensors = (chain(module._parameters.values(), module._buffers.values()) for module in modules)
        weights = [tensor for tensor in chain.from_iterable(tensors) if tensor is not None]
        return [*modules, *((weight.data_ptr(), weight.requires_grad) for weight in weights)]

    def capture_passes(self, batch: PackedBatch) -> "CapturedPasses | None":
        """Return passes for batches of this shape; None, which is logged, if that fails or they are wrong."""
        parameters = self.parameters.values()
        self.gradients = self.gradients or [torch.zeros_like(parameter) for parameter in parameters]
        device = batch.input_ids.device
        states = get_rng_state(device)
        try:
            self.capture = self.capture or GraphCapture(device)
            usual = self.usual_results(batch)
            passes = CapturedPasses(self.model, self.parameters, self.gradients, batch, self.capture)
            set_rng_state(device, states)
            replayed = [passes.forward(batch), *passes.backward(usual[0])]
            difference = relative_difference(replayed, usual)
            if difference <= TOLERANCE:
                return passes
            reason = f"their embeddings and gradients differ from the usual ones by {difference:.1e}"
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
        finally:
            set_rng_state(device, states)
        log.warning("training steps are not replayed as CUDA graphs: %s", reason)
        return None

    def usual_results(self, batch: PackedBatch) -> list[Tensor]:
        """Return the embeddings of a batch, and the gradients of half the sum of their squares, as usual.

        Raises RuntimeError if the model waits for the GPU: then the passes cannot be captured, and one that
        is not tried does no harm.
        """
        with waiting_is_an_error(batch.input_ids.device):
            embeddings, parameters = self.model(batch), list(self.parameters.values())
            gradients = gradients_of(embeddings, parameters, embeddings.detach())
        return [embeddings.detach(), *(gradient for gradient in gradients if gradient is not None)]


def gradients_of(embeddings: Tensor, weights: list[Any], gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of weights for a gradient of the embeddings, (S, D), as loss.backward() does.

    There autocast is switched off, which may be on here.
    """
    with torch.autocast(gradient.device.type, enabled=False):
        return torch.autograd.grad(embeddings, weights, gradient, allow_unused=True)


@contextmanager
def waiting_is_an_error(device: torch.device) -> Iterator[None]:
    """Let torch raise an error inside the block if the CPU has to wait for a GPU."""
    if device.type == "cpu":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    try:
        set_sync_debug_mode("error")
        yield
    finally:
        set_sync_debug_mode(before)


def set_sync_debug_mode(mode: int | str) -> None:
    """Set what torch does if the CPU waits for a GPU, without its warning that this is a new feature."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


def relative_difference(results: list[Tensor], usual: list[Tensor]) -> float:
    """Return the norm of the difference of tensors, relative to that of the usual ones; NaN if one is NaN."""
    differences = torch.stack(torch._foreach_norm(torch._foreach_sub(results, usual)))
    return float(differences.norm() / torch.stack(torch._foreach_norm(usual)).norm())


class GraphCapture:
    """Captures functions as CUDA graphs, all of which use the same memory of a GPU, one after the other."""

    def __init__(self, device: torch.device):
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """Capture a function, which is called but computes nothing; return the replay."""
        graph, generator = torch.cuda.CUDAGraph(), torch.cuda.default_generators[self.stream.device_index]
        state = generator.clone_state()
        torch.cuda.synchronize(self.stream.device)
        was_enabled = gc.isenabled()
        gc.disable()  # it could free another graph, which would end this capture
        try:
            with torch.cuda.stream(self.stream):
                # thread_local: other threads may go on using the GPU
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    function()
                finally:
                    graph.capture_end()
        except RuntimeError:
            generator.graphsafe_set_state(state)  # the state of before is still being captured, for torch
            raise
        finally:
            if was_enabled:
                gc.enable()
        torch.cuda.synchronize(self.stream.device)
        return graph.replay


class CapturedPasses:
    """The captured forward and backward pass for batches of one shape.

    model: see CudaGraphs. parameters: those that are trained, by name. gradients: of each of them, where the
    backward pass writes it. batch: one of this shape; its content does not matter. capture: see CudaGraphs.
    inputs: the batch that the passes compute with. embeddings: (S, D), the result of the forward pass.
    embedding_gradient: (S, D), with which the backward pass begins.
    """

    embeddings: Tensor
    is_used: list[bool]  # of each parameter that is trained, whether the embeddings depend on it

    def __init__(
        self,
        model: nn.Module,
        parameters: dict[str, nn.Parameter],
        gradients: list[Tensor],
        batch: PackedBatch,
        capture: Capture,
    ):
        self.model, self.parameters, self.gradients = model, parameters, gradients
        self.stacked = torch.stack(batch.inputs)  # (3, B, T)
        input_ids, attention_mask, position_ids = self.stacked
        self.inputs = PackedBatch(input_ids, attention_mask, position_ids, batch.num_sentences)
        # Autocast would keep the weights in 16 bits from a captured pass for later ones, which are not.
        was_enabled = torch.is_autocast_cache_enabled()
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(False)
        try:
            self.replay_forward = capture(self.compute_embeddings)
            self.embedding_gradient = torch.zeros_like(self.embeddings)
            self.replay_backward = capture(self.compute_gradients)
        finally:
            torch.set_autocast_cache_enabled(was_enabled)
        self.embeddings = self.embeddings.detach()  # the activations may be overwritten by other passes now

    def compute_embeddings(self) -> None:
        # Tensors on the memory of the parameters stand for them. The parameters themselves are known to
        # autograd from steps on another stream, for which a captured pass cannot wait.
        self.weights = {name: weight.detach().requires_grad_() for name, weight in self.parameters.items()}
        with torch.enable_grad():
            self.embeddings = functional_call(self.model, self.weights, (self.inputs,))

    def compute_gradients(self) -> None:
        weights = list(self.weights.values())
        gradients = gradients_of(self.embeddings, weights, self.embedding_gradient)
        self.is_used = [gradient is not None for gradient in gradients]
        used = [gradient for gradient in gradients if gradient is not None]
        torch._foreach_copy_(self.used_gradients(), used)

    def used_gradients(self) -> list[Tensor]:
        """Return where the replays write the gradients of those parameters that the embeddings depend on."""
        return [kept for kept, is_used in zip(self.gradients, self.is_used, strict=True) if is_used]

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return the embeddings of a batch, (S, D); the next call overwrites them."""
        torch.stack(batch.inputs, out=self.stacked)
        self.replay_forward()
        return self.embeddings.detach()

    def backward(self, embedding_gradient: Tensor) -> list[Tensor]:
        """Compute the gradients of the last batch; return those that the embeddings depend on.

        embedding_gradient: (S, D).
        """
        self.embedding_gradient.copy_(embedding_gradient)
        self.replay_backward()
        return self.used_gradients()


class Replay(torch.autograd.Function):
    """Embeds a batch by replaying captured passes."""

    @staticmethod
    def forward(
        ctx: Any, needs_gradient: Tensor, graphs: CudaGraphs, passes: CapturedPasses, batch: PackedBatch
    ) -> Tensor:
        """Return the embeddings of a batch, (S, D).

        ctx: what torch keeps for `backward`. needs_gradient: any scalar that requires a gradient, without
        which torch would not call `backward`.
        """
        ctx.graphs, ctx.passes, ctx.call = graphs, passes, graphs.num_calls
        return passes.forward(batch).clone()

    @staticmethod
    def backward(ctx: Any, embedding_gradient: Tensor) -> tuple[None, None, None, None]:
        """Backpropagate to the weights, whose .grad it adds to. embedding_gradient: (S, D)."""
        graphs, passes = ctx.graphs, ctx.passes
        if ctx.call != graphs.num_calls:
            raise RuntimeError("CUDA graphs: backpropagate a batch before the next one is embedded")
        pairs = list(zip(graphs.parameters.values(), graphs.gradients, strict=True))
        for parameter, kept in pairs:
            if parameter.grad is kept:  # of an earlier batch of this step
                parameter.grad = kept.clone()
        passes.backward(embedding_gradient)
        for (parameter, kept), is_used in zip(pairs, passes.is_used, strict=True):
            if is_used:
                parameter.grad = kept if parameter.grad is None else parameter.grad + kept
        return None, None, None, None
