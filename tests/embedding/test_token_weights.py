"""Token weights: the weights of each scheme, and that a sentence is sum w h / sum w."""

import math
import re
import string
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    DEBERTA,
    SENTENCES,
    VOCABULARY,
    assert_same_embeddings,
    tiny_model,
)

from tmft import SentenceEncoder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.embedding.prompts import PROMPTS, Prompt
from tmft.embedding.token_weights import (
    NEEDS_TEXT,
    NUM_FREQUENT,
    PROMPTBERT_STOPWORDS,
    TokenWeights,
    check_token_weights,
    make_token_weights,
)
from tmft.errors import InputError
from tmft.packing import pack

V = len(VOCABULARY)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = ["a man", "the cat", "a man plays, a man eats", "music"]
FAMILIES = {"bert": {"model_type": "bert"}, "electra": {}, "deberta-v2": DEBERTA}


def weights_of(name: str, model: SentenceEncoder, texts: list[str] | None = None) -> TokenWeights | None:
    """The weights of a scheme for the tokenizer and the prompt of a model, estimated from texts."""
    prompt = Prompt(model.prompt, model.tokenizer)
    return make_token_weights(name, prompt, V, texts and model.tokenize(texts))


def table_of(name: str, texts: list[str] | None = None, prompt: str = "") -> dict[str, float]:
    model = tiny_model()
    model.prompt = prompt
    return dict(zip(VOCABULARY, weights_of(name, model, texts).table.tolist(), strict=True))


def weighted(name: str, texts: list[str] | None = None, prompt: str = "", **changes) -> SentenceEncoder:
    model = tiny_model(**changes)
    model.prompt = prompt
    model.token_weights = weights_of(name, model, texts)
    return model


def by_hand(model: SentenceEncoder, sentence: str, weights: list[float]) -> np.ndarray:
    """sum w h / sum w over the tokens of one sentence, in a row of its own, in float64."""
    ids = torch.tensor(model.tokenize([sentence]))
    with torch.inference_mode():
        hidden = model.encoder(ids, torch.ones_like(ids))[0].double()  # (T, D)
    assert len(weights) == len(hidden)
    w = torch.tensor(weights, dtype=torch.float64)
    return ((w[:, None] * hidden).sum(0) / w.sum()).numpy()


def own_weights(model: SentenceEncoder, sentence: str) -> list[float]:
    return [model.token_weights.table[id].item() for id in model.tokenize([sentence])[0]]


# ---------------------------------------------------------------------------------------------- idf, by hand


def test_idf_is_log_of_texts_by_texts_that_have_the_token():
    weight = table_of("idf", TEXTS)
    expected = {"a": math.log(4 / 2), "man": math.log(4 / 2), "music": math.log(4), ",": math.log(4)}
    expected |= {"guitar": math.log(4), "[UNK]": math.log(4), "[CLS]": 0, "[SEP]": 0}  # unseen; in every text
    assert {token: weight[token] for token in expected} == pytest.approx(expected)


@pytest.mark.parametrize("texts", [None, []])
@pytest.mark.parametrize("name", NEEDS_TEXT)
def test_estimated_weights_need_texts(name, texts):
    with pytest.raises(
        InputError, match=f"token_weights {name} are estimated from texts, and there are none"
    ) as error:
        make_token_weights(name, Prompt("", tiny_model().tokenizer), V, texts)
    assert error.value.parameters == ("token_weights",)


# ----------------------------------------------------------------------------------------------------- words


def test_no_special_excludes_the_special_tokens_only():
    assert {token for token, weight in table_of("no-special").items() if weight == 0} == set(SPECIAL)
    assert set(table_of("no-special").values()) == {0, 1}


# --------------------------------------------------------------------------------------------------- content


def test_content_words_exclude_stopwords_punctuation_and_subwords():
    kept = {token for token, weight in table_of("content-words").items() if weight}
    words = "[MASK] cat plays eats guitar music not park é ü 한국 가 안".split()
    assert kept == {*words, *string.ascii_lowercase} - {"a", "i", "s"}


