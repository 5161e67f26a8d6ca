"""tokenizer.json, vocab.txt or spm.model -> one tokenizers.Tokenizer with the token ids of transformers.

How text is cleaned is said in three places, and they may disagree: the normalizer inside tokenizer.json, the
keys do_lower_case, strip_accents and tokenize_chinese_chars of tokenizer_config.json, and BERT's defaults.
Here, as in transformers, a key of tokenizer_config.json wins. Where it is silent, the tokenizer.json is taken
at its word (transformers 5 would lower-case a cased one), and a bare vocab.txt is uncased, as in BERT.

A DeBERTa may come with spm.model alone. Its text is then cleaned as transformers 5 does it, not as 4 did:
spaces in a row become one, and Unicode is composed (NFC). Version 4 applied the character map in the file,
which also replaces ligatures, full-width letters and the ellipsis by plain characters (NFKC) and drops what
has no width. Other text has the same ids in both; both leave out SentencePiece's fallback to bytes.
"""

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from tmft.errors import InputError
from tmft.families.static import LONGEST
from tmft.files.folder import read_json, reason
from tmft.files.layout import home_of, is_static
from tmft.files.spm import CONTROL, USER_DEFINED, SentencePieceModel, read_spm

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "spm.model", "tokenizer_config.json")
SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
AS_IS = ("PreTrainedTokenizerFast", "TokenizersBackend")  # for these tokenizer.json is the whole truth
BERT_UNCASED = normalizers.BertNormalizer(
    clean_text=True, lowercase=True, strip_accents=None, handle_chinese_chars=True
)


class Tokenizer:
    """Sentences to lists of token ids, [CLS] and [SEP] included.

    backend: the tokenizers.Tokenizer, without padding or truncation. special: {"cls_token": "[CLS]", ...}.
    max_length: the limit that tokenizer_config.json states, in tokens, or None. bare: adds no [CLS] or [SEP],
    as static models want it; a text may then have no token.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: dict[str, str],
        max_length: int | None = None,
        bare: bool = False,
    ):
        if bare and backend.truncation:  # other tokenizers have their limit elsewhere, too
            max_length = max_length or backend.truncation["max_length"]
        self.backend, self.special, self.max_length, self.bare = backend, special, max_length, bare
        backend.no_padding()
        backend.no_truncation()
        self.pad_id = backend.token_to_id(special["pad_token"]) if "pad_token" in special else 0

    def __call__(self, sentences: list[str], max_length: int, tail: int = 1) -> tuple[list[list[int]], int]:
        """-> the token ids of each sentence, at most max_length of them, and how many sentences were cut.

        One that is too long loses words before its last `tail` tokens; mostly that is the closing [SEP].
        """
        encodings = self.backend.encode_batch_fast(sentences, add_special_tokens=not self.bare)
        ids = [encoding.ids for encoding in encodings]
        cut = [s for s, tokens in enumerate(ids) if len(tokens) > max_length]
        for s in cut:
            ids[s] = ids[s][: max_length - tail] + ids[s][len(ids[s]) - tail :]
        return ids, len(cut)

    @property
    def words(self) -> list[str]:
        """The vocabulary in the order of the ids; a number that belongs to no token is named by itself."""
        of_id = {id: token for token, id in self.backend.get_vocab().items()}
        return [of_id.get(id, f"[{id}]") for id in range(max(of_id) + 1)]

    @property
    def special_ends(self) -> tuple[int, int]:
        """How many special tokens it puts before a sentence and after it."""
        added = 0 if self.bare else self.backend.num_special_tokens_to_add(False)
        return min(added, 1), max(added - 1, 0)

    def files(self, max_length: int) -> dict[str, str]:
        """{file name: content} of a folder whose tokenizer gives these ids here and in transformers."""
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            **self.special,
        }
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        if self.bare and max_length < LONGEST:
            backend.enable_truncation(max_length)
        return {
            "tokenizer.json": backend.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False) + "\n",
        }


def check_ids(tokenizer: Tokenizer, vocab_size: int, source: str) -> None:
    """Raises InputError if the tokenizer gives an id that an embedding table of vocab_size rows has not."""
    largest_id = max(tokenizer.backend.get_vocab().values())
    if largest_id >= vocab_size:
        raise InputError(
            f"the tokenizer gives ids up to {largest_id}, the embedding table has {vocab_size} rows "
            f"({source}): the two are not of one checkpoint"
        )


def length_limit(tokenizer: Tokenizer, max_length: int | None, most: int) -> int:
    """How many tokens of a sentence are read: max_length, None: what the tokenizer says; at most `most`.

    Raises InputError if there is no room for a word between the special tokens, or too few places.
    """
    if max_length is None:
        max_length = min(most, tokenizer.max_length or most)
    if not 3 <= max_length <= most:
        bounds = f"3 to {most}, the size of the position table"
        raise InputError(f"max_length {max_length}: choose {bounds}", "max_length")
    return max_length


def load_tokenizer(folder: Path, lower_case: bool = False, max_length: int | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder.

    lower_case: text is lower-cased first, whatever its files say; max_length: the limit, None: what they say.
    Raises InputError if there is none or it cannot be read.
    """
    bare, folder = is_static(folder), home_of(folder)
    said = folder / "tokenizer_config.json"
    settings = read_json(said) if said.is_file() else {}
    if (folder / "tokenizer.json").is_file():
        path = folder / "tokenizer.json"
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises nothing more precise
            raise InputError(f"{path} is not a tokenizer ({reason(error)}): restore the file") from None
        as_is = bare or settings.get("tokenizer_class") in AS_IS
        rebuild = isinstance(backend.model, models.WordPiece) and not as_is
        if rebuild:
            backend.normalizer = bert_normalizer(settings, backend.normalizer)
    elif (folder / "vocab.txt").is_file():
        backend = wordpiece(read_vocabulary(folder / "vocab.txt"))
        backend.normalizer = bert_normalizer(settings, BERT_UNCASED)
        rebuild = True
    elif (folder / "spm.model").is_file():
        backend = unigram(read_spm(folder / "spm.model"), settings)
        rebuild = True
    else:
        raise InputError(f"no tokenizer in {folder}: expected tokenizer.json, vocab.txt or spm.model")

    special = {}
    for key in SPECIAL_TOKENS:
        token = special_token(settings, key)
        if backend.token_to_id(token) is not None:
            special[key] = token
    for key in ("cls_token", "sep_token"):
        if key not in special and not bare:
            raise InputError(
                f"the vocabulary has no {settings.get(key) or SPECIAL_TOKENS[key]} ({folder}): it needs one"
            )
    if rebuild:
        backend.add_special_tokens([AddedToken(token, special=True) for token in special.values()])
        backend.post_processor = bert_template(backend, special["cls_token"], special["sep_token"])
    if lower_case:
        cleaning = [backend.normalizer] if backend.normalizer is not None else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *cleaning])

    # The length limit has two spellings, old files use the second.
    limits = [settings.get(key) for key in ("model_max_length", "max_len")]
    said = [int(limit) for limit in limits if isinstance(limit, (int, float)) and 0 < limit < 1e9]
    return Tokenizer(backend, special, max_length or next(iter(said), None), bare)


