"""Sentences to batches in which some tokens are hidden: what masked language modelling is given to solve.

Letters in this file: S sentences, B rows, T tokens in a row, M masked tokens, n tokens of all S sentences.

    [CLS] a man [MASK] music [SEP]      what the model sees; of 10 masked tokens 8 become [MASK], one a random
          "plays", at place 3           token, one stays as it is (BERT); it is asked for all of them

A batch is a few thousand tokens and must be made in less time than a GPU needs to learn from it, so nothing
here loops over tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tmft.files.tokenizer import Tokenizer
from tmft.pretraining.corpus import Sentences
from tmft.rows import Rows


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


@dataclass
class Batch:
    """Rows of masked sentences, where in them the masked tokens are, and what they were.

    places: (M,) int64, counted through the rows one after the other (row * T + column); labels: (M,) int64.
    """

    rows: Rows
    places: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> "Batch":
        places, labels = (tensor.to(device, non_blocking=True) for tensor in (self.places, self.labels))
        return Batch(self.rows.to(device), places, labels)


def fill_rows(lengths: np.ndarray, T: int) -> tuple[np.ndarray, np.ndarray]:
    """Sentences of these lengths into rows of T places: longest first, each where the least room remains.

    -> row and column of the first token of each sentence, both (S,). (Best-fit decreasing bin packing.)
    """
    rows_with_room = [[] for _ in range(T + 1)]  # rows with r free places, for each r
    some = 0  # bit r is set where rows_with_room[r] has any, so that the fitting r is found at once
    count = 0
    row, column = np.empty(len(lengths), dtype=np.int64), np.empty(len(lengths), dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    for s, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        fitting = some >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1  # the lowest bit that is set
            number = rows_with_room[room].pop()
            if not rows_with_room[room]:
                some ^= 1 << room
        else:
            room, number, count = T, count, count + 1
        row[s], column[s] = number, T - room
        left = room - length
        rows_with_room[left].append(number)
        some |= 1 << left
    return row, column


def lay_out(sentences: Sentences, seen: np.ndarray, chosen: np.ndarray, T: int, pad_id: int) -> Batch:
    """Sentences of which the model is given the tokens `seen` (n,), and asked for the `chosen` (n,) bool."""
    S = len(sentences)
    lengths, starts = np.diff(sentences.offsets), sentences.offsets[:-1]
    row, column = fill_rows(lengths, T)
    B = row.max(initial=0) + 1  # a row of padding where there is no sentence for this process
    position = np.arange(len(seen)) - np.repeat(starts, lengths)  # (n,) of each token in its sentence
    place = np.repeat(row * T + column, lengths) + position  # (n,) of each token in the rows

    input_ids = np.full(B * T, pad_id)
    sentence_ids, position_ids = np.zeros_like(input_ids), np.zeros_like(input_ids)
    input_ids[place] = seen
    sentence_ids[place] = np.repeat(np.arange(1, S + 1), lengths)
    position_ids[place] = position
    tensors = (torch.from_numpy(a).view(B, T) for a in (input_ids, sentence_ids, position_ids))
    labels = torch.from_numpy(sentences.tokens[chosen].astype(np.int64))
    return Batch(Rows(*tensors, S), torch.from_numpy(place[chosen]), labels)


def masked_batches(
    sentences: Sentences,
    masking: Masking,
    rng: np.random.Generator,
    sizes: list[int],
    T: int,
    rank=0,
    count=1,
) -> tuple[list[Batch], int]:
    """Mask sentences, lay them out in batches of these sizes -> this process's share of each; M of them all.

    Of `count` processes each takes every count-th sentence of a batch. The masks are drawn before that, so
    they and the batches as a whole do not depend on the number of processes.
    """
    seen, chosen = masking(sentences.tokens, rng)
    batches, start = [], 0
    for size in sizes:
        which = np.arange(start + rank, start + size, count)
        places = sentences.places(which)
        batches.append(lay_out(sentences.take(which), seen[places], chosen[places], T, masking.pad_id))
        start += size
    return batches, int(chosen.sum())


class Order:
    """Which sentences each step sees: passes over all, each in a new order that only the seed decides."""

    def __init__(self, which: np.ndarray, per_step: int, seed: int):
        self.which, self.per_step, self.seed = which, per_step, seed
        self.steps_per_pass = -(-len(which) // per_step)
        self.current: tuple[int, np.ndarray] | None = None  # number of the pass, its order

    def step(self, step: int) -> np.ndarray:
        """Numbers of the sentences of a step, counted from 0; the last one of a pass may have fewer."""
        number, within = divmod(step, self.steps_per_pass)
        if self.current is None or self.current[0] != number:
            self.current = number, np.random.default_rng([self.seed, number]).permutation(self.which)
        return self.current[1][within * self.per_step : (within + 1) * self.per_step]
