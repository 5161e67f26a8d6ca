"""Read the settings of a tokenizer: tokenizer_config.json and the two files that older repositories have.

Each special token of a tokenizer has a name, such as pad_token, and a text, such as [PAD].
tokenizer_config.json has both. Old repositories have them in special_tokens_map.json, and give the ids of
tokens that were added to the vocabulary in added_tokens.json. Both files are ignored, as in transformers, if
tokenizer_config.json has the key added_tokens_decoder, which says the same and more.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from tmft.checkpoints.model_folder import TOKENIZER_CONFIG_FILES, ModelFolder
from tmft.errors import InputError, reading, short_repr
from tmft.io.json_values import get_typed, is_utf8_string

TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
MAX_TOKEN_LENGTH = 10_000  # characters


@dataclass(frozen=True)
class TokenizerConfig:
    """What the settings of a tokenizer say. Each field is explained by a comment."""

    content: dict[str, Any]  # tokenizer_config.json, {} if there is none
    path: Path  # the path of tokenizer_config.json, for messages
    # The special tokens that the files state, by name: {"pad_token": "[PAD]"}.
    special_tokens: dict[str, str] = field(default_factory=dict)
    # Those of them for which the files state options (such as lstrip: spaces before the token belong to it).
    token_options: dict[str, AddedToken] = field(default_factory=dict)
    # The tokens that were added to the vocabulary, in the order of their ids.
    added_tokens: tuple[AddedToken, ...] = ()
    is_complete: bool = False  # whether added_tokens also has those that tokenizer.json states
    class_name: str = ""  # the class of transformers that opens the tokenizer, without "Fast"; '' if unknown
    model_type: str = ""  # the model_type in config.json; '' if there is none

    def flag(self, key: str, default: bool) -> bool:
        """Return whether a key of tokenizer_config.json is true; `default` if it is absent or null."""
        value = self.content.get(key)
        return default if value is None else bool(value)

    @property
    def max_length(self) -> int | None:
        """The limit in tokens that the file states; None if it states none."""
        limits = [self.content.get(key) for key in ("model_max_length", "max_len")]  # max_len: in old files
        limits = [int(limit) for limit in limits if isinstance(limit, (int, float)) and 0 < limit < 1e9]
        return next(iter(limits), None)


def read_tokenizer_config(folder: ModelFolder) -> TokenizerConfig:
    """Return the settings of the tokenizer in a folder. Raises InputError if one of the files is damaged."""
    config_name, map_name, added_name = map(folder.in_encoder, TOKENIZER_CONFIG_FILES)
    content, model_config = folder.read_json(config_name), folder.read_json(folder.in_encoder("config.json"))
    with reading(folder.path / config_name):
        get_typed(content, "strip_accents", bool)
        if get_typed(content, "split_special_tokens", bool):
            raise InputError(
                f"{folder.path / config_name} has split_special_tokens true: special tokens in a text are "
                "always found here, set it to false"
            )
        tokens_by_key = {key: read_token(content.get(key)) for key in TOKEN_KEYS}
        decoder = content.get("added_tokens_decoder")
        is_complete = isinstance(decoder, dict)
        added = read_added_tokens_decoder(decoder) if isinstance(decoder, dict) else []
    if not is_complete:
        with reading(folder.path / map_name):
            token_map = folder.read_json(map_name)
            tokens_by_key |= {key: read_token(token_map[key]) for key in TOKEN_KEYS if key in token_map}
        with reading(folder.path / added_name):
            special_tokens = {str(token) for token in tokens_by_key.values()}
            added = read_added_tokens(folder.read_json(added_name), special_tokens)
    class_name = content.get("tokenizer_class") or model_config.get("tokenizer_class")
    model_type = model_config.get("model_type")
    return TokenizerConfig(
        content=content,
        path=folder.path / config_name,
        special_tokens={key: str(token) for key, token in tokens_by_key.items() if token},
        token_options={key: token for key, token in tokens_by_key.items() if isinstance(token, AddedToken)},
        added_tokens=tuple(added),
        is_complete=is_complete,
        class_name=class_name.removesuffix("Fast") if isinstance(class_name, str) else "",
        model_type=model_type if isinstance(model_type, str) else "",
    )


def read_token(value: object, special: bool = True) -> str | AddedToken | None:
    """Return a special token as a file states it: a text, or an object with the text and its options.

    special: the default of its option special. Returns None if the value is null or an empty text.
    """
    if value is None or value == "":
        return None
    content = value.get("content") if isinstance(value, dict) else value
    if not (is_utf8_string(content) and 0 < len(content) <= MAX_TOKEN_LENGTH):
        raise ValueError(f"{short_repr(value)} is no token")
    if not isinstance(value, dict):
        return content
    options = {flag: get_typed(value, flag, bool) for flag in TOKEN_FLAGS}
    options = {"special": special} | {flag: is_set for flag, is_set in options.items() if is_set is not None}
    return AddedToken(content, **options)


def read_added_tokens_decoder(decoder: dict[str, Any]) -> list[AddedToken]:
    """Return the tokens of an added_tokens_decoder, {id as a string: object}, in the order of their ids."""
    tokens = {int(id): read_token(dict(value), special=False) for id, value in decoder.items()}
    return [token for _, token in sorted(tokens.items()) if isinstance(token, AddedToken)]


def read_added_tokens(ids: dict[str, Any], special_tokens: set[str]) -> list[AddedToken]:
    """Return the tokens in an added_tokens.json, {token: id}, in the order of their ids.

    special_tokens: the texts of the special tokens.
    """
    for token, id in ids.items():
        if type(id) is not int or read_token(token) is None:
            raise ValueError(f"{short_repr({token: id})} is no token with its id")
    return [
        AddedToken(token, special=token in special_tokens, normalized=token not in special_tokens)
        for token in sorted(ids, key=lambda token: ids[token])
    ]
