"""What an encoder computes in when it only encodes: float32, bfloat16, or products of 8 bits.

float32 is the default, as scores are compared with those of others. Made for encoding: nothing can be trained
or saved in 8 bits, load the model again for that.
"""

import logging
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tmft.device import choose_precision
from tmft.errors import InputError, check_choice

VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")  # any of them
log = logging.getLogger("tmft")


class EightBits(nn.Module):
    """A linear map whose weights are 8-bit integers, with a scale for each output; so are its inputs, between
    the least and the largest number of the batch. The product is exact, the output float32. Source: Jacob et
    al. 2017, arXiv:1712.05877, with scales that are found at run time."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach().float()
        scales = weight.abs().amax(1).clamp(min=1e-8) / 127
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch wants its other package for making such models
            rounded = torch.quantize_per_channel(
                weight, scales, torch.zeros(len(weight)).long(), 0, torch.qint8
            )
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack(rounded, bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic(x, self.packed)


def as_it_is(model: nn.Module) -> None:
    pass


def half(model: nn.Module) -> None:
    if model.device.type == "cpu" and choose_precision("auto", model.device) != "bf16":
        log.warning("bf16: this CPU has no instructions for it: half the memory, but slower than fp32")
    model.bfloat16()


def eight_bits(model: nn.Module) -> None:
    """Of the layers, in place; embeddings, norms, attention's products and what follows stay float32."""
    if model.device.type != "cpu":
        raise InputError(f"precision int8: it is for CPUs, not for {model.device}: choose bf16", "precision")
    if not any(torch.cpu.get_capabilities().get(name, False) for name in VNNI):
        what = "this CPU has no VNNI: without it 8 bits are slow, and sums of products overflow"
        raise InputError(f"precision int8: {what}; choose fp32", "precision")
    for module in list(model.encoder.layers.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, EightBits(child))


ENCODING: dict[str, Callable[[nn.Module], None]] = {"fp32": as_it_is, "bf16": half, "int8": eight_bits}


def encode_in(model: nn.Module, precision: str) -> None:
    """Let a sentence encoder compute in a row of ENCODING from now on. InputError if it cannot."""
    check_choice("precision", precision, ENCODING)
    ENCODING[precision](model)


def precision_of(model: nn.Module) -> str:
    """A row of ENCODING, or the dtype that the weights were given otherwise."""
    if any(isinstance(module, EightBits) for module in model.modules()):
        return "int8"
    dtype = model.encoder.embeddings.word.weight.dtype
    return {torch.float32: "fp32", torch.bfloat16: "bf16"}.get(dtype, str(dtype))
