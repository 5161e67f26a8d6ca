"""The ids are those of transformers, whatever the tokenizer files look like and the text contains."""

import json

import pytest
import transformers
from conftest import SENTENCES, VOCABULARY, vocabulary_folder

from tmft.errors import InputError
from tmft.files.tokenizer import load_tokenizer

NASTY = [
    "A man plays the guitar.",
    "",
    " \t\n  ",
    "ÀÉÎõü Ünïcödé façade Straße ŁÓDŹ İstanbul ﬁne",
    "Größenwahn, Äpfel & Öl – „Anführung“",
    "¿Qué pasó, señor? ¡Mañana será otro día!",
    "한국어 문장입니다. 안녕하세요, 세계! 가나다",
    "漢字かな交じり文 and English混ぜる",
    "emoji 😀👍🏽 👩‍👩‍👧 flags 🇩🇪",
    "zero\u200bwidth, soft\u00adhyphen, nbsp\u00a0here, bom\ufeff",
    "control \x00 \x07 \x1b[0m chars \u2028 line \u2029 para",
    "e\u0301 decomposed, é composed, a\u0308o\u0308",
    "http://example.org/a?b=c&d=%20 e-mail@example.org #tag @user",
    "x" * 150 + " " + "ab" * 60,
    "1,234.56 € $5 50% 1/2 ½ x² H₂O",
    "don't can't won't 'quoted' ``ticks'' \"double\"",
    "[CLS] [SEP] [MASK] [PAD] [UNK] in the text",
    "العربية עברית हिन्दी ไทย русский Ελληνικά",
    "ＦＵＬＬ ｗｉｄｔｈ ①②③ Ⅳ ™ ℃",
    "tabs\tand\r\nnewlines\n",
]
SETTINGS = {
    "uncased": {"do_lower_case": True},
    "bare vocab.txt": {},
    "cased": {"do_lower_case": False, "model_max_length": 512},
    "cased, accents stripped": {"do_lower_case": False, "strip_accents": True},
    "uncased, accents kept": {"do_lower_case": True, "strip_accents": False},
    "GELECTRA": {"do_lower_case": False, "max_len": 512, "init_inputs": [], "strip_accents": False},
    "KLUE": {"do_lower_case": False, "strip_accents": None, "model_max_length": 512},
    "Electricidad": {"do_lower_case": True, "strip_accents": None},
    "BETO": {"do_lower_case": False, "strip_accents": False},
    "Chinese characters not split": {"do_lower_case": False, "tokenize_chinese_chars": False},
}


def rich_folder(tmp_path, settings):
    """A vocabulary with every character of the nasty sample, so that few words end as [UNK]."""
    characters = sorted({c for text in NASTY for c in text + text.lower() if not c.isspace()})
    pieces = [*VOCABULARY, *characters, *("##" + c for c in characters)]
    (tmp_path / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)) + "\n", encoding="utf-8")
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def theirs(folder) -> list[list[int]]:
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    return [tokenizer(text)["input_ids"] for text in NASTY]


@pytest.mark.parametrize("name", SETTINGS)
def test_ids_equal_those_of_transformers(name, tmp_path):
    folder = rich_folder(tmp_path, SETTINGS[name])
    ids, _ = load_tokenizer(folder)(NASTY, max_length=10**6)
    assert ids == theirs(folder)
    assert len({token for sentence in ids for token in sentence}) > 100  # the sample is not all [UNK]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_tokenizer_json_beside_it_changes_nothing(name, tmp_path):
    """The JSON says uncased; what tokenizer_config.json says counts, as in transformers."""
    folder = rich_folder(tmp_path, {"do_lower_case": True})
    load_tokenizer(folder).backend.save(str(folder / "tokenizer.json"))
    if SETTINGS[name]:
        (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS[name]))
    ids, _ = load_tokenizer(folder)(NASTY, max_length=10**6)
    assert ids == theirs(folder)


def test_the_real_minilm_tokenizer(minilm):
    from pathlib import Path

    ids, _ = load_tokenizer(Path(minilm))(NASTY, max_length=10**6)
    assert ids == theirs(minilm)


def test_a_cased_tokenizer_json_alone_is_taken_at_its_word(tmp_path):
    """transformers 5 would lower-case it: what it should not do to a cased checkpoint is not imitated."""
    folder = rich_folder(tmp_path, {"do_lower_case": False})
    cased, _ = load_tokenizer(folder)(NASTY, max_length=10**6)
    load_tokenizer(folder).backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").unlink()
    assert load_tokenizer(folder)(NASTY, max_length=10**6)[0] == cased


def test_what_is_saved_gives_the_same_ids_here_and_in_transformers(tmp_path):
    tokenizer = load_tokenizer(rich_folder(tmp_path, {"do_lower_case": False, "strip_accents": True}))
    ids, _ = tokenizer(NASTY, max_length=10**6)
    saved = tmp_path / "saved"
    saved.mkdir()
    for name, content in tokenizer.files(max_length=512).items():
        (saved / name).write_text(content, encoding="utf-8")
    assert load_tokenizer(saved)(NASTY, max_length=10**6)[0] == ids
    reloaded = transformers.AutoTokenizer.from_pretrained(saved)
    assert [reloaded(text)["input_ids"] for text in NASTY] == ids
    assert reloaded.model_max_length == 512 == load_tokenizer(saved).max_length


@pytest.mark.parametrize("key", ["model_max_length", "max_len"])
def test_both_spellings_of_the_length_limit_are_read(key):
    assert load_tokenizer(vocabulary_folder(**{key: 77})).max_length == 77
    assert (
        load_tokenizer(vocabulary_folder(**{key: int(1e30)})).max_length is None
    )  # transformers for "no limit"


def test_a_long_sentence_is_cut_as_transformers_cuts_it():
    folder = vocabulary_folder(do_lower_case=True)
    ids, cut = load_tokenizer(folder)(SENTENCES, max_length=6)
    reference = transformers.BertTokenizer.from_pretrained(folder)
    assert ids == [reference(text, truncation=True, max_length=6)["input_ids"] for text in SENTENCES]
    assert cut == sum(len(reference(text)["input_ids"]) > 6 for text in SENTENCES) == 2


def test_special_ids_come_from_the_vocabulary():
    folder = vocabulary_folder()
    (folder / "vocab.txt").write_text("a\n[SEP]\n[UNK]\n[CLS]\n[PAD]\n", encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    assert tokenizer(["a a"], max_length=9)[0] == [[3, 0, 0, 1]] and tokenizer.pad_id == 4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: (folder / "vocab.txt").unlink(),
            "no tokenizer in .*: expected tokenizer.json, vocab.txt or spm.model",
        ),
        (lambda folder: (folder / "vocab.txt").write_bytes(b"\xff\xfe\x00"), "is not a vocabulary in UTF-8"),
        (lambda folder: (folder / "vocab.txt").write_text("a\nb\n"), r"has no \[UNK\]"),
        (lambda folder: (folder / "vocab.txt").write_text("[UNK]\na\n"), r"the vocabulary has no \[CLS\]"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json is not a tokenizer"),
    ],
)
def test_a_wrong_tokenizer_is_one_clear_line(damage, message):
    folder = vocabulary_folder()
    damage(folder)
    with pytest.raises(InputError, match=message) as error:
        load_tokenizer(folder)
    assert "\n" not in str(error.value)
