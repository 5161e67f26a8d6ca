"""The answer of exercise 1."""

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Without the root, the scores grow with A, and the softmax picks nearly a single token."""
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5  # (B, H, T, T): queries, keys
    is_padding = mask[:, None, None, :] == 0  # (B, 1, 1, T): the keys
    scores = scores.masked_fill(is_padding, torch.finfo(q.dtype).min)
    return scores.softmax(-1) @ v
