"""The grid: each variant has the score that it has on its own, and dev chooses among them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from by_hand import WORDS, change, random_pairs, random_sentences, random_texts, write_examples
from conftest import store_weights, stored_weights, tiny_model

from tmft import InputError, SentenceEncoder
from tmft.cli import grid_command as command
from tmft.data import Examples
from tmft.embedding.prompts import PROMPTS
from tmft.evaluation.evaluators import EVALUATORS, unlabeled_texts
from tmft.evaluation.isotropy import iso_score
from tmft.reports.grid_page import layer_curves, variants_table, write_grid_page
from tmft.tasks import TASKS
from tmft.training_free.grid import (
    FAST_EVALUATORS,
    INTERPOLATION_WEIGHTS,
    LAYER_CURVES,
    GridResults,
    interpolation_name,
    run_grid,
)
from tmft.training_free.static_models import random_static_model, static_model_from_text
from tmft.training_free.training_free import interpolate
from tmft.training_free.variants import IDF_FROM_TEXT, Variant

LONG = {"max_position_embeddings": 128}  # room for a prompt
HEAD = "generator_predictions.dense.bias"  # prompts are used only with a head of masked language modeling


STSB, TWEET, SST2 = TASKS["stsb"], TASKS["tweet"], TASKS["sst2"]
DATA = {
    "stsb": {"dev": random_pairs(30, 1), "test": random_pairs(40, 3)},
    "tweet": {"test": random_texts(40, 5, "abc")},
    "sst2": {split: random_texts(30, seed, [0, 1]) for seed, split in enumerate(("train", "dev", "test"), 7)},
}
GRID_TASKS = {"stsb": STSB, "tweet": TWEET, "sst2": SST2}
TEXT = random_sentences(60, 20)


def reader(data: dict[str, Examples]):
    """read_split of a task with these splits; any other one is missing, as a file would be."""

    def read_split(split: str) -> Examples:
        if split not in data:
            raise InputError(f"no such file ({split}.tsv): download it")
        return data[split]

    return read_split


READERS = {name: reader(splits) for name, splits in DATA.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An ELECTRA of 4 layers whose words have 12 dimensions and hidden states 24."""
    folder = tmp_path_factory.mktemp("grid") / "tiny"
    tiny_model(**LONG).save_pretrained(folder)
    store_weights(folder, stored_weights(folder) | {HEAD: torch.zeros(24)})
    return folder


@pytest.fixture(scope="module")
def results(folder) -> GridResults:
    return run_grid(SentenceEncoder.from_pretrained(folder), GRID_TASKS, READERS, TEXT)


@pytest.fixture(scope="module")
def small() -> SentenceEncoder:
    return with_mlm_head(tiny_model(num_hidden_layers=2, **LONG))


def with_mlm_head(model: SentenceEncoder) -> SentenceEncoder:
    """The model as if it had been loaded from a checkpoint with that head."""
    model.load_report = f"left {HEAD.partition('.')[0]} (1)"
    return model


def score_alone(folder: Path, name: str, split: str, variant: Variant) -> dict:
    """The scores of a variant, from a model that is loaded and changed for it and nothing else."""
    task, read_split = GRID_TASKS[name], READERS[name]
    layer = {"average": "1+4"} | dict.fromkeys(("random", "T0", "T4"), "4")
    model = SentenceEncoder.from_pretrained(folder, layer.get(variant.source, variant.source))
    model.prompt = PROMPTS.get(variant.source, "")
    fit_texts = unlabeled_texts(task, read_split, split)
    if variant.source == "average":
        model = static_model_from_text(model, TEXT)
    if variant.source == "random":
        model = random_static_model(model)
    weights = "idf" if variant.token_weights == IDF_FROM_TEXT else variant.token_weights
    texts = {IDF_FROM_TEXT: TEXT, "idf": fit_texts}.get(variant.token_weights)
    if variant.postprocess.startswith("interpolate"):
        static = static_model_from_text(SentenceEncoder.from_pretrained(folder, variant.source), TEXT)
        weight = float(variant.postprocess.removeprefix("interpolate "))
        encode = interpolate(change(model), change(static), weight)
    else:
        encode = change(model, weights, texts, variant.postprocess, fit_texts)
    evaluate = FAST_EVALUATORS.get(task.task_type, EVALUATORS[task.task_type])
    return evaluate(encode, task, read_split, split)


