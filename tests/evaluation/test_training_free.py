"""Treated embeddings: each score is that of a model treated by hand, learnt where it is said."""

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
from tmft.evaluation.training_free import TrainingFreeEncoders, TrainingFreeConfig, static_model_from_text, interpolate, random_static_model
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
    folder = tmp_path_factory.mktemp("treated")
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
    """What evaluate.py writes about the tiny model, or another, with these options."""

    def score(*words, model: Path = here / "tiny") -> dict:
        evaluate.main(
            [str(model), "--data-root", str(here / "data"), *map(str, words), "--json", str(tmp_path / "j")]
        )
        return json.loads((tmp_path / "j").read_text())

    return score


@pytest.fixture
def load(here):
    """The tiny model, on which the fixtures of a test may be tried by hand."""
    return lambda **how: SentenceEncoder.from_pretrained(here / "tiny", **how)


def texts_of(here: Path, name: str = "stsb", split: str = "test") -> list[str]:
    return read_examples(get_task(name, data_root=str(here / "data")), split).sentences


def by_hand(here: Path, encode, name: str = "stsb", split: str = "test") -> float:
    """Spearman of the cosines of encode's embeddings."""
    examples = read_examples(get_task(name, data_root=str(here / "data")), split)
    u, v = (torch.as_tensor(encode(column)) for column in examples.texts)
    return spearman(cosines(u, v), examples.labels)


def after(modules: list[nn.Module], model: SentenceEncoder):
    """encode of a model with modules behind it."""

    @torch.no_grad()
    def encode(column: list[str]) -> Tensor:
        return nn.Sequential(*modules)(model.embed_token_ids(model.tokenize(column)))

    return encode


def learnt_on(names: str, model: SentenceEncoder, texts: list[str]) -> list[nn.Module]:
    return fit_postprocessing(names, model.embed_token_ids(model.tokenize(texts)))


def only(result: dict, name: str = "stsb", kind: str = "layers") -> float:
    (scores,) = result[kind].values()
    return scores[name]["spearman"]


# ---------------------------------------------------------------------------------------- layers and tokens


def test_without_options_a_score_is_that_of_the_plain_embeddings(here, score, load, capsys):
    result = score()
    assert list(result["layers"]) == ["4"] and "random" not in result
    assert only(result) == pytest.approx(by_hand(here, load().encode), abs=1e-9)
    printed = capsys.readouterr().out
    assert "random" not in printed and "transductive" not in printed


@pytest.mark.parametrize("layer", ["1+3", "0+2+4", "word", "3", "0"])
def test_a_layer_or_a_mix_scores_as_the_model_that_is_loaded_with_it(layer, here, score, load):
    assert only(score("--layer", layer)) == pytest.approx(by_hand(here, load(layer=layer).encode), abs=1e-9)


def test_idf_is_learnt_anew_on_the_scored_sentences_of_each_task(here, score, load):
    (found,) = score("--task", "stsb", "sickr", "--token-weights", "idf")["layers"].values()
    for name in ("stsb", "sickr"):
        model = load()
        model.set_token_weights("idf", texts_of(here, name))
        assert found[name]["spearman"] == pytest.approx(by_hand(here, model.encode, name), abs=1e-9)
        (alone,) = score("--task", name, "--token-weights", "idf")["layers"].values()
        assert alone[name] == found[name]


@pytest.mark.parametrize("tokens", ["idf", "content-words"])
def test_weights_of_a_file_are_learnt_on_its_lines(tokens, here, score, load):
    model = load()
    model.set_token_weights(tokens, read_sentences(here / "lines.txt"))
    result = score("--token-weights", f"{tokens}={here / 'lines.txt'}")
    assert only(result) == pytest.approx(by_hand(here, model.encode), abs=1e-9)


@pytest.mark.parametrize("tokens", ["no-special", "content-words", "uniform"])
def test_weights_that_need_no_text_are_those_of_the_vocabulary(tokens, here, score, load):
    model = load()
    model.set_token_weights(tokens)
    assert only(score("--token-weights", tokens)) == pytest.approx(by_hand(here, model.encode), abs=1e-9)


