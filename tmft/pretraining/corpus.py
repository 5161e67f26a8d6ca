"""Plain text for pre-training: read as a stream, tokenised once, kept as one long array of token ids.

One sentence or paragraph per line, UTF-8; .gz and .xz are decompressed while they are read. A million
sentences take some 100 MB here, as Python strings they would take several times that.
"""

import gzip
import lzma
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import trainers
from tqdm import tqdm

from tmft.errors import InputError
from tmft.files.tokenizer import BERT_UNCASED, SPECIAL_TOKENS, Tokenizer, bert_template, wordpiece
from tmft.files.weights import one_line

OPEN = {".gz": gzip.open, ".xz": lzma.open}
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


def read_lines(paths: list[Path]) -> Iterator[str]:
    """The lines of the files that are not empty, one after the other.

    Raises InputError if a file is missing, damaged, no text in UTF-8, or has no line.
    """
    for path in paths:
        found = False
        try:
            with OPEN.get(path.suffix, open)(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    if "\0" in line:
                        raise InputError(f"{path} is not plain text: it has zero bytes; name a text file")
                    if line := line.strip():
                        found = True
                        yield line
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path} is not text in UTF-8 ({one_line(error)}): convert it, or name another"
            ) from None
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise InputError(
                f"{path} cannot be read ({one_line(error)}): check the name and the file"
            ) from None
        if not found:
            raise InputError(f"{path} has no text: name a file with a sentence or paragraph per line")


def tokenise(paths: list[Path], tokenizer: Tokenizer, max_length: int, progress: bool = False) -> Sentences:
    """The lines of the files as token ids; a line of more than max_length tokens is cut into several.

    Every piece gets its own [CLS] and [SEP]. Raises InputError as read_lines does.
    """
    first, last = (
        tokenizer.backend.token_to_id(tokenizer.special[key]) for key in ("cls_token", "sep_token")
    )
    room = max_length - 2
    lines, tokens, lengths = read_lines(paths), [], []
    bar = tqdm(desc="tokenise", unit=" lines", leave=False, disable=not progress)
    while chunk := list(islice(lines, LINES_AT_A_TIME)):
        ids, sizes = [], []
        for encoding in tokenizer.backend.encode_batch_fast(chunk, add_special_tokens=False):
            line = encoding.ids
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


def train_wordpiece(paths: list[Path], vocab_size: int) -> Tokenizer:
    """An uncased WordPiece vocabulary of at most vocab_size pieces from the lines of the files.

    Characters that make up less than a millionth of the text are left to [UNK]. The same text gives the same
    vocabulary: tokenizers numbers the letters inside of words by chance, and these numbers decide between
    pairs that are equally frequent; so the letters are given to it in a fixed order.
    """
    counts = Counter()
    for line in read_lines(paths):
        counts.update(BERT_UNCASED.normalize_str(line))
    del counts[" "]
    rare = counts.total() / 1e6
    letters = sorted(letter for letter, count in counts.items() if count >= rare)
    fixed = [*SPECIAL_TOKENS.values(), *letters, *("##" + letter for letter in letters)]
    if len(fixed) >= vocab_size:
        raise InputError(
            f"--vocab-size {vocab_size}: the text has {len(letters)} different characters, which take "
            f"{len(fixed)} places; choose more, or clean the text"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=fixed, limit_alphabet=len(letters), show_progress=False
    )
    backend = wordpiece({"[UNK]": 0})
    backend.normalizer = BERT_UNCASED
    backend.train_from_iterator(read_lines(paths), trainer)

    vocabulary = backend.get_vocab()
    backend = wordpiece({piece: vocabulary[piece] for piece in sorted(vocabulary, key=vocabulary.get)})
    backend.normalizer = BERT_UNCASED
    backend.add_special_tokens([*SPECIAL_TOKENS.values()])
    backend.post_processor = bert_template(backend, "[CLS]", "[SEP]")
    return Tokenizer(backend, dict(SPECIAL_TOKENS))
