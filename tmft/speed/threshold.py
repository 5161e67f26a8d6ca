"""Find the threshold with the best F1 in one pass over the sorted values, not one pass per threshold."""

import numpy as np


def best_threshold(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return the threshold with the highest F1 of the class 1; the highest threshold if several are equal.

    predicted: (N,) values; gold: (N,), 1 for the positive class. A pair is predicted as positive if its value
    is at least the threshold. The threshold lies halfway between two values, so that rounding moves no pair
    across it. If all pairs are predicted as positive, there is no smaller value, and it is the smallest
    value.
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
