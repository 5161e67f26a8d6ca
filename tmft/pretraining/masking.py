"""Sentences to batches in which some tokens are hidden: what masked language modelling is given to solve.

Letters in this file: S sentences, B rows, T tokens in a row, M masked tokens, n tokens of all S sentences.

    [CLS] a man [MASK] music [SEP]      what the model sees; of 10 masked tokens 8 become [MASK], one a random
          "plays", at place 3           token, one stays as it is (BERT); it is asked for all of them

A batch is a few thousand tokens and must be made in less time than a GPU needs to learn from it, so nothing
here loops over tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tmft.checkpoints.tokenizers import Tokenizer
from tmft.packing import PackedBatch, pack_arrays
from tmft.pretraining.corpus import Sentences


@dataclass(frozen=True)
class Masking:
    """Which tokens are masked, and what stands in their place. Special tokens never are.

    Source: Devlin et al. 2019, section 3.1; Clark et al. 2020, section 2, whose generator sees only [MASK].
    """

    mask_id: int
    pad_id: int
    special_ids: tuple[int, ...]
    vocab_size: int  # random tokens are below it
    share: float = 0.15  # of the tokens is masked
    random: float = 0.1  # of the masked ones becomes a random token
    same: float = 0.1  # of the masked ones stays as it is

    @classmethod
    def of(cls, tokenizer: Tokenizer, **shares: float) -> "Masking":
        ids = {key: tokenizer.backend.token_to_id(token) for key, token in tokenizer.special.items()}
        vocab_size = max(tokenizer.backend.get_vocab().values()) + 1
        return cls(ids["mask_token"], tokenizer.pad_id, tuple(ids.values()), vocab_size, **shares)

    def __call__(self, tokens: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """tokens: (n,) -> what the model is given instead (n,), and which of them are masked (n,) bool."""
        chosen = (rng.random(len(tokens)) < self.share) & ~np.isin(tokens, self.special_ids)
        fate = rng.random(len(tokens))
        seen = np.where(chosen & (fate >= self.random + self.same), self.mask_id, tokens)
        other = rng.integers(self.vocab_size, size=len(tokens))
        return np.where(chosen & (fate < self.random), other, seen), chosen

    def batches(
        self,
        sentences: Sentences,
        rng: np.random.Generator,
        sizes: list[int],
        T: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> tuple[list["Batch"], int]:
        """Mask sentences, lay them out in batches of these sizes -> this process's share of each; M of all.

        Of world_size processes each takes every world_size-th sentence of a batch. The masks are drawn before
        that, so they and the batches as a whole do not depend on the number of processes.
        """
        seen, chosen = self(sentences.tokens, rng)
        batches = []
        for which in shares(sizes, rank, world_size):
            places = sentences.places(which)
            batches.append(pack_masked(sentences.take(which), seen[places], chosen[places], T, self.pad_id))
        return batches, int(chosen.sum())


@dataclass
class Batch:
    """Rows of masked sentences, where in them the masked tokens are, and what they were.

    places: (M,) int64, counted through the rows one after the other (row * T + column); labels: (M,) int64.
    """

    rows: PackedBatch
    places: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> "Batch":
        places, labels = (tensor.to(device, non_blocking=True) for tensor in (self.places, self.labels))
        return Batch(self.rows.to(device), places, labels)


def pack_masked(sentences: Sentences, seen: np.ndarray, chosen: np.ndarray, T: int, pad_id: int) -> Batch:
    """Sentences of which the model is given the tokens `seen` (n,), and asked for the `chosen` (n,) bool."""
    rows, place = pack_arrays(seen, np.diff(sentences.offsets), T, pad_id)
    labels = torch.from_numpy(sentences.tokens[chosen].astype(np.int64))
    return Batch(rows, torch.from_numpy(place[chosen]), labels)


def shares(sizes: list[int], rank: int, world_size: int) -> Iterator[np.ndarray]:
    """Of batches of these sizes, one after the other, the numbers of the sentences that a process takes."""
    start = 0
    for size in sizes:
        yield np.arange(start + rank, start + size, world_size)
        start += size
