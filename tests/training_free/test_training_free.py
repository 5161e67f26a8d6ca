"""Embeddings changed without training: each score is that of a model changed by hand."""

import json
import tempfile
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from by_hand import WORDS, change, random_pairs, random_sentences, random_texts, spearman_of, write_examples
from conftest import assert_same_embeddings, tiny_model
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import evaluate
import train
from tmft import InputError, SentenceEncoder
from tmft.data import Examples, read_examples
from tmft.datasets.task_lookup import get_task
from tmft.embedding.prompts import PROMPTS
from tmft.evaluation.evaluators import EVALUATORS
from tmft.io.text import read_sentences
from tmft.training_free.static_models import random_static_model, random_word_vectors, static_model_from_text
from tmft.training_free.training_free import TrainingFreeConfig, TrainingFreeEncoders, interpolate


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    """tiny: a model; data: folders of tasks; lines.txt: other sentences."""
    folder = tmp_path_factory.mktemp("training-free")
    tiny_model(max_position_embeddings=128).save_pretrained(folder / "tiny")  # room for a prompt
    for name, split, count in (("stsb", "dev", 30), ("stsb", "test", 40), ("sick", "test", 50)):
        write_examples(folder / "data" / name / f"{split}.tsv", random_pairs(count, 10 * count, "12345"))
    for split in ("train", "dev", "test"):
        texts = random_texts(30, len(split), "01")
        write_examples(folder / f"data/senteval/sst2/{split}.tsv", texts, "label")
    write_examples(folder / "data/clustering/tweet.tsv", random_texts(20, 7, "ab"), "label")
    (folder / "lines.txt").write_text("\n".join(random_sentences(60, seed=99)) + "\n")
    return folder


@pytest.fixture(scope="module")
def score(here):
    """The JSON that evaluate.py writes for the tiny model, or another one, with these options."""

    def score(*words, model: Path = here / "tiny") -> dict:
        where = ["--data-root", str(here / "data"), "--json", str(here / "scores.json")]
        evaluate.main([str(model), *map(str, words), *where])
        return json.loads((here / "scores.json").read_text())

    return score


@pytest.fixture(scope="module")
def load(here):
    """Load the tiny model, to change it by hand."""
    return lambda **how: SentenceEncoder.from_pretrained(here / "tiny", **how)


@pytest.fixture(scope="module")
def stsb(here) -> Examples:
    return read_examples(get_task("stsb", data_root=str(here / "data")), "test")


def single_score(result: dict, kind: str = "layers") -> float:
    (scores,) = result[kind].values()
    return scores["stsb"]["spearman"]


# -------------------------------------------------------------------------------------- any change of a model

PROMPT_WEIGHTS = ["mask-token", "no-prompt"]  # of a prompt with [M], or of any
TOKEN_WEIGHTS = ["uniform", "no-special", "content-words", "idf", "content-words=FILE", "idf=FILE"]
POSTPROCESSING = ["zscore", "center=FILE", "abtt+normalize", "normalize", "whiten=FILE", "quantile", "whiten"]


@settings(max_examples=25, phases=[Phase.generate])
@given(
    layer=st.sampled_from([None, "1+3", "0+2+4", "word", "3", "0"]),
    prompt=st.sampled_from([None, None, "T0", "T4", 'so "[X]"!']),
    tokens=st.sampled_from([None, *PROMPT_WEIGHTS, *TOKEN_WEIGHTS]),
    postprocess=st.sampled_from([None, None, *POSTPROCESSING]),
    is_static=st.sampled_from([False, False, True]),
)
def test_any_change_gives_the_score_of_a_model_that_is_changed_by_hand(
    layer, prompt, tokens, postprocess, is_static, here, score, load, stsb
):
    """The score, that of the saved model, and that of random embeddings."""
    if tokens in PROMPT_WEIGHTS and (prompt not in ("T0", "T4") or is_static):
        tokens = None
    lines = read_sentences(here / "lines.txt")
    token_name, _, token_file = (tokens or "").partition("=")
    postprocess_name, _, postprocess_file = (postprocess or "").partition("=")
    token_texts = lines if token_file else stsb.sentences if token_name == "idf" else None
    changes = token_texts, postprocess_name, lines if postprocess_file else stsb.sentences

    model = load(layer=layer)
    if prompt:
        model.prompt = PROMPTS.get(prompt, prompt)
    if is_static:
        model = static_model_from_text(model, lines)
    expected = spearman_of(change(model, token_name or None, *changes), stsb)
    options = {"--layer": layer, "--prompt": prompt, "--token-weights": tokens, "--postprocess": postprocess}
    options |= {"--static-from": str(here / "lines.txt") if is_static else None}
    words = [word for pair in options.items() if pair[1] for word in pair]
    words = [word.replace("FILE", str(here / "lines.txt")) for word in words]
    is_weighted = token_name not in ("", "uniform")  # a static model is saved with the plain mean only
    can_be_saved = postprocess_name != "quantile" and not (is_static and is_weighted)
    with tempfile.TemporaryDirectory() as out:
        result = score(*words, *(["--save", f"{out}/model"] if can_be_saved else []))
        assert single_score(result) == pytest.approx(expected, abs=1e-6)
        if can_be_saved:
            assert single_score(score(model=Path(out) / "model")) == pytest.approx(expected, abs=1e-6)

    is_changed = any([tokens, prompt, postprocess, is_static, layer in ("1+3", "0+2+4", "word")])
    random_name = "uniform" if token_name in PROMPT_WEIGHTS else token_name or None
    try:
        models = [random_static_model(load(), seed=seed) for seed in range(3 * is_changed)]
        values = [spearman_of(change(model, random_name, *changes), stsb) for model in models]
    except InputError:  # 80 sentences whiten the 24 dimensions of the model, and not their 768
        values = []
    assert ("random" in result) == bool(values)
    if values:
        assert result["random"]["stsb"] == pytest.approx(mean(values), abs=1e-6)