VARIANTS = [
    ("stsb", "test", "4", "uniform", ""),
    ("stsb", "dev", "4", "uniform", ""),
    ("stsb", "test", "word", "idf", "abtt"),
    ("stsb", "dev", "word", "content-words", "whiten"),
    ("stsb", "test", "1+4", IDF_FROM_TEXT, "whiten"),
    ("stsb", "dev", "1+4", "idf", "zscore"),
    ("stsb", "test", "1+4", "content-words", ""),
    ("stsb", "test", "2", "idf", "zscore"),
    ("stsb", "test", "3", "uniform", ""),
    ("stsb", "test", "T0", "mask-token", "zscore"),
    ("stsb", "dev", "T4", "no-prompt", ""),
    ("stsb", "test", "T4", "idf", "center"),
    ("stsb", "test", "T0", "uniform", "quantile"),
    ("stsb", "test", "average", "idf", "zscore"),
    ("stsb", "dev", "average", IDF_FROM_TEXT, ""),
    ("stsb", "test", "random", "idf", "zscore"),
    ("stsb", "test", "random", "content-words", "abtt"),
    ("stsb", "test", "3", "uniform", "interpolate 0.5"),
    ("stsb", "dev", "1+4", "uniform", "interpolate -0.25"),
    ("stsb", "test", "0", "uniform", "interpolate 1"),
    ("tweet", "test", "4", "uniform", "whiten"),
    ("tweet", "test", "random", "idf", "normalize"),
    ("tweet", "test", "2", "uniform", "interpolate 0.75"),
    ("sst2", "test", "1+4", "uniform", "zscore"),
    ("sst2", "test", "4", "idf", ""),
    ("sst2", "test", "random", IDF_FROM_TEXT, ""),
]


@pytest.mark.parametrize("unit", VARIANTS, ids=lambda unit: " ".join(unit))
def test_a_variant_has_the_score_that_it_has_alone(unit, results, folder):
    name, split, *fields = unit
    variant = Variant(*fields)
    expected = score_alone(folder, name, split, variant)
    assert results.scores[variant][name, split] == pytest.approx(expected[GRID_TASKS[name].metric], abs=1e-6)
    if name == "sst2":
        assert results.scores[variant][name, "dev"] == expected["dev_accuracy"]


def test_the_sources_are_words_two_layers_the_last_prompts_mean_vectors_and_random_ones(results):
    assert results.sources == ["word", "1+4", "4", "T0", "T4", "average", "random"]
    assert results.layers == ["word", "0", "1", "2", "3", "4", "1+4"]
    assert results.tasks == {"similarity": ["stsb"], "clustering": ["tweet"], "classification": ["sst2"]}


def test_the_model_is_unchanged_afterwards(small):
    before = small.encode(WORDS)
    run_grid(small, {"stsb": STSB}, READERS)
    assert (small.prompt, small.token_weights) == ("", None)
    assert (small.encode(WORDS) == before).all()


def test_weight_1_is_the_mean_vectors_alone(results):
    result = results.scores[Variant("1+4", "uniform", interpolation_name(1.0))]["stsb", "test"]
    assert result == pytest.approx(
        results.scores[Variant("average", "uniform", "")]["stsb", "test"], abs=1e-6
    )
    assert {variant.postprocess for variant in results.scores if "interpolate" in variant.postprocess} == set(
        map(interpolation_name, INTERPOLATION_WEIGHTS)
    )


def test_without_a_reference_text_there_are_no_mean_vectors_and_no_idf_from_it(small):
    results = run_grid(small, {"stsb": STSB}, READERS)
    assert results.sources == ["word", "1+2", "2", "T0", "T4", "random"]
    assert not any(
        variant.token_weights == IDF_FROM_TEXT or "interpolate" in variant.postprocess
        for variant in results.scores
    )


