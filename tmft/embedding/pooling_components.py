"""Poolings that have weights: parts of a checkpoint that are read only for them.

Such a row of POOLINGS has no function; the encoder that was read with the part has a method, decoder_pooling.
"""

from collections.abc import Callable

from torch import Tensor

from tmft.errors import InputError
from tmft.models.bert import BaseEncoder
from tmft.packing import PackedBatch
from tmft.pooling import POOLINGS, parse_pooling


def parts_of(name: str) -> list[str]:
    """The parts that a pooling needs, a name such as mean+decoder. InputError if there is no such pooling."""
    return [part for part, row in zip(name.split("+"), parse_pooling(name), strict=True) if row.pool is None]


def pooling_functions(
    name: str, encoder: BaseEncoder
) -> list[Callable[[Tensor, PackedBatch, Tensor | None], Tensor]]:
    """The functions of a name. InputError if there is no such pooling, or the encoder was read without it."""
    parse_pooling(name)
    pools = [POOLINGS[part].pool or getattr(encoder, f"{part}_pooling", None) for part in name.split("+")]
    if None in pools:
        raise InputError(f"pooling {name!r}: the encoder was read without it, or has none", "pooling")
    return pools
