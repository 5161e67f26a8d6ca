"""The comparisons that a report shows: every two sweeps, and every layer of a sweep with the whole model.

The differences are of test scores, and the intervals come from the paired bootstrap of
tmft/evaluation/bootstrap.py.
"""

import math
from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

import numpy as np

from tmft.evaluation.bootstrap import confidence_interval, resample_scores
from tmft.runs.run_result import read_sweep_predictions
from tmft.runs.sweeps import Sweep


class LayerComparison(NamedTuple):
    """The score of one sweep at one layer minus that of another sweep or layer, not x 100.

    first, second: what is compared, in words. low, high: ends of the 95 % confidence interval.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval does not contain 0."""
        return self.low > 0 or self.high < 0


class ResampledLayer(NamedTuple):
    """A sweep at one layer, scored on resampled test examples: labels (N,), and R scores, not x 100."""

    sweep: Sweep
    layer: int
    labels: np.ndarray
    scores: np.ndarray


def resample(layers: Iterable[tuple[Sweep, int]]) -> list[ResampledLayer]:
    """Score sweeps at a layer on resampled test examples, but those without predictions on test."""
    predictions = ((sweep, layer, read_sweep_predictions(sweep, layer)) for sweep, layer in layers)
    return [
        ResampledLayer(sweep, layer, runs[0][1], resample_scores(sweep.metric, runs))
        for sweep, layer, runs in predictions
        if runs
    ]


def compare_sweeps(sweeps: list[Sweep]) -> list[LayerComparison]:
    """Compare every two sweeps, each at the layer that is best on dev; the better one on dev comes first."""
    resampled = resample((sweep, sweep.best_layer) for sweep in sweeps)
    resampled.sort(key=lambda one: -np.nan_to_num(one.sweep.mean(one.layer, "dev"), nan=-9.0))
    comparisons = []
    for one, other in combinations(resampled, 2):
        first, second = (
            f"{each.sweep.name} at layer {each.layer} of {each.sweep.num_hidden_layers}"
            for each in (one, other)
        )
        comparisons += compare(one, other, first, second)
    return comparisons


def compare_layers_with_whole(sweep: Sweep) -> list[LayerComparison]:
    """Compare each layer of a sweep with the whole model; [] if the whole model was not run."""
    whole = sweep.num_hidden_layers
    if whole not in sweep.layers or not (references := resample([(sweep, whole)])):
        return []
    comparisons = []
    for one in resample((sweep, layer) for layer in sweep.layers if layer != whole):
        comparisons += compare(one, references[0], f"Layer {one.layer}", "the whole model")
    return comparisons


def compare(one: ResampledLayer, other: ResampledLayer, first: str, second: str) -> list[LayerComparison]:
    """Return the comparison of `one`, called first, with `other`, called second.

    There is none if they are of different test examples. Its interval is NaN if a resample has no score.
    """
    if not np.array_equal(one.labels, other.labels):
        return []
    interval = confidence_interval(one.scores - other.scores) or (math.nan, math.nan)
    difference = one.sweep.mean(one.layer, "test") - other.sweep.mean(other.layer, "test")
    return [LayerComparison(first, second, difference, *interval)]
