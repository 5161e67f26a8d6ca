"""Probes: the analysis is scikit-learn's, states stand in the order of the tokens, twins are read."""

import numpy as np
import pytest
import torch
from conftest import ROOT, SENTENCES, padded, tiny_model

import evaluate
from tmft.errors import InputError
from tmft.evaluation.probes import linear_discriminant_scores, replace_tokens, hidden_states, probe_layers, load_generator, roc_auc
from tmft.sentence_encoder import SentenceEncoder

TWINS = ROOT / "data/twins"


@pytest.fixture(scope="module")
def lines():
    rows = (ROOT / "data/sample/train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return list(dict.fromkeys(cell for row in rows for cell in row.split("\t")[:2]))


def test_the_analysis_is_scikit_learns():
    analysis = pytest.importorskip("sklearn.discriminant_analysis")
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=400)
    x = rng.normal(size=(400, 6)) + rng.normal(size=(4, 6))[y]
    theirs = analysis.LinearDiscriminantAnalysis(solver="lsqr").fit(x[:300], y[:300])
    known, scores = linear_discriminant_scores(torch.tensor(x[:300]), torch.tensor(y[:300]), torch.tensor(x[300:]))
    assert known.tolist() == [0, 1, 2, 3]
    probabilities = scores.softmax(1).numpy()
    np.testing.assert_allclose(probabilities, theirs.predict_proba(x[300:]), atol=2e-3)  # RIDGE


def test_the_area_is_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    scores, positive = rng.normal(size=200).round(1), rng.random(200) < 0.3
    assert roc_auc(scores, positive) == pytest.approx(metrics.roc_auc_score(positive, scores), abs=1e-12)


def test_states_stand_in_the_order_of_the_tokens():
    model = tiny_model()
    ids = model.tokenize(SENTENCES)
    states = hidden_states(model, ids)
    with torch.inference_mode():
        expected = model.encoder.hidden_states(*padded(ids))
    for ours, one_per_row in zip(states, expected, strict=True):
        rows = torch.cat([row[: len(sentence)] for row, sentence in zip(one_per_row, ids, strict=True)])
        torch.testing.assert_close(ours, rows, rtol=1e-4, atol=1e-5)


def test_some_tokens_are_filled_in_and_special_ones_never(lines):
    model = SentenceEncoder.from_pretrained(TWINS / "discriminator")
    generator = load_generator(str(TWINS / "mlm"), model)
    ids = model.tokenize(lines[:200])
    torch.manual_seed(0)
    given, replaced = replace_tokens(generator, ids, model)
    assert [len(sentence) for sentence in given] == [len(sentence) for sentence in ids]
    changed = [(a, b, flag) for s, g, r in zip(ids, given, replaced, strict=True)
               for a, b, flag in zip(s, g, r, strict=True)]  # fmt: skip
    assert all((a != b) is flag for a, b, flag in changed)
    assert 0.03 < np.mean([flag for *_, flag in changed]) < 0.15  # of 15 % some are guessed right
    special = {model.tokenizer.backend.token_to_id(token) for token in ("[CLS]", "[SEP]")}
    assert not any(flag for a, _, flag in changed if a in special)


def test_a_discriminator_knows_what_was_replaced_and_the_word_table_knows_the_words(lines):
    model = SentenceEncoder.from_pretrained(TWINS / "discriminator")
    found = probe_layers(model, lines, load_generator(str(TWINS / "mlm"), model))
    assert len(found) == 9 and found == probe_layers(model, lines, load_generator(str(TWINS / "mlm"), model))
    assert found[0].word > 0.95 and found[8].word < found[0].word
    assert found[8].replaced > found[0].replaced and 0.4 < found[0].replaced < 0.8
    alone = probe_layers(model, lines)
    assert all(np.isnan(one.replaced) for one in alone)


def test_what_cannot_be_probed_is_one_line(tmp_path, tiny_folder):
    with pytest.raises(InputError, match="3 sentences are too few for a probe"):
        probe_layers(tiny_model(), SENTENCES[:3])
    with pytest.raises(InputError, match="has no head that fills in words"):
        load_generator(str(tiny_folder), tiny_model())
    with pytest.raises(InputError, match="has another vocabulary than the model"):
        load_generator(str(TWINS / "mlm"), tiny_model())


def test_the_command_prints_a_line_for_each_layer(lines, tmp_path, capsys):
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = [str(TWINS / "discriminator"), "--layer", "2", "--probe", str(text)]
    evaluate.main([*words, "--generator", str(TWINS / "mlm")])
    table = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split()[0] for line in table] == ["0", "1", "2"]
    evaluate.main(words)
    assert capsys.readouterr().out.rstrip().endswith("nan")