def special_token(settings: dict, key: str) -> str:
    """The token that tokenizer_config.json names for "cls_token" etc., else the usual one."""
    token = settings.get(key) or SPECIAL_TOKENS[key]
    return token["content"] if isinstance(token, dict) else token


def read_vocabulary(path: Path) -> dict[str, int]:
    """vocab.txt: one token per line, the id is the number of the line, from 0."""
    try:
        with open(path, encoding="utf-8") as lines:
            vocabulary = {line.rstrip("\n"): number for number, line in enumerate(lines)}
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a vocabulary in UTF-8 ({reason(error)}): restore the file") from None
    if "[UNK]" not in vocabulary:
        raise InputError(f"{path} has no [UNK]: this is not a WordPiece vocabulary")
    return vocabulary


def wordpiece(vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    """BERT's tokenizer around a vocabulary: split at spaces and punctuation, then the longest piece first."""
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def unigram(model: SentencePieceModel, settings: dict) -> tokenizers.Tokenizer:
    """DeBERTa's tokenizer around the pieces of an spm.model: the most probable way to cut text into pieces.

    Pieces keep their numbers; [MASK], which is not one of them, gets the next.
    """
    backend = tokenizers.Tokenizer(models.Unigram(model.pieces, unk_id=model.unk_id, byte_fallback=False))
    cleaning = [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC()]
    cleaning += [normalizers.Strip(left=False, right=True)]
    splitting = [pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    if settings.get("do_lower_case"):
        cleaning.insert(0, normalizers.Lowercase())
    if settings.get("split_by_punct"):
        splitting.insert(0, pre_tokenizers.Punctuation("isolated"))
    backend.normalizer = normalizers.Sequence(cleaning)
    backend.pre_tokenizer = pre_tokenizers.Sequence(splitting)
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    for (piece, _), kind in zip(model.pieces, model.types, strict=True):
        if kind in (CONTROL, USER_DEFINED):  # found in the text before it is cut
            backend.add_tokens([AddedToken(piece, normalized=False, special=kind == CONTROL)])
    backend.add_special_tokens([AddedToken(special_token(settings, "mask_token"), special=True)])
    return backend


def bert_normalizer(
    settings: dict, otherwise: normalizers.Normalizer | None
) -> normalizers.Normalizer | None:
    """The cleaning that tokenizer_config.json asks for; `otherwise` decides what it does not say.

    strip_accents: null means "if lower-casing", as in BERT.
    """
    if not any(key in settings for key in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")):
        return otherwise
    base = otherwise if isinstance(otherwise, normalizers.BertNormalizer) else BERT_UNCASED
    return normalizers.BertNormalizer(
        clean_text=True,
        lowercase=bool(settings.get("do_lower_case", base.lowercase)),
        strip_accents=settings.get("strip_accents", base.strip_accents),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", base.handle_chinese_chars)),
    )


def bert_template(backend: tokenizers.Tokenizer, cls: str, sep: str) -> processors.TemplateProcessing:
    ids = [(token, backend.token_to_id(token)) for token in (cls, sep)]
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0", pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1", special_tokens=ids
    )
