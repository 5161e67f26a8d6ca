"""A vocabulary that is cut: the same tokens and embeddings of its text, here and in other libraries."""

import json

import numpy as np
import pytest
from conftest import ROOT, SENTENCES, assert_same_embeddings, tiny_model
from tokenizers import Tokenizer as Backend
from tokenizers import models

import tmft.cli.export_command as export_command
from tmft.embedding.modules import make_projection
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder
from tmft.students.vocabulary_pruning import prune_vocabulary
from tmft.tokenizer import Tokenizer

TWINS = ROOT / "data/twins"
TEXT = [*SENTENCES, "Naïve physicists – in 1998 – played “jazz” on 3 zithers.", "한국", "xqzj??", "~ €"]
OTHER = ["Unheard-of words: rhinoceros, thermodynamics.", "£ and ß", ""]


def with_modules(name: str) -> SentenceEncoder:
    model = SentenceEncoder.from_pretrained(TWINS / name, 2)
    model.head_modules = make_projection(model.head_modules, model.dimensions, 16)
    model.set_token_weights("no-special")
    model.prompt = "the words are "
    return model


MODELS = {
    "WordPiece, BERT": lambda: SentenceEncoder.from_pretrained(TWINS / "mlm", 2),
    "WordPiece, a prompt, weights, a Dense": lambda: with_modules("mlm-then-rtd"),
    "Unigram, T5": lambda: SentenceEncoder.from_pretrained(TWINS / "t5", 2),
    "Unigram, T5's decoder": lambda: SentenceEncoder.from_pretrained(TWINS / "t5", 1, "decoder"),
}


@pytest.mark.parametrize("name", MODELS)
def test_its_text_has_the_same_pieces_and_embeddings_other_text_is_read_and_the_model_is_as_it_was(
    name, tmp_path
):
    model = MODELS[name]()
    others = model.encode(OTHER)
    cut = prune_vocabulary(model, TEXT)
    assert np.isfinite(cut.encode(OTHER)).all() and (model.encode(OTHER) == others).all()
    assert model.encoder.config.vocab_size == len(model.encoder.embeddings.word.weight)
    words, fewer = model.tokenizer.vocabulary, cut.tokenizer.vocabulary
    assert len(fewer) < 0.1 * len(words)
    for before, after in zip(model.tokenize(TEXT), cut.tokenize(TEXT), strict=True):
        assert [words[id] for id in before] == [fewer[id] for id in after]
    assert (cut.encode(TEXT) == model.encode(TEXT)).all()
    cut.save_pretrained(tmp_path / "x")
    opened = SentenceEncoder.from_pretrained(tmp_path / "x")
    assert (opened.encode(TEXT) == model.encode(TEXT)).all()
    assert json.loads((tmp_path / "x/config.json").read_text())["vocab_size"] == len(fewer)


def test_the_words_of_all_prompts_are_kept():
    model = SentenceEncoder.from_pretrained(TWINS / "mlm", 1)
    model.prompts |= {"query": "music for the ", "sts": "a guitar [X] is [M]"}
    cut = prune_vocabulary(model, ["a man"])
    words, fewer = model.tokenizer.vocabulary, cut.tokenizer.vocabulary
    for name in model.prompts:
        [before], [after] = (one.tokenize(["a man"], prompt_name=name) for one in (model, cut))
        assert [words[id] for id in before] == [fewer[id] for id in after]
    assert (cut.encode_query("a man") == model.encode_query("a man")).all()


def test_words_that_are_cut_off_fall_into_letters():
    model = SentenceEncoder.from_pretrained(TWINS / "mlm", 1)
    cut = prune_vocabulary(model, ["a man"])
    fewer = cut.tokenizer.vocabulary
    assert [fewer[id] for id in cut.tokenize(["cat"])[0]] == ["[CLS]", "c", "##a", "##t", "[SEP]"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mlm", "t5"])
def test_sentence_transformers_opens_it(family, tmp_path):
    from sentence_transformers import SentenceTransformer

    model = SentenceEncoder.from_pretrained(TWINS / family, 2)
    prune_vocabulary(model, TEXT).save_pretrained(tmp_path / "x")
    theirs = SentenceTransformer(str(tmp_path / "x"), device="cpu").encode(TEXT)
    assert_same_embeddings(theirs, model.encode(TEXT))


def test_what_cannot_be_pruned_is_refused():
    model = tiny_model()
    backend = Backend(models.BPE({"a": 0, "b": 1, "ab": 2, "[CLS]": 3, "[SEP]": 4}, [("a", "b")]))
    model.tokenizer = Tokenizer(backend, {"cls_token": "[CLS]", "sep_token": "[SEP]"})
    with pytest.raises(InputError, match="prune_vocabulary: a BPE tokenizer cannot be pruned"):
        prune_vocabulary(model, ["ab"])
    with pytest.raises(InputError, match="prune_vocabulary: the text is empty"):
        prune_vocabulary(tiny_model(), [])


def test_with_a_size_the_most_frequent_tokens_are_kept(tmp_path, capsys):
    model = SentenceEncoder.from_pretrained(TWINS / "mlm", 1)
    lines = ["the guitar plays"] * 3 + ["the cat sleeps"] * 2 + ["a thermodynamic rhinoceros"]
    smallest = len(prune_vocabulary(model, ["the"]).tokenizer.vocabulary)
    pruned = prune_vocabulary(model, lines, smallest + 2)
    assert len(pruned.tokenizer.vocabulary) == pruned.encoder.config.vocab_size == smallest + 2
    assert {"the", "guitar", "plays"} <= set(pruned.tokenizer.vocabulary)
    assert "cat" not in pruned.tokenizer.vocabulary
    assert_same_embeddings(pruned.encode(["the guitar plays"]), model.encode(["the guitar plays"]))
    with pytest.raises(InputError, match="vocab_size"):
        prune_vocabulary(model, lines, 10)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(lines), encoding="utf-8")
    words = [str(TWINS / "mlm"), str(tmp_path / "out"), "--vocab-size", str(smallest + 5)]
    with pytest.raises(InputError, match="needs --prune-vocabulary"):
        export_command.main(words)
    export_command.main([*words, "--prune-vocabulary", str(text)])
    assert f"pruned to {smallest + 5}" in capsys.readouterr().out
