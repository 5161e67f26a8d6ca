"""Weights in 4 or 8 bits: how a safetensors file of the compact format stores a matrix, and how it is read.

Layout, version 1. The metadata of the file has compact_layout "1". A matrix NAME of shape (rows, columns) is
stored as two tensors. The columns are divided into groups, the last of which may be narrower:

    NAME.int4    (rows, columns / 2) uint8: two numbers from -8 to 7 in each byte, each with 8 added; that of
                 the even column is in the lower four bits
    NAME.int8    in place of it: (rows, columns) int8, -127 to 127
    NAME.scales  (rows, groups) float16: a weight is its number times the scale of its group

int4 has groups of 32 columns, int8 one group for each row. All other tensors, such as biases, are float16,
and so are matrices with an odd number of columns.

Letters in this file: R rows, C columns, G groups of a matrix.
"""

import math
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

LAYOUT_VERSION = "1"
LAYOUT_KEY = "compact_layout"  # in the metadata of the file
GROUP_SIZE = 32  # columns of a group of int4
# Factors of the largest magnitude in a group that are tried as its scale: if the largest number is cut off a
# little, all others may become more precise.
SCALE_FACTORS = [1 - 0.01 * n for n in range(31)]


def pack_weights(weights: dict[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Return the tensors of a compact file for the weights of a model. dtype: "int4" or "int8"."""
    packed = {}
    for name, weight in weights.items():
        if weight.ndim != 2 or weight.shape[1] % 2:
            packed[name] = weight.half()
            continue
        group_size = GROUP_SIZE if dtype == "int4" else weight.shape[1]
        numbers, scales = quantize_by_group(weight.float(), group_size, -8 if dtype == "int4" else -127)
        packed[f"{name}.scales"] = scales
        packed[f"{name}.{dtype}"] = pack_int4_pairs(numbers) if dtype == "int4" else numbers
    return packed


def quantize_by_group(weight: Tensor, group_size: int, lowest: int) -> tuple[Tensor, Tensor]:
    """Round a matrix to whole numbers times one scale for each group of columns: return (numbers, scales).

    weight: (R, C). The numbers are (R, C) int8, at least `lowest`; the scales are (R, G) float16. The scale
    of a group is the one with the smallest sum of squared errors, of those that SCALE_FACTORS give if the
    weight of the largest magnitude becomes the lowest or the highest number. A scale may be negative.
    """
    R, C = weight.shape
    G = math.ceil(C / group_size)
    padded = weight.new_zeros(R, G * group_size)
    padded[:, :C] = weight
    groups = padded.view(R, G, group_size)
    extreme = groups.gather(2, groups.abs().argmax(2, keepdim=True))  # (R, G, 1)
    best_error = torch.full_like(extreme, torch.inf)
    best_scale = torch.zeros_like(extreme)
    highest = 7 if lowest == -8 else 127
    for factor in [factor / bound for bound in (lowest, highest) for factor in SCALE_FACTORS]:
        scale = (extreme * factor).half().float()  # as it is stored
        numbers = quantize(groups, scale, lowest, highest)
        error = (numbers * scale - groups).square().sum(2, keepdim=True)
        best_scale = torch.where(error < best_error, scale, best_scale)
        best_error = torch.minimum(error, best_error)
    numbers = quantize(groups, best_scale, lowest, highest).view(R, -1)[:, :C]
    return numbers.to(torch.int8).contiguous(), best_scale.squeeze(2).half()


def quantize(groups: Tensor, scale: Tensor, lowest: int, highest: int) -> Tensor:
    """Return the whole numbers nearest to groups / scale, from lowest to highest; 0 where the scale is 0."""
    safe_scale = torch.where(scale == 0, 1, scale)
    return (groups / safe_scale).round().clamp(lowest, highest) * (scale != 0)


def pack_int4_pairs(numbers: Tensor) -> Tensor:
    """Return (R, C / 2) uint8 for numbers from -8 to 7, (R, C) int8."""
    shifted = (numbers + 8).to(torch.uint8)
    return shifted[:, ::2] | shifted[:, 1::2] << 4


def dequantize(packed: Tensor, scales: Tensor) -> Tensor:
    """Return a matrix, (R, C) float32, from the tensors NAME.int4 or NAME.int8, and NAME.scales.

    Raises ValueError if the shapes or dtypes do not fit together.
    """
    if packed.dtype == torch.uint8:
        numbers = torch.stack([packed & 15, packed >> 4], dim=2).flatten(1).float() - 8
        group_size = GROUP_SIZE
    else:
        numbers, group_size = packed.float(), packed.shape[1]
    R, C = numbers.shape
    if scales.shape != (R, math.ceil(C / group_size)) or scales.dtype != torch.float16:
        raise ValueError(f"scales of shape {tuple(scales.shape)} for a matrix of {R} x {C}")
    return numbers * scales.float().repeat_interleave(group_size, dim=1)[:, :C]


class CompactFile:
    """An open safetensors file of the compact format; its tensors have their usual names and are float32.

    Raises ValueError if the layout has another version.
    """

    def __init__(self, file: safe_open):
        version = file.metadata()[LAYOUT_KEY]
        if version != LAYOUT_VERSION:
            raise ValueError(f"{LAYOUT_KEY} is {version}, this version of tmft reads {LAYOUT_VERSION}")
        self.file, self.stored_names = file, list(file.keys())

    def __enter__(self) -> "CompactFile":
        self.file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.__exit__(*error)

    def keys(self) -> list[str]:
        """Return the names of the weights."""
        names = [name for name in self.stored_names if not name.endswith(".scales")]
        return [name.removesuffix(".int4").removesuffix(".int8") for name in names]

    def get_tensor(self, name: str) -> Tensor:
        """Return a weight in float32. Raises ValueError if its scales are missing or do not fit."""
        packed = next((one for one in (f"{name}.int4", f"{name}.int8") if one in self.stored_names), None)
        if packed is None:
            return self.file.get_tensor(name).float()
        if f"{name}.scales" not in self.stored_names:
            raise ValueError(f"{name}.scales is missing")
        return dequantize(self.file.get_tensor(packed), self.file.get_tensor(f"{name}.scales"))
