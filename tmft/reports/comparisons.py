"""The comparisons that a report shows: every two sweeps, and every layer of a sweep with the whole model.

The differences are of test scores, and the intervals come from the paired bootstrap of
tmft/evaluation/bootstrap.py.
"""

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tmft.evaluation.bootstrap import confidence_interval, resample_scores
from tmft.runs.predictions import read_sweep_predictions
from tmft.runs.sweeps import Sweep, describe_differences


@dataclass(frozen=True)
class LayerComparison:
    """The score of one sweep at one layer minus that of another sweep or layer, not x 100.

    first, second: what is compared, in words. low, high: ends of the 95 % confidence interval. note: a remark
    such as "made with other settings"; "" if there is none.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    note: str = ""

    @property
    def is_significant(self) -> bool:
        """Whether the interval does not contain 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class ResampledLayer:
    """A sweep at one layer, scored on resampled test examples: labels (N,), and R scores, not x 100."""

    sweep: Sweep
    layer: int
    labels: np.ndarray
    scores: np.ndarray

    def compare(self, other: "ResampledLayer", first: str, second: str, note: str) -> list[LayerComparison]:
        """Return the comparison of this layer, called first, with the other one, called second.

        There is none if they are of different test examples. Its interval is NaN if a resample has no score.
        """
        if not np.array_equal(self.labels, other.labels):
            return []
        interval = confidence_interval(self.scores - other.scores) or (math.nan, math.nan)
        difference = self.sweep.mean(self.layer, "test") - other.sweep.mean(other.layer, "test")
        return [LayerComparison(first, second, difference, *interval, note)]


def resample(sweep: Sweep, layer: int) -> list[ResampledLayer]:
    """Score a sweep at a layer on resampled test examples; [] if its runs have no predictions on test."""
    runs = read_sweep_predictions(sweep, layer)
    return [ResampledLayer(sweep, layer, runs[0][1], resample_scores(sweep.metric, runs))] if runs else []


def compare_sweeps(sweeps: list[Sweep]) -> list[LayerComparison]:
    """Compare every two sweeps, each at the layer that is best on dev; the better one on dev comes first.

    Sweeps without predictions on test, and pairs whose test examples differ, are left out.
    """
    resampled = [each for sweep in sweeps for each in resample(sweep, sweep.best_layer)]
    resampled.sort(key=lambda each: -np.nan_to_num(each.sweep.mean(each.layer, "dev"), nan=-9.0))
    comparisons = []
    for one, other in combinations(resampled, 2):
        first, second = (
            f"{each.sweep.name} at layer {each.layer} of {each.sweep.num_hidden_layers}"
            for each in (one, other)
        )
        note = "made with other settings" if any(describe_differences([one.sweep, other.sweep])) else ""
        comparisons += one.compare(other, first, second, note)
    return comparisons


def compare_layers_with_whole(sweep: Sweep) -> list[LayerComparison]:
    """Compare each layer of a sweep with the whole model; [] if the whole model was not run."""
    whole = sweep.num_hidden_layers
    if whole not in sweep.layers or len(sweep.layers) < 2:
        return []
    comparisons = []
    for reference in resample(sweep, whole):
        for each in (each for layer in sweep.layers if layer != whole for each in resample(sweep, layer)):
            note = "best on dev" if sweep.is_best(each.layer) else ""
            comparisons += each.compare(reference, f"Layer {each.layer}", "the whole model", note)
    return comparisons
