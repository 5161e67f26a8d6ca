"""Load the tokenizer of a checkpoint such that it gives the same token ids as transformers.

It is read from tokenizer.json, vocab.txt, spm.model or spiece.model.

Three places may say how text is normalized, and they may disagree: the normalizer in tokenizer.json, the keys
do_lower_case, strip_accents and tokenize_chinese_chars in tokenizer_config.json, and BERT's defaults. Here,
as in transformers, a key of tokenizer_config.json wins. Without such a key, the normalizer of tokenizer.json
is used as it is (transformers 5 would lower-case a cased one), and a vocab.txt alone is uncased, as in BERT.

A DeBERTa may come with spm.model alone. Its text is then normalized as in transformers 5, not as in version
4: repeated spaces become one, and Unicode is composed (NFC). Version 4 applied the character map in the file,
which also replaces ligatures, full-width letters and the ellipsis by plain characters (NFKC) and removes
zero-width characters. All other text has the same ids in both versions. Neither version splits unknown
characters into bytes, as SentencePiece can.

A T5 adds </s> after a sentence and nothing before it. Its SentencePiece model is called spiece.model. A
tokenizer.json is taken for a T5's if tokenizer_config.json calls it a T5Tokenizer, or if it has a unigram
model and tokenizes an empty text as </s> alone. Only its vocabulary and its character map are used, as in
transformers 5, because older and newer files treat leading, trailing and repeated spaces differently. Here
leading and trailing spaces are removed and repeated ones become one, whatever the file says, and a ▁ is put
before each word. Unlike for a DeBERTa, the character map in the file is used.
"""

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from tmft.checkpoints.sentencepiece import deberta_tokenizer_from_spm, t5_tokenizer_from_spm
from tmft.checkpoints.st_modules import is_static_model, transformer_folder
from tmft.checkpoints.tokenizer_json import library_errors, read_tokenizer_json, t5_tokenizer_from_json
from tmft.errors import InputError, short_repr
from tmft.io.atomic import error_text, read_json
from tmft.io.files import is_file
from tmft.io.json_values import is_utf8_string, typed_value
from tmft.models.static import UNLIMITED_LENGTH

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "spm.model", "spiece.model", "tokenizer_config.json")
SPECIAL_TOKENS = {  # of BERT, ELECTRA and DeBERTa
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
T5_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
BOUNDARY_TOKENS = ("cls_token", "sep_token", "eos_token")  # tokens put before or after a sentence
T5_CLASSES = ("T5Tokenizer", "T5TokenizerFast")
# Classes of transformers that take tokenizer.json as it is.
GENERIC_TOKENIZER_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
BERT_UNCASED = normalizers.BertNormalizer(
    clean_text=True, lowercase=True, strip_accents=None, handle_chinese_chars=True
)


class Tokenizer:
    """Turn sentences into lists of token ids, with [CLS] and [SEP] around them or T5's </s> after them.

    backend: a tokenizers.Tokenizer; its padding and truncation are switched off.
    special_tokens: the special tokens by their usual names, such as {"cls_token": "[CLS]"}.
    max_length: the limit in tokens that the tokenizer's files state; None if they state none.
    add_special_tokens: False in static models; a text may then have no tokens at all.
    tokenizer_class: the transformers class that opens the saved files. T5Tokenizer builds the same tokenizer
    again from its vocabulary; a generic class uses tokenizer.json as it is.

    The attribute pad_id is the id of the padding token, 0 if there is none.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: dict[str, str],
        max_length: int | None = None,
        add_special_tokens: bool = True,
        tokenizer_class: str = GENERIC_TOKENIZER_CLASSES[0],
    ):
        if not add_special_tokens and backend.truncation:  # static models state their limit only here
            max_length = max_length or backend.truncation["max_length"]
        self.backend, self.special_tokens, self.max_length = backend, special_tokens, max_length
        self.add_special_tokens, self.tokenizer_class = add_special_tokens, tokenizer_class
        backend.no_padding()
        backend.no_truncation()
        self.pad_id = backend.token_to_id(special_tokens["pad_token"]) if "pad_token" in special_tokens else 0

    def __call__(
        self, sentences: list[str], max_length: int, suffix_length: int = 1
    ) -> tuple[list[list[int]], int]:
        """Return the token ids of each sentence, and how many of the sentences were truncated.

        Sentences have at most max_length tokens. If a sentence is longer, its last suffix_length tokens are
        kept and the tokens before these are removed. By default this keeps the final [SEP] or </s>.
        """
        token_ids = self.encode_batch(sentences, add_special_tokens=self.add_special_tokens)
        too_long = [index for index, ids in enumerate(token_ids) if len(ids) > max_length]
        for index in too_long:
            ids = token_ids[index]
            token_ids[index] = ids[: max_length - suffix_length] + ids[len(ids) - suffix_length :]
        return token_ids, len(too_long)

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Return the token ids of each text, without truncation.

        add_special_tokens: whether to add tokens such as [CLS] and [SEP] around each text.
        Raises InputError if the tokenizer's own files make it fail on a text.
        """
        with library_errors("the tokenizer cannot read a text"):
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
            return [encoding.ids for encoding in encodings]

    @property
    def vocabulary(self) -> list[str]:
        """All tokens in the order of their ids; an id n without a token is called "[n]"."""
        token_by_id = {id: token for token, id in self.backend.get_vocab().items()}
        return [token_by_id.get(id, f"[{id}]") for id in range(max(token_by_id) + 1)]

    @property
    def num_special_tokens(self) -> tuple[int, int]:
        """How many special tokens are added before and after a sentence."""
        added = self.backend.num_special_tokens_to_add(False) if self.add_special_tokens else 0
        before = min(added, int("cls_token" in self.special_tokens))
        return before, added - before

    def to_files(self, max_length: int) -> dict[str, str]:
        """Return {file name: content} of the files from which this tokenizer can be loaded again.

        The loaded tokenizer gives the same ids in tmft and in transformers. max_length: the limit in tokens
        that the files state.
        """
        config = {
            "tokenizer_class": self.tokenizer_class,
            "model_max_length": max_length,
            **self.special_tokens,
        }
        if self.tokenizer_class in T5_CLASSES:
            config["extra_ids"] = sum(token.startswith("<extra_id_") for token in self.backend.get_vocab())
        backend = self.backend
        if not self.add_special_tokens and max_length < UNLIMITED_LENGTH:
            backend = tokenizers.Tokenizer.from_str(backend.to_str())
            backend.enable_truncation(max_length)
        return {
            "tokenizer.json": backend.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False) + "\n",
        }


