"""Advice: the best treatment is told with its figures, and the command that is printed makes it."""

import random
import shlex
from pathlib import Path

import pytest
import torch
from conftest import store_weights, stored_weights, tiny_model
from torch import nn

import evaluate
from tmft import InputError, SentenceEncoder
from tmft.data import Examples, read_examples
from tmft.tasks import Task
from tmft.datasets.task_lookup import get_task, read_sentences
from tmft.embedding.postprocessing import fit_postprocessing
from tmft.embedding.prompts import PROMPTS
from tmft.evaluation.evaluators import evaluate_similarity
from tmft.evaluation.grid import Variant
from tmft.evaluation.isotropy import iso_score, mean_cosine
from tmft.evaluation.recommend import MAX_SHOWN, MIN_GAIN, VariantScore, advice, score_variants

WORDS = "a the man woman dog cat plays eats guitar music is not in park two".split()


def sentences(count: int, seed: int) -> list[str]:
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(2, 7))) for _ in range(count)]


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    """tiny: a model; pairs: dev and test; own.txt: the user's sentences."""
    folder = tmp_path_factory.mktemp("advice")
    tiny_model(max_position_embeddings=128).save_pretrained(folder / "tiny")
    head = {"generator_predictions.dense.bias": torch.zeros(24)}  # which makes it worth asking in prompts
    store_weights(folder / "tiny", stored_weights(folder / "tiny") | head)
    (folder / "pairs").mkdir()
    for seed, (split, count) in enumerate({"dev": 30, "test": 20}.items()):
        scores = random.Random(seed).choices("012345", k=count)
        lines = zip(sentences(count, 2 * seed), sentences(count, 2 * seed + 1), scores, strict=True)
        content = ["sentence1\tsentence2\tscore", *map("\t".join, lines)]
        (folder / f"pairs/{split}.tsv").write_text("\n".join(content) + "\n")
    (folder / "own.txt").write_text("\n".join(sentences(60, 9)) + "\n")
    return folder


@pytest.fixture(scope="module")
def task(here) -> Task:
    return get_task("stsb", data=str(here / "pairs"))


@pytest.fixture(scope="module")
def dev(task) -> Examples:
    return read_examples(task, "dev")


@pytest.fixture(scope="module")
def own(here) -> list[str]:
    return read_sentences(here / "own.txt")


@pytest.fixture(scope="module")
def found(here, own, task, dev) -> list[VariantScore]:
    return score_variants(SentenceEncoder.from_pretrained(here / "tiny"), own, task, dev)


# ----------------------------------------------------------------------------------------------- the evidence


def test_the_best_treatment_stands_first(found):
    scores = [evidence.score for evidence in found]
    assert scores == sorted(scores, reverse=True)
    cells = [evidence.cell for evidence in found]
    assert len(set(cells)) == len(cells)
    assert {cell.source for cell in cells} == {"word", "1+4", "4", "T0", "T4", "random"}


def test_what_cannot_be_saved_or_needs_more_sentences_is_not_among_them(found):
    """60 sentences whiten 24 dimensions, not the 768 of random embeddings."""
    afters = {evidence.cell.after for evidence in found}
    assert afters == {"", "center", "zscore", "abtt", "whiten"}
    assert Variant("4", "uniform", "whiten") in {evidence.cell for evidence in found}
    assert not any(e.cell.source == "random" and e.cell.after == "whiten" for e in found)


CELLS = [
    Variant("4", "uniform", ""),
    Variant("4", "idf", "zscore"),
    Variant("1+4", "uniform", "center"),
    Variant("word", "content-words", "abtt"),
    Variant("T0", "mask-token", "zscore"),
    Variant("T4", "no-prompt", ""),
    Variant("T0", "idf", "whiten"),
]


def of(cell: Variant, found: list[VariantScore]) -> VariantScore:
    return next(evidence for evidence in found if evidence.cell == cell)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_it_is_learnt_on_the_users_sentences_and_scored_on_the_graded_pairs(
    cell, here, found, own, task, dev
):
    prompt = PROMPTS.get(cell.source, "")
    model = SentenceEncoder.from_pretrained(here / "tiny", layer="4" if prompt else cell.source)
    model.prompt = prompt
    model.set_token_weights(cell.tokens, own if cell.tokens == "idf" else None)
    embed = lambda column: model.embed_token_ids(model.tokenize(column))  # noqa: E731
    modules = nn.Sequential(*(fit_postprocessing(cell.after, embed(own)) if cell.after else []))

    @torch.no_grad()
    def treated(column):
        return modules(embed(column))

    evidence = of(cell, found)
    assert evidence.score == pytest.approx(evaluate_similarity(treated, task, lambda _: dev)["spearman"], abs=1e-6)
    assert evidence.iso == pytest.approx(iso_score(treated(own)), rel=1e-4)
    assert evidence.cosine == pytest.approx(mean_cosine(treated(own)), abs=1e-5)


# -------------------------------------------------------------------------------------------------- the words


def told(*scores: float, random: float = -1.0) -> str:
    """Advice where "as it is" scores the first, and others the rest."""
    cells = [Variant("4", "uniform", ""), Variant("4", "idf", ""), Variant("word", "idf", "zscore")]
    scored = zip(cells[: len(scores)], scores, strict=True)
    evidence = [VariantScore(cell, score, 0.5, 0.1) for cell, score in scored]
    evidence.append(VariantScore(Variant("random", "idf", ""), random, 0.5, 0.1))
    evidence.sort(key=lambda one: -one.score)
    return advice(evidence, "M", 4, Path("own.txt"))[1]


