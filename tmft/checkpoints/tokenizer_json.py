"""Read a tokenizer.json of unknown origin, after checks that the tokenizers library does not make itself.

With some damaged files the library does not raise an error: it ends the process, or does not end. These are
refused here. All other damage is an error or a panic of the library, when the file is read or when it is used
on a text: every call of the library is made inside `with reading(...)`, so it is one line as well.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from tmft.checkpoints.sentencepiece import (
    MAX_PIECE_LENGTH,
    build_unigram_tokenizer,
    check_character_map,
    make_character_map_normalizer,
)
from tmft.checkpoints.tokenizer_config import TokenizerConfig
from tmft.errors import short_repr

MAX_WORD_LENGTH = 1000  # characters of a word that WordPiece splits, in quadratic time; BERT has 100
MAX_EXPANSION = 100_000  # factor by which the replacements of a normalizer may lengthen a text


def read_tokenizer_json(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Return the tokenizer in a tokenizer.json, and the parsed content of the file."""
    text = path.read_text(encoding="utf-8")
    content = dict(json.loads(text))
    check_tokenizer_content(content)
    return tokenizers.Tokenizer.from_str(text), content


def check_tokenizer_content(content: dict[str, Any]) -> None:
    """Raise ValueError if the content of a tokenizer.json could make the library crash or hang."""
    model = content.get("model")
    model = model if isinstance(model, dict) else {}
    vocabulary = model.get("vocab")
    entries = vocabulary if isinstance(vocabulary, (dict, list)) else []
    tokens = [entry[0] if isinstance(entry, list) and entry else entry for entry in entries]
    max_word_length = model.get("max_input_chars_per_word")
    if not tokens:
        raise ValueError("no vocabulary")
    if any(isinstance(token, str) and len(token) > MAX_PIECE_LENGTH for token in tokens):
        raise ValueError(f"a token is longer than {MAX_PIECE_LENGTH} characters")
    if isinstance(max_word_length, int) and max_word_length > MAX_WORD_LENGTH:
        problem = f"max_input_chars_per_word is {short_repr(max_word_length)}"
        raise ValueError(f"{problem}, more than {MAX_WORD_LENGTH}")
    if max_expansion(content.get("normalizer")) > MAX_EXPANSION:
        raise ValueError(f"the normalizer may make a text {MAX_EXPANSION} times as long")
    read_character_map(content)


def max_expansion(normalizer: object) -> int:
    """Return an upper bound of how many characters a normalizer can make of a single one.

    normalizer: the JSON value. The function goes from the last replacement to the first, and computes how
    many characters each character can become in the steps from there on. It assumes that a regular expression
    can match any character, and that a step that is not a replacement can turn any character into any other.
    """
    # how many characters each of some characters can become, and each of all other characters
    expansion: dict[str, int] = {}
    expansion_of_others = 1
    for step in iter_objects(normalizer):  # the last one first
        pattern, replacement = step.get("pattern"), step.get("content")
        if step.get("type") == "Replace" and isinstance(pattern, dict) and isinstance(replacement, str):
            added = sum(expansion.get(character, expansion_of_others) for character in replacement)
            text = pattern.get("String")
            if isinstance(text, str) and text:
                expansion[text[0]] = expansion.get(text[0], expansion_of_others) + added
            else:
                expansion = {character: n + added for character, n in expansion.items()}
                expansion_of_others += added
        elif "type" in step and step["type"] != "Sequence":
            expansion, expansion_of_others = {}, max([expansion_of_others, *expansion.values()])
        if expansion_of_others > MAX_EXPANSION:
            break
    return max([expansion_of_others, *expansion.values()])


def iter_objects(content: object) -> Iterator[dict[str, Any]]:
    """Yield every object in content, a JSON value, before the objects in it; later items of a list first."""
    stack = [content]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
            stack += value.values()
        elif isinstance(value, list):
            stack += value


def read_character_map(content: dict[str, Any]) -> bytes:
    """Return the last character map in the normalizer of a tokenizer.json; b"" if it has none."""
    character_map = b""
    for step in iter_objects(content.get("normalizer")):
        if step.get("type") == "Precompiled":
            character_map = base64.b64decode(step["precompiled_charsmap"], validate=True)
            check_character_map(character_map)
    return character_map


def unigram_tokenizer_from_json(
    backend: tokenizers.Tokenizer, content: dict[str, Any], config: TokenizerConfig
) -> tokenizers.Tokenizer:
    """Return a tokenizer built from the vocabulary and the character map of a tokenizer.json.

    backend: the tokenizer that the tokenizers library reads from it. content: the parsed file. The scores of
    the vocabulary are taken from `content`, because Python parses them exactly and the library does not. This
    decides between splits of equal probability: "-------" is either "---" and "----" or the other way round.
    """
    pieces, unk_id = list(map(tuple, content["model"]["vocab"])), content["model"].get("unk_id")
    normalizer = make_character_map_normalizer(read_character_map(content))
    return build_unigram_tokenizer(pieces, unk_id, normalizer, config.flag("add_prefix_space", True))