def test_content_words_of_the_real_vocabulary(minilm):
    tokenizer = load_tokenizer(Path(minilm))
    vocabulary = tokenizer.backend.get_vocab()
    assert len(set(PROMPTBERT_STOPWORDS)) == 36 and set(PROMPTBERT_STOPWORDS) <= set(vocabulary)
    table = make_token_weights("content-words", Prompt("", tokenizer), len(vocabulary)).table
    dropped = {token for token, id in vocabulary.items() if table[id] == 0}
    assert {token for token in vocabulary if token.startswith("##")} < dropped
    whole = {token for token in dropped if not token.startswith("##")}
    assert {*SPECIAL, *string.punctuation, *PROMPTBERT_STOPWORDS} - {"##s", "[MASK]"} <= whole
    assert {token for token in whole if token.isalnum()} == {
        token for token in PROMPTBERT_STOPWORDS if token.isalnum()
    }
    assert not {"[MASK]", "guitar", "two-thirds", "not", "men", "ing", "2", "é"} & dropped


WHOLE = [token for token in dict.fromkeys(VOCABULARY) if token not in SPECIAL and not token.startswith("##")]


def left_out_of(texts: list[list[str]]) -> set[str]:
    """The words that content leaves out, as learnt from texts of these tokens."""
    tokenizer = tiny_model().tokenizer
    ids = tokenizer.backend.get_vocab()
    table = make_token_weights(
        "content-words", Prompt("", tokenizer), V, [[ids[t] for t in text] for text in texts]
    ).table
    return {token for token in WHOLE if table[ids[token]] == 0}


MARKS = set(WHOLE) & set(string.punctuation)


def test_content_words_of_texts_exclude_their_33_most_frequent_tokens():
    """The n-th of 45 words stands 45 - n times; special tokens, the most frequent of all, do not count."""
    text = [word for n, word in enumerate(WHOLE[:45]) for _ in range(45 - n)]
    assert NUM_FREQUENT == 33 and len(WHOLE) > 45
    assert left_out_of([text, ["[CLS]", "[SEP]"] * 99]) == set(WHOLE[:33]) | MARKS
    assert left_out_of([text[::-1], []]) == set(WHOLE[:33]) | MARKS


def test_equally_frequent_tokens_are_excluded_in_the_order_of_their_ids():
    ids = tiny_model().tokenizer.backend.get_vocab()
    first = sorted(WHOLE, key=ids.get)[:33]
    assert left_out_of([WHOLE]) == left_out_of([WHOLE[::-1]]) == set(first) | MARKS


# -------------------------------------------------------------------------------------------- mask, sentence


@pytest.mark.parametrize("scheme", ["mask-token", "no-mask"])
@pytest.mark.parametrize("name", PROMPTS)
def test_each_prompt_of_the_paper_has_a_mask_to_take_or_to_leave_out(name, scheme):
    """Figure 4 of Stankevičius and Lukoševičius 2024: "avg. [MASK]" and "avg. no [MASK]"."""
    model = weighted(scheme, prompt=PROMPTS[name], max_position_embeddings=120)
    mask, ids = model.tokenizer.backend.token_to_id("[MASK]"), model.tokenize(SENTENCES)[0]
    assert ids.count(mask) == PROMPTS[name].count("[M]") > 0
    weights = [float((id == mask) is (scheme == "mask-token")) for id in ids]
    assert own_weights(model, SENTENCES[0]) == weights
    assert_same_embeddings(model.encode(SENTENCES)[0], by_hand(model, SENTENCES[0], weights))


@pytest.mark.parametrize(
    ("prompt", "prefix_length", "suffix_length"),
    [("", 1, 1), ("the cat ", 3, 1), ("the cat, [X]", 4, 1), ("[X] is a cat [M].", 1, 6), ("a [X] a", 2, 2)],
)
@pytest.mark.parametrize("sentence", ["the cat", "a cat is a cat, the cat.", "is [MASK].", "music " * 60])
def test_no_prompt_is_the_mean_of_the_tokens_of_the_sentence_whatever_the_template_repeats(
    prompt, prefix_length, suffix_length, sentence
):
    model = weighted("no-prompt", prompt=prompt)
    length = len(model.tokenize([sentence])[0])
    weights = [float(prefix_length <= place < length - suffix_length) for place in range(length)]
    others = [*SENTENCES, "a", "the cat, the cat is a cat."]
    assert_same_embeddings(model.encode([*others, sentence])[-1], by_hand(model, sentence, weights))