def check_vocab_size(tokenizer: Tokenizer, vocab_size: int, source: str) -> None:
    """Raise InputError if the tokenizer has ids of vocab_size or more.

    vocab_size: the number of word embeddings of the encoder. source: the checkpoint, for the message.
    """
    largest_id = max(tokenizer.backend.get_vocab().values())
    if largest_id >= vocab_size:
        raise InputError(
            f"the tokenizer gives ids up to {largest_id}, the embedding table has {vocab_size} rows "
            f"({source}): the two are not of one checkpoint"
        )


def resolve_max_length(tokenizer: Tokenizer, max_length: int | None, limit: int, default: int) -> int:
    """Return the number of tokens to which sentences are truncated.

    max_length: the number that the user chose. None means the limit in the tokenizer's files, or `default` if
    they state none, but at most `limit`. limit: the largest number of tokens that the encoder can process.
    Raises InputError if max_length is above `limit`, or leaves no room for a word between special tokens.
    """
    if max_length is None:
        max_length = min(limit, tokenizer.max_length or default)
    if not 3 <= max_length <= limit:
        reason = ", the number of position embeddings" if limit < UNLIMITED_LENGTH else ""
        raise InputError(f"max_length {max_length}: choose 3 to {limit}{reason}", "max_length")
    return max_length


