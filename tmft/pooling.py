"""Pooling: functions that reduce the hidden states of a packed batch to one vector per sentence.

All functions *_pooling have the same parameters:

hidden: (B, T, D), hidden states.
batch: the packed batch that the hidden states were computed from.
weights: (B, T), weights of 0 or more for the tokens, None if all tokens have the same weight. Poolings that
do not use them accept them, so that all poolings can be called alike.

They return (S, D), one vector per sentence. Special tokens such as [CLS] count like all other tokens.
Letters: S sentences of a batch, B rows of a batch, T tokens in a row, D dimensions of a hidden state.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tmft.errors import InputError, did_you_mean
from tmft.packing import PackedBatch
from tmft.speed.operators import no_autocast

PoolingFunction = Callable[[Tensor, PackedBatch, Tensor | None], Tensor]


@dataclass(frozen=True)
class Pooling:
    """An entry of the registry POOLINGS.

    pool: the function, with the parameters and the result described at the top of this file. It is None if
    the pooling has weights of its own: it is then a part of the encoder, see pooling_functions.
    sentence_transformers_key: the key of this pooling in the 1_Pooling/config.json of sentence-transformers;
    None if sentence-transformers does not have this pooling.
    num_vectors: the number of vectors of D dimensions that pool concatenates, such as 2 for a pooling that
    returns the mean and the standard deviation. The result of pool is (S, num_vectors * D).
    """

    pool: PoolingFunction | None
    sentence_transformers_key: str | None = None
    num_vectors: int = 1


def sentence_mask(batch: PackedBatch) -> Tensor:
    """Return (S, B * T) bool: whether each position of the flattened batch is in each sentence."""
    numbers = torch.arange(1, batch.num_sentences + 1, device=batch.attention_mask.device)
    return batch.attention_mask.flatten() == numbers[:, None]


def mean_pooling(hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """Return the (weighted) mean over the tokens of each sentence: (S, D), float32 or float64.

    hidden: (B, T, D). batch: the packed batch. weights: (B, T), at least 0, or None if all are 1.
    It is computed as the product of an (S, B * T) matrix of weights with the (B * T, D) hidden states. The
    order in which a product adds the tokens of a sentence may depend on its place in the batch; if each
    sentence has a row of its own, they are therefore added row by row. A sentence whose weights are all 0
    gets the unweighted mean. A sentence without tokens gets a vector of zeros.
    """
    hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))  # a sum in 16 bits is too coarse
    matrix = sentence_mask(batch).to(hidden.dtype)  # (S, B * T)
    if weights is not None:
        weighted = matrix * weights.flatten()
        matrix = torch.where(weighted.any(1, keepdim=True), weighted, matrix)
    if batch.one_row_each:
        rows = torch.arange(len(hidden), device=hidden.device)
        own = matrix.unflatten(1, hidden.shape[:2])[rows, rows]  # (B, T)
        return (own[..., None] * hidden).sum(1) / own.sum(1, keepdim=True).clamp(min=1e-30)
    with no_autocast(hidden.device.type):
        return (matrix @ hidden.flatten(0, 1)) / matrix.sum(1, keepdim=True).clamp(min=1e-30)


def cls_pooling(hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """Return the hidden state of the first token of each sentence, usually [CLS]: (S, D).

    hidden: (B, T, D). batch: the packed batch. weights: ignored.
    """
    return hidden.flatten(0, 1)[sentence_mask(batch).int().argmax(1)]


def max_pooling(hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """Return the maximum of each dimension over the tokens of each sentence: (S, D).

    hidden: (B, T, D). batch: the packed batch. weights: ignored.
    """
    sentence = batch.attention_mask.flatten()[:, None].expand(-1, hidden.shape[-1])  # (B * T, D)
    # entry 0 is for padding, whose number is 0
    maximum = hidden.new_full((batch.num_sentences + 1, hidden.shape[-1]), -torch.inf)
    return maximum.scatter_reduce(0, sentence, hidden.flatten(0, 1), "amax")[1:]


def weighted_mean_pooling(hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """Return the mean in which token n of a sentence, counted from 1, has weight n: (S, D).

    hidden: (B, T, D). batch: the packed batch. weights: (B, T) or None; if given, token n has n times its
    weight, where n counts all tokens, also those of weight 0.
    """
    return mean_pooling(hidden, batch, (batch.position_ids + 1) * (1 if weights is None else weights))


def mean_sqrt_len_pooling(hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """Return the sum over the n tokens of each sentence, divided by the square root of n: (S, D).

    hidden: (B, T, D). batch: the packed batch. weights: (B, T) or None; if given, the result is the weighted
    mean times the square root of n, where n counts all tokens, also those of weight 0.
    """
    return mean_pooling(hidden, batch, weights) * sentence_mask(batch).sum(1, keepdim=True).sqrt()


def last_token_pooling(hidden: Tensor, batch: PackedBatch, weights: Tensor | None = None) -> Tensor:
    """Return the hidden state of the last token of each sentence, often [SEP]: (S, D).

    hidden: (B, T, D). batch: the packed batch. weights: ignored.
    """
    # flipped, the last token of a sentence is the first one that is True in the mask
    return hidden.flatten(0, 1).flip(0)[sentence_mask(batch).flip(1).int().argmax(1)]


# fmt: off
POOLINGS = {  # names as in the newer versions of sentence-transformers
    "mean":                 Pooling(mean_pooling, "pooling_mode_mean_tokens"),
    "cls":                  Pooling(cls_pooling, "pooling_mode_cls_token"),
    "max":                  Pooling(max_pooling, "pooling_mode_max_tokens"),
    "mean_sqrt_len_tokens": Pooling(mean_sqrt_len_pooling, "pooling_mode_mean_sqrt_len_tokens"),
    "weightedmean":         Pooling(weighted_mean_pooling, "pooling_mode_weightedmean_tokens"),
    "lasttoken":            Pooling(last_token_pooling, "pooling_mode_lasttoken"),
    "pooler":               Pooling(None),  # tanh(W h + b) of the first token: models/pooler.py
    "decoder":              Pooling(None),  # T5's first output: decoder_pooling in models/t5_decoder.py
}
# fmt: on


def parse_pooling(name: str) -> list[Pooling]:
    """Return the entries of POOLINGS that a name such as "mean" or "max+mean" stands for, in this order.

    Raises InputError if a part of the name is not in POOLINGS.

    Example:

    >>> sum(pooling.num_vectors for pooling in parse_pooling("max+mean"))
    2
    """
    for part in name.split("+"):
        if part not in POOLINGS:
            known = f"{', '.join(POOLINGS)}, or several as in max+mean{did_you_mean(part, POOLINGS)}"
            raise InputError(f"pooling {name!r}: choose one of {known}", "pooling")
    return [POOLINGS[part] for part in name.split("+")]


def check_pooling_excludes(name: str) -> None:
    """Raise InputError if a pooling cannot leave out the tokens of a prompt, which get weight 0."""
    if unsupported := [part for part in name.split("+") if part not in ("mean", "weightedmean", "lasttoken")]:
        raise InputError(
            f"pooling {unsupported[0]}: this model leaves the prompt out of the pooling (include_prompt is "
            "false), which tmft can do for mean, weightedmean and lasttoken: use no prompt",
            "pooling",
            "prompt",
        )


def required_components(name: str) -> list[str]:
    """Return the components of a checkpoint, besides the encoder, that a pooling needs.

    The result is ["decoder"] for the pooling "decoder" of T5, ["pooler"] for "pooler", and [] for most names,
    such as "max+mean".
    Raises InputError if a part of the name is not in POOLINGS.
    """
    entries = zip(name.split("+"), parse_pooling(name), strict=True)
    return [component for component, entry in entries if entry.pool is None]


def pooling_functions(name: str, encoder: nn.Module) -> list[PoolingFunction]:
    """Return the pooling functions that a name such as "max+mean" stands for, in this order.

    A pooling with weights of its own is a part of the encoder: "decoder" is encoder.decoder_pooling.
    Raises InputError if a part of the name is not in POOLINGS, or if the encoder was loaded without the
    component that the pooling needs.
    """
    entries = zip(name.split("+"), parse_pooling(name), strict=True)
    functions = [entry.pool or getattr(encoder, f"{part}_pooling", None) for part, entry in entries]
    found = [function for function in functions if function is not None]
    if len(found) < len(functions):
        raise InputError(
            f"pooling {name!r}: the encoder has no such component, or was loaded without it: choose mean",
            "pooling",
        )
    return found