# ----------------------------------------------------------------------------------------- the weighted mean


@pytest.mark.parametrize("name", ["no-special", "content-words", "idf", "no-prompt"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sentence_is_the_weighted_mean_of_its_tokens(family, name):
    """In rows with several sentences and padding, against one sentence in a row of its own length."""
    model = weighted(name, TEXTS if name == "idf" else None, **FAMILIES[family])
    assert (pack(model.tokenize(SENTENCES)).attention_mask > 1).any()
    for sentence, embedding in zip(SENTENCES, model.encode(SENTENCES), strict=True):
        weights = own_weights(model, sentence)
        weights = [0.0, *weights[1:-1], 0.0] if name == "no-prompt" else weights
        if not sum(weights):
            weights = [1.0] * len(weights)
        assert_same_embeddings(embedding, by_hand(model, sentence, weights))


def test_a_sentence_whose_weights_are_all_0_is_the_plain_mean():
    model, plain = weighted("content-words"), tiny_model()
    nothing = ["a, a. A man!", "", "the two woman, the dog"]
    assert {sum(own_weights(model, sentence)) for sentence in nothing} == {0}
    together = model.encode([*SENTENCES, *nothing])
    assert_same_embeddings(together[5:], plain.encode(nothing), 1e-6)
    assert np.abs(together[:4] - plain.encode(SENTENCES[:4])).max(1).min() > 0.01


@pytest.mark.parametrize("pooling", ["cls", "max", "lasttoken"])
def test_poolings_without_a_mean_ignore_weights(pooling):
    model, plain = weighted("content-words"), tiny_model()
    model.pooling = plain.pooling = pooling
    assert np.array_equal(model.encode(SENTENCES), plain.encode(SENTENCES))


def test_all_layers_are_pooled_with_the_weights():
    model = weighted("no-special")
    states = model.embed_token_ids(model.tokenize(SENTENCES), model.forward_all_layers)
    assert_same_embeddings(states[-1].numpy(), model.encode(SENTENCES), 1e-6)
    plain = tiny_model()
    assert (states - plain.embed_token_ids(plain.tokenize(SENTENCES), plain.forward_all_layers)).abs().amax(
        (1, 2)
    ).min() > 0.1


def test_weights_stay_exact_when_the_model_is_rounded():
    model = weighted("idf", TEXTS)
    before = model.token_weights.table.clone()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = pack(model.tokenize(SENTENCES))
        assert model.token_weights(rows).dtype == model(rows).dtype == torch.float32
    assert torch.equal(model.token_weights.table, before)


def test_weights_move_with_the_model():
    assert weighted("no-special").to("meta").token_weights.table.device.type == "meta"


# ------------------------------------------------------------------------------------------------ save, load


@pytest.mark.parametrize("pooling", ["cls", "max", "lasttoken", "decoder", "max+cls"])
def test_a_pooling_that_ignores_token_weights_refuses_them(pooling):
    with pytest.raises(
        InputError, match=re.escape(f"token_weights idf have no effect with pooling {pooling}:")
    ):
        check_token_weights("idf", pooling)
    check_token_weights("uniform", pooling)
    check_token_weights("idf", f"{pooling}+mean")


def test_a_table_that_is_longer_than_the_vocabulary_keeps_its_weights(tmp_path):
    """As in DeBERTa, whose table has rows that no token has."""
    model = tiny_model(vocab_size=V + 9)
    prompt = Prompt("", model.tokenizer)
    model.token_weights = make_token_weights("idf", prompt, V + 9, model.tokenize(TEXTS))
    model.save_pretrained(tmp_path)
    again = SentenceEncoder.from_pretrained(tmp_path)
    assert torch.equal(again.token_weights.table, model.token_weights.table)
    assert np.array_equal(again.encode(SENTENCES), model.encode(SENTENCES))


# -------------------------------------------------------------------------------------------------- training


def test_the_weights_themselves_are_not_trained():
    model = weighted("idf", TEXTS)
    assert "token_weights" not in {name.partition(".")[0] for name, _ in model.named_parameters()}
