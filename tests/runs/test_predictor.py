"""What was trained predicts: in Python, from a folder that was saved, and by the command."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PAIRS, tiny_model
from safetensors.torch import load_file, save_file
from test_result_json import replaced

import evaluate
from tmft import InputError, Predictor, SentenceEncoder, fine_tune
from tmft.cli import predict_command as predict
from tmft.runs.fine_tuning import FineTuningResult
from tmft.runs.run_result import read_predictions

ANIMALS = ["a dog", "the cat", "two dogs", "a cat eats", "the dog sleeps"]
MUSIC = ["music", "a man plays the guitar", "guitar music", "he plays music", "a guitar"]
SETTINGS = {"epochs": 6, "lr": 5e-3, "batch_size": 4, "precision": "fp32"}
TEXTS = [*((text, "animals") for text in ANIMALS), *((text, "music") for text in MUSIC)] * 2
PAIR_ROWS = [(a, b, "yes" if float(score) > 2.5 else "no") for a, b, score in (x.split("\t") for x in PAIRS)]
SCORE_ROWS = [(a, b, float(score)) for a, b, score in (line.split("\t") for line in PAIRS)]
# objective -> examples, and further settings
TRAINED = {
    "single_text_head": (TEXTS, {"epochs": 20}),
    "softmax": (PAIR_ROWS * 2, {}),
    "concat_head": (PAIR_ROWS * 2, {"metric": "accuracy"}),
    "cosine_bce": (PAIR_ROWS * 2, {"metric": "f1"}),
    "dot_product_head": (SCORE_ROWS * 2, {}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, FineTuningResult]:
    """The result of each objective, whose run folder is kept."""
    folder = tmp_path_factory.mktemp("runs")
    tiny_model().save_pretrained(folder / "tiny")
    results = {}
    for objective, (rows, more) in TRAINED.items():
        settings = SETTINGS | more | {"objective": objective, "output_dir": folder / objective}
        results[objective] = fine_tune(folder / "tiny", rows, rows, rows, **settings)
    return results


def texts_of(objective: str) -> list:
    """The examples of an objective without their labels."""
    return [text[0] if len(text) == 1 else text for *text, _ in TRAINED[objective][0]]


@pytest.mark.parametrize("objective", TRAINED)
def test_what_is_predicted_is_what_the_run_scored_on_test(objective, runs):
    result = runs[objective]
    labels, probabilities = result.predict(texts_of(objective))
    expected, _ = read_predictions(result.folder)
    classes = result.predictor.classes
    if objective == "dot_product_head":
        assert classes == [] and probabilities is None
        assert labels == pytest.approx(expected.tolist(), abs=1e-5)
        return
    if objective == "cosine_bce":
        assert probabilities is None
        expected = expected >= result.sweep.layers[result.layer][0]["dev"]["threshold"]
    else:
        assert probabilities.shape == (len(labels), 2) and probabilities.dtype == np.float64
        assert np.allclose(probabilities.sum(1), 1) and (probabilities >= 0).all()
        assert labels == [classes[index] for index in probabilities.argmax(1)]
        assert result.sweep.metric == "accuracy"
    assert labels == [classes[int(index)] for index in expected]
    assert classes == sorted({label for *_, label in TRAINED[objective][0]})


@pytest.mark.parametrize("objective", [*TRAINED, "multiple_negatives_ranking"])
def test_files_with_the_examples_of_test_are_scored_as_they_were_in_python(objective, runs, tmp_path):
    if objective in TRAINED:
        result, rows = runs[objective], TRAINED[objective][0]
    else:
        anchors, rows = [(a, b) for a, b, _ in SCORE_ROWS], SCORE_ROWS * 2
        settings = {"output_dir": tmp_path / "runs", "objective": objective, "layer": 1}
        result = fine_tune(tiny_model(), anchors, rows, rows, **SETTINGS, **settings)
    [settings] = (run["settings"]["task"] for [run] in result.sweep.layers.values())
    label = "label" if settings["classes"] else "score"
    header = ["text", label] if len(rows[0]) == 2 else ["sentence1", "sentence2", label]
    (tmp_path / "test.tsv").write_text("\n".join("\t".join(map(str, row)) for row in [header, *rows]))
    result.save_pretrained(tmp_path / "saved")
    evaluate.main([str(tmp_path / "saved"), "--data", str(tmp_path), "--json", str(tmp_path / "scores")])
    [scores] = json.loads((tmp_path / "scores").read_text())["layers"].values()
    expected = result.sweep.layers[result.layer][0]["test"]
    assert scores == {tmp_path.name: pytest.approx(expected, abs=1e-6)}

    with pytest.raises(InputError) as error:
        evaluate.main([str(tmp_path / "saved")])
    problem = "saved was trained on examples given in Python, which it does not keep: name a folder"
    expected_message = f"{problem} with a test.tsv of such examples as --data, or a --task"
    assert expected_message in error.value.as_cli_message()


@pytest.mark.parametrize("objective", TRAINED)
def test_a_predictor_that_is_saved_and_loaded_predicts_the_same(objective, runs, tmp_path):
    """Into a folder that held another one; its model opens as any other, and the run folder does as well."""
    texts, result = texts_of(objective), runs[objective]
    expected = result.predict(texts)
    runs["single_text_head"].save_pretrained(tmp_path / "saved")
    result.save_pretrained(tmp_path / "saved")
    for folder in (tmp_path / "saved", result.folder):
        found = Predictor.from_pretrained(folder).predict(texts)
        assert found.labels == expected.labels
        assert (found.probabilities is None) == (expected.probabilities is None)
        if expected.probabilities is not None:
            assert np.array_equal(found.probabilities, expected.probabilities)
    model = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert np.array_equal(model.encode(["a dog"]), result.model.encode(["a dog"]))
    assert (tmp_path / "saved/head.safetensors").is_file() == result.predictor.objective.has_head
    assert not (tmp_path / "saved/predictions.npz").exists()


def test_no_folder_is_not_the_current_one(runs, tmp_path, monkeypatch):
    """A variable that is not set is no order to write over the README.md of the current folder."""
    monkeypatch.chdir(tmp_path)
    result = runs["softmax"]
    for save in (result.save_pretrained, result.predictor.save_pretrained, result.model.save_pretrained):
        with pytest.raises(InputError, match="^folder is empty: give a value$"):
            save("")
    assert not list(tmp_path.iterdir())


REFUSED = {
    "one text": ("single_text_head", "a dog", TypeError, "a list of sentences is expected, not one string"),
    "a text as a pair": ("softmax", ["ab"], InputError, "example 0 is 'ab': give 2 texts, as a tuple"),
    "a number in a pair": ("softmax", [("a", 5)], TypeError, "sentence 1 is '5', of type int: give strings"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_classified_is_refused(name, runs):
    objective, texts, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        runs[objective].predict(texts)


def test_an_objective_without_a_head_predicts_nothing(tiny_folder):
    result = fine_tune(tiny_folder, SCORE_ROWS, SCORE_ROWS, SCORE_ROWS, epochs=1, layer=1)
    # without the name of the command, which begins the line already
    with pytest.raises(
        InputError, match="^the objective cosine_mse has no head that predicts labels: compare"
    ):
        result.predict([("a dog", "a cat")])


def change_result(*path, value: object):
    """Return a function that changes a value in a result.json."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps(replaced(content, path, value)))

    return change


