"""The kinds of tokenizers: which special tokens they have, and how they are built from a vocabulary.

A kind is needed where the files do not say everything. A tokenizer.json does, but of WordPiece and unigram
models transformers takes only the vocabulary and the added tokens from it, and builds the rest in the same
way for every checkpoint of the kind; so does TokenizerKind.rebuild. Without a tokenizer.json,
TokenizerKind.read builds the tokenizer from the files of the vocabulary, where a kind has such a function.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tmft.checkpoints.sentencepiece import (
    build_unigram_tokenizer,
    deberta_tokenizer_from_spm,
    t5_tokenizer_from_spm,
)
from tmft.checkpoints.tokenizer_config import TokenizerConfig

BERT_UNCASED = normalizers.BertNormalizer(
    clean_text=True, lowercase=True, strip_accents=None, handle_chinese_chars=True
)


@dataclass(frozen=True)
class TokenizerKind:
    """An entry of TOKENIZER_KINDS. Each field is explained by a comment."""

    # The usual special tokens by their names in transformers, such as {"pad_token": "[PAD]"}.
    special_tokens: dict[str, str] = field(default_factory=dict)
    # What is put around one text, and around two, in the syntax of TemplateProcessing; and the names
    # of the tokens in it, which the vocabulary has to have. "": only a tokenizer.json can say it.
    template: str = ""
    pair_template: str = ""
    template_tokens: tuple[str, ...] = ()
    # The files of the vocabulary, and how a tokenizer without a template is built from them:
    # read(folder, config). None: such a tokenizer is only read from a tokenizer.json.
    vocabulary_files: tuple[str, ...] = ()
    read: Callable[[Path, TokenizerConfig], tokenizers.Tokenizer] | None = None
    # How it is built from the vocabulary in a tokenizer.json: rebuild(backend, content, config) with the
    # tokenizer and the parsed content of the file. None: the file is used unchanged.
    rebuild: (
        Callable[[tokenizers.Tokenizer, dict[str, Any], TokenizerConfig], tokenizers.Tokenizer] | None
    ) = None
    # The type of the model in a tokenizer.json of this kind; other files are used unchanged.
    model: type[models.Model] | None = None

    transformers_classes: tuple[str, ...] = ()  # the transformers classes of this kind, without "Fast"
    # The class that is written to saved folders, with which transformers builds the tokenizer again from its
    # vocabulary and parses the scores of tokens exactly; '': a class that uses tokenizer.json unchanged.
    saved_class: str = ""
    # The keys that this class needs in tokenizer_config.json besides the special tokens.
    saved_keys: Callable[[tokenizers.Tokenizer], dict[str, Any]] = lambda backend: {}

    def post_processor(
        self, backend: tokenizers.Tokenizer, special_tokens: dict[str, str]
    ) -> processors.TemplateProcessing:
        """Return the post-processor that puts the tokens of the template around a text.

        special_tokens: how the special tokens are spelled in the vocabulary of backend. In the template
        they have their usual spelling: another one may contain a space, a colon or a dollar sign.
        """
        spelled = {self.special_tokens[name]: special_tokens[name] for name in self.template_tokens}
        return processors.TemplateProcessing(
            single=self.template,
            pair=self.pair_template,
            special_tokens=[
                {"id": usual, "ids": [backend.token_to_id(token)], "tokens": [token]}
                for usual, token in spelled.items()
            ],
        )


# ------------------------------------------------------------------------------- WordPiece


def read_wordpiece(folder: Path, config: TokenizerConfig) -> tokenizers.Tokenizer:
    """Return the tokenizer of a vocab.txt, uncased unless the settings say otherwise.

    The file has one token per line; ids are line numbers, from 0.
    """
    with open(folder / "vocab.txt", encoding="utf-8", newline=None) as lines:  # "\r\n" ends a line, too
        vocabulary = {line.rstrip("\n"): id for id, line in enumerate(lines)}
    unk_token = config.special_tokens.get("unk_token", "[UNK]")
    if unk_token not in vocabulary:
        raise ValueError(f"vocab.txt has no {unk_token}, so it is not a WordPiece vocabulary")
    backend = wordpiece_tokenizer(vocabulary, unk_token)
    backend.normalizer = bert_normalizer(config, BERT_UNCASED)
    return backend


def rebuild_wordpiece(
    backend: tokenizers.Tokenizer, content: dict[str, Any], config: TokenizerConfig
) -> tokenizers.Tokenizer:
    """Return the tokenizer of a tokenizer.json with the normalizer that tokenizer_config.json asks for."""
    backend.normalizer = bert_normalizer(config, backend.normalizer)
    return backend


def wordpiece_tokenizer(vocabulary: dict[str, int], unk_token: str = "[UNK]") -> tokenizers.Tokenizer:
    """Return BERT's tokenizer, without normalizer and special tokens.

    It splits text at spaces and punctuation, then each word, from its beginning, into the longest tokens of
    the vocabulary. vocabulary: {token: id}. unk_token: the token for words that cannot be split into such
    tokens.
    """
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unk_token))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def bert_normalizer(
    config: TokenizerConfig, default: normalizers.Normalizer | None
) -> normalizers.Normalizer | None:
    """Return the normalizer that a tokenizer_config.json asks for.

    default: the normalizer whose settings are used for keys that the file does not have; it is returned
    itself if the file has none of the keys. If strip_accents is null, accents are removed only where text
    is lower-cased, as in BERT.
    """
    settings = config.content
    if not any(key in settings for key in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")):
        return default
    base = default if isinstance(default, normalizers.BertNormalizer) else BERT_UNCASED
    return normalizers.BertNormalizer(
        clean_text=True,
        lowercase=bool(settings.get("do_lower_case", base.lowercase)),
        strip_accents=settings.get("strip_accents", base.strip_accents),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", base.handle_chinese_chars)),
    )


# ------------------------------------------------------------------------------- byte-pair encoding


def read_byte_pairs(folder: Path, config: TokenizerConfig) -> tokenizers.Tokenizer:
    """Return RoBERTa's tokenizer, built from a vocab.json and a merges.txt.

    It splits text into words, each with the space before it; the key add_prefix_space says whether the first
    word gets a space, too. vocab.json: {token: id}. merges.txt: the two parts of a token per line, the pairs
    that are merged first at the top.
    """
    vocabulary, merges = models.BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    prefix_space = config.flag("add_prefix_space", False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


# ------------------------------------------------------------------------------- unigram


def rebuild_unigram(
    backend: tokenizers.Tokenizer, content: dict[str, Any], config: TokenizerConfig
) -> tokenizers.Tokenizer:
    """Return a tokenizer built from the vocabulary and the character map of a tokenizer.json.

    The scores of the vocabulary are taken from `content`, because Python parses them exactly and the library
    does not. This decides between splits of equal probability: "-------" is either "---" and "----" or the
    other way round.
    """
    normalizer = content.get("normalizer") or {}
    character_map = b""
    for step in normalizer.get("normalizers", [normalizer]):
        if step.get("type") == "Precompiled":
            character_map = base64.b64decode(step["precompiled_charsmap"], validate=True)
    pieces, unk_id = list(map(tuple, content["model"]["vocab"])), content["model"].get("unk_id")
    return build_unigram_tokenizer(pieces, unk_id, character_map, config.flag("add_prefix_space", True))


def t5_extra_keys(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the keys that a saved T5Tokenizer needs: how many sentinels there are."""
    return {"extra_ids": sum(token.startswith("<extra_id_") for token in backend.get_vocab())}


