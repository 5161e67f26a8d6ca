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

If tokenizer_config.json has add_eos_token: true, but the template in tokenizer.json ends without that token,
the template is followed, as in transformers 5; version 4 added the token.
"""

import json
import logging
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, models, normalizers, processors

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
        texts = kind.special_tokens | config.special_tokens
        special_tokens = {name: text for name, text in texts.items() if backend.token_to_id(text) is not None}
        if is_static:  # special tokens in a text are found only if tokenizer.json says so, as in model2vec
            special_tokens = {
                name: special_tokens[name] for name in special_tokens if name in kind.special_tokens
            }
        else:
            if missing := [name for name in kind.template_tokens if name not in special_tokens]:
                raise ValueError(f"the vocabulary has no {texts[missing[0]]}")
            add_special_tokens(backend, special_tokens, kind, config)
            if is_rebuilt and kind.template:
                backend.post_processor = kind.post_processor(backend, special_tokens)
    if lower_case:
        normalizer = [backend.normalizer] if backend.normalizer is not None else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *normalizer])

    tokenizer = Tokenizer(
        backend,
        special_tokens,
        max_length or config.max_length,
        add_special_tokens=not is_static,
        tokenizer_class=(is_rebuilt and not lower_case and kind.saved_class) or UNCHANGED_CLASS,
        truncation_side=config.content.get("truncation_side"),
    )
    ids_around_text = tokenizer.encode_batch([""], add_special_tokens=not is_static)[0]
    if unknown_ids := [id for id in ids_around_text if backend.id_to_token(id) is None]:
        raise InputError(
            f"no token has the id {unknown_ids[0]}, which is added around a text ({path}): restore the file"
        )
    eos_token = special_tokens.get("eos_token")
    ends_with_eos = ids_around_text[-1:] == [backend.token_to_id(eos_token or "")]
    if eos_token and config.flag("add_eos_token", False) and not (ends_with_eos or is_static):
        log.warning(
            "%s asks for %s after each text (add_eos_token), but tokenizer.json does not add it: texts end "
            "without it, as in transformers 5; call add_closing_token(tokenizer) to add it",
            folder.encoder_path / "tokenizer_config.json",
            eos_token,
        )
    return tokenizer


def read_vocabulary_files(
    folder: ModelFolder, config: TokenizerConfig
) -> tuple[tokenizers.Tokenizer, TokenizerKind]:
    """Build the tokenizer of a folder without tokenizer.json: return (backend, kind).

    The kind is that of the class in tokenizer_config.json, or else of the model_type in config.json, if its
    files are there. If neither says it, it is the first one whose files are there and whose vocabulary has
    the tokens that it needs; if none has them, the first one. Raises InputError if there are no such files,
    or if a tokenizer of this class or model_type is only read from a tokenizer.json.
    """
    files, found = {*folder.tokenizer_files()}, []
    family = FAMILIES.get(config.model_type)
    kinds = list(TOKENIZER_KINDS.values())
    if config.class_name:
        kinds = [TOKENIZER_KINDS[KIND_BY_CLASS.get(config.class_name, "generic")]]
    elif family and not folder.is_static:
        kind = TOKENIZER_KINDS[family.tokenizer]
        if kind.read is None or files.issuperset(kind.vocabulary_files):
            kinds = [kind]
    for kind in kinds:
        if kind.read is None or not files.issuperset(kind.vocabulary_files):
            continue
        with reading(folder.encoder_path / " and ".join(kind.vocabulary_files)):
            backend = kind.read(folder.encoder_path, config)
        backend.add_tokens(config.added_tokens)
        found.append((backend, kind))
        texts = kind.special_tokens | config.special_tokens
        if all(backend.token_to_id(texts[name]) is not None for name in kind.template_tokens):
            return backend, kind
    if not found:
        of_class = f" of the class {short_repr(config.class_name)}" if files and config.class_name else ""
        raise InputError(
            f"no tokenizer{of_class} in {folder.name}: expected tokenizer.json, or vocab.txt (BERT), "
            "vocab.json and merges.txt (RoBERTa), spm.model (DeBERTa) or spiece.model (T5); for any other "
            "tokenizer, open the checkpoint once in transformers and save it, which writes tokenizer.json"
        )
    return found[0]


def read_tokenizer_json(
    path: Path, config: TokenizerConfig, is_static: bool
) -> tuple[tokenizers.Tokenizer, TokenizerKind, bool]:
    """Read a tokenizer.json: return (backend, kind, is_rebuilt).

    backend: the tokenizer, with its added tokens. kind: the entry of TOKENIZER_KINDS that names its special
    tokens. is_rebuilt: True if only the vocabulary of the file was used; the template that puts special
    tokens around a text is then that of the kind. is_static: whether the model is static.
    A damaged file is an error or a panic of the tokenizers library, here or when the tokenizer is used.
    """
    text = path.read_text(encoding="utf-8")
    backend = tokenizers.Tokenizer.from_str(text)
    backend.no_padding()
    truncation = backend.truncation
    inferred = infer_kind(backend, config)
    if is_static:
        return backend, TOKENIZER_KINDS[inferred or "static"], False
    name, is_unchanged = choose_kind(backend, inferred, config)
    kind = TOKENIZER_KINDS[name]
    if is_unchanged or kind.rebuild is None:
        known = [token for token in config.added_tokens if backend.token_to_id(token.content) is not None]
        backend.add_tokens(known)
        return backend, kind, False
    file_tokens = [token for _, token in sorted(backend.get_added_tokens_decoder().items())]
    backend = kind.rebuild(backend, json.loads(text), config)
    if truncation:
        backend.enable_truncation(**truncation)  # its direction counts, see Tokenizer
    backend.add_tokens(config.added_tokens + ([] if config.is_complete else file_tokens))
    texts = [text for text in kind.added_special_tokens if backend.token_to_id(text) is not None]
    backend.add_special_tokens([AddedToken(text, special=True) for text in texts])
    return backend, kind, True


def infer_kind(backend: tokenizers.Tokenizer, config: TokenizerConfig) -> str | None:
    """Infer the kind of a tokenizer from its model and from the tokens that it puts around a text.

    Returns None if these do not show it: nothing in a byte-pair model is typical of one kind.
    """
    around = [backend.id_to_token(id) for id in backend.encode("").ids]
    if isinstance(backend.model, models.WordPiece):
        return "mpnet" if around == ["<s>", "</s>"] else "bert"
    if not isinstance(backend.model, models.Unigram):
        return None
    if around == [config.special_tokens.get("eos_token", "</s>")]:
        return "t5"
    if around == ["<s>", "</s>"]:
        return "xlm-roberta" if backend.token_to_id("<s>NOTUSED") is None else "camembert"
    return "deberta" if around == ["[CLS]", "[SEP]"] else None


def choose_kind(
    backend: tokenizers.Tokenizer, inferred: str | None, config: TokenizerConfig
) -> tuple[str, bool]:
    """Choose the kind of a tokenizer.json: return (name, is_unchanged).

    name: the kind is that of the class in tokenizer_config.json, else the inferred one, else that of the
    model_type in config.json; "generic" if none of them is known, or if the file has another type of model
    than the kind. So a BERT with the tokenizer of an XLM-RoBERTa is read correctly.
    is_unchanged: whether the file is used as it is, because the class asks for it, is not known or does not
    fit the file, or because transformers always does so for this model_type.
    inferred: the result of infer_kind.
    """
    family = FAMILIES.get(config.model_type)
    named = KIND_BY_CLASS.get(config.class_name, "generic") if config.class_name else None
    is_unchanged = (family is not None and family.keeps_tokenizer_json) or named == "generic"
    known_names = [named, inferred, family.tokenizer if family else None]
    for name in filter(None, [inferred] if is_unchanged else known_names):
        model = TOKENIZER_KINDS[name].model
        if model is not None and isinstance(backend.model, model):
            return name, is_unchanged or named not in (None, name)
    return "generic", True


def add_special_tokens(
    backend: tokenizers.Tokenizer,
    special_tokens: dict[str, str],
    kind: TokenizerKind,
    config: TokenizerConfig,
) -> None:
    """Add special tokens of the vocabulary to a tokenizer, so that it finds them in texts.

    special_tokens: {name: text}; those that the settings state without such a name are added, too.
    """
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    tokens = [
        stated
        if isinstance(stated := config.tokens.get(name), AddedToken)
        else AddedToken(text, special=True, lstrip=name in kind.lstrip_tokens)
        for name, text in special_tokens.items()
        if text not in known
    ]
    tokens += [
        AddedToken(token, special=True) if isinstance(token, str) else token
        for token in config.extra_tokens
        if str(token) not in known and backend.token_to_id(str(token)) is not None
    ]
    backend.add_tokens(tokens)


def add_closing_token(tokenizer: Tokenizer) -> None:
    """Make a tokenizer add its eos_token after every text, also when it is loaded from saved files.

    This is for checkpoints such as e5-mistral, whose tokenizer_config.json asks for the token by
    add_eos_token, but whose tokenizer.json does not add it. Raises InputError if the vocabulary has no
    such token.
    """
    eos_token = tokenizer.special_tokens.get("eos_token")
    if eos_token is None:
        raise InputError("the tokenizer has no eos_token to add after a text: name one in its files")
    backend, (before, _) = tokenizer.backend, tokenizer.num_special_tokens
    eos_id = backend.token_to_id(eos_token)
    assert eos_id is not None  # special_tokens are tokens of the vocabulary
    ids = [*tokenizer.encode_batch([""], add_special_tokens=True)[0], eos_id]
    names = [f"t{id}" for id in ids]
    first, last = names[:before], names[before:]
    backend.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, "$B", *last],
        special_tokens=[
            {"id": f"t{id}", "ids": [id], "tokens": [backend.id_to_token(id)]} for id in dict.fromkeys(ids)
        ],
    )
    del tokenizer.num_special_tokens  # so that they are counted again


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
