"""The study: each of its cells is what one gets by doing it alone, and dev chooses among them."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from conftest import store_weights, stored_weights, tiny_model
from torch import nn

import evaluate
from tmft import InputError, SentenceEncoder
from tmft.data import Examples
from tmft.tasks import TASKS
from tmft.embedding.postprocessing import fit_postprocessing
from tmft.embedding.prompts import PROMPTS
from tmft.embedding.token_weights import NEEDS_TEXT
from tmft.evaluation.evaluators import EVALUATORS, unlabeled_texts
from tmft.evaluation.grid import LAYER_CURVES, IDF_FROM_TEXT, FAST_EVALUATORS, INTERPOLATION_WEIGHTS, Variant, GridResults, interpolation_name, study
from tmft.evaluation.isotropy import iso_score
from tmft.evaluation.training_free import static_model_from_text, interpolate, random_static_model
from tmft.reports.grid_page import curves, grid, heat_maps, write_grid_page

WORDS = "a the man woman dog cat plays eats guitar music is not in park two".split()
LONG = {"max_position_embeddings": 128}  # room for a prompt
HEAD = "generator_predictions.dense.bias"  # with a head that fills in [MASK] a checkpoint is asked in prompts


def sentences(count: int, seed: int) -> list[str]:
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(2, 7))) for _ in range(count)]


def pairs(count: int, seed: int, labels=(0, 1, 2, 3, 4, 5)) -> Examples:
    scores = [float(label) for label in random.Random(seed).choices(labels, k=count)]
    return Examples((sentences(count, seed), sentences(count, seed + 1)), scores)


def texts(count: int, seed: int, labels) -> Examples:
    return Examples((sentences(count, seed),), random.Random(seed).choices(labels, k=count))


STSB, TWEET, SST2 = TASKS["stsb"], TASKS["tweet"], TASKS["sst2"]
DATA = {
    "stsb": {"dev": pairs(30, 1), "test": pairs(40, 3)},
    "tweet": {"test": texts(40, 5, "abc")},
    "sst2": {split: texts(30, seed, [0, 1]) for seed, split in enumerate(("train", "dev", "test"), 7)},
}
KINDS = {"stsb": STSB, "tweet": TWEET, "sst2": SST2}
TEXT = sentences(60, 20)


def reading(data: dict[str, Examples]):
    """read of a task whose splits are these; another is missing, as a file would be."""

    def read(split: str) -> Examples:
        if split not in data:
            raise InputError(f"no such file ({split}.tsv): get it")
        return data[split]

    return read


READS = {name: reading(splits) for name, splits in DATA.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An ELECTRA of 4 layers whose words have 12 dimensions and hidden states 24."""
    folder = tmp_path_factory.mktemp("study") / "tiny"
    tiny_model(**LONG).save_pretrained(folder)
    store_weights(folder, stored_weights(folder) | {HEAD: torch.zeros(24)})
    return folder


@pytest.fixture(scope="module")
def made(folder) -> GridResults:
    return study(SentenceEncoder.from_pretrained(folder), KINDS, READS, TEXT)


@pytest.fixture(scope="module")
def small() -> SentenceEncoder:
    return fills_in(tiny_model(num_hidden_layers=2, **LONG))


def fills_in(model: SentenceEncoder) -> SentenceEncoder:
    """As if it had been loaded from a checkpoint with that head."""
    model.load_report = f"left {HEAD.partition('.')[0]} (1)"
    return model


def alone(folder: Path, name: str, split: str, cell: Variant) -> dict:
    """The scores of a cell, from a model that is loaded and treated for it and nothing else."""
    task, read = KINDS[name], READS[name]
    prompt = PROMPTS.get(cell.source, "")
    layer = "1+4" if cell.source == "average" else "4" if prompt or cell.source == "random" else cell.source
    model = SentenceEncoder.from_pretrained(folder, layer)
    model.prompt = prompt
    learn_on = unlabeled_texts(task, read, split)
    if cell.source == "average":
        model = static_model_from_text(model, TEXT)
    if cell.source == "random":
        model = random_static_model(model)
    if cell.tokens == IDF_FROM_TEXT:
        model.set_token_weights("idf", TEXT)
    else:
        model.set_token_weights(cell.tokens, learn_on if cell.tokens in NEEDS_TEXT else None)

    embed = lambda column: model.embed_token_ids(model.tokenize(column))  # noqa: E731
    encode, modules = embed, []
    if cell.after.startswith("mix"):
        static = static_model_from_text(SentenceEncoder.from_pretrained(folder, cell.source), TEXT)
        share = float(cell.after.removeprefix("mix "))
        encode = interpolate(embed, lambda column: static.embed_token_ids(static.tokenize(column)), share)
    elif cell.after:
        modules = fit_postprocessing(cell.after, embed(learn_on))

    @torch.no_grad()
    def treated(column):
        return nn.Sequential(*modules)(encode(column))

    return FAST_EVALUATORS.get(task.task_type, EVALUATORS[task.task_type])(treated, task, read, split)


