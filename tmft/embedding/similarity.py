"""Similarity functions: a number for two embeddings, which is larger the more similar they are.

The names are those of sentence-transformers, which stores one of them with a model (similarity_fn_name).
Shapes: N and M embeddings, D dimensions.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


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


def to_matrix(embeddings: np.ndarray | Tensor) -> Tensor:
    """Return embeddings, (N, D) or (D,), as an (N, D) tensor, float32. Raises TypeError for strings."""
    strings = [embeddings] if isinstance(embeddings, str) else embeddings
    if isinstance(strings, list | tuple) and any(isinstance(one, str) for one in strings):
        raise TypeError("similarity compares embeddings, not sentences: call model.encode(sentences) first")
    return torch.atleast_2d(torch.as_tensor(embeddings)).float()
