"""Load the tokenizer of a checkpoint so that it gives the same token ids as transformers.

A tokenizer.json of any kind is read: WordPiece, unigram, byte pairs, with any special tokens around a text.
Without one, the tokenizer is built from the files of its vocabulary: vocab.txt (WordPiece), vocab.json and
merges.txt (RoBERTa), spm.model (DeBERTa) or spiece.model (T5). What the files do not say is in
TOKENIZER_KINDS. Which kind of tokenizer a folder has is decided by the class in tokenizer_config.json, then
by tokenizer.json itself, then by the model_type in config.json: a BERT may have the tokenizer of an
XLM-RoBERTa.

Three places may say how a WordPiece tokenizer normalizes text, and they may disagree: the normalizer in
tokenizer.json, the keys do_lower_case, strip_accents and tokenize_chinese_chars in tokenizer_config.json, and
BERT's defaults. Here, as in transformers, a key of tokenizer_config.json wins. Without such a key, the
normalizer of tokenizer.json is used as it is (transformers 5 would lower-case a cased one), and a vocab.txt
alone is uncased, as in BERT.

A DeBERTa may come with spm.model alone. Its text is then normalized as in transformers 5, not as in version
4: repeated spaces become one, and Unicode is composed (NFC). Version 4 applied the character map in the file,
which also replaces ligatures, full-width letters and the ellipsis with plain characters (NFKC) and removes
zero-width characters. All other text has the same ids in both versions. Neither version splits unknown
characters into bytes, as SentencePiece can.

Of the tokenizer.json of a T5, an XLM-RoBERTa, or a CamemBERT only the vocabulary and the character
map are used, as in transformers 5, because older and newer files treat leading, trailing and repeated spaces
differently. Here leading and trailing spaces are removed and repeated ones become one, whatever the file
says, and a ▁ is put before each word. A file is read as that of a T5 if tokenizer_config.json calls it a
T5Tokenizer, or if it has a unigram model and tokenizes an empty text as </s> alone.

A tokenizer.json with byte pairs (RoBERTa, Qwen, Llama) is used as it is. transformers 5 builds some of them
again: of a Llama 1 or 2 it then ignores a space before a text. If tokenizer_config.json has
add_eos_token: true, but the template in tokenizer.json ends without that token, the template is followed, as
in transformers 5; version 4 added the token.
"""

import json
import logging
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, models, normalizers

from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.tokenizer_config import TokenizerConfig, read_tokenizer_config
from tmft.checkpoints.tokenizer_kinds import KIND_BY_CLASS, TOKENIZER_KINDS, TokenizerKind
from tmft.encoder import UNLIMITED_LENGTH
from tmft.errors import InputError, short_repr
from tmft.io.files import reading
from tmft.models.families import FAMILIES
from tmft.tokenizer import UNCHANGED_CLASS, Tokenizer

log: logging.Logger = logging.getLogger("tmft")


