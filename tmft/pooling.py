"""Pooling: the hidden states of a packed batch -> one vector per sentence.

Letters in this file: S sentences, B rows, T tokens in a row, N = B * T positions, D hidden_size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tmft.errors import InputError, did_you_mean
from tmft.packing import PackedBatch

PoolingFunction = Callable[[Tensor, PackedBatch, Tensor | None], Tensor]


@dataclass(frozen=True)
class Pooling:
    """An entry of the registry POOLINGS.

    pool: a function of hidden states (B, T, D), the batch they belong to, and token weights, (B, T) and 0 or
    more, or None if all are equal; it returns embeddings (S, D). Special tokens count like all others. pool
    is None if the pooling has parameters and is a part of the encoder, see pooling_functions.
    sentence_transformers_key: its key in 1_Pooling/config.json; None if sentence-transformers lacks it.
    num_vectors: how many vectors of D dimensions pool concatenates, such as 2 for the mean and the standard
    deviation; it then returns (S, num_vectors * D).
    """

    pool: PoolingFunction | None
    sentence_transformers_key: str | None = None
    num_vectors: int = 1


def sentence_mask(batch: PackedBatch) -> Tensor:
    """(S, N) bool: whether position n of the flattened batch belongs to sentence s."""
    ids = torch.arange(1, batch.num_sentences + 1, device=batch.sentence_ids.device)
    return batch.sentence_ids.flatten() == ids[:, None]


def mean_pooling(hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """The (weighted) mean over the tokens of each sentence, as a product with a matrix of zeros and weights.

    A sentence whose weights are all 0 gets the plain mean, a sentence without tokens a vector of zeros.
    """
    hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))  # a sum in 16 bits is too coarse
    matrix = sentence_mask(batch).to(hidden.dtype)  # (S, N)
    if weights is not None:
        weighted = matrix * weights.flatten()
        matrix = torch.where(weighted.any(1, keepdim=True), weighted, matrix)
    with torch.autocast(hidden.device.type, enabled=False):
        return (matrix @ hidden.flatten(0, 1)) / matrix.sum(1, keepdim=True).clamp(min=1e-30)


def cls_pooling(hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """The first token of each sentence, usually [CLS]; weights are ignored."""
    return hidden.flatten(0, 1)[sentence_mask(batch).int().argmax(1)]


def max_pooling(hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """The maximum of each dimension over the tokens of a sentence; weights are ignored."""
    sentence = batch.sentence_ids.flatten()[:, None].expand(-1, hidden.shape[-1])  # (N, D)
    maximum = hidden.new_full((batch.num_sentences + 1, hidden.shape[-1]), -torch.inf)  # row 0: padding
    return maximum.scatter_reduce(0, sentence, hidden.flatten(0, 1), "amax")[1:]


def weighted_mean_pooling(hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """The mean in which tokens 1, 2, 3, ... of a sentence have the weights 1, 2, 3, ... (times their own)."""
    return mean_pooling(hidden, batch, (batch.position_ids + 1) * (1 if weights is None else weights))


def mean_sqrt_len_pooling(hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """The sum over the n tokens of a sentence divided by the square root of n."""
    return mean_pooling(hidden, batch, weights) * sentence_mask(batch).sum(1, keepdim=True).sqrt()


def last_token_pooling(hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """The last token of each sentence; weights are ignored."""
    return hidden.flatten(0, 1).flip(0)[sentence_mask(batch).flip(1).int().argmax(1)]  # first from the end


# fmt: off
POOLINGS = {  # names as in the newer versions of sentence-transformers
    "mean":                 Pooling(mean_pooling, "pooling_mode_mean_tokens"),
    "cls":                  Pooling(cls_pooling, "pooling_mode_cls_token"),
    "max":                  Pooling(max_pooling, "pooling_mode_max_tokens"),
    "mean_sqrt_len_tokens": Pooling(mean_sqrt_len_pooling, "pooling_mode_mean_sqrt_len_tokens"),
    "weightedmean":         Pooling(weighted_mean_pooling, "pooling_mode_weightedmean_tokens"),
    "lasttoken":            Pooling(last_token_pooling, "pooling_mode_lasttoken"),
    "decoder":              Pooling(None),  # T5's first output: decoder_pooling in models/t5_decoder.py
}
# fmt: on


def parse_pooling(name: str) -> list[Pooling]:
    """Look up a name such as mean or max+mean; the vectors of several poolings are concatenated.

    Raises InputError if there is no such pooling.
    """
    for part in name.split("+"):
        if part not in POOLINGS:
            known = f"{', '.join(POOLINGS)}, or several as in max+mean{did_you_mean(part, POOLINGS)}"
            raise InputError(f"pooling {name!r}: choose one of {known}", "pooling")
    return [POOLINGS[part] for part in name.split("+")]


def required_components(name: str) -> list[str]:
    """The optional components of a checkpoint that a pooling needs, such as T5's decoder; mostly none.

    Raises InputError if there is no such pooling.
    """
    entries = zip(name.split("+"), parse_pooling(name), strict=True)
    return [component for component, entry in entries if entry.pool is None]


def pooling_functions(name: str, encoder: nn.Module) -> list[PoolingFunction]:
    """The function of each pooling in a name such as max+mean.

    A pooling with parameters is a method of the encoder: `decoder` is encoder.decoder_pooling. Raises
    InputError if there is no such pooling, or if the encoder was loaded without the component it needs.
    """
    parse_pooling(name)
    functions = [POOLINGS[part].pool or getattr(encoder, f"{part}_pooling", None) for part in name.split("+")]
    if None in functions:
        raise InputError(
            f"pooling {name!r}: the encoder has no such component, or was loaded without it: choose mean",
            "pooling",
        )
    return functions
