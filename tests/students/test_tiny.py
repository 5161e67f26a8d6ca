"""data/tiny, the small encoder that people can use: its size, its embeddings, its scores, other libraries."""

import json

import numpy as np
import pytest
from conftest import ROOT, assert_same_embeddings

import evaluate
from tmft import SentenceEncoder
from tmft.export.export import export

TINY = ROOT / "data/tiny"
SENTENCES = [
    "A man plays the guitar.",
    "Someone is making music.",
    "The stock market fell on Monday.",
    "Share prices dropped at the start of the week.",
    "A cat sleeps on the sofa.",
    "The kitten is taking a nap on the couch.",
    "How do I reset my password?",
    "I cannot log in to my account any more.",
    "The recipe needs two eggs and some flour.",
    "Water boils at 100 degrees Celsius.",
]


@pytest.fixture(scope="module")
def tiny() -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(TINY)


def test_it_is_small():
    assert sum(path.stat().st_size for path in TINY.rglob("*") if path.is_file()) < 6_000_000


def test_its_embeddings_are_those_that_were_shipped(tiny):
    """To the precision of another CPU: the first four numbers of each of ten sentences."""
    expected = json.loads((ROOT / "tests/tiny_embeddings.json").read_text())
    np.testing.assert_allclose(tiny.encode(SENTENCES)[:, :4], expected, atol=1e-4)


def test_the_sentence_that_is_meant_is_found(tiny):
    """Of nine others, the most similar one has the same meaning, in other words."""
    similarity = tiny.similarity(tiny.encode(SENTENCES), tiny.encode(SENTENCES)).fill_diagonal_(-1)
    assert similarity.argmax(1)[:8].tolist() == [1, 0, 3, 2, 5, 4, 7, 6]


@pytest.mark.slow
def test_its_score_on_the_sts_benchmark_is_the_one_of_its_card(real_data, tmp_path):
    file = tmp_path / "scores.json"
    evaluate.main([str(TINY), "--task", "stsb", "--data-root", str(real_data), "--json", str(file)])
    [scores] = json.loads(file.read_text())["layers"].values()
    card = (TINY / "README.md").read_text(encoding="utf-8")
    score = 100 * scores["stsb"]["spearman"] if "stsb" in scores else 100 * next(iter(scores.values()))
    assert f"{score:.1f}" in card, score


@pytest.mark.slow
def test_other_libraries_open_it_with_the_same_embeddings(tiny, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    ours = tiny.encode(SENTENCES)
    theirs = sentence_transformers.SentenceTransformer(str(TINY), device="cpu").encode(SENTENCES)
    assert_same_embeddings(ours, theirs, 1e-5)
    pytest.importorskip("onnxruntime")
    exported = export(tiny, tmp_path / "onnx", "onnx", sentences=SENTENCES)
    assert_same_embeddings(np.asarray(exported), ours, 1e-4)
