"""Convert a model to 8-bit integers, in which it encodes faster on CPUs.

Such a model can only encode: it cannot be trained, saved or exported.

In 8 bits, the numbers that a linear map multiplies have a scale. DynamicInt8Linear determines it for each
token. In BERT's layers, Int8SelfAttention and Int8FeedForward have fixed scales, measured on sequences of
random tokens when the model is converted; fewer steps are then needed between the products. Either way, the
embedding of a sentence does not depend on its batch.
Letters in this file: B rows of a batch, T tokens in a row, D hidden_size, N neurons, which are the outputs of
the first map of a feed-forward.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.bert import FeedForward, SelfAttention
from tmft.device import choose_precision
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder

VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")  # capabilities of CPUs; int8 needs any one of them
NUM_SEQUENCES, NUM_TOKENS = 64, 24  # of random tokens, which determine the fixed scales
MARGIN = 1.2  # numbers this many times as large as the largest ones in those sequences are not clipped
SMOOTHING = 0.75  # exponent of the largest input in the factor of a dimension, see SmoothQuantizer
NUM_PARTS = 16  # how many neurons are added to a feed-forward for the parts of large outputs
GELU_MINIMUM = -0.17  # the smallest output of GELU, rounded down
log: logging.Logger = logging.getLogger("tmft")


class Int8Weight(nn.Module):
    """A matrix of 8-bit integers with a scale for each output, in the memory layout of oneDNN.

    weight: (out, in). bias: (out,), added to the products; None for none.
    sums: (out,), the sum of the rounded weights of each output. The buffers are what can be read of it.
    """

    sums: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        super().__init__()
        scales = weight.abs().amax(1).clamp(min=1e-8) / 127  # (out,)
        rounded = (weight / scales[:, None]).round().to(torch.int8)
        self.register_buffer("scales", scales)
        self.register_buffer("sums", rounded.float().sum(1) * scales)
        self.register_buffer("bias", bias)
        packed: Any = torch.ops.onednn.qlinear_prepack(rounded, None)
        zero_points = torch.zeros(len(weight), dtype=torch.int32)  # of the weights, per output
        self.arguments = packed, scales, zero_points, bias

    def product(
        self, x: Tensor, step: float = 1.0, zero_point: int = 0, gelu: tuple[float, int] | None = None
    ) -> Tensor:
        """Return step (x - zero_point) W^T + bias, (..., out) float32. x: (..., in) uint8.

        gelu: step and zero point of the result, which then is GELU of the product as integers n, (..., out)
        uint8, that mean (n - zero point) step; numbers outside its range become its ends.
        """
        output: Any = (1.0, 0, torch.float32, "none", [], "")
        if gelu is not None:
            output = (*gelu, torch.uint8, "gelu", [], "none")
        return torch.ops.onednn.qlinear_pointwise(x, step, zero_point, *self.arguments, *output)


def to_uint8(x: Tensor) -> Tensor:
    """Return round(x) + 128 as uint8, as VNNI needs it. x: from -128.5 to 127.5; its memory is used."""
    return x.round_().to(torch.int8).view(torch.uint8).bitwise_xor_(128)  # conversion to uint8 is slow


class DynamicInt8Linear(nn.Module):
    """A linear layer with dynamic quantization: weights and inputs are 8-bit integers with scales.

    Each output has a scale of its own for its weights, and each token has one for its inputs: they are
    quantized between their minimum and maximum, so the result for a token does not depend on the other tokens
    of the batch. With weights w = s r and inputs x = minimum + step n, where r and n are integers,
    x w = step (n r s) + minimum sum(r s). The product n r is exact, everything else is float32.
    Source: Jacob et al. 2017, arXiv:1712.05877; a scale per token: Yao et al. 2022, arXiv:2206.01861.
    """

    bias: Tensor

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight = Int8Weight(linear.weight.detach().float())
        self.register_buffer("bias", bias_or_zeros(linear))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the layer, (..., out) float32. x: (..., in) float32."""
        minimum = x.amin(-1, keepdim=True)
        step = ((x.amax(-1, keepdim=True) - minimum) / 255).clamp(min=1e-12)
        product = self.weight.product(to_uint8(x.mul(step.reciprocal()).sub_(minimum / step + 128)))
        return product.mul_(step).addcmul_(minimum, self.weight.sums).add_(self.bias)


