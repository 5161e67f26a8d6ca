"""Text to token arrays, masks, and rows: nothing is lost, nothing is masked that must not be."""

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
from conftest import SENTENCES, vocabulary_folder

import tmft.io.text
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.errors import InputError
from tmft.io.text import OPENERS
from tmft.packing import pack
from tmft.pretraining.corpus import Order, Sentences, hold_out, lines_of, tokenise
from tmft.pretraining.masking import Masking
from tmft.pretraining.wordpiece import train_wordpiece


@pytest.fixture
def tokenizer():
    return load_tokenizer(vocabulary_folder())


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES) + "\n\n   \n", encoding="utf-8")
    return path


def lists(sentences: Sentences) -> list[list[int]]:
    return [sentences.take(np.array([s])).tokens.tolist() for s in range(len(sentences))]


def some_sentences(lengths: list[int]) -> Sentences:
    tokens = np.random.default_rng(0).integers(5, 40, size=sum(lengths)).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens[offsets[:-1]], tokens[offsets[1:] - 1] = 2, 3  # [CLS], [SEP]
    return Sentences(tokens, offsets)


def test_lines_become_the_ids_of_the_tokenizer_whatever_the_compression(text, tokenizer, tmp_path):
    packed = [tmp_path / "text.gz", tmp_path / "text.xz"]
    packed[0].write_bytes(gzip.compress(text.read_bytes()))
    packed[1].write_bytes(lzma.compress(text.read_bytes()))
    expected, _ = tokenizer(SENTENCES, max_length=40)
    for path in [text, *packed]:
        assert lists(tokenise([path], tokenizer, 40)) == expected
    assert lists(tokenise([text, *packed], tokenizer, 40)) == expected * 3


