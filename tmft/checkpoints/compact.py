"""Weights in 4 or 8 bits: how a safetensors file of the compact format stores a matrix, and how it is read.

Layout, version 1. The metadata of the file has compact_layout "1". A matrix NAME of shape (rows, columns) is
stored as two tensors. The columns are divided into groups, the last of which may be narrower:

    NAME.int4    (rows, columns / 2) uint8: two numbers from -8 to 7 in each byte, each with 8 added; that of
                 the even column is in the lower four bits
    NAME.int8    in place of it: (rows, columns) int8, -127 to 127
    NAME.scales  (rows, groups) float16: a weight is its number times the scale of its group

int4 has groups of 32 columns, int8 one group for each row. All other tensors, such as biases, are float16,
and so are matrices with an odd number of columns and MPNet's table of relative biases. A file may have
matrices of both kinds.

Letters in this file: R rows, C columns, G groups of a matrix.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

LAYOUT_VERSION = "1"
LAYOUT_KEY = "compact_layout"  # in the metadata of the file
GROUP_SIZE = 32  # columns of a group of int4
NUMBER_RANGES = {"int4": (-8, 7), "int8": (-127, 127)}
# Factors of the largest magnitude in a group that are tried as its scale: if the largest number is cut off a
# little, all others may become more precise.
SCALE_FACTORS = [1 - 0.01 * n for n in range(31)]


def pack_weights(weights: dict[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Return the tensors of a compact file for the weights of a model.

    dtype: "int4" or "int8".
    """
    packed = {}
    for name, weight in weights.items():
        if (own_dtype := storage_dtype(name, weight, dtype)) is None:
            packed[name] = weight.half()
            continue
        scales = search_scales(weight, own_dtype)
        groups = quantize(split_into_groups(weight.float(), own_dtype), scales.float()[:, :, None], own_dtype)
        numbers = groups.flatten(1)[:, : weight.shape[1]].to(torch.int8)
        if own_dtype == "int4":
            shifted = (numbers + 8).to(torch.uint8)
            numbers = shifted[:, ::2] | shifted[:, 1::2] << 4  # (R, C / 2)
        packed[f"{name}.scales"], packed[f"{name}.{own_dtype}"] = scales, numbers.contiguous()
    return packed


def storage_dtype(name: str, weight: Tensor, dtype: str) -> str | None:
    """Return the dtype that a weight has in a file of this dtype; None is float16.

    The embeddings of positions and token types have 8 bits in each file: they are small, and their errors
    are in every token. name: that of the weight in a checkpoint or in this library.
    """
    if weight.ndim != 2 or weight.shape[1] % 2 or "relative" in name:
        return None
    return "int8" if "embeddings" in name and "word" not in name else dtype


def search_scales(weight: Tensor, dtype: str) -> Tensor:
    """Return the scales of a matrix of (R, C), (R, G) float16.

    The scale of a group is the one with the smallest sum of squared errors, of those that SCALE_FACTORS give
    if the weight of the largest magnitude becomes the lowest or the highest number. A scale may be negative.
    """
    groups = split_into_groups(weight.float(), dtype)
    extreme = groups.gather(2, groups.abs().argmax(2, keepdim=True))  # (R, G, 1)
    best_error = torch.full_like(extreme, torch.inf)
    best_scale = torch.zeros_like(extreme)
    for factor in [factor / bound for bound in NUMBER_RANGES[dtype] for factor in SCALE_FACTORS]:
        scale = (extreme * factor).half().float()  # as it is stored
        error = (quantize(groups, scale, dtype) * scale - groups).square().sum(2, keepdim=True)
        best_scale = torch.where(error < best_error, scale, best_scale)
        best_error = torch.minimum(error, best_error)
    return best_scale.squeeze(2).half()


def round_weight(weight: Tensor, dtype: str | None, scales: Tensor | None = None) -> Tensor:
    """Return a weight in float32 as a compact file stores it. dtype: its `storage_dtype`.

    scales: those of its groups; None searches them. Then a weight that is rounded already does not change, if
    its scales are no smaller than 6e-5, from where float16 has all its digits.
    """
    if dtype is None:
        return weight.half().float()
    scales = search_scales(weight, dtype) if scales is None else scales
    groups, scale = split_into_groups(weight.float(), dtype), scales.float()[:, :, None]
    return (quantize(groups, scale, dtype) * scale).flatten(1)[:, : weight.shape[1]]


def split_into_groups(weight: Tensor, dtype: str) -> Tensor:
    """Return the groups of columns of a matrix, (R, C); zeros fill up the last one."""
    R, C = weight.shape
    group_size = GROUP_SIZE if dtype == "int4" else C
    padding = -C % group_size
    return F.pad(weight, (0, padding)).reshape(R, -1, group_size)  # (R, G, columns of a group)


def quantize(groups: Tensor, scale: Tensor, dtype: str) -> Tensor:
    """Return the whole numbers of the dtype that are nearest to groups / scale; 0 where the scale is 0."""
    lowest, highest = NUMBER_RANGES[dtype]
    safe_scale = torch.where(scale == 0, 1, scale)
    return (groups / safe_scale).round_().clamp_(lowest, highest).mul_(scale != 0)


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
