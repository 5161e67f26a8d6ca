"""Train a WordPiece vocabulary on plain text, for pre-training from scratch."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tokenizers import trainers

from tmft.checkpoints.tokenizer_kinds import BERT_UNCASED, TOKENIZER_KINDS, wordpiece_tokenizer
from tmft.checkpoints.tokenizers import Tokenizer
from tmft.errors import InputError
from tmft.pretraining.corpus import read_nonempty_lines


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
