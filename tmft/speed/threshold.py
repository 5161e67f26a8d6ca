"""Find the threshold with the best F1 in a single pass over the sorted values."""

import numpy as np


def best_threshold(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return the threshold with the highest F1 of the positive class; the highest one if several are equal.

    predicted: (N,) values, one for each pair. gold: (N,), 1 for positive pairs. A pair is predicted as
    positive if its value is at least the threshold. The threshold lies halfway between two neighboring
    values, so that rounding errors do not move a pair across it. If it is best to predict all pairs as
    positive, the threshold is the smallest value.
    """
    order = np.argsort(-predicted, kind="stable")
    values, true_positives = predicted[order], np.cumsum(gold[order] == 1)
    # f1[i]: F1 if the i + 1 largest values are predicted as positive
    f1 = 2 * true_positives / (np.arange(1, len(values) + 1) + true_positives[-1])
    last_of_equals = np.flatnonzero(np.append(values[:-1] > values[1:], True))  # never between equal values
    best = last_of_equals[np.argmax(f1[last_of_equals])]
    above, below = values[best], values[min(best + 1, len(values) - 1)]
    middle = (above + below) / 2
    return float(middle if middle > below else above)
