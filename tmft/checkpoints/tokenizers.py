"""tokenizer.json, vocab.txt, spm.model or spiece.model -> a tokenizers.Tokenizer, ids as in transformers.

How text is cleaned is said in three places, and they may disagree: the normalizer inside tokenizer.json, the
keys do_lower_case, strip_accents and tokenize_chinese_chars of tokenizer_config.json, and BERT's defaults.
Here, as in transformers, a key of tokenizer_config.json wins. Where it is silent, the tokenizer.json is taken
at its word (transformers 5 would lower-case a cased one), and a bare vocab.txt is uncased, as in BERT.

A DeBERTa may come with spm.model alone. Its text is then cleaned as transformers 5 does it, not as 4 did:
spaces in a row become one, and Unicode is composed (NFC). Version 4 applied the character map in the file,
which also replaces ligatures, full-width letters and the ellipsis by plain characters (NFKC) and drops what
has no width. Other text has the same ids in both; both leave out SentencePiece's fallback to bytes.

A T5 closes a sentence with </s> and puts nothing in front. spiece.model is its name for an spm.model. A
tokenizer.json is a T5's if tokenizer_config.json calls it T5Tokenizer, or if it is a unigram model and makes
of an empty text </s> alone. Only its vocabulary and its character map are taken, as in transformers 5: files
of different age differ in what spaces at the ends and in a row become. Here they are none and one, whatever
the file says, and a ▁ stands before each word. The character map, unlike DeBERTa's, is that of the file.
"""

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from tmft.checkpoints.sentencepiece import t5_from_spm, unigram
from tmft.checkpoints.st_modules import home_of, is_static
from tmft.checkpoints.tokenizer_json import library_errors, read_tokenizer_json, t5_from_json
from tmft.errors import InputError, short
from tmft.io.atomic import read_json, reason
from tmft.io.json_values import is_text, value_of
from tmft.models.static import LONGEST

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "spm.model", "spiece.model", "tokenizer_config.json")
SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
T5_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
ENDS = ("cls_token", "sep_token", "eos_token")  # what a sentence stands between, of either kind
T5_CLASSES = ("T5Tokenizer", "T5TokenizerFast")
AS_IS = ("PreTrainedTokenizerFast", "TokenizersBackend")  # for these tokenizer.json is the whole truth
BERT_UNCASED = normalizers.BertNormalizer(
    clean_text=True, lowercase=True, strip_accents=None, handle_chinese_chars=True
)


class Tokenizer:
    """Sentences to lists of token ids, [CLS] and [SEP] or a T5's </s> included.

    backend: the tokenizers.Tokenizer, without padding or truncation. special: {"cls_token": "[CLS]", ...}.
    max_length: the limit that tokenizer_config.json states, in tokens, or None. bare: adds no special tokens,
    as static models want it; a text may then have none at all. opens_as: the class of transformers to open
    its files with; a T5Tokenizer builds the same again, others take the tokenizer.json as it is.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: dict[str, str],
        max_length: int | None = None,
        bare: bool = False,
        opens_as: str = AS_IS[0],
    ):
        if bare and backend.truncation:  # other tokenizers have their limit elsewhere, too
            max_length = max_length or backend.truncation["max_length"]
        self.backend, self.special, self.max_length, self.bare = backend, special, max_length, bare
        self.opens_as = opens_as
        backend.no_padding()
        backend.no_truncation()
        self.pad_id = backend.token_to_id(special["pad_token"]) if "pad_token" in special else 0

    def __call__(self, sentences: list[str], max_length: int, tail: int = 1) -> tuple[list[list[int]], int]:
        """-> the token ids of each sentence, at most max_length of them, and how many sentences were cut.

        One that is too long loses words before its last `tail` tokens; mostly that is the closing one.
        """
        ids = self.ids_of(sentences, special=not self.bare)
        cut = [s for s, tokens in enumerate(ids) if len(tokens) > max_length]
        for s in cut:
            ids[s] = ids[s][: max_length - tail] + ids[s][len(ids[s]) - tail :]
        return ids, len(cut)

    def ids_of(self, texts: list[str], special: bool) -> list[list[int]]:
        """The token ids of each text, all of them; special: with special tokens around them.

        Raises InputError where the tokenizer's own files cannot be followed with a text."""
        with library_errors("the tokenizer cannot read a text"):
            return [of.ids for of in self.backend.encode_batch_fast(texts, add_special_tokens=special)]

    @property
    def words(self) -> list[str]:
        """The vocabulary in the order of the ids; a number that belongs to no token is named by itself."""
        of_id = {id: token for token, id in self.backend.get_vocab().items()}
        return [of_id.get(id, f"[{id}]") for id in range(max(of_id) + 1)]

    @property
    def special_ends(self) -> tuple[int, int]:
        """How many special tokens it puts before a sentence and after it."""
        added = 0 if self.bare else self.backend.num_special_tokens_to_add(False)
        before = min(added, int("cls_token" in self.special))
        return before, added - before

    def files(self, max_length: int) -> dict[str, str]:
        """{file name: content} of a folder whose tokenizer gives these ids here and in transformers."""
        settings = {
            "tokenizer_class": self.opens_as,
            "model_max_length": max_length,
            **self.special,
        }
        if self.opens_as in T5_CLASSES:
            settings["extra_ids"] = sum(token.startswith("<extra_id_") for token in self.backend.get_vocab())
        backend = self.backend
        if self.bare and max_length < LONGEST:
            backend = tokenizers.Tokenizer.from_str(backend.to_str())
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