@pytest.mark.parametrize(("prompt", "tokens"), [("T0", "mask-token"), ("T4", "no-prompt"), ('so "[X]"!', "uniform")])
def test_a_prompt_stands_around_each_sentence(prompt, tokens, here, score, load):
    model = load()
    model.prompt = PROMPTS.get(prompt, prompt)
    model.set_token_weights(tokens)
    result = score("--prompt", prompt, "--token-weights", tokens)
    assert only(result) == pytest.approx(by_hand(here, model.encode), abs=1e-9)


@pytest.fixture
def with_idf(here, tmp_path, score) -> Path:
    score("--token-weights", f"idf={here / 'lines.txt'}", "--save", tmp_path / "idf")
    return tmp_path / "idf"


def test_the_weights_of_a_saved_model_are_kept_unless_others_are_asked_for(with_idf, here, score, load):
    model = load()
    plain = by_hand(here, model.encode)
    model.set_token_weights("idf", read_sentences(here / "lines.txt"))
    assert only(score(model=with_idf)) == pytest.approx(by_hand(here, model.encode), abs=1e-9) != plain
    assert only(score("--token-weights", "uniform", model=with_idf)) == pytest.approx(plain, abs=1e-9)


def test_weights_by_place_fit_the_prompt_that_is_asked_for_instead_of_the_saved_one(score, tmp_path):
    score("--prompt", "T0", "--token-weights", "no-prompt", "--save", tmp_path / "T0")
    again = score("--prompt", "T4", model=tmp_path / "T0")
    assert only(again) == pytest.approx(only(score("--prompt", "T4", "--token-weights", "no-prompt")))


# ------------------------------------------------------------------------------------------ post-processing


def test_what_follows_is_learnt_on_the_scored_sentences_or_on_a_file(here, score, load):
    model, lines = load(), read_sentences(here / "lines.txt")
    for words, texts in (("zscore", texts_of(here)), (f"zscore={here / 'lines.txt'}", lines)):
        expected = by_hand(here, after(learnt_on("zscore", model, texts), model))
        assert only(score("--postprocess", words)) == pytest.approx(expected, abs=1e-6)


def test_what_follows_is_learnt_from_embeddings_with_the_weights_of_their_tokens(here, score, load):
    model = load()
    model.set_token_weights("idf", texts_of(here))
    expected = by_hand(here, after(learnt_on("abtt+normalize", model, texts_of(here)), model))
    assert only(score("--token-weights", "idf", "--postprocess", "abtt+normalize")) == pytest.approx(expected, abs=1e-6)


def test_each_layer_learns_its_own_post_processing(here, score, load):
    result = score("--layer", "all", "--postprocess", "abtt")["layers"]
    assert list(result) == list("01234")
    for layer, scores in result.items():
        model = load(layer=layer)
        expected = by_hand(here, after(learnt_on("abtt", model, texts_of(here)), model))
        assert scores["stsb"]["spearman"] == pytest.approx(expected, abs=1e-6)


def test_random_embeddings_that_cannot_be_treated_alike_do_not_stop_the_others(here, score, load):
    """They have 768 dimensions: 80 sentences whiten the 24 of the model, and not those."""
    model = load()
    expected = by_hand(here, after(learnt_on("whiten", model, texts_of(here)), model))
    assert only(score("--postprocess", "whiten")) == pytest.approx(expected, abs=1e-6)


def test_a_threshold_is_looked_for_among_treated_embeddings(tmp_path, here):
    """That of the run was the best for embeddings as it left them."""
    for split, count in (("train", 20), ("dev", 24), ("test", 24)):
        write_pairs(
            tmp_path / f"two/{split}.tsv", count, count + len(split), "01", PLACE.replace("score", "label")
        )
    where = ["--ckpt", str(here / "tiny"), "--output-dir", str(tmp_path), "--run-name", "r", "--layer", "1"]
    how = ["--epochs", "1", "--precision", "fp32", "--task", "mrpc", "--data", str(tmp_path / "two")]
    train.main([*where, *how])
    run, out = str(tmp_path / "r-layer1-seed0"), tmp_path / "scores.json"
    evaluate.main([run, "--postprocess", "center", "--json", str(out)])
    found = json.loads(out.read_text())["layers"]["1"]["mrpc"]

    model, task = SentenceEncoder.from_pretrained(run), get_task("mrpc", data=str(tmp_path / "two"))
    encode = after(learnt_on("center", model, read_examples(task, "test").sentences), model)
    expected = EVALUATORS["similarity"](encode, task, lambda split: read_examples(task, split))
    assert found == pytest.approx(expected, abs=1e-6)


