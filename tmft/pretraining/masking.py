"""Batches for masked language modeling: mask some tokens of each sentence, which the model has to predict.

    original text    [CLS] a man plays music [SEP]
    model input      [CLS] a man [MASK] music [SEP]
    label            plays, at position 3

In BERT 15 % of the tokens are masked. Of these, 80 % are replaced by [MASK], 10 % are replaced by a random
token, and 10 % stay unchanged; the model predicts all of them. A batch must be made in less time than a GPU
needs to train on its few thousand tokens. So nothing here loops over tokens.

Letters in this file: S sentences, n tokens of all S sentences, B rows of a batch, T tokens in a row, M masked
tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tmft.packing import PackedBatch, pack_arrays
from tmft.pretraining.corpus import TokenizedCorpus
from tmft.speed.overlap import copy_to
from tmft.tokenizer import Tokenizer

IGNORED_LABEL = -100  # what cross_entropy of torch ignores
LABELS_MULTIPLE = 32


@dataclass(frozen=True)
class Masking:
    """Masks random tokens of sentences and makes batches of them. Special tokens are never masked.

    mask_id, pad_id: ids of [MASK] and of padding. special_ids: ids of all special tokens.
    vocab_size: random tokens are drawn from the ids 0 to vocab_size - 1.
    mlm_probability: probability that a token is masked.
    random_prob, keep_prob: probabilities that a masked token is replaced by a random token, and that it stays
        unchanged; otherwise it is replaced by [MASK].
    Source: Devlin et al. 2019, section 3.1 (BERT). ELECTRA uses only [MASK], so random_prob and keep_prob are
    0: Clark et al. 2020, section 2.
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
        """Make a Masking with the ids of a tokenizer.

        probabilities: values of mlm_probability, random_prob and keep_prob that differ from the defaults.
        """
        ids = {
            key: id
            for key, token in tokenizer.special_tokens.items()
            if (id := tokenizer.backend.token_to_id(token)) is not None
        }
        vocab_size = max(tokenizer.backend.get_vocab().values()) + 1
        return cls(ids["mask_token"], tokenizer.pad_id, tuple(ids.values()), vocab_size, **probabilities)

    def __call__(self, tokens: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Mask tokens. Return the tokens that the model gets, (n,), and which of them are masked, (n,) bool.

        tokens: (n,), the original token ids.
        """
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
    ) -> tuple[list["LabeledBatch"], int]:
        """Mask all sentences of a corpus and pack them into batches, in rows of T tokens.

        batch_sizes: number of sentences of each batch, which add up to the size of the corpus. rank,
        world_size: each of world_size processes gets every world_size-th sentence of a batch.
        Returns this process's part of each batch, and the number of masked tokens of all batches and
        processes together. The masks are drawn before the batches are divided, so neither they nor the
        batches as a whole depend on the number of processes.
        """
        inputs, masked = self(corpus.tokens, rng)
        batches, start = [], 0
        for batch_size in batch_sizes:
            indices = np.arange(start + rank, start + batch_size, world_size)  # of this process's sentences
            start += batch_size
            part, positions = corpus.select(indices), corpus.token_positions(indices)
            packed, places = pack_arrays(inputs[positions], np.diff(part.offsets), T, self.pad_id)
            is_label = masked[positions]
            labels = torch.from_numpy(part.tokens[is_label].astype(np.int64))
            batches.append(LabeledBatch(packed, torch.from_numpy(places[is_label]), labels))
        return batches, int(masked.sum())


@dataclass
class LabeledBatch:
    """A packed batch in which M tokens are masked.

    packed: the input of the model. label_positions: (M,) int64, where the masked tokens are in the flattened
    batch (B * T tokens): row * T + column. labels: (M,) int64, the original ids, to be predicted there.
    """

    packed: PackedBatch
    label_positions: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> "LabeledBatch":
        """Return a copy of the batch on another device."""
        positions, labels = copy_to(torch.stack((self.label_positions, self.labels)), device)
        return LabeledBatch(self.packed.to(device), positions, labels)

    def with_padded_labels(self) -> "LabeledBatch":
        """Return a batch with labels to ignore at its end, so that M is a multiple of LABELS_MULTIPLE.

        M differs in each batch. On a CPU, oneDNN makes and keeps a program for each size of a matrix product,
        and memory that was freed is rarely of the size that is needed next. So few sizes need less memory.
        """
        padding = 0, -len(self.labels) % LABELS_MULTIPLE
        positions = F.pad(self.label_positions, padding)
        return LabeledBatch(self.packed, positions, F.pad(self.labels, padding, value=IGNORED_LABEL))
