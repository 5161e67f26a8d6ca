"""Packing: sentences of different lengths in rows of one fixed length, a batch with next to no padding.

Sentences are short and of unequal length. In a padded random batch of STSB 38 % of the positions hold a
token, in packed rows of 64 tokens 94 %. Two sentences and one [PAD] in a row of 10:

    [CLS] a man plays [SEP] [CLS] it rains [SEP] [PAD]      input_ids
      1   1  1    1     1     2   2    2     2     0        sentence_ids: attention stays within a sentence
      0   1  2    3     4     0   1    2     3     0        position_ids: they restart in each sentence

A padded batch is the special case of one sentence per row.
Letters in this file: S sentences, n tokens of all sentences together, B rows, T tokens in a row.
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from tmft.speed.bin_packing import bin_pack

PACKED_LENGTH = 64  # tokens in a row


@dataclass
class PackedBatch:
    """A batch of S sentences in B rows of T tokens. All three tensors are (B, T), int64.

    input_ids: token ids, the padding token where there is none.
    sentence_ids: the number of the sentence that a token belongs to, 1..S in the order given; 0 is padding.
    position_ids: the position of a token in its sentence, from 0.
    """

    input_ids: Tensor
    sentence_ids: Tensor
    position_ids: Tensor
    num_sentences: int

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The arguments of an encoder's forward: input_ids, attention_mask and position_ids.

        sentence_ids serve as the attention mask: tokens attend to each other where they are equal.
        """
        return self.input_ids, self.sentence_ids, self.position_ids

    def to(self, device: torch.device | str) -> "PackedBatch":
        """A copy of the batch on another device."""
        tensors = (tensor.to(device, non_blocking=True) for tensor in self.inputs)
        return PackedBatch(*tensors, self.num_sentences)


def pack(token_ids: list[list[int]], packed_length: int = PACKED_LENGTH, pad_id: int = 0) -> PackedBatch:
    """Pack tokenized sentences into rows.

    token_ids: the token ids of S sentences, special tokens included.
    packed_length: tokens in a row. If a sentence is longer, rows get the smallest multiple of it that holds
    the longest sentence.
    """
    lengths = np.array([len(sentence) for sentence in token_ids])
    tokens = np.fromiter(chain.from_iterable(token_ids), dtype=np.int64, count=lengths.sum())
    T = packed_length * max(1, -(-int(lengths.max()) // packed_length))
    return pack_arrays(tokens, lengths, T, pad_id)[0]


def pack_arrays(
    tokens: np.ndarray, lengths: np.ndarray, T: int, pad_id: int
) -> tuple[PackedBatch, np.ndarray]:
    """Pack sentences that are stored end to end in one array; nothing here loops over tokens.

    tokens: (n,) token ids. lengths: (S,) lengths of the sentences; they sum to n, none is above T.
    Returns the batch and the index of each token in it, (n,): row * T + column.
    """
    row, column = bin_pack(lengths, T)  # (S,) each: where a sentence starts
    B = row.max(initial=0) + 1  # a row of padding if there is no sentence
    starts = lengths.cumsum() - lengths
    position = np.arange(len(tokens)) - np.repeat(starts, lengths)  # (n,) of each token in its sentence
    index = np.repeat(row * T + column, lengths) + position  # (n,) of each token in the flattened rows

    input_ids = np.full(B * T, pad_id)
    sentence_ids, position_ids = np.zeros_like(input_ids), np.zeros_like(input_ids)
    input_ids[index] = tokens
    sentence_ids[index] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    position_ids[index] = position
    tensors = (torch.from_numpy(array).view(B, T) for array in (input_ids, sentence_ids, position_ids))
    return PackedBatch(*tensors, len(lengths)), index