class SmoothQuantizer:
    """Quantizes hidden states with fixed scales, one for each dimension, by which the weights are multiplied.

    A few dimensions of hidden states have much larger numbers than the others, which one scale for all would
    make coarse. So each dimension is divided by a factor, by which the weights of the map that follows are
    multiplied. The factor balances the largest input and the largest weight of the dimension.
    largest: (D,), the largest absolute input of each dimension. weight: (out, D), of the map that follows.
    Source: Xiao et al. 2022, arXiv:2211.10438, equation 4.
    """

    def __init__(self, largest: Tensor, weight: Tensor):
        # a dimension that random tokens hardly use may have larger numbers in real sentences
        largest = largest.clamp(min=max(largest.max().item() / 100, 1e-5))
        self.factors = largest**SMOOTHING / weight.abs().amax(0).clamp(min=1e-5) ** (1 - SMOOTHING)  # (D,)
        self.step = MARGIN * (largest / self.factors).max().item() / 127
        self.inverse = 1 / (self.factors * self.step)

    def __call__(self, x: Tensor) -> Tensor:
        """Return integers n, uint8, with x = (n - 128) step factors; numbers out of range become its ends."""
        return to_uint8(x.mul(self.inverse).clamp_(-128, 127))


class Int8SelfAttention(SelfAttention):
    """The self-attention of BERT with 8-bit integers; queries, keys and values are one product.

    Scores and the mean of the values are float32. The last map stays as it is.
    largest: (D,), see SmoothQuantizer.
    """

    def __init__(self, attention: SelfAttention, largest: Tensor):
        nn.Module.__init__(self)
        self.num_heads, self.dropout = attention.num_heads, attention.dropout
        linears = attention.query, attention.key, attention.value
        weight, bias = (
            torch.cat([linear.weight.detach() for linear in linears]),
            [*map(bias_or_zeros, linears)],
        )
        self.quantize = SmoothQuantizer(largest, weight)
        self.projections = Int8Weight(weight * self.quantize.factors, torch.cat(bias))
        self.output = attention.output

    def project(self, hidden: Tensor) -> Sequence[Tensor]:
        """Return the queries, keys and values of all heads, (B, T, D) each. hidden: (B, T, D)."""
        return self.projections.product(self.quantize(hidden), self.quantize.step, 128).chunk(3, dim=-1)


