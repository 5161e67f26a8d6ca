"""Objectives: from the embeddings of an example and its target to a loss, and to what the metric reads.

An objective is made for embeddings of `width` numbers and a task. It is called with the embeddings of the
texts, u and v of a pair, and the target for its loss; predict gives what the metric reads. The weights of one
with a head are trained with the encoder and lie beside it in the run folder.

Letters in this file: P pairs of a batch, N pairs of a split, D width, C classes.
"""

from tmft.losses.cosine import CosineBCE, CosineMSE
from tmft.losses.distillation import Distill
from tmft.losses.heads import HEADS
from tmft.losses.multiple_negatives import MultipleNegativesRanking

OBJECTIVES = {
    "cosine_mse": CosineMSE,
    "cosine_bce": CosineBCE,
    "multiple_negatives_ranking": MultipleNegativesRanking,
    "distill": Distill,
    **HEADS,
}