# ------------------------------------------------------------------------------------- how often, and where


def test_each_sentence_is_encoded_once_for_all_layers_and_what_is_learnt(here, load, monkeypatch):
    model, seen = load(), []
    embed = model.embed_token_ids

    def counting(token_ids, *how, **more):
        seen.extend(map(tuple, token_ids))
        return embed(token_ids, *how, **more)

    monkeypatch.setattr(model, "embed_token_ids", counting)
    texts = texts_of(here)
    treated = TrainingFreeEncoders(model, [0, 1, 4], TrainingFreeConfig(after="zscore"))
    for _ in range(2):
        encoders = treated.encoders(texts)
        assert list(encoders) == [0, 1, 4]
        for encode in encoders.values():
            encode(texts[:7]), encode(texts)
    assert sorted(seen) == sorted(map(tuple, model.tokenize(list(dict.fromkeys(texts)))))


def test_embeddings_with_other_weights_are_encoded_anew(here, load):
    model, texts = load(), texts_of(here)
    treated = TrainingFreeEncoders(model, [4], TrainingFreeConfig(tokens="idf"))
    first = treated.encoders(texts)[4](texts[:5])
    second = treated.encoders(texts[:20])[4](texts[:5])
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
    (["--token-weights", "content-words-words"], ""),
    (["--postprocess", "normalize"], ""),
    (["--prompt", "T0", "--token-weights", "mask-token-token"], ""),
    (["--static-from", LINES], ""),
    (["--layer", "1+4"], ""),
    (["--task", "sst2", "--token-weights", "idf"], ""),  # learnt on the sentences that the classifier learns from
]


@pytest.mark.parametrize(("words", "what"), TRANSDUCTIVE, ids=[" ".join(w) for w, _ in TRANSDUCTIVE])
def test_transductive_is_said_where_something_is_learnt_on_the_scored_sentences(
    words, what, here, score, capsys
):
    score(*(word.format(here=here) for word in words))
    said = [line for line in capsys.readouterr().out.splitlines() if line.endswith("(transductive)")]
    wanted = f"{what}: learnt on the sentences that are scored (transductive)"
    assert said == ([wanted] if what else [])


# ------------------------------------------------------------------------------------------------- baseline


@pytest.mark.parametrize(
    "words", [["--isotropy"], ["--layer", "2"], ["--layer", "all"], ["--pooling", "max"]]
)
def test_no_random_embeddings_stand_beside_what_is_not_treated(words, score, capsys):
    assert "random" not in score(*words)
    assert "random embeddings" not in capsys.readouterr().out


BESIDE = [
    (["--token-weights", "idf"], {"tokens": "idf"}),
    (["--token-weights", "content-words-words", "--postprocess", "zscore"], {"tokens": "content-words", "after": "zscore"}),
    (["--postprocess", "abtt", "--layer", "all"], {"after": "abtt"}),
    (["--prompt", "T4"], {}),
    (["--prompt", "T0", "--token-weights", "mask-token-token"], {}),  # without a prompt all tokens weigh alike
    (["--layer", "word"], {}),
]


@pytest.mark.parametrize(("words", "alike"), BESIDE, ids=[" ".join(words) for words, _ in BESIDE])
def test_the_mean_of_three_random_tables_treated_alike_stands_beside_a_treated_score(
    words, alike, here, score, load, capsys
):
    values, texts = [], texts_of(here)
    for seed in range(3):
        model = random_static_model(load(), seed=seed)
        model.set_token_weights(alike.get("tokens", "uniform"), texts if alike.get("tokens") == "idf" else None)
        modules = learnt_on(alike["after"], model, texts) if "after" in alike else []
        values.append(by_hand(here, after(modules, model)))
    found = score(*words)["random"]["stsb"]
    assert found == pytest.approx(np.mean(values), abs=1e-6)
    assert f"random embeddings, treated alike: stsb {100 * found:.2f}\n" in capsys.readouterr().out


