"""Convert a model to the precision in which it encodes: float32, bfloat16, or dynamic 8-bit quantization.

float32 is the default, so that scores can be compared with published ones. A model in bfloat16 can encode and
be saved, but not trained; one in 8 bits can only encode. SentenceEncoder.from_pretrained(dtype="bfloat16")
gives the same model as a conversion after loading, and never needs the memory for float32.
"""

import hashlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tmft.device import PRECISIONS, choose_precision
from tmft.errors import InputError, check_choice
from tmft.sentence_encoder import SentenceEncoder

VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")  # capabilities of CPUs; int8 needs any one of them
log: logging.Logger = logging.getLogger("tmft")


class DynamicInt8Linear(nn.Module):
    """A linear layer with dynamic quantization: weights and inputs are 8-bit integers with scales.

    Each output has a scale of its own for its weights, and each token has one for its inputs: they are
    quantized between their minimum and maximum, so the result for a token does not depend on the other tokens
    of the batch. With weights w = s r and inputs x = minimum + step n, where r and n are integers,
    x w = step (n r s) + minimum sum(r s). The product n r is exact, everything else is float32.
    linear: the layer to quantize.
    Source: Jacob et al. 2017, arXiv:1712.05877; a scale per token: Yao et al. 2022, arXiv:2206.01861.
    """

    scales: Tensor
    weight_sums: Tensor
    bias: Tensor
    packed: Any
    zero_points: Tensor
    weight_digest: str

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach().float()
        self.scales = weight.abs().amax(1).clamp(min=1e-8) / 127  # (out,)
        rounded = (weight / self.scales[:, None]).round().to(torch.int8)
        self.weight_sums = rounded.float().sum(1) * self.scales  # (out,)
        self.bias = torch.zeros_like(self.scales) if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.zero_points = torch.zeros(len(weight), dtype=torch.int32)  # of the weights, per output
        values = (tensor.contiguous().numpy() for tensor in (rounded, self.scales, self.bias))
        # identifies the weights, which cannot be read again from their packed form
        self.weight_digest = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the layer, (..., out) float32. x: (..., in) float32."""
        minimum = x.amin(-1, keepdim=True)
        step = ((x.amax(-1, keepdim=True) - minimum) / 255).clamp(min=1e-12)
        rounded = (
            x.mul(1 / step).add_(-minimum / step - 128).round_()
        )  # -128 to 127: conversion to uint8 is slow
        quantized = rounded.to(torch.int8).view(torch.uint8).bitwise_xor_(128)  # 0 to 255, as VNNI needs it
        weights = self.packed, self.scales, self.zero_points, None
        product = torch.ops.onednn.qlinear_pointwise(
            quantized, 1.0, 0, *weights, 1.0, 0, torch.float32, "none", [], ""
        )
        return product.mul_(step).addcmul_(minimum, self.weight_sums).add_(self.bias)


def to_float32(model: SentenceEncoder) -> None:
    """Convert the weights of a model's encoder to float32, in place, if they have another dtype."""
    model.encoder.float()


def to_bfloat16(model: SentenceEncoder) -> None:
    """Convert the weights of a model's encoder to bfloat16, in place; modules after the pooling stay float32.

    Logs a warning if the CPU is slow in bfloat16.
    """
    if model.device.type == "cpu" and choose_precision("auto", model.device) != "bf16":
        log.warning(
            "precision bf16: this CPU has no bfloat16 instructions: half the memory, but slower than fp32"
        )
    model.encoder.bfloat16()


def to_int8(model: SentenceEncoder) -> None:
    """Replace the linear maps of a model's layers by DynamicInt8Linear, in place.

    Embeddings, LayerNorm, the products inside attention and the modules after the pooling stay float32.
    Raises InputError if the model is not on a CPU, or if the CPU has no VNNI instructions.
    """
    if model.device.type != "cpu":
        raise InputError(
            f"precision int8 needs a CPU, but the model is on {model.device}: choose bf16", "precision"
        )
    capabilities = torch.cpu.get_capabilities()
    if not any(capabilities.get(name, False) for name in VNNI):
        problem = (
            "this CPU has no VNNI instructions, without which int8 is slow and sums of products overflow"
        )
        raise InputError(f"precision int8: {problem}: choose fp32", "precision")
    if capabilities.get("amx_bf16", False):  # measured on two cores: 2,386 GFLOP/s, and 1,489 in int8
        log.warning("precision int8: this CPU has AMX, with which bf16 is faster and more exact")
    for layer in model.encoder.layers:
        for module in list(layer.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    setattr(module, name, DynamicInt8Linear(child))
    model.encoder.float()  # what is left, if the model was loaded in another dtype


ENCODE_PRECISIONS: dict[str, Callable[[SentenceEncoder], None]] = {
    "fp32": to_float32,
    "bf16": to_bfloat16,
    "int8": to_int8,
}


def set_encode_precision(model: SentenceEncoder, precision: str) -> None:
    """Convert a sentence encoder, in place, to the precision in which it encodes from now on.

    precision: name of an entry of ENCODE_PRECISIONS. Raises InputError if the device does not support it.
    """
    check_choice("precision", precision, ENCODE_PRECISIONS)
    ENCODE_PRECISIONS[precision](model)


def encode_precision(model: SentenceEncoder) -> str:
    """Return the precision in which a model encodes: "int8", or the name of its dtype in PRECISIONS."""
    if any(isinstance(module, DynamicInt8Linear) for module in model.modules()):
        return "int8"
    names = {dtype: name for name, dtype in PRECISIONS.items()}
    return names.get(model.dtype, str(model.dtype))
