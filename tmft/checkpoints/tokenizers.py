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
from tmft.checkpoints.tokenizer_config import TokenizerConfig
from tmft.checkpoints.tokenizer_json import read_tokenizer_json
from tmft.checkpoints.tokenizer_kinds import KIND_BY_CLASS, TOKENIZER_KINDS, TokenizerKind
from tmft.encoder import UNLIMITED_LENGTH
from tmft.errors import InputError
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
    is_static, path = folder.is_static, folder.encoder_path
    config, files = folder.tokenizer_config(), folder.tokenizer_files()
    is_from_json = files == ["tokenizer.json"]
    kinds = [] if is_from_json else kinds_of_files(files, config)
    if not (is_from_json or kinds):
        raise InputError(
            f"no tokenizer in {folder.name}: expected tokenizer.json, or vocab.txt (BERT), vocab.json and "
            "merges.txt (RoBERTa), spm.model (DeBERTa) or spiece.model (T5); for any other tokenizer, open "
            "the checkpoint once in transformers and save it, which writes tokenizer.json"
        )
    with reading(path / "tokenizer.json" if is_from_json else path):
        if is_from_json:
            backend, kind, is_rebuilt = read_json_backend(path / "tokenizer.json", config, is_static)
        else:
            (backend, kind), is_rebuilt = read_vocabulary_files(path, kinds, config), True
        special_tokens = register_special_tokens(backend, kind, config, is_static)
        missing = [name for name in kind.required_tokens if name not in special_tokens]
        if missing and not is_static:
            text = config.special_tokens.get(missing[0]) or kind.special_tokens[missing[0]]
            raise ValueError(f"the vocabulary has no {text}")
        if is_rebuilt and kind.template and not missing:
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
        truncation_side=config.truncation_side,
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
            path / "tokenizer_config.json",
            eos_token,
        )
    return tokenizer


def kinds_of_files(files: list[str], config: TokenizerConfig) -> list[str]:
    """Return the names of the kinds that a folder without tokenizer.json may have, [] if there is none.

    files: the names of its files. The kind is that of the class in tokenizer_config.json or of the model_type
    in config.json, if its files are there; else each one whose files are there. A kind that is only read from
    a tokenizer.json has none, whatever files of other kinds are there.
    """
    candidates = [
        name for name, kind in TOKENIZER_KINDS.items() if kind.read and {*kind.vocabulary_files} <= {*files}
    ]
    family = FAMILIES.get(config.model_type)
    named = [KIND_BY_CLASS.get(config.class_name), family.tokenizer if family else None]
    for name in filter(None, named):
        if name in candidates:
            return [name]
        if TOKENIZER_KINDS[name].rebuild and not TOKENIZER_KINDS[name].read:
            return []
    return candidates


def read_json_backend(
    path: Path, config: TokenizerConfig, is_static: bool
) -> tuple[tokenizers.Tokenizer, TokenizerKind, bool]:
    """Read a tokenizer.json: return (backend, kind, is_rebuilt).

    backend: the tokenizer, with its added tokens. kind: the entry of TOKENIZER_KINDS that names its special
    tokens. is_rebuilt: True if only the vocabulary of the file was used; the template that puts special
    tokens around a text is then that of the kind. is_static: whether the model is static.
    """
    backend, content = read_tokenizer_json(path)
    backend.no_padding()
    truncation = backend.truncation
    backend_kind = infer_kind(backend, config)
    if is_static:
        return backend, TOKENIZER_KINDS[backend_kind or "static"], False
    name, is_unchanged = choose_kind(backend, backend_kind, config)
    kind = TOKENIZER_KINDS[name]
    if is_unchanged or kind.rebuild is None:
        known = [token for token in config.added_tokens if backend.token_to_id(token.content) is not None]
        backend.add_tokens(known)
        return backend, kind, False
    file_tokens = [token for _, token in sorted(backend.get_added_tokens_decoder().items())]
    added_tokens = config.added_tokens + ([] if config.is_complete else file_tokens)
    backend = kind.rebuild(backend, content, config)
    if truncation:
        backend.enable_truncation(**truncation)  # its direction counts, see Tokenizer
    backend.add_tokens(added_tokens)
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
    if around == ["[CLS]", "[SEP]"]:
        return "deberta"
    return None


