"""The ids are those of transformers, whatever the tokenizer files look like and the text contains."""

import json
from pathlib import Path

import pytest
from conftest import SENTENCES, VOCABULARY, vocabulary_folder

from tmft.checkpoints.tokenizers import Tokenizer, load_tokenizer
from tmft.errors import InputError

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
    import transformers

    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    return [tokenizer(text)["input_ids"] for text in NASTY]


def ids(folder) -> list[list[int]]:
    return load_tokenizer(Path(folder))(NASTY, max_length=10**6)[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_ids_equal_those_of_transformers(name, tmp_path):
    folder = rich_folder(tmp_path, SETTINGS[name])
    assert ids(folder) == theirs(folder)


def test_the_nasty_sample_is_not_all_unk(tmp_path):
    assert len({token for sentence in ids(rich_folder(tmp_path, {})) for token in sentence}) > 100


@pytest.mark.parametrize("name", SETTINGS)
def test_a_tokenizer_json_next_to_vocab_txt_changes_nothing(name, tmp_path):
    """The JSON says uncased; what tokenizer_config.json says counts, as in transformers."""
    folder = rich_folder(tmp_path, {"do_lower_case": True})
    load_tokenizer(folder).backend.save(str(folder / "tokenizer.json"))
    if SETTINGS[name]:
        (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS[name]))
    assert ids(folder) == theirs(folder)


def test_the_real_minilm_tokenizer(minilm):
    assert ids(minilm) == theirs(minilm)


def test_a_cased_tokenizer_json_alone_stays_cased(tmp_path):
    """transformers 5 would lower-case it: what it should not do to a cased checkpoint is not imitated."""
    folder = rich_folder(tmp_path, {"do_lower_case": False})
    cased = ids(folder)
    load_tokenizer(folder).backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").unlink()
    assert ids(folder) == cased


def test_lower_case_is_applied_first(tmp_path):
    folder = rich_folder(tmp_path, {"do_lower_case": False})
    lowered = load_tokenizer(folder, lower_case=True)(["A MAN", "Große"], max_length=99)
    assert lowered == load_tokenizer(folder)(["a man", "große"], max_length=99)


@pytest.fixture
def saved(tmp_path):
    """-> ids before saving, the folder that was saved"""
    tokenizer = load_tokenizer(rich_folder(tmp_path, {"do_lower_case": False, "strip_accents": True}))
    (tmp_path / "saved").mkdir()
    for name, content in tokenizer.to_files(max_length=512).items():
        (tmp_path / "saved" / name).write_text(content, encoding="utf-8")
    return ids(tmp_path), tmp_path / "saved"


def test_a_saved_tokenizer_gives_the_same_ids_here(saved):
    before, folder = saved
    assert ids(folder) == before
    assert load_tokenizer(folder).max_length == 512


def test_a_saved_tokenizer_gives_the_same_ids_in_transformers(saved):
    import transformers

    before, folder = saved
    reloaded = transformers.AutoTokenizer.from_pretrained(folder)
    assert [reloaded(text)["input_ids"] for text in NASTY] == before
    assert reloaded.model_max_length == 512


@pytest.mark.parametrize("key", ["model_max_length", "max_len"])
def test_both_spellings_of_the_length_limit_are_read(key):
    assert load_tokenizer(vocabulary_folder(**{key: 77})).max_length == 77


@pytest.mark.parametrize("key", ["model_max_length", "max_len"])
def test_a_huge_limit_is_none(key):
    """Which is what transformers writes for it."""
    assert load_tokenizer(vocabulary_folder(**{key: int(1e30)})).max_length is None


def test_a_long_sentence_is_cut_as_transformers_cuts_it():
    import transformers

    folder = vocabulary_folder(do_lower_case=True)
    reference = transformers.BertTokenizer.from_pretrained(folder)
    expected = [reference(text, truncation=True, max_length=6)["input_ids"] for text in SENTENCES]
    assert load_tokenizer(folder)(SENTENCES, max_length=6)[0] == expected


def test_truncated_sentences_are_counted():
    tokenizer = load_tokenizer(vocabulary_folder(do_lower_case=True))
    whole, none = tokenizer(SENTENCES, max_length=99)
    assert none == 0
    assert tokenizer(SENTENCES, max_length=6)[1] == sum(len(tokens) > 6 for tokens in whole) == 2


@pytest.mark.parametrize("suffix_length", [1, 2, 4])
def test_the_last_tokens_of_a_long_sentence_stay(suffix_length):
    tokenizer = load_tokenizer(vocabulary_folder())
    (whole,), _ = tokenizer(SENTENCES[2:3], max_length=99)
    (ids, short), cut = tokenizer([SENTENCES[2], "music"], max_length=6, suffix_length=suffix_length)
    assert ids == whole[: 6 - suffix_length] + whole[-suffix_length:] and len(ids) == 6 < len(whole)
    assert (short, cut) == (tokenizer(["music"], 6)[0][0], 1)