def change_head(**tensors):
    """Return a function that changes tensors of a head: {name: function of the weight of the head}."""

    def change(folder: Path) -> None:
        head = load_file(folder / "head.safetensors")
        head |= {name.replace("_", "."): new(head["head.weight"]) for name, new in tensors.items()}
        save_file(head, folder / "head.safetensors")

    return change


# fmt: off
DAMAGED = [  # objective of a run, what becomes of its folder, words of the message
    ("single_text_head", change_head(head_weight=lambda w: w * float("nan")), "head.weight holds nan or inf"),
    ("single_text_head", change_head(head_weight=lambda w: w.int()), "head.weight has dtype torch.int32"),
    ("single_text_head", change_head(head_weight=lambda w: w.double() + 1e300),
     "head.weight has numbers that are not finite in torch.float32"),
    ("single_text_head", change_head(other=torch.clone), 'Unexpected key.* "other".*: name a run on this ta'),
    ("single_text_head", lambda folder: (folder / "result.json").unlink(), "no result.json of a run that"),
    ("single_text_head", lambda folder: (folder / "head.safetensors").unlink(), "has no head.safetensors"),
    ("single_text_head", change_result("settings", "task", "objective", value="softmin"),
     "objective 'softmin': choose one of"),
    *(("cosine_bce", change_result("dev", "threshold", value=value),
       "result.json .*threshold.*: restore it, or run it again") for value in (None, float("nan"), "0.5")),
]
# fmt: on