def test_random_embeddings_know_their_words_and_no_special_tokens(load):
    model = load()
    one = random_static_model(model, dimensions=16, seed=5)
    ids = model.tokenizer.backend.encode("the cat", add_special_tokens=False).ids
    expected = random_word_vectors(model.encoder.config.vocab_size, 16, seed=5)[ids].mean(0)
    np.testing.assert_allclose(one.encode(["the cat"])[0], expected.numpy(), atol=1e-6)


# ---------------------------------------------------------------------------------- static models and mixes


@pytest.fixture
def static(here, tmp_path, score) -> Path:
    """The saved static model of the mean vectors of layers 1 and 4."""
    score("--layer", "1+4", "--static-from", here / "lines.txt", "--save", tmp_path / "static")
    return tmp_path / "static"


def test_the_static_model_of_mean_vectors_is_saved_and_scores_the_same(static, here, score, load):
    model = static_model_from_text(load(layer="1+4"), read_sentences(here / "lines.txt"))
    asked = only(score("--layer", "1+4", "--static-from", here / "lines.txt"))
    assert asked == pytest.approx(by_hand(here, model.encode), abs=1e-9)
    assert only(score(model=static)) == pytest.approx(asked, abs=1e-9)
    assert_same_embeddings(SentenceEncoder.from_pretrained(static).encode(WORDS), model.encode(WORDS))


def test_a_mean_vector_is_over_all_places_of_its_word(here, load):
    """In the lines: the vectors of dog in two of them, special tokens of its own sentences beside it."""
    model, lines = load(), ["the dog eats", "a dog in the park", "music"]
    vectors = []
    for line in lines[:2]:
        ids = torch.tensor(model.tokenize([line]))
        hidden = model.encoder(ids, torch.ones_like(ids))[0]
        place = model.tokenizer.backend.encode(line).tokens.index("dog")
        vectors.append(hidden[place])
    expected = torch.stack(vectors).mean(0).detach().numpy()
    np.testing.assert_allclose(static_model_from_text(model, lines).encode(["dog"])[0], expected, atol=1e-5)


def test_a_mix_of_0_is_the_model_and_of_1_the_static_model(static, here, score, load):
    result = score("--layer", "2", "--interpolate", static, "0", "-0.25", "0.5", "1")
    shares = {float(share): scores["stsb"]["spearman"] for share, scores in result["shares"].items()}
    assert list(shares) == [0.0, -0.25, 0.5, 1.0] and "layers" not in result
    assert shares[0.0] == pytest.approx(only(score("--layer", "2")), abs=1e-9)
    assert shares[1.0] == pytest.approx(only(score(model=static)), abs=1e-9)
    u, v = load(layer=2), SentenceEncoder.from_pretrained(static)
    for share in (-0.25, 0.5):
        both = lambda column, w=share: (1 - w) * u.encode(column) + w * v.encode(column)  # noqa: E731
        assert shares[share] == pytest.approx(by_hand(here, both), abs=1e-6)


def test_several_shares_have_a_line_each(static, score, capsys):
    score("--interpolate", static, "0.5", "-0.25")
    table = capsys.readouterr().out.split("\n\n")[-3].splitlines()
    assert [line.split()[0] for line in table] == ["share", "0.5", "-0.25"]


def test_a_mix_without_a_share_is_of_halves(static, score):
    assert list(score("--interpolate", static)["shares"]) == ["0.5"]


def test_a_mix_with_a_model_of_layers_takes_its_embeddings(here, score, load, tmp_path):
    load(layer=3).save_pretrained(tmp_path / "three")
    share_1 = only(score("--interpolate", tmp_path / "three", "1"), kind="shares")
    assert share_1 == pytest.approx(only(score(model=tmp_path / "three")), abs=1e-9)


