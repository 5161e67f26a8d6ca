"""Tables of scores x 100: a line for each task, layer or weight; isotropy is not multiplied."""

import math

from tmft.reports.score_tables import format_scores_by_metric, format_scores_by_variant

CLUSTERING = {"pairs": 8000, "accuracy": 0.5125, "std": 0.02}
SIMILARITY = {"pairs": 1379, "spearman": 0.7, "pearson": 0.65}
ISOTROPY_METRICS = {"mean_cosine": 0.25, "iso_score": 0.1, "alignment": 0.3, "uniformity": -2.5}


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


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


def test_an_undefined_score_of_a_weight_is_nan_and_has_no_bar():
    scores = {-0.25: 0.5, 0.0: math.nan, 1.0: 0.7}
    results = {"stsb": {weight: SIMILARITY | {"spearman": score} for weight, score in scores.items()}}
    heading, *lines = cells(format_scores_by_variant(results, {"stsb": "spearman"}, "weight"))
    assert heading[0] == "weight" and [line[0] for line in lines] == ["-0.25", "0.0", "1.0"]
    assert lines[1] == ["0.0", "nan"] and len(lines[2]) == 3
