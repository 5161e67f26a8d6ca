"""Static tables: random ones, and the mean of the contextual vectors of each word."""

import numpy as np
import pytest
import torch
from conftest import SENTENCES, VOCABULARY, assert_same_embeddings, tiny_model, vocabulary_folder

from tmft import SentenceEncoder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.embedding.modules import Dense, Normalize
from tmft.embedding.token_weights import TokenWeights
from tmft.errors import InputError
from tmft.evaluation.static_models import (
    INIT_STD,
    mean_word_vectors,
    random_word_vectors,
    static_encoder,
    without_special_tokens,
)
from tmft.packing import pack

V = len(VOCABULARY)
ELSEWHERE = "transformers cannot run a static of 0 layers; tmft can."


def static_model(D: int = 8, **settings) -> SentenceEncoder:
    """Random vectors of the tiny vocabulary."""
    tokenizer = without_special_tokens(load_tokenizer(vocabulary_folder()))
    return SentenceEncoder(static_encoder(random_word_vectors(V, D)), tokenizer, **settings).eval()


# ---------------------------------------------------------------------------------------- random_word_vectors


def test_random_vectors_are_normal_around_0_with_a_standard_deviation_of_a_tenth():
    table = random_word_vectors(2000, 500)
    assert INIT_STD == 0.1 and (table.shape, table.dtype) == ((2000, 500), torch.float32)
    assert table.mean().item() == pytest.approx(0, abs=5e-4)
    assert table.std().item() == pytest.approx(0.1, rel=2e-3)
    assert (table.abs() < 0.1).float().mean().item() == pytest.approx(0.6827, abs=2e-3)


def test_static_encoder_leaves_the_random_state_of_the_caller_alone():
    state = torch.get_rng_state()
    static_encoder(random_word_vectors(9, 4))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_static_encoder_is_in_float32(dtype):
    encoder = static_encoder(random_word_vectors(9, 4).to(dtype))
    assert encoder.embeddings.word.weight.dtype == torch.float32 and not encoder.training


# ------------------------------------------------------------------------------------------------ as a model


def test_a_sentence_is_the_mean_of_its_words():
    model = static_model()
    table, ids = model.encoder.embeddings.word.weight.detach(), model.tokenizer.backend.get_vocab()
    words = ["the", "cat", "eats", "."]
    expected = table[[ids[word] for word in words]].mean(0)
    assert_same_embeddings(model.encode(["The cat eats."])[0], expected.numpy(), 1e-6)


@pytest.mark.parametrize("limit", [3, 5, 8])
def test_a_static_model_truncates_the_end_of_a_long_text(limit):
    model = static_model(max_length=limit)
    whole = static_model().tokenize(SENTENCES)
    assert model.tokenize(SENTENCES) == [ids[:limit] for ids in whole]


def test_there_is_no_limit_by_default():
    """No table of positions ends."""
    model = static_model()
    assert len(model.tokenize(["music " * 5000])[0]) == 5000
    assert_same_embeddings(
        model.encode(["music " * 5000]), model.encode(["music"]), 1e-4
    )  # 5000 sums in float32


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_a_text_without_words_is_a_vector_of_zeros(text):
    """As in sentence-transformers, whose sum over no words is 0."""
    embeddings = static_model().encode([text, "music"])
    assert np.isfinite(embeddings).all() and not embeddings[0].any() and embeddings[1].any()


def test_unknown_words_get_the_vector_of_unk():
    model = static_model()
    unk = model.encoder.embeddings.word.weight[model.tokenizer.backend.token_to_id("[UNK]")]
    assert_same_embeddings(model.encode(["漢字 😀"])[0], unk.detach().numpy(), 1e-6)


def test_a_static_model_is_one_layer_of_all():
    model = static_model()
    states = model.embed_token_ids(model.tokenize(SENTENCES), all_layers=True)
    assert states.shape == (1, 5, 8)
    assert np.array_equal(states[0].numpy(), model.encode(SENTENCES))


# ------------------------------------------------------------------------------------------ mean_word_vectors


def contextual(model: SentenceEncoder):
    """-> rows to all hidden states, in no gradient"""

    @torch.inference_mode()
    def states(rows):
        return model.encoder.hidden_states(*rows.inputs)

    return states


@pytest.fixture(scope="module")
def corpus():
    """-> a model, the token ids of texts, batches of them as rows"""
    model = tiny_model(model_type="bert")
    texts = [*SENTENCES, "a man eats", "the cat, the dog, the man", *("music " * n for n in range(1, 9))]
    ids = model.tokenize(texts)
    return model, ids, [pack(ids[start : start + 4], 24) for start in range(0, len(ids), 4)]


def test_the_sum_of_counts_times_means_is_the_sum_of_all_contextual_vectors(corpus):
    """In float64; the table itself is float32, so each word is multiplied as it was rounded."""
    model, ids, batches = corpus
    table = mean_word_vectors(batches, contextual(model), V)
    counts = torch.bincount(torch.tensor([id for sentence in ids for id in sentence]), minlength=V).double()
    alone = [contextual(model)(pack([sentence], len(sentence))) for sentence in ids]
    for layer in range(5):
        total = torch.cat([states[layer][0] for states in alone]).double()
        found = (counts[:, None] * table[layer].double()).sum(0)
        torch.testing.assert_close(found, total.sum(0), rtol=0, atol=1e-6 * total.abs().sum(0).max().item())


def test_the_mean_of_each_word_by_hand():
    rows = pack([[2, 5, 5], [5, 7]], packed_length=8)
    hidden = torch.arange(16.0).view(1, 8, 2)  # at place n: 2n, 2n + 1; places 5 to 7 are padding
    table = mean_word_vectors([rows], lambda rows: [hidden], 9)
    expected = torch.zeros(1, 9, 2)
    expected[0, 2] = torch.tensor([0.0, 1])
    expected[0, 5] = torch.tensor([4.0, 5])  # of places 1, 2, 3
    expected[0, 7] = torch.tensor([8.0, 9])
    torch.testing.assert_close(table, expected, rtol=0, atol=0)


def test_a_million_vectors_are_summed_in_float64():
    """In float32 each of a million additions rounds; in float64 the mean of equal numbers is that number."""
    rows = pack([[5] * 4096 for _ in range(64)], 4096)
    hidden = torch.full((64, 4096, 1), 0.1)
    table = mean_word_vectors([rows] * 4, lambda rows: [hidden], 6)
    assert table[0, 5].item() == torch.tensor(0.1).item()


def test_an_empty_text_is_an_error():
    with pytest.raises(InputError):
        mean_word_vectors([], lambda rows: [], 9)


# ------------------------------------------------------------------------------------------------ save, load

MODULES = {
    "plain": lambda: [],
    "normalised": lambda: [Normalize()],
    "dense": lambda: [Dense(8, 4, activation="Tanh"), Normalize()],
}


@pytest.mark.parametrize("name", MODULES)
def test_only_transformers_cannot_run_a_static_model(name, tmp_path):
    model = static_model(modules=MODULES[name]())
    assert model.compatibility_note == ELSEWHERE


def with_weights(model):
    model.token_weights = TokenWeights(torch.rand(V))


def with_another_pooling(model):
    model.pooling = "max"


@pytest.mark.parametrize("change", [with_weights, with_another_pooling])
def test_a_static_model_that_is_not_a_plain_mean_is_an_error_before_anything_is_written(change, tmp_path):
    model = static_model()
    change(model)
    with pytest.raises(InputError, match="saved with the plain mean only: remove token_weights") as error:
        model.save_pretrained(tmp_path / "saved")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "saved").exists()
