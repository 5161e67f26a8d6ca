"""What an encoder computes in when it only encodes: float32, bfloat16, or products of 8 bits.

float32 is the default, as scores are compared with those of others. Made for encoding: nothing can be trained
or saved in 8 bits, load the model again for that.
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tmft.device import choose_precision
from tmft.errors import InputError, check_choice

VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")  # any of them
log = logging.getLogger("tmft")


class EightBits(nn.Module):
    """A linear map with 8-bit integers for weights, with a scale for each output, and for inputs, from the
    least to the largest number of each token; so no token depends on those that it is encoded with.

    With w = s r and x = least + step n, of integers r and n, x w is step (n r s) + least sum(r s). The
    product n r is exact, all else float32. Source: Jacob et al. 2017, arXiv:1712.05877; a scale for each
    token: Yao et al. 2022, arXiv:2206.01861.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach().float()
        self.scales = weight.abs().amax(1).clamp(min=1e-8) / 127  # (out,)
        rounded = (weight / self.scales[:, None]).round().to(torch.int8)
        self.of_least = rounded.float().sum(1) * self.scales
        self.bias = torch.zeros_like(self.scales) if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.nothing = torch.zeros(len(weight), dtype=torch.int32)  # what 0 is in the weights

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out), float32"""
        least = x.amin(-1, keepdim=True)
        step = ((x.amax(-1, keepdim=True) - least) / 255).clamp(min=1e-12)
        counted = x.mul(1 / step).add_(-least / step - 128).round_()  # -128 to 127: torch is slow to uint8
        numbers = counted.to(torch.int8).view(torch.uint8).bitwise_xor_(128)  # 0 to 255, what VNNI takes
        weights = self.packed, self.scales, self.nothing, None
        product = torch.ops.onednn.qlinear_pointwise(
            numbers, 1.0, 0, *weights, 1.0, 0, torch.float32, "none", [], ""
        )
        return product.mul_(step).addcmul_(least, self.of_least).add_(self.bias)


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
    has = torch.cpu.get_capabilities()
    if not any(has.get(name, False) for name in VNNI):
        what = "this CPU has no VNNI: without it 8 bits are slow, and sums of products overflow"
        raise InputError(f"precision int8: {what}; choose fp32", "precision")
    if has.get("amx_bf16", False):  # 2,386 GFLOP/s, and 1,489 in int8, seen on two cores of one
        log.warning("int8: this CPU has AMX, by which bf16 is faster, and nearer to fp32")
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