def load_tokenizer(folder: Path, lower_case: bool = False, max_length: int | None = None) -> Tokenizer:
    """Return the tokenizer in a checkpoint folder.

    lower_case: whether the text is lower-cased first, also if the tokenizer's files do not ask for it.
    max_length: the limit in tokens; None means the limit that the files state.
    Raises InputError if there is no tokenizer, or if it is damaged.
    """
    is_static, folder = is_static_model(folder), transformer_folder(folder)
    config = read_tokenizer_config(folder / "tokenizer_config.json")
    with library_errors(f"{folder} has no tokenizer"):
        backend, default_tokens, is_rebuilt = read_backend(folder, config, is_static)

    named_tokens = {key: config.get(key) or token for key, token in default_tokens.items()}
    special_tokens = {
        key: token for key, token in named_tokens.items() if backend.token_to_id(token) is not None
    }
    boundaries = [key for key in BOUNDARY_TOKENS if key in default_tokens]
    for key in boundaries:
        if key not in special_tokens and not is_static:
            raise InputError(f"the vocabulary has no {named_tokens[key]} ({folder}): it needs one")
    if is_rebuilt:
        backend.add_special_tokens([AddedToken(token, special=True) for token in special_tokens.values()])
        template = t5_template if default_tokens is T5_TOKENS else bert_template
        backend.post_processor = template(backend, *(special_tokens[key] for key in boundaries))
    if lower_case:
        normalizer = [backend.normalizer] if backend.normalizer is not None else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *normalizer])

    limits = [config.get(key) for key in ("model_max_length", "max_len")]  # max_len is in old files
    limits = [int(limit) for limit in limits if isinstance(limit, (int, float)) and 0 < limit < 1e9]
    is_t5_class = is_rebuilt and default_tokens is T5_TOKENS and not lower_case
    tokenizer = Tokenizer(
        backend,
        special_tokens,
        max_length or next(iter(limits), None),
        add_special_tokens=not is_static,
        tokenizer_class=T5_CLASSES[0] if is_t5_class else GENERIC_TOKENIZER_CLASSES[0],
    )
    ids_around_text = tokenizer.encode_batch([""], add_special_tokens=not is_static)[0]
    if unknown_ids := [id for id in ids_around_text if backend.id_to_token(id) is None]:
        raise InputError(
            f"no token has the id {unknown_ids[0]}, which is added around a text ({folder}): restore the file"
        )
    return tokenizer


def read_tokenizer_config(path: Path) -> dict:
    """Return the content of a tokenizer_config.json, with a string for each special token.

    A special token that the file does not name is ''. If there is no such file, all of them are ''. Raises
    InputError if the file cannot be read, or if a value has the wrong type.
    """
    config = read_json(path) if is_file(path) else {}
    typed_value(config, "strip_accents", bool, path)
    for key in SPECIAL_TOKENS | T5_TOKENS:
        token = config.get(key) or ""
        config[key] = token.get("content") if isinstance(token, dict) else token
        if not is_utf8_string(config[key]):
            raise InputError(f"{path} has {key} {short_repr(token)}: expected a text")
    return config


def read_backend(
    folder: Path, config: dict, is_static: bool
) -> tuple[tokenizers.Tokenizer, dict[str, str], bool]:
    """Read the tokenizer in a folder: return (backend, default_tokens, is_rebuilt).

    backend: the tokenizer. default_tokens: the usual special tokens of its kind, SPECIAL_TOKENS or T5_TOKENS.
    is_rebuilt: True if the tokenizer was built from its vocabulary instead of being used as it is; the caller
    then has to add its special tokens and the template that puts them around a sentence.
    config: the result of read_tokenizer_config. is_static: whether the folder has a static model.
    """
    if is_file(folder / "tokenizer.json"):
        path, class_name = folder / "tokenizer.json", config.get("tokenizer_class")
        backend, content = read_tokenizer_json(path)
        as_is = is_static or class_name in GENERIC_TOKENIZER_CLASSES
        if is_t5_tokenizer(backend, config):
            if as_is or class_name not in (None, *T5_CLASSES):
                return backend, T5_TOKENS, False
            return t5_tokenizer_from_json(content, path, backend), T5_TOKENS, True
        if as_is or not isinstance(backend.model, models.WordPiece):
            return backend, SPECIAL_TOKENS, False
        backend.normalizer = bert_normalizer(config, backend.normalizer)
    elif is_file(folder / "vocab.txt"):
        backend = wordpiece_tokenizer(read_vocabulary(folder / "vocab.txt"))
        backend.normalizer = bert_normalizer(config, BERT_UNCASED)
    elif is_file(folder / "spm.model"):
        mask_token = config["mask_token"] or SPECIAL_TOKENS["mask_token"]
        backend = deberta_tokenizer_from_spm(folder / "spm.model", config, mask_token)
    elif is_file(folder / "spiece.model"):
        return t5_tokenizer_from_spm(folder / "spiece.model", config), T5_TOKENS, True
    else:
        raise InputError(f"no tokenizer in {folder}: expected one of {', '.join(TOKENIZER_FILES[:-1])}")
    return backend, SPECIAL_TOKENS, True


