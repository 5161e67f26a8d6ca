"""A tokenizer.json at which the tokenizers library would crash, hang or panic is one clear line."""

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
    "no vocabulary": ("model.vocab", {}, "no vocabulary"),
    "no model": ("model", None, "no vocabulary"),
    "a word of a million letters": ("model.vocab." + LONG, 7, "a token is longer than 10000 characters"),
    "a piece of a million letters": ("model", unigram("a", LONG), "a token is longer than 10000 characters"),
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
}


def write_wrong(place: str, value: object):
    """Return a folder whose tokenizer.json has a wrong value."""
    folder = vocabulary_folder(tokenizer_class="PreTrainedTokenizerFast")
    content = content_of(folder)
    put(content, place, value)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("name", WRONG)
def test_files_at_which_the_library_would_crash_or_hang_are_refused(name, capfd):
    place, value, message = WRONG[name]
    with pytest.raises(InputError, match=message) as error:
        load_tokenizer(write_wrong(place, value))
    assert "\n" not in str(error.value) and "tokenizer.json" in str(error.value)
    assert "panicked" not in capfd.readouterr().err


PANICS = {
    "a template without its token": ("post_processor.special_tokens", {}),
    "a second text": ("post_processor.single", text("B")),
    "a map that leads out": ("normalizer", MAP),
    "a map in a list": ("normalizer", {"type": "Sequence", "normalizers": [MAP]}),
    "a map that is none": ("normalizer", {"type": "Precompiled"}),
    "a map in other letters": ("normalizer", MAP | {"precompiled_charsmap": "é"}),
    "parts of no length": ("pre_tokenizer", {"type": "FixedLength", "length": 0}),
    "a prefix that is not there": ("model", BYTE_PAIRS | {"continuing_subword_prefix": "##"}),
    "an expression that takes too long": ("pre_tokenizer", SPLIT),
    "no token for what is unknown": ("model", unigram("a") | {"unk_id": None}),
}


@pytest.mark.parametrize("name", PANICS)
def test_an_error_or_a_panic_of_the_library_is_one_line(name):
    with pytest.raises(InputError, match="cannot be read") as error:
        load_tokenizer(write_wrong(*PANICS[name]))(["a" * 40 + "b"], 64)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ids", [[500], [2**31], [2, 2**32 - 1]])
def test_a_template_with_an_unknown_id_is_refused(ids):
    """The rows of the embedding table end before it."""
    folder = vocabulary_folder(tokenizer_class="PreTrainedTokenizerFast")
    content = content_of(folder)
    content["post_processor"]["special_tokens"]["[CLS]"] |= {"ids": ids, "tokens": ["a"] * len(ids)}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"no token has the id {ids[-1]}, which is added around a text"):
        load_tokenizer(folder)


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
