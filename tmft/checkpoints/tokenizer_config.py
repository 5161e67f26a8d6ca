"""Read the settings of a tokenizer: tokenizer_config.json and the two files that older repositories have.

Each special token of a tokenizer has a name, such as pad_token, and a text, such as [PAD].
tokenizer_config.json has both. Old repositories have them in special_tokens_map.json, and give the ids of
tokens that were added to the vocabulary in added_tokens.json. Both files are ignored, as in transformers, if
tokenizer_config.json has the key added_tokens_decoder, which says the same and more.
"""

from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken

from tmft.checkpoints.model_folder import TOKENIZER_CONFIG_FILES, ModelFolder
from tmft.errors import short_repr
from tmft.io.files import get_typed

TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass
class TokenizerConfig:
    """What the settings of a tokenizer say. Each field is explained by a comment."""

    content: dict[str, Any] = field(default_factory=dict)  # tokenizer_config.json, {} if there is none
    class_name: str = ""  # the class of transformers that opens the tokenizer, without "Fast"; '': unknown
    model_type: str = ""  # the model_type in config.json
    is_complete: bool = False  # whether added_tokens also has those that tokenizer.json states
    # The special tokens that the files state, by name: {"pad_token": "[PAD]"}. Those for which the files
    # state options (such as lstrip: spaces before the token belong to it) are an AddedToken.
    tokens: dict[str, str | AddedToken] = field(default_factory=dict)
    # Special tokens beyond these, which have names of the model's own or none: they are found in texts, too.
    extra_tokens: list[str | AddedToken] = field(default_factory=list)
    # The tokens that were added to the vocabulary, in the order of their ids.
    added_tokens: list[AddedToken] = field(default_factory=list)

    @property
    def special_tokens(self) -> dict[str, str]:
        """The special tokens that the files state, by name, without options."""
        return {name: str(token) for name, token in self.tokens.items()}

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

    def add_model_config(self, content: dict[str, Any]) -> None:
        """Add what a config.json states."""
        self.model_type = str(content.get("model_type"))
        self.add_class_name(content)

    def add_class_name(self, content: dict[str, Any]) -> None:
        """Add the class of the tokenizer, which two files may state; the one that is read last counts."""
        if class_name := content.get("tokenizer_class"):
            self.class_name = class_name.removesuffix("Fast") if isinstance(class_name, str) else ""

    def add_settings(self, content: dict[str, Any]) -> None:
        """Add what a tokenizer_config.json states, and refuse what tmft does not do."""
        self.content = content
        self.add_class_name(content)
        get_typed(content, "strip_accents", bool)
        if get_typed(content, "split_special_tokens", bool):
            raise ValueError(
                "split_special_tokens is true, but special tokens in a text are always found here"
            )
        if (side := get_typed(content, "truncation_side", str)) not in (None, "left", "right"):
            raise ValueError(f"truncation_side is {short_repr(side)}, not left or right")
        self.add_special_tokens(content)
        if isinstance(decoder := content.get("added_tokens_decoder"), dict):
            by_id = {int(id): parse_token(dict(value), special=False) for id, value in decoder.items()}
            added_tokens = [token for _, token in sorted(by_id.items())]
            self.added_tokens = [token for token in added_tokens if isinstance(token, AddedToken)]
            self.is_complete = True

    def add_special_tokens(self, content: dict[str, Any]) -> None:
        """Add the special tokens that a tokenizer_config.json or a special_tokens_map.json states.

        Those that have a name in TOKEN_KEYS replace earlier ones of the name. The others are those of
        extra_special_tokens (before transformers 5 additional_special_tokens), and of any other key that ends
        with _token and has a token, such as image_token.
        """
        tokens = self.tokens | {key: parse_token(content[key]) for key in TOKEN_KEYS if key in content}
        self.tokens = {key: token for key in TOKEN_KEYS if (token := tokens.get(key)) is not None}
        listed = content.get("extra_special_tokens") or content.get("additional_special_tokens") or []
        if not isinstance(listed, (list, dict)):
            raise ValueError(f"extra_special_tokens is {short_repr(listed)}, not a list of tokens")
        values = [*(listed.values() if isinstance(listed, dict) else listed)]
        names = [key for key in content if key.endswith("_token") and key not in TOKEN_KEYS]
        values += [content[name] for name in names if isinstance(content[name], (str, dict))]
        self.extra_tokens += [token for value in values if (token := parse_token(value)) is not None]

    def add_tokens_by_id(self, ids: dict[str, int]) -> None:
        """Add the tokens that an added_tokens.json states with their ids."""
        special = self.special_tokens.values()
        for token, id in ids.items():
            if type(id) is not int or parse_token(token) is None:
                raise ValueError(f"{short_repr({token: id})} is no token with its id")
        self.added_tokens = [
            AddedToken(token, special=token in special, normalized=token not in special)
            for token in sorted(ids, key=lambda token: ids[token])
        ]


def read_tokenizer_config(folder: ModelFolder) -> TokenizerConfig:
    """Return what the settings of the tokenizer in a model folder say."""
    config = TokenizerConfig()
    add = config.add_settings, config.add_special_tokens, config.add_tokens_by_id
    readers = {"config.json": config.add_model_config} | dict(zip(TOKENIZER_CONFIG_FILES, add, strict=True))
    for file_name, add_content in readers.items():
        if not config.is_complete:  # else the other files are older
            folder.parse_json(folder.in_encoder(file_name), add_content)
    return config


def parse_token(value: object, special: bool = True) -> str | AddedToken | None:
    """Return a special token as a file states it: a text, or an object with the text and its options.

    special: the default of its option special. Returns None if the value is null or an empty text.
    """
    if value is None or value == "":
        return None
    content = value.get("content") if isinstance(value, dict) else value
    if not (isinstance(content, str) and content):
        raise ValueError(f"{short_repr(value)} is no token")
    if not isinstance(value, dict):
        return content
    options = {flag: get_typed(value, flag, bool) for flag in TOKEN_FLAGS}
    options = {"special": special} | {flag: is_set for flag, is_set in options.items() if is_set is not None}
    return AddedToken(content, **options)
