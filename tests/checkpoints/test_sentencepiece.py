"""spm.model read without sentencepiece: the same token ids as transformers, also after saving."""

import random

import pytest
from spm_model import train_spm
from tokenizer_forms import deberta_vocabulary

from tmft.checkpoints.sentencepiece import CONTROL, read_spm
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.errors import InputError
from tmft.io.files import reading


@pytest.fixture(scope="module")
def spm_model() -> bytes:
    return train_spm()


@pytest.fixture
def folder(tmp_path):
    """As microsoft/deberta-v3-base: spm.model and two settings."""
    deberta_vocabulary(tmp_path)
    return tmp_path


@pytest.fixture
def theirs(spm_model):
    sentencepiece = pytest.importorskip("sentencepiece")
    return sentencepiece.SentencePieceProcessor(model_proto=spm_model)


def test_pieces_scores_and_types_are_those_of_sentencepiece(folder, theirs):
    model, numbers = read_spm(folder / "spm.model"), range(theirs.get_piece_size())
    assert model.pieces == [(theirs.id_to_piece(n), theirs.get_score(n)) for n in numbers]
    assert [kind == CONTROL for kind in model.types] == [theirs.is_control(n) for n in numbers]
    assert model.unk_id == theirs.unk_id() == 3


def test_special_tokens_have_the_numbers_of_the_model_and_mask_the_next(folder):
    tokenizer = load_tokenizer(folder)
    pieces = len(read_spm(folder / "spm.model").pieces)
    numbers = {token: tokenizer.backend.token_to_id(token) for token in tokenizer.special_tokens.values()}
    assert numbers == {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": pieces}


# ------------------------------------------------------------------------------- errors


def refused(path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(InputError) as error, reading(path):
        read_spm(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_cut_short_anywhere_is_refused(tmp_path, spm_model):
    """Up to the last field that is read; what may follow says nothing about pieces."""
    path = tmp_path / "spm.model"
    end = len(spm_model)
    at = [*range(0, 200), *random.Random(0).sample(range(200, end - 50), 100)]
    for length in at:
        assert f"{path} cannot be read" in refused(path, spm_model[:length])


@pytest.mark.parametrize(
    "content", [b"version https://git-lfs.github.com/spec/v1\n", b"{}", b"\xff" * 40, b"\x0a\x02\x12\x00"]
)
def test_another_kind_of_file_is_refused(tmp_path, content):
    assert "spm.model cannot be read" in refused(tmp_path / "spm.model", content)


@pytest.mark.parametrize("model_type", ["bpe", "char", "word"])
def test_a_model_that_is_not_unigram_is_refused(tmp_path, model_type):
    content = train_spm(model_type=model_type, byte_fallback=False, vocab_size=200)
    assert "is not a unigram model, which alone is supported" in refused(tmp_path / "spm.model", content)
