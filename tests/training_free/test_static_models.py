"""Static tables: random ones, and the mean of the contextual vectors of each word."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import SENTENCES, VOCABULARY, assert_same_embeddings, tiny_model, tiny_static_model

import evaluate
from tmft import SentenceEncoder
from tmft.embedding.token_weights import TokenWeights
from tmft.errors import InputError
from tmft.packing import pack
from tmft.training_free.static_models import (
    INIT_STD,
    mean_vectors_in_text,
    random_word_vectors,
    read_word_vectors,
    static_encoder,
)

V = len(VOCABULARY)


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


@pytest.mark.parametrize("limit", [3, 5, 8, None])
def test_a_static_model_truncates_a_long_text_only_at_a_limit_that_was_given(limit):
    """No table of positions ends."""
    model, long = tiny_static_model(max_length=limit), "music " * 5000
    whole = tiny_static_model().tokenize([*SENTENCES, long])
    assert model.tokenize([*SENTENCES, long]) == [ids[:limit] for ids in whole]
    assert len(whole[-1]) == 5000
    assert_same_embeddings(model.encode([long]), model.encode(["music"]), 1e-4)  # 5000 sums in float32


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_a_text_without_words_is_a_vector_of_zeros(text):
    """As in sentence-transformers, whose sum over no words is 0."""
    embeddings = tiny_static_model().encode([text, "music"])
    assert np.isfinite(embeddings).all() and not embeddings[0].any() and embeddings[1].any()


def test_unknown_words_get_the_vector_of_unk():
    model = tiny_static_model()
    unk = model.encoder.embeddings.word.weight[model.tokenizer.backend.token_to_id("[UNK]")]
    assert_same_embeddings(model.encode(["漢字 😀"])[0], unk.detach().numpy(), 1e-6)


def test_a_static_model_is_one_layer_of_all():
    model = tiny_static_model()
    states = model.embed_token_ids(model.tokenize(SENTENCES), model.forward_all_layers)
    assert states.shape == (1, 5, 8)
    assert np.array_equal(states[0].numpy(), model.encode(SENTENCES))


# --------------------------------------------------------------------------------------- mean_vectors_in_text


def test_the_sum_of_counts_times_means_is_the_sum_of_all_contextual_vectors():
    """In float64; the table itself is float32, so each word is multiplied as it was rounded."""
    model = tiny_model(model_type="bert")
    texts = [*SENTENCES, "a man eats", "the cat, the dog, the man", *("music " * n for n in range(1, 9))]
    table = mean_vectors_in_text(model, texts, lambda batch: model.encoder.hidden_states(*batch.inputs))
    ids = model.tokenize(texts)
    counts = torch.bincount(torch.tensor([id for sentence in ids for id in sentence]), minlength=V).double()
    with torch.inference_mode():
        alone = [model.encoder.hidden_states(*pack([one], len(one)).inputs) for one in ids]
    for layer in range(5):
        total = torch.cat([states[layer][0] for states in alone]).double()
        found = (counts[:, None] * table[layer].double()).sum(0)
        torch.testing.assert_close(found, total.sum(0), rtol=0, atol=1e-6 * total.abs().sum(0).max().item())


def test_the_mean_of_each_word_by_hand():
    """Padding, in the last places of the row, is no word, and a word that does not occur is a zero."""
    model = tiny_model()
    [[cls, man, sep]] = model.tokenize(["man"])
    batches = []

    def number_places(batch):  # at place n: 2n, 2n + 1
        batches.append(batch)
        return [torch.arange(2.0 * batch.input_ids.numel()).view(*batch.input_ids.shape, 2)]

    table = mean_vectors_in_text(model, ["man", "man man"], number_places)
    [batch] = batches
    expected = torch.zeros(1, V, 2)
    for id in (cls, man, sep):
        places = (batch.input_ids.flatten() == id).nonzero().flatten().tolist()
        expected[0, id] = torch.tensor([2 * sum(places) / len(places), 2 * sum(places) / len(places) + 1])
    torch.testing.assert_close(table, expected, rtol=0, atol=1e-6)


def test_many_vectors_are_summed_in_float64():
    """In float32 each of many additions rounds; in float64 the mean of equal numbers is that number."""
    model = tiny_model()
    table = mean_vectors_in_text(
        model, ["man " * 60] * 1000, lambda batch: [torch.full((*batch.input_ids.shape, 1), 0.1)]
    )
    man = model.tokenize(["man"])[0][1]
    assert table[0, man].item() == torch.tensor(0.1).item()


def test_an_empty_text_is_an_error():
    with pytest.raises(InputError, match="the text for static embeddings is empty"):
        mean_vectors_in_text(tiny_model(), [], lambda batch: [])


# ------------------------------------------------------------------------------------------------ save, load


def with_weights(model):
    model.token_weights = TokenWeights(torch.rand(V))


def with_another_pooling(model):
    model.pooling = "max"


@pytest.mark.parametrize("change", [with_weights, with_another_pooling])
def test_a_static_model_that_is_not_a_plain_mean_is_an_error_before_anything_is_written(change, tmp_path):
    model = tiny_static_model()
    change(model)
    with pytest.raises(InputError, match="saved with the plain mean only: remove token_weights") as error:
        model.save_pretrained(tmp_path / "saved")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "saved").exists()


# ---------------------------------------------------------------------------------------- vectors of others

VECTORS = "5 3\nthe 1 0 0\na 0 1 0\ncat 0 0 2 \nx 4 4 4\n. -1 0 .5\n"


@pytest.fixture
def vectors(tmp_path):
    (tmp_path / "vectors.txt").write_text(VECTORS)
    return tmp_path / "vectors.txt"


def test_a_text_is_the_mean_of_its_words_in_the_file_and_others_are_left_out(vectors):
    model = read_word_vectors(vectors)
    texts = ["The cat.", "the xylophone CAT", "abc", "", "x"]
    expected = [[0, 0, 2.5 / 3], [0.5, 0, 1], [0, 0, 0], [0, 0, 0], [4, 4, 4]]
    np.testing.assert_allclose(model.encode(texts), expected, atol=1e-6)
    dropped = read_word_vectors(vectors, drop_frequent=2)
    np.testing.assert_allclose(dropped.encode(["The a cat.", "the"]), [[-0.5, 0, 1.25], [0, 0, 0]], atol=1e-6)


def test_case_counts_if_a_word_of_the_file_has_a_capital_letter(tmp_path):
    (tmp_path / "cased.txt").write_text("2 1\nUS 1\nus 2\n")
    assert read_word_vectors(tmp_path / "cased.txt").encode(["US", "us", "Us"]).ravel().tolist() == [1, 2, 0]


def test_word_vectors_have_token_weights_and_are_saved(vectors, tmp_path):
    model, texts = read_word_vectors(vectors), ["the cat", "a cat", "the x . unknown"]
    expected = model.encode(texts)
    model.save_pretrained(tmp_path / "saved")
    loaded = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert (loaded.encode(texts) == expected).all()
    from sentence_transformers import SentenceTransformer

    np.testing.assert_allclose(
        SentenceTransformer(str(tmp_path / "saved")).encode(texts), expected, atol=1e-6
    )
    loaded.set_token_weights("idf", texts)
    log3, the = math.log(3), math.log(1.5)
    x = np.array([[1, 0, 0], [4, 4, 4], [-1, 0, 0.5]])
    np.testing.assert_allclose(
        loaded.encode(texts[2:])[0], np.array([the, log3, log3]) @ x / (the + 2 * log3), atol=1e-6
    )


def test_a_file_of_vectors_is_a_model_of_the_commands(vectors, tmp_path, capsys):
    words = ["--task", "sample", "--json", str(tmp_path / "scores.json")]
    evaluate.main([str(vectors), *words, "--drop-frequent", "1", "--save", str(tmp_path / "saved")])
    first = json.loads((tmp_path / "scores.json").read_text())["layers"]["0"]
    evaluate.main([str(tmp_path / "saved"), *words])
    assert json.loads((tmp_path / "scores.json").read_text())["layers"]["0"] == first
    with pytest.raises(InputError, match="^drop_frequent: .*saved is no file of word vectors: remove"):
        evaluate.main([str(tmp_path / "saved"), *words, "--drop-frequent", "1"])
    with pytest.raises(InputError, match="^layer: .* is a file of word vectors, whose mean is taken: remove"):
        evaluate.main([str(vectors), *words, "--layer", "1"])


BAD_VECTORS = {
    "": "cannot be read (not enough values to unpack (expected 2, got 0)): name a file whose first line has",
    "the 1 0 0\na 0 1 0\n": "cannot be read (invalid literal for int() with base 10: 'the'): name a file",
    "999999999 999999\nthe 1 0\n": "line 2 has no word with 999999 numbers",
    "2 3\nthe 1 0 0\na 0 1\n": "line 3 has no word with 3 numbers",
    "2 3\nthe 1 0 0\na 0 1 b\n": "cannot be read (could not convert string to float: 'b')",
    "2 3\nthe 1 0 0\na 0 1 nan\n": "line 3 has no word with 3 numbers",
    "2 3\nthe 1 0 0\n\n": "line 3 has no word with 3 numbers",
    "2 3\nthe 1 0 0\nthe 0 1 0\n": "(1 different words, its first line says 2)",
    "1 3\nthe 1 0 0\na 0 1 0\n": "(2 different words, its first line says 1)",
    "1 3\nthe 1 0 0\n": ": drop_frequent 1 leaves none of 1 words",
}


@pytest.mark.parametrize("content", BAD_VECTORS)
def test_a_mistake_in_a_file_of_vectors_is_one_line(content, tmp_path):
    (tmp_path / "vectors.txt").write_text(content)
    with pytest.raises(InputError) as error:
        read_word_vectors(tmp_path / "vectors.txt", drop_frequent=1)
    assert BAD_VECTORS[content] in str(error.value) and "\n" not in str(error.value)
