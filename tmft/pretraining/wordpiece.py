"""A vocabulary made from plain text, for pre-training from scratch."""

from collections import Counter
from pathlib import Path

from tokenizers import trainers

from tmft.checkpoints.tokenizers import BERT_UNCASED, SPECIAL_TOKENS, Tokenizer, bert_template, wordpiece
from tmft.errors import InputError
from tmft.pretraining.corpus import lines_of


def train_wordpiece(paths: list[Path], vocab_size: int) -> Tokenizer:
    """An uncased WordPiece vocabulary of at most vocab_size pieces from the lines of the files.

    Characters that make up less than a millionth of the text are left to [UNK]. The same text gives the same
    vocabulary: tokenizers numbers the letters inside of words by chance, and these numbers decide between
    pairs that are equally frequent; so the letters are given to it in a fixed order.
    """
    counts = Counter()
    for line in lines_of(paths):
        counts.update(BERT_UNCASED.normalize_str(line))
    del counts[" "]
    rare = counts.total() / 1e6
    letters = sorted(letter for letter, count in counts.items() if count >= rare)
    fixed = [*SPECIAL_TOKENS.values(), *letters, *("##" + letter for letter in letters)]
    if len(fixed) >= vocab_size:
        raise InputError(
            f"vocab_size {vocab_size}: the text has {len(letters)} different characters, which take "
            f"{len(fixed)} places; choose more, or clean the text",
            "vocab_size",
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=fixed, limit_alphabet=len(letters), show_progress=False
    )
    backend = wordpiece({"[UNK]": 0})
    backend.normalizer = BERT_UNCASED
    backend.train_from_iterator(lines_of(paths), trainer)

    vocabulary = backend.get_vocab()
    backend = wordpiece({piece: vocabulary[piece] for piece in sorted(vocabulary, key=vocabulary.get)})
    backend.normalizer = BERT_UNCASED
    backend.add_special_tokens([*SPECIAL_TOKENS.values()])
    backend.post_processor = bert_template(backend, "[CLS]", "[SEP]")
    return Tokenizer(backend, dict(SPECIAL_TOKENS))
