"""The best of all cuts in one pass over the sorted values; trying each cut would take a pass for each."""

import numpy as np


def best_threshold(predicted: np.ndarray, gold: np.ndarray) -> float:
    """The cut of values with the highest F1 among all cuts; the highest such cut if several are as good.

    It lies halfway between two values, so that rounding moves no pair across it; below the smallest value
    there is nothing to be halfway to, and the cut is that value.
    """
    order = np.argsort(-predicted, kind="stable")
    values, hits = predicted[order], np.cumsum(gold[order] == 1)
    f1_of_cut = 2 * hits / (np.arange(1, len(values) + 1) + hits[-1])  # cut below value i: i + 1 are called 1
    cuts = np.flatnonzero(np.append(values[:-1] > values[1:], True))  # never between equal values
    best = cuts[np.argmax(f1_of_cut[cuts])]
    above, below = values[best], values[min(best + 1, len(values) - 1)]
    middle = (above + below) / 2
    return float(middle if middle > below else above)
