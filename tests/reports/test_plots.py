"""Figures: what is drawn, in which format, and that the same figure always has the same bytes."""

import math
import re
import statistics
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tmft import InputError
from tmft.reports import plots
from tmft.reports.drawing import figure, line_style, name_ticks
from tmft.reports.plots import pareto_front, short_names
from tmft.reports.tables_page import draw_curves, draw_heat_map, score_grid
from tmft.runs.sweeps import Sweep, group_into_sweeps
from tmft.training_free.training_free_tables import Row, ScoreTable, TableScores

pytest.importorskip("matplotlib", reason="matplotlib is not installed (requirements-dev.txt)")


ELECTRA = "electra-base-discriminator-stsb"


def result(layer: int, seed: int, test: float | None, sweep: str = ELECTRA, data: str = "stsb") -> dict:
    """The keys of result.json that figures need."""
    settings = {"ckpt": "x", "layer": layer, "seed": seed, "task": {"metric": "spearman"}}
    scores = {"test": {"spearman": test}, "dev": {"spearman": test}}
    about = {"sweep": sweep, "data": data, "provenance": [], "num_hidden_layers": 12}
    epochs = [{"loss": 0.2 / n, "dev": {"spearman": 0.1 * n}, "pairs_per_second": 90 - layer} for n in (1, 2)]
    about |= {"settings": settings, "parameters": {"paper": 10**7 * (2 + layer)}, "epochs": epochs}
    return scores | about


def sweeps(*results: dict) -> list[Sweep]:
    return group_into_sweeps([(Path("runs/x/result.json"), result) for result in results])


RUNS = [
    result(layer, seed, 0.80 - 0.01 * (layer - 3) ** 2 + 0.01 * seed, sweep)
    for sweep in (ELECTRA, "bert-base-cased-stsb")
    for layer in (4, 0, 1, 2, 3)
    for seed in range(3)
]
BOTH = sweeps(*RUNS)
PAIRS = [
    {
        "a": "x/one",
        "b": "y/two",
        "layers_of_a": [0, 1, 2],
        "by_layer": [1.0, 0.8, 0.3],
        "matrix": [[1.0, 0.5], [0.2, 0.9], [0, 0]],
    }
]


DRAWN = [
    (plots.draw_score_by_layer, BOTH),
    (plots.draw_score_by_size, BOTH),
    (partial(plots.draw_epoch_curves, quantity="loss"), BOTH[0]),
    (plots.draw_cka_by_layer, PAIRS),
    (plots.draw_cka_heat_map, PAIRS),
]


