"""Solutions of the exercises, in a short form. python docs/lecture/check.py --solutions checks them."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def mean_pooling(hidden: Tensor, mask: Tensor) -> Tensor:
    """Multiply the vectors of padding by 0, and divide by the number of tokens, not by T."""
    mask = mask[:, :, None]
    return (hidden * mask).sum(1) / mask.sum(1)


def cosine_loss(u: Tensor, v: Tensor, scores: Tensor, max_score: float = 5.0) -> Tensor:
    """The cosine does not depend on the lengths of u and v, so the model is free to choose them."""
    return (torch.cosine_similarity(u, v) - scores / max_score).square().mean()


def spearman(predicted: np.ndarray, gold: np.ndarray) -> float:
    """The mean rank of a number: those below it, and half of those that are equal to it."""

    def ranks(values):
        below = (values[:, None] > values[None, :]).sum(1)
        equal = (values[:, None] == values[None, :]).sum(1)
        return below + (equal + 1) / 2

    return float(np.corrcoef(ranks(np.asarray(predicted)), ranks(np.asarray(gold)))[0, 1])


def all_hidden_states(encoder, ids: Tensor, mask: Tensor) -> list[Tensor]:
    """The loop of hidden_state, with every state kept."""
    weights = encoder.weights
    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][torch.arange(ids.shape[1])]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = encoder.layer_norm(x, "embeddings.LayerNorm")
    if "embeddings_project.weight" in weights:
        x = encoder.linear(x, "embeddings_project")
    added = torch.where(mask[:, None, None, :] == 1, 0.0, torch.finfo(x.dtype).min)
    states = [x]
    for n in range(encoder.layer):
        name = f"encoder.layer.{n}"
        attended = encoder.attention(x, added, f"{name}.attention")
        x = encoder.layer_norm(x + attended, f"{name}.attention.output.LayerNorm")
        inner = F.gelu(encoder.linear(x, f"{name}.intermediate.dense"))
        x = encoder.layer_norm(x + encoder.linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        states.append(x)
    return states


def linear_cka(x: Tensor, y: Tensor) -> float:
    """Kornblith et al. 2019, arXiv:1905.00414, section 3."""
    x, y = x - x.mean(0), y - y.mean(0)
    return ((x.T @ y).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())).item()


def difference_interval(
    first: np.ndarray, second: np.ndarray, gold: np.ndarray, resamples: int = 500, seed: int = 0
) -> tuple[float, float]:
    """Efron and Tibshirani 1993, chapter 13: a paired bootstrap."""
    generator, differences = np.random.default_rng(seed), []
    for _ in range(resamples):
        pairs = generator.integers(len(gold), size=len(gold))
        differences.append(spearman(first[pairs], gold[pairs]) - spearman(second[pairs], gold[pairs]))
    low, high = np.percentile(differences, [2.5, 97.5])
    return float(low), float(high)
