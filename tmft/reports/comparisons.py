"""The comparisons that a report shows: every two sweeps, and every layer of a sweep with the whole model.

The differences are of test scores, and the intervals come from the paired bootstrap of
tmft/evaluation/bootstrap.py.
"""

from dataclasses import dataclass
from itertools import combinations

from tmft.runs.predictions import LayerScores, compare_layer_scores, resample_layer
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


def compare_sweeps(sweeps: list[Sweep]) -> list[LayerComparison]:
    """Compare every two sweeps, each at the layer that is best on dev; the better one on dev comes first.

    Sweeps without predictions on test, and pairs whose test examples differ, are left out.
    """
    resampled = [scores for sweep in sweeps if (scores := resample_layer(sweep, sweep.best_layer))]
    resampled.sort(key=lambda scores: -dev_score(scores))
    comparisons = []
    for one, other in combinations(resampled, 2):
        if comparison := compare_layer_scores(one, other):
            first, second = (
                f"{scores.sweep.name} at layer {scores.layer} of {scores.sweep.num_hidden_layers}"
                for scores in (one, other)
            )
            note = "made with other settings" if any(describe_differences([one.sweep, other.sweep])) else ""
            comparisons.append(LayerComparison(first, second, *comparison, note))
    return comparisons


def compare_layers_with_whole(sweep: Sweep) -> list[LayerComparison]:
    """Compare each layer of a sweep with the whole model; [] if the whole model was not run."""
    whole = sweep.num_hidden_layers
    if whole not in sweep.layers or len(sweep.layers) < 2 or not (reference := resample_layer(sweep, whole)):
        return []
    comparisons = []
    for layer in [layer for layer in sweep.layers if layer != whole]:
        scores = resample_layer(sweep, layer)
        if scores and (comparison := compare_layer_scores(scores, reference)):
            note = "best on dev" if sweep.is_best(layer) else ""
            comparisons.append(LayerComparison(f"Layer {layer}", "the whole model", *comparison, note))
    return comparisons


def dev_score(scores: LayerScores) -> float:
    """Return the mean score on dev, or a number below all scores if it is undefined."""
    score = scores.sweep.mean(scores.layer, "dev")
    return score if score == score else -9.0