CELLS = [
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
    ("stsb", "test", "3", "uniform", "mix 0.5"),
    ("stsb", "dev", "1+4", "uniform", "mix -0.25"),
    ("stsb", "test", "0", "uniform", "mix 1"),
    ("tweet", "test", "4", "uniform", "whiten"),
    ("tweet", "test", "random", "idf", "normalize"),
    ("tweet", "test", "2", "uniform", "mix 0.75"),
    ("sst2", "test", "1+4", "uniform", "zscore"),
    ("sst2", "test", "4", "idf", ""),
    ("sst2", "test", "random", IDF_FROM_TEXT, ""),
]


@pytest.mark.parametrize("which", CELLS, ids=lambda which: " ".join(which))
def test_a_cell_is_what_one_gets_by_doing_it_alone(which, made, folder):
    name, split, *of_cell = which
    cell = Variant(*of_cell)
    expected = alone(folder, name, split, cell)
    assert made.scores[cell][name, split] == pytest.approx(expected[KINDS[name].metric], abs=1e-6)
    if name == "sst2":
        assert made.scores[cell][name, "dev"] == expected["dev_accuracy"]


def test_the_tables_have_words_first_and_last_the_last_prompts_mean_vectors_and_random_ones(made):
    assert made.sources == ["word", "1+4", "4", "T0", "T4", "average", "random"]
    assert made.layers == ["word", "0", "1", "2", "3", "4", "1+4"]
    assert made.suites == {"similarity": ["stsb"], "clustering": ["tweet"], "classification": ["sst2"]}


def test_a_model_is_afterwards_as_it_was(small):
    before = small.encode(WORDS)
    study(small, {"stsb": STSB}, READS)
    assert (small.prompt, small.token_weights) == ("", None)
    assert (small.encode(WORDS) == before).all()


def test_a_share_of_1_is_the_mean_vectors_alone(made):
    found = made.scores[Variant("1+4", "uniform", interpolation_name(1.0))]["stsb", "test"]
    assert found == pytest.approx(made.scores[Variant("average", "uniform", "")]["stsb", "test"], abs=1e-6)
    assert {cell.after for cell in made.scores if "mix" in cell.after} == set(map(interpolation_name, INTERPOLATION_WEIGHTS))


def test_without_a_text_there_are_no_mean_vectors_and_no_idf_of_a_text(small):
    found = study(small, {"stsb": STSB}, READS)
    assert found.sources == ["word", "1+2", "2", "T0", "T4", "random"]
    assert not any(cell.tokens == IDF_FROM_TEXT or "mix" in cell.after for cell in found.scores)


# --------------------------------------------------------------------------------------------------- choice


@pytest.mark.slow
def test_dev_chooses_and_labels_of_test_are_not_looked_at(small):
    first = study(small, {"stsb": STSB}, READS)
    test = replace(DATA["stsb"]["test"], labels=DATA["stsb"]["test"].labels[::-1])
    other = study(small, {"stsb": STSB}, {"stsb": reading(DATA["stsb"] | {"test": test})})
    assert first.chosen("similarity") == other.chosen("similarity")
    ours = [cell for cell in first.scores if cell.source != "random"]
    best = max(first.scores[cell]["stsb", "dev"] for cell in ours)
    assert first.scores[first.chosen("similarity")]["stsb", "dev"] == best
    assert first.scores != other.scores


