"""Similarity functions: a number for two embeddings, which is larger the more similar they are.

The names are those of sentence-transformers, which stores one of them with a model (similarity_fn_name).
Letters: N and M embeddings, D dimensions.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from tmft.errors import InputError, describe_error, short_repr


def cosine_similarity(u: Tensor, v: Tensor) -> Tensor:
    """Return the cosine similarity of each row of u with each row of v: (N, D) and (M, D) -> (N, M)."""
    return F.normalize(u, dim=-1) @ F.normalize(v, dim=-1).T


def pairwise_cosine(u: Tensor, v: Tensor) -> Tensor:
    """Return the cosine similarity of each row of u with the same row of v: (N, D) twice -> (N,)."""
    return (F.normalize(u, dim=-1) * F.normalize(v, dim=-1)).sum(-1)


# Name -> the function for all pairs of a row of u and a row of v, (N, D) and (M, D) -> (N, M), and the one
# for row i of both, (N, D) twice -> (N,). Distances have a minus sign.
SIMILARITIES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "cosine": (cosine_similarity, pairwise_cosine),
    "dot": (lambda u, v: u @ v.T, lambda u, v: (u * v).sum(-1)),
    "euclidean": (
        lambda u, v: -torch.cdist(u, v, compute_mode="donot_use_mm_for_euclid_dist"),
        lambda u, v: -torch.linalg.vector_norm(u - v, dim=-1),
    ),
    "manhattan": (lambda u, v: -torch.cdist(u, v, p=1.0), lambda u, v: -(u - v).abs().sum(-1)),
}


def to_tensor(embeddings: ArrayLike | Sequence[Tensor] | Tensor) -> Tensor:
    """Return embeddings, of any type that holds numbers, or a list of tensors, as a tensor.

    Raises TypeError for strings and InputError for anything else.
    """
    strings = [embeddings] if isinstance(embeddings, str) else embeddings
    if isinstance(strings, list | tuple) and any(isinstance(one, str) for one in strings):
        raise TypeError("similarity compares embeddings, not sentences: call model.encode(sentences) first")
    try:
        if isinstance(strings, list | tuple) and any(isinstance(one, Tensor | np.ndarray) for one in strings):
            return torch.stack([torch.as_tensor(one) for one in strings])
        return torch.as_tensor(embeddings)
    except (TypeError, ValueError, RuntimeError) as error:
        problem = f"{short_repr(embeddings)} are no embeddings ({describe_error(error)})"
        raise InputError(f"{problem}: give an array, a tensor, or a list of equally long vectors") from None


def to_matrix(embeddings: ArrayLike | Sequence[Tensor] | Tensor) -> Tensor:
    """Return embeddings, (N, D) or (D,), as an (N, D) tensor, float32. Raises the errors of to_tensor."""
    return torch.atleast_2d(to_tensor(embeddings)).float()
