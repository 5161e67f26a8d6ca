"""Six exercises of growing difficulty. Fill in the functions, then check them:

    python docs/lecture/check.py        # says for each one whether it is right and, if not, what is wrong

Solutions: solutions.py. Letters: B sentences, T tokens, D size of a vector, N pairs of sentences.
"""

import numpy as np
import torch  # noqa: F401  for your solutions
from torch import Tensor


def mean_pooling(hidden: Tensor, mask: Tensor) -> Tensor:
    """Exercise 1. Return the mean of the vectors of each sentence over its tokens, (B, D).

    hidden: (B, T, D). mask: (B, T), 1 for tokens and 0 for padding, which must not count.
    """
    raise NotImplementedError


def cosine_loss(u: Tensor, v: Tensor, scores: Tensor, max_score: float = 5.0) -> Tensor:
    """Exercise 2. Return the loss of the method, one number: how far cosines are from what people say.

    u, v: (N, D), the embeddings of the sentences of N pairs. scores: (N,), from 0 to max_score. The cosine of
    a pair should be its score, scaled to 0 .. 1; the loss is the mean of the squared differences.
    """
    raise NotImplementedError


def spearman(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Exercise 3. Return Spearman's rank correlation, without scipy.

    predicted, gold: (N,). Replace each number by its rank; equal numbers get the mean of their ranks. Then it
    is Pearson's correlation of the ranks.
    """
    raise NotImplementedError


def all_hidden_states(encoder, ids: Tensor, mask: Tensor) -> list[Tensor]:
    """Exercise 4. Return the output of the embeddings and of each layer, a list of (B, T, D).

    encoder: the Encoder of one_file.py, whose hidden_state returns only the last of them. Each layer must be
    computed only once, so calling hidden_state for every number of layers is too slow.
    """
    raise NotImplementedError


def linear_cka(x: Tensor, y: Tensor) -> float:
    """Exercise 5. Return linear CKA of two sets of embeddings of the same N sentences.

    x: (N, D1), y: (N, D2). Subtract the mean of each column, then CKA is ||X'Y||² / (||X'X|| ||Y'Y||), where
    X' is the transpose and ||.|| the Frobenius norm: the square root of the sum of all squared numbers.
    """
    raise NotImplementedError


def difference_interval(
    first: np.ndarray, second: np.ndarray, gold: np.ndarray, resamples: int = 500, seed: int = 0
) -> tuple[float, float]:
    """Exercise 6. Is one model better than another? Return a 95 % interval of the difference of their scores.

    first, second: (N,), what two models predict for the same N pairs. gold: (N,), what people say. Draw N of
    the N pairs with replacement, compute Spearman of the first model minus that of the second on them, and
    repeat. The interval reaches from the 2.5th to the 97.5th percentile of these differences. Both models
    must be scored on the same pairs: then it does not matter that some pairs are harder than others.
    """
    raise NotImplementedError
