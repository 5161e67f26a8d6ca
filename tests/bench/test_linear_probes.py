"""docs/research/linear_probes.py: the classifier equals that of scikit-learn, hidden states are in order."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, SENTENCES, padded, tiny_model

from tmft.sentence_encoder import SentenceEncoder

SCRIPT = ROOT / "docs/research/linear_probes.py"
sys.path.insert(0, str(SCRIPT.parent))

import linear_probes as probes  # noqa: E402
from linear_probes import (  # noqa: E402
    encode_hidden_states,
    fit_and_score_lda,
    load_generator,
    probe_layers,
    replace_tokens,
    roc_auc,
)

TWINS = ROOT / "data/twins"


@pytest.fixture(scope="module")
def lines():
    rows = (ROOT / "data/sample/train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return list(dict.fromkeys(cell for row in rows for cell in row.split("\t")[:2]))


def test_linear_discriminant_analysis_equals_that_of_scikit_learn():
    analysis = pytest.importorskip("sklearn.discriminant_analysis")
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=400)
    x = rng.normal(size=(400, 6)) + rng.normal(size=(4, 6))[y]
    sklearn_lda = analysis.LinearDiscriminantAnalysis(solver="lsqr").fit(x[:300], y[:300])
    classes, scores = fit_and_score_lda(torch.tensor(x[:300]), torch.tensor(y[:300]), torch.tensor(x[300:]))
    assert classes.tolist() == [0, 1, 2, 3]
    probabilities = scores.softmax(1).numpy()
    np.testing.assert_allclose(probabilities, sklearn_lda.predict_proba(x[300:]), atol=2e-3)  # RIDGE


def test_roc_auc_equals_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    scores, positive = rng.normal(size=200).round(1), rng.random(200) < 0.3
    assert roc_auc(scores, positive) == pytest.approx(metrics.roc_auc_score(positive, scores), abs=1e-12)


def test_hidden_states_are_in_the_order_of_the_tokens():
    model = tiny_model()
    ids = model.tokenize(SENTENCES)
    states = encode_hidden_states(model, ids)
    with torch.inference_mode():
        expected = model.encoder.hidden_states(*padded(ids))
    for ours, one_per_row in zip(states, expected, strict=True):
        rows = torch.cat([row[: len(sentence)] for row, sentence in zip(one_per_row, ids, strict=True)])
        torch.testing.assert_close(ours, rows, rtol=1e-4, atol=1e-5)


def test_some_tokens_are_replaced_but_never_special_ones(lines):
    model = SentenceEncoder.from_pretrained(TWINS / "mlm-then-rtd")
    generator = load_generator(str(TWINS / "mlm"), model)
    ids = model.tokenize(lines[:200])
    torch.manual_seed(0)
    new_ids, replaced = replace_tokens(generator, ids, model)
    assert [len(sentence) for sentence in new_ids] == [len(sentence) for sentence in ids]
    changed = [(a, b, flag) for s, g, r in zip(ids, new_ids, replaced, strict=True)
               for a, b, flag in zip(s, g, r, strict=True)]  # fmt: skip
    assert all((a != b) is flag for a, b, flag in changed)
    assert 0.03 < np.mean([flag for *_, flag in changed]) < 0.15  # of 15 % some are guessed right
    special = {model.tokenizer.backend.token_to_id(token) for token in ("[CLS]", "[SEP]")}
    assert not any(flag for a, _, flag in changed if a in special)


def test_a_discriminator_knows_what_was_replaced_and_word_embeddings_know_the_tokens(lines):
    model = SentenceEncoder.from_pretrained(TWINS / "mlm-then-rtd")
    generator = load_generator(str(TWINS / "mlm"), model)
    layers = probe_layers(model, lines, generator)
    assert len(layers) == 9 and layers == probe_layers(model, lines, generator)
    assert layers[0].token_accuracy > 0.95 and layers[8].token_accuracy < layers[0].token_accuracy
    assert layers[8].replaced_auc > layers[0].replaced_auc and 0.4 < layers[0].replaced_auc < 0.8
    # attention brings the next token to a position, which the embeddings there do not know
    assert layers[1].next_token_accuracy > 2 * layers[0].next_token_accuracy > 0
    without_generator = probe_layers(model, lines)
    assert all(np.isnan(layer.replaced_auc) for layer in without_generator)


def test_the_next_token_is_one_of_the_same_sentence(monkeypatch):
    """Each word is alone in its sentence, without special tokens: no position has a next token."""
    seen = []

    def probe_accuracy(x, classes, is_used, is_test):
        seen.append(int(is_used.sum()))
        return 0.0

    monkeypatch.setattr(probes, "probe_accuracy", probe_accuracy)
    model = tiny_model()
    monkeypatch.setattr(model, "tokenize", lambda sentences: [[5] for _ in sentences])
    probe_layers(model, ["a"] * 50)
    assert seen == [50, 0] * 5


@pytest.mark.slow
def test_the_script_prints_a_line_for_each_layer(lines, tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = [sys.executable, SCRIPT, TWINS / "mlm-then-rtd", "lines.txt", "--generator", TWINS / "mlm"]
    output = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in output.splitlines()[1:]] == list("012345678")