def test_both_sides_of_a_mix_weigh_their_tokens_and_what_follows_is_learnt_from_the_mix(
    static, here, score, load
):
    u, v, texts = load(), SentenceEncoder.from_pretrained(static), texts_of(here)
    for side in (u, v):
        side.set_token_weights("idf", texts)
    mixed = interpolate(lambda c: u.embed_token_ids(u.tokenize(c)), lambda c: v.embed_token_ids(v.tokenize(c)), 0.25)
    modules = nn.Sequential(*fit_postprocessing("zscore", mixed(texts)))
    expected = by_hand(here, lambda column: modules(mixed(column)).detach())
    result = score("--interpolate", static, "0.25", "--token-weights", "idf", "--postprocess", "zscore")
    assert only(result, kind="shares") == pytest.approx(expected, abs=1e-6)


def test_a_mix_of_two_widths_is_refused_in_one_line(here, score, load, tmp_path):
    random_static_model(load(), dimensions=16).save_pretrained(tmp_path / "narrow")
    with pytest.raises(InputError) as error:
        score("--interpolate", tmp_path / "narrow", "0.5")
    said = error.value.as_cli_message()
    widths = f"--interpolate: {tmp_path / 'narrow'} has 16 dimensions, the model 24"
    assert said == f"{widths}: choose a static model of this width"


# --------------------------------------------------------------------------------------------------- saving


def test_a_treated_model_that_is_saved_scores_the_same(here, score, tmp_path):
    lines = here / "lines.txt"
    how = ["--layer", "1+4", "--token-weights", f"idf={lines}", "--postprocess", f"whiten={lines}"]
    treated = score(*how, "--save", tmp_path / "saved")
    assert only(score(model=tmp_path / "saved")) == pytest.approx(only(treated), abs=1e-6)


@pytest.mark.slow
def test_a_treated_model_opens_in_sentence_transformers_with_equal_embeddings(here, score, tmp_path):
    from sentence_transformers import SentenceTransformer

    lines = here / "lines.txt"
    score(
        "--layer", "2", "--token-weights", f"idf={lines}", "--postprocess", f"zscore={lines}", "--save", tmp_path / "saved"
    )
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(texts_of(here))
    assert_same_embeddings(
        SentenceEncoder.from_pretrained(tmp_path / "saved").encode(texts_of(here)), theirs, 1e-5
    )


def test_what_is_learnt_on_the_scored_sentences_is_saved_with_the_model(here, score, tmp_path):
    treated = score("--token-weights", "idf", "--postprocess", "center", "--save", tmp_path / "saved")
    assert only(score(model=tmp_path / "saved")) == pytest.approx(only(treated), abs=1e-6)


def test_a_treatment_that_cannot_be_saved_is_refused_in_one_line_and_nothing_is_written(score, tmp_path):
    with pytest.raises(InputError) as error:
        score("--postprocess", "quantile", "--save", tmp_path / "saved")
    said = error.value.as_cli_message()
    assert said.startswith("--postprocess quantile cannot be saved with a model") and "\n" not in said
    assert not (tmp_path / "saved").exists()


MANY = [
    (["--task", "stsb", "sickr", "--token-weights", "idf"], "two tasks, each with weights of its own"),
    (["--task", "stsb", "sickr", "--postprocess", "center"], "two tasks, each with a mean of its own"),
    (["--interpolate", "{here}/tiny", "0.5"], "a mix is of two models"),
]


@pytest.mark.parametrize("words", [words for words, _ in MANY], ids=[why for _, why in MANY])
def test_what_is_not_one_model_is_not_saved(words, here, score, tmp_path):
    with pytest.raises(InputError) as error:
        score(*(word.format(here=here) for word in words), "--save", tmp_path / "saved")
    assert "--save" in error.value.as_cli_message() and not (tmp_path / "saved").exists()


@pytest.mark.slow
def test_a_mistake_of_a_treatment_is_one_line_on_stderr(here):
    answer = command("evaluate.py", str(here / "tiny"), "--data", str(here / "data/stsb"), "--token-weights", "mask-token-token")
    assert answer.returncode == 2
    assert answer.stderr == "evaluate.py: --token-weights mask-token: the --prompt has no [M], choose one such as T4\n"