# --------------------------------------------------------------------------------------------------- choice


@pytest.mark.slow
def test_dev_chooses_and_the_labels_of_test_are_not_used(small):
    first = run_grid(small, {"stsb": STSB}, READERS)
    test = replace(DATA["stsb"]["test"], labels=DATA["stsb"]["test"].labels[::-1])
    other = run_grid(small, {"stsb": STSB}, {"stsb": reader(DATA["stsb"] | {"test": test})})
    assert first.best_on_dev("similarity") == other.best_on_dev("similarity")
    ours = [variant for variant in first.scores if variant.source != "random"]
    best = max(first.scores[variant]["stsb", "dev"] for variant in ours)
    assert first.scores[first.best_on_dev("similarity")]["stsb", "dev"] == best
    assert first.scores != other.scores


def make_results(scores: dict[Variant, dict[tuple[str, str], float]], tasks=("a",)) -> GridResults:
    results = GridResults({"similarity": list(tasks)}, ["4", "random"], ["0", "4"])
    results.scores = scores
    return results


BASELINE, IDF, WHITE = Variant("4", "uniform", ""), Variant("4", "idf", ""), Variant("4", "uniform", "whiten")


def test_random_embeddings_are_not_chosen():
    results = make_results(
        {Variant("random", "uniform", ""): {("a", "dev"): 0.9}, BASELINE: {("a", "dev"): 0.1}}
    )
    assert results.best_on_dev("similarity") == BASELINE


def test_without_dev_nothing_is_chosen(results):
    assert make_results({BASELINE: {("a", "test"): 0.9}}).best_on_dev("similarity") is None
    assert results.best_on_dev("clustering") is None


def test_an_undefined_score_is_not_chosen():
    results = make_results(
        {BASELINE: {("a", "dev"): math.nan}, IDF: {("a", "dev"): 0.1}, WHITE: {("a", "dev"): 0.3}}
    )
    assert results.best_on_dev("similarity") == WHITE


def test_a_variant_that_lacks_a_task_is_not_compared_with_those_that_have_it():
    """b is the harder task; whiten had too few sentences there."""
    scores = {
        BASELINE: {
            (task, split): score for task, score in (("a", 0.8), ("b", 0.2)) for split in ("dev", "test")
        },
        WHITE: {("a", "dev"): 0.7, ("a", "test"): 0.7},
    }
    results = make_results(scores, tasks=("a", "b"))
    assert results.best_on_dev("similarity") == BASELINE
    assert [line[2] for line in variants_table(results, "similarity")[1:]] == ["50.00*", "–"]


# --------------------------------------------------------------------------------------- isotropy, too little


def test_isotropy_is_that_of_the_sentences_of_the_first_task(results, folder):
    model = SentenceEncoder.from_pretrained(folder)
    x = torch.from_numpy(model.encode(list(dict.fromkeys(DATA["stsb"]["test"].sentences))))
    assert results.iso_scores[BASELINE] == pytest.approx(iso_score(x), rel=1e-5)
    assert results.iso_scores[WHITE] == pytest.approx(
        1, abs=0.15
    )  # repeated sentences are estimated from only
    only_elsewhere = Variant("4", "uniform", "normalize")  # of clustering
    assert only_elsewhere in results.scores and only_elsewhere not in results.iso_scores


def test_a_variant_that_needs_more_sentences_is_left_out_and_shown_as_a_dash(results):
    """Random embeddings have 768 dimensions, the test set 80 sentences."""
    assert Variant("random", "uniform", "whiten") not in results.scores and WHITE in results.scores
    heading, *lines = variants_table(results, "similarity")
    (line,) = (line for line in lines if line[:2] == ["uniform", "whiten"])
    of = dict(zip(heading, line, strict=True))
    assert of["random"] == "–"
    assert of["4"].rstrip("*") == f"{100 * results.scores[WHITE]['stsb', 'test']:.2f}"