@pytest.mark.parametrize(("objective", "change", "message"), DAMAGED)
def test_a_damaged_folder_is_one_line(objective, change, message, runs, tmp_path):
    runs[objective].save_pretrained(tmp_path / "saved")
    change(tmp_path / "saved")
    with pytest.raises(InputError, match=message) as error:
        Predictor.from_pretrained(tmp_path / "saved")
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------- the command


def rows_of(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_the_command_prints_the_label_of_each_line(runs, tmp_path, capsys):
    result = runs["single_text_head"]
    (tmp_path / "texts.txt").write_text("a dog\n\nmusic\x1b[31m\n", encoding="utf-8")
    predict.main([str(result.folder), str(tmp_path / "texts.txt"), "--device", "cpu"])
    header, *rows = rows_of(capsys.readouterr().out)
    assert header == ["label", "probability", "text"]
    labels, probabilities = result.predict(["a dog", ".", "music\x1b[31m"])
    assert [row[0] for row in rows] == labels
    assert [row[1] for row in rows] == [f"{one:.4f}" for one in probabilities.max(1)]
    assert [row[2] for row in rows] == ["a dog", "", "music?[31m"]


@pytest.mark.parametrize(
    ("objective", "header"),
    [("softmax", ["label", "probability"]), ("cosine_bce", ["label"]), ("dot_product_head", ["label"])],
)
def test_the_command_reads_the_columns_of_a_table(objective, header, runs, tmp_path, capsys):
    result, pairs = runs[objective], [("a dog", "two dogs"), ("music", "a, b")]
    (tmp_path / "pairs.csv").write_text('x,question1,question2\n1,a dog,two dogs\n2,music,"a, b"\n')
    (tmp_path / "pairs.jsonl").write_text(
        "".join(json.dumps({"sentence1": a, "sentence2": b}) + "\n" for a, b in pairs)
    )
    printed = []
    for words in (["pairs.csv", "--columns", "question1,question2"], ["pairs.jsonl"]):
        predict.main([str(result.folder), str(tmp_path / words[0]), *words[1:], "--device", "cpu"])
        printed.append(rows_of(capsys.readouterr().out))
    assert printed[0] == printed[1]
    assert printed[0][0] == [*header, "sentence1", "sentence2"]
    labels = result.predict(pairs).labels
    shown = labels if result.predictor.classes else [f"{score:.4f}" for score in labels]
    assert [row[0] for row in printed[0][1:]] == shown
    assert [tuple(row[-2:]) for row in printed[0][1:]] == pairs


# fmt: off
MISTAKES = [  # file of texts, options, and words of the message for a model of pairs
    ("x.txt", [], "x.txt is no table by its name: name a .csv"),
    ("x.csv", ["--columns", "a"], "--columns a: the model was trained on sentence1 and sentence2: name as "),
    ("x.csv", ["--task", "sicke"], "--task 'sicke': choose one of"),
]
# fmt: on


@pytest.mark.parametrize(("file", "words", "message"), MISTAKES)
def test_mistakes_of_the_command_are_one_line(file, words, message, runs, tmp_path):
    (tmp_path / file).write_text("a,b\nc,d\n")
    folder = runs["softmax"].folder
    with pytest.raises(InputError) as error:
        predict.main([str(folder), str(tmp_path / file), *words, "--device", "cpu"])
    assert message in error.value.as_cli_message()
