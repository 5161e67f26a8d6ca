"""Tokenizers of all kinds, in every form of file: the ids of transformers, also when they were saved."""

import json
import logging
import os
from functools import partial

import pytest
from conftest import vocabulary_folder
from tokenizer_forms import (
    FORMS,
    SETTINGS,
    bert_vocabulary,
    byte_level_vocabulary,
    camembert_json,
    llama2_json,
    random_texts,
    roberta_vocabulary,
    t5_json,
    t5_vocabulary,
    write,
    xlm_roberta_json,
)
from tokenizers import Tokenizer, normalizers, processors

from tmft.checkpoints.tokenizer_kinds import TOKENIZER_KINDS
from tmft.checkpoints.tokenizers import add_closing_token, load_tokenizer, tokenizer_to_files
from tmft.errors import InputError
from tmft.models.families import FAMILIES
from tmft.tokenizer import UNCHANGED_CLASS

AROUND = {  # special tokens before and after a sentence, where it is not one and one
    "qwen embedding tokenizer.json": (0, 1),
    "qwen tokenizer.json, no template": (0, 0),
    "llama 2 tokenizer.json": (1, 0),
    "llama 2 tokenizer.json, legacy": (0, 1),
} | {name: (0, 1) for name in FORMS | SETTINGS if name.startswith("t5 ")}


@pytest.fixture(params=FORMS | SETTINGS)
def form(request, tmp_path) -> tuple:
    """(name of the form, its folder)"""
    (FORMS | SETTINGS)[request.param](tmp_path)
    return request.param, tmp_path


def ids(tokenizer, texts: list[str]) -> list[list[int]]:
    return tokenizer(texts, max_length=10**9)[0]


def theirs(folder, texts: list[str]) -> list[list[int]]:
    from transformers import AutoTokenizer

    options = {"truncation": False, "return_attention_mask": False, "return_token_type_ids": False}
    return AutoTokenizer.from_pretrained(folder)(texts, **options)["input_ids"]


def save(tokenizer, folder, to, **options):
    """Save a tokenizer with the config.json of `folder` beside it."""
    to.mkdir()
    for name, content in tokenizer_to_files(tokenizer, 64, **options).items():
        (to / name).write_text(content, encoding="utf-8")
    (to / "config.json").write_bytes((folder / "config.json").read_bytes())
    return to


def assert_no_difference(ours: list[list[int]], reference: list[list[int]], texts: list[str]) -> None:
    different = [text for text, a, b in zip(texts, ours, reference, strict=True) if a != b]
    assert not different, f"{len(different)} of {len(texts)}, such as {different[:3]!r}"


def assert_equal_to_transformers(folder, texts: list[str], saved) -> None:
    """Before and after saving."""
    tokenizer = load_tokenizer(folder)
    ours = ids(tokenizer, texts)
    assert_no_difference(ours, theirs(folder, texts), texts)
    save(tokenizer, folder, saved)
    assert_no_difference(ours, ids(load_tokenizer(saved), texts), texts)
    assert_no_difference(ours, theirs(saved, texts), texts)


def test_ids_equal_transformers_before_and_after_saving(form):
    count = 10_000 if "TMFT_LONG" in os.environ else 300
    assert_equal_to_transformers(form[1], random_texts(count, seed=1), form[1] / "saved")


def test_the_tokens_around_a_sentence_are_counted_from_its_ids(form):
    name, folder = form
    tokenizer = load_tokenizer(folder)
    before, after = tokenizer.num_special_tokens
    assert (before, after) == AROUND.get(name, (1, 1))
    bare, whole = (tokenizer.encode_batch(["the baker"], add)[0] for add in (False, True))
    assert whole[before : len(whole) - after] == bare


def test_truncation_keeps_the_closing_tokens(form):
    tokenizer = load_tokenizer(form[1])
    text, after = "the baker mends a wooden boat and paints it", tokenizer.num_special_tokens[1]
    (whole,), _ = tokenizer([text], 10**9)
    (short,), count = tokenizer([text], 6)
    assert short == whole[: 6 - after] + whole[len(whole) - after :]
    assert (len(short), count) == (6, 1)


def test_every_family_names_a_kind_of_tokenizer():
    assert {family.tokenizer for family in FAMILIES.values()} <= TOKENIZER_KINDS.keys()


