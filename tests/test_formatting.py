"""Numbers as people read them."""

import math

import pytest

from tmft.formatting import as_json, bar, clock, markdown, mean_and_std, percent, table


def test_scores_are_times_100_and_undefined_ones_are_nan():
    assert percent(0.78214) == "78.21" and percent(None) == percent(math.nan) == "nan"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.5], "50.00"),
        ([0.5, 0.7], "60.00 ± 14.14"),
        ([math.nan], "nan"),
        ([0.5, math.nan], "nan"),
    ],
)
def test_the_deviation_is_that_of_a_sample(values, said):
    assert mean_and_std(values) == said


@pytest.mark.parametrize(("seconds", "said"), [(3725.4, "1:02:05"), (59.6, "0:01:00"), (0, "0:00:00")])
def test_a_clock_has_hours_minutes_and_seconds(seconds, said):
    assert clock(seconds) == said


def test_a_curve_is_drawn_from_its_smallest_value_to_its_largest():
    curve = [0.60, 0.75, 0.78, math.nan]
    assert [len(bar(curve, i, width=19)) for i in range(4)] == [1, 16, 19, 0]
    assert bar([0.5], 0) == "" == bar([0.5, 0.5], 1)


def test_a_table_sets_all_columns_flush_right_but_the_last():
    lines = [["layer", "score", ""], ["1", "78.21", "bar"], ["12", "9.00", ""]]
    assert table(lines) == "layer  score\n    1  78.21  bar\n   12   9.00"
    assert markdown(lines).splitlines()[:3] == [
        "| layer | score |  |",
        "| --- | ---: | ---: |",
        "| 1 | 78.21 | bar |",
    ]


def test_json_has_no_nan():
    assert as_json({"a": [math.nan, (1.0, math.inf)], "b": "é"}) == (
        '{\n  "a": [\n    null,\n    [\n      1.0,\n      null\n    ]\n  ],\n  "b": "é"\n}\n'
    )
