"""Packing: several short sentences share a row of fixed length, so that a batch has next to no padding.

If random sentences of STSB are padded to the longest one in their batch, 38 % of the positions hold a token;
in packed rows of 64 tokens it is 94 %. This is a row of 10 positions with two sentences and one [PAD]:

    [CLS] a man plays [SEP] [CLS] it rains [SEP] [PAD]      input_ids
      1   1  1    1     1     2   2    2     2     0        attention_mask: a token attends to its own number
      0   1  2    3     4     0   1    2     3     0        position_ids: they restart in each sentence

An ordinary padded batch is the special case in which each row has one sentence. To encode many sentences,
length_bucketed_batches chooses which of them share a batch, or uniform_batches, if the last bits of an
embedding must not depend on the other sentences.
Letters: N sentences in a corpus, S sentences of a batch, n tokens of these S sentences together, B rows of a
batch, T tokens in a row.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor

from tmft.speed.overlap import copy_to

PACKED_LENGTH = 64  # tokens in a row
UNIFORM_POSITIONS = 512  # in a batch of uniform_batches
ROWS_MULTIPLE = 4  # of the rows of a training batch on a GPU, where few shapes are faster


@dataclass
class TokenizedCorpus:
    """N tokenized sentences in one array. Sentence s is tokens[offsets[s] : offsets[s + 1]].

    A million sentences of 20 tokens take 88 MB; as lists of Python integers they would take eight times as
    much.
    tokens: int32 token ids of all sentences, one after the other, each with its special tokens.
    offsets: (N + 1,) int64. len(corpus) is N.
    """

    tokens: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_blocks(cls, blocks: Iterable[Iterable[Sequence[int]]]) -> "TokenizedCorpus":
        """Make a corpus from the token ids of sentences, in blocks, so that few lists exist at a time.

        blocks: the token ids of each sentence of each block.

        Example:

        >>> corpus = TokenizedCorpus.from_blocks([[[2, 9, 3], [2, 7, 8, 3]], [[2, 3]]])
        >>> corpus.tokens.tolist(), corpus.offsets.tolist()
        ([2, 9, 3, 2, 7, 8, 3, 2, 3], [0, 3, 7, 9])
        >>> corpus[1], len(corpus)
        ([2, 7, 8, 3], 3)
        """
        tokens, offsets = array("i"), array("q", [0])
        for block in blocks:
            for token_ids in block:
                tokens.extend(token_ids)
                offsets.append(len(tokens))
        return cls(np.frombuffer(tokens, dtype=np.int32), np.frombuffer(offsets, dtype=np.int64))

    @classmethod
    def from_sentences(cls, token_ids: "Sequence[Sequence[int]] | TokenizedCorpus") -> "TokenizedCorpus":
        """Return a corpus of the token ids of each sentence; a corpus is returned as it is."""
        return token_ids if isinstance(token_ids, TokenizedCorpus) else cls.from_blocks([token_ids])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> list[int]:
        """Return the token ids of a sentence. index: from 0 to N - 1."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]].tolist()

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the token ids of each sentence."""
        for start, end in pairwise(self.offsets):
            yield self.tokens[start:end].tolist()

    def distinct(self) -> tuple["TokenizedCorpus", np.ndarray]:
        """Return a corpus without repeated sentences, and the index of each sentence of this one in it, (N,).

        The sentences are in the order in which they occur first. The index is int64.
        """
        if len(self) == 1:
            return self, np.zeros(1, dtype=np.int64)
        content, numbers = self.tokens.tobytes(), dict[bytes, int]()
        bounds = (self.offsets * self.tokens.itemsize).tolist()
        index = [numbers.setdefault(content[start:end], len(numbers)) for start, end in pairwise(bounds)]
        if len(numbers) == len(self):
            return self, np.array(index)
        return self.select(np.unique(index, return_index=True)[1]), np.array(index)

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of tokens of some sentences, (S,). indices: (S,), those of the sentences."""
        return self.offsets[indices + 1] - self.offsets[indices]

    def token_positions(self, indices: np.ndarray) -> np.ndarray:
        """Return the positions in `tokens` of the n tokens of the selected sentences, in their order, (n,).

        indices: (S,), those of the sentences.
        """
        lengths = self.lengths(indices)
        starts = lengths.cumsum() - lengths  # of each sentence in the array that is returned
        return np.repeat(self.offsets[indices] - starts, lengths) + np.arange(lengths.sum())

    def select(self, indices: np.ndarray) -> "TokenizedCorpus":
        """Return a corpus of only some sentences, in the order of their indices, (S,)."""
        offsets = np.concatenate([[0], self.lengths(indices).cumsum()])
        return TokenizedCorpus(self.tokens[self.token_positions(indices)], offsets)


