"""Embeddings in 8 bits or in one bit for each dimension: an index takes a quarter or a 32nd of the space.

    int8     (N, D) int8: each embedding is scaled so that its largest number is 127
    binary   (N, D / 8) uint8: the signs, eight in a byte, the first one in the highest bit; 1 is positive

Both keep the direction of an embedding, but not its length, so that they are compared by cosines.
"""

from typing import Any

import numpy as np

from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder

STORED_TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "int8": np.dtype("i1"),
    "binary": np.dtype("u1"),
}


def check_embedding_precision(model: SentenceEncoder, precision: str) -> None:
    """Raise InputError if the embeddings of the model cannot be stored with this precision."""
    if precision == "float32":
        return
    if model.similarity_fn_name != "cosine":
        problem = f"embedding_precision {precision}: the model compares by {model.similarity_fn_name}"
        raise InputError(f"{problem}, which needs lengths: choose float32", "embedding_precision")
    if precision == "binary" and model.dimensions % 8:
        problem = f"embedding_precision binary: {model.dimensions} dimensions are no multiple of 8"
        raise InputError(f"{problem}: choose int8", "embedding_precision")


def stored_width(dimensions: int, precision: str) -> int:
    """Return the number of columns of a file of embeddings."""
    return dimensions // 8 if precision == "binary" else dimensions


def to_precision(embeddings: np.ndarray, precision: str) -> np.ndarray:
    """Convert embeddings, (N, D) float32, to the numbers that a file stores."""
    if precision == "binary":
        return np.packbits(embeddings > 0, axis=1)
    if precision == "int8":
        largest = np.abs(embeddings).max(axis=1, keepdims=True, initial=np.finfo(np.float32).tiny)
        return np.round(embeddings / largest * 127).astype(np.int8)
    return embeddings


def from_precision(stored: np.ndarray, precision: str) -> np.ndarray:
    """Return what a file stores as (N, D) float32: int8 as it is, and the signs as 1 and -1."""
    if precision == "binary":
        return np.unpackbits(stored, axis=1).astype(np.float32) * 2 - 1
    return stored.astype(np.float32)
