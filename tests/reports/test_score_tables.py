"""Tables of scores x 100: a line for each task, layer or weight; isotropy is not multiplied."""

import math

from tmft.reports.score_tables import format_isotropy, format_scores_by_metric, format_scores_by_variant

CLUSTERING = {"pairs": 8000, "accuracy": 0.5125, "std": 0.02}
SIMILARITY = {"pairs": 1379, "spearman": 0.7, "pearson": 0.65}
WITH_SUBSETS = {
    "pairs": 1500,
    "spearman": 0.6,
    "pearson": 0.5,
    "subset_mean": 0.55,
    "subsets": {"a": 0.5, "b": 0.6},
}
ISOTROPY_METRICS = {"mean_cosine": 0.25, "iso_score": 0.1, "alignment": 0.3, "uniformity": -2.5}


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_columns_are_the_metrics_of_all_tasks_and_empty_where_a_task_has_none():
    heading, *lines = cells(format_scores_by_metric({"stsb": {4: SIMILARITY}, "agnews": {4: CLUSTERING}}))
    assert heading == ["task", "examples", "spearman", "pearson", "accuracy", "std"]
    assert lines == [["stsb", "1379", "70.00", "65.00"], ["agnews", "8000", "51.25", "2.00"]]


def test_the_mean_of_subsets_is_shown_with_their_number():
    heading, *lines = cells(format_scores_by_metric({"sts13": {4: WITH_SUBSETS}, "stsb": {4: SIMILARITY}}))
    assert heading[-3:] == ["mean", "of", "subsets"]
    assert lines[0][-2:] == ["55.00", "(2)"] and lines[1][-1] == "65.00"


def test_thresholds_and_isotropy_are_no_columns():
    text = format_scores_by_metric(
        {"mrpc": {4: {"pairs": 9, "f1": 0.8, "threshold": 0.7} | ISOTROPY_METRICS}}
    )
    assert cells(text) == [["task", "examples", "f1"], ["mrpc", "9", "80.00"]]


def test_a_curve_has_the_metric_of_each_task_and_a_bar_of_their_mean():
    """Means 0.4, 0.6, 0.5: the shortest bar, the longest, and one between."""
    results = {
        "stsb": {layer: SIMILARITY | {"spearman": score} for layer, score in enumerate((0.5, 0.6, 0.7))},
        "tweet": {layer: CLUSTERING | {"accuracy": score} for layer, score in enumerate((0.3, 0.6, 0.3))},
    }
    heading, *lines = cells(
        format_scores_by_variant(results, {"stsb": "spearman", "tweet": "accuracy"}, "layer")
    )
    assert heading == ["layer", "stsb", "tweet", *"bar: mean of the tasks".split()]
    assert [line[:3] for line in lines] == [
        ["0", "50.00", "30.00"],
        ["1", "60.00", "60.00"],
        ["2", "70.00", "30.00"],
    ]
    bars = [len(line[3]) for line in lines]
    assert bars[0] == 1 and bars[1] == 24 and bars[0] < bars[2] < bars[1]


def test_a_curve_over_weights_has_a_line_for_each():
    results = {"stsb": {weight: SIMILARITY for weight in (-0.25, 0.0, 1.0)}}
    heading, *lines = cells(format_scores_by_variant(results, {"stsb": "spearman"}, "weight"))
    assert heading[0] == "weight" and [line[0] for line in lines] == ["-0.25", "0.0", "1.0"]


def test_an_undefined_score_is_nan_and_has_no_bar():
    results = {
        "stsb": {layer: SIMILARITY | {"spearman": score} for layer, score in enumerate((0.5, math.nan, 0.7))}
    }
    lines = cells(format_scores_by_variant(results, {"stsb": "spearman"}, "layer"))
    assert lines[2] == ["1", "nan"] and len(lines[3]) == 3


def test_isotropy_is_shown_by_layer_and_the_bar_is_that_of_the_score():
    layers = {0: WITH_SUBSETS | ISOTROPY_METRICS, 1: WITH_SUBSETS | {"spearman": 0.7} | ISOTROPY_METRICS}
    heading, *lines = format_isotropy(layers).splitlines()
    names = "layer spearman pearson mean cosine iso score alignment uniformity bar: spearman"
    assert heading.split() == names.split()
    assert lines[0].split() == ["0", "0.6000", "0.5000", "0.2500", "0.1000", "0.3000", "-2.5000", "█"]
    assert lines[1].endswith("█" * 24)