def test_the_treatment_that_scores_most_is_advised_with_what_it_gains():
    words = told(0.5, 0.6, 0.7)
    assert words.startswith("Take word + idf + zscore: 70.00 against 50.00 as it is.")
    assert "Random embeddings" not in words


@pytest.mark.parametrize(("gain", "leave"), [(0.0, True), (0.9 * MIN_GAIN, True), (1.1 * MIN_GAIN, False)])
def test_a_gain_that_is_not_worth_it_is_left(gain, leave):
    words = told(0.5, 0.5 + gain)
    assert words.startswith("Leave it as it is: the best treatment has 5") == leave
    assert ("evaluate.py" in words) != leave


@pytest.mark.parametrize(("random", "so"), [(0.7, True), (0.71, True), (0.69, False)])
def test_random_embeddings_that_do_no_worse_are_told(random, so):
    assert ("Random embeddings do no worse" in told(0.5, 0.6, 0.7, random=random)) == so


def test_random_embeddings_are_never_advised():
    assert told(0.5, 0.6, random=0.9).startswith("Take 4 + idf")


def test_the_table_has_the_best_what_there_is_now_and_random_embeddings(found):
    lines, _ = advice(found, "M", 4, Path("own.txt"))
    marks = [line[-1] for line in lines[1:]]
    assert marks.count("as it is") == 1 or marks[0] == "best"
    assert lines[-1][0].startswith("random") and lines[-1][-1] == "random embeddings, their best"
    assert {"4"} <= {line[0] for line in lines} and len(lines) <= MAX_SHOWN + 3
    best_random = max(e.score for e in found if e.cell.source == "random")
    assert lines[-1][1] == f"{100 * best_random:.2f}"


def test_an_undefined_score_is_not_the_best():
    words = told(0.5, float("nan"), 0.7)
    assert words.startswith("Take word + idf + zscore")


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def printed(here, capsys, monkeypatch, tmp_path):
    """The words of the command that evaluate.py prints if this cell is the best; it runs in tmp_path."""
    monkeypatch.chdir(tmp_path)

    def printed(cell: Variant, model: Path = here / "tiny", *more: str) -> tuple[list[str], float]:
        scores = {}

        def favoured(*given):
            every = score_variants(*given)
            scores[cell] = of(cell, every).score
            rest = [VariantScore(e.cell, e.score - 5, e.iso, e.cosine) for e in every if e.cell != cell]
            return [of(cell, every), *rest]

        monkeypatch.setattr(evaluate, "score_variants", favoured)
        where = ["--data", str(here / "pairs"), *more]
        evaluate.main([str(model), "--advise", str(here / "own.txt"), *where])
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "evaluate.py" in line)
        python, script, *words = shlex.split(line)
        assert (python, script) == ("python", "evaluate.py")
        return words, scores[cell]

    return printed


def dev_score(task: Task, dev: Examples) -> float:
    model = SentenceEncoder.from_pretrained("treated")
    encode = lambda column: torch.from_numpy(model.encode(column))  # noqa: E731
    return evaluate_similarity(encode, task, lambda _: dev)["spearman"]


@pytest.mark.parametrize("cell", CELLS[1:], ids=lambda cell: cell.name)
def test_the_command_makes_a_model_with_the_score_of_the_table(cell, printed, here, task, dev):
    words, score = printed(cell)
    data = [] if "--data" in words else ["--data", str(here / "pairs")]
    evaluate.main([*words, *data])
    assert dev_score(task, dev) == pytest.approx(score, abs=1e-6)


def test_the_command_runs_as_it_stands_without_data_that_nobody_named(printed, task, dev, monkeypatch):
    """It scores the pairs that the advice was judged on: those of the first run may not be at hand."""

    def absent(*_):
        raise InputError("data of the task are absent")

    words, score = printed(Variant("4", "idf", "zscore"))
    monkeypatch.setattr("tmft.datasets.task_lookup.download_dataset", absent)
    evaluate.main(words)
    assert dev_score(task, dev) == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "max"])
def test_the_command_pools_as_the_advice_did_whatever_the_model_was_saved_with(
    pooling, printed, here, task, dev, tmp_path
):
    SentenceEncoder.from_pretrained(here / "tiny", pooling=pooling).save_pretrained(tmp_path / "pooled")
    words, score = printed(Variant("1+4", "uniform", "center"), tmp_path / "pooled")
    data = [] if "--data" in words else ["--data", str(here / "pairs")]
    evaluate.main([*words, *data])
    assert dev_score(task, dev) == pytest.approx(score, abs=1e-6)


def test_the_command_has_the_options_that_the_advice_depends_on(printed, here, task, dev):
    words, score = printed(Variant("T4", "mask-token", "zscore"), here / "tiny", "--max-length", "74")  # T4 takes 70
    data = [] if "--data" in words else ["--data", str(here / "pairs")]
    evaluate.main([*words, *data])
    assert dev_score(task, dev) == pytest.approx(score, abs=1e-6)


def test_advice_needs_graded_pairs(here, tmp_path):
    (tmp_path / "test.tsv").write_text("text\tlabel\na cat\tx\na dog\ty\n")
    words = ["--advise", str(here / "own.txt"), "--task", "tweet", "--data", str(tmp_path)]
    with pytest.raises(InputError) as error:
        evaluate.main([str(here / "tiny"), *words])
    assert error.value.as_cli_message().startswith("--advise with tweet: choose one task of graded similarity")


def test_advice_reads_no_test_data(here, tmp_path, capsys):
    (tmp_path / "dev.tsv").write_text((here / "pairs/dev.tsv").read_text())
    evaluate.main([str(here / "tiny"), "--advise", str(here / "own.txt"), "--data", str(tmp_path)])
    assert "60 sentences of" in capsys.readouterr().out
