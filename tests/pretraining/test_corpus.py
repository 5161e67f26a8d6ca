"""From text to masked batches: no token is lost, and no special token is masked."""

import gzip
import lzma

import numpy as np
import pytest
from conftest import SENTENCES, vocabulary_folder

from tmft.checkpoints.tokenizers import load_tokenizer, tokenizer_to_files
from tmft.errors import InputError
from tmft.packing import pack
from tmft.pretraining.corpus import (
    TokenizedCorpus,
    held_out_split,
    read_nonempty_lines,
    tokenize_files,
    train_wordpiece,
)
from tmft.pretraining.masking import Masking


@pytest.fixture
def tokenizer():
    return load_tokenizer(vocabulary_folder())


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES) + "\n\n   \n", encoding="utf-8")
    return path


def token_lists(corpus: TokenizedCorpus) -> list[list[int]]:
    return [corpus.select(np.array([s])).tokens.tolist() for s in range(len(corpus))]


def random_corpus(lengths: list[int]) -> TokenizedCorpus:
    tokens = np.random.default_rng(0).integers(5, 40, size=sum(lengths)).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens[offsets[:-1]], tokens[offsets[1:] - 1] = 2, 3  # [CLS], [SEP]
    return TokenizedCorpus(tokens, offsets)


def test_lines_get_the_ids_of_the_tokenizer_with_any_compression(text, tokenizer, tmp_path):
    compressed = [tmp_path / "text.gz", tmp_path / "text.xz"]
    compressed[0].write_bytes(gzip.compress(text.read_bytes()))
    compressed[1].write_bytes(lzma.compress(text.read_bytes()))
    expected, _ = tokenizer(SENTENCES, max_length=40)
    for path in [text, *compressed]:
        assert token_lists(tokenize_files([path], tokenizer, 40)) == expected
    assert token_lists(tokenize_files([text, *compressed], tokenizer, 40)) == expected * 3


def test_a_long_line_is_split_into_sentences_and_loses_no_token(text, tokenizer):
    whole = token_lists(tokenize_files([text], tokenizer, 40))
    pieces = token_lists(tokenize_files([text], tokenizer, 6))
    assert max(map(len, pieces)) == 6 and all(piece[0] == 2 and piece[-1] == 3 for piece in pieces)
    inside = [token for sentence in whole for token in sentence[1:-1]]
    assert [token for piece in pieces for token in piece[1:-1]] == inside


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"\n  \n", "empty.txt has no text: name a file with a sentence"),
        ("binary.txt", b"text\n\0\0\1", "binary.txt is not plain text: it has zero bytes"),
        ("latin.txt", "caf\xe9\n".encode("latin-1"), "latin.txt cannot be read .*has to be text in UTF"),
        ("cut.xz", lzma.compress(b"a man plays\n" * 999)[:-20], "cut.xz cannot be read .*: check the name"),
        ("not.gz", b"a man plays\n", "not.gz cannot be read .*: check the name and the file"),
        ("absent.txt", None, "absent.txt cannot be read .*No such file.*: check the name"),
    ],
)
def test_a_file_that_is_not_text_is_a_one_line_error(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(read_nonempty_lines([tmp_path / name]))


def test_the_same_text_gives_the_same_vocabulary(text):
    one, two = (train_wordpiece([text], 60).backend.get_vocab() for _ in range(2))
    assert one == two and len(one) <= 60
    assert [one[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [0, 1, 2, 3, 4]


def test_a_trained_vocabulary_covers_its_text_and_is_loaded_as_it_was_saved(text, tmp_path):
    tokenizer = train_wordpiece([text], 80)
    ids, _ = tokenizer(SENTENCES, 40)
    assert not any(1 in sentence for sentence in ids)  # no [UNK]
    assert all(sentence[0] == 2 and sentence[-1] == 3 for sentence in ids)
    for name, content in tokenizer_to_files(tokenizer, 40).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert load_tokenizer(tmp_path)(SENTENCES, 40)[0] == ids


def test_a_vocabulary_too_small_for_the_characters_is_refused(text):
    with pytest.raises(InputError, match="^vocab_size 20: the text has .* different characters"):
        train_wordpiece([text], 20)


def test_one_percent_of_the_sentences_is_held_out_and_of_a_long_text_less():
    train, held_out = held_out_split(random_corpus([9] * 1000))
    assert len(held_out) == 10 and sorted([*train, *held_out]) == list(range(1000))
    train, held_out = held_out_split(TokenizedCorpus(np.arange(1_000_000), np.arange(1_000_001)))
    assert len(held_out) == 2000 and len(train) == 998_000
    with pytest.raises(InputError, match="the text has fewer than two different sentences"):
        held_out_split(TokenizedCorpus.from_sentences([[2, 9, 3]] * 5))


def test_15_percent_are_masked_in_the_proportion_8_1_1_and_never_special_tokens(tokenizer):
    masking = Masking.from_tokenizer(tokenizer)
    tokens = random_corpus([12] * 20_000).tokens
    inputs, masked = masking(tokens, np.random.default_rng(0))
    special = np.isin(tokens, masking.special_ids)
    assert special.any() and not masked[special].any()
    assert np.array_equal(inputs[~masked], tokens[~masked])
    assert masked[~special].mean() == pytest.approx(0.15, abs=0.003)
    assert (inputs[masked] == masking.mask_id).mean() == pytest.approx(0.8, abs=0.01)
    kept_by_chance = 0.1 / masking.vocab_size
    assert (inputs[masked] == tokens[masked]).mean() == pytest.approx(0.1 + kept_by_chance, abs=0.01)
    only_mask_tokens = Masking.from_tokenizer(tokenizer, random_prob=0.0, keep_prob=0.0)
    inputs, masked = only_mask_tokens(tokens, np.random.default_rng(0))
    assert (inputs[masked] == masking.mask_id).all()


def test_a_batch_is_packed_as_by_pack_and_its_labels_are_the_masked_tokens(tokenizer):
    corpus = random_corpus([5, 9, 3, 8, 12])
    masking = Masking.from_tokenizer(tokenizer, mlm_probability=0.4)
    (batch,), num_labels = masking.make_batches(corpus, np.random.default_rng(0), [5], 16)
    assert num_labels == len(batch.labels) == len(batch.label_positions) > 3
    original = batch.packed.input_ids.flatten().index_copy(0, batch.label_positions, batch.labels)
    expected = pack(token_lists(corpus), packed_length=16)
    for s in range(1, 6):
        here, there = batch.packed.attention_mask.flatten() == s, expected.attention_mask.flatten() == s
        assert original[here].tolist() == expected.input_ids.flatten()[there].tolist()
        assert batch.packed.position_ids.flatten()[here].tolist() == list(range(here.sum()))
    assert (batch.packed.input_ids[batch.packed.attention_mask == 0] == 0).all()
