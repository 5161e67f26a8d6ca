"""Embeddings of tokens that are narrower than the layers, and the components that they begin with."""

import pytest
import torch
from conftest import ROOT, tiny_model
from transformers import AutoModel

import tmft.cli.export_command as export_command
from tmft.embedding.layer_mix import WORD_EMBEDDINGS
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder
from tmft.students.narrow_models import factorize_embeddings, principal_components

TINY = ROOT / "data/tiny"


def sample_lines(split):
    text = (ROOT / f"data/sample/{split}.tsv").read_text(encoding="utf-8")
    return [cell for row in text.splitlines() for cell in row.split("\t")[:2]]


def mean_cosine(one, other):
    return torch.cosine_similarity(*(torch.as_tensor(x) for x in (one, other))).mean().item()


def hidden_state_0(model, lines):
    rows = model.tokenizer.encode_batch(lines, add_special_tokens=True)
    with torch.no_grad():
        return torch.cat(
            [model.encoder.embeddings(torch.tensor([row]), torch.arange(len(row))[None])[0] for row in rows]
        )


def test_wider_embeddings_come_closer_to_the_model_on_other_text():
    model, lines, others = SentenceEncoder.from_pretrained(TINY), sample_lines("train"), sample_lines("test")
    cosines, input_cosines = [], []
    for size in (32, 96, 127):
        narrow = factorize_embeddings(model, lines, size)
        table = narrow.encoder.embeddings.word.weight
        assert table.shape == (model.encoder.config.vocab_size, size)
        saved = (128 - size) * (16384 + 128 + 2 + 2) - 128 * (size + 1)  # tables, LayerNorm; the new map
        sizes = [sum(weight.numel() for weight in one.parameters()) for one in (model, narrow)]
        assert sizes[0] - sizes[1] == saved
        cosines.append(mean_cosine(model.encode(others), narrow.encode(others)))
        input_cosines.append(mean_cosine(hidden_state_0(model, others), hidden_state_0(narrow, others)))
    assert sorted(cosines) == cosines and cosines[0] > 0.6 and cosines[2] > 0.97, cosines
    assert input_cosines[1] > 0.92, input_cosines


def test_frequent_tokens_count_most():
    model = SentenceEncoder.from_pretrained(TINY)
    lines = ["a man plays the guitar ."] * 50 + sample_lines("train")
    narrow = factorize_embeddings(model, lines, 16)
    errors = [
        1 - mean_cosine(hidden_state_0(model, text), hidden_state_0(narrow, text))
        for text in (lines[:1], ["thermodynamic rhinoceros syllables"])
    ]
    assert errors[0] < errors[1] / 2, errors


def test_a_roberta_counts_its_positions_from_0_afterwards():
    model = tiny_model(model_type="roberta")
    narrow = factorize_embeddings(model, ["a man plays", "the dog"], 23)
    assert narrow.encoder.config.max_tokens == model.encoder.config.max_tokens
    assert mean_cosine(hidden_state_0(model, ["a man"]), hidden_state_0(narrow, ["a man"])) > 0.9


def test_the_result_is_an_electra_that_transformers_opens(tmp_path):
    model = factorize_embeddings(SentenceEncoder.from_pretrained(TINY), sample_lines("train"), 64)
    model.save_pretrained(tmp_path / "narrow")
    again = SentenceEncoder.from_pretrained(tmp_path / "narrow")
    lines = sample_lines("test")[:5]
    assert (again.encode(lines) == model.encode(lines)).all()
    theirs = AutoModel.from_pretrained(tmp_path / "narrow")
    ids = torch.tensor([model.tokenizer.encode_batch(lines[:1], add_special_tokens=True)[0]])
    assert type(theirs).__name__ == "ElectraModel"
    found = theirs.embeddings_project(theirs.embeddings(ids))[0]
    torch.testing.assert_close(found, hidden_state_0(model, lines[:1]), rtol=0, atol=1e-5)


POOLED = "embedding_size: the model pools its token embeddings"  # which get fewer dimensions than the others


@pytest.mark.parametrize(
    ("changes", "layers", "size", "message"),
    [
        ({"model_type": "bert"}, None, 1, "embedding_size"),
        ({"model_type": "bert"}, None, 24, "embedding_size"),
        ({}, None, 8, "electra with embeddings of 12 dimensions"),
        ({"model_type": "mpnet"}, None, 8, "mpnet with embeddings of 24"),
        ({"model_type": "bert"}, (WORD_EMBEDDINGS, 2), 8, f"{POOLED}.*choose another layer"),
        ({"model_type": "bert"}, (WORD_EMBEDDINGS,), 8, POOLED),
    ],
)
def test_a_size_or_model_that_does_not_fit_is_refused(changes, layers, size, message):
    model = tiny_model(**changes)
    model.layers = layers
    with pytest.raises(InputError, match=message):
        factorize_embeddings(model, ["a man"], size)


def test_the_command_prunes_and_factorizes(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sample_lines("train")), encoding="utf-8")
    words = [str(TINY), str(tmp_path / "x"), "--embedding-size", "64"]
    with pytest.raises(InputError, match="--vocab-size needs --prune-vocabulary"):
        export_command.main([*words, "--vocab-size", "2000"])
    pruning = ["--prune-vocabulary", str(text), "--vocab-size", "2000"]
    with pytest.raises(InputError, match="embedding_size 0"):
        export_command.main([*words[:2], "--embedding-size", "0", *pruning])
    export_command.main([*words, *pruning])
    assert "vocabulary of 16384 tokens pruned to 2000" in capsys.readouterr().out
    opened = SentenceEncoder.from_pretrained(tmp_path / "x")
    assert opened.encoder.embeddings.word.weight.shape == (2000, 64)


def test_without_a_text_all_tokens_stay_and_the_first_of_the_vocabulary_count_most(tmp_path):
    words = [str(TINY), str(tmp_path / "x"), "--embedding-size", "96"]
    export_command.main(words)
    model, narrow = SentenceEncoder.from_pretrained(TINY), SentenceEncoder.from_pretrained(tmp_path / "x")
    assert narrow.encoder.embeddings.word.weight.shape == (16384, 96)
    assert narrow.tokenizer.vocabulary == model.tokenizer.vocabulary
    lines = sample_lines("test")
    fitted = factorize_embeddings(model, sample_lines("train"), 96)
    cosines = [mean_cosine(model.encode(lines), one.encode(lines)) for one in (narrow, fitted)]
    assert 0.8 < cosines[0] < cosines[1], cosines


def test_all_components_together_are_the_vectors_and_the_first_explains_most():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(50, 8, generator=generator)
    weights = torch.rand(50, generator=generator)
    basis, mean, coordinates = principal_components(vectors, weights, 8)
    torch.testing.assert_close(mean + coordinates @ basis.T, vectors.double())
    variance = (coordinates.square() * weights[:, None]).sum(0)
    assert (variance[:-1] >= variance[1:]).all()
