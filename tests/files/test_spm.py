"""spm.model read without sentencepiece: the same token ids as transformers, also after saving."""

import json
import random
import struct

import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import Regex, Tokenizer, normalizers
from transformers import AutoTokenizer, DebertaV2Config, DebertaV2Model

from tmft.errors import InputError
from tmft.files.spm import LENGTH, message, read_spm
from tmft.files.tokenizer import load_tokenizer
from tmft.sentence import SentenceEncoder

NASTY = [
    "",
    " ",
    "  two   spaces  before, between and after  ",
    "\u2003an em space first",
    "tabs\tand\nnew lines\r\nand\u00a0no-break\u2003em spaces\u3000wide",
    "[CLS] the [MASK] is special, [mask] is not [SEP][PAD] [UNK]",
    "the<url>baker <url>",
    "▁the▁baker ▁",
    "ｔｈｅ ｂａｋｅｒ １２３ ！",  # full width
    "ﬁne oﬃce ﬂoor Ⅳ ½ ² ™ ㎏",  # ligatures and compatibility characters
    "ba\u200bker \ufeffthe\u200d boat\u2060 soft\u00adhyphen \u202eright to left",
    "cafe\u0301 café Å A\u030a Ω \u2126",  # composed and decomposed
    "하나 \u1112\u1161\u11ab\u1100\u116e\u11a8 한국",  # Hangul, whole and in letters
    "control \x00 \x01 \x07 \x1b[0m \x7f \x85 characters",
    "🎈🎈 👩‍👩‍👧‍👦 🇩🇪 👍🏽 ☃️",
    "𝔱𝔥𝔢 𐍈 𠜎",  # beyond the first 65536
    "x" * 5000,
    "面包师修理那座桥" * 300,
    "Donaudampfschifffahrtsgesellschaftskapitänsmützenhersteller " * 20,
    "lone combining \u0301 \u200d and �",
    "'quotes' \"double\" «und» „so“ — dashes – … don't",
    "ÄÖÜ ß ẞ İ ı Σς",
    "http://example.org/a?b=c&d=%20#e user@example.org C:\\path\\file",
]


@pytest.fixture(scope="module")
def spm_model() -> bytes:
    return train_spm()


@pytest.fixture
def folder(tmp_path, spm_model):
    """As microsoft/deberta-v3-base: spm.model, two settings, and a word table longer than the tokenizer."""
    (tmp_path / "spm.model").write_bytes(spm_model)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    config = DebertaV2Config(
        vocab_size=700,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        relative_attention=True,
        position_buckets=16,
        pos_att_type="p2c|c2p",
    )
    DebertaV2Model(config).save_pretrained(tmp_path)
    return tmp_path


def ids(tokenizer, sentences: list[str]) -> list[list[int]]:
    return tokenizer(sentences, max_length=10**9)[0]


def test_pieces_scores_and_types_are_those_of_sentencepiece(folder, spm_model):
    sentencepiece = pytest.importorskip("sentencepiece")
    model = read_spm(folder / "spm.model")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=spm_model)
    numbers = range(theirs.get_piece_size())
    assert model.pieces == [(theirs.id_to_piece(n), theirs.get_score(n)) for n in numbers]
    assert [kind == 3 for kind in model.types] == [theirs.is_control(n) for n in numbers]
    assert model.unk_id == theirs.unk_id() == 3


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True}, {"split_by_punct": True}])
def test_ids_equal_transformers_before_and_after_saving(folder, tmp_path, settings):
    settings = {"do_lower_case": False, "vocab_type": "spm"} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    sentences = NASTY + made_up_sentences(400, seed=1)
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = theirs(sentences)["input_ids"]
    tokenizer = load_tokenizer(folder)
    assert ids(tokenizer, sentences) == expected
    assert json.loads(tokenizer.backend.to_str()) == json.loads(theirs.backend_tokenizer.to_str())

    saved = tmp_path / "saved"
    saved.mkdir()
    for name, content in tokenizer.files(max_length=64).items():
        (saved / name).write_text(content, encoding="utf-8")
    assert ids(load_tokenizer(saved), sentences) == expected
    assert AutoTokenizer.from_pretrained(saved)(sentences, truncation=False)["input_ids"] == expected


