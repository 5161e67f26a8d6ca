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
from tmft.io.files import get_typed

TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass
class TokenizerConfig:
    """What the settings of a tokenizer say. Each field is explained by a comment."""

    content: dict[str, Any]  # tokenizer_config.json, {} if there is none
    class_name: str  # the class of transformers that opens the tokenizer, without "Fast"; '': unknown
    model_type: str  # the model_type in config.json
    tokens: dict[str, AddedToken]  # the special tokens by name, such as pad_token, as far as files state them
    extra_tokens: list[AddedToken]  # special tokens without such a name: they are found in texts, too
    # The tokens that were added to the vocabulary, in the order of their ids.
    added_tokens: list[AddedToken] = field(default_factory=list)
    is_complete: bool = False  # whether added_tokens also has those that tokenizer.json states

    @property
    def special_tokens(self) -> dict[str, str]:
        """The texts of the special tokens that the files state, by name."""
        return {name: token.content for name, token in self.tokens.items()}

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
    """Return what the settings of the tokenizer in a model folder say."""
    model = folder.read_json(folder.in_encoder("config.json"))
    settings, token_map, added_tokens = map(folder.in_encoder, TOKENIZER_CONFIG_FILES)
    content = folder.read_json(settings)
    class_name = str(content.get("tokenizer_class") or model.get("tokenizer_class") or "")
    tokens, extra_tokens = folder.parse_json(settings, parse_special_tokens)
    config = TokenizerConfig(
        content, class_name.removesuffix("Fast"), str(model.get("model_type")), tokens, extra_tokens
    )
    if content.get("added_tokens_decoder") is not None:
        config.added_tokens, config.is_complete = folder.parse_json(settings, parse_decoder), True
        return config  # the other files are older
    tokens, extra_tokens = folder.parse_json(token_map, parse_special_tokens)
    config.tokens, config.extra_tokens = config.tokens | tokens, config.extra_tokens + extra_tokens
    ids = folder.read_json(added_tokens)
    special = config.special_tokens.values()
    config.added_tokens = [
        AddedToken(text, special=text in special, normalized=text not in special)
        for text in sorted(ids, key=lambda text: ids[text])
    ]
    return config


def parse_special_tokens(content: dict[str, Any]) -> tuple[dict[str, AddedToken], list[AddedToken]]:
    """Return the special tokens that a tokenizer_config.json or a special_tokens_map.json states.

    They are those with a name in TOKEN_KEYS, by name, and the others, which are those of extra_special_tokens
    (before transformers 5 additional_special_tokens).
    """
    extra = content.get("extra_special_tokens") or content.get("additional_special_tokens") or []
    named = {key: parse_token(content[key]) for key in TOKEN_KEYS if content.get(key)}
    return named, list(map(parse_token, extra.values() if isinstance(extra, dict) else extra))


def parse_decoder(content: dict[str, Any]) -> list[AddedToken]:
    """Return the tokens of added_tokens_decoder in a tokenizer_config.json, in the order of their ids."""
    by_id = {int(id): value for id, value in content["added_tokens_decoder"].items()}
    return [parse_token(value, special=False) for _, value in sorted(by_id.items())]


def parse_token(value: str | dict[str, Any], special: bool = True) -> AddedToken:
    """Return a token that a file states as a text, or as an object with the text and its options.

    special: the default of its option special.
    """
    if isinstance(value, str):
        return AddedToken(value, special=special)
    options = {flag: get_typed(value, flag, bool) for flag in TOKEN_FLAGS}
    stated = {flag: is_set for flag, is_set in options.items() if is_set is not None}
    return AddedToken(value["content"], **{"special": special} | stated)
