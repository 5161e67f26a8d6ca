"""Prompts: the ids of the filled template; a sentence that is too long loses words, the template none."""

import json

import pytest
import tokenizers
from conftest import SENTENCES, tiny_model, vocabulary_folder
from spm_model import made_up_sentences, train_spm

from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.embedding.prompts import PROMPTS, Prompt, parse_prompt
from tmft.errors import InputError
from tmft.tokenizer import Tokenizer

# As they stand in the paper, with a typewriter's quotes; {} for the sentence.
IN_THE_PAPER = {
    "T0": 'This sentence: "{}" means [MASK].',
    "T1": 'This sentence: "{}" means [MASK][MASK].',
    "T2": 'This sentence: "{}" means "[MASK][MASK]" and is about [MASK].',
    "T3": 'This sentence from the paraphrase dictionary: "{}" means "[MASK]", which is about [MASK].',
    "T4": 'This sentence from the dictionary: "{}" means "[MASK]" and is about [MASK], which is a synonym '
    "for [MASK].",
}
OF_OUR_OWN = {
    "[X] means [M].": "{} means [MASK].",
    "the cat: [X]": "the cat: {}",
    "[X]": "{}",
    "a [M] [X]": "a [MASK] {}",
    "a dog ": "a dog {}",  # no place: put before, as sentence-transformers does it
    "": "{}",
}
FULL_STOP = ["A man plays.", "Is it?", 'he said "no"', "the dogs'", "no. 'x'."]
NO_FULL_STOP = ["A man plays", "Two dogs in the park!", "music,", "one;", "...…", "“so”", "a. "]
ODD = ["", " ", "[X]", "[X.] and [M]", "The [MASK] is special", "[SEP]", "ÀÉ 漢字 😀", "x" * 150, "{} %s \\1"]


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    return load_tokenizer(vocabulary_folder())


@pytest.fixture(scope="module")
def unigram(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("spm")
    (folder / "spm.model").write_bytes(train_spm())
    return load_tokenizer(folder)


@pytest.fixture(params=["wordpiece", "unigram"])
def tokenizer(request) -> Tokenizer:
    return request.getfixturevalue(request.param)


def tokenize_one(text: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer([text], 10**6)[0][0]


def filled(template: str, tokenizer: Tokenizer, sentences: list[str], max_length: int = 10**6):
    return Prompt(template, tokenizer)(sentences, max_length)[0]


# -------------------------------------------------------------------------------------------------- the text


def test_the_prompts_are_those_of_the_paper():
    assert PROMPTS.keys() == IN_THE_PAPER.keys()
    for name, text in IN_THE_PAPER.items():
        assert PROMPTS[name] == text.replace("{}", "[X]").replace("[MASK]", "[M]")


@pytest.mark.parametrize("template", [*PROMPTS.values(), *OF_OUR_OWN])
def test_the_ids_are_those_of_the_filled_text(template, tokenizer):
    text = OF_OUR_OWN.get(template) or template.replace("[X]", "{}").replace("[M]", "[MASK]")
    expected = [tokenize_one(text.replace("{}", sentence), tokenizer) for sentence in FULL_STOP]
    assert filled(template, tokenizer, FULL_STOP) == expected


FORMATTED = [('say "[X.]"', sentence, f'say "{sentence}"') for sentence in FULL_STOP]
FORMATTED += [('say "[X.]"', sentence, f'say "{sentence}."') for sentence in NO_FULL_STOP]
FORMATTED += [("a [M] [X] b", sentence, f"a [MASK] {sentence} b") for sentence in ODD]
FORMATTED += [('say "[X.]"', "", 'say ""')]  # as in PromptBERT's code: there is no last character


@pytest.mark.parametrize(("template", "sentence", "text"), FORMATTED)
def test_a_sentence_is_plain_text_and_gets_a_full_stop_where_it_has_no_final_punctuation(
    template, sentence, text, wordpiece
):
    assert Prompt(template, wordpiece).format(sentence) == text


# --------------------------------------------------------------------------------------------- lead and tail


@pytest.mark.parametrize("template", [*PROMPTS.values(), *OF_OUR_OWN])
def test_the_tokens_between_are_the_sentence(template, wordpiece):
    prompt = Prompt(template, wordpiece)
    for sentence in [*SENTENCES, *FULL_STOP, "the cat: a dog means a [MASK]."]:
        (ids,), alone = prompt([sentence], 10**6)[0], prompt.format(sentence)
        own = alone[len(prompt.prefix) : len(alone) - len(prompt.suffix)]
        assert (
            ids[prompt.prefix_length : len(ids) - prompt.suffix_length] == tokenize_one(own, wordpiece)[1:-1]
        )


def test_a_tokenizer_that_adds_no_special_tokens_truncates_too(wordpiece):
    """A tokenizer.json without a template for [CLS] and [SEP]."""
    said = json.loads(wordpiece.backend.to_str()) | {"post_processor": None}
    plain = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(said)), wordpiece.special_tokens)
    prompt = Prompt("", plain)
    assert (prompt.prefix_length, prompt.suffix_length) == (0, 0)
    assert prompt(["music " * 9], 5)[0] == [tokenize_one("music", plain) * 5]


