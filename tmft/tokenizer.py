"""Tokenizer: sentences to token ids. tmft/checkpoints/tokenizers.py reads and writes its files."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from numbers import Integral

import tokenizers

from tmft.encoder import UNLIMITED_LENGTH
from tmft.errors import InputError, short_repr
from tmft.io.files import reading

UNCHANGED_CLASS = "PreTrainedTokenizerFast"  # the class of transformers that uses tokenizer.json unchanged


class Tokenizer:
    """Turn sentences into lists of token ids, with the special tokens of the model around them.

    backend: a tokenizers.Tokenizer; its padding and truncation are switched off.
    special_tokens: the special tokens by their usual names, such as {"cls_token": "[CLS]"}.
    max_length: the limit in tokens that the tokenizer's files state; None if they state none.
    add_special_tokens: False in static models; a text may then have no tokens at all.
    tokenizer_class: the transformers class that opens the saved files. Classes such as T5Tokenizer build the
    same tokenizer again from its vocabulary; PreTrainedTokenizerFast uses tokenizer.json as it is.
    truncation_side: "right" or "left", the side on which texts that are too long lose tokens. None means the
    direction in which the backend truncates, usually the right.

    The attribute pad_id is the id of the padding token, 0 if there is none.
    """

    backend: tokenizers.Tokenizer
    special_tokens: dict[str, str]
    max_length: int | None
    add_special_tokens: bool
    tokenizer_class: str
    truncation_side: str

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: dict[str, str],
        max_length: int | None = None,
        add_special_tokens: bool = True,
        tokenizer_class: str = UNCHANGED_CLASS,
        truncation_side: str | None = None,
    ):
        self.truncation_side = truncation_side or (backend.truncation or {}).get("direction", "right")
        if not add_special_tokens and backend.truncation:  # static models state their limit only here
            max_length = max_length or backend.truncation["max_length"]
        self.backend, self.special_tokens, self.max_length = backend, special_tokens, max_length
        self.add_special_tokens, self.tokenizer_class = add_special_tokens, tokenizer_class
        backend.no_padding()
        backend.no_truncation()
        pad_token = special_tokens.get("pad_token")
        self.pad_id: int = 0 if pad_token is None else backend.token_to_id(pad_token) or 0

    def __call__(
        self, sentences: list[str], max_length: int, suffix_length: int | None = None
    ) -> tuple[list[list[int]], int]:
        """Return the token ids of each sentence, and how many of the sentences were truncated.

        If a sentence has more than max_length tokens, its last suffix_length tokens are kept, and tokens
        before these are removed. suffix_length None means the number of special tokens that are added after
        a sentence, such as [SEP] or </s>. If texts are truncated on the left, the first tokens after the
        special tokens before a sentence are removed instead.
        """
        token_ids = self.encode_batch(sentences, add_special_tokens=self.add_special_tokens)
        too_long = [index for index, ids in enumerate(token_ids) if len(ids) > max_length]
        if not too_long:
            return token_ids, 0
        num_before, num_after = self.num_special_tokens
        if self.truncation_side == "left":
            suffix_length = max_length - num_before
        elif suffix_length is None:
            suffix_length = num_after
        for index in too_long:
            ids = token_ids[index]
            token_ids[index] = ids[: max_length - suffix_length] + ids[len(ids) - suffix_length :]
        return token_ids, len(too_long)

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Return the token ids of each of the texts, without truncation.

        add_special_tokens: whether to add tokens such as [CLS] and [SEP] around each text.
        Raises InputError if the tokenizer's own files make it fail on a text.
        """
        with reading("a text", "check the text, or restore the files of the tokenizer"):
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
            return [encoding.ids for encoding in encodings]

    @property
    def vocabulary(self) -> list[str]:
        """All tokens in the order of their ids; an id n without a token is called "[n]"."""
        token_by_id = {id: token for token, id in self.backend.get_vocab().items()}
        return [token_by_id.get(id, f"[{id}]") for id in range(max(token_by_id) + 1)]

    @cached_property
    def num_special_tokens(self) -> tuple[int, int]:
        """How many special tokens are added before and after a sentence."""
        if not self.add_special_tokens:
            return 0, 0
        for text in ("a", "1", ".", "A"):
            (ids,), (all_ids,) = (self.encode_batch([text], add) for add in (False, True))
            for before in range(len(all_ids) - len(ids) + 1):
                if ids and all_ids[before : before + len(ids)] == ids:
                    return before, len(all_ids) - len(ids) - before
        added = self.backend.num_special_tokens_to_add(False)  # no text has tokens of its own: assume [CLS]
        before = min(added, int("cls_token" in self.special_tokens))
        return before, added - before


def check_vocab_size(tokenizer: Tokenizer, vocab_size: int, source: str) -> None:
    """Raise InputError if the tokenizer has ids of vocab_size or more.

    vocab_size: the number of word embeddings of the encoder. source: the checkpoint, for the message.
    """
    largest_id = max(tokenizer.backend.get_vocab().values())
    if largest_id >= vocab_size:
        raise InputError(
            f"the tokenizer gives ids up to {largest_id}, the embedding table has {vocab_size} rows "
            f"({source}): the two are not of one checkpoint"
        )


def resolve_max_length(tokenizer: Tokenizer, max_length: int | None, limit: int, default: int) -> int:
    """Return the number of tokens to which sentences are truncated.

    max_length: the number that the user chose. None means the limit in the tokenizer's files, or `default` if
    they state none, but at most `limit`. limit: the largest number of tokens that the encoder can process.
    Raises InputError if max_length is above `limit`, or leaves no room for a word between special tokens.
    """
    if max_length is None:
        max_length = min(limit, tokenizer.max_length or default)
    if not (isinstance(max_length, Integral) and 3 <= max_length <= limit):
        reason = ", the number of position embeddings" if limit < UNLIMITED_LENGTH else ""
        raise InputError(f"max_length {max_length}: choose 3 to {limit}{reason}", "max_length")
    return max_length


def check_is_list(sentences: Iterable[str]) -> None:
    """Raise TypeError for one text, a table, a set or a number in place of a list of sentences.

    Python iterates over the letters of a text, and of a table, a dict or a Dataset with several splits over
    the names of its parts, which nobody means as sentences.
    """
    kind = type(sentences).__name__
    if isinstance(sentences, str):
        raise TypeError("a list of sentences is expected, not one string: write [sentence]")
    if isinstance(sentences, bytes | bytearray | memoryview):
        raise TypeError(f"a list of sentences is expected, not {kind}: write [sentence.decode()]")
    if isinstance(sentences, Mapping) or hasattr(sentences, "columns"):
        raise TypeError(f"a list of sentences is expected, not a {kind}: give one column or value, as a list")
    if isinstance(sentences, set | frozenset):
        raise TypeError(f"a list of sentences is expected, not a {kind}, which has no order: sort it")
    if not isinstance(sentences, Iterable):
        raise TypeError(f"a list of sentences is expected, not {kind}: give a list of strings")


def check_sentences(sentences: Iterable[str]) -> list[str]:
    """Return the sentences as a list.

    Raises TypeError for what is no list of strings, see check_is_list, and InputError for half a character (a
    surrogate of UTF-16 without its other half, which UTF-8 cannot encode).
    """
    check_is_list(sentences)
    sentences = list(sentences)
    for index, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            kind = type(sentence).__name__
            raise TypeError(f"sentence {index} is {str(sentence)[:40]!r}, of type {kind}: give strings")
        try:
            sentence.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"sentence {index} ({short_repr(sentence)}) has half a character (a surrogate): decode "
                "the text again, such as with errors='replace'"
            ) from None
    return sentences
