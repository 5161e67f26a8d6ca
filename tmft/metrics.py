"""How well cosines agree with human scores. Raw values in [-1, 1]; the commands print them x 100."""

import numpy as np
from scipy import stats

from tmft.data import Pairs


def spearman(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Spearman's rank correlation; equal values share the mean of their ranks. NaN as in pearson."""
    return pearson(stats.rankdata(predicted), stats.rankdata(gold))


def pearson(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Pearson's linear correlation. NaN if one side is constant or not finite: nothing to correlate."""
    predicted, gold = np.asarray(predicted, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    if not np.isfinite(predicted).all() or np.ptp(predicted) == 0 or np.ptp(gold) == 0:
        return float("nan")
    return float(stats.pearsonr(predicted, gold).statistic)


def scores(predicted: np.ndarray, pairs: Pairs) -> dict:
    """Scores of one split: {"pairs": n, "spearman": ..., "pearson": ...}, correlated over all pairs at once.

    A split of several subsets also gets "subsets", the Spearman correlation of each, and "subset_mean",
    their plain mean. The two ways differ by several points: papers on STS12-16 mostly mean the first,
    called "all".
    """
    result = {"pairs": len(pairs)} | {
        name: metric(predicted, pairs.scores) for name, metric in METRICS.items()
    }
    if pairs.subsets:
        subsets = {
            name: spearman(predicted[part], pairs.scores[part]) for name, part in pairs.subsets.items()
        }
        result |= {"subset_mean": sum(subsets.values()) / len(subsets), "subsets": subsets}
    return result


METRICS = {"spearman": spearman, "pearson": pearson}