LINES = "{here}/lines.txt"
TRANSDUCTIVE = [
    (["--token-weights", "idf"], "idf"),
    (["--token-weights", "idf", "--postprocess", "abtt+normalize"], "idf and abtt+normalize"),
    (["--token-weights", f"idf={LINES}", "--postprocess", "center"], "center"),
    (["--token-weights", "idf", "--postprocess", f"center={LINES}"], "idf"),
    (["--task", "tweet", "--postprocess", "center"], "center"),
    (["--token-weights", f"idf={LINES}", "--postprocess", f"center={LINES}"], ""),
    (["--token-weights", "content-words"], ""),
    (["--postprocess", "normalize"], ""),
    (["--prompt", "T0", "--token-weights", "mask-token"], ""),
    (["--static-from", LINES], ""),
    (["--task", "sst2", "--token-weights", "idf"], ""),  # estimated from train, which is not scored
    ([], ""),
]


@pytest.mark.parametrize(("words", "names"), TRANSDUCTIVE, ids=[" ".join(w) for w, _ in TRANSDUCTIVE])
def test_the_command_says_what_is_estimated_from_the_scored_sentences(words, names, here, score, capsys):
    result = score(*(word.format(here=here) for word in words))
    lines = capsys.readouterr().out.splitlines()
    expected = f"{names}: estimated from the sentences that are scored (transductive)"
    assert [line for line in lines if line.endswith("(transductive)")] == ([expected] if names else [])
    scores = ", ".join(f"{name} {100 * value:.2f}" for name, value in result.get("random", {}).items())
    printed = [line for line in lines if line.startswith("random embeddings")]
    assert printed == ([f"random embeddings with the same options: {scores}"] if words else [])


def test_each_layer_has_its_own_postprocessing(score, load, stsb):
    result = score("--layer", "all", "--postprocess", "abtt")["layers"]
    assert list(result) == list("01234")
    for layer, scores in result.items():
        encode = change(load(layer=layer), postprocess="abtt", fit_texts=stsb.sentences)
        assert scores["stsb"]["spearman"] == pytest.approx(spearman_of(encode, stsb), abs=1e-6)


def test_idf_is_estimated_for_each_task(score):
    (both,) = score("--task", "stsb", "sickr", "--token-weights", "idf")["layers"].values()
    for name in ("stsb", "sickr"):
        (alone,) = score("--task", name, "--token-weights", "idf")["layers"].values()
        assert alone[name] == both[name]


def test_the_token_weights_of_a_saved_model_are_kept_unless_others_are_given(here, score, tmp_path):
    """Those of a prompt are made for the given prompt instead of the saved one."""
    plain = single_score(score())
    saved = single_score(score("--token-weights", f"idf={here / 'lines.txt'}", "--save", tmp_path / "idf"))
    assert single_score(score(model=tmp_path / "idf")) == pytest.approx(saved, abs=1e-9) != plain
    again = single_score(score("--token-weights", "uniform", model=tmp_path / "idf"))
    assert again == pytest.approx(plain, abs=1e-9)
    score("--prompt", "T0", "--token-weights", "no-prompt", "--save", tmp_path / "T0")
    expected = single_score(score("--prompt", "T4", "--token-weights", "no-prompt"))
    assert single_score(score("--prompt", "T4", model=tmp_path / "T0")) == pytest.approx(expected)


