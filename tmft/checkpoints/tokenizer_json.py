"""Read a tokenizer.json.

A damaged file is an error or a panic of the tokenizers library, when the file is read or when it is used on a
text: every call of the library is made inside `with reading(...)`, so it is one line.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from tmft.checkpoints.sentencepiece import build_unigram_tokenizer, make_character_map_normalizer
from tmft.checkpoints.tokenizer_config import TokenizerConfig


def read_tokenizer_json(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Return the tokenizer in a tokenizer.json, and the parsed content of the file."""
    text = path.read_text(encoding="utf-8")
    return tokenizers.Tokenizer.from_str(text), dict(json.loads(text))


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