@dataclass
class PackedBatch:
    """A batch of S sentences in B rows of T tokens. The three tensors are (B, T), int64.

    input_ids: token ids; positions without a token hold the id of the padding token.
    attention_mask: the number of the sentence that a token belongs to, 1 .. S in the order in which the
    sentences were given to pack(); 0 on padding. Two tokens attend to each other if their numbers are equal.
    position_ids: the position of a token in its sentence, counted from 0.
    num_sentences: S.
    one_row_each: True if S = B and row b holds sentence b + 1 alone. The mean of a sentence is then computed
    from its row alone. False says nothing about the rows.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    num_sentences: int
    one_row_each: bool = False

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The positional arguments of an encoder's forward: input_ids, attention_mask and position_ids."""
        return self.input_ids, self.attention_mask, self.position_ids

    def to(self, device: torch.device | str) -> "PackedBatch":
        """Return the batch on another device, in one copy that nothing waits for; this one stays as it is."""
        if self.input_ids.device == torch.device(device):
            return self
        input_ids, attention_mask, position_ids = copy_to(torch.stack(self.inputs), torch.device(device))
        return PackedBatch(input_ids, attention_mask, position_ids, self.num_sentences, self.one_row_each)


def pack(
    token_ids: Sequence[Sequence[int]],
    packed_length: int = PACKED_LENGTH,
    pad_id: int = 0,
    rows_multiple: int = 1,
) -> PackedBatch:
    """Return a packed batch of S tokenized sentences.

    token_ids: the token ids of each sentence, special tokens included.
    packed_length: the number of tokens in a row. If a sentence is longer, the rows get the smallest multiple
    of packed_length into which the longest sentence fits.
    pad_id: the id of the padding token.
    rows_multiple: rows of padding are added until the number of rows is a multiple of this.

    Example:

    >>> batch = pack([[2, 9, 3], [2, 7, 8, 3]], packed_length=8)
    >>> batch.input_ids.tolist()
    [[2, 7, 8, 3, 2, 9, 3, 0]]
    >>> batch.attention_mask.tolist()
    [[2, 2, 2, 2, 1, 1, 1, 0]]
    >>> batch.position_ids.tolist()
    [[0, 1, 2, 3, 0, 1, 2, 0]]
    """
    sizes = [len(sentence) for sentence in token_ids]
    if sizes == [packed_length] and rows_multiple == 1:  # one sentence, in a third of the time
        input_ids = torch.tensor(token_ids, dtype=torch.int64)
        return PackedBatch(input_ids, torch.ones_like(input_ids), torch.arange(packed_length)[None], 1)
    lengths = np.array(sizes)
    tokens = np.fromiter(chain.from_iterable(token_ids), dtype=np.int64, count=lengths.sum())
    T = packed_length * max(1, -(-int(lengths.max()) // packed_length))
    return pack_arrays(tokens, lengths, T, pad_id, rows_multiple)[0]


def pack_arrays(
    tokens: np.ndarray,
    lengths: np.ndarray,
    T: int,
    pad_id: int,
    rows_multiple: int = 1,
    one_row_each: bool = False,
) -> tuple[PackedBatch, np.ndarray]:
    """Return a packed batch of S sentences that are stored in one array, one after the other.

    tokens: (n,) int64, token ids. lengths: (S,) int64, the number of tokens of each sentence; they sum to n,
    and none is larger than T. pad_id, rows_multiple: see `pack`. one_row_each: give each sentence a row of
    its own, in their order.
    The result is (batch, index). index: (n,) int64, the position of each token in the flattened batch, which
    is row * T + column.
    """
    # (S,) each: where the first token of a sentence is
    row, column = bin_pack(np.full_like(lengths, T) if one_row_each else lengths, T)
    B = row.max(initial=0) + 1  # one row of padding if there is no sentence
    B += -B % rows_multiple
    starts = lengths.cumsum() - lengths  # (S,): where a sentence begins in `tokens`
    position = np.arange(len(tokens)) - np.repeat(starts, lengths)  # (n,): of each token in its sentence
    index = np.repeat(row * T + column, lengths) + position  # (n,): of each token in the flattened batch

    input_ids = np.full(B * T, pad_id)
    attention_mask, position_ids = np.zeros_like(input_ids), np.zeros_like(input_ids)
    input_ids[index] = tokens
    attention_mask[index] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    position_ids[index] = position
    batch = PackedBatch(
        torch.from_numpy(input_ids).view(B, T),
        torch.from_numpy(attention_mask).view(B, T),
        torch.from_numpy(position_ids).view(B, T),
        len(lengths),
        one_row_each,
    )
    return batch, index


def bin_pack(lengths: np.ndarray, T: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, columns), (S,) int64 each: the row and the column of the first token of each sentence.

    This is best-fit decreasing bin packing; with a row for each sentence the embeddings would be the same.
    lengths: (S,) int64, the number of tokens of each sentence, at most T. T: tokens in a row. Sentences are
    placed from long to short, each into the fullest row in which it fits; this needs few rows.
    """
    rows_with_room: list[list[int]] = [
        [] for _ in range(T + 1)
    ]  # rows_with_room[n]: the rows with n free columns
    nonempty = 0  # bit n is set if rows_with_room[n] is not empty, to find the fullest fitting row at once
    num_rows = 0
    rows, columns = np.empty(len(lengths), dtype=np.int64), np.empty(len(lengths), dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    for s, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        fitting = nonempty >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1  # the lowest bit that is set
            row = rows_with_room[room].pop()
            if not rows_with_room[room]:
                nonempty ^= 1 << room
        else:
            room, row, num_rows = T, num_rows, num_rows + 1
        rows[s], columns[s] = row, T - room
        rows_with_room[room - length].append(row)
        nonempty |= 1 << (room - length)
    return rows, columns


def length_bucketed_batches(
    lengths: np.ndarray, tokens_per_batch: int, packed_length: int, max_scores: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield (indices, row_length) for each batch: which sentences it has, and how long its packed rows are.

    lengths: (N,), the number of tokens of each sentence. indices: (S,) int64. max_scores: the attention
    scores that each head has at most in a batch of long sentences, T x T for one of T tokens, unless it is a
    batch of one.
    Sentences longer than packed_length come first, from long to short; each batch of them has sentences of
    similar length, and rows of the next multiple of 8 tokens. A sentence that has a batch to itself because
    of its length has a row of exactly this length, so that its attention needs no mask. The others are then
    distributed like cards: from long to short, each goes to the next batch in turn, so that each batch has
    short sentences that fill up the rows of long ones. For STSB, 97 % of the positions then hold a token, and
    all batches have nearly the same shape. A batch with less text than a row of packed_length is one row of
    exactly its tokens.
    """
    order = np.argsort(-lengths, kind="stable")
    num_long, start = int((lengths > packed_length).sum()), 0
    while start < num_long:
        longest = int(lengths[order[start]])
        batch_size = max(1, min(tokens_per_batch // longest, max_scores // longest**2))
        batch = order[start : min(start + batch_size, num_long)]
        yield batch, longest if batch_size == 1 else -(-longest // 8) * 8
        start += len(batch)
    rest = order[num_long:]
    # at least one batch if there are sentences, also if all of them are empty
    num_batches = -(-int(lengths[rest].sum()) // tokens_per_batch) or min(1, len(rest))
    for first in range(num_batches):
        batch = rest[first::num_batches]
        num_tokens = max(1, int(lengths[batch].sum()))  # a row has a position, also without a token
        yield batch, min(packed_length, num_tokens)


def uniform_batches(lengths: np.ndarray) -> Iterator[tuple[np.ndarray, int, int]]:
    """Yield (indices, row_length, num_rows) for each batch, whose shape depends on no other sentence.

    lengths: (N,), the number of tokens of each sentence. Each sentence is to get a row of its own; its length
    is the next multiple of 8 tokens, at least 8. A batch has only rows of one length, always as many as fit
    into 512 positions, or one. If there are fewer sentences than rows, copies of them are to fill it up.
    """
    row_lengths = np.maximum(8, -(-lengths // 8) * 8)
    for row_length in np.unique(row_lengths).tolist():
        indices, num_rows = np.flatnonzero(row_lengths == row_length), max(1, UNIFORM_POSITIONS // row_length)
        for start in range(0, len(indices), num_rows):
            yield indices[start : start + num_rows], row_length, num_rows


def pack_densely(
    corpus: TokenizedCorpus, pad_id: int, tokens_per_batch: int, max_scores: int
) -> Iterator[tuple[np.ndarray, PackedBatch]]:
    """Yield (indices, batch) for the batches of length_bucketed_batches.

    indices: (S,), sentence s of the batch is corpus[indices[s]]. The other parameters are those of `pack` and
    length_bucketed_batches.
    """
    if len(corpus) == 1:  # the batch is what it would be below, in fewer steps
        yield np.zeros(1, dtype=np.int64), pack([corpus[0]], max(1, len(corpus.tokens)), pad_id)
        return
    lengths = np.diff(corpus.offsets)
    batches = length_bucketed_batches(lengths, tokens_per_batch, PACKED_LENGTH, max_scores)
    for indices, row_length in batches:
        tokens = corpus.select(indices).tokens.astype(np.int64)
        yield indices, pack_arrays(tokens, lengths[indices], row_length, pad_id)[0]


def pack_uniformly(corpus: TokenizedCorpus, pad_id: int) -> Iterator[tuple[np.ndarray, PackedBatch]]:
    """Yield (indices, batch) for the batches of uniform_batches, filled up with copies of their sentences.

    indices: (S,), sentence s of the batch is corpus[indices[s]]; the copies come after these S. pad_id: see
    `pack`.
    """
    lengths = np.diff(corpus.offsets)
    for indices, row_length, num_rows in uniform_batches(lengths):
        filled = np.resize(indices, num_rows)
        tokens = corpus.select(filled).tokens.astype(np.int64)
        yield indices, pack_arrays(tokens, lengths[filled], row_length, pad_id, one_row_each=True)[0]
