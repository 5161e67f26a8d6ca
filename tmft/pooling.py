"""Hidden states -> one vector per sentence.

Letters in this file: S sentences, B rows, T tokens in a row, N = B * T places, D hidden_size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tmft.errors import InputError, did_you_mean
from tmft.packing import PackedBatch


@dataclass(frozen=True)
class Pooling:
    """A row of POOLINGS. pool: hidden states (B, T, D), their rows and the weights of their tokens, (B, T) of
    0 or more or None for equal ones, to embeddings (S, width * D); special tokens count like others.

    elsewhere: its key in 1_Pooling/config.json of sentence-transformers; None: it has none there. pool is
    None where it has weights: then it is a part of the encoder, with a method of this name, decoder_pooling.
    """

    pool: Callable[[Tensor, PackedBatch, Tensor | None], Tensor] | None
    width: int = 1
    elsewhere: str | None = None


def membership(rows: PackedBatch) -> Tensor:
    """(S, N) bool: whether place n of the rows, read row by row, belongs to sentence s."""
    numbers = torch.arange(1, rows.num_sentences + 1, device=rows.sentence_ids.device)
    return rows.sentence_ids.flatten() == numbers[:, None]


def mean_pooling(hidden: Tensor, rows: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """The (weighted) mean over the tokens of each sentence, as a product with a matrix of zeros and weights.

    Where all weights of a sentence are 0 it is the plain mean, and where it has no token, 0.
    """
    hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))  # a sum in 16 bits is too coarse
    member = membership(rows).to(hidden.dtype)  # (S, N)
    if weights is not None:
        weighted = member * weights.flatten()
        member = torch.where(weighted.any(1, keepdim=True), weighted, member)
    with torch.autocast(hidden.device.type, enabled=False):
        return (member @ hidden.flatten(0, 1)) / member.sum(1, keepdim=True).clamp(min=1e-30)


def cls_pooling(hidden: Tensor, rows: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """The first token of each sentence, [CLS], whatever its weight."""
    return hidden.flatten(0, 1)[membership(rows).int().argmax(1)]


def max_pooling(hidden: Tensor, rows: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """The largest value of each dimension over the tokens of a sentence, whatever their weights."""
    sentence = rows.sentence_ids.flatten()[:, None].expand(-1, hidden.shape[-1])
    largest = hidden.new_full((rows.num_sentences + 1, hidden.shape[-1]), -torch.inf)  # number 0 is padding
    return largest.scatter_reduce(0, sentence, hidden.flatten(0, 1), "amax")[1:]


def weighted_mean_pooling(hidden: Tensor, rows: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """The mean in which token 1, 2, 3 ... of a sentence weighs 1, 2, 3 ... times as much."""
    return mean_pooling(hidden, rows, (rows.position_ids + 1) * (1 if weights is None else weights))


def mean_sqrt_len_pooling(hidden: Tensor, rows: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """The sum over n tokens divided by the square root of n."""
    return mean_pooling(hidden, rows, weights) * membership(rows).sum(1, keepdim=True).sqrt()


def last_pooling(hidden: Tensor, rows: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """The last token of each sentence, whatever its weight."""
    return hidden.flatten(0, 1).flip(0)[membership(rows).flip(1).int().argmax(1)]  # counted from the end


POOLINGS = {
    "mean": Pooling(mean_pooling, elsewhere="pooling_mode_mean_tokens"),
    "cls": Pooling(cls_pooling, elsewhere="pooling_mode_cls_token"),
    "max": Pooling(max_pooling, elsewhere="pooling_mode_max_tokens"),
    "mean_sqrt_len_tokens": Pooling(mean_sqrt_len_pooling, elsewhere="pooling_mode_mean_sqrt_len_tokens"),
    "weightedmean": Pooling(weighted_mean_pooling, elsewhere="pooling_mode_weightedmean_tokens"),
    "lasttoken": Pooling(last_pooling, elsewhere="pooling_mode_lasttoken"),
    "decoder": Pooling(None),  # T5's first output, models/t5_decoder.py
}


def parse_pooling(name: str) -> list[Pooling]:
    """The row of POOLINGS or, of a name such as max+mean, those whose vectors stand side by side."""
    for part in name.split("+"):
        if part not in POOLINGS:
            known = f"{', '.join(POOLINGS)}, or several as in max+mean{did_you_mean(part, POOLINGS)}"
            raise InputError(f"pooling {name!r}: choose one of {known}", "pooling")
    return [POOLINGS[part] for part in name.split("+")]