# ------------------------------------------------------------------------------- BERT and ELECTRA


def read_vocabulary(path: Path) -> dict[str, int]:
    """Return {token: id} for a vocab.txt, which has one token per line; ids are line numbers, from 0.

    Raises InputError if the file is not text in UTF-8, or has no [UNK].
    """
    try:
        with open(path, encoding="utf-8") as lines:
            vocabulary = {line.rstrip("\n"): id for id, line in enumerate(lines)}
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not a vocabulary in UTF-8 ({error_text(error)}): restore the file"
        ) from None
    if "[UNK]" not in vocabulary:
        raise InputError(f"{path} has no [UNK], so it is not a WordPiece vocabulary: restore the file")
    return vocabulary


def wordpiece_tokenizer(vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    """Return BERT's tokenizer, without normalizer and special tokens.

    It splits text at spaces and punctuation, then each word, from its beginning, into the longest tokens of
    the vocabulary. vocabulary: {token: id}.
    """
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def bert_normalizer(config: dict, default: normalizers.Normalizer | None) -> normalizers.Normalizer | None:
    """Return the normalizer that a tokenizer_config.json asks for.

    config: the content of the file. default: the normalizer whose settings are used for keys that the file
    does not have; it is returned itself if the file has none of the keys. If strip_accents is null, accents
    are removed if text is lower-cased, as in BERT.
    """
    if not any(key in config for key in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")):
        return default
    base = default if isinstance(default, normalizers.BertNormalizer) else BERT_UNCASED
    return normalizers.BertNormalizer(
        clean_text=True,
        lowercase=bool(config.get("do_lower_case", base.lowercase)),
        strip_accents=config.get("strip_accents", base.strip_accents),
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", base.handle_chinese_chars)),
    )


def bert_template(backend: tokenizers.Tokenizer, cls: str, sep: str) -> processors.TemplateProcessing:
    """Return the post-processor that puts [CLS] and [SEP] around a sentence.

    cls, sep: how these two tokens are spelled in the vocabulary of backend.
    """
    boundaries = {"[CLS]": cls, "[SEP]": sep}
    return processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[template_special_token(*names, backend) for names in boundaries.items()],
    )


def template_special_token(name: str, token: str, backend: tokenizers.Tokenizer) -> dict:
    """Return the entry for a special token in the special_tokens of a template.

    name: what the template calls the token. token: its spelling in the vocabulary of backend, which cannot be
    used in a template if it contains a space, a colon or a dollar sign.
    """
    return {"id": name, "ids": [backend.token_to_id(token)], "tokens": [token]}


# ------------------------------------------------------------------------------- T5


def is_t5_tokenizer(backend: tokenizers.Tokenizer, config: dict) -> bool:
    """Return whether a tokenizer is a T5's, by the rule at the top of this file.

    backend: the tokenizer in tokenizer.json. config: the result of read_tokenizer_config.
    """
    if not isinstance(backend.model, models.Unigram):
        return False
    backend.no_padding()
    eos_id = backend.token_to_id(config["eos_token"] or T5_TOKENS["eos_token"])
    with library_errors("the tokenizer cannot read a text"):
        return config.get("tokenizer_class") in T5_CLASSES or backend.encode("").ids == [eos_id]


def t5_template(backend: tokenizers.Tokenizer, eos: str) -> processors.TemplateProcessing:
    """Return the post-processor that puts </s> after a sentence. eos: its spelling in the vocabulary."""
    return processors.TemplateProcessing(
        single=["$A", "</s>"],
        pair=["$A", "</s>", "$B", "</s>"],
        special_tokens=[template_special_token("</s>", eos, backend)],
    )
