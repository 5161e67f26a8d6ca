"""A tokenizer.json at which the tokenizers library would panic or crash is one clear line, and no more."""

import json
import struct

import pytest
from conftest import vocabulary_folder

from tmft.checkpoints.sentencepiece import MAX_PIECE_LENGTH, read_spm
from tmft.checkpoints.tokenizers import load_tokenizer, tokenizer_to_files
from tmft.errors import InputError


def content_of(folder) -> dict:
    return json.loads(tokenizer_to_files(load_tokenizer(folder), 64)["tokenizer.json"])


def put(content, place: str, value) -> None:
    """put(content, "model.vocab", {}): as content["model"]["vocab"] = {}"""
    *above, last = place.split(".")
    for key in above:
        content = content[key]
    content[last] = value


def unigram(*pieces: str) -> dict:
    return {"type": "Unigram", "unk_id": 0, "vocab": [["[UNK]", 0.0], *([piece, -1.0] for piece in pieces)]}


def text(id: str) -> list[dict]:
    return [{"Sequence": {"id": id, "type_id": 0}}]


def replace(old: str, new: str, kind: str = "String") -> dict:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def each(*parts: dict) -> dict:
    return {"type": "Sequence", "normalizers": list(parts)}


LONG, MAP = "a" * (MAX_PIECE_LENGTH + 1), {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8A"}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {"Regex": "(a|a|aa|a.)+$x"}}
BYTE_PAIRS = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
WRONG = {
    "a template without its token": ("post_processor.special_tokens", {}, "adds '.SEP.', which it does"),
    "a second text": ("post_processor.single", text("B"), "the template for one text has a text 'B'"),
    "a template without an end": ("post_processor.single", text("A") * 101, "a template of 101 items"),
    "a number that no table has": ("model.vocab.man", 2**32 - 1, "the id of a token is not from 0"),
    "no vocabulary": ("model.vocab", {}, "no vocabulary"),
    "no model": ("model", None, "no vocabulary"),
    "a word of a million letters": ("model.vocab." + LONG, 7, "a token is longer than 10000 characters"),
    "a piece of a million letters": ("model", unigram("a", LONG), "a token is longer than 10000 characters"),
    "a map that leads out": ("normalizer", MAP, "tokenizer.json cannot be read"),
    "a map in a list": ("normalizer", {"type": "Sequence", "normalizers": [MAP]}, "tokenizer.json cannot"),
    "much before each text": ("normalizer", {"type": "Prepend", "prepend": "a" * 10**7}, "a Prepend of more"),
    "a map that is none": ("normalizer", {"type": "Precompiled"}, "tokenizer.json cannot be read"),
    "a map in other letters": ("normalizer", MAP | {"precompiled_charsmap": "é"}, "tokenizer.json cannot"),
    "words without an end": ("model.max_input_chars_per_word", 10**9, "is 1000000000, more than 1000"),
    "letters that double": ("normalizer", each(*[replace("a", "aa")] * 40), "a text 100000 times as long"),
    "all that doubles": ("normalizer", each(*[replace("", "a")] * 40), "a text 100000 times as long"),
    "letters in turn": (
        "normalizer",
        each(
            *[replace("a", "BB"), {"type": "Lowercase"}, each(replace("b", "AA")), {"type": "Lowercase"}] * 9
        ),
        "a text 100000 times as long",
    ),
    "an expression that grows": (
        "normalizer",
        each(*[replace(".", "a" * 32, "Regex")] * 8),
        "a text 100000 times as long",
    ),
    "parts of no length": ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "a FixedLength of 0"),
    "a prefix that is not there": (
        "model",
        BYTE_PAIRS | {"continuing_subword_prefix": "##"},
        "the second part of .* does not begin with '##'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_files_at_which_the_library_would_panic_are_refused(name, capfd):
    place, value, message = WRONG[name]
    folder = vocabulary_folder()
    content = content_of(folder)
    put(content, place, value)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message) as error:
        load_tokenizer(folder)
    assert "\n" not in str(error.value) and "tokenizer.json" in str(error.value)
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize("ids", [[500], [2**31], [2, 2**32 - 1]])
def test_a_template_with_an_unknown_id_is_refused(ids):
    """The rows of the embedding table end before it."""
    folder = vocabulary_folder(tokenizer_class="PreTrainedTokenizerFast")
    content = content_of(folder)
    content["post_processor"]["special_tokens"]["[CLS]"] |= {"ids": ids, "tokens": ["a"] * len(ids)}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"no token has the id {ids[-1]}, which is added around a text"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("place", "value"),
    [("pre_tokenizer", SPLIT), ("model", unigram("a") | {"unk_id": None})],
    ids=["a panic", "an error"],
)
def test_an_error_that_depends_on_the_text_is_one_line(place, value):
    folder = vocabulary_folder(tokenizer_class="PreTrainedTokenizerFast")
    content = content_of(folder)
    put(content, place, value)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(folder)
    with pytest.raises(InputError, match="a text cannot be read"):
        tokenizer(["a" * 40 + "b"], 64)


def test_spaces_around_punctuation_are_no_excessive_expansion():
    """As static models want it: a replacement for each of 32 marks, then spaces in a row are one."""
    folder = vocabulary_folder(tokenizer_class="PreTrainedTokenizerFast")
    content = content_of(folder)
    marks = [replace(mark, f" {mark} ") for mark in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]
    content["normalizer"] = each({"type": "Lowercase"}, *marks, replace(r"\s+", " ", "Regex"))
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(folder).backend.normalizer.normalize_str("A,b?!") == "a , b ? ! "


def test_a_piece_of_a_million_letters_in_a_protobuf_is_one_line(tmp_path):
    def field(number: int, value: bytes) -> bytes:
        size = len(value)
        sizes = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
        return bytes([number << 3 | 2]) + sizes + value

    score = b"\x15" + struct.pack("<f", -1.0)
    pieces = b"".join(field(1, field(1, text) + score) for text in (b"a", b"b" * 1_000_000))
    (tmp_path / "spm.model").write_bytes(pieces + field(2, b"") + field(3, b""))
    with pytest.raises(ValueError, match="piece 1 has 1000000 characters"):
        read_spm(tmp_path / "spm.model")
