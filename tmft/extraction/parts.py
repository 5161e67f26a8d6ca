"""Poolings that have weights: parts of a checkpoint that are read only for them.

Such a row of POOLINGS has no function; the encoder that was read with the part has a method, decoder_pooling.
"""

from collections.abc import Callable

from torch import Tensor

from tmft.encoder import HiddenStates
from tmft.errors import InputError
from tmft.pooling import POOLINGS, poolings_of
from tmft.rows import Rows


def parts_of(name: str) -> list[str]:
    """The parts that a pooling needs, a name such as mean+decoder. InputError if there is no such pooling."""
    return [part for part, row in zip(name.split("+"), poolings_of(name), strict=True) if row.pool is None]


def pools_of(name: str, encoder: HiddenStates) -> list[Callable[[Tensor, Rows, Tensor | None], Tensor]]:
    """The functions of a name. InputError if there is no such pooling, or the encoder was read without it."""
    poolings_of(name)
    pools = [POOLINGS[part].pool or getattr(encoder, f"{part}_pooling", None) for part in name.split("+")]
    if None in pools:
        raise InputError(f"pooling {name!r}: the encoder was read without it, or has none", "pooling")
    return pools
