"""Plain text for pre-training: read as a stream, tokenized once, kept in one array, shuffled by the seed.

One sentence or paragraph per line, UTF-8; .gz and .xz are decompressed while they are read. A million
sentences take some 100 MB here; as Python strings they would take several times as much.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from tmft.checkpoints.tokenizers import Tokenizer
from tmft.device import progress_bar
from tmft.errors import InputError
from tmft.io.text import read_lines

CHUNK_LINES = 4096  # lines that are tokenized at a time
HELD_OUT_FRACTION = 0.01
MAX_HELD_OUT = 2000  # sentences


@dataclass
class TokenizedCorpus:
    """N tokenized sentences in one array; sentence s is tokens[offsets[s] : offsets[s + 1]].

    tokens: int32 token ids, including the special tokens of each sentence. offsets: (N + 1,) int64.
    """

    tokens: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each of these sentences. indices: (S,) -> (S,)"""
        return self.offsets[indices + 1] - self.offsets[indices]

    def token_positions(self, indices: np.ndarray) -> np.ndarray:
        """Return where in `tokens` the n tokens of these sentences are, in that order. indices: (S,) ->
        (n,)
        """
        lengths = self.lengths(indices)
        starts = lengths.cumsum() - lengths  # of each sentence in the array that is returned
        return np.repeat(self.offsets[indices] - starts, lengths) + np.arange(lengths.sum())

    def select(self, indices: np.ndarray) -> "TokenizedCorpus":
        """Return a corpus of these sentences, in that order. indices: (S,)"""
        offsets = np.concatenate([[0], self.lengths(indices).cumsum()])
        return TokenizedCorpus(self.tokens[self.token_positions(indices)], offsets)


def read_nonempty_lines(paths: list[Path]) -> Iterator[str]:
    """Yield the lines of all files, without surrounding white space; empty lines are left out.

    Raises InputError if a file is missing, is damaged, is not text in UTF-8, or has no such line.
    """
    for path in paths:
        is_empty = True
        for line in read_lines(path):
            if line := line.strip():
                is_empty = False
                yield line
        if is_empty:
            raise InputError(f"{path} has no text: name a file with a sentence or paragraph per line")


def tokenize_files(paths: list[Path], tokenizer: Tokenizer, max_length: int) -> TokenizedCorpus:
    """Tokenize the lines of all files; a line of more than max_length tokens becomes several sentences.

    Each of them gets its own [CLS] and [SEP]. Raises InputError as read_nonempty_lines does.
    """
    cls_id, sep_id = (
        tokenizer.backend.token_to_id(tokenizer.special_tokens[key]) for key in ("cls_token", "sep_token")
    )
    max_content = max_length - 2  # tokens between [CLS] and [SEP]
    lines, tokens, lengths = read_nonempty_lines(paths), [], []
    bar = progress_bar(None, "lines", desc="tokenize")
    while chunk := list(islice(lines, CHUNK_LINES)):
        chunk_tokens, chunk_lengths = [], []
        for line_tokens in tokenizer.encode_batch(chunk, add_special_tokens=False):
            for start in range(0, len(line_tokens), max_content):
                content = line_tokens[start : start + max_content]
                chunk_tokens += [cls_id, *content, sep_id]
                chunk_lengths.append(len(content) + 2)
        tokens.append(np.array(chunk_tokens, dtype=np.int32))
        lengths.append(np.array(chunk_lengths, dtype=np.int64))
        bar.update(len(chunk))
    bar.close()
    offsets = np.concatenate([[0], np.concatenate(lengths).cumsum()])
    return TokenizedCorpus(np.concatenate(tokens), offsets)


def held_out_split(corpus: TokenizedCorpus) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the sentences to train on, and of the held-out ones.

    Every 100th sentence is held out, of a long text fewer: MAX_HELD_OUT in all.
    Raises InputError if the corpus has fewer than two sentences.
    """
    N = len(corpus)
    if N < 2:
        raise InputError("the text is a single sentence: give more, because one part is held out for testing")
    every = max(round(1 / HELD_OUT_FRACTION), -(-N // MAX_HELD_OUT))
    indices = np.arange(N)
    return indices[indices % every != 0], indices[::every]


class PermutationSampler:
    """The sentences of each step: epoch after epoch a new permutation, which depends on the seed alone.

    indices: (N,) of the sentences to train on. sentences_per_step: the last step of an epoch may have fewer.
    """

    def __init__(self, indices: np.ndarray, sentences_per_step: int, seed: int):
        self.indices, self.sentences_per_step, self.seed = indices, sentences_per_step, seed
        self.steps_per_epoch = -(-len(indices) // sentences_per_step)
        self.cached: tuple[int, np.ndarray] | None = None  # an epoch and its permutation

    def step_indices(self, step: int) -> np.ndarray:
        """Return the indices of the sentences of a step; steps are counted from 0, through all epochs."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        if self.cached is None or self.cached[0] != epoch:
            self.cached = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.indices)
        start = step_in_epoch * self.sentences_per_step
        return self.cached[1][start : start + self.sentences_per_step]