# ------------------------------------------------------------------------------- which kind it is


def test_a_known_class_counts_more_than_model_type(tmp_path):
    """A BERT with the vocabulary of XLM-RoBERTa, as paraphrase-multilingual-MiniLM-L12-v2."""
    xlm_roberta_json(tmp_path, newer=False, model_type="bert")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.special_tokens["cls_token"] == "<s>"
    assert tokenizer.vocabulary[:4] == ["<s>", "<pad>", "</s>", "<unk>"]


@pytest.mark.parametrize("settings", [{}, {"tokenizer_class": "BertTokenizer"}])
def test_a_tokenizer_json_counts_more_than_model_type(settings, tmp_path):
    """Where no class is named, or one that cannot read the file, transformers gives nonsense."""
    xlm_roberta_json(tmp_path, newer=False)
    expected = ids(load_tokenizer(tmp_path), ["the baker", "나는 빵집 주인"])
    write(tmp_path, config={"model_type": "bert"}, tokenizer_config=settings)
    assert ids(load_tokenizer(tmp_path), ["the baker", "나는 빵집 주인"]) == expected


def test_without_config_json_the_vocabulary_decides(tmp_path):
    roberta_vocabulary(tmp_path)
    expected = ids(load_tokenizer(tmp_path), ["the baker"])
    (tmp_path / "config.json").unlink()
    assert ids(load_tokenizer(tmp_path), ["the baker"]) == expected


def test_the_class_may_be_named_in_config_json(tmp_path):
    camembert_json(tmp_path, model_type="unknown", tokenizer_class="CamembertTokenizer")
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(tmp_path).tokenizer_class == "CamembertTokenizer"


def change_tokenizer_json(folder, **parts) -> None:
    """Replace parts of a tokenizer.json."""
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for name, part in parts.items():
        setattr(backend, name, part)
    backend.save(str(folder / "tokenizer.json"))