# ----------------------------------------------------------------------------- without special tokens, words


@pytest.fixture
def bare() -> Tokenizer:
    """As static models want it."""
    whole = load_tokenizer(vocabulary_folder())
    return Tokenizer(whole.backend, whole.special_tokens, whole.max_length, add_special_tokens=False)


def test_a_tokenizer_without_special_tokens_adds_none(bare):
    whole = load_tokenizer(vocabulary_folder())(SENTENCES, 99)[0]
    assert bare(SENTENCES, 99)[0] == [ids[1:-1] for ids in whole]


def test_special_tokens_in_the_text_are_recognized_without_added_special_tokens(bare):
    names = "[CLS] music [MASK]"
    assert [bare.backend.id_to_token(id) for id in bare([names], 9)[0][0]] == names.split()


def test_a_tokenizer_without_special_tokens_cuts_the_end(bare):
    (whole,), _ = bare(SENTENCES[2:3], 99)
    assert bare(SENTENCES[2:3], 4, suffix_length=0) == ([whole[:4]], 1)
    assert bare(SENTENCES[2:3], len(whole), suffix_length=0) == ([whole], 0)


@pytest.mark.parametrize("is_bare", [False, True])
def test_the_special_tokens_before_and_after_a_sentence_are_counted(is_bare):
    whole = load_tokenizer(vocabulary_folder())
    tokenizer = Tokenizer(whole.backend, whole.special_tokens, add_special_tokens=not is_bare)
    assert tokenizer.num_special_tokens == ((0, 0) if is_bare else (1, 1))


def test_the_vocabulary_is_in_the_order_of_the_ids():
    tokenizer = load_tokenizer(vocabulary_folder())
    words, numbers = tokenizer.vocabulary, tokenizer.backend.get_vocab()
    assert {word: number for number, word in enumerate(words) if word in numbers} == numbers
    assert len(words) == len(set(words)) == max(numbers.values()) + 1


def test_an_id_without_a_token_is_named_by_itself():
    """The line of a word that comes again later: the later number counts."""
    folder = vocabulary_folder()
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nman\na\n", encoding="utf-8")
    assert load_tokenizer(folder).vocabulary == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[4]", "man", "a"]


@pytest.fixture
def shuffled():
    """A tokenizer whose special tokens stand elsewhere than usual."""
    folder = vocabulary_folder()
    (folder / "vocab.txt").write_text("a\n[SEP]\n[UNK]\n[CLS]\n[PAD]\n", encoding="utf-8")
    return load_tokenizer(folder)


def test_special_ids_come_from_the_vocabulary(shuffled):
    assert shuffled(["a a"], max_length=9)[0] == [[3, 0, 0, 1]]


@pytest.mark.parametrize("cls", ["a b", "$A", "$B", "$0", "x:7", ":", "a:b:c", "[SEP]:1"])
def test_a_special_token_may_have_any_name(cls):
    """Also one that means something in the template around a sentence."""
    folder = vocabulary_folder(cls_token=cls)
    with open(folder / "vocab.txt", "a") as file:
        file.write(f"{cls}\n")
    tokenizer = load_tokenizer(folder)
    last, man, sep = len(VOCABULARY), VOCABULARY.index("man"), VOCABULARY.index("[SEP]")
    assert tokenizer(["man"], max_length=9)[0] == [[last, man, sep]]
    assert (
        json.loads(tokenizer.to_files(9)["tokenizer.json"])["post_processor"]["type"] == "TemplateProcessing"
    )


def test_the_padding_token_may_have_any_name(shuffled):
    assert shuffled.pad_id == 4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: (folder / "vocab.txt").unlink(),
            "no tokenizer in .*: expected one of tokenizer.json, vocab.txt, spm.model, spiece.model",
        ),
        (lambda folder: (folder / "vocab.txt").write_bytes(b"\xff\xfe\x00"), "vocab.txt cannot be read"),
        (lambda folder: (folder / "vocab.txt").write_text("a\nb\n"), r"has no \[UNK\]"),
        (lambda folder: (folder / "vocab.txt").write_text("[UNK]\na\n"), r"the vocabulary has no \[CLS\]"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json cannot be read"),
    ],
)
def test_a_wrong_tokenizer_is_one_clear_line(damage, message):
    folder = vocabulary_folder()
    damage(folder)
    with pytest.raises(InputError, match=message) as error:
        load_tokenizer(folder)
    assert "\n" not in str(error.value)
