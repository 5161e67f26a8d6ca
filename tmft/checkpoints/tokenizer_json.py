"""Read a tokenizer.json of unknown origin, after checks that the tokenizers library does not make itself.

With some damaged files the library does not raise an error: it ends the process, or does not end. Known
causes are refused here: very long tokens, ids out of range, templates with tokens that they do not define,
damaged character maps. Other failures depend on the text and cannot be detected in the file; every call of
the library is therefore made inside `with reading(...)`.
"""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

import tokenizers
from tokenizers import normalizers

from tmft.checkpoints.sentencepiece import (
    MAX_PIECE_LENGTH,
    build_unigram_tokenizer,
    check_character_map,
    make_character_map_normalizer,
)
from tmft.checkpoints.tokenizer_config import TokenizerConfig
from tmft.errors import short_repr

MAX_TOKEN_ID = 10_000_000  # the largest vocab_size that a config.json may have
MAX_WORD_LENGTH = 1000  # characters of a word that WordPiece splits, in quadratic time; BERT has 100
MAX_PREPENDED = 100  # characters that a normalizer puts before each text; Llama has one
MAX_TEMPLATE_ITEMS = 100  # special tokens and texts in a template
MAX_EXPANSION = 100_000  # factor by which the replacements of a normalizer may lengthen a text


def read_tokenizer_json(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Return the tokenizer in a tokenizer.json, and the parsed content of the file."""
    text = path.read_text(encoding="utf-8")
    content = dict(json.loads(text))
    check_tokenizer_content(content)
    return tokenizers.Tokenizer.from_str(text), content


def check_tokenizer_content(content: dict[str, Any]) -> None:
    """Raise ValueError if the content of a tokenizer.json could make the library crash or hang."""
    if problem := next(find_crash_causes(content), ""):
        raise ValueError(problem)
    read_character_map(content)


def find_crash_causes(content: dict[str, Any]) -> Iterator[str]:
    """Yield a description of each thing in a tokenizer.json that would make the library crash or hang.

    Other mistakes are not looked for, because the library raises errors for them.
    """
    model = content.get("model")
    model = model if isinstance(model, dict) else {}
    vocabulary, merges = model.get("vocab"), model.get("merges")
    tokens = [entry[0] for entry in vocabulary if is_list(entry) and entry] if is_list(vocabulary) else []
    if isinstance(vocabulary, dict):
        tokens = list(vocabulary)
        if any(not (isinstance(id, int) and 0 <= id < MAX_TOKEN_ID) for id in vocabulary.values()):
            yield f"the id of a token is not from 0 to {MAX_TOKEN_ID}"
    if not tokens:
        yield "no vocabulary"
    if any(isinstance(token, str) and len(token) > MAX_PIECE_LENGTH for token in tokens):
        yield f"a token is longer than {MAX_PIECE_LENGTH} characters"
    max_word_length = model.get("max_input_chars_per_word")
    if isinstance(max_word_length, int) and max_word_length > MAX_WORD_LENGTH:
        yield f"max_input_chars_per_word is {short_repr(max_word_length)}, more than {MAX_WORD_LENGTH}"
    if prefix := model.get("continuing_subword_prefix"):
        for merge in merges if is_list(merges) else []:
            second = merge[-1] if is_list(merge) and merge else merge
            if not str(second).rpartition(" ")[2].startswith(str(prefix)):
                yield f"the second part of {short_repr(merge)} does not begin with {short_repr(prefix)}"
    if max_expansion(content.get("normalizer")) > MAX_EXPANSION:
        yield f"the normalizer may make a text {MAX_EXPANSION} times as long"
    for step in iter_objects([content.get(key) for key in ("normalizer", "pre_tokenizer", "post_processor")]):
        if step.get("type") == "TemplateProcessing":
            yield from find_template_problems(step)
        elif step.get("type") == "FixedLength" and step.get("length") == 0:
            yield "a FixedLength of 0"
        elif step.get("type") == "Prepend" and len(str(step.get("prepend"))) > MAX_PREPENDED:
            yield f"a Prepend of more than {MAX_PREPENDED} characters"


def find_template_problems(template: dict[str, Any]) -> Iterator[str]:
    """Yield a description of each problem in a post-processor of the type TemplateProcessing.

    template: the JSON object. Its keys single and pair are lists of {"SpecialToken": {"id": name}} and
    {"Sequence": {"id": "A"}}.
    """
    defined = template.get("special_tokens")
    defined = defined if isinstance(defined, dict) else {}
    for key in ("single", "pair"):
        if is_list(template.get(key)) and len(template[key]) > MAX_TEMPLATE_ITEMS:
            yield f"a template of {len(template[key])} items"
        for item in iter_objects(template.get(key)):
            kind = next(iter(item), "")
            id = item[kind].get("id") if isinstance(item.get(kind), dict) else None
            if kind == "SpecialToken" and isinstance(id, str) and id not in defined:
                yield f"the template adds {short_repr(id)}, which it does not define"
            if kind == "Sequence" and key == "single" and id != "A":
                yield f"the template for one text has a text {short_repr(id)}"


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


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether a JSON value is a list."""
    return isinstance(value, list)


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
    character_maps = [b""]
    for step in iter_objects(content.get("normalizer")):
        if step.get("type") == "Precompiled":
            character_maps.append(base64.b64decode(step["precompiled_charsmap"], validate=True))
    for character_map in character_maps:
        check_character_map(character_map)
    return character_maps[-1]


def unigram_tokenizer_from_json(
    backend: tokenizers.Tokenizer,
    content: dict[str, Any],
    config: TokenizerConfig,
    normalizer: Callable[
        [bytes, TokenizerConfig], normalizers.Normalizer | None
    ] = make_character_map_normalizer,
) -> tokenizers.Tokenizer:
    """Return a tokenizer built from the vocabulary and the character map of a tokenizer.json.

    backend: the tokenizer that the tokenizers library reads from it. content: the parsed file. normalizer:
    (character map, config) -> normalizer. The scores of the vocabulary are taken from `content`, because
    Python parses them exactly and the library does not. This decides between splits of equal probability:
    "-------" is either "---" and "----" or the other way round.
    """
    pieces, unk_id = list(map(tuple, content["model"]["vocab"])), content["model"].get("unk_id")
    prefix_space = config.flag("add_prefix_space", True)
    return build_unigram_tokenizer(
        pieces, unk_id, normalizer(read_character_map(content), config), prefix_space
    )
