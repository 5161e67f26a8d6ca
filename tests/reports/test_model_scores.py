"""Figures of models that evaluate.py has scored: what is read of its files, and what is drawn."""

import json
from functools import partial

import pytest
from conftest import tiny_model
from test_plots import drawing

import evaluate
from tmft import InputError
from tmft.cli import report_command
from tmft.evaluation import compare_models
from tmft.reports import model_scores
from tmft.reports.model_scores import read_model_scores, scores_table
from tmft.tasks import GROUPS

STS = {task: {"pairs": 9, "spearman": 0.1 * number} for number, task in enumerate(GROUPS["sts"], start=1)}
MEASURES = {"uniformity": -2.0, "alignment": 0.5}
SPEED = [
    {"tokens": tokens, "batch_size": size, "sentences_per_second": 10.0 * size}
    for tokens in (16, 128)
    for size in (1, 8)
]


def content(tasks=STS, pooling="mean", parameters=2_000_000, **more) -> dict:
    about = {"model": "x/base", "split": "test", "pooling": pooling, "parameters": parameters}
    return about | {"layers": {"4": tasks}} | more


def read(tmp_path, *contents) -> list[model_scores.ModelScores]:
    for number, each in enumerate(contents):
        (tmp_path / f"{number}.json").write_text(json.dumps(each))
    return read_model_scores(tmp_path)


def test_a_mean_is_that_of_all_tasks_of_a_group_or_none(tmp_path):
    some = {"sts12": {"spearman": 0.5}, "mr": {"accuracy": None}}
    whole, less = read(tmp_path, content(), content(some))
    assert whole.means == {"sts": pytest.approx(0.4)} and less.means == {}
    assert scores_table([whole])[1] == ["0", "mean", "2.00", "40.00", "–", "–", "–"]


def test_size_has_a_line_per_pooling_alignment_a_color_and_speed_a_line_per_length(tmp_path, monkeypatch):
    measured = {"stsb": STS["stsb"] | MEASURES}
    more = {"speed": SPEED, "environment": {"device": "a CPU"}}
    models = read(
        tmp_path,
        content(parameters=9_000_000),
        content(STS | measured, **more),
        content(pooling="decoder", parameters=4_000_000),
    )
    axes = drawing(partial(model_scores.draw_mean_score_by_size, group="sts"), models, tmp_path, monkeypatch)
    mean, decoder = axes.get_lines()
    assert (list(mean.get_xdata()), list(mean.get_ydata())) == ([2, 9], pytest.approx([40, 40]))
    assert list(decoder.get_xdata()) == [4] and decoder.get_label() == "pooling decoder"
    assert [text.get_text() for text in axes.texts] == ["0", "1", "2"] and axes.get_xscale() == "log"
    axes = drawing(model_scores.draw_alignment_and_uniformity, models, tmp_path, monkeypatch)
    assert axes.collections[0].get_offsets().tolist() == [[-2.0, 0.5]]
    assert axes.collections[0].get_array().tolist() == pytest.approx([60])
    axes = drawing(model_scores.draw_speed, models, tmp_path, monkeypatch)
    assert [line.get_label() for line in axes.get_lines()] == ["1 (2 M), 16 tokens", "1 (2 M), 128 tokens"]
    assert list(axes.get_lines()[0].get_ydata()) == [10, 80]


@pytest.mark.parametrize(
    "change", [{"layers": {}}, {"layers": {"4": 3}}, {"parameters": "many"}, {"speed": [{"tokens": 1}]}]
)
def test_a_file_with_values_of_another_kind_is_one_line(change, tmp_path):
    with pytest.raises(InputError, match="0.json cannot be read") as error:
        read(tmp_path, content() | change)
    assert "\n" not in str(error.value)
    assert read(tmp_path, {"model": "a", "pooling": "mean", "layers": {}}) == []  # an older file


def test_the_command_measures_speed_and_the_report_of_its_file_needs_no_run(
    tiny_folder, tiny_data, tmp_path, monkeypatch, capsys
):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(compare_models, "SPEED_TOKENS", (8, 16, 1000))  # a thousand are more than it reads
    monkeypatch.setattr(compare_models, "SPEED_BATCH_SIZES", (1, 3))
    (tmp_path / "scores").mkdir()
    line = [str(tiny_folder), "--data", str(tiny_data), "--isotropy", "--speed"]
    evaluate.main([*line, "--json", str(tmp_path / "scores/tiny.json")])
    content = json.loads((tmp_path / "scores/tiny.json").read_text())
    encoder = tiny_model().encoder
    assert content["parameters"] == sum(weight.numel() for weight in encoder.parameters())
    shapes = [(entry["tokens"], entry["batch_size"]) for entry in content["speed"]]
    assert shapes == [(8, 1), (8, 3), (16, 1), (16, 3)]
    assert all(entry["sentences_per_second"] > 0 for entry in content["speed"])
    report_command.main([str(tmp_path / "scores")])
    printed = capsys.readouterr().out
    assert "tokens  sentences at once  sentences/s" in printed and "models scored by evaluate.py" in printed
    names = {path.name for path in (tmp_path / "scores/report").glob("*.svg")}
    assert names == {"models-speed.svg"}  # alignment would be a single point