def load_tokenizer(
    folder: ModelFolder | Path, lower_case: bool = False, max_length: int | None = None
) -> Tokenizer:
    """Return the tokenizer in a model folder.

    lower_case: whether the text is lower-cased first, also if the tokenizer's files do not ask for it.
    max_length: the limit in tokens; None means the limit that the files state.
    Raises InputError if there is no tokenizer, or if it is damaged.
    """
    folder = folder if isinstance(folder, ModelFolder) else ModelFolder(folder)
    config, is_static = read_tokenizer_config(folder), folder.is_static
    path = folder.find(folder.in_encoder("tokenizer.json")) or folder.encoder_path
    with reading(path):
        if path.name == "tokenizer.json":
            backend, kind, is_rebuilt = read_tokenizer_json(path, config, is_static)
        else:
            (backend, kind), is_rebuilt = read_vocabulary_files(folder, config), True
        texts = kind.special_tokens | ({} if is_static else config.special_tokens)
        special_tokens = {name: text for name, text in texts.items() if backend.token_to_id(text) is not None}
        if missing := [name for name in kind.template_tokens if name not in special_tokens]:
            raise ValueError(f"the vocabulary has no {texts[missing[0]]}")
        if not is_static:  # in a static model they are found in a text only if tokenizer.json says so
            add_special_tokens(backend, special_tokens, config)
            if is_rebuilt and kind.template:
                backend.post_processor = kind.post_processor(backend, special_tokens)
        ids_around_text = backend.encode("", add_special_tokens=not is_static).ids
    if lower_case:
        normalizer = [backend.normalizer] if backend.normalizer is not None else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *normalizer])

    eos_token = special_tokens.get("eos_token")
    ends_with_eos = ids_around_text[-1:] == [backend.token_to_id(eos_token or "")]
    if eos_token and config.flag("add_eos_token", False) and not (ends_with_eos or is_static):
        log.warning(
            "%s asks for %s after each text (add_eos_token), but tokenizer.json does not add it: texts end "
            "without it, as in transformers 5; its post_processor can add it",
            folder.encoder_path / "tokenizer_config.json",
            eos_token,
        )
    return Tokenizer(
        backend,
        special_tokens,
        max_length or config.max_length,
        add_special_tokens=not is_static,
        tokenizer_class=(is_rebuilt and not lower_case and kind.saved_class) or UNCHANGED_CLASS,
        truncation_side=config.content.get("truncation_side"),
    )


def read_vocabulary_files(
    folder: ModelFolder, config: TokenizerConfig
) -> tuple[tokenizers.Tokenizer, TokenizerKind]:
    """Build the tokenizer of a folder without tokenizer.json: return (backend, kind).

    The kind is that of the class in tokenizer_config.json, or else of the model_type in config.json, or else
    the first one whose files are there. Raises InputError if there are no such files, or if a tokenizer of
    this class is only read from a tokenizer.json.
    """
    files, family = {*folder.tokenizer_files()}, FAMILIES.get(config.model_type)
    names = [*([family.tokenizer] if family else []), *TOKENIZER_KINDS]
    if config.class_name:
        names = [KIND_BY_CLASS.get(config.class_name, "generic")]
    for kind in map(TOKENIZER_KINDS.__getitem__, names):
        if kind.read is not None and files.issuperset(kind.vocabulary_files):
            with reading(folder.encoder_path / " and ".join(kind.vocabulary_files)):
                backend = kind.read(folder.encoder_path, config)
                backend.add_tokens(config.added_tokens)
                return backend, kind
    of_class = f" of the class {short_repr(config.class_name)}" if files and config.class_name else ""
    raise InputError(
        f"no tokenizer{of_class} in {folder.name}: expected tokenizer.json, or vocab.txt (BERT), "
        "vocab.json and merges.txt (RoBERTa), spm.model (DeBERTa) or spiece.model (T5); for any other "
        "tokenizer, open the checkpoint once in transformers and save it, which writes tokenizer.json"
    )


def read_tokenizer_json(
    path: Path, config: TokenizerConfig, is_static: bool
) -> tuple[tokenizers.Tokenizer, TokenizerKind, bool]:
    """Read a tokenizer.json: return (backend, kind, is_rebuilt).

    backend: the tokenizer, with its added tokens. kind: the entry of TOKENIZER_KINDS that names its special
    tokens. is_rebuilt: True if only the vocabulary of the file was used; the template that puts special
    tokens around a text is then that of the kind. is_static: whether the model is static.
    """
    text = path.read_text(encoding="utf-8")
    backend = tokenizers.Tokenizer.from_str(text)
    backend.no_padding()
    if is_static:
        return backend, TOKENIZER_KINDS["static"], False
    kind, is_unchanged = choose_kind(backend, config)
    if is_unchanged or kind.rebuild is None:
        known = [token for token in config.added_tokens if backend.token_to_id(token.content) is not None]
        backend.add_tokens(known)
        return backend, kind, False
    truncation, added_tokens = backend.truncation, backend.get_added_tokens_decoder()
    file_tokens = [added_tokens[id] for id in sorted(added_tokens)]
    backend = kind.rebuild(backend, json.loads(text), config)
    if truncation:
        backend.enable_truncation(**truncation)  # its direction counts, see Tokenizer
    backend.add_tokens(config.added_tokens + ([] if config.is_complete else file_tokens))
    return backend, kind, True


