"""Tokenizers of all kinds, in every form of file: the ids of transformers, also when they were saved."""

import json
import logging
import os
from functools import partial

import pytest
from conftest import VOCABULARY, vocabulary_folder
from tokenizer_forms import (
    FORMS,
    SETTINGS,
    bert_vocabulary,
    byte_level_vocabulary,
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
from tmft.checkpoints.tokenizers import load_tokenizer, tokenizer_to_files
from tmft.errors import InputError
from tmft.models.families import FAMILIES
from tmft.tokenizer import UNCHANGED_CLASS

AROUND = {  # special tokens before and after a sentence, where it is not one and one
    "qwen embedding tokenizer.json": (0, 1),
    "qwen tokenizer.json, no template": (0, 0),
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


BERT = {"model_type": "bert"}
CLASS_IN_CONFIG = {"model_type": "unknown", "tokenizer_class": "CamembertTokenizer"}
XLM_ROBERTA = "xlm-roberta tokenizer.json"
KINDS = [  # a form, the files that are replaced, the class of the saved tokenizer, its first special token
    # a known class counts more than model_type, as in paraphrase-multilingual-MiniLM-L12-v2
    (XLM_ROBERTA, {"config": BERT}, "XLMRobertaTokenizer", "<s>"),
    # so does tokenizer.json, if no class is named, or one that cannot read it: transformers gives nonsense
    (XLM_ROBERTA, {"config": BERT, "tokenizer_config": {}}, "XLMRobertaTokenizer", "<s>"),
    (
        XLM_ROBERTA,
        {"config": BERT, "tokenizer_config": {"tokenizer_class": "BertTokenizer"}},
        UNCHANGED_CLASS,
        "<s>",
    ),
    # the class may be named in config.json
    (
        "camembert tokenizer.json",
        {"config": CLASS_IN_CONFIG, "tokenizer_config": {}},
        "CamembertTokenizer",
        "<s>",
    ),
    # without a class and a model_type, the model and the template decide, or the vocabulary
    ("bert tokenizer.json", {"config": {}, "tokenizer_config": {}}, UNCHANGED_CLASS, "[CLS]"),
    ("t5 tokenizer.json", {"config": {}, "tokenizer_config": {}}, "T5Tokenizer", None),
    (
        "xlm-roberta newer tokenizer.json",
        {"config": {}, "tokenizer_config": {}},
        "XLMRobertaTokenizer",
        "<s>",
    ),
    ("camembert tokenizer.json", {"config": {}, "tokenizer_config": {}}, "CamembertTokenizer", "<s>"),
    ("roberta vocab.json", {"config": {}}, UNCHANGED_CLASS, "<s>"),
]


@pytest.mark.parametrize(("form", "files", "saved_class", "first_token"), KINDS)
def test_what_the_files_say_decides_which_kind_it_is(form, files, saved_class, first_token, tmp_path):
    FORMS[form](tmp_path)
    write(tmp_path, **files)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.tokenizer_class == saved_class
    assert tokenizer.special_tokens.get("cls_token") == first_token


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


def test_without_a_template_the_tokenizer_class_decides(tmp_path):
    t5_json(tmp_path)
    change_tokenizer_json(
        tmp_path, post_processor=processors.TemplateProcessing(single="$A", special_tokens=[])
    )
    write(tmp_path, config={}, tokenizer_config={})
    assert 1 not in ids(load_tokenizer(tmp_path), ["the baker"])[0]
    write(tmp_path, tokenizer_config={"tokenizer_class": "T5TokenizerFast"})
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


def test_a_closing_token_that_the_template_lacks_is_reported(tmp_path, caplog):
    """As e5-mistral-7b-instruct: transformers 4 added it, transformers 5 does not."""
    llama2_json(tmp_path, single="<s> $A", add_eos_token=True)
    with caplog.at_level(logging.WARNING, logger="tmft"):
        tokenizer = load_tokenizer(tmp_path)
    (message,) = caplog.messages
    assert "asks for </s> after each text" in message
    assert ids(tokenizer, ["the baker"]) == theirs(tmp_path, ["the baker"])
    llama2_json(tmp_path, add_eos_token=True)
    load_tokenizer(tmp_path)
    assert len(caplog.messages) == 1  # that template has the token


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


# ------------------------------------------------------------------------------- files


def test_a_tokenizer_json_is_saved_without_indentation_and_read_with_it(tmp_path):
    """Indented, it is half as long again, which is a tenth of a small model."""
    tokenizer, texts = load_tokenizer(vocabulary_folder()), random_texts(300, seed=7)
    files = tokenizer_to_files(tokenizer, 99)
    content = json.loads(files["tokenizer.json"])
    assert files["tokenizer.json"] == json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    for text in (files["tokenizer.json"], json.dumps(content, indent=2)):
        (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
        assert ids(load_tokenizer(tmp_path), texts) == ids(tokenizer, texts)


def test_a_cased_tokenizer_json_alone_stays_cased(tmp_path):
    """transformers 5 would lower-case it: what it should not do to a cased checkpoint is not imitated."""
    bert_vocabulary(tmp_path, do_lower_case=False)
    cased, texts = load_tokenizer(tmp_path), random_texts(300, seed=7)
    cased.backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").unlink()
    assert ids(load_tokenizer(tmp_path), texts) == ids(cased, texts)


@pytest.mark.parametrize("key", ["model_max_length", "max_len"])
def test_both_spellings_of_the_length_limit_are_read_and_a_huge_one_is_none(key):
    assert load_tokenizer(vocabulary_folder(**{key: 77})).max_length == 77
    assert load_tokenizer(vocabulary_folder(**{key: int(1e30)})).max_length is None


def test_the_vocabulary_is_in_the_order_of_the_ids_and_an_id_without_a_token_is_named_by_itself():
    """A word that stands in two lines has the number of the later one."""
    folder = vocabulary_folder()
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nman\na\n", encoding="utf-8")
    assert load_tokenizer(folder).vocabulary == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[4]", "man", "a"]


@pytest.mark.parametrize("cls", ["a b", "$A", "[SEP]:1"])
def test_a_special_token_may_have_any_name(cls):
    """Also one that means something in the template around a sentence."""
    folder = vocabulary_folder(cls_token=cls)
    with open(folder / "vocab.txt", "a") as file:
        file.write(f"{cls}\n")
    tokenizer = load_tokenizer(folder)
    last, man, sep = len(VOCABULARY), VOCABULARY.index("man"), VOCABULARY.index("[SEP]")
    assert ids(tokenizer, ["man"]) == [[last, man, sep]]
    saved = json.loads(tokenizer_to_files(tokenizer, 9)["tokenizer.json"])
    assert saved["post_processor"]["type"] == "TemplateProcessing"


# ------------------------------------------------------------------------------- errors


def without_sep(folder) -> None:
    roberta_vocabulary(folder)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    write(folder, vocab={text: id for text, id in vocabulary.items() if text != "</s>"})


def merges_alone(folder) -> None:
    roberta_vocabulary(folder)
    (folder / "vocab.json").unlink()


def changed(vocabulary=roberta_vocabulary, **files):
    def make(folder) -> None:
        vocabulary(folder)
        write(folder, **files)

    return make


OTHER_KIND = "no tokenizer .*in .*: expected tokenizer.json, .* save it, which writes tokenizer.json$"
WRONG = [  # words of the message, and how the files are made
    (OTHER_KIND, merges_alone),
    (
        OTHER_KIND,
        changed(config={"model_type": "qwen3"}, tokenizer_config={"tokenizer_class": "Qwen2Tokenizer"}),
    ),
    (OTHER_KIND, partial(bert_vocabulary, tokenizer_class="BertJapaneseTokenizer")),
    ("no tokenizer in .*: expected tokenizer.json", lambda folder: None),
    ("the vocabulary has no </s>", without_sep),
    ("the vocabulary has no </s>", partial(t5_vocabulary, eos_piece="<end>")),
    (r"has no \[UNK\]", changed(bert_vocabulary, **{"vocab.txt": "a\nb\n"})),
    (r"the vocabulary has no \[CLS\]", changed(bert_vocabulary, **{"vocab.txt": "[UNK]\na\n"})),
    ("merges.txt cannot be", changed(**{"merges.txt": "a b\na b c\n"})),
    ("merges.txt .*out of vocabulary", changed(**{"merges.txt": "the🎈 b\n"})),
    ("merges.txt cannot be read", changed(**{"merges.txt": b"\xff\xfe"})),
    ("vocab.json and merges.txt cannot be read .*Bad vocab", changed(vocab=["a"])),
    ("tokenizer.json cannot be read", changed(bert_vocabulary, tokenizer={})),
    ("special_tokens_map.json", changed(special_tokens_map={"pad_token": 1})),
    (
        "lstrip is 'yes', not true or false",
        changed(special_tokens_map={"mask_token": {"content": "<mask>", "lstrip": "yes"}}),
    ),
    (
        "tokenizer_config.json cannot be read",
        changed(tokenizer_config={"added_tokens_decoder": {"x": {"content": "[Q]"}}}),
    ),
]


@pytest.mark.parametrize(("message", "make"), WRONG)
def test_damaged_files_are_one_clear_line(message, make, tmp_path, capfd):
    make(tmp_path)
    with pytest.raises(InputError, match=message) as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)
    assert "panicked" not in capfd.readouterr().err


# ------------------------------------------------------- at which the tokenizers library fails or panics


MAP = {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8A"}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {"Regex": "(a|a|aa|a.)+$x"}}


@pytest.mark.parametrize("part", [{"normalizer": MAP}, {"pre_tokenizer": SPLIT}, {"model": None}])
def test_an_error_or_a_panic_of_the_library_is_one_line(part):
    """A map that leads out of itself, an expression that takes too long, a missing model."""
    folder = vocabulary_folder(tokenizer_class="PreTrainedTokenizerFast")
    content = json.loads(load_tokenizer(vocabulary_folder()).backend.to_str())
    write(folder, tokenizer=content | part)
    with pytest.raises(InputError, match="cannot be read") as error:
        load_tokenizer(folder)(["a" * 40 + "b"], 64)
    assert "\n" not in str(error.value)


def test_a_lone_surrogate_is_one_line():
    with pytest.raises(InputError, match="a text cannot be read"):
        load_tokenizer(vocabulary_folder())(["\ud800"], 9)
