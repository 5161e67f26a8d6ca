"""The model card: its head is YAML whatever the names in it are, and what they say does nothing."""

import pytest
import yaml
from conftest import tiny_model

from tmft import SentenceEncoder
from tmft.checkpoints.model_card import ModelCardData, parse_hub_id, sentence_model_card
from tmft.io.formatting import escape_markdown
from tmft.runs.run_result import card_data_from_result, fine_tuning_to_markdown

NAMES = [
    "null", "- a", "---", "a: b", "[a", "|", "`a`", '"', "a\n---\nb: c\n", "\x1b]0;x\x07", "\x85\u2028\ufeff",
    "\ud800", "日本😀", "x" * 5000, "<script>a</script>", "[a](http://b) ![c](d)", "a | b",
]  # fmt: skip


def head_of(card: str) -> dict:
    """Between its first line and the next that is ---."""
    head, _, body = card.removeprefix("---\n").partition("\n---\n")
    assert body.startswith("\n# ")
    return yaml.safe_load(head)


@pytest.mark.parametrize("name", NAMES)
def test_the_head_of_a_card_is_yaml_whatever_the_names_are(name):
    model = tiny_model()
    model.source = name
    told = ModelCardData(scores=((name, name, name, 0.5),))
    card = sentence_model_card(model, told)
    head = head_of(card)
    assert head["library_name"] == "sentence-transformers" and "tmft" in head["tags"]
    assert isinstance(head.get("base_model", ""), str)
    [entry] = head["model-index"]
    [result] = entry["results"]
    shown = result["dataset"]["name"]
    assert isinstance(shown, str) and shown.isprintable() and len(shown) <= 205
    assert result["metrics"][0]["value"] == 50.0
    if name.isprintable() and len(name) < 200:
        assert shown == name
    [title] = [line for line in card.splitlines() if line.startswith("# ")]
    assert title.isprintable() and len(title) < 600


@pytest.mark.parametrize("name", NAMES)
def test_results_in_a_card_are_the_same_text_whatever_the_names_are(name):
    """As many lines, as many cells in each, and no HTML or link."""

    def card(name: str) -> str:
        scores = {name: 0.5, "pairs": 9, "sub_embeddings": {name: 0.4}}
        settings = {"ckpt": name, "init": name, "seed": 0, "epochs": 1, "batch_size": 2, "lr": 0.1}
        settings |= {"task": {"objective": name, "metric": name}}
        result = {"settings": settings, "dev": scores, "test": scores, "data": name, "precision": name}
        result |= {"provenance": [{"data": name, "settings": settings}], "parameters": {"stored": 9}}
        return (
            fine_tuning_to_markdown(result | {"chosen_epoch": 1})
            + card_data_from_result(result | {"chosen_epoch": 1}).results
        )

    def cells(text: str) -> list[int]:
        return [line.replace("\\|", "").count("|") for line in text.splitlines()]

    text = card(name)
    assert cells(text) == cells(card("a")) and len(text) < 9000
    assert all(line.isprintable() for line in text.split("\n"))
    for mark in ("<", "](", "`"):
        assert mark not in text.replace(f"\\{mark}", "")


# Kept layers of a tiny model of four -> the words of its card.
KEPT = {
    (0, 2, 3): "Sentence embeddings from layers 0, 2, 3 (counted from 0) of",
    (1,): "Sentence embeddings from layer 1 (counted from 0) of",
    (0, 1): "Sentence embeddings from 2 layers of",
    (0,): "Sentence embeddings from 1 layer of",
}


@pytest.mark.parametrize("kept", KEPT)
def test_a_card_names_the_layers_that_were_kept(kept, tiny_folder):
    model = SentenceEncoder.from_pretrained(tiny_folder)
    model.encoder.keep_layers(kept)
    card = sentence_model_card(model, ModelCardData("Scores", base="google/electra"))
    assert KEPT[kept] in card and head_of(card)["tags"]


def result_of(**changes) -> dict:
    """The content of a result.json, as far as a card needs it, with other settings."""
    settings = {"ckpt": "a/base", "init": "pretrained", "seed": 0, "epochs": 1, "batch_size": 2, "lr": 0.1}
    settings |= {
        "layer": 2,
        "task": {"objective": "cosine_mse", "metric": "spearman"} | changes.pop("task", {}),
    }
    result = {"settings": settings | changes, "data": "x", "precision": "fp32", "provenance": []}
    scores = {"pairs": 9, "spearman": 0.5}
    return result | {"dev": scores, "test": scores, "chosen_epoch": 1, "parameters": {"stored": 9}}


def test_the_card_of_a_run_with_a_teacher_names_its_lines_and_what_it_was_scored_on():
    args = {"teacher": "/folder/of/mine", "text": ["there/wiki.txt", "web.txt.gz"]}
    task = {"objective": "distillation", "objective_args": args, "eval_files": "data/stsb/{split}.tsv"}
    card = sentence_model_card(tiny_model(), card_data_from_result(result_of(task=task, keep_layers=[0, 3])))
    assert "# Sentence embeddings from layers 0, 3 (counted from 0) of a/base\n" in card
    assert "Trained to give the lines of wiki.txt, web.txt.gz the embeddings of mine, starting from" in card
    assert "A student of mine, made by tmft." in card and "/folder/of" not in card and "truncated" not in card
    [entry] = head_of(card)["model-index"]
    assert {result["dataset"]["name"] for result in entry["results"]} == {"stsb"}
    task["metric"] = "teacher_cosine"
    data = card_data_from_result(result_of(task=task))
    assert {name for name, *_ in data.scores} <= {"x"}


@pytest.mark.parametrize(
    ("kept", "title"),
    [
        ([{}], "from 2 layers of a/base"),
        (
            [{"keep_layers": [0, 3, 7], "layer": 3}, {"layer": 2}],
            "from layers 0, 3 (counted from 0) of a/base",
        ),
        (
            [{"keep_layers": [0, 3, 7]}, {"keep_layers": [1, 2]}],
            "from layers 3, 7 (counted from 0) of a/base",
        ),
        ([{"ckpt": None}, {"ckpt": "my/start"}], "from 2 layers of my/start"),
    ],
)
def test_a_title_has_the_layers_of_the_first_checkpoint_that_all_runs_have_left(kept, title):
    *before, last = [result_of(**changes) for changes in kept]
    result = last | {"provenance": before, "num_hidden_layers": 4}
    model = tiny_model()
    model.encoder.keep_layers(range(last["settings"]["layer"]))
    model.source = "runs/mine"
    assert f"{title}\n" in sentence_model_card(model, card_data_from_result(result))


def test_a_prompt_of_a_saved_folder_does_nothing_in_a_card():
    model = tiny_model()
    model.prompt = "<img src=x> [a](http://b) [X] " + "guitar " * 900
    card = sentence_model_card(model)
    assert "leaves out the prompt '\\<img src=x\\> [a\\](http" in card and len(card) < 5000


def test_plain_words_stay_as_they_are_and_a_hub_id_is_short_ascii(tmp_path):
    assert (
        escape_markdown("google/electra-base: f1_macro x 100 (a, b)")
        == "google/electra-base: f1_macro x 100 (a, b)"
    )
    assert parse_hub_id("google/electra@main") == "google/electra" and parse_hub_id(str(tmp_path)) == ""
    assert (
        parse_hub_id("x" * 97) == parse_hub_id("é") == parse_hub_id("a/b/c") == parse_hub_id("x" * 5000) == ""
    )