def test_a_tokenizer_json_of_a_generic_class_is_used_unchanged(tmp_path):
    t5_json(tmp_path)
    change_tokenizer_json(tmp_path, normalizer=normalizers.Replace("a", "e"))
    write(tmp_path, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.num_special_tokens == (0, 1)
    assert ids(tokenizer, ["a man"]) == ids(tokenizer, ["e men"])


@pytest.mark.parametrize(
    ("name", "rebuilt_as", "first_token"),
    [
        ("bert tokenizer.json", UNCHANGED_CLASS, "[CLS]"),
        ("t5 tokenizer.json", "T5Tokenizer", None),
        ("xlm-roberta newer tokenizer.json", "XLMRobertaTokenizer", "<s>"),
        ("camembert tokenizer.json", "CamembertTokenizer", "<s>"),
    ],
)
def test_without_a_class_the_model_and_the_template_tell_the_kind(name, rebuilt_as, first_token, tmp_path):
    FORMS[name](tmp_path)
    write(tmp_path, config={}, tokenizer_config={})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.tokenizer_class == rebuilt_as
    assert tokenizer.special_tokens.get("cls_token") == first_token


@pytest.mark.parametrize("name", ["T5Tokenizer", "T5TokenizerFast"])
def test_without_a_template_the_tokenizer_class_decides(name, tmp_path):
    t5_json(tmp_path)
    change_tokenizer_json(
        tmp_path, post_processor=processors.TemplateProcessing(single="$A", special_tokens=[])
    )
    write(tmp_path, config={}, tokenizer_config={})
    assert 1 not in ids(load_tokenizer(tmp_path), ["the baker"])[0]
    write(tmp_path, tokenizer_config={"tokenizer_class": name})
    assert ids(load_tokenizer(tmp_path), [""]) == [[1]]


# ------------------------------------------------------------------------------- special tokens


def test_special_tokens_map_of_old_repositories_is_read(tmp_path):
    roberta_vocabulary(tmp_path, special_tokens_map={"mask_token": "the", "pad_token": {"content": "baker"}})
    write(tmp_path, vocab=byte_level_vocabulary(["<s>", "<pad>", "</s>", "<unk>", "the"], ["baker"]))
    special_tokens = load_tokenizer(tmp_path).special_tokens
    assert (special_tokens["mask_token"], special_tokens["pad_token"]) == ("the", "baker")


def test_added_tokens_of_old_repositories_are_read(tmp_path):
    roberta_vocabulary(tmp_path)
    size = len(byte_level_vocabulary([], [])) + 5
    write(tmp_path, added_tokens={"[Q]": size + 1, "[D]": size})
    texts = ["a [Q] b", "[D][Q]", "[q]", " [D] "]
    tokenizer = load_tokenizer(tmp_path)
    assert ids(tokenizer, texts) == theirs(tmp_path, texts)
    assert tokenizer.vocabulary[size:] == ["[D]", "[Q]"]


def test_the_padding_token_may_be_missing(tmp_path):
    llama2_json(tmp_path, pad_token=None)
    tokenizer = load_tokenizer(tmp_path)
    assert "pad_token" not in tokenizer.special_tokens and tokenizer.pad_id == 0


OTHER_TOKENS = {
    "bert tokenizer.json": "unk_token",
    "mpnet vocab.txt": "unk_token",
    "xlm-roberta tokenizer.json": "eos_token",
    "camembert tokenizer.json": "bos_token",
    "roberta vocab.json": "sep_token",
}


@pytest.mark.parametrize("name", OTHER_TOKENS)
def test_another_special_token_in_the_settings_is_used_where_transformers_uses_it(name, tmp_path):
    """BERT's token for unknown words; the tokens around a text, which have different names in the kinds."""
    FORMS[name](tmp_path)
    texts = random_texts(150, seed=2)
    before = ids(load_tokenizer(tmp_path), texts)
    path = tmp_path / "tokenizer_config.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    write(tmp_path, tokenizer_config=content | {OTHER_TOKENS[name]: "e"})
    assert ids(load_tokenizer(tmp_path), texts) != before
    assert_equal_to_transformers(tmp_path, texts, tmp_path / "saved")


def test_a_closing_token_that_the_template_lacks_is_reported_and_can_be_added(tmp_path, caplog):
    """As e5-mistral-7b-instruct: transformers 4 added it, transformers 5 does not."""
    llama2_json(tmp_path, single="<s> $A", add_eos_token=True)
    with caplog.at_level(logging.WARNING, logger="tmft"):
        tokenizer = load_tokenizer(tmp_path)
    (message,) = caplog.messages
    assert "asks for </s> after each text" in message and "add_closing_token(tokenizer)" in message
    assert ids(tokenizer, ["the baker"]) == theirs(tmp_path, ["the baker"])
    (bare,) = ids(tokenizer, ["the baker"])

    add_closing_token(tokenizer)
    assert ids(tokenizer, ["the baker"]) == [[*bare, 2]] and tokenizer.num_special_tokens == (1, 1)
    saved = save(tokenizer, tmp_path, tmp_path / "saved")
    assert ids(load_tokenizer(saved), ["the baker"]) == theirs(saved, ["the baker"]) == [[*bare, 2]]


def test_nothing_is_reported_where_the_template_has_the_closing_token(tmp_path, caplog):
    llama2_json(tmp_path, add_eos_token=True)
    load_tokenizer(tmp_path)
    assert not caplog.messages


def test_a_closing_token_without_a_name_cannot_be_added(tmp_path):
    FORMS["bert vocab.txt"](tmp_path)
    with pytest.raises(InputError, match="the tokenizer has no eos_token"):
        add_closing_token(load_tokenizer(tmp_path))


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_side_of_padding_is_saved(side, tmp_path):
    from transformers import AutoTokenizer

    FORMS["qwen embedding tokenizer.json"](tmp_path)
    saved = save(load_tokenizer(tmp_path), tmp_path, tmp_path / "saved", padding_side=side)
    reference = AutoTokenizer.from_pretrained(saved)
    assert (reference.padding_side, reference.model_max_length) == (side, 64)


def test_lower_case_is_saved_for_transformers_too(tmp_path):
    xlm_roberta_json(tmp_path, newer=False)
    tokenizer = load_tokenizer(tmp_path, lower_case=True)
    texts = ["THE BAKER", "Der Bäcker", *random_texts(100, seed=6)]
    saved = save(tokenizer, tmp_path, tmp_path / "saved")
    assert ids(tokenizer, texts[:2]) == ids(load_tokenizer(tmp_path), ["the baker", "der bäcker"])
    assert_no_difference(ids(tokenizer, texts), theirs(saved, texts), texts)


# ------------------------------------------------------------------------------- errors


def drop_token(folder, token: str) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text())
    write(folder, vocab={text: id for text, id in vocabulary.items() if text != token})


