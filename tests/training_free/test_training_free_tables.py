"""Tables without training: each score is that of a model changed by hand; the paper's numbers agree."""

import json
import math
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from by_hand import change, random_pairs, random_sentences, random_texts, write_examples
from conftest import tiny_model

from tmft import InputError, SentenceEncoder
from tmft.cli import tables_command as command
from tmft.data import SPLITS, read_examples
from tmft.datasets.task_lookup import get_task
from tmft.embedding.prompts import PROMPTS
from tmft.evaluation.evaluators import EVALUATORS
from tmft.evaluation.isotropy import alignment, iso_score, uniformity
from tmft.metrics import pearson
from tmft.reports.tables_page import read_published
from tmft.tasks import GROUPS
from tmft.training_free.static_models import random_static_model, static_model_from_text
from tmft.training_free.training_free import interpolate
from tmft.training_free.training_free_tables import (
    FAST_EVALUATORS,
    Row,
    ScoreTable,
    Unit,
    read_tables,
    score_tables,
)

TABLE = """
[groups]
all = ["stsb", "tweet", "sst2"]
similarity = ["stsb"]
[models]
words = { layer = "word" }
[[tables.mine]]
groups = ["all"]
models = ["T0", "T4", "BERT", "BERT + Avg.", "Avg.", "RE", "words"]
rows = [
    "uniform", "idf zscore", "idf=text abtt=text", "content-words quantile", "mask-token", "no-mask",
    "uniform whiten",
]
[[tables.mine]]
groups = ["similarity"]
models = ["BERT"]
layers = ["each", "1+last"]
interpolate = [-0.75, 0, 1.0]
figure = "heat map"
[[tables.mine]]
groups = ["similarity"]
models = ["T4", "RE"]
layers = ["each"]
figure = "curves"
[[tables.mine]]
groups = ["IsoScore", "similarity"]
models = ["BERT", "RE"]
rows = ["uniform", "uniform zscore", "idf=text"]
figure = "points"
[[tables.mine]]
groups = ["alignment", "uniformity"]
models = ["BERT", "RE"]
rows = ["uniform", "uniform zscore", "uniform normalize"]
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    """tiny: an ELECTRA of 4 layers; data: folders of tasks; text.txt: other sentences; mine.toml: tables."""
    folder = tmp_path_factory.mktemp("tables")
    tiny_model(max_position_embeddings=128).save_pretrained(folder / "tiny")  # room for a prompt
    for split, count in (("train", 40), ("dev", 30), ("test", 40)):
        write_examples(folder / f"data/stsb/{split}.tsv", random_pairs(count, 10 * count + len(split)))
        texts = random_texts(30, len(split), "01")
        write_examples(folder / f"data/senteval/sst2/{split}.tsv", texts, "label")
    write_examples(folder / "data/clustering/tweet.tsv", random_texts(40, 7, "ab"), "label")
    (folder / "text.txt").write_text("\n".join(TEXT) + "\n")
    (folder / "mine.toml").write_text(TABLE)
    return folder


TEXT = random_sentences(60, 20)


@pytest.fixture(scope="module")
def run(here):
    """Run the command on the tiny model; return the content of tables.json."""

    def run(*words: str, model: str = "tiny") -> dict:
        where = ["--data-root", str(here / "data"), "--out", str(here / "out")]
        command.main([str(here / model), "--text", str(here / "text.txt"), *where, *map(str, words)])
        return json.loads((here / "out/tables.json").read_text("utf-8"))

    return run


@pytest.fixture(scope="module")
def scores(here, run) -> dict[Row, dict[str, float]]:
    entries = run("--table", here / "mine.toml", "--fast")["rows"]
    return {
        Row(**{key: value for key, value in row.items() if key != "scores"}): row["scores"] for row in entries
    }


def encode_by_hand(here: Path, row: Row, fit_texts: list[str]):
    """The function that embeds as a row says, from models that are loaded and changed for it alone."""
    model = SentenceEncoder.from_pretrained(here / "tiny", row.layer or None)
    model.prompt = PROMPTS.get(row.prompt, "")
    weights, *weights_text = row.token_weights.split("=")
    postprocess, *postprocess_text = row.postprocess.split("=")
    token_texts = (TEXT if weights_text else fit_texts) if weights == "idf" else None
    if row.static:
        model = random_static_model(model)
    u = change(model, weights, token_texts)
    if row.interpolate:
        static = static_model_from_text(SentenceEncoder.from_pretrained(here / "tiny", row.layer), TEXT)
        u = interpolate(u, change(static, weights, token_texts), row.interpolate)
    mix = type("", (), {"tokenize": staticmethod(list), "embed_token_ids": staticmethod(u)})
    return change(mix, None, None, postprocess, TEXT if postprocess_text else fit_texts)


CHECKED = [
    Row("BERT", "1+4"),
    Row("BERT", "1+4", token_weights="idf", postprocess="zscore"),
    Row("BERT", "1+4", token_weights="idf=text", postprocess="abtt=text"),
    Row("BERT + Avg.", "1+4", interpolate=0.5, token_weights="idf=text", postprocess="abtt=text"),
    Row("BERT + Avg.", "1+4", interpolate=0.5, token_weights="content-words", postprocess="quantile"),
    Row("Avg.", "1+4", interpolate=1.0, token_weights="idf", postprocess="zscore"),
    Row("Avg.", "1+4", interpolate=1.0, postprocess="whiten"),
    Row("T0", "4", "T0", token_weights="mask-token"),
    Row("T4", "4", "T4", token_weights="no-mask"),
    Row("T4", "4", "T4", token_weights="content-words", postprocess="quantile"),
    Row("RE", "", static="random", token_weights="idf", postprocess="zscore"),
    Row("words", "word", token_weights="idf", postprocess="zscore"),
]


@pytest.mark.parametrize("row", CHECKED, ids=lambda row: f"{row.model} {row.token_weights} {row.postprocess}")
@pytest.mark.parametrize("name", ["stsb", "tweet", "sst2"])
def test_a_row_has_the_score_of_a_model_that_is_changed_by_hand(name, row, here, scores):
    task = get_task(name, data_root=str(here / "data"))
    read_split = partial(read_examples, task)
    splits = SPLITS if name == "sst2" else ["test"]  # of a classifier's task: all texts
    encode = encode_by_hand(here, row, [text for split in splits for text in read_split(split).sentences])
    expected = (EVALUATORS | FAST_EVALUATORS)[task.task_type](encode, task, read_split)[task.metric]
    assert scores[row][name] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("layer", "w"), [("0", -0.75), ("2", 1.0), ("3", 0.0), ("1+4", -0.75)])
def test_every_layer_is_interpolated_with_its_own_mean_vectors(layer, w, here, scores):
    task = get_task("stsb", data_root=str(here / "data"))
    row = Row("BERT", layer, interpolate=w)
    expected = EVALUATORS["similarity"](encode_by_hand(here, row, []), task, partial(read_examples, task))
    assert scores[row]["stsb"] == pytest.approx(expected["spearman"], abs=1e-6)


def test_isotropy_is_of_vectors_that_are_not_scaled(here, scores):
    model = SentenceEncoder.from_pretrained(here / "tiny", "1+4")
    x = torch.from_numpy(model.encode(TEXT))
    assert scores[Row("BERT", "1+4")]["isoscore"] == pytest.approx(iso_score(x), rel=1e-5)
    examples = read_examples(get_task("stsb", data_root=str(here / "data")), "train")
    best = [n for n, score in enumerate(examples.labels) if score == 5]
    u, v = (model.encode([column[n] for n in best], convert_to_tensor=True) for column in examples.texts)
    x = model.encode(examples.sentences, convert_to_tensor=True)
    result = scores[Row("BERT", "1+4")]
    assert result["alignment"] == pytest.approx(alignment(u, v, scale=False), rel=1e-5)
    assert result["uniformity"] == pytest.approx(uniformity(x, scale=False), rel=1e-5)
    scaled = scores[Row("BERT", "1+4", postprocess="normalize")]
    assert scaled["alignment"] == pytest.approx(alignment(u, v), rel=1e-5)
    assert result["alignment"] != pytest.approx(scaled["alignment"], rel=0.01)


def test_the_page_has_a_table_for_each_group_and_says_what_has_no_score(here, scores, run, capsys):
    run("--table", here / "mine.toml", "--fast")
    printed = capsys.readouterr().out
    assert "mine all, mean of 3 tasks\n" in printed and "Pearson correlation over the rows\n" in printed
    assert "stsb: postprocess whiten needs more sentences than dimensions" in printed  # RE has 768
    lines = printed[printed.index("mine IsoScore and similarity") :].splitlines()
    rows = [
        Row("BERT", "1+4", token_weights=w, postprocess=p)
        for w, p in (("uniform", ""), ("uniform", "zscore"), ("idf=text", ""))
    ]
    pairs = np.array([[scores[row]["isoscore"], scores[row]["stsb"]] for row in rows])
    assert lines[2].split() == ["BERT", "3", f"{pearson(*pairs.T):.2f}"]
    heading = next(line for line in printed.splitlines() if "interpolate" in line)
    assert heading.split() == ["interpolate", "0", "1", "2", "3", "4", "1+4"]


def test_a_task_without_data_is_left_out_and_named(run, here, capsys):
    (here / "few.toml").write_text('[[tables.few]]\ngroups = ["STS"]\nmodels = ["RE"]\n')
    content = run("--table", here / "few.toml")
    printed = capsys.readouterr().out
    assert list(content["rows"][0]["scores"]) == ["stsb"]
    assert "few STS (without sts12, sts13, sts14, sts15, sts16, sickr, str)" in printed
    assert "\nstr is left out: " in printed


def test_a_layer_that_the_model_lacks_is_an_error(run, here):
    (here / "deep.toml").write_text(BLOCK + "layers = [5]")
    with pytest.raises(InputError, match="^layer 5: this checkpoint has 4 layers"):
        run("--table", here / "deep.toml")


def test_damaged_data_is_an_error(run, here):
    (here / "data/sts12").mkdir()
    (here / "data/sts12/MSRvid.tsv").write_text("sentence1\tsentence2\tscore\na\tb\n")
    try:
        with pytest.raises(InputError, match="MSRvid.tsv, line 2"):
            run("--table", here / "few.toml")
    finally:
        (here / "data/sts12/MSRvid.tsv").unlink()


def test_a_static_model_is_a_column(run, here, capsys):
    model = SentenceEncoder.from_pretrained(here / "tiny")
    static_model_from_text(model, TEXT).save_pretrained(here / "mean")
    (here / "few.toml").write_text('[[tables.few]]\ngroups = ["STS"]\nmodels = ["RE"]\nrows = ["idf"]\n')
    rows = run("--table", here / "few.toml", "--static", f"B2S={here / 'mean'}")["rows"]
    assert [row["model"] for row in rows] == ["RE", "B2S"]
    table = capsys.readouterr().out.splitlines()
    assert next(line for line in table if line.startswith("token weights")).split()[-2:] == ["RE", "B2S"]


# ----------------------------------------------------------------------------------------------- the tables


def test_the_built_in_tables_are_those_of_the_paper():
    names = "table-1 table-4 table-5 table-a figure-1 figure-2 figure-3 figure-4 figure-5 figure-a".split()
    by_name = {name: read_tables([name]) for name in names}
    assert len(by_name["table-a"]) == 1 and len(by_name["table-a"][0].groups) == 14
    assert len(by_name["figure-a"][0].groups) == 26
    assert {len(table.resolve(12).rows) for table in by_name["figure-5"]} == {16 * 8}
    published = read_published()
    for name in ("table-1", "table-4", "table-5", "table-a"):
        ours = {
            (name, group, row.token_weights, row.postprocess): row.model
            for table in by_name[name]
            for group in table.groups
            for row in table.rows
        }
        assert ours.keys() == {key for key in published if key[0] == name}


def test_the_printed_means_are_those_of_the_printed_tasks():
    """Tables 4 and 5 are the means of tables A1 to A14, which have no abtt."""
    published, compared = read_published(), 0
    tasks = {"STS": [*GROUPS["sts"], "str"], "clustering": GROUPS["clustering"]}
    for (table, group, *row), printed in published.items():
        if table in ("table-4", "table-5") and group in tasks and "abtt" not in row:
            for model in (model for model, score in printed.items() if score):
                scores = [float(published["table-a", task, *row][model]) for task in tasks[group]]
                assert mean(scores) == pytest.approx(float(printed[model]), abs=0.1)
                compared += 1
    assert compared == 232


# ------------------------------------------------------------------------------------------------ bad files

BLOCK = '[[tables.x]]\ngroups = ["STS"]\nmodels = ["BERT"]\n'
BAD_TABLES = {
    BLOCK + 'rows = ["uniform zscor"]': "--postprocess zscor: 'zscor' is unknown: choose from center, zscore",
    BLOCK + 'rows = ["idff"]': "--token-weights 'idff': choose one of uniform",
    BLOCK + 'rows = ["idf=wiki"]': "--text 'wiki': choose one of text",
    BLOCK + 'layers = ["first"]': "--layer first: write a number",
    BLOCK + 'interpolate = ["half"]': "--interpolate 'half': give a number",
    BLOCK + 'figure = "pie"': "--figure 'pie': choose one of ",
    BLOCK.replace("BERT", "BART"): "--model 'BART': choose one of T0, T1",
    BLOCK.replace("STS", "SST"): "--group 'SST': choose one of STS",
    BLOCK.replace('["STS"]', '"STS"'): "--group 'S': choose one of STS",
    BLOCK + "seeds = 3": "{file} cannot be read (make_table() got an unexpected keyword argument 'seeds')",
    '[[tables.x]]\ngroups = ["STS"]': "table x: name models and groups",
    '[groups]\nmine = ["stsc"]\n' + BLOCK.replace("STS", "mine"): "--task 'stsc': choose one of ",
    "[tables": "{file} cannot be read (",
    "[tables]\nx = 3": "{file} cannot be read ('int' object is not iterable): see data/extraction.toml",
    "[models]\nq = 4\n" + BLOCK.replace("BERT", "q"): "{file} cannot be read (",
    BLOCK + 'rows = ["idf=text"]': "table x estimates from another text: give --text",
    BLOCK: "no task of the tables has data: sts12 is left out: ",
}


@pytest.mark.parametrize("content", BAD_TABLES)
def test_a_mistake_in_a_table_file_is_one_line(content, tmp_path):
    (tmp_path / "x.toml").write_text(content)
    words = ["no-model", "--table", str(tmp_path / "x.toml"), "--out", str(tmp_path / "out")]
    with pytest.raises(InputError) as error:
        command.main([*words, "--data-root", str(tmp_path)])
    message = error.value.as_cli_message()
    assert message.startswith(BAD_TABLES[content].format(file=tmp_path / "x.toml")) and "\n" not in message


def test_a_vocabulary_without_a_mask_has_no_prompts(here, run, capsys):
    model = SentenceEncoder.from_pretrained(here / "tiny")
    del model.tokenizer.special_tokens["mask_token"]
    table = ScoreTable("x", {"x": ["x"]}, [Row("T0", "4", "T0"), Row("BERT", "4")])
    results = score_tables(model, [table], {"x": Unit(TEXT, lambda encode: encode(TEXT).sum().item())})
    assert list(results.scores) == [Row("BERT", "4")] and math.isnan(results.mean(table.rows[0], ["x"]))
    assert "the vocabulary has no [MASK]" in next(iter(results.notes))
