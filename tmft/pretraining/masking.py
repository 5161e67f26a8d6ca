"""Batches for masked language modeling: some tokens are masked, and the model predicts them.

    [CLS] a man [MASK] music [SEP]      input of the model: of 10 masked tokens 8 become [MASK], 1 becomes a
          "plays", at position 3        random token, and 1 is kept (BERT); the model predicts all of them

A batch has a few thousand tokens, and must be made in less time than a GPU needs to train on it. So nothing
here loops over tokens.
Letters in this file: S sentences, B rows, T tokens in a row, M masked tokens, n tokens of all S sentences.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tmft.checkpoints.tokenizers import Tokenizer
from tmft.packing import PackedBatch, pack_arrays
from tmft.pretraining.corpus import TokenizedCorpus


@dataclass(frozen=True)
class Masking:
    """Which tokens are masked, and what replaces them. Special tokens are never masked.

    vocab_size: random tokens have ids below it. mlm_probability: fraction of the tokens that is masked.
    random_prob, keep_prob: fractions of the masked tokens that become a random token and that are kept; the
    others become [MASK].
    Source: Devlin et al. 2019, section 3.1; Clark et al. 2020, section 2, whose generator sees only [MASK].
    """

    mask_id: int
    pad_id: int
    special_ids: tuple[int, ...]
    vocab_size: int
    mlm_probability: float = 0.15
    random_prob: float = 0.1
    keep_prob: float = 0.1

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, **probabilities: float) -> "Masking":
        """Take the ids from a tokenizer. probabilities: mlm_probability, random_prob, keep_prob."""
        ids = {key: tokenizer.backend.token_to_id(token) for key, token in tokenizer.special_tokens.items()}
        vocab_size = max(tokenizer.backend.get_vocab().values()) + 1
        return cls(ids["mask_token"], tokenizer.pad_id, tuple(ids.values()), vocab_size, **probabilities)

    def __call__(self, tokens: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Mask tokens. tokens: (n,) -> the input of the model (n,), and which tokens are masked (n,) bool."""
        masked = (rng.random(len(tokens)) < self.mlm_probability) & ~np.isin(tokens, self.special_ids)
        draw = rng.random(len(tokens))
        inputs = np.where(masked & (draw >= self.random_prob + self.keep_prob), self.mask_id, tokens)
        random_tokens = rng.integers(self.vocab_size, size=len(tokens))
        return np.where(masked & (draw < self.random_prob), random_tokens, inputs), masked

    def make_batches(
        self,
        corpus: TokenizedCorpus,
        rng: np.random.Generator,
        batch_sizes: list[int],
        T: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> tuple[list["MaskedBatch"], int]:
        """Mask all sentences of a corpus and pack them into batches of these sizes, in rows of T tokens.

        Returns this process's part of each batch, and M of all batches and processes together. Each process
        takes every world_size-th sentence of a batch. The masks are drawn before that, so the masks and the
        batches as a whole do not depend on the number of processes.
        """
        inputs, masked = self(corpus.tokens, rng)
        batches = []
        for indices in indices_of_process(batch_sizes, rank, world_size):
            positions = corpus.token_positions(indices)
            part = corpus.select(indices)
            batches.append(pack_masked(part, inputs[positions], masked[positions], T, self.pad_id))
        return batches, int(masked.sum())


@dataclass
class MaskedBatch:
    """Packed sentences with masked tokens.

    masked_positions: (M,) int64, index of each masked token in the flattened rows, row * T + column.
    labels: (M,) int64, the original tokens there.
    """

    packed: PackedBatch
    masked_positions: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> "MaskedBatch":
        """Return a copy of the batch on another device."""
        positions, labels = (
            tensor.to(device, non_blocking=True) for tensor in (self.masked_positions, self.labels)
        )
        return MaskedBatch(self.packed.to(device), positions, labels)


def pack_masked(
    corpus: TokenizedCorpus, inputs: np.ndarray, masked: np.ndarray, T: int, pad_id: int
) -> MaskedBatch:
    """Pack sentences into rows of T tokens.

    corpus: the original sentences. inputs: (n,) the tokens that the model gets instead; masked: (n,) bool.
    """
    packed, positions = pack_arrays(inputs, np.diff(corpus.offsets), T, pad_id)
    labels = torch.from_numpy(corpus.tokens[masked].astype(np.int64))
    return MaskedBatch(packed, torch.from_numpy(positions[masked]), labels)


def indices_of_process(batch_sizes: list[int], rank: int, world_size: int) -> Iterator[np.ndarray]:
    """Yield, for consecutive batches of these sizes, the indices of the sentences that this process takes."""
    start = 0
    for batch_size in batch_sizes:
        yield np.arange(start + rank, start + batch_size, world_size)
        start += batch_size