# ------------------------------------------------------------------------------------------------------ cuts


@pytest.mark.parametrize("template", [*PROMPTS.values(), "the cat: [X] is [M]", "a dog ", ""])
@pytest.mark.parametrize("more", [1, 2, 9])
def test_a_long_sentence_is_truncated_and_the_template_is_complete(template, more, tokenizer):
    long = " ".join(made_up_sentences(30, seed=1))
    prompt = Prompt(template, tokenizer)
    limit = prompt.prefix_length + prompt.suffix_length + more
    whole, (ids, short) = filled(template, tokenizer, [long])[0], prompt([long, "a"], limit)[0]
    assert ids == whole[: prompt.prefix_length + more] + whole[-prompt.suffix_length :]
    assert (
        ids[-prompt.suffix_length :] == short[-prompt.suffix_length :]
        and ids[: prompt.prefix_length] == short[: prompt.prefix_length]
    )
    mask = tokenizer.backend.token_to_id("[MASK]")
    assert ids.count(mask) == template.count("[M]")


@pytest.mark.parametrize("template", ["the cat: [X] is [M].", "a dog a dog a dog "])
def test_a_template_that_leaves_no_room_is_an_error(template, wordpiece):
    prompt = Prompt(template, wordpiece)
    size = prompt.prefix_length + prompt.suffix_length
    assert prompt(["music"], size + 1)[0]
    with pytest.raises(InputError, match=f"takes {size} of {size} tokens: shorten it") as error:
        prompt(["music"], size)
    assert "\n" not in str(error.value) and error.value.parameters == ("prompt",)


# -------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("text", ["T5", "", "no place", "[X] and [X]", "[X.] [X]", "[x]", "[M]", "X"])
def test_a_prompt_without_exactly_one_placeholder_is_an_error(text):
    with pytest.raises(InputError) as error:
        parse_prompt(text)
    assert str(error.value) == (
        f"prompt {text!r}: choose one of T0, T1, T2, T3, T4, or a text with one [X] where the sentence goes"
    )
    assert error.value.parameters == ("prompt",)


def test_a_template_with_a_mask_needs_one_in_the_vocabulary():
    folder = vocabulary_folder()
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nman\n")
    tokenizer = load_tokenizer(folder)
    assert Prompt("a [X]", tokenizer).has_mask is False
    with pytest.raises(InputError, match=r"the vocabulary has no \[MASK\]"):
        Prompt("[X] a [M]", tokenizer)


# ------------------------------------------------------------------------------------------------ in a model


@pytest.mark.parametrize("model_type", ["roberta", "bert"])
def test_a_padding_token_in_a_text_is_warned_of_where_other_libraries_do_not_count_it(model_type, caplog):
    config = {"model_type": model_type, "max_position_embeddings": 60} | {
        "pad_token_id": 0,
        "embedding_size": 24,
    }
    model = tiny_model(**config)
    model.encode(["a cat", "music"])
    assert not caplog.text
    model.encode(["a cat [PAD] music"])
    assert ("a text has the padding token '[PAD]'" in caplog.text) == (model_type == "roberta")