def test_a_long_line_is_cut_into_pieces_and_loses_nothing(text, tokenizer):
    whole, pieces = lists(tokenise([text], tokenizer, 40)), lists(tokenise([text], tokenizer, 6))
    assert max(map(len, pieces)) == 6 and all(piece[0] == 2 and piece[-1] == 3 for piece in pieces)
    inside = [token for sentence in whole for token in sentence[1:-1]]
    assert [token for piece in pieces for token in piece[1:-1]] == inside


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"\n  \n", "empty.txt has no text: name a file with a sentence"),
        ("binary.txt", b"text\n\0\0\1", "binary.txt is not plain text: it has zero bytes"),
        ("latin.txt", "caf\xe9\n".encode("latin-1"), "latin.txt is not text in UTF-8 .*: convert it"),
        ("cut.xz", lzma.compress(b"a man plays\n" * 999)[:-20], "cut.xz cannot be read .*: check the name"),
        ("not.gz", b"a man plays\n", "not.gz cannot be read .*: check the name and the file"),
        ("absent.txt", None, "absent.txt cannot be read .*No such file.*: check the name"),
    ],
)
def test_a_file_that_is_no_text_is_one_clear_line(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(lines_of([tmp_path / name]))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.xz"])
def test_a_line_without_an_end_is_one_clear_line(name, tmp_path, monkeypatch):
    """Compressed, gigabytes of one letter take a few KB."""
    monkeypatch.setattr(tmft.io.text, "MAX_LINE_LENGTH", 1000)
    with OPENERS.get(Path(name).suffix, open)(tmp_path / name, "wt") as file:
        file.write("a" * 999 + "\n" + "b" * 998 + "\r\n")
    with pytest.raises(InputError, match="has a line of 1,000 characters or more"):
        list(lines_of([tmp_path / name]))
    monkeypatch.setattr(tmft.io.text, "MAX_LINE_LENGTH", 1001)
    assert [len(line) for line in lines_of([tmp_path / name])] == [999, 998]


def test_the_same_text_gives_the_same_vocabulary(text):
    one, two = (train_wordpiece([text], 60).backend.get_vocab() for _ in range(2))
    assert one == two and len(one) <= 60
    assert [one[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [0, 1, 2, 3, 4]


def test_a_trained_vocabulary_knows_its_text_and_is_saved_as_it_is(text, tmp_path):
    tokenizer = train_wordpiece([text], 80)
    ids, _ = tokenizer(SENTENCES, 40)
    assert not any(1 in sentence for sentence in ids)  # no [UNK]
    assert all(sentence[0] == 2 and sentence[-1] == 3 for sentence in ids)
    for name, content in tokenizer.to_files(40).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert load_tokenizer(tmp_path)(SENTENCES, 40)[0] == ids


def test_a_vocabulary_too_small_for_the_letters_is_refused(text):
    with pytest.raises(InputError, match="^vocab_size 20: the text has .* different characters"):
        train_wordpiece([text], 20)


def test_one_in_a_hundred_sentences_is_held_out_and_of_a_long_text_fewer():
    train, held_out = hold_out(some_sentences([4] * 1000))
    assert len(held_out) == 10 and sorted([*train, *held_out]) == list(range(1000))
    train, held_out = hold_out(Sentences(np.zeros(0), np.arange(1_000_001)))
    assert len(held_out) == 2000 and len(train) == 998_000
    with pytest.raises(InputError, match="the text is a single sentence"):
        hold_out(some_sentences([4]))


def test_fifteen_percent_are_masked_eight_one_one_and_never_special_tokens(tokenizer):
    masking = Masking.of(tokenizer)
    tokens = some_sentences([12] * 20_000).tokens
    seen, chosen = masking(tokens, np.random.default_rng(0))
    special = np.isin(tokens, masking.special_ids)
    assert special.any() and not chosen[special].any()
    assert np.array_equal(seen[~chosen], tokens[~chosen])
    assert chosen[~special].mean() == pytest.approx(0.15, abs=0.003)
    assert (seen[chosen] == masking.mask_id).mean() == pytest.approx(0.8, abs=0.01)
    assert (seen[chosen] == tokens[chosen]).mean() == pytest.approx(0.1 + 0.1 / masking.vocab_size, abs=0.01)
    only_masks, chosen = Masking.of(tokenizer, random=0.0, same=0.0)(tokens, np.random.default_rng(0))
    assert (only_masks[chosen] == masking.mask_id).all()


def test_a_batch_is_what_pack_makes_and_its_labels_are_the_masked_tokens(tokenizer):
    sentences = some_sentences([5, 9, 3, 8, 12])
    masking = Masking.of(tokenizer, share=0.4)
    (batch,), masked = masking.batches(sentences, np.random.default_rng(0), [5], 16)
    assert masked == len(batch.labels) == len(batch.places) > 3
    original = batch.rows.input_ids.flatten().index_copy(0, batch.places, batch.labels)
    packed = pack(lists(sentences), packed_length=16)
    for s in range(1, 6):
        ours, theirs = batch.rows.sentence_ids.flatten() == s, packed.sentence_ids.flatten() == s
        assert original[ours].tolist() == packed.input_ids.flatten()[theirs].tolist()
        assert batch.rows.position_ids.flatten()[ours].tolist() == list(range(ours.sum()))
    assert (batch.rows.input_ids[batch.rows.sentence_ids == 0] == 0).all()


def test_two_processes_share_the_batches_and_masks_of_one(tokenizer):
    sentences, masking = some_sentences([5, 9, 3, 8, 12, 4, 6]), Masking.of(tokenizer, share=0.4)

    def share(rank, count):
        batches, masked = masking.batches(sentences, np.random.default_rng(0), [4, 3], 16, rank, count)
        rows = [
            (number, batch.rows.input_ids[batch.rows.sentence_ids == s].tolist())
            for number, batch in enumerate(batches)
            for s in range(1, batch.rows.num_sentences + 1)
        ]
        return sorted(rows), sorted(label for batch in batches for label in batch.labels.tolist()), masked

    alone, first, second = share(0, 1), share(0, 2), share(1, 2)
    assert sorted(first[0] + second[0]) == alone[0]
    assert sorted(first[1] + second[1]) == alone[1]
    assert first[2] == second[2] == alone[2] == len(alone[1])


def test_a_pass_sees_every_sentence_once_and_each_pass_has_its_own_order():
    which = np.arange(3, 25)
    order, again = Order(which, 5, seed=0), Order(which, 5, seed=0)
    assert order.steps_per_pass == 5
    passes = [np.concatenate([order.step(5 * p + s) for s in range(5)]) for p in range(2)]
    assert all(sorted(numbers) == which.tolist() for numbers in passes)
    assert passes[0].tolist() != passes[1].tolist()
    assert again.step(7).tolist() == order.step(7).tolist()  # a step asked for out of order is the same