# ------------------------------------------------------------------------------------------------------ tasks


@pytest.mark.parametrize("name", GRID_TASKS)
def test_a_grid_of_one_type_of_task_has_a_page(name, small, tmp_path):
    page = write_grid_page(run_grid(small, {name: GRID_TASKS[name]}, READERS), "tiny", tmp_path)
    assert len(page.tables) == 2


def test_a_task_without_dev_is_scored_on_test(small):
    results = run_grid(small, {"stsb": STSB}, {"stsb": reader({"test": DATA["stsb"]["test"]})})
    assert {split for scores in results.scores.values() for _, split in scores} == {"test"}
    assert results.best_on_dev("similarity") is None


def test_a_task_whose_threshold_is_chosen_on_dev_has_a_grid(small):
    splits = {"dev": random_pairs(30, 1, "01"), "test": random_pairs(40, 3, "01")}
    results = run_grid(small, {"mrpc": TASKS["mrpc"]}, {"mrpc": reader(splits)})
    expected = EVALUATORS["similarity"](change(small), TASKS["mrpc"], splits.__getitem__)
    assert results.scores[Variant("2", "uniform", "")]["mrpc", "test"] == pytest.approx(expected["f1"])


@pytest.mark.parametrize(("task", "label"), [("sicke", "NEUTRAL"), ("quora", "1")])
def test_a_task_that_needs_a_head_is_refused_in_one_line(task, label, folder, tmp_path):
    """Of a class, or of a number for each pair."""
    lines = [f"{u}\t{v}\t{label}" for u, v in zip(*DATA["stsb"]["test"].texts, strict=True)]
    for split in ("dev", "test"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *lines]) + "\n")
    with pytest.raises(InputError, match=f"^task {task}: it needs a trained head, remove it$"):
        command.main([str(folder), "--task", task, "--data", str(tmp_path)])


# -------------------------------------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    return write_grid_page(results, "models/tiny", tmp_path_factory.mktemp("page"))


def test_the_page_has_two_tables_for_each_type_of_task_and_says_what_is_transductive(page, results):
    text = (page.folder / "grid.md").read_text("utf-8")
    assert text.startswith("# models/tiny without training\n") and "(transductive)" in text
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert len(titles) == 6 == len(page.tables)
    assert titles[1] == "## similarity, task by task" and titles[0].endswith(", over 1 tasks")
    assert f"{len(results.scores)} variants in " in text


def test_the_choice_of_dev_is_marked_in_the_table(results):
    chosen = results.best_on_dev("similarity")
    heading, *lines = variants_table(results, "similarity")
    marked = [(heading[i], *line[:2]) for line in lines for i, text in enumerate(line) if text.endswith("*")]
    shown = chosen.source in results.sources
    assert marked == ([(chosen.source, chosen.token_weights, chosen.postprocess or "–")] if shown else [])


def test_the_table_of_tasks_has_the_unchanged_model_the_choice_of_dev_and_random_embeddings(page, results):
    heading, *lines = page.tables["similarity, task by task"]
    assert heading == ["", "variant", "stsb", "mean", ""]
    by_name = {line[0]: line for line in lines}
    assert by_name["unchanged"][1] == "4" and by_name["random, unchanged"][1] == "random"
    assert by_name["chosen on dev"][1] == results.best_on_dev("similarity").name
    best = max(
        results.mean_score(variant, "similarity") for variant in results.scores if variant.source != "random"
    )
    assert by_name["best on test (not a choice)"][2] == f"{100 * best:.2f}"
    assert "chosen on dev" not in {line[0] for line in page.tables["clustering, task by task"]}


def test_the_figures_are_in_the_folder_of_the_page(page):
    pytest.importorskip("matplotlib")
    files = {"grid-layers.svg", "grid-layers.pdf", "grid.md", "grid.json", "tables"}
    assert {path.name for path in page.folder.iterdir()} == files
    written = {path for path in page.folder.rglob("*") if path.is_file()}
    assert set(page.files) == written and page.skipped_figures == []


