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
from tmft.errors import short_repr
from tmft.io.files import get_typed, is_utf8_string

TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
MAX_TOKEN_LENGTH = 10_000  # characters


@dataclass
class TokenizerConfig:
    """What the settings of a tokenizer say. Each field is explained by a comment."""

    content: dict[str, Any]  # tokenizer_config.json, {} if there is none
    path: Path = Path("tokenizer_config.json")  # its path, for messages
    # The special tokens that the files state, by name: {"pad_token": "[PAD]"}.
    special_tokens: dict[str, str] = field(default_factory=dict)
    # Those of them for which the files state options (such as lstrip: spaces before the token belong to it).
    token_options: dict[str, AddedToken] = field(default_factory=dict)
    # The tokens that were added to the vocabulary, in the order of their ids.
    added_tokens: list[AddedToken] = field(default_factory=list)
    is_complete: bool = False  # whether added_tokens also has those that tokenizer.json states
    class_name: str = ""  # the class of transformers that opens the tokenizer, without "Fast"; '' if unknown
    model_type: str = ""  # the model_type in config.json; '' if there is none

    def flag(self, key: str, default: bool) -> bool:
        """Return whether a key of tokenizer_config.json is true; `default` if it is absent or null."""
        value = self.content.get(key)
        return default if value is None else bool(value)

    def add_special_tokens(self, tokens: dict[str, Any]) -> None:
        """Replace the special tokens that a file states under one of TOKEN_KEYS."""
        read = {key: read_token(tokens[key]) for key in TOKEN_KEYS if key in tokens}
        texts = self.special_tokens | {key: str(token or "") for key, token in read.items()}
        self.special_tokens = {key: texts[key] for key in TOKEN_KEYS if texts.get(key)}
        options = {key: token for key, token in self.token_options.items() if key not in read}
        self.token_options = options | {
            k: token for k, token in read.items() if isinstance(token, AddedToken)
        }

    def add_tokens(self, ids: dict[str, Any]) -> None:
        """Add the tokens of an added_tokens.json, {token: id}, in the order of their ids."""
        for token, id in ids.items():
            if type(id) is not int or read_token(token) is None:
                raise ValueError(f"{short_repr({token: id})} is no token with its id")
        for token in sorted(ids, key=lambda token: ids[token]):
            special = token in self.special_tokens.values()
            self.added_tokens.append(AddedToken(token, special=special, normalized=not special))

    @property
    def max_length(self) -> int | None:
        """The limit in tokens that the file states; None if it states none."""
        limits = [self.content.get(key) for key in ("model_max_length", "max_len")]  # max_len: in old files
        limits = [int(limit) for limit in limits if isinstance(limit, (int, float)) and 0 < limit < 1e9]
        return next(iter(limits), None)


def read_tokenizer_config(folder: ModelFolder) -> TokenizerConfig:
    """Return the settings of the tokenizer in a folder. Raises InputError if one of the files is damaged."""
    config_name, map_name, added_name = map(folder.in_encoder, TOKENIZER_CONFIG_FILES)
    model_config = folder.read_json(folder.in_encoder("config.json"))
    config = folder.parse_json(config_name, parse_tokenizer_config)
    class_name = config.content.get("tokenizer_class") or model_config.get("tokenizer_class")
    config.class_name = class_name.removesuffix("Fast") if isinstance(class_name, str) else ""
    model_type = model_config.get("model_type")
    config.model_type = model_type if isinstance(model_type, str) else ""
    config.path = folder.path / config_name
    if not config.is_complete:
        folder.parse_json(map_name, config.add_special_tokens)
        folder.parse_json(added_name, config.add_tokens)
    return config


def parse_tokenizer_config(content: dict[str, Any]) -> TokenizerConfig:
    """Return what a tokenizer_config.json says."""
    get_typed(content, "strip_accents", bool)
    if get_typed(content, "split_special_tokens", bool):
        raise ValueError("split_special_tokens is true, but special tokens in a text are always found here")
    config = TokenizerConfig(content)
    config.add_special_tokens({key: content.get(key) for key in TOKEN_KEYS})
    if isinstance(decoder := content.get("added_tokens_decoder"), dict):
        tokens = {int(id): read_token(dict(value), special=False) for id, value in decoder.items()}
        config.added_tokens = [token for _, token in sorted(tokens.items()) if isinstance(token, AddedToken)]
        config.is_complete = True
    return config


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