def choose_kind(
    backend: tokenizers.Tokenizer, backend_kind: str | None, config: TokenizerConfig
) -> tuple[str, bool]:
    """Choose the kind of a tokenizer.json: return (name, is_unchanged).

    name: the kind is that of the class in tokenizer_config.json, else the one that infer_kind infers,
    else that of the model_type in config.json; "generic" if none of them is known, or if the file has another
    type of model than the kind. So a BERT with the tokenizer of an XLM-RoBERTa is read correctly.
    is_unchanged: whether the file is used as it is, because the class asks for it, is not known or does not
    fit the file, or because transformers always does so for this model_type.
    backend_kind: the result of infer_kind.
    """
    named = KIND_BY_CLASS.get(config.class_name)
    family = FAMILIES.get(config.model_type)
    is_unchanged = (family is not None and family.keeps_tokenizer_json) or named == "generic"
    is_unchanged = is_unchanged or (bool(config.class_name) and named is None)
    known_names = [named, backend_kind, family.tokenizer if family else None]
    for name in filter(None, [backend_kind] if is_unchanged else known_names):
        model = TOKENIZER_KINDS[name].model
        if model is not None and isinstance(backend.model, model):
            return name, is_unchanged or named not in (None, name)
    return "generic", True


def read_vocabulary_files(
    path: Path, kinds: list[str], config: TokenizerConfig
) -> tuple[tokenizers.Tokenizer, TokenizerKind]:
    """Build the tokenizer of a folder without tokenizer.json: return (backend, kind).

    kinds: names of kinds whose files are there. The first one is used whose vocabulary has the tokens that it
    needs; if none has them, the first one.
    """

    def read(name: str) -> tuple[tokenizers.Tokenizer, TokenizerKind]:
        """Read the tokenizer of the kind with this name, to which no tokens are added yet; return both."""
        kind = TOKENIZER_KINDS[name]
        assert kind.read is not None
        with reading(path / kind.vocabulary_files[-1]):
            return kind.read(path, config), kind

    for name in kinds:
        backend, kind = read(name)
        backend.add_tokens(config.added_tokens)
        texts = {**kind.special_tokens, **config.special_tokens}
        if all(backend.token_to_id(texts[key]) is not None for key in kind.required_tokens):
            return backend, kind
    return read(kinds[0])


def register_special_tokens(
    backend: tokenizers.Tokenizer, kind: TokenizerKind, config: TokenizerConfig, is_static: bool
) -> dict[str, str]:
    """Return the special tokens as {name: text}, and add them to backend, so that it finds them in texts.

    Tokens that the vocabulary lacks are left out. In static models special tokens in a text are found only if
    tokenizer.json says so, as in model2vec.
    is_static: whether the model is static.
    """
    texts = kind.special_tokens | config.special_tokens
    if is_static:
        texts = {name: texts[name] for name in kind.special_tokens}
    texts = {name: text for name, text in texts.items() if backend.token_to_id(text) is not None}
    if not is_static:
        known = {token.content for token in backend.get_added_tokens_decoder().values()}
        tokens = [
            stated
            if isinstance(stated := config.tokens.get(name), AddedToken)
            else AddedToken(text, special=True, lstrip=name in kind.lstrip_tokens)
            for name, text in texts.items()
            if text not in known
        ]
        tokens += [
            AddedToken(token, special=True) if isinstance(token, str) else token
            for token in config.extra_tokens
            if str(token) not in known and backend.token_to_id(str(token)) is not None
        ]
        backend.add_tokens(tokens)
    return texts


def post_processor_from_ids(
    backend: tokenizers.Tokenizer, before: list[int], after: list[int]
) -> processors.TemplateProcessing:
    """Return the post-processor that puts tokens around a text. before, after: lists of their ids."""
    special = {f"t{id}": id for id in (*before, *after)}
    first, last = ([f"t{id}" for id in ids] for ids in (before, after))
    return processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, "$B", *last],
        special_tokens=[
            {"id": name, "ids": [id], "tokens": [backend.id_to_token(id)]} for name, id in special.items()
        ],
    )


def add_closing_token(tokenizer: Tokenizer) -> None:
    """Make a tokenizer add its eos_token after every text, also when it is loaded from saved files.

    This is for checkpoints such as e5-mistral, whose tokenizer_config.json asks for the token by
    add_eos_token, but whose tokenizer.json does not add it. Raises InputError if the vocabulary has no
    such token.
    """
    eos_token = tokenizer.special_tokens.get("eos_token")
    eos_id = None if eos_token is None else tokenizer.backend.token_to_id(eos_token)
    if eos_id is None:
        raise InputError("the tokenizer has no eos_token to add after a text: name one in its files")
    before, after = tokenizer.num_special_tokens
    ids = tokenizer.encode_batch([""], add_special_tokens=True)[0]
    closing = [*ids[len(ids) - after :], eos_id]
    tokenizer.backend.post_processor = post_processor_from_ids(tokenizer.backend, ids[:before], closing)
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