def drawing(draw, what, tmp_path, monkeypatch):
    """Return the first axes that a function draws on."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: figures.append(figure))
    draw(what, tmp_path / "figure.png")
    return figures[0].axes[0]


@pytest.mark.parametrize(("draw", "what"), DRAWN)
def test_a_figure_has_its_text_as_text_a_title_a_description_and_the_same_bytes_twice(draw, what, tmp_path):
    for name in ("one", "two"):
        draw(what, [tmp_path / f"{name}{ending}" for ending in (".svg", ".pdf", ".PNG")])
    for ending, start in ((".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")):
        one, two = ((tmp_path / f"{name}{ending}").read_bytes() for name in ("one", "two"))
        assert one == two and one.startswith(start)
    svg = (tmp_path / "one.svg").read_text()
    assert svg.count("<text") > 5 and svg.count("<path") + svg.count("<text") > 20
    assert re.search("<title>.{4,}</title>", svg) and re.search("<dc:description>.{10,}</dc:desc", svg)


def test_score_by_layer_draws_mean_and_sample_std(tmp_path, monkeypatch):
    axes = drawing(plots.draw_score_by_layer, BOTH, tmp_path, monkeypatch)
    line, _ = axes.get_lines()
    seeds = [80.0, 81.0, 82.0]  # of layer 3
    assert list(line.get_xdata()) == [0, 1, 2, 3, 4]
    assert line.get_ydata()[3] == pytest.approx(statistics.mean(seeds))
    band = axes.collections[0].get_paths()[0].vertices
    at_3 = [y for x, y in band if x == 3]
    assert [min(at_3), max(at_3)] == pytest.approx(
        [81 - statistics.stdev(seeds), 81 + statistics.stdev(seeds)]
    )
    assert line.get_label() == "electra-base-discriminator (3 seeds)"
    assert axes.get_ylabel() == "Test Spearman × 100" and "Layer" in axes.get_xlabel()
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_a_star_marks_the_layer_that_dev_chose_and_the_label_has_the_numbers_of_seeds(tmp_path, monkeypatch):
    axes = drawing(plots.draw_score_by_layer, BOTH[:1], tmp_path, monkeypatch)
    band, star = axes.collections
    assert star.get_offsets().tolist() == [[3.0, pytest.approx(81)]]
    runs = [result(layer, seed, 0.5 + 0.1 * seed) for layer in (1, 4) for seed in range(2)]
    axes = drawing(plots.draw_score_by_layer, sweeps(*runs, result(4, 2, 0.6)), tmp_path, monkeypatch)
    assert axes.get_lines()[0].get_label() == "electra-base-discriminator (2–3 seeds)"


def test_a_map_of_cka_has_layer_0_at_the_top_its_own_scale_and_numbers(tmp_path, monkeypatch):
    axes = drawing(plots.draw_cka_heat_map, PAIRS, tmp_path, monkeypatch)
    assert axes.images[0].origin == "upper" and axes.images[0].get_clim() == (0.0, 1.0)
    assert [text.get_text() for text in axes.texts] == ["1.00", "0.50", "0.20", "0.90", "0.00", "0.00"]
    large = [{"a": "x/one", "b": "y/two", "matrix": [[0.5 + 0.01 * j for j in range(20)]] * 2}]
    axes = drawing(plots.draw_cka_heat_map, large, tmp_path, monkeypatch)
    assert axes.images[0].get_clim() == pytest.approx((0.5, 0.69)) and not axes.texts


def test_a_layer_of_which_a_seed_has_no_score_is_no_point(tmp_path, monkeypatch):
    runs = [result(layer, seed, 0.1 * layer) for layer in (1, 2, 4, 5) for seed in range(2)]
    runs += [result(3, 0, 0.3), result(3, 1, math.nan)]
    line, *_ = drawing(plots.draw_score_by_layer, sweeps(*runs), tmp_path, monkeypatch).get_lines()
    assert list(line.get_xdata()) == [1, 2, 4, 5] and line.get_ydata() == pytest.approx([10, 20, 40, 50])


def test_the_pareto_front_has_the_models_that_no_smaller_model_matches(tmp_path, monkeypatch):
    points = [
        (3, 5, "c"),
        (1, 2, "a"),
        (2, 2, "not better"),
        (2, 4, "b"),
        (4, 5, "not better"),
        (1, 1, "worse"),
    ]
    assert [name for *_, name in pareto_front(points)] == ["a", "b", "c"]
    axes = drawing(plots.draw_score_by_size, BOTH[:1], tmp_path, monkeypatch)
    points, front = axes.get_lines()
    assert list(points.get_xdata()) == [20, 30, 40, 50, 60]  # millions
    assert list(front.get_xdata()) == [20, 30, 40, 50] and "Millions" in axes.get_xlabel()


def test_published_scores_are_drawn_on_test_only(tmp_path, monkeypatch):
    electra = result(1, 0, 0.5)
    electra["settings"]["ckpt"] = "google/electra-base-discriminator"
    axes = drawing(plots.draw_score_by_layer, sweeps(electra), tmp_path, monkeypatch)
    labels = [line.get_label() for line in axes.get_lines()]
    name = "electra-base-discriminator, as published"
    assert labels[1:] == [f"{name} (arXiv)", f"{name} (EMNLP)"]
    curve, points = axes.get_lines()[1:]
    assert len(curve.get_xdata()) == 13 and (curve.get_marker(), points.get_marker()) == ("", "x")
    assert (points.get_xdata().tolist(), points.get_ydata().tolist()) == ([3, 9, 12], [75.29, 78.14, 66.82])
    draw = partial(plots.draw_score_by_layer, split="dev")
    assert len(drawing(draw, sweeps(electra), tmp_path, monkeypatch).get_lines()) == 1


def test_the_epochs_of_the_best_layer_and_of_the_whole_model_stand_out(tmp_path, monkeypatch):
    runs = [result(layer, seed, 0.1 * layer) for layer in (1, 2, 3) for seed in range(2)]
    (sweep,) = sweeps(*runs, result(12, 0, 0.1))
    axes = drawing(partial(plots.draw_epoch_curves, quantity="dev"), sweep, tmp_path, monkeypatch)
    labels = [line.get_label() for line in axes.get_lines() if not line.get_label().startswith("_")]
    assert labels == ["other layers", "layer 3, best on dev", "layer 12, the whole model"]
    assert [list(line.get_ydata()) for line in axes.get_lines()] == [[10.0, 20.0]] * 7
    axes = drawing(partial(plots.draw_epoch_curves, quantity="loss"), sweep, tmp_path, monkeypatch)
    assert list(axes.get_lines()[0].get_ydata()) == [0.2, 0.1]


def test_curves_of_unequal_depth_are_drawn_over_relative_depth(tmp_path, monkeypatch):
    curve = {"layers_of_a": [0, 1, 2, 3, 4], "by_layer": [1.0, 0.9, 0.8, 0.7, -0.1]}
    other = {"a": "x/three", "b": "y/two"} | curve
    axes = drawing(plots.draw_cka_by_layer, [*PAIRS, other], tmp_path, monkeypatch)
    assert [list(line.get_xdata()) for line in axes.get_lines()] == [[0, 50, 100], [0, 25, 50, 75, 100]]
    assert axes.get_xlabel() == "Depth (% of the layers)" and axes.get_ylim()[0] < -0.1
    alone = drawing(plots.draw_cka_by_layer, PAIRS, tmp_path, monkeypatch)
    assert list(alone.get_lines()[0].get_xdata()) == [0, 1, 2] and alone.get_ylim()[0] == 0


@pytest.fixture
def tables():
    """Scores of two tasks at named layers; RE has none, and is a line at the height of its score."""
    given = {("mean", "word"): (0.4, 0.6), ("mean", "0"): (0.6, 0.8), ("mean", "1+4"): (0.75, 0.75)}
    given |= {("prompt", "0"): (0.4, 0.4), ("prompt", "1+4"): (0.5, 0.5), ("RE", ""): (0.503, 0.503)}
    scores = {Row(*row): {"a": first, "b": second} for row, (first, second) in given.items()}
    return TableScores(scores), ScoreTable("mine", {"both": ["a", "b"]}, list(scores), "curves")


def test_layers_of_a_table_are_in_the_order_in_which_they_first_occur(tables, tmp_path, monkeypatch):
    results, table = tables
    grid = score_grid(results, table, ["a", "b"])
    axes = drawing(partial(draw_curves, table, "both"), grid, tmp_path, monkeypatch)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["word", "0", "1+4"]
    mean, prompt, baseline = axes.get_lines()
    assert list(mean.get_ydata()) == pytest.approx([50, 70, 75])
    assert list(prompt.get_ydata()) == pytest.approx([math.nan, 40, 50], nan_ok=True)
    assert list(baseline.get_ydata()) == pytest.approx([50.3, 50.3, 50.3])
    assert baseline.get_label() == "RE" and "both" in axes.get_ylabel()


def test_a_heat_map_has_a_line_per_weight_and_a_column_per_layer(tmp_path, monkeypatch):
    scores = {
        Row("BERT", layer, interpolate=w): {"a": score}
        for layer, w, score in [("0", -0.5, 0.1), ("0", 1.0, 0.2), ("1", -0.5, 0.3)]
    }
    table = ScoreTable("mine", {"a": ["a"]}, list(scores), "heat map")
    grid = score_grid(TableScores(scores), table, ["a"])
    axes = drawing(partial(draw_heat_map, table, "a"), grid, tmp_path, monkeypatch)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["-0.5", "1.0"]
    assert axes.images[0].get_array().filled(0).tolist() == [[10, 30], [20, 0]]
    assert [text.get_text() for text in axes.texts] == ["10.0", "30.0", "20.0"]


@pytest.mark.parametrize(("layers", "rotated"), [(6, 0), (12, 0), (24, 90)])
def test_tick_labels_are_rotated_if_they_would_overlap(layers, rotated, tmp_path):
    with figure(tmp_path / "x.svg", "title", "note") as axes:
        axes.plot(range(layers + 3))
        name_ticks(axes, ["word", *map(str, range(layers + 1)), f"1+{layers}"])
    assert {tick.get_rotation() for tick in axes.get_xticklabels()} == {rotated}
    boxes = [tick.get_window_extent() for tick in axes.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_a_figure_without_matplotlib_is_a_one_line_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="figures need matplotlib, .*: pip install matplotlib"):
        plots.draw_cka_by_layer(PAIRS, tmp_path / "x.svg")


def test_lines_differ_without_color():
    styles = [line_style(number) for number in range(28)]
    assert len({(style["marker"], style["linestyle"]) for style in styles[:7]}) == 7
    assert len({(style["color"], style["linestyle"]) for style in styles}) == 28


def test_short_names_are_distinct():
    assert short_names(["google/electra", "klue/bert"]) == {"google/electra": "electra", "klue/bert": "bert"}
    assert short_names(["a/model", "b/model", "a/model"]) == {"a/model": "a/model", "b/model": "b/model"}


@pytest.mark.parametrize(
    ("what", "path", "message"),
    [
        (BOTH, "x.gif", "unknown figure format (x.gif): end the name in .png, .pdf, .svg"),
        (
            sweeps(result(1, 0, None)),
            "x.png",
            "no score is defined (NaN, or none given)",
        ),
        (BOTH, "/proc/none/x.png", "cannot write /proc/none/x.png"),
    ],
)
@pytest.mark.parametrize("draw", [plots.draw_score_by_layer, plots.draw_score_by_size])
def test_what_cannot_be_drawn_is_a_one_line_error(draw, what, path, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(message)):
        draw(what, Path(path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [".png", ".pdf", ".svg"])
def test_a_figure_that_does_not_fit_on_the_disk_is_one_line(kind, tmp_path):
    """The writers of matplotlib fail a second time when they close the file."""
    pytest.importorskip("matplotlib")
    resource = pytest.importorskip("resource", reason="this system has no limit of a file's size")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        message = rf"cannot write .*figure\{kind} .*: check space and permissions"
        with pytest.raises(InputError, match=message):
            with figure(tmp_path / f"figure{kind}", "title", "note") as axes:
                axes.plot([1, 2], [3, 4])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
