"""What Python users ask of a model: options by two names, wrong input by name, other evaluators."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from conftest import SENTENCES, tiny_model

from tmft.encode_options import similarity

model = tiny_model()
EXPECTED = model.encode(SENTENCES)


def test_one_string_is_one_vector():
    np.testing.assert_allclose(model.encode(SENTENCES[0]), EXPECTED[0], atol=1e-6)
    assert model.encode([]).shape == (0, 24) and model.encode(s for s in SENTENCES).shape == EXPECTED.shape


@pytest.mark.parametrize("name", ["normalize", "normalize_embeddings"])
def test_vectors_of_length_1(name):
    found = model.encode(SENTENCES, **{name: True})
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(found * np.linalg.norm(EXPECTED, axis=1, keepdims=True), EXPECTED, atol=1e-5)


@pytest.mark.parametrize("name", ["tensor", "convert_to_tensor"])
def test_tensors(name):
    found = model.encode(SENTENCES, **{name: True})
    assert isinstance(found, torch.Tensor) and np.array_equal(found.numpy(), EXPECTED)


def test_options_that_change_nothing_and_the_first_dimensions():
    same = model.encode(SENTENCES, batch_size=2, show_progress_bar=False, convert_to_numpy=True, prompt=None)
    assert np.array_equal(same, EXPECTED)
    assert np.array_equal(model.encode(SENTENCES, truncate_dim=5), EXPECTED[:, :5])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"batchsize": 3}, "encode: no option 'batchsize', there are progress, normalize, tensor"),
        ({"precision": "int8"}, "encode: precision='int8' is not to be had here"),
        ({"prompt": "query: "}, "encode: prompt='query: ' is not to be had here"),
    ],
)
def test_options_that_are_none_are_refused_by_name(asked, message):
    with pytest.raises(TypeError, match=message):
        model.encode(SENTENCES, **asked)


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (["a", None], "sentence 1 is 'None', of type NoneType: give strings"),
        (["a", ["b", "c"]], r"sentence 1 is .* of type list: give strings"),
        ([b"a"], "sentence 0 is .* of type bytes: give strings"),
    ],
)
def test_what_is_no_sentence_is_named(sentences, message):
    with pytest.raises(TypeError, match=message):
        model.encode(sentences)


def test_texts_that_do_not_go_together_are_refused():
    with pytest.raises(TypeError, match="lists of sentences are expected, not strings"):
        model.embed_columns(("abc", "abd"))
    with pytest.raises(ValueError, match="lists of 2, 1 sentences: they belong together one by one"):
        model.embed_columns((["a", "b"], ["c"]))
    with pytest.raises(
        TypeError, match=r"a list of sentences is expected, not one string: write \[sentence\]"
    ):
        model.tokenize("abc")


def test_similarity_is_a_matrix_of_cosines():
    u, v = np.array([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([0.0, 3.0])
    assert similarity(u, v).flatten().tolist() == pytest.approx([0, 0.5**0.5])
    assert model.similarity(EXPECTED, EXPECTED).diagonal().tolist() == pytest.approx(
        [1] * len(EXPECTED), abs=1e-6
    )


def test_copies_and_threads_give_the_same():
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert np.array_equal(other.encode(SENTENCES), EXPECTED)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: model.encode(SENTENCES), range(8)):
            np.testing.assert_allclose(found, EXPECTED, atol=1e-6)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.slow
def test_evaluators_of_sentence_transformers_take_it():
    """Their scores are those of the folder opened there."""
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    one, other, scores = SENTENCES, [*SENTENCES[1:], SENTENCES[0]], list(np.linspace(0, 1, len(SENTENCES)))
    documents = {str(n): text for n, text in enumerate(SENTENCES)}
    made = [
        evaluation.EmbeddingSimilarityEvaluator(one, other, scores),
        evaluation.BinaryClassificationEvaluator(one, other, [score > 0.5 for score in scores]),
        evaluation.TripletEvaluator(one, other, one[::-1]),
        evaluation.InformationRetrievalEvaluator({"q": "a cat"}, documents, {"q": {"1"}}),
    ]
    found = [evaluator(model) for evaluator in made]
    cosines = (model.encode(one, normalize=True) * model.encode(other, normalize=True)).sum(1)
    assert found[0]["pearson_cosine"] == pytest.approx(np.corrcoef(cosines, scores)[0, 1], abs=1e-5)
    assert all(np.isfinite(list(scores.values())).all() for scores in found)
