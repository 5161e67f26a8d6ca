"""A tokenizer.json at which the tokenizers library fails or panics is one clear line."""

import json

import pytest
from conftest import vocabulary_folder

from tmft.checkpoints.tokenizers import load_tokenizer, tokenizer_to_files
from tmft.errors import InputError


def content() -> dict:
    return json.loads(tokenizer_to_files(load_tokenizer(vocabulary_folder()), 64)["tokenizer.json"])


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


MAP = {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8A"}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {"Regex": "(a|a|aa|a.)+$x"}}
BYTE_PAIRS = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}


def write_wrong(place: str, value: object):
    """Return a folder whose tokenizer.json has a wrong value."""
    folder = vocabulary_folder(tokenizer_class="PreTrainedTokenizerFast")
    changed = content()
    put(changed, place, value)
    (folder / "tokenizer.json").write_text(json.dumps(changed))
    return folder


PANICS = {
    "no vocabulary": ("model.vocab", {}),
    "no model": ("model", None),
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
    changed = content()
    changed["post_processor"]["special_tokens"]["[CLS]"] |= {"ids": ids, "tokens": ["a"] * len(ids)}
    (folder / "tokenizer.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match=f"no token has the id {ids[-1]}, which is added around a text"):
        load_tokenizer(folder)