def given(scores: dict[Variant, dict[tuple[str, str], float]], tasks=("a",)) -> GridResults:
    made = GridResults({"similarity": list(tasks)}, ["4", "random"], ["0", "4"])
    made.scores = scores
    return made


PLAIN, IDF, WHITE = Variant("4", "uniform", ""), Variant("4", "idf", ""), Variant("4", "uniform", "whiten")


def test_random_embeddings_are_no_choice():
    made = given({Variant("random", "uniform", ""): {("a", "dev"): 0.9}, PLAIN: {("a", "dev"): 0.1}})
    assert made.chosen("similarity") == PLAIN


def test_without_dev_nothing_is_chosen(made):
    assert given({PLAIN: {("a", "test"): 0.9}}).chosen("similarity") is None
    assert made.chosen("clustering") is None


def test_an_undefined_score_is_not_chosen():
    made = given({PLAIN: {("a", "dev"): math.nan}, IDF: {("a", "dev"): 0.1}, WHITE: {("a", "dev"): 0.3}})
    assert made.chosen("similarity") == WHITE


def test_a_cell_that_lacks_a_task_is_not_compared_with_those_that_have_it():
    """b is the harder task; whiten had too few sentences there."""
    scores = {
        PLAIN: {
            (task, split): score for task, score in (("a", 0.8), ("b", 0.2)) for split in ("dev", "test")
        },
        WHITE: {("a", "dev"): 0.7, ("a", "test"): 0.7},
    }
    made = given(scores, tasks=("a", "b"))
    assert made.chosen("similarity") == PLAIN
    assert [line[2] for line in grid(made, "similarity")[1:]] == ["50.00*", "–"]


# --------------------------------------------------------------------------------------- isotropy, too little


def test_isotropy_is_of_the_sentences_of_the_first_task_alone(made, folder):
    model = SentenceEncoder.from_pretrained(folder)
    x = torch.from_numpy(model.encode(list(dict.fromkeys(DATA["stsb"]["test"].sentences))))
    assert made.iso[PLAIN] == pytest.approx(iso_score(x), rel=1e-5)
    assert made.iso[WHITE] == pytest.approx(1, abs=0.15)  # learnt with repeated sentences, measured without
    only_elsewhere = Variant("4", "uniform", "normalize")  # of clustering
    assert only_elsewhere in made.scores and only_elsewhere not in made.iso


def test_what_cannot_be_learnt_from_so_few_sentences_is_left_out_and_shown_as_a_dash(made):
    """Random embeddings have 768 dimensions, the test set 80 sentences."""
    assert Variant("random", "uniform", "whiten") not in made.scores and WHITE in made.scores
    heading, *lines = grid(made, "similarity")
    (line,) = (line for line in lines if line[:2] == ["uniform", "whiten"])
    of = dict(zip(heading, line, strict=True))
    assert of["random"] == "–"
    assert of["4"].rstrip("*") == f"{100 * made.scores[WHITE]['stsb', 'test']:.2f}"


# ---------------------------------------------------------------------------------------------------- models


def shapes(**changes):
    return lambda: fills_in(tiny_model(**LONG | changes))


def without_mask() -> SentenceEncoder:
    model = shapes(num_hidden_layers=2)()
    del model.tokenizer.special_tokens["mask_token"]
    return model


def too_short() -> SentenceEncoder:
    """T0 takes 32 of 64 tokens in this vocabulary of letters, T4 70."""
    return fills_in(tiny_model(num_hidden_layers=2, max_position_embeddings=64))


