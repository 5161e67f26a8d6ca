"""data/tiny and data/small, encoders that people can use: sizes, embeddings, scores, other libraries."""

import json

import numpy as np
import pytest
from conftest import ROOT, assert_same_embeddings

import evaluate
from tmft import SentenceEncoder
from tmft.export.export import export
from tmft.export.numpy_encoder import Encoder

# Name of a model -> the most bytes that its files may take.
MODELS = {"tiny": 5_800_000, "small": 5_900_000}
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


@pytest.fixture(scope="module", params=MODELS)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(name) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(name)


def test_it_is_small(name):
    files = [path for path in (ROOT / "data" / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MODELS[name]


def test_its_embeddings_are_those_that_were_shipped(name, model):
    """To the precision of another CPU: the first four numbers of each of ten sentences."""
    expected = json.loads((ROOT / f"tests/{name}_embeddings.json").read_text())
    np.testing.assert_allclose(model.encode(SENTENCES)[:, :4], expected, atol=1e-4)


def test_without_torch_it_gives_the_same_embeddings(name, model):
    found = Encoder(ROOT / "data" / name).encode(SENTENCES)
    assert_same_embeddings(np.asarray(found), model.encode(SENTENCES), 1e-5)


def test_the_sentence_that_is_meant_is_found(model):
    """Of nine others, the most similar one has the same meaning, in other words."""
    similarity = model.similarity(model.encode(SENTENCES), model.encode(SENTENCES)).fill_diagonal_(-1)
    assert similarity.argmax(1)[:8].tolist() == [1, 0, 3, 2, 5, 4, 7, 6]


@pytest.mark.slow
def test_its_score_on_the_sts_benchmark_is_the_one_of_its_card(name, real_data, tmp_path):
    file = tmp_path / "scores.json"
    evaluate.main([name, "--task", "stsb", "--data-root", str(real_data), "--json", str(file)])
    [scores] = json.loads(file.read_text())["layers"].values()
    score = 100 * scores["stsb"]["spearman"] if "stsb" in scores else 100 * next(iter(scores.values()))
    table = (ROOT / "data" / name / "README.md").read_text(encoding="utf-8").partition("## Scores")[2]
    rows = [[cell.strip(" *") for cell in line.split("|")] for line in table.split("\n") if "|" in line]
    [row] = [row for row in rows if row[1].startswith(name)]
    assert float(row[rows[0].index("STSB")]) == pytest.approx(score, abs=0.02)


def test_the_compact_format_stores_small_as_it_is(tmp_path):
    """Its weights are rounded already, so that an export has exactly the same."""
    small = SentenceEncoder.from_pretrained("small")
    export(small, tmp_path / "again", "compact", "int4")
    again = SentenceEncoder.from_pretrained(tmp_path / "again").state_dict()
    assert all((again[key] == weight).all() for key, weight in small.state_dict().items())


@pytest.mark.slow
def test_other_libraries_open_it_with_the_same_embeddings(tmp_path):
    """tiny as it is; small, whose weights have four bits, once it is exported."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    small = SentenceEncoder.from_pretrained("small")
    small.save_pretrained(tmp_path / "small")
    for folder in (ROOT / "data/tiny", tmp_path / "small"):
        ours = SentenceEncoder.from_pretrained(folder).encode(SENTENCES)
        theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
        assert_same_embeddings(ours, theirs, 1e-5)
    pytest.importorskip("onnxruntime")
    exported = export(small, tmp_path / "onnx", "onnx", sentences=SENTENCES)
    assert_same_embeddings(np.asarray(exported), ours, 1e-4)
