"""Formatting of numbers and tables for people."""

import math

import pytest

from tmft.io.formatting import format_duration, markdown_table, mean_and_std, text_bar, text_table, to_json


@pytest.mark.parametrize(
    ("values", "text"),
    [([0.78214], "78.21"), ([0.5, 0.7], "60.00 ± 14.14"), ([math.nan], "nan"), ([0.5, math.nan], "nan")],
)
def test_scores_are_times_100_with_the_std_of_a_sample_and_undefined_ones_are_nan(values, text):
    assert mean_and_std(values) == text


@pytest.mark.parametrize(("seconds", "text"), [(3725.4, "1:02:05"), (59.6, "0:01:00"), (0, "0:00:00")])
def test_a_duration_has_hours_minutes_and_seconds(seconds, text):
    assert format_duration(seconds) == text


def test_text_bars_range_from_the_smallest_value_to_the_largest():
    curve = [0.60, 0.75, 0.78, math.nan]
    assert [len(text_bar(curve, i, width=19)) for i in range(4)] == [1, 16, 19, 0]
    assert text_bar([0.5], 0) == "" == text_bar([0.5, 0.5], 1)


def test_all_columns_of_a_table_but_the_last_are_aligned_to_the_right():
    lines = [["layer", "score", ""], ["1", "78.21", "bar"], ["12", "9.00", ""]]
    assert text_table(lines) == "layer  score\n    1  78.21  bar\n   12   9.00"
    assert markdown_table(lines[:2]) == "| layer | score |  |\n| --- | ---: | ---: |\n| 1 | 78.21 | bar |\n"


def test_json_has_no_nan():
    expected = '{\n  "a": [\n    null,\n    [\n      1.0,\n      null\n    ]\n  ],\n  "b": "é"\n}\n'
    assert to_json({"a": [math.nan, (1.0, math.inf)], "b": "é"}) == expected
