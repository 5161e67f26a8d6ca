"""Sentences side by side in rows of a fixed width: a batch with next to no padding.

Sentences are short and of unequal length: in a padded random batch of STSB 38 % of the places hold a token,
in rows of 64 tokens 94 %. Letters in this file: S sentences, B rows, T tokens in a row, N = B * T places.

    [CLS] a man plays [SEP] [CLS] it rains [SEP] [PAD]      input_ids
      1   1  1    1     1     2   2    2     2     0        sentence_ids: who may attend to whom, 0 is padding
      0   1  2    3     4     0   1    2     3     0        position_ids
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ROW_WIDTH = 64


@dataclass
class Rows:
    """A batch of S sentences, each numbered 1..S in sentence_ids. All three tensors are (B, T), int64."""

    input_ids: Tensor
    sentence_ids: Tensor
    position_ids: Tensor
    num_sentences: int

    def to(self, device: torch.device | str) -> "Rows":
        tensors = (self.input_ids, self.sentence_ids, self.position_ids)
        return Rows(*(tensor.to(device, non_blocking=True) for tensor in tensors), self.num_sentences)


def pack(sentences: list[list[int]], width: int = ROW_WIDTH, pad_id: int = 0) -> Rows:
    """Lay tokenised sentences side by side, longest first, each into the first row with room for it.

    sentences: token ids, special tokens included, each at least one token long. Rows are `width` tokens wide,
    or the smallest multiple of it that holds the longest sentence. sentence_ids count in the given order.
    """
    longest = max(map(len, sentences))
    T = width * -(-longest // width)
    room: list[int] = []  # free places at the end of each row
    places = []  # (row, column) of sentence s
    for s in sorted(range(len(sentences)), key=lambda s: -len(sentences[s])):
        length = len(sentences[s])
        row = next((row for row, free in enumerate(room) if free >= length), len(room))
        if row == len(room):
            room.append(T)
        places.append((s, row, T - room[row]))
        room[row] -= length

    input_ids = np.full((len(room), T), pad_id)
    sentence_ids, position_ids = np.zeros_like(input_ids), np.zeros_like(input_ids)
    for s, row, column in places:
        here = slice(column, column + len(sentences[s]))
        input_ids[row, here] = sentences[s]
        sentence_ids[row, here] = s + 1
        position_ids[row, here] = np.arange(len(sentences[s]))
    tensors = (torch.from_numpy(array) for array in (input_ids, sentence_ids, position_ids))
    return Rows(*tensors, len(sentences))


def membership(rows: Rows) -> Tensor:
    """(S, N) bool: whether place n of the rows, read row by row, belongs to sentence s."""
    numbers = torch.arange(1, rows.num_sentences + 1, device=rows.sentence_ids.device)
    return rows.sentence_ids.flatten() == numbers[:, None]


# Each pooling turns hidden states (B, T, D) into one embedding per sentence (S, D), special tokens included.


def mean_pooling(hidden: Tensor, rows: Rows) -> Tensor:
    """The mean over the tokens of each sentence, as a product with a matrix of zeros and ones."""
    member = membership(rows).to(hidden.dtype)
    return (member @ hidden.flatten(0, 1)) / member.sum(1, keepdim=True)


def cls_pooling(hidden: Tensor, rows: Rows) -> Tensor:
    """The first token of each sentence, [CLS]."""
    return hidden.flatten(0, 1)[membership(rows).int().argmax(1)]


def max_pooling(hidden: Tensor, rows: Rows) -> Tensor:
    """The largest value of each dimension over the tokens of a sentence."""
    sentence = rows.sentence_ids.flatten()[:, None].expand(-1, hidden.shape[-1])
    largest = hidden.new_full((rows.num_sentences + 1, hidden.shape[-1]), -torch.inf)  # number 0 is padding
    return largest.scatter_reduce(0, sentence, hidden.flatten(0, 1), "amax")[1:]


POOLINGS = {"mean": mean_pooling, "cls": cls_pooling, "max": max_pooling}
