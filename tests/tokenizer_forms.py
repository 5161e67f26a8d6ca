"""Small trained tokenizers in every form of file that checkpoints have, and texts to compare them on.

A form is a folder as a checkpoint has it: a tokenizer.json, or the files of a vocabulary, with the settings
and the config.json that decide how transformers opens it.
"""

import io
import json
import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
from spm_model import made_up_sentences, train_spm
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tmft.checkpoints.sentencepiece import build_unigram_tokenizer, read_spm

# Texts in the scripts that a multilingual vocabulary has.
LANGUAGES = """The quick brown fox jumps over the lazy dog. | Größenwahn, Äpfel & Öl – „Anführung“ Straße
¿Qué pasó, señor? ¡Mañana será otro día! | Ça, c'est l'été où naïf œuvre. | Zażółć gęślą jaźń ŁÓDŹ
İstanbul'da ığdır şöyle | Đây là tiếng Việt có dấu. | Быстрая лиса прыгает; ёлка, йогурт.
Η γρήγορη αλεπού ώρα | العربية لغة جميلة، أليس كذلك؟ | עִבְרִית שפה יפה | हिन्दी में एक वाक्य है।
ภาษาไทยไม่มีช่องว่าง | தமிழ் மொழி | 한국어 문장입니다. 안녕하세요! | 하나
日本語の文章です。カタカナ、ひらがな | 中文句子，没有空格。
漢字かな交じり文 and English混ぜる
ქართული ენა | አማርኛ ቋንቋ | ភាសាខ្មែរ | 𝔱𝔥𝔢 𐍈 𠜎 beyond the first plane""".replace("\n", " | ").split(" | ")
EMOJI = "😀 👍🏽 👩‍👩‍👧‍👦 🇩🇪 ☃️ 🎈🎈 ❤️‍🔥 🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣".split(" ")
SPACES = [" "] * 12 + ["", "", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u2003", "\u3000"]
SPACES += ["\u200b", "\u2028", "\x0b", "\x85", " \n ", "\t\t"]
SPECIAL = """[CLS] [SEP] [PAD] [UNK] [MASK] [cls] <s> </s> <pad> <unk> <mask> <S> <MASK> <bos> <eos>
<|endoftext|> <|im_start|> <|im_end|> <|begin_of_text|>
<extra_id_0> <extra_id_99> <0x0A> <0xFF> ## ##s ▁ ▁the Ġ Ġthe Ċ <url> [Q]""".split()
ODD = [
    "e\u0301 cafe\u0301 a\u0308o\u0308 A\u030a \u2126 q\u0307\u0323 \u0344",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8",
    "ＦＵＬＬ ｗｉｄｔｈ ①②③ Ⅳ ™ ℃ ½ x² H₂O ㎏ ﷺ",
    "ﬁne oﬃce ﬂoor ﬆ ĳ ǆ … ‥",
    "1,234.56 € $5 50% 1/2 9, 3,4 2024-01-31 007 ٣٤ १२",
    "``quoted'' 'single' \"double\" don't I'll WE'RE can't'VE «und» ‘so’",
    "http://example.org/a?b=c&d=%20#e user@example.org C:\\path\\file.txt",
    "-------",
    "=" * 7 + "-" * 13 + "." * 5,
    "zero\u200bwidth soft\u00adhyphen bom\ufeff word\u2060joiner \u202eright to left\u202c",
    "lone combining \u0301 \u200d and \ufffd \ufffe \uffff \ue000 \U0010ffff",
    "\x00",
    "\x00\x01\x07\x1b[0m\x7f\x85\x9f",
    "İ ı ſ ß ẞ Σς ǅ ŉ",
]
ALPHABETS = ((0x20, 0x7E), (0, 0xFF), (0x100, 0x24F), (0x370, 0x5FF), (0x900, 0xE7F), (0x3040, 0x30FF))
ALPHABETS += ((0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1FAFF), (0x2000, 0x2BFF), (0, 0xD7FF))
ALPHABETS += ((0xE000, 0xFFFF), (0x10000, 0x10FFFF))
EDGES = [
    "",
    " ",
    "  ",
    "\n",
    "\t",
    " a",
    "a ",
    "  a",
    "a  ",
    "a  b",
    " \n a",
    "\u3000",
    "\u200b",
    "▁",
    " ▁ a",
]


def random_texts(count: int, seed: int) -> list[str]:
    """Return `count` different texts on which tokenizers may disagree.

    They mix words of many languages, emoji, control characters, special tokens written out (alone, between
    words, inside words), characters from anywhere in Unicode, very long words, and all kinds of spaces,
    leading, trailing, double and none. The first ones are short: empty, spaces, each special token.
    """
    chance = random.Random(seed)
    sentences = made_up_sentences(400, seed=seed) + [text for text in LANGUAGES for _ in range(8)]

    def part() -> str:
        kind = chance.random()
        if kind < 0.55:
            words = chance.choice(sentences).split()
            start = chance.randrange(len(words))
            words = words[start : start + chance.randint(1, 5)]
            text = " ".join(words)
            return text.upper() if kind < 0.03 else text.title() if kind < 0.06 else text
        if kind < 0.68:
            return chance.choice(SPECIAL)
        if kind < 0.74:
            return chance.choice(EMOJI)
        if kind < 0.84:
            odd = chance.choice(ODD)
            return odd if kind < 0.78 else chance.choice(odd.split(" "))
        if kind < 0.855:
            unit = chance.choice(["a", "ab", "lol", "1", "é", "中", "-", "x́", "😀"])
            return unit * chance.choice([30, 99, 101, 257])
        first, last = chance.choice(ALPHABETS)
        return "".join(chr(chance.randint(first, last)) for _ in range(chance.randint(1, 6)))

    texts = dict.fromkeys(
        [*EDGES, *SPECIAL, *(f"a {token} b" for token in SPECIAL), *ODD, *EMOJI, *LANGUAGES]
    )
    texts |= dict.fromkeys(["x" * 3000, "面包师修理那座桥" * 100, "Donaudampfschifffahrt" * 20 + " a"])
    while len(texts) < count:
        parts = [part() + chance.choice(SPACES) for _ in range(chance.randint(1, 6))]
        text = chance.choice(["", "", "", " ", "  ", "\n"]) + "".join(parts)
        texts[text.replace("\ud800", "") if chance.random() < 0.5 else text.strip(" ")] = None
    return list(texts)[:count]


# ------------------------------------------------------------------------------- vocabularies


def training_texts() -> list[str]:
    return made_up_sentences(400, seed=0) + LANGUAGES * 10 + ODD + EMOJI * 5


@cache
def wordpiece_vocabulary(first: tuple[str, ...], last: tuple[str, ...]) -> list[str]:
    """Return the tokens of a trained WordPiece vocabulary, with special tokens before and after them."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=1200, special_tokens=["[UNK]"], show_progress=False)
    texts = training_texts()
    backend.train_from_iterator(texts + [text.lower() for text in texts], trainer)
    vocabulary = sorted(backend.get_vocab())
    return [*first, *(token for token in vocabulary if token not in first + last), *last]


@cache
def byte_pairs(byte_level: bool) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the tokens and the merges of a trained byte-pair encoding.

    byte_level: its symbols are bytes; else characters, in texts with ▁ for each space.
    """
    backend = Tokenizer(models.BPE())
    alphabet = []
    if byte_level:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        backend.normalizer = normalizers.Replace(" ", "▁")
        backend.pre_tokenizer = pre_tokenizers.Split(Regex("▁?[^▁]+"), "isolated")
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([text.replace("\x00", "") for text in training_texts()], trainer)
    content = json.loads(backend.to_str())["model"]
    return tuple(content["vocab"]), tuple(map(tuple, content["merges"]))


@cache
def trained_spm(**settings) -> bytes:
    """Return a SentencePiece model with a unigram vocabulary of many languages."""
    sentencepiece = pytest.importorskip("sentencepiece")
    file = io.BytesIO()
    usual = {"vocab_size": 900, "hard_vocab_limit": False, "normalization_rule_name": "nmt_nfkc"}
    usual |= {"character_coverage": 1.0, "unk_piece": "<unk>", "pad_piece": "<pad>", "minloglevel": 2}
    texts = [text.replace("\x00", "").replace("\n", " ") for text in training_texts()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=file, **usual | settings
    )
    return file.getvalue()


# ------------------------------------------------------------------------------- files


def write(folder: Path, **files) -> None:
    """Write files: name -> text, bytes, or content of a JSON file; "tokenizer_config" is without ".json"."""
    for name, content in files.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        elif isinstance(content, str):
            (folder / name).write_text(content, encoding="utf-8")
        else:
            (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def template(single: str, backend: Tokenizer) -> processors.TemplateProcessing:
    """The post-processor for a template such as "<s> $A </s>"."""
    tokens = {token for token in single.split() if not token.startswith("$")}
    return processors.TemplateProcessing(
        single=single, special_tokens=[(token, backend.token_to_id(token)) for token in sorted(tokens)]
    )


def save_json(folder: Path, backend: Tokenizer, special: list[str], single: str, **options) -> None:
    """Save a tokenizer.json with special tokens and a template. options: of the token for masks."""
    for token in special:
        own = options if "mask" in token.lower() else {}
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False, **own)])
    if single:
        backend.post_processor = template(single, backend)
    backend.save(str(folder / "tokenizer.json"))


BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MPNET = ("<s>", "<pad>", "</s>", "<unk>")


def bert_vocabulary(folder: Path, **settings) -> None:
    write(folder, config={"model_type": "bert"})
    write(folder, **{"vocab.txt": "\n".join(wordpiece_vocabulary(BERT, ())) + "\n"})
    if settings:
        write(folder, tokenizer_config=settings)


def bert_both(folder: Path, **settings) -> None:
    """Beside vocab.txt a tokenizer.json that lower-cases: the settings count, as in transformers."""
    bert_json(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"]["lowercase"] = True
    (folder / "tokenizer_config.json").unlink()
    bert_vocabulary(folder, **settings)
    write(folder, tokenizer=content)


def bert_json(folder: Path) -> None:
    vocabulary = {token: id for id, token in enumerate(wordpiece_vocabulary(BERT, ()))}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    save_json(folder, backend, list(BERT), "[CLS] $A [SEP]")
    settings = {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False}
    write(folder, config={"model_type": "bert"}, tokenizer_config=settings)


def mpnet_vocabulary(folder: Path) -> None:
    tokens = wordpiece_vocabulary(MPNET, ("<mask>",))
    write(folder, config={"model_type": "mpnet"}, tokenizer_config={"do_lower_case": True})
    write(folder, **{"vocab.txt": "\n".join(tokens) + "\n"})


def byte_level_vocabulary(first: list[str], last: list[str]) -> dict[str, int]:
    return {token: id for id, token in enumerate([*first, *byte_pairs(byte_level=True)[0], *last])}


ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]


