"""The ids are those of transformers, whatever the tokenizer files look like and the text contains."""

import json
from pathlib import Path

import pytest
from conftest import VOCABULARY, vocabulary_folder
from tokenizer_forms import bert_vocabulary, random_texts

from tmft.checkpoints.tokenizers import load_tokenizer, tokenizer_to_files


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