def test_special_tokens(folder):
    tokenizer = load_tokenizer(folder)
    pieces = len(read_spm(folder / "spm.model").pieces)
    numbers = {token: tokenizer.backend.token_to_id(token) for token in tokenizer.special.values()}
    assert numbers == {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": pieces}
    (tokens,) = ids(tokenizer, ["the [MASK] ☃"])
    assert (tokens[0], tokens[-1]) == (1, 2) and pieces in tokens and 3 in tokens


def test_plain_text_has_the_ids_of_the_older_recipe(folder):
    """transformers 4 applied the file's own character map (NFKC), which ordinary text does not notice."""
    ours = load_tokenizer(folder).backend
    older = Tokenizer.from_str(ours.to_str())
    normalizer_spec = dict(message((folder / "spm.model").read_bytes()))[3, LENGTH]
    charsmap = dict(message(normalizer_spec))[2, LENGTH]
    older.normalizer = normalizers.Sequence(
        [
            normalizers.Strip(),
            normalizers.Precompiled(charsmap),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    for sentence in made_up_sentences(300, seed=2):
        assert ours.encode(sentence).ids == older.encode(sentence).ids
    assert ours.encode("ﬁne ｂａｋｅｒ").ids != older.encode("ﬁne ｂａｋｅｒ").ids


def test_saved_model_opens_in_sentence_transformers(folder, tmp_path):
    model = SentenceEncoder.load(folder, layer=1)
    sentences = NASTY[:12] + made_up_sentences(5, seed=3)
    model.save(tmp_path / "saved")
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(sentences)
    assert abs(model.encode(sentences) - theirs).max() <= 1e-5


# ----------------------------------------------------------------------------------------------------- errors


def refused(path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_spm(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_cut_short_anywhere_is_refused(tmp_path, spm_model):
    """Up to the last field that is read; what may follow says nothing about pieces."""
    path = tmp_path / "spm.model"
    end = len(spm_model)
    at = [*range(0, 200), *random.Random(0).sample(range(200, end - 50), 100)]
    for length in at:
        assert f"{path} is damaged or cut short" in refused(path, spm_model[:length])


@pytest.mark.parametrize(
    "content", [b"version https://git-lfs.github.com/spec/v1\n", b"{}", b"\xff" * 40, b"\x0a\x02\x12\x00"]
)
def test_another_kind_of_file_is_refused(tmp_path, content):
    assert "is damaged or cut short" in refused(tmp_path / "spm.model", content)


@pytest.mark.parametrize(("model_type", "name"), [("bpe", "BPE"), ("char", "char"), ("word", "word")])
def test_a_model_that_is_not_unigram_is_refused(tmp_path, model_type, name):
    content = train_spm(model_type=model_type, byte_fallback=False, vocab_size=200)
    assert f"is a {name} model: only unigram models are supported" in refused(tmp_path / "spm.model", content)


def test_an_unknown_piece_that_is_not_there_is_refused(tmp_path):
    piece = b"\x0a\x01a\x15" + struct.pack("<f", -1.0)
    trainer = b"\xc0\x02\x07"  # field 40, unk_id, is 7
    content = b"".join(
        [b"\x0a", bytes([len(piece)]), piece, b"\x12", bytes([len(trainer)]), trainer, b"\x1a\x00"]
    )
    assert "has 1 pieces and the unknown one is 7" in refused(tmp_path / "spm.model", content)


def test_pieces_without_cls_are_refused(folder):
    content = train_spm(bos_id=1, bos_piece="<s>", byte_fallback=False)
    (folder / "spm.model").write_bytes(content)
    with pytest.raises(InputError, match=r"the vocabulary has no \[CLS\]"):
        load_tokenizer(folder)
