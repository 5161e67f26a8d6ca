"""Retrieval: both metrics against scikit-learn and a ranking by hand, the evaluator, two models compared."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import SENTENCES, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import evaluate
from tmft.data import Examples
from tmft.errors import InputError
from tmft.evaluation.evaluators import EVALUATORS
from tmft.evaluation.retrieval import score_queries
from tmft.tasks import TASKS

TASK = TASKS["quora-retrieval"]


@given(texts=st.integers(2, 40), classes=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_scores_are_those_of_scikit_learn_and_of_a_ranking_by_hand(texts, classes, seed):
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=texts)
    labels[:2] = 0  # one query at least
    x = draw.normal(size=(texts, 5))
    scores = score_queries(torch.from_numpy(x), [f"class {label}" for label in labels])
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    for query in range(texts):
        others = [n for n in range(texts) if n != query]
        relevant, cosines = labels[others] == labels[query], unit[others] @ unit[query]
        found = scores["ndcg@10"][query], scores["mrr@10"][query]
        if not relevant.any():
            assert np.isnan(found).all()
            continue
        rank = 1 + int(np.argmax(relevant[np.argsort(-cosines)]))  # of the first relevant text
        assert found[1] == (1 / rank if rank <= 10 else 0)
        if len(others) > 1:  # scikit-learn needs two
            assert found[0] == pytest.approx(metrics.ndcg_score([relevant], [cosines], k=10))


@given(
    texts=st.integers(2, 30), values=st.integers(1, 3), classes=st.integers(1, 6), seed=st.integers(0, 10**6)
)
def test_tied_texts_have_the_mean_over_all_their_orders(texts, values, classes, seed):
    """Whatever their order in the file is: against scikit-learn, and the mean over random orders by hand."""
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=texts)
    labels[:2] = 0
    x = draw.integers(-1, 2, size=(values, 3))[draw.integers(values, size=texts)].astype(float)
    scores = score_queries(torch.from_numpy(x), labels)
    again = draw.permutation(texts)
    for name, of_texts in score_queries(torch.from_numpy(x[again]), labels[again]).items():
        np.testing.assert_allclose(of_texts, scores[name][again], rtol=1e-12)
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    others = np.arange(1, texts)
    relevant, cosines = labels[others] == labels[0], (unit[others] @ unit[0]).round(6)
    if texts > 2:  # scikit-learn needs two
        assert scores["ndcg@10"][0] == pytest.approx(metrics.ndcg_score([relevant], [cosines], k=10))
    ranks = []
    for _ in range(2000):
        order = draw.permutation(texts - 1)
        order = order[np.argsort(-cosines[order], kind="stable")]
        ranks.append(1 + int(np.argmax(relevant[order])))
    expected = np.mean([1 / rank if rank <= 10 else 0 for rank in ranks])
    assert scores["mrr@10"][0] == pytest.approx(expected, abs=0.05)


def test_a_tie_of_one_relevant_text_among_two_has_a_reciprocal_rank_of_three_quarters():
    x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    for labels in (["a", "a", "b"], ["a", "b", "a"]):
        assert score_queries(x, labels)["mrr@10"][0] == 0.75


def test_the_mean_is_over_the_queries():
    """Texts b and c are alone in their classes: they can be found, but are not queries."""
    vectors = {"a": [1.0, 0.0], "a'": [0.0, 1.0], "b": [1.0, 0.1], "c": [-1.0, -1.0]}
    examples = Examples(([*vectors],), ["1", "1", "2", "3"])
    result = EVALUATORS["retrieval"](
        lambda texts: torch.tensor([vectors[text] for text in texts]), TASK, {"test": examples}.__getitem__
    )
    # a finds b first and then a'; so does a'
    assert result == {"pairs": 2, "ndcg@10": pytest.approx(1 / math.log2(3)), "mrr@10": 0.5}


def test_embeddings_that_are_not_finite_have_no_score_and_without_duplicates_there_is_nothing_to_find():
    examples = Examples((["a", "b"],), ["1", "1"])
    result = EVALUATORS["retrieval"](lambda texts: torch.full((2, 3), torch.nan), TASK, lambda _: examples)
    assert math.isnan(result["ndcg@10"]) and math.isnan(result["mrr@10"])
    with pytest.raises(InputError, match="no two texts have the same label"):
        score_queries(torch.eye(2), ["1", "2"])


def test_two_models_are_compared_by_a_bootstrap_over_the_queries_that_is_scipys(tmp_path, capsys):
    words = [word for sentence in SENTENCES for word in sentence.split()]
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(words, size=4)) for _ in range(120)]
    labels = draw.integers(60, size=120)
    lines = ["label\ttext", *(f"{label}\t{text}" for label, text in zip(labels, texts, strict=True))]
    (tmp_path / "quora-retrieval").mkdir()
    (tmp_path / "quora-retrieval/test.tsv").write_text("\n".join(lines) + "\n")
    models = [tiny_model(), tiny_model(hidden_size=36, num_attention_heads=3)]
    for number, model in enumerate(models):
        model.save_pretrained(tmp_path / str(number))
    tasks = {"quora-retrieval": "ndcg@10", "quora-retrieval-mrr": "mrr@10"}
    options = ["--data-root", str(tmp_path), "--json", str(tmp_path / "out.json"), "--task", *tasks]
    evaluate.main([str(tmp_path / "0"), str(tmp_path / "1"), *options])
    rows = json.loads((tmp_path / "out.json").read_text())["tasks"]
    for name, metric in tasks.items():
        first, second = (
            score_queries(model.encode(texts, convert_to_tensor=True), labels)[metric] for model in models
        )
        differences = (second - first)[~np.isnan(first)]
        theirs = stats.bootstrap((differences,), np.mean, method="percentile", rng=0).confidence_interval
        assert rows[name]["examples"] == len(differences) and rows[name]["metric"] == metric
        assert rows[name]["difference"] == pytest.approx(differences.mean(), abs=1e-6)
        assert rows[name]["interval"] == pytest.approx([theirs.low, theirs.high], abs=0.02)