def roberta_vocabulary(folder: Path, **settings) -> None:
    """As FacebookAI/roberta-base in its first years, with special_tokens_map.json if settings name it."""
    special_tokens_map = settings.pop("special_tokens_map", None)
    merges = "#version: 0.2\n" + "\n".join(map(" ".join, byte_pairs(byte_level=True)[1])) + "\n"
    write(folder, config={"model_type": "roberta"}, vocab=byte_level_vocabulary(ROBERTA, ["<mask>"]))
    write(folder, **{"merges.txt": merges})
    if settings:
        write(folder, tokenizer_config=settings)
    if special_tokens_map:
        write(folder, special_tokens_map=special_tokens_map)


def roberta_old(folder: Path) -> None:
    mask = {"content": "<mask>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False}
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>"}
    names |= {"pad_token": "<pad>", "cls_token": "<s>", "mask_token": mask}
    roberta_vocabulary(folder, special_tokens_map=names, model_max_length=512)


def byte_level_backend(first: list[str], last: list[str]) -> Tokenizer:
    merges = list(byte_pairs(byte_level=True)[1])
    backend = Tokenizer(models.BPE(byte_level_vocabulary(first, last), merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def roberta_json(folder: Path) -> None:
    backend = byte_level_backend(ROBERTA, ["<mask>"])
    save_json(folder, backend, [*ROBERTA, "<mask>"], "<s> $A </s>", lstrip=True)
    write(folder, config={"model_type": "roberta"}, tokenizer_config={"tokenizer_class": "RobertaTokenizer"})


def modernbert_json(folder: Path) -> None:
    """A byte-level encoding with BERT's names behind the vocabulary, as ModernBERT has."""
    backend = byte_level_backend([], [])
    backend.normalizer = normalizers.NFC()
    special = ["<|endoftext|>", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    save_json(folder, backend, special, "[CLS] $A [SEP]", lstrip=True)
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "CLS", "SEP", "PAD", "MASK")}
    write(folder, config={"model_type": "modernbert"})
    write(folder, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **names})


QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


def qwen_settings(first_id: int) -> dict:
    options = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    tokens = {str(first_id + n): {"content": token, **options} for n, token in enumerate(QWEN)}
    return {
        "added_tokens_decoder": tokens,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": QWEN[1:],
        "add_prefix_space": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def qwen_json(folder: Path) -> None:
    """As Qwen3-Embedding: the closing token is the one for padding."""
    backend = byte_level_backend([], [])
    backend.normalizer = normalizers.NFC()
    parts = [pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated")]
    parts += [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    save_json(folder, backend, QWEN, "$A <|endoftext|>")
    settings = qwen_settings(backend.token_to_id(QWEN[0]))
    write(folder, config={"model_type": "qwen3"}, tokenizer_config=settings)


def plain_qwen_json(folder: Path) -> None:
    """A base model: nothing is put around a text."""
    qwen_json(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    write(folder, tokenizer=content | {"post_processor": byte_level})


def llama2_json(folder: Path, single: str = "<s> $A </s>", **settings) -> None:
    """As the embedding models built on Mistral: characters that are not in the vocabulary become bytes."""
    tokens, merges = byte_pairs(byte_level=False)
    first = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    vocabulary = {token: id for id, token in enumerate([*first, *tokens])}
    backend = Tokenizer(
        models.BPE(vocabulary, list(merges), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    save_json(folder, backend, ["<unk>", "<s>", "</s>"], single)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, **names, **settings}
    write(folder, config={"model_type": "mistral"}, tokenizer_config=settings)


def newer_pipeline(content: dict) -> dict:
    """A tokenizer.json as newer conversions write it: spaces are treated before words are cut."""
    steps = [content["normalizer"], {"type": "Strip", "strip_left": False, "strip_right": True}]
    steps += [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    normalizer = {"type": "Sequence", "normalizers": steps}
    return content | {"normalizer": normalizer, "pre_tokenizer": metaspace}


def unigram_json(folder: Path, first: list[tuple[str, float]], dropped: int, special: list[str]) -> dict:
    """Save the tokenizer.json of an XLM-RoBERTa or a CamemBERT; return its content.

    first: the pieces that take the place of the first ones of the SentencePiece file, `dropped` of them.
    """
    (folder / "spm").write_bytes(trained_spm(pad_id=-1, unk_id=0, bos_id=1, eos_id=2))
    model = read_spm(folder / "spm")
    (folder / "spm").unlink()
    pieces = [*first, *model.pieces[dropped:], ("<mask>", 0.0)]
    backend = build_unigram_tokenizer(pieces, 3, model.character_map, True)
    save_json(folder, backend, [*special, "<mask>"], "<s> $A </s>", lstrip=True)
    return json.loads((folder / "tokenizer.json").read_text())


def xlm_roberta_json(folder: Path, newer: bool) -> None:
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    content = unigram_json(folder, [(token, 0.0) for token in special], 3, special)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>"}
    names |= {"pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>"}
    settings = {"tokenizer_class": "XLMRobertaTokenizer"} | names
    write(folder, config={"model_type": "xlm-roberta"}, tokenizer_config=settings)
    write(folder, tokenizer=newer_pipeline(content) if newer else content)


def camembert_json(folder: Path) -> None:
    first = [(token, 0.0) for token in ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>")]
    first.append(("<unk>NOTUSED", -100.0))
    content = unigram_json(folder, first, 1, ["<s>", "<pad>", "</s>", "<unk>"])
    write(folder, config={"model_type": "camembert"})
    write(folder, tokenizer_config={"tokenizer_class": "CamembertTokenizer", "mask_token": "<mask>"})
    write(folder, tokenizer=newer_pipeline(content))


def t5_vocabulary(folder: Path, settings: dict | None = None, **trainer) -> None:
    """trainer: other settings of the trainer of the SentencePiece model."""
    spiece = trained_spm(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, **trainer)
    write(folder, config={"model_type": "t5"}, **{"spiece.model": spiece})
    if settings:
        write(folder, tokenizer_config=settings)


def t5_json(folder: Path) -> None:
    from tmft.checkpoints.tokenizers import load_tokenizer

    t5_vocabulary(folder)
    content = json.loads(load_tokenizer(folder).backend.to_str())
    (folder / "spiece.model").unlink()
    write(folder, tokenizer_config={"tokenizer_class": "T5Tokenizer", "eos_token": "</s>"})
    write(folder, tokenizer=newer_pipeline(content))


def t5_json_with_new_tokens(folder: Path) -> None:
    t5_json(folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens(["guitarra", "ＦＵＬＬ"])
    backend.add_special_tokens([AddedToken("[Q]", lstrip=True)])
    backend.save(str(folder / "tokenizer.json"))


def deberta_vocabulary(folder: Path, **settings) -> None:
    settings = {"do_lower_case": False, "vocab_type": "spm"} | settings
    write(folder, config={"model_type": "deberta-v2"}, tokenizer_config=settings)
    write(folder, **{"spm.model": train_spm()})


FORMS: dict[str, Callable[[Path], None]] = {
    "bert vocab.txt": bert_vocabulary,
    "bert tokenizer.json": bert_json,
    "mpnet vocab.txt": mpnet_vocabulary,
    "roberta vocab.json": roberta_vocabulary,
    "roberta vocab.json, prefix space": lambda folder: roberta_vocabulary(folder, add_prefix_space=True),
    "roberta vocab.json, special_tokens_map.json": roberta_old,
    "roberta tokenizer.json": roberta_json,
    "modernbert tokenizer.json": modernbert_json,
    "qwen embedding tokenizer.json": qwen_json,
    "qwen tokenizer.json, no template": plain_qwen_json,
    "mistral tokenizer.json": llama2_json,
    "xlm-roberta tokenizer.json": lambda folder: xlm_roberta_json(folder, newer=False),
    "xlm-roberta newer tokenizer.json": lambda folder: xlm_roberta_json(folder, newer=True),
    "camembert tokenizer.json": camembert_json,
    "t5 spiece.model": t5_vocabulary,
    "t5 tokenizer.json": t5_json,
    "deberta spm.model": deberta_vocabulary,
}
# The same files with other settings, such as repositories have.
BERT_SETTINGS = {
    "cased, accents stripped": {"do_lower_case": False, "strip_accents": True},
    "uncased, accents kept": {"do_lower_case": True, "strip_accents": False},
    "Chinese characters not split": {"do_lower_case": False, "tokenize_chinese_chars": False},
}
SETTINGS: dict[str, Callable[[Path], None]] = {
    "deberta spm.model, lower case": partial(deberta_vocabulary, do_lower_case=True),
    "deberta spm.model, split at punctuation": partial(deberta_vocabulary, split_by_punct=True),
    "t5 tokenizer.json, new tokens": t5_json_with_new_tokens,
    "t5 spiece.model, bytes": partial(t5_vocabulary, byte_fallback=True),
    "t5 spiece.model, no character map": partial(t5_vocabulary, normalization_rule_name="identity"),
    "t5 spiece.model, 7 sentinels": partial(t5_vocabulary, settings={"extra_ids": 7}),
}
for name, settings in BERT_SETTINGS.items():
    SETTINGS[f"bert vocab.txt, {name}"] = partial(bert_vocabulary, **settings)
    SETTINGS[f"bert vocab.txt beside a tokenizer.json, {name}"] = partial(bert_both, **settings)
