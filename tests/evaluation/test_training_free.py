"""Embeddings changed without training: each score is that of a model changed by hand."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_same_embeddings, command, tiny_model
from torch import Tensor, nn

import evaluate
import train
from tmft import InputError, SentenceEncoder
from tmft.data import read_examples
from tmft.datasets.task_lookup import get_task, read_sentences
from tmft.embedding.postprocessing import fit_postprocessing
from tmft.embedding.prompts import PROMPTS
from tmft.embedding.static_embeddings import random_word_vectors
from tmft.evaluation.evaluators import EVALUATORS
from tmft.evaluation.training_free import (
    TrainingFreeConfig,
    TrainingFreeEncoders,
    interpolate,
    random_static_model,
    static_model_from_text,
)
from tmft.metrics import cosines, spearman

WORDS = "a the man woman dog cat plays eats guitar music is not in park two".split()
PLACE = "sentence1\tsentence2\tscore"


def sentences(count: int, seed: int) -> list[str]:
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(2, 7))) for _ in range(count)]


def write_pairs(path: Path, count: int, seed: int, labels: str = "012345", heading: str = PLACE) -> None:
    scores = random.Random(seed).choices(labels, k=count)
    pairs = zip(sentences(count, seed), sentences(count, seed + 1), scores, strict=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([heading, *map("\t".join, pairs)]) + "\n")


def write_texts(path: Path, count: int, seed: int, labels: str) -> None:
    lines = zip(sentences(count, seed), random.Random(seed).choices(labels, k=count), strict=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["text\tlabel", *map("\t".join, lines)]) + "\n")


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    """tiny: a model; data: folders of tasks; lines.txt: other sentences."""
    folder = tmp_path_factory.mktemp("training-free")
    tiny_model(max_position_embeddings=128).save_pretrained(folder / "tiny")  # room for a prompt
    for name, split, count in (("stsb", "dev", 30), ("stsb", "test", 40), ("sick", "test", 50)):
        write_pairs(folder / "data" / name / f"{split}.tsv", count, seed=10 * count, labels="12345")
    for split in ("train", "dev", "test"):
        write_texts(folder / f"data/senteval/sst2/{split}.tsv", 30, seed=len(split), labels="01")
    write_texts(folder / "data/clustering/tweet.tsv", 20, seed=7, labels="ab")
    (folder / "lines.txt").write_text("\n".join(sentences(60, seed=99)) + "\n")
    return folder


@pytest.fixture
def score(here, tmp_path):
    """The JSON that evaluate.py writes for the tiny model, or another one, with these options."""

    def score(*words, model: Path = here / "tiny") -> dict:
        evaluate.main(
            [str(model), "--data-root", str(here / "data"), *map(str, words), "--json", str(tmp_path / "j")]
        )
        return json.loads((tmp_path / "j").read_text())

    return score


@pytest.fixture
def load(here):
    """Load the tiny model, to change it by hand."""
    return lambda **how: SentenceEncoder.from_pretrained(here / "tiny", **how)


def task_texts(here: Path, name: str = "stsb", split: str = "test") -> list[str]:
    return read_examples(get_task(name, data_root=str(here / "data")), split).sentences


def task_spearman(here: Path, encode, name: str = "stsb", split: str = "test") -> float:
    """Spearman correlation of the cosines of the embeddings with the scores of a task."""
    examples = read_examples(get_task(name, data_root=str(here / "data")), split)
    u, v = (torch.as_tensor(encode(column)) for column in examples.texts)
    return spearman(cosines(u, v), examples.labels)


def encode_with(modules: list[nn.Module], model: SentenceEncoder):
    """The encode function of a model with modules applied to its embeddings."""

    @torch.no_grad()
    def encode(column: list[str]) -> Tensor:
        return nn.Sequential(*modules)(model.embed_token_ids(model.tokenize(column)))

    return encode


def fit_to(names: str, model: SentenceEncoder, texts: list[str]) -> list[nn.Module]:
    return fit_postprocessing(names, model.embed_token_ids(model.tokenize(texts)))


def single_score(result: dict, name: str = "stsb", kind: str = "layers") -> float:
    (scores,) = result[kind].values()
    return scores[name]["spearman"]


# ---------------------------------------------------------------------------------------- layers and tokens


def test_without_options_a_score_is_that_of_the_plain_embeddings(here, score, load, capsys):
    result = score()
    assert list(result["layers"]) == ["4"] and "random" not in result
    assert single_score(result) == pytest.approx(task_spearman(here, load().encode), abs=1e-9)
    printed = capsys.readouterr().out
    assert "random" not in printed and "transductive" not in printed


@pytest.mark.parametrize("layer", ["1+3", "0+2+4", "word", "3", "0"])
def test_a_layer_or_a_mean_of_layers_scores_as_the_model_loaded_with_it(layer, here, score, load):
    assert single_score(score("--layer", layer)) == pytest.approx(
        task_spearman(here, load(layer=layer).encode), abs=1e-9
    )


def test_idf_is_estimated_from_the_scored_sentences_of_each_task(here, score, load):
    (result,) = score("--task", "stsb", "sickr", "--token-weights", "idf")["layers"].values()
    for name in ("stsb", "sickr"):
        model = load()
        model.set_token_weights("idf", task_texts(here, name))
        assert result[name]["spearman"] == pytest.approx(task_spearman(here, model.encode, name), abs=1e-9)
        (alone,) = score("--task", name, "--token-weights", "idf")["layers"].values()
        assert alone[name] == result[name]


@pytest.mark.parametrize("tokens", ["idf", "content-words"])
def test_token_weights_of_a_file_are_estimated_from_its_lines(tokens, here, score, load):
    model = load()
    model.set_token_weights(tokens, read_sentences(here / "lines.txt"))
    result = score("--token-weights", f"{tokens}={here / 'lines.txt'}")
    assert single_score(result) == pytest.approx(task_spearman(here, model.encode), abs=1e-9)


@pytest.mark.parametrize("tokens", ["no-special", "content-words", "uniform"])
def test_token_weights_that_need_no_text_are_those_of_the_vocabulary(tokens, here, score, load):
    model = load()
    model.set_token_weights(tokens)
    assert single_score(score("--token-weights", tokens)) == pytest.approx(
        task_spearman(here, model.encode), abs=1e-9
    )


@pytest.mark.parametrize(
    ("prompt", "tokens"), [("T0", "mask-token"), ("T4", "no-prompt"), ('so "[X]"!', "uniform")]
)
def test_each_sentence_is_put_into_the_prompt(prompt, tokens, here, score, load):
    model = load()
    model.prompt = PROMPTS.get(prompt, prompt)
    model.set_token_weights(tokens)
    result = score("--prompt", prompt, "--token-weights", tokens)
    assert single_score(result) == pytest.approx(task_spearman(here, model.encode), abs=1e-9)


@pytest.fixture
def with_idf(here, tmp_path, score) -> Path:
    score("--token-weights", f"idf={here / 'lines.txt'}", "--save", tmp_path / "idf")
    return tmp_path / "idf"


def test_the_token_weights_of_a_saved_model_are_kept_unless_others_are_given(with_idf, here, score, load):
    model = load()
    plain = task_spearman(here, model.encode)
    model.set_token_weights("idf", read_sentences(here / "lines.txt"))
    assert (
        single_score(score(model=with_idf))
        == pytest.approx(task_spearman(here, model.encode), abs=1e-9)
        != plain
    )
    assert single_score(score("--token-weights", "uniform", model=with_idf)) == pytest.approx(plain, abs=1e-9)


def test_the_token_weights_no_prompt_fit_the_given_prompt_instead_of_the_saved_one(score, tmp_path):
    score("--prompt", "T0", "--token-weights", "no-prompt", "--save", tmp_path / "T0")
    again = score("--prompt", "T4", model=tmp_path / "T0")
    assert single_score(again) == pytest.approx(
        single_score(score("--prompt", "T4", "--token-weights", "no-prompt"))
    )


# ------------------------------------------------------------------------------------------ post-processing


def test_postprocessing_is_estimated_from_the_scored_sentences_or_from_a_file(here, score, load):
    model, lines = load(), read_sentences(here / "lines.txt")
    for words, texts in (("zscore", task_texts(here)), (f"zscore={here / 'lines.txt'}", lines)):
        expected = task_spearman(here, encode_with(fit_to("zscore", model, texts), model))
        assert single_score(score("--postprocess", words)) == pytest.approx(expected, abs=1e-6)


def test_postprocessing_is_estimated_from_embeddings_with_their_token_weights(here, score, load):
    model = load()
    model.set_token_weights("idf", task_texts(here))
    expected = task_spearman(here, encode_with(fit_to("abtt+normalize", model, task_texts(here)), model))
    assert single_score(score("--token-weights", "idf", "--postprocess", "abtt+normalize")) == pytest.approx(
        expected, abs=1e-6
    )


def test_each_layer_has_its_own_postprocessing(here, score, load):
    result = score("--layer", "all", "--postprocess", "abtt")["layers"]
    assert list(result) == list("01234")
    for layer, scores in result.items():
        model = load(layer=layer)
        expected = task_spearman(here, encode_with(fit_to("abtt", model, task_texts(here)), model))
        assert scores["stsb"]["spearman"] == pytest.approx(expected, abs=1e-6)


def test_random_embeddings_that_need_more_sentences_do_not_stop_the_others(here, score, load):
    """They have 768 dimensions: 80 sentences whiten the 24 of the model, and not those."""
    model = load()
    expected = task_spearman(here, encode_with(fit_to("whiten", model, task_texts(here)), model))
    assert single_score(score("--postprocess", "whiten")) == pytest.approx(expected, abs=1e-6)


def test_a_threshold_is_chosen_for_the_changed_embeddings(tmp_path, here):
    """The threshold of the run was the best one for embeddings without changes."""
    for split, count in (("train", 20), ("dev", 24), ("test", 24)):
        write_pairs(
            tmp_path / f"two/{split}.tsv", count, count + len(split), "01", PLACE.replace("score", "label")
        )
    where = ["--ckpt", str(here / "tiny"), "--output-dir", str(tmp_path), "--run-name", "r", "--layer", "1"]
    how = ["--epochs", "1", "--precision", "fp32", "--task", "mrpc", "--data", str(tmp_path / "two")]
    train.main([*where, *how])
    run, out = str(tmp_path / "r-layer1-seed0"), tmp_path / "scores.json"
    evaluate.main([run, "--postprocess", "center", "--json", str(out)])
    result = json.loads(out.read_text())["layers"]["1"]["mrpc"]

    model, task = SentenceEncoder.from_pretrained(run), get_task("mrpc", data=str(tmp_path / "two"))
    encode = encode_with(fit_to("center", model, read_examples(task, "test").sentences), model)
    expected = EVALUATORS["similarity"](encode, task, lambda split: read_examples(task, split))
    assert result == pytest.approx(expected, abs=1e-6)


# ----------------------------------------------------------------------------------- how often, and from what


def test_each_sentence_is_encoded_once_for_all_layers_and_estimates(here, load, monkeypatch):
    model, seen = load(), []
    embed = model.embed_token_ids

    def counting(token_ids, *how, **more):
        seen.extend(map(tuple, token_ids))
        return embed(token_ids, *how, **more)

    monkeypatch.setattr(model, "embed_token_ids", counting)
    texts = task_texts(here)
    variants = TrainingFreeEncoders(model, [0, 1, 4], TrainingFreeConfig(postprocess="zscore"))
    for _ in range(2):
        encoders = variants.encoders(texts)
        assert list(encoders) == [0, 1, 4]
        for encode in encoders.values():
            encode(texts[:7]), encode(texts)
    assert sorted(seen) == sorted(map(tuple, model.tokenize(list(dict.fromkeys(texts)))))


def test_embeddings_with_other_token_weights_are_computed_again(here, load):
    model, texts = load(), task_texts(here)
    variants = TrainingFreeEncoders(model, [4], TrainingFreeConfig(token_weights="idf"))
    first = variants.encoders(texts)[4](texts[:5])
    second = variants.encoders(texts[:20])[4](texts[:5])
    assert not torch.allclose(first, second)
    model.set_token_weights("idf", texts[:20])
    assert_same_embeddings(second.numpy(), model.encode(texts[:5]))


LINES = "{here}/lines.txt"
TRANSDUCTIVE = [
    (["--token-weights", "idf"], "idf"),
    (["--postprocess", "zscore"], "zscore"),
    (["--token-weights", "idf", "--postprocess", "abtt+normalize"], "idf and abtt+normalize"),
    (["--token-weights", f"idf={LINES}", "--postprocess", "center"], "center"),
    (["--token-weights", "idf", "--postprocess", f"center={LINES}"], "idf"),
    (["--task", "tweet", "--postprocess", "center"], "center"),
    (["--token-weights", f"idf={LINES}", "--postprocess", f"center={LINES}"], ""),
    (["--token-weights", "content-words"], ""),
    (["--postprocess", "normalize"], ""),
    (["--prompt", "T0", "--token-weights", "mask-token"], ""),
    (["--static-from", LINES], ""),
    (["--layer", "1+4"], ""),
    (["--task", "sst2", "--token-weights", "idf"], ""),  # estimated from train, which is not scored
]


@pytest.mark.parametrize(("words", "names"), TRANSDUCTIVE, ids=[" ".join(w) for w, _ in TRANSDUCTIVE])
def test_the_command_says_what_is_estimated_from_the_scored_sentences(words, names, here, score, capsys):
    score(*(word.format(here=here) for word in words))
    printed = [line for line in capsys.readouterr().out.splitlines() if line.endswith("(transductive)")]
    expected = f"{names}: estimated from the sentences that are scored (transductive)"
    assert printed == ([expected] if names else [])


# ------------------------------------------------------------------------------------------------- baseline


@pytest.mark.parametrize(
    "words", [["--isotropy"], ["--layer", "2"], ["--layer", "all"], ["--pooling", "max"]]
)
def test_random_embeddings_are_scored_only_if_something_is_changed(words, score, capsys):
    assert "random" not in score(*words)
    assert "random embeddings" not in capsys.readouterr().out


CHANGES = [  # options of the command, and the same changes of random embeddings
    (["--token-weights", "idf"], {"token_weights": "idf"}),
    (
        ["--token-weights", "content-words", "--postprocess", "zscore"],
        {"token_weights": "content-words", "postprocess": "zscore"},
    ),
    (["--postprocess", "abtt", "--layer", "all"], {"postprocess": "abtt"}),
    (["--prompt", "T4"], {}),
    (["--prompt", "T0", "--token-weights", "mask-token"], {}),  # uniform without a prompt
    (["--layer", "word"], {}),
]


@pytest.mark.parametrize(("words", "changes"), CHANGES, ids=[" ".join(words) for words, _ in CHANGES])
def test_random_embeddings_are_the_mean_of_three_models_with_the_same_changes(
    words, changes, here, score, load, capsys
):
    values, texts = [], task_texts(here)
    token_weights = changes.get("token_weights", "uniform")
    for seed in range(3):
        model = random_static_model(load(), seed=seed)
        model.set_token_weights(token_weights, texts if token_weights == "idf" else None)
        modules = fit_to(changes["postprocess"], model, texts) if "postprocess" in changes else []
        values.append(task_spearman(here, encode_with(modules, model)))
    result = score(*words)["random"]["stsb"]
    assert result == pytest.approx(np.mean(values), abs=1e-6)
    assert f"random embeddings with the same options: stsb {100 * result:.2f}\n" in capsys.readouterr().out


def test_random_embeddings_ignore_special_tokens(load):
    model = load()
    one = random_static_model(model, dimensions=16, seed=5)
    ids = model.tokenizer.backend.encode("the cat", add_special_tokens=False).ids
    expected = random_word_vectors(model.encoder.config.vocab_size, 16, seed=5)[ids].mean(0)
    np.testing.assert_allclose(one.encode(["the cat"])[0], expected.numpy(), atol=1e-6)


# ------------------------------------------------------------------------------- static models, interpolation


@pytest.fixture
def static(here, tmp_path, score) -> Path:
    """The saved static model of the mean vectors of layers 1 and 4."""
    score("--layer", "1+4", "--static-from", here / "lines.txt", "--save", tmp_path / "static")
    return tmp_path / "static"


def test_a_saved_static_model_has_the_same_score(static, here, score, load):
    model = static_model_from_text(load(layer="1+4"), read_sentences(here / "lines.txt"))
    expected = single_score(score("--layer", "1+4", "--static-from", here / "lines.txt"))
    assert expected == pytest.approx(task_spearman(here, model.encode), abs=1e-9)
    assert single_score(score(model=static)) == pytest.approx(expected, abs=1e-9)
    assert_same_embeddings(SentenceEncoder.from_pretrained(static).encode(WORDS), model.encode(WORDS))


def test_a_mean_vector_is_over_all_occurrences_of_its_word(here, load):
    """The vectors of dog in two of the lines, with the special tokens of these sentences."""
    model, lines = load(), ["the dog eats", "a dog in the park", "music"]
    vectors = []
    for line in lines[:2]:
        ids = torch.tensor(model.tokenize([line]))
        hidden = model.encoder(ids, torch.ones_like(ids))[0]
        position = model.tokenizer.backend.encode(line).tokens.index("dog")
        vectors.append(hidden[position])
    expected = torch.stack(vectors).mean(0).detach().numpy()
    np.testing.assert_allclose(static_model_from_text(model, lines).encode(["dog"])[0], expected, atol=1e-5)


def test_an_error_leaves_a_training_model_in_training_mode(load, monkeypatch):
    model = load().train()
    monkeypatch.setattr(model.encoder, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        static_model_from_text(model, ["music"])
    assert model.training


def test_weight_0_is_the_model_and_weight_1_the_static_model(static, here, score, load):
    result = score("--layer", "2", "--interpolate", static, "0", "-0.25", "0.5", "1")
    by_weight = {float(weight): scores["stsb"]["spearman"] for weight, scores in result["weights"].items()}
    assert list(by_weight) == [0.0, -0.25, 0.5, 1.0] and "layers" not in result
    assert by_weight[0.0] == pytest.approx(single_score(score("--layer", "2")), abs=1e-9)
    assert by_weight[1.0] == pytest.approx(single_score(score(model=static)), abs=1e-9)
    u, v = load(layer=2), SentenceEncoder.from_pretrained(static)
    for weight in (-0.25, 0.5):
        interpolated = lambda column, w=weight: (1 - w) * u.encode(column) + w * v.encode(column)  # noqa: E731
        assert by_weight[weight] == pytest.approx(task_spearman(here, interpolated), abs=1e-6)


def test_both_models_have_the_token_weights_and_postprocessing_is_fitted_to_the_interpolation(
    static, here, score, load
):
    u, v, texts = load(), SentenceEncoder.from_pretrained(static), task_texts(here)
    for side in (u, v):
        side.set_token_weights("idf", texts)
    interpolated = interpolate(
        lambda c: u.embed_token_ids(u.tokenize(c)), lambda c: v.embed_token_ids(v.tokenize(c)), 0.25
    )
    modules = nn.Sequential(*fit_postprocessing("zscore", interpolated(texts)))
    expected = task_spearman(here, lambda column: modules(interpolated(column)).detach())
    result = score("--interpolate", static, "0.25", "--token-weights", "idf", "--postprocess", "zscore")
    assert single_score(result, kind="weights") == pytest.approx(expected, abs=1e-6)


def test_models_of_different_width_are_an_error_of_one_line(here, score, load, tmp_path):
    random_static_model(load(), dimensions=16).save_pretrained(tmp_path / "narrow")
    with pytest.raises(InputError) as error:
        score("--interpolate", tmp_path / "narrow", "0.5")
    widths = f"--interpolate: {tmp_path / 'narrow'} has 16 dimensions, the model 24"
    assert error.value.as_cli_message() == f"{widths}: choose a static model with as many dimensions"


# --------------------------------------------------------------------------------------------------- saving


def test_a_saved_model_has_the_same_score(here, score, tmp_path):
    lines = here / "lines.txt"
    how = ["--layer", "1+4", "--token-weights", f"idf={lines}", "--postprocess", f"whiten={lines}"]
    unsaved = score(*how, "--save", tmp_path / "saved")
    assert single_score(score(model=tmp_path / "saved")) == pytest.approx(single_score(unsaved), abs=1e-6)


@pytest.mark.slow
def test_a_saved_model_has_equal_embeddings_in_sentence_transformers(here, score, tmp_path):
    from sentence_transformers import SentenceTransformer

    lines = here / "lines.txt"
    options = ["--layer", "2", "--token-weights", f"idf={lines}", "--postprocess", f"zscore={lines}"]
    score(
        *options,
        "--save",
        tmp_path / "saved",
    )
    expected = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(task_texts(here))
    model = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert_same_embeddings(model.encode(task_texts(here)), expected, 1e-5)


def test_postprocessing_that_cannot_be_saved_is_an_error_of_one_line_and_nothing_is_written(score, tmp_path):
    with pytest.raises(InputError) as error:
        score("--postprocess", "quantile", "--save", tmp_path / "saved")
    message = error.value.as_cli_message()
    assert message.startswith("--postprocess quantile cannot be saved with a model") and "\n" not in message
    assert not (tmp_path / "saved").exists()


MANY = [
    (["--task", "stsb", "sickr", "--token-weights", "idf"], "two tasks, each with weights of its own"),
    (["--task", "stsb", "sickr", "--postprocess", "center"], "two tasks, each with a mean of its own"),
    (["--interpolate", "{here}/tiny", "0.5"], "a mix is of two models"),
]


@pytest.mark.parametrize("words", [words for words, _ in MANY], ids=[why for _, why in MANY])
def test_variants_that_are_not_one_model_are_not_saved(words, here, score, tmp_path):
    with pytest.raises(InputError) as error:
        score(*(word.format(here=here) for word in words), "--save", tmp_path / "saved")
    assert "--save" in error.value.as_cli_message() and not (tmp_path / "saved").exists()


@pytest.mark.slow
def test_an_error_of_the_command_is_one_line_on_stderr(here):
    data = str(here / "data/stsb")
    answer = command("evaluate.py", str(here / "tiny"), "--data", data, "--token-weights", "mask-token")
    assert answer.returncode == 2
    message = "--token-weights mask-token: the --prompt has no [M]: choose one such as T4"
    assert answer.stderr == f"evaluate.py: {message}\n"
