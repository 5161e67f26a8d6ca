"""Static models: a vector for each word of a vocabulary; a sentence is the mean of its words' vectors.

Of random vectors (the least that a model must beat), and of means of contextual vectors over a text.
Source: Stankevičius and Lukoševičius 2024, sections 3.2.3 and 3.2.5.

Letters in this file: V words, D dimensions, M layers, B rows, T tokens in a row.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from tmft.checkpoints.tokenizers import Tokenizer
from tmft.errors import InputError
from tmft.models.registry import config_from_dict, empty_encoder
from tmft.models.static import Static
from tmft.packing import PackedBatch

DEVIATION = 0.1  # of random vectors; it cancels in a cosine


def static_encoder(table: Tensor) -> Static:
    """A table (V, D) as an encoder of 0 layers."""
    V, D = table.shape
    encoder = empty_encoder(config_from_dict({"model_type": "static", "vocab_size": V, "hidden_size": D}))
    encoder.embeddings.word.weight = nn.Parameter(table.detach().float().clone())
    return encoder.eval()


def without_specials(tokenizer: Tokenizer) -> Tokenizer:
    """The same, of the same words, without [CLS] and [SEP]."""
    return Tokenizer(tokenizer.backend, tokenizer.special, tokenizer.max_length, bare=True)


def random_table(vocab_size: int, dimensions: int = 768, seed: int = 0) -> Tensor:
    """(V, D) of independent normal numbers: sentences with more words in common are closer, no more."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(vocab_size, dimensions, generator=generator) * DEVIATION


def average_table(
    batches: Iterable[PackedBatch], states: Callable[[PackedBatch], list[Tensor]], vocab_size: int
) -> Tensor:
    """The mean of all contextual vectors of each word, of each layer: (M, V, D), zeros for one never seen.

    states: rows -> M hidden states (B, T, D). Sums in float64: a frequent word has a million vectors.
    """
    sums = None
    for rows in batches:
        here = rows.sentence_ids.flatten() > 0  # no padding
        ids = rows.input_ids.flatten()[here]
        hidden = torch.stack([state.flatten(0, 1)[here] for state in states(rows)]).double()  # (M, n, D)
        if sums is None:
            M, _, D = hidden.shape
            sums, counts = hidden.new_zeros(M, vocab_size, D), hidden.new_zeros(vocab_size)
        sums.index_add_(1, ids, hidden)
        counts.index_add_(0, ids, torch.ones_like(ids, dtype=torch.float64))
    if sums is None:
        raise InputError("no text to average: give a file with a sentence per line", "average")
    return (sums / counts.clamp(min=1)[:, None]).float()