def test_the_curve_is_over_all_layers_with_the_standard_deviation_over_tasks():
    results = make_results({}, tasks=("a", "b"))
    results.layers = ["word", "0", "4"]
    for n, layer in enumerate(results.layers):
        results.scores[Variant(layer, "uniform", "")] = {
            ("a", "test"): 0.1 * n,
            ("b", "test"): 0.5,
            ("a", "dev"): 0.9,
        }
    results.scores[Variant("random", *LAYER_CURVES["similarity"][-1])] = {
        ("a", "test"): 0.2,
        ("b", "test"): 0.4,
    }
    drawn = layer_curves(results)
    expected = [
        (layer, mean([0.1 * n, 0.5]), stdev([0.1 * n, 0.5])) for n, layer in enumerate(results.layers)
    ]
    for point, expected_values in zip(drawn["similarity, unchanged"], expected, strict=True):
        assert point[0] == expected_values[0] and point[1:] == pytest.approx(expected_values[1:])
    assert drawn["similarity, random"][0][1] == pytest.approx(0.3)


def test_interpolations_with_mean_word_vectors_are_lines_of_the_table(results):
    heading, *lines = variants_table(results, "similarity")
    (line,) = (line for line in lines if line[:2] == ["uniform", "interpolate 1"])
    of = dict(zip(heading, line, strict=True))
    score = results.scores[Variant("4", "uniform", "interpolate 1")]["stsb", "test"]
    assert of["4"].rstrip("*") == f"{100 * score:.2f}" and of["word"] == of["random"] == "–"


def reject_constant(constant: str):
    raise AssertionError(f"{constant} is not JSON")


def test_the_json_has_every_variant_and_no_nan(results, tmp_path):
    copy = replace(
        results,
        scores=results.scores | {IDF: {("stsb", "test"): math.nan}},
        iso_scores=results.iso_scores | {IDF: math.nan},
    )
    write_grid_page(copy, "tiny", tmp_path)
    content = json.loads((tmp_path / "grid.json").read_text("utf-8"), parse_constant=reject_constant)
    variants = {
        (variant["source"], variant["token_weights"], variant["postprocess"]): variant
        for variant in content["variants"]
    }
    assert len(variants) == len(results.scores) and content["tasks"] == results.tasks
    assert variants["4", "idf", ""]["scores"] == [{"task": "stsb", "split": "test", "score": None}]
    baseline = variants["4", "uniform", ""]
    scores = {(entry["task"], entry["split"]): entry["score"] for entry in baseline["scores"]}
    assert scores == results.scores[BASELINE] and baseline["iso_score"] == results.iso_scores[BASELINE]


@pytest.mark.slow
def test_the_command_writes_the_page_into_out_and_prints_its_tables(folder, tmp_path, capsys):
    for split, examples in DATA["stsb"].items():
        write_examples(tmp_path / f"{split}.tsv", examples)
    (tmp_path / "text").write_text("\n".join(TEXT) + "\n")
    where = ["--task", "stsb", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    command.main([str(folder), *where, "--layer", "2", "--text", str(tmp_path / "text")])
    printed = capsys.readouterr().out
    assert "similarity: mean Spearman x 100, over 1 tasks\n" in printed
    assert f"wrote {tmp_path}/out: " in printed and printed.rstrip().endswith(
        "grid.md, grid.json, tables/ (4 files)"
    )
    content = json.loads((tmp_path / "out/grid.json").read_text("utf-8"))
    assert {"1+2", "average"} <= {
        variant["source"] for variant in content["variants"]
    }  # of the first two layers
    model = SentenceEncoder.from_pretrained(folder, 2)
    expected = EVALUATORS["similarity"](change(model), STSB, DATA["stsb"].__getitem__)["spearman"]
    (result,) = (
        of["score"]
        for variant in content["variants"]
        if (variant["source"], variant["token_weights"], variant["postprocess"]) == ("2", "uniform", "")
        for of in variant["scores"]
        if of["split"] == "test"
    )
    assert result == pytest.approx(expected, abs=1e-9)
