"""Plain text for pre-training: read files, train a vocabulary, tokenize once into one array, draw sentences.

A file has one sentence or paragraph per line, in UTF-8; .gz and .xz are decompressed while they are read. The
lines are not kept, only their token ids. Letter in this file: N sentences.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import trainers

from tmft.checkpoints.tokenizer_kinds import BERT_UNCASED, TOKENIZER_KINDS, wordpiece_tokenizer
from tmft.device import progress_bar
from tmft.errors import InputError
from tmft.io.text import read_lines
from tmft.packing import TokenizedCorpus
from tmft.tokenizer import Tokenizer

CHUNK_LINES = 4096  # lines that are tokenized at a time
HELD_OUT_FRACTION = 0.01
MAX_HELD_OUT = 2000  # maximum number of held-out sentences


def read_nonempty_lines(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of all files `paths` that are not empty, without surrounding white space.

    Raises InputError if a file is missing or damaged, is not text in UTF-8, or has only empty lines.
    """
    for path in paths:
        is_empty = True
        for line in read_lines(path):
            if line := line.strip():
                is_empty = False
                yield line
        if is_empty:
            raise InputError(f"{path} has no text: name a file with a sentence or paragraph per line")


def train_wordpiece(paths: Sequence[Path], vocab_size: int) -> Tokenizer:
    """Train an uncased WordPiece vocabulary of at most vocab_size tokens on the lines of the files `paths`.

    Returns a tokenizer with this vocabulary and BERT's special tokens. Characters that make up less than a
    millionth of the text are left out and become [UNK]. The same text always gives the same vocabulary. For
    that, the characters are passed to the tokenizers library in a fixed order: it would number them randomly,
    and these numbers decide which of two equally frequent pairs is merged first. Raises InputError if the
    text has more characters than vocab_size allows.
    """
    kind = TOKENIZER_KINDS["bert"]
    counts: Counter[str] = Counter()
    for line in read_nonempty_lines(paths):
        counts.update(BERT_UNCASED.normalize_str(line))
    del counts[" "]
    min_count = counts.total() / 1e6
    characters = sorted(character for character, count in counts.items() if count >= min_count)
    fixed = [*kind.special_tokens.values(), *characters, *("##" + character for character in characters)]
    if len(fixed) >= vocab_size:
        raise InputError(
            f"vocab_size {vocab_size}: the text has {len(characters)} different characters, which need "
            f"{len(fixed)} tokens; choose a larger vocab_size, or clean the text",
            "vocab_size",
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=fixed, limit_alphabet=len(characters), show_progress=False
    )
    backend = wordpiece_tokenizer({"[UNK]": 0})
    backend.normalizer = BERT_UNCASED
    backend.train_from_iterator(read_nonempty_lines(paths), trainer)

    vocabulary = backend.get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    backend = wordpiece_tokenizer({token: vocabulary[token] for token in tokens})
    backend.normalizer = BERT_UNCASED
    backend.add_special_tokens([*kind.special_tokens.values()])
    backend.post_processor = kind.post_processor(backend, kind.special_tokens)
    return Tokenizer(backend, dict(kind.special_tokens))


def tokenize_files(paths: Sequence[Path], tokenizer: Tokenizer, max_length: int) -> TokenizedCorpus:
    """Tokenize the lines of all files `paths`; each sentence gets [CLS] and [SEP].

    A line of more than max_length tokens, with [CLS] and [SEP], is split into several sentences. Raises
    InputError for a file that `read_nonempty_lines` refuses.
    """
    cls_id, sep_id = (
        tokenizer.backend.token_to_id(tokenizer.special_tokens[key]) for key in ("cls_token", "sep_token")
    )
    max_content = max_length - 2  # tokens between [CLS] and [SEP]
    lines = read_nonempty_lines(paths)

    def tokenized_blocks() -> Iterator[Iterator[list[Any]]]:
        with progress_bar(None, "lines", desc="tokenize") as bar:
            while block := list(islice(lines, CHUNK_LINES)):
                yield (
                    [cls_id, *line_tokens[start : start + max_content], sep_id]
                    for line_tokens in tokenizer.encode_batch(block, add_special_tokens=False)
                    for start in range(0, len(line_tokens), max_content)
                )
                bar.update(len(block))

    return TokenizedCorpus.from_blocks(tokenized_blocks())


def held_out_split(corpus: TokenizedCorpus) -> tuple[np.ndarray, np.ndarray]:
    """Split the sentences of a corpus: return the indices for training and the indices of held-out sentences.

    Every 100th distinct sentence is held out, once; in a long text fewer, so that there are at most
    MAX_HELD_OUT. None of those for training is equal to one that is held out.
    Raises InputError if the corpus has fewer than two distinct sentences.
    """
    numbers = corpus.distinct()[1]  # (N,), of each sentence among the distinct ones
    first = np.unique(numbers, return_index=True)[1]  # where each of them occurs first
    if len(first) < 2:
        problem = "the text has fewer than two different sentences"
        raise InputError(f"{problem}: give more, because one part is held out for testing")
    every = max(round(1 / HELD_OUT_FRACTION), -(-len(first) // MAX_HELD_OUT))
    return np.flatnonzero(numbers % every != 0), first[::every]