def length_limit(tokenizer: Tokenizer, max_length: int | None, most: int, usual: int) -> int:
    """How many tokens of a sentence are read: max_length, None: what the tokenizer says, else `usual`.

    At most `most`.

    Raises InputError if there is no room for a word between the special tokens, or too few places.
    """
    if max_length is None:
        max_length = min(most, tokenizer.max_length or usual)
    if not 3 <= max_length <= most:
        table = ", the size of the position table" if most < LONGEST else ""
        raise InputError(f"max_length {max_length}: choose 3 to {most}{table}", "max_length")
    return max_length


def load_tokenizer(folder: Path, lower_case: bool = False, max_length: int | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder.

    lower_case: text is lower-cased first, whatever its files say; max_length: the limit, None: what they say.
    Raises InputError if there is none or it cannot be read.
    """
    bare, folder = is_static(folder), home_of(folder)
    settings = read_settings(folder / "tokenizer_config.json")
    with library_errors(f"{folder} has no tokenizer"):
        backend, usual, rebuild = read_backend(folder, settings, bare)

    named = {key: settings.get(key) or token for key, token in usual.items()}
    special = {key: token for key, token in named.items() if backend.token_to_id(token) is not None}
    ends = [key for key in ENDS if key in usual]
    for key in ends:
        if key not in special and not bare:
            raise InputError(f"the vocabulary has no {named[key]} ({folder}): it needs one")
    if rebuild:
        backend.add_special_tokens([AddedToken(token, special=True) for token in special.values()])
        template = t5_template if usual is T5_TOKENS else bert_template
        backend.post_processor = template(backend, *(special[key] for key in ends))
    if lower_case:
        cleaning = [backend.normalizer] if backend.normalizer is not None else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *cleaning])

    # The length limit has two spellings, old files use the second.
    limits = [settings.get(key) for key in ("model_max_length", "max_len")]
    said = [int(limit) for limit in limits if isinstance(limit, (int, float)) and 0 < limit < 1e9]
    opens_as = T5_CLASSES[0] if rebuild and usual is T5_TOKENS and not lower_case else AS_IS[0]
    tokenizer = Tokenizer(backend, special, max_length or next(iter(said), None), bare, opens_as)
    if unknown := [
        id for id in tokenizer.ids_of([""], special=not bare)[0] if backend.id_to_token(id) is None
    ]:
        raise InputError(
            f"no token has the id {unknown[0]}, which stands around a text ({folder}): restore it"
        )
    return tokenizer


def read_settings(path: Path) -> dict:
    """tokenizer_config.json, {} if there is none, with a name for each special token. Raises InputError if
    something in it is of another kind."""
    settings = read_json(path) if path.is_file() else {}
    value_of(settings, "strip_accents", bool, path)
    for key in SPECIAL_TOKENS | T5_TOKENS:
        token = settings.get(key) or ""
        settings[key] = token.get("content") if isinstance(token, dict) else token
        if not is_text(settings[key]):
            raise InputError(f"{path} has {key} {short(token)}: expected a text")
    return settings


def read_backend(
    folder: Path, settings: dict, bare: bool
) -> tuple[tokenizers.Tokenizer, dict[str, str], bool]:
    """-> what cuts text into tokens; the usual names of its special tokens, SPECIAL_TOKENS or T5_TOKENS; and
    whether these, and the template that puts them around a sentence, are still to be set."""
    if (folder / "tokenizer.json").is_file():
        path, name = folder / "tokenizer.json", settings.get("tokenizer_class")
        backend, content = read_tokenizer_json(path)
        as_is = bare or name in AS_IS
        if is_t5(backend, settings):
            if as_is or name not in (None, *T5_CLASSES):
                return backend, T5_TOKENS, False
            return t5_from_json(content, path, backend), T5_TOKENS, True
        if as_is or not isinstance(backend.model, models.WordPiece):
            return backend, SPECIAL_TOKENS, False
        backend.normalizer = bert_normalizer(settings, backend.normalizer)
    elif (folder / "vocab.txt").is_file():
        backend = wordpiece(read_vocabulary(folder / "vocab.txt"))
        backend.normalizer = bert_normalizer(settings, BERT_UNCASED)
    elif (folder / "spm.model").is_file():
        mask = settings["mask_token"] or SPECIAL_TOKENS["mask_token"]
        backend = unigram(folder / "spm.model", settings, mask)
    elif (folder / "spiece.model").is_file():
        return t5_from_spm(folder / "spiece.model", settings), T5_TOKENS, True
    else:
        raise InputError(f"no tokenizer in {folder}: expected one of {', '.join(TOKENIZER_FILES[:-1])}")
    return backend, SPECIAL_TOKENS, True


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


def is_t5(backend: tokenizers.Tokenizer, settings: dict) -> bool:
    """Whether a tokenizer.json is that of a T5: see the top of this file."""
    if not isinstance(backend.model, models.Unigram):
        return False
    backend.no_padding()
    closing = backend.token_to_id(settings["eos_token"] or T5_TOKENS["eos_token"])
    with library_errors("the tokenizer cannot read a text"):
        return settings.get("tokenizer_class") in T5_CLASSES or backend.encode("").ids == [closing]


def t5_template(backend: tokenizers.Tokenizer, eos: str) -> processors.TemplateProcessing:
    named = [named_in_template("</s>", eos, backend)]
    return processors.TemplateProcessing(
        single=["$A", "</s>"], pair=["$A", "</s>", "$B", "</s>"], special_tokens=named
    )


def named_in_template(name: str, token: str, backend: tokenizers.Tokenizer) -> dict:
    """A special token for a template, by a name of ours there: in its own a space, : or $ would mean more."""
    return {"id": name, "ids": [backend.token_to_id(token)], "tokens": [token]}


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
    ends = {"[CLS]": cls, "[SEP]": sep}
    return processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[named_in_template(*end, backend) for end in ends.items()],
    )
