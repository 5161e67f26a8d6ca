"""The comparisons that a report shows, with confidence intervals and in words.

These are: every two checkpoints, each at the layer that is best on dev; and every layer of a checkpoint
against the whole model. The differences are of test scores, and the intervals come from the paired bootstrap
of tmft/runs/bootstrap.py.
"""

from dataclasses import dataclass
from itertools import combinations

from tmft.runs.bootstrap import LayerScores, compare, resample_layer
from tmft.runs.sweeps import Sweep, different_settings


@dataclass(frozen=True)
class LayerComparison:
    """The score of one sweep at one layer minus that of another sweep or layer, not x 100.

    first, second: what is compared, in words. difference: first minus second, not x 100. low, high: ends of
    the 95 % confidence interval.
    note: a remark on the comparison, such as "made with other settings"; "" if there is none.
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

    @property
    def sentence(self) -> str:
        """The comparison as a sentence, with numbers x 100."""
        points, side = 100 * abs(self.difference), "above" if self.difference > 0 else "below"
        begin = f"{self.first} scores {points:.2f} points {side} {self.second}"
        if self.is_significant:
            return f"{begin}, a significant difference: its 95 % interval does not contain 0."
        if not points:
            return f"{self.first} and {self.second} score the same."
        return f"{begin}. This may be chance: its 95 % interval contains 0."


def compare_sweeps(sweeps: list[Sweep]) -> list[LayerComparison]:
    """Compare every two sweeps, each at the layer that is best on dev; the better one on dev comes first.

    Sweeps without predictions on test, and pairs whose test examples differ, are left out.
    """
    resampled = [scores for sweep in sweeps if (scores := resample_layer(sweep, sweep.best_layer))]
    resampled.sort(key=lambda scores: -dev_score(scores))
    comparisons = []
    for one, other in combinations(resampled, 2):
        if comparison := compare(one, other):
            first, second = (
                f"{scores.sweep.name} at layer {scores.layer} of {scores.sweep.num_hidden_layers}"
                for scores in (one, other)
            )
            note = "made with other settings" if any(different_settings([one.sweep, other.sweep])) else ""
            comparisons.append(LayerComparison(first, second, *comparison, note))
    return comparisons


def compare_layers_with_whole(sweep: Sweep) -> list[LayerComparison]:
    """Compare each layer of a sweep with the whole model; [] if the whole model was not run."""
    whole = sweep.num_hidden_layers
    if whole not in sweep.layers or len(sweep.layers) < 2:
        return []
    reference = resample_layer(sweep, whole)
    comparisons = []
    for layer in sweep.layers:
        if layer == whole or reference is None or (scores := resample_layer(sweep, layer)) is None:
            continue
        if comparison := compare(scores, reference):
            note = "best on dev" if layer == sweep.best_layer else ""
            first = f"Layer {layer}"
            comparisons.append(LayerComparison(first, "the whole model", *comparison, note))
    return comparisons


def dev_score(scores: LayerScores) -> float:
    """Return the mean score on dev, or a number below all scores if it is undefined."""
    score = scores.sweep.mean(scores.layer, "dev")
    return score if score == score else -9.0


def comparison_table(comparisons: list[LayerComparison]) -> list[list[str]]:
    """Return a table with a line per comparison: the difference and its interval, x 100, and a verdict.

    comparisons: the lines, in this order. If one of them has a note, there is a column for it.
    """
    has_notes = any(one.note for one in comparisons)
    heading = ["compared", "compared with", "difference", "95 % from", "to", "significant"]
    lines = [[*heading, *["remark"] * has_notes]]
    for one in comparisons:
        points = [f"{100 * value:+.2f}" for value in (one.difference, one.low, one.high)]
        verdict = "yes" if one.is_significant else "no"
        lines.append([one.first, one.second, *points, verdict, *[one.note] * has_notes])
    return lines
