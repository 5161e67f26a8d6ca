"""Recommendation: the best row of the grid on dev, and the printed command makes its model."""

import math
import re
import shlex
from pathlib import Path

import pytest
import torch
from by_hand import change, random_pairs, random_sentences, write_examples
from conftest import store_weights, stored_weights, tiny_model

import evaluate
from tmft import InputError, SentenceEncoder
from tmft.cli import recommend_command as command
from tmft.cli.recommend_command import MIN_GAIN, recommend
from tmft.data import Examples, read_examples
from tmft.datasets.task_lookup import get_task
from tmft.embedding.prompts import PROMPTS
from tmft.evaluation.evaluators import evaluate_similarity
from tmft.io.text import read_sentences
from tmft.tasks import Task
from tmft.training_free.grid import GridResults, run_grid
from tmft.training_free.variants import Variant


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    """tiny: a model; pairs: dev and test; own.txt: the user's sentences."""
    folder = tmp_path_factory.mktemp("recommend")
    tiny_model(max_position_embeddings=128).save_pretrained(folder / "tiny")
    head = {"generator_predictions.dense.bias": torch.zeros(24)}  # so that prompts are scored
    store_weights(folder / "tiny", stored_weights(folder / "tiny") | head)
    for seed, (split, count) in enumerate({"dev": 30, "test": 20}.items()):
        write_examples(folder / f"pairs/{split}.tsv", random_pairs(count, 2 * seed))
    (folder / "own.txt").write_text("\n".join(random_sentences(60, 9)) + "\n")
    return folder


@pytest.fixture(scope="module")
def task(here) -> Task:
    return get_task("stsb", data=str(here / "pairs"))


@pytest.fixture(scope="module")
def dev(task) -> Examples:
    return read_examples(task, "dev")


@pytest.fixture(scope="module")
def user_sentences(here) -> list[str]:
    return read_sentences(here / "own.txt")


@pytest.fixture(scope="module")
def results(here, user_sentences, task, dev) -> GridResults:
    model = SentenceEncoder.from_pretrained(here / "tiny")
    return run_grid(model, {"stsb": task}, {"stsb": lambda split: dev}, own_sentences=user_sentences)


# ---------------------------------------------------------------------------------------------- the scores


VARIANTS = [
    Variant("4", "uniform", ""),
    Variant("4", "idf", "zscore"),
    Variant("1+4", "uniform", "center"),
    Variant("word", "content-words", "abtt"),
    Variant("T0", "mask-token", "zscore"),
    Variant("T4", "no-prompt", ""),
    Variant("T0", "idf", "whiten"),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_variant_is_fitted_to_the_users_sentences_and_scored_on_the_labeled_pairs(
    variant, here, results, user_sentences, task, dev
):
    prompt = PROMPTS.get(variant.source, "")
    model = SentenceEncoder.from_pretrained(here / "tiny", layer="4" if prompt else variant.source)
    model.prompt = prompt
    token_texts = user_sentences if variant.token_weights == "idf" else None
    encode = change(model, variant.token_weights, token_texts, variant.postprocess, user_sentences)
    expected = evaluate_similarity(encode, task, lambda _: dev)["spearman"]
    assert results.scores[variant] == {("stsb", "dev"): pytest.approx(expected, abs=1e-6)}


# --------------------------------------------------------------------------------------------------- the text


def text_for(*scores: float, random: float = -1.0) -> str:
    """The text if the unchanged model has the first of these scores, and two variants have the others."""
    variants = [Variant("4", "uniform", ""), Variant("4", "idf", ""), Variant("word", "idf", "zscore")]
    results = GridResults({"similarity": ["a"]}, ["word", "4", "random"], ["word", "4"])
    pairs = [*zip(variants[: len(scores)], scores, strict=True), (Variant("random", "idf", ""), random)]
    results.scores = {variant: {("a", "dev"): score} for variant, score in pairs}
    results.scores[Variant("4", "uniform", "quantile")] = {("a", "dev"): 0.99}  # cannot be saved
    return recommend(results, ["M"], Path("own.txt"))


def test_the_best_variant_is_recommended_with_both_scores():
    text = text_for(0.5, 0.6, 0.7)
    assert "\n\nUse word + idf + zscore: 70.00 instead of 50.00 unchanged. To save" in text
    assert "Random embeddings" not in text
    assert [re.split("  +", line.strip()) for line in text.splitlines()[1:4]] == [
        ["word + idf + zscore", "70.00", "best"],
        ["4", "50.00", "unchanged"],
        ["random + idf", "-100.00", "random embeddings, their best"],
    ]


@pytest.mark.parametrize(("gain", "keep"), [(0.0, True), (0.9 * MIN_GAIN, True), (1.1 * MIN_GAIN, False)])
def test_the_model_stays_unchanged_if_the_gain_is_small(gain, keep):
    text = text_for(0.5, 0.5 + gain)
    assert ("\n\nKeep the model unchanged: the best variant has 5" in text) == keep
    assert ("evaluate.py" in text) != keep


@pytest.mark.parametrize(("random", "mentioned"), [(0.7, True), (0.71, True), (0.69, False)])
def test_random_embeddings_that_are_as_good_are_mentioned(random, mentioned):
    assert ("Random embeddings are as good" in text_for(0.5, 0.6, 0.7, random=random)) == mentioned


def test_random_embeddings_are_never_recommended():
    assert "\n\nUse 4 + idf" in text_for(0.5, 0.6, random=0.9)


def test_an_undefined_score_is_not_the_best():
    assert "\n\nUse word + idf + zscore" in text_for(0.5, math.nan, 0.7)
    with pytest.raises(InputError, match="^M has no score without changes .all embeddings are equal.: check"):
        text_for(math.nan, 0.6, 0.7)


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def printed(here, capsys, monkeypatch, tmp_path):
    """The arguments of the command that is printed if this variant is the best; it runs in tmp_path."""
    monkeypatch.chdir(tmp_path)

    def printed(variant: Variant, model: Path = here / "tiny", *more: str) -> tuple[list[str], float]:
        scores = {}

        def favor_variant(*args, **keywords):
            results = run_grid(*args, **keywords)
            scores[variant] = results.scores[variant]["stsb", "dev"]
            results.scores[variant]["stsb", "dev"] = 1.0
            results.scores[results.baseline]["stsb", "dev"] = 0.5
            return results

        monkeypatch.setattr(command, "run_grid", favor_variant)
        command.main([str(model), str(here / "own.txt"), "--data", str(here / "pairs"), *more])
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "evaluate.py" in line)
        python, script, *words = shlex.split(line)
        assert (python, script) == ("python", "evaluate.py")
        return words, scores[variant]

    return printed