class Int8FeedForward(nn.Module):
    """The feed-forward of BERT with 8-bit integers: two products, and GELU as a part of the first.

    The outputs of GELU have one scale. In most layers, a few neurons have much larger outputs than all
    others. Such an output y is split at a limit c into min(y, c) + min(y - c, c) + ... The second part is a
    neuron of its own with a bias that is smaller by c, because GELU(x) - c is nearly GELU(x - c) for x > c,
    and so on. All parts have the same weights in the second map.
    largest: (D,), see SmoothQuantizer.
    largest_outputs: (N,), the largest output of each neuron, after GELU.
    Source: Zhao et al. 2019, arXiv:1901.09504, for splitting neurons.
    """

    def __init__(self, feed_forward: FeedForward, largest: Tensor, largest_outputs: Tensor):
        super().__init__()
        up, down = feed_forward.up, feed_forward.down
        neurons, parts, limit = split_neurons(MARGIN * largest_outputs, NUM_PARTS)
        up_weight, up_bias = up.weight.detach()[neurons], bias_or_zeros(up)[neurons] - limit * parts
        self.quantize = SmoothQuantizer(largest, up_weight)
        self.up = Int8Weight(up_weight * self.quantize.factors, up_bias)
        self.step = (limit - GELU_MINIMUM) / 255  # of the outputs of GELU
        self.zero_point = round(-GELU_MINIMUM / self.step)
        self.down = Int8Weight(down.weight.detach()[:, neurons], bias_or_zeros(down))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return down(GELU(up(hidden))): (B, T, D) float32 -> (B, T, D) float32."""
        outputs = self.step, self.zero_point
        neurons = self.up.product(self.quantize(hidden), self.quantize.step, 128, outputs)
        return self.down.product(neurons, *outputs)


def split_neurons(largest: Tensor, num_parts: int) -> tuple[Tensor, Tensor, float]:
    """Split the neurons with the largest outputs, such that the largest part is as small as possible.

    largest: (N,), the largest output of each neuron. num_parts: how many parts are added.
    Returns the neuron of each part and its number among the parts of this neuron, from 0, (N + num_parts,)
    int64 each, and the largest output that a part has.

    Example:

    >>> neurons, parts, limit = split_neurons(torch.tensor([2.0, 9.0, 1.0]), 2)
    >>> neurons.tolist(), parts.tolist(), limit
    ([0, 1, 1, 1, 2], [0, 0, 1, 2, 0], 3.0)
    """
    counts = torch.ones(len(largest), dtype=torch.int64)
    for _ in range(num_parts):
        counts[(largest / counts).argmax()] += 1
    neurons = torch.arange(len(largest)).repeat_interleave(counts)
    parts = torch.cat([torch.arange(count) for count in counts.tolist()])
    return neurons, parts, max((largest / counts).max().item(), 1e-5)


def bias_or_zeros(linear: nn.Linear) -> Tensor:
    """Return the bias of a linear layer, (out,) float32; zeros if it has none."""
    return torch.zeros(linear.out_features) if linear.bias is None else linear.bias.detach().float()


def largest_inputs(model: SentenceEncoder, linears: Iterable[nn.Linear]) -> dict[nn.Linear, Tensor]:
    """Return the largest absolute input of linear layers in each dimension, (in,), for random token ids.

    model: the model that they are in. Each sequence begins and ends with its special tokens. Real sentences
    are not needed, so no language is preferred; each call gives the same result.
    """
    largest: dict[nn.Linear, Tensor] = {}

    def record(linear: nn.Module, inputs: tuple[Tensor]) -> None:
        assert isinstance(linear, nn.Linear)
        maxima = inputs[0].abs().flatten(0, -2).amax(0)
        largest[linear] = torch.maximum(largest.get(linear, maxima), maxima)

    special = model.tokenize([""])[0]
    shape = NUM_SEQUENCES, max(1, min(NUM_TOKENS, model.max_length - len(special)))
    generator = torch.Generator().manual_seed(0)
    sequences = torch.randint(model.encoder.config.vocab_size, shape, generator=generator).tolist()
    hooks = [linear.register_forward_pre_hook(record) for linear in linears]
    token_ids = [[*special[:-1], *sequence, *special[-1:]][: model.max_length] for sequence in sequences]
    try:
        model.embed_token_ids(token_ids)
    finally:
        for hook in hooks:
            hook.remove()
    return largest


def warn_if_slow_in_bfloat16(device: torch.device) -> None:
    """Log a warning if models in bfloat16 are slow on this device, a CPU without instructions for it."""
    if device.type == "cpu" and choose_precision("auto", device) != "bf16":
        log.warning("bfloat16: this CPU has no instructions for it: half the memory, but slower than float32")


def encoder_to_int8(model: SentenceEncoder) -> None:
    """Replace the linear maps of a model's layers by maps with 8-bit integers, in place.

    Embeddings, LayerNorm, the products inside attention and the modules after the pooling stay float32.
    """
    if model.device.type != "cpu":
        raise InputError(
            f"dtype int8 needs a CPU, but the model is on {model.device}: choose bfloat16", "dtype"
        )
    capabilities = torch.cpu.get_capabilities()
    if not any(capabilities.get(name, False) for name in VNNI):
        problem = (
            "this CPU has no VNNI instructions, without which int8 is slow and sums of products overflow"
        )
        raise InputError(f"dtype int8: {problem}: choose float32", "dtype")
    if capabilities.get("amx_bf16", False):  # measured on two cores: 2,386 GFLOP/s, and 1,489 in int8
        log.warning("int8: this CPU has AMX, with which bfloat16 is faster and more exact")
    model.encoder.float()  # if the model was loaded in another dtype
    modules = [*model.encoder.layers.modules()]
    linears = [module.query for module in modules if type(module) is SelfAttention]
    for module in modules:
        if is_gelu_feed_forward(module):
            linears += [module.up, module.down]
    replace_by_int8(model.encoder.layers, largest_inputs(model, linears) if linears else {})
    model.encoder.eval()  # it cannot be trained; new modules would be in training mode


def is_gelu_feed_forward(module: nn.Module) -> TypeGuard[FeedForward]:
    """Return whether a module is a feed-forward of BERT with the exact GELU."""
    return type(module) is FeedForward and module.activation is F.gelu


def replace_by_int8(module: nn.Module, largest: Mapping[nn.Linear, Tensor]) -> None:
    """Replace the linear maps inside a module, in place, by the classes of this file."""
    for name, child in list(module.named_children()):
        if type(child) is SelfAttention:
            setattr(module, name, Int8SelfAttention(child, largest[child.query]))
        elif is_gelu_feed_forward(child):
            setattr(module, name, Int8FeedForward(child, largest[child.up], largest[child.down]))
        elif isinstance(child, nn.Linear):
            setattr(module, name, DynamicInt8Linear(child))
        replace_by_int8(getattr(module, name), largest)