MODELS = {
    "0 layers": (shapes(num_hidden_layers=0), ["word", "0", "random"]),
    "1 layer": (shapes(num_hidden_layers=1), ["word", "1", "T0", "T4", "random"]),
    "as wide as its words": (
        shapes(num_hidden_layers=2, model_type="bert", embedding_size=24),
        ["word", "1+2", "2", "T0", "T4", "average", "random"],
    ),
    "no head that fills in [MASK]": (
        lambda: tiny_model(num_hidden_layers=2, **LONG),
        ["word", "1+2", "2", "average", "random"],
    ),
    "no [MASK]": (without_mask, ["word", "1+2", "2", "average", "random"]),
    "T4 does not fit": (too_short, ["word", "1+2", "2", "T0", "average", "random"]),
    "words alone": (
        lambda: random_static_model(shapes()(), dimensions=16),
        ["word", "0", "random"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_study(name, tmp_path):
    make, sources = MODELS[name]
    made = study(make(), {"stsb": STSB, "tweet": TWEET}, READS, TEXT)
    assert made.sources == sources
    for source in sources:
        assert ("stsb", "test") in made.scores[Variant(source, "uniform", "")]
    write_grid_page(made, name, tmp_path)
    assert (tmp_path / "study.md").is_file()


# ------------------------------------------------------------------------------------------------------ tasks


@pytest.mark.parametrize("name", KINDS)
def test_a_study_of_one_kind_of_task_has_its_page(name, small, tmp_path):
    page = write_grid_page(study(small, {name: KINDS[name]}, READS), "tiny", tmp_path)
    assert len(page.tables) == 2


def test_a_task_without_dev_is_scored_on_test(small):
    made = study(small, {"stsb": STSB}, {"stsb": reading({"test": DATA["stsb"]["test"]})})
    assert {split for scores in made.scores.values() for _, split in scores} == {"test"}
    assert made.chosen("similarity") is None


def test_a_task_whose_threshold_is_found_on_dev_has_a_study(small):
    splits = {"dev": pairs(30, 1, (0, 1)), "test": pairs(40, 3, (0, 1))}
    made = study(small, {"mrpc": TASKS["mrpc"]}, {"mrpc": reading(splits)})
    encode = lambda column: small.embed_token_ids(small.tokenize(column))  # noqa: E731
    expected = EVALUATORS["similarity"](encode, TASKS["mrpc"], splits.__getitem__)
    assert made.scores[Variant("2", "uniform", "")]["mrpc", "test"] == pytest.approx(expected["f1"])


def test_a_task_that_needs_a_head_is_refused_in_one_line(folder, tmp_path):
    lines = [f"{u}\t{v}\tNEUTRAL" for u, v in zip(*DATA["stsb"]["test"].texts, strict=True)]
    for split in ("dev", "test"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *lines]) + "\n")
    with pytest.raises(InputError) as error:
        evaluate.main([str(folder), "--study", "--task", "sicke", "--data", str(tmp_path)])
    assert "sicke" in str(error.value) and "\n" not in str(error.value)


# -------------------------------------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def page(made, tmp_path_factory):
    return write_grid_page(made, "models/tiny", tmp_path_factory.mktemp("page"))


def test_the_page_has_two_tables_of_each_suite_and_what_is_transductive(page, made):
    text = (page.folder / "study.md").read_text("utf-8")
    assert text.startswith("# models/tiny without training\n") and "(transductive)" in text
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert len(titles) == 6 == len(page.tables)
    assert titles[1] == "## similarity, task by task" and titles[0].endswith(", over 1 tasks")
    assert f"{len(made.scores)} cells in " in text


def test_the_choice_of_dev_is_marked_in_the_table_and_told_by_task(made):
    chosen = made.chosen("similarity")
    heading, *lines = grid(made, "similarity")
    marked = [(heading[i], *line[:2]) for line in lines for i, text in enumerate(line) if text.endswith("*")]
    shown = chosen.source in made.sources and not chosen.after.startswith("mix")
    assert marked == ([(chosen.source, chosen.tokens, chosen.after or "–")] if shown else [])


def test_a_table_by_task_has_what_is_there_now_what_dev_chose_and_random_embeddings(page, made):
    heading, *lines = page.tables["similarity, task by task"]
    assert heading == ["", "cell", "stsb", "mean", ""]
    by_name = {line[0]: line for line in lines}
    assert by_name["as it is"][1] == "4" and by_name["random, as it is"][1] == "random"
    assert by_name["chosen on dev"][1] == made.chosen("similarity").name
    best = max(made.mean(cell, "similarity") for cell in made.scores if cell.source != "random")
    assert by_name["best on test (not a choice)"][2] == f"{100 * best:.2f}"
    assert "chosen on dev" not in {line[0] for line in page.tables["clustering, task by task"]}


def test_the_figures_lie_beside_the_page(page):
    pytest.importorskip("matplotlib")
    figures = {"study-layers.svg", "study-isotropy.svg", "study-mix.svg"}
    assert {path.name for path in page.folder.iterdir()} == figures | {"study.md", "study.json"}
    assert set(page.files) == set(page.folder.iterdir()) and page.skipped_figures == []


def test_the_curve_is_over_all_layers_with_the_deviation_over_tasks():
    made = given({}, tasks=("a", "b"))
    made.layers = ["word", "0", "4"]
    for n, layer in enumerate(made.layers):
        made.scores[Variant(layer, "uniform", "")] = {("a", "test"): 0.1 * n, ("b", "test"): 0.5, ("a", "dev"): 0.9}
    made.scores[Variant("random", *LAYER_CURVES["similarity"][-1])] = {("a", "test"): 0.2, ("b", "test"): 0.4}
    drawn = curves(made)
    expected = [(layer, mean([0.1 * n, 0.5]), stdev([0.1 * n, 0.5])) for n, layer in enumerate(made.layers)]
    for point, wanted in zip(drawn["similarity, as it is"], expected, strict=True):
        assert point[0] == wanted[0] and point[1:] == pytest.approx(wanted[1:])
    assert drawn["similarity, random"][0][1] == pytest.approx(0.3)


def test_the_heat_map_has_a_row_for_each_layer_and_share_0_is_the_model_alone(made):
    layers, shares, values = heat_maps(made)["similarity"]
    assert layers == list("01234") and shares == ["-0.25", "0", "0.25", "0.5", "0.75", "1"]
    for row, layer in zip(values, layers, strict=True):
        assert row[1] == made.scores[Variant(layer, "uniform", "")]["stsb", "test"]
        assert row[5] == made.scores[Variant(layer, "uniform", "mix 1")]["stsb", "test"]
    assert set(heat_maps(made)) == {"similarity", "clustering"}


def refuse(constant: str):
    raise AssertionError(f"{constant} is no JSON")


def test_the_json_has_every_cell_and_no_nan(made, tmp_path):
    copy = replace(
        made, scores=made.scores | {IDF: {("stsb", "test"): math.nan}}, iso=made.iso | {IDF: math.nan}
    )
    write_grid_page(copy, "tiny", tmp_path)
    content = json.loads((tmp_path / "study.json").read_text("utf-8"), parse_constant=refuse)
    cells = {(cell["source"], cell["tokens"], cell["after"]): cell for cell in content["cells"]}
    assert len(cells) == len(made.scores) and content["suites"] == made.suites
    assert cells["4", "idf", ""]["scores"] == [{"task": "stsb", "split": "test", "score": None}]
    plain = {(of["task"], of["split"]): of["score"] for of in cells["4", "uniform", ""]["scores"]}
    assert plain == made.scores[PLAIN] and cells["4", "uniform", ""]["iso_score"] == made.iso[PLAIN]


@pytest.mark.slow
def test_the_command_writes_the_page_where_it_is_asked_for_and_prints_its_tables(folder, tmp_path, capsys):
    for split, examples in DATA["stsb"].items():
        lines = [f"{u}\t{v}\t{s}" for u, v, s in zip(*examples.texts, examples.labels, strict=True)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *lines]) + "\n")
    (tmp_path / "text").write_text("\n".join(TEXT) + "\n")
    where = ["--task", "stsb", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    evaluate.main([str(folder), "--study", *where, "--layer", "2", "--text", str(tmp_path / "text")])
    printed = capsys.readouterr().out
    assert "similarity: mean Spearman x 100, over 1 tasks\n" in printed
    assert printed.rstrip().endswith(f"{tmp_path}/out/study.json")
    content = json.loads((tmp_path / "out/study.json").read_text("utf-8"))
    assert {"1+2", "average"} <= {cell["source"] for cell in content["cells"]}  # of the first two layers
    model = SentenceEncoder.from_pretrained(folder, 2)
    encode = lambda column: model.embed_token_ids(model.tokenize(column))  # noqa: E731
    expected = EVALUATORS["similarity"](encode, STSB, DATA["stsb"].__getitem__)["spearman"]
    (found,) = (
        of["score"]
        for cell in content["cells"]
        if (cell["source"], cell["tokens"], cell["after"]) == ("2", "uniform", "")
        for of in cell["scores"]
        if of["split"] == "test"
    )
    assert found == pytest.approx(expected, abs=1e-9)