# ------------------------------------------------------------------------------- registry

BERT_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
ROBERTA_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}

BERT = TokenizerKind(
    special_tokens=BERT_TOKENS,
    template="[CLS] $A [SEP]",
    pair_template="[CLS] $A [SEP] $B:1 [SEP]:1",
    template_tokens=("cls_token", "sep_token"),
    vocabulary_files=("vocab.txt",),
    read=read_wordpiece,
    rebuild=rebuild_wordpiece,
    model=models.WordPiece,
    transformers_classes=("BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer"),
)
ROBERTA = TokenizerKind(
    special_tokens=ROBERTA_TOKENS,
    template="<s> $A </s>",
    pair_template="<s> $A </s> </s> $B </s>",
    template_tokens=("cls_token", "sep_token"),
    vocabulary_files=("vocab.json", "merges.txt"),
    read=read_byte_pairs,
    model=models.BPE,
    transformers_classes=("RobertaTokenizer",),
)
XLM_ROBERTA = replace(
    ROBERTA,
    template_tokens=("bos_token", "eos_token"),
    vocabulary_files=(),
    read=None,
    rebuild=rebuild_unigram,
    model=models.Unigram,
    transformers_classes=("XLMRobertaTokenizer",),
    saved_class="XLMRobertaTokenizer",
)
# If nothing says of which kind a tokenizer is, it is of the first kind whose files are there.
TOKENIZER_KINDS = {
    "bert": BERT,
    "mpnet": replace(
        BERT,
        special_tokens=ROBERTA_TOKENS | {"unk_token": "[UNK]"},
        template=ROBERTA.template,
        pair_template=ROBERTA.pair_template,
        transformers_classes=("MPNetTokenizer",),
    ),
    "deberta": replace(
        BERT,
        vocabulary_files=("spm.model",),
        read=deberta_tokenizer_from_spm,
        rebuild=None,
        model=models.Unigram,
        transformers_classes=("DebertaV2Tokenizer",),
    ),
    "t5": TokenizerKind(
        special_tokens={"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
        template="$A </s>",
        pair_template="$A </s> $B </s>",
        template_tokens=("eos_token",),
        vocabulary_files=("spiece.model",),
        read=t5_tokenizer_from_spm,
        rebuild=rebuild_unigram,
        model=models.Unigram,
        transformers_classes=("T5Tokenizer",),
        saved_class="T5Tokenizer",
        saved_keys=t5_extra_keys,
    ),
    "xlm-roberta": XLM_ROBERTA,
    "camembert": replace(
        XLM_ROBERTA, transformers_classes=("CamembertTokenizer",), saved_class="CamembertTokenizer"
    ),
    "roberta": ROBERTA,
    "generic": TokenizerKind(),  # whatever a tokenizer.json says
    "static": TokenizerKind(special_tokens=BERT_TOKENS),
}
KIND_BY_CLASS = {
    class_name: name for name, kind in TOKENIZER_KINDS.items() for class_name in kind.transformers_classes
}
