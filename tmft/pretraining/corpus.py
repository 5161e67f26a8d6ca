"""Plain text for pre-training: read as a stream, tokenised once, kept as one array, in the order of a seed.

One sentence or paragraph per line, UTF-8; .gz and .xz are decompressed while they are read. A million
sentences take some 100 MB here, as Python strings they would take several times that.
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

LINES_AT_A_TIME = 4096
HELD_OUT_SHARE, HELD_OUT_MOST = 0.01, 2000  # of the sentences; and no more than this many


@dataclass
class Sentences:
    """N tokenised sentences end to end: number s is tokens[offsets[s] : offsets[s + 1]].

    tokens: int32, [CLS] and [SEP] included, one per token; offsets: (N + 1,) int64.
    """

    tokens: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, which: np.ndarray) -> np.ndarray:
        """Number of tokens of each of the sentences `which`."""
        return self.offsets[which + 1] - self.offsets[which]

    def places(self, which: np.ndarray) -> np.ndarray:
        """Where in `tokens` the tokens of the sentences `which` are, sentence after sentence."""
        lengths = self.lengths(which)
        starts = lengths.cumsum() - lengths  # of each sentence among the places that are returned
        return np.repeat(self.offsets[which] - starts, lengths) + np.arange(lengths.sum())

    def take(self, which: np.ndarray) -> "Sentences":
        """The sentences `which`, in that order."""
        offsets = np.concatenate([[0], self.lengths(which).cumsum()])
        return Sentences(self.tokens[self.places(which)], offsets)


def lines_of(paths: list[Path]) -> Iterator[str]:
    """The lines of the files that are not empty, one after the other.

    Raises InputError if a file is missing, damaged, no text in UTF-8, or has no line.
    """
    for path in paths:
        found = False
        for line in read_lines(path):
            if line := line.strip():
                found = True
                yield line
        if not found:
            raise InputError(f"{path} has no text: name a file with a sentence or paragraph per line")


def tokenise(paths: list[Path], tokenizer: Tokenizer, max_length: int) -> Sentences:
    """The lines of the files as token ids; a line of more than max_length tokens is cut into several.

    Every piece gets its own [CLS] and [SEP]. Raises InputError as lines_of does.
    """
    first, last = (
        tokenizer.backend.token_to_id(tokenizer.special[key]) for key in ("cls_token", "sep_token")
    )
    room = max_length - 2
    lines, tokens, lengths = lines_of(paths), [], []
    bar = progress_bar(None, "lines", desc="tokenise")
    while chunk := list(islice(lines, LINES_AT_A_TIME)):
        ids, sizes = [], []
        for line in tokenizer.ids_of(chunk, special=False):
            for start in range(0, len(line), room):
                piece = line[start : start + room]
                ids += [first, *piece, last]
                sizes.append(len(piece) + 2)
        tokens.append(np.array(ids, dtype=np.int32))
        lengths.append(np.array(sizes, dtype=np.int64))
        bar.update(len(chunk))
    bar.close()
    offsets = np.concatenate([[0], np.concatenate(lengths).cumsum()])
    return Sentences(np.concatenate(tokens), offsets)


def hold_out(sentences: Sentences) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the sentences to train on, and of those kept aside: every 100th, or fewer of a long text.

    Raises InputError if there are fewer than two.
    """
    N = len(sentences)
    if N < 2:
        raise InputError("the text is a single sentence: give more, one part of it is kept aside for testing")
    every = max(round(1 / HELD_OUT_SHARE), -(-N // HELD_OUT_MOST))
    numbers = np.arange(N)
    return numbers[numbers % every != 0], numbers[::every]


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
