"""The ids are those of transformers, whatever the tokenizer files look like and the text contains."""

import json
from pathlib import Path

import pytest
from conftest import SENTENCES, VOCABULARY, vocabulary_folder
from tokenizer_forms import bert_vocabulary, random_texts

from tmft.checkpoints.tokenizers import load_tokenizer, tokenizer_to_files
from tmft.tokenizer import Tokenizer


def ids(folder) -> list[list[int]]:
    return load_tokenizer(Path(folder))(random_texts(300, seed=7), max_length=10**6)[0]


def test_a_tokenizer_json_is_saved_without_indentation_and_read_with_it(tmp_path):
    """Indented, it is half as long again, which is a tenth of a small model."""
    tokenizer = load_tokenizer(vocabulary_folder())
    files = tokenizer_to_files(tokenizer, 99)
    content = json.loads(files["tokenizer.json"])
    assert files["tokenizer.json"] == json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    for text in (files["tokenizer.json"], json.dumps(content, indent=2)):
        (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
        assert ids(tmp_path) == tokenizer(random_texts(300, seed=7), max_length=10**6)[0]


def test_a_cased_tokenizer_json_alone_stays_cased(tmp_path):
    """transformers 5 would lower-case it: what it should not do to a cased checkpoint is not imitated."""
    bert_vocabulary(tmp_path, do_lower_case=False)
    cased = ids(tmp_path)
    load_tokenizer(tmp_path).backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").unlink()
    assert ids(tmp_path) == cased


@pytest.mark.parametrize("key", ["model_max_length", "max_len"])
def test_both_spellings_of_the_length_limit_are_read_and_a_huge_one_is_none(key):
    assert load_tokenizer(vocabulary_folder(**{key: 77})).max_length == 77
    assert load_tokenizer(vocabulary_folder(**{key: int(1e30)})).max_length is None


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
        json.loads(tokenizer_to_files(tokenizer, 9)["tokenizer.json"])["post_processor"]["type"]
        == "TemplateProcessing"
    )
