"""A stranger's tokenizer.json, looked at before the tokenizers library sees it; and what that says later.

At some files the library raises no error: it panics, which `except Exception` does not see, or it ends the
process. What is known to do so is refused here: a piece of a million letters, numbers that no table has, a
template that puts in what it does not name, a damaged character map. What depends on the text, such as a
regular expression that takes too long, cannot be known before: library_errors is around every call.
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tokenizers

from tmft.checkpoints.sentencepiece import LONGEST, check_character_map, t5_unigram
from tmft.errors import InputError, short
from tmft.io.atomic import read_json, reason

MOST = 10_000_000  # ids: as many words as a config.json may say
LONGEST_WORD = 1000  # letters that WordPiece looks for in all ways to cut them: BERT's has 100
LONGEST_TEMPLATE = 100  # parts that are put around a text, or are it
GROWTH = 100_000  # times as long as it was: what the replacements of a normalizer may make of a text


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """An error or a panic of the tokenizers library becomes an InputError; what: whose it is.

    It raises Exception itself, and a PanicException, which is none. All other errors are not its own."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what} ({reason(error)}): restore the file") from None


def read_tokenizer_json(path: Path) -> tuple[tokenizers.Tokenizer, dict]:
    """-> the tokenizer, and the file's content. Raises InputError if it is none."""
    content = read_json(path)
    if wrong := next(mistakes(content, path), ""):
        raise InputError(f"{path} is not a tokenizer ({wrong}): restore the file")
    with library_errors(f"{path} is not a tokenizer"):
        return tokenizers.Tokenizer.from_file(str(path)), content


def mistakes(content: dict, path: Path) -> Iterator[str]:
    """What the library would panic at, or crash. Of any other mistake it says itself what it is."""
    model = content.get("model")
    model = model if isinstance(model, dict) else {}
    vocabulary, merges = model.get("vocab"), model.get("merges")
    words = [entry[0] for entry in vocabulary if is_list(entry) and entry] if is_list(vocabulary) else []
    if isinstance(vocabulary, dict):
        words = vocabulary
        if any(not (isinstance(id, int) and 0 <= id < MOST) for id in vocabulary.values()):
            yield f"a number of a word is not from 0 to {MOST}"
    if not words:
        yield "no vocabulary"
    if any(isinstance(word, str) and len(word) > LONGEST for word in words):
        yield f"a word is longer than {LONGEST} letters"
    letters = model.get("max_input_chars_per_word")
    if isinstance(letters, int) and letters > LONGEST_WORD:
        yield f"max_input_chars_per_word is {short(letters)}, more than {LONGEST_WORD}"
    if prefix := model.get("continuing_subword_prefix"):
        for merge in merges if is_list(merges) else []:
            second = merge[-1] if is_list(merge) and merge else merge
            if not str(second).rpartition(" ")[2].startswith(str(prefix)):
                yield f"the second of {short(merge)} begins without {short(prefix)}"
    if growth(content.get("normalizer")) > GROWTH:
        yield f"the normalizer may make a text {GROWTH} times as long"
    for part in objects([content.get(key) for key in ("normalizer", "pre_tokenizer", "post_processor")]):
        if part.get("type") == "TemplateProcessing":
            yield from mistakes_of_template(part)
        elif part.get("type") == "FixedLength" and part.get("length") == 0:
            yield "a FixedLength of 0"
    map_of(content, path)


def mistakes_of_template(template: dict) -> Iterator[str]:
    """single and pair: lists of {"SpecialToken": {"id": name}} and {"Sequence": {"id": "A"}}."""
    named = template.get("special_tokens")
    named = named if isinstance(named, dict) else {}
    for key in ("single", "pair"):
        if is_list(template.get(key)) and len(template[key]) > LONGEST_TEMPLATE:
            yield f"a template of {len(template[key])} parts"
        for part in objects(template.get(key)):
            kind = next(iter(part), "")
            id = part[kind].get("id") if isinstance(part.get(kind), dict) else None
            if kind == "SpecialToken" and isinstance(id, str) and id not in named:
                yield f"the template puts in {short(id)}, which it does not name"
            if kind == "Sequence" and key == "single" and id != "A":
                yield f"the template of one text has a text {short(id)}"


def growth(normalizer: object) -> int:
    """A bound of how many letters become of one, by all replacements one after the other.

    From the last step to the first: what becomes of each letter from there on. A regular expression may match
    at any letter; what is no replacement may make any letter of any other."""
    becomes, rest = {}, 1  # of some letters; of all others
    for part in objects(normalizer):  # the last one first
        pattern, content = part.get("pattern"), part.get("content")
        if part.get("type") == "Replace" and isinstance(pattern, dict) and isinstance(content, str):
            more = sum(becomes.get(letter, rest) for letter in content)
            text = pattern.get("String")
            if isinstance(text, str) and text:
                becomes[text[0]] = becomes.get(text[0], rest) + more
            else:
                becomes, rest = {letter: n + more for letter, n in becomes.items()}, rest + more
        elif "type" in part and part["type"] != "Sequence":
            becomes, rest = {}, max([rest, *becomes.values()])
        if rest > GROWTH:
            break
    return max([rest, *becomes.values()])


def is_list(value: object) -> bool:
    return isinstance(value, list)


def objects(content: object) -> Iterator[dict]:
    """Every object in a JSON value, before those in it; the last of a list or an object first."""
    left = [content]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
            left += value.values()
        elif isinstance(value, list):
            left += value


def map_of(content: dict, path: Path) -> bytes:
    """The character map in a tokenizer.json, b"" for none; InputError if it is damaged, or another one is."""
    maps = [b""]
    for part in objects(content.get("normalizer")):
        if part.get("type") == "Precompiled":
            try:
                maps.append(base64.b64decode(part["precompiled_charsmap"], validate=True))
            except (KeyError, TypeError, ValueError):
                maps.append(b"damaged")
    return [check_character_map(data, path) for data in maps][-1]


def t5_from_json(content: dict, path: Path, as_it_is: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A T5's tokenizer of the vocabulary, the character map and the added tokens of a tokenizer.json.

    Python reads its scores to the last digit and tokenizers does not, which decides between cuts of equal
    probability: ------- is --- and ---- or the other way round.
    """
    pieces, unk_id = content["model"]["vocab"], content["model"].get("unk_id")
    backend = t5_unigram(list(map(tuple, pieces)), unk_id, map_of(content, path))
    backend.add_tokens([token for _, token in sorted(as_it_is.get_added_tokens_decoder().items())])
    return backend
