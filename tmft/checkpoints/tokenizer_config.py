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
from tmft.errors import InputError, short_repr
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
    """Return the settings of the tokenizer in a folder.

    Raises InputError if one of the files cannot be read, or if a value has the wrong type.
    """
    names = [folder.in_encoder(name) for name in TOKENIZER_CONFIG_FILES]
    path, map_path, added_path = (folder.path / name for name in names)
    content, model_config = folder.read_json(names[0]), folder.read_json(folder.in_encoder("config.json"))
    get_typed(content, "strip_accents", bool, path)
    if get_typed(content, "split_special_tokens", bool, path):
        raise InputError(
            f"{path} has split_special_tokens true: special tokens in a text are always found here, "
            "set it to false"
        )
    tokens_by_key = {key: read_token(content.get(key), key, path) for key in TOKEN_KEYS}
    if is_complete := isinstance(content.get("added_tokens_decoder"), dict):
        added = read_added_tokens_decoder(content["added_tokens_decoder"], path)
    else:
        token_map = folder.read_json(names[1])
        tokens_by_key |= {
            key: read_token(token_map[key], key, map_path) for key in TOKEN_KEYS if key in token_map
        }
        special = {str(token) for token in tokens_by_key.values()}
        added = read_added_tokens(folder.read_json(names[2]), special, added_path)
    options = {key: token for key, token in tokens_by_key.items() if isinstance(token, AddedToken)}
    class_name = content.get("tokenizer_class") or model_config.get("tokenizer_class")
    model_type = model_config.get("model_type")
    return TokenizerConfig(
        content=content,
        path=path,
        special_tokens={key: str(token) for key, token in tokens_by_key.items() if token},
        token_options=options,
        added_tokens=tuple(added),
        is_complete=is_complete,
        class_name=class_name.removesuffix("Fast") if isinstance(class_name, str) else "",
        model_type=model_type if isinstance(model_type, str) else "",
    )


def read_token(value: object, key: str, path: Path) -> str | AddedToken | None:
    """Return a special token as a file states it: a text, or an object with the text and its options.

    value: the JSON value. key, path: where the value is, for the message. Returns None if it is null or an
    empty text. Raises InputError if it is anything else.
    """
    if value is None or value == "":
        return None
    if isinstance(value, dict):
        return added_token(value, key, path)
    if not is_utf8_string(value):
        raise InputError(f"{path} has {key} {short_repr(value)}: expected a text")
    return value


def added_token(value: dict[str, Any], key: str, path: Path, special: bool = True) -> AddedToken:
    """Return the token that a JSON object describes.

    value: the object, with the text under "content". key, path: the place of the object, for the message.
    special: the default of its option special. Raises InputError if the text is missing or too long.
    """
    content = value.get("content")
    if not (is_utf8_string(content) and 0 < len(content) <= MAX_TOKEN_LENGTH):
        raise InputError(f"{path} has {key} {short_repr(value)}: expected a text")
    options = {flag: get_typed(value, flag, bool, path) for flag in TOKEN_FLAGS}
    options = {"special": special} | {flag: is_set for flag, is_set in options.items() if is_set is not None}
    return AddedToken(content, **options)


def read_added_tokens_decoder(decoder: dict[str, Any], path: Path) -> list[AddedToken]:
    """Return the tokens in the added_tokens_decoder of a tokenizer_config.json, in the order of their ids.

    decoder: {id as a string: the JSON object of the token}. path: the file, for messages.
    Raises InputError if it has anything else.
    """
    tokens = {}
    for id, value in decoder.items():
        if not (id.isascii() and id.isdigit() and len(id) < 9 and isinstance(value, dict)):
            raise InputError(
                f"{path} has added_tokens_decoder {short_repr({id: value})}: expected the tokens by their ids"
            )
        tokens[int(id)] = added_token(value, "added_tokens_decoder", path, special=False)
    return [tokens[id] for id in sorted(tokens)]


def read_added_tokens(ids: dict[str, Any], special_tokens: set[str], path: Path) -> list[AddedToken]:
    """Return the tokens in an added_tokens.json, {token: id}, in the order of their ids.

    special_tokens: the texts of the special tokens. Raises InputError if the file has something else.
    """
    for token, id in ids.items():
        if type(id) is not int or not is_utf8_string(token) or not 0 < len(token) <= MAX_TOKEN_LENGTH:
            raise InputError(f"{path} has {short_repr({token: id})}: expected the ids of tokens")
    return [
        AddedToken(token, special=token in special_tokens, normalized=token not in special_tokens)
        for token in sorted(ids, key=lambda token: ids[token])
    ]