def dev_score(task: Task, dev: Examples) -> float:
    model = SentenceEncoder.from_pretrained("recommended")
    encode = lambda column: torch.from_numpy(model.encode(column))  # noqa: E731
    return evaluate_similarity(encode, task, lambda _: dev)["spearman"]


@pytest.mark.parametrize("variant", VARIANTS[1:], ids=lambda variant: variant.name)
def test_the_command_saves_a_model_with_the_score_of_the_table(variant, printed, here, task, dev):
    words, score = printed(variant)
    data = [] if "--data" in words else ["--data", str(here / "pairs")]
    evaluate.main([*words, *data])
    assert dev_score(task, dev) == pytest.approx(score, abs=1e-6)


def test_the_command_runs_without_data_that_was_not_given(printed, task, dev, monkeypatch):
    """It scores the pairs that the recommendation is based on; no others have to be at hand."""

    def absent(*_):
        raise InputError("data of the task are absent")

    words, score = printed(Variant("4", "idf", "zscore"))
    monkeypatch.setattr("tmft.datasets.task_lookup.download_dataset", absent)
    evaluate.main(words)
    assert dev_score(task, dev) == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "max"])
def test_the_command_pools_as_the_recommendation_did_whatever_was_saved(
    pooling, printed, here, task, dev, tmp_path
):
    SentenceEncoder.from_pretrained(here / "tiny", pooling=pooling).save_pretrained(tmp_path / "pooled")
    words, score = printed(Variant("1+4", "uniform", "center"), tmp_path / "pooled")
    data = [] if "--data" in words else ["--data", str(here / "pairs")]
    evaluate.main([*words, *data])
    assert dev_score(task, dev) == pytest.approx(score, abs=1e-6)


def test_the_command_has_the_options_that_the_recommendation_depends_on(printed, here, task, dev):
    variant = Variant("T4", "mask-token", "zscore")  # T4 takes 70 tokens
    words, score = printed(variant, here / "tiny", "--max-length", "74")
    data = [] if "--data" in words else ["--data", str(here / "pairs")]
    evaluate.main([*words, *data])
    assert dev_score(task, dev) == pytest.approx(score, abs=1e-6)


def test_a_recommendation_needs_pairs_with_scores(here, tmp_path):
    (tmp_path / "test.tsv").write_text("text\tlabel\na cat\tx\na dog\ty\n")
    words = [str(here / "own.txt"), "--task", "tweet", "--data", str(tmp_path)]
    with pytest.raises(InputError) as error:
        command.main([str(here / "tiny"), *words])
    assert error.value.as_cli_message().startswith("--task tweet: choose one task with similarity scores")


def test_a_recommendation_reads_no_test_data(here, tmp_path, capsys):
    (tmp_path / "dev.tsv").write_text((here / "pairs/dev.tsv").read_text())
    command.main([str(here / "tiny"), str(here / "own.txt"), "--data", str(tmp_path)])
    assert "60 sentences of" in capsys.readouterr().out