def choose_kind(backend: tokenizers.Tokenizer, config: TokenizerConfig) -> tuple[TokenizerKind, bool]:
    """Choose the kind of a tokenizer.json: return (kind, is_unchanged).

    kind: that of the class in tokenizer_config.json, else the one that its model and the tokens around a text
    show, else that of the model_type in config.json; "generic" if none of them is known, or if the file has
    another type of model than the kind. So a BERT with the tokenizer of an XLM-RoBERTa is read correctly.
    is_unchanged: whether the file is used as it is, because the class asks for it or does not fit the file.
    """
    shown, around = None, [backend.id_to_token(id) for id in backend.encode("").ids]
    if isinstance(backend.model, models.WordPiece):
        shown = "mpnet" if around == ["<s>", "</s>"] else "bert"
    elif isinstance(backend.model, models.Unigram):
        if around == [config.special_tokens.get("eos_token", "</s>")]:
            shown = "t5"
        elif around == ["<s>", "</s>"]:
            shown = "xlm-roberta" if backend.token_to_id("<s>NOTUSED") is None else "camembert"
        elif around == ["[CLS]", "[SEP]"]:
            shown = "deberta"
    named = KIND_BY_CLASS.get(config.class_name, "generic") if config.class_name else None
    family = FAMILIES.get(config.model_type)
    for name in filter(None, [named, shown, family.tokenizer if family else None]):
        kind = TOKENIZER_KINDS[name]
        if kind.model is not None and isinstance(backend.model, kind.model):
            return kind, named not in (None, name)
    return TOKENIZER_KINDS["generic"], True


def add_special_tokens(
    backend: tokenizers.Tokenizer, special_tokens: dict[str, str], config: TokenizerConfig
) -> None:
    """Add special tokens of the vocabulary to a tokenizer, so that it finds them in texts.

    special_tokens: {name: text}; those that the settings state without a name are added, too.
    """
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    tokens = [
        config.tokens.get(name, AddedToken(text, special=True)) for name, text in special_tokens.items()
    ]
    tokens += [token for token in config.extra_tokens if backend.token_to_id(token.content) is not None]
    backend.add_tokens([token for token in tokens if token.content not in known])


def tokenizer_to_files(tokenizer: Tokenizer, max_length: int, padding_side: str = "right") -> dict[str, str]:
    """Return {file name: content} of the files from which a tokenizer can be loaded again.

    The loaded tokenizer gives the same ids in tmft and in transformers. max_length: the limit in tokens
    that the files state. padding_side: "left" or "right", where transformers puts padding.
    """
    config = {
        "tokenizer_class": tokenizer.tokenizer_class,
        "model_max_length": max_length,
        **tokenizer.special_tokens,
    }
    if padding_side != "right":
        config["padding_side"] = padding_side
    if tokenizer.truncation_side != "right":
        config["truncation_side"] = tokenizer.truncation_side
    kind = TOKENIZER_KINDS[KIND_BY_CLASS.get(tokenizer.tokenizer_class, "generic")]
    config |= kind.saved_keys(tokenizer.backend)
    backend = tokenizer.backend
    if not tokenizer.add_special_tokens and max_length < UNLIMITED_LENGTH:
        backend = tokenizers.Tokenizer.from_str(backend.to_str())
        backend.enable_truncation(max_length, direction=tokenizer.truncation_side)
    return {
        "tokenizer.json": backend.to_str(),  # indented, it would be half as long again
        "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False) + "\n",
    }