def without_sep(folder) -> None:
    roberta_vocabulary(folder)
    drop_token(folder, "</s>")


def changed(vocabulary=roberta_vocabulary, **files):
    def make(folder) -> None:
        vocabulary(folder)
        write(folder, **files)

    return make


WRONG = {
    "no closing token": (without_sep, "the vocabulary has no </s>"),
    "merges of three parts": (changed(**{"merges.txt": "a b\na b c\n"}), "merges.txt cannot be"),
    "merges of other tokens": (changed(**{"merges.txt": "the🎈 b\n"}), "merges.txt .*out of vocabulary"),
    "merges in no UTF-8": (changed(**{"merges.txt": b"\xff\xfe"}), "merges.txt cannot be read"),
    "a list": (changed(vocab=["a"]), "vocab.json and merges.txt cannot be read .*Bad vocab"),
    "a token that is no text": (changed(special_tokens_map={"pad_token": 1}), "special_tokens_map.json"),
    "a flag that is none": (
        changed(special_tokens_map={"mask_token": {"content": "<mask>", "lstrip": "yes"}}),
        "lstrip is 'yes', not true or false",
    ),
    "special tokens that are split": (
        changed(tokenizer_config={"split_special_tokens": True}),
        "cannot be read .split_special_tokens is true, but special tokens in a text are always",
    ),
    "an id that is no number": (changed(added_tokens={"[Q]": "9"}), "added_tokens.json cannot be read"),
    "tokens by no id": (
        changed(tokenizer_config={"added_tokens_decoder": {"x": {"content": "[Q]"}}}),
        "tokenizer_config.json cannot be read",
    ),
    "accents": (
        changed(bert_vocabulary, tokenizer_config={"strip_accents": "no"}),
        "strip_accents is 'no'",
    ),
    "no file": (lambda folder: None, "no tokenizer in .*: expected tokenizer.json"),
    "no unknown token": (changed(bert_vocabulary, **{"vocab.txt": "a\nb\n"}), r"has no \[UNK\]"),
    "no [CLS]": (changed(bert_vocabulary, **{"vocab.txt": "[UNK]\na\n"}), r"the vocabulary has no \[CLS\]"),
    "an empty tokenizer.json": (changed(bert_vocabulary, tokenizer={}), "tokenizer.json cannot be read"),
    "no end in the pieces": (partial(t5_vocabulary, eos_piece="<end>"), "the vocabulary has no </s>"),
}


@pytest.mark.parametrize("name", WRONG)
def test_damaged_files_are_one_clear_line(name, tmp_path, capfd):
    make, message = WRONG[name]
    make(tmp_path)
    with pytest.raises(InputError, match=message) as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["merges alone", "Qwen", "XLM-RoBERTa", "an unknown class"])
def test_a_tokenizer_of_another_kind_says_how_to_make_its_tokenizer_json(name, tmp_path):
    """transformers refuses them, too, or gives other ids than those of the kind that they look like."""
    roberta_vocabulary(tmp_path)
    if name == "an unknown class":
        bert_vocabulary(tmp_path, tokenizer_class="BertJapaneseTokenizer")
    elif name == "merges alone":
        (tmp_path / "vocab.json").unlink()
    elif name == "Qwen":
        write(
            tmp_path, config={"model_type": "qwen3"}, tokenizer_config={"tokenizer_class": "Qwen2Tokenizer"}
        )
    else:
        write(tmp_path, config={"model_type": "xlm-roberta"}, **{"sentencepiece.bpe.model": b"\x0a"})
    message = "no tokenizer .*in .*: expected tokenizer.json, .* save it, which writes tokenizer.json$"
    with pytest.raises(InputError, match=message):
        load_tokenizer(tmp_path)


# ------------------------------------------------------- at which the tokenizers library fails or panics


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


def test_a_lone_surrogate_is_one_line():
    with pytest.raises(InputError, match="a text cannot be read"):
        load_tokenizer(vocabulary_folder())(["\ud800"], 9)