def test_a_threshold_is_chosen_for_the_changed_embeddings(tmp_path, here):
    """The threshold of the run was the best one for embeddings without changes."""
    for split, count in (("train", 20), ("dev", 24), ("test", 24)):
        pairs = random_pairs(count, count + len(split), "01")
        write_examples(tmp_path / f"two/{split}.tsv", pairs, "label")
    where = ["--ckpt", str(here / "tiny"), "--output-dir", str(tmp_path), "--run-name", "r", "--layer", "1"]
    how = ["--epochs", "1", "--precision", "fp32", "--task", "mrpc", "--data", str(tmp_path / "two")]
    train.main([*where, *how])
    run, out = str(tmp_path / "r-layer1-seed0"), tmp_path / "scores.json"
    evaluate.main([run, "--postprocess", "center", "--json", str(out)])
    [result] = json.loads(out.read_text())["layers"]["1"].values()

    model, task = SentenceEncoder.from_pretrained(run), get_task("mrpc", data=str(tmp_path / "two"))
    encode = change(model, postprocess="center", fit_texts=read_examples(task, "test").sentences)
    expected = EVALUATORS["similarity"](encode, task, lambda split: read_examples(task, split))
    assert result == pytest.approx(expected, abs=1e-6)


# ----------------------------------------------------------------------------------- how often, and from what


def test_embeddings_with_other_token_weights_are_computed_again(load, stsb):
    model, texts = load(), stsb.sentences
    variants = TrainingFreeEncoders(model, {4: TrainingFreeConfig(token_weights="idf")})
    first = variants.encoders(texts)[4](texts[:5])
    second = variants.encoders(texts[:20])[4](texts[:5])
    assert not torch.allclose(first, second)
    model.set_token_weights("idf", texts[:20])
    assert_same_embeddings(second.numpy(), model.encode(texts[:5]))


# ------------------------------------------------------------------------------- static models, interpolation


def test_random_embeddings_ignore_special_tokens(load):
    model = load()
    one = random_static_model(model, dimensions=16, seed=5)
    ids = model.tokenizer.backend.encode("the cat", add_special_tokens=False).ids
    expected = random_word_vectors(model.encoder.config.vocab_size, 16, seed=5)[ids].mean(0)
    np.testing.assert_allclose(one.encode(["the cat"])[0], expected.numpy(), atol=1e-6)


def test_an_interpolation_has_the_changes_of_both_models(here, score, load, stsb, tmp_path):
    """Both models get the token weights, and their mix is post-processed."""
    score("--layer", "1+4", "--static-from", here / "lines.txt", "--save", tmp_path / "static")
    static = SentenceEncoder.from_pretrained(tmp_path / "static")
    options = ["--token-weights", "idf", "--postprocess", "zscore"]
    for words, tokens, postprocess in ([], None, ""), (options, "idf", "zscore"):
        u, v = (change(model, tokens, stsb.sentences if tokens else None) for model in (load(), static))
        result = score("--interpolate", tmp_path / "static", "0", "-0.25", "0.5", "1", *words)
        assert list(result["weights"]) == ["0.0", "-0.25", "0.5", "1.0"] and "layers" not in result
        for weight, scores in result["weights"].items():
            mix = interpolate(u, v, float(weight))
            model = type("", (), {"tokenize": staticmethod(list), "embed_token_ids": staticmethod(mix)})
            encode = change(model, postprocess=postprocess, fit_texts=stsb.sentences)
            assert scores["stsb"]["spearman"] == pytest.approx(spearman_of(encode, stsb), abs=1e-6)
    x, w = WORDS[:3], 0.25
    expected = (1 - w) * u(x) + w * v(x)
    torch.testing.assert_close(interpolate(u, v, w)(x), expected, rtol=0, atol=0)


def test_models_of_different_width_are_an_error_of_one_line(score, load, tmp_path):
    random_static_model(load(), dimensions=16).save_pretrained(tmp_path / "narrow")
    with pytest.raises(InputError) as error:
        score("--interpolate", tmp_path / "narrow", "0.5")
    widths = f"--interpolate: {tmp_path / 'narrow'} has 16 dimensions, the model 24"
    assert error.value.as_cli_message() == f"{widths}: choose a static model with as many dimensions"


def test_every_layer_is_not_interpolated_with_one_static_model(here, score):
    """Only the last layer was scored, without a word."""
    with pytest.raises(InputError, match="^--layer all and --interpolate: give --layer the layer to"):
        score("--layer", "all", "--interpolate", here / "tiny", "0.5")


# --------------------------------------------------------------------------------------------------- saving


NOT_SAVED = {
    "--task stsb sickr --token-weights idf": "--save: idf would be estimated for each task",
    "--task stsb sickr --postprocess center": "--save: center would be estimated for each task",
    "--interpolate {here}/tiny 0.5": "--interpolate and --save: two models cannot be saved as one",
    "--layer all": "--layer all and --save: give --layer the number of the layer to save",
    "--postprocess quantile": "--postprocess quantile cannot be saved with a model",
}


@pytest.mark.parametrize("options", NOT_SAVED)
def test_what_is_not_one_model_is_not_saved(options, here, score, tmp_path):
    with pytest.raises(InputError) as error:
        score(*options.format(here=here).split(), "--save", tmp_path / "saved")
    message = error.value.as_cli_message()
    assert message.startswith(NOT_SAVED[options]) and "\n" not in message
    assert not (tmp_path / "saved").exists()
