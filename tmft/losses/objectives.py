"""The registry of objectives: name -> class.

An objective is a loss on embeddings together with the predictions that the metric scores. `Objective`
(tmft/loss.py) describes what a class must have, and docs/extending.md shows how to add one. The
objectives of pre-training, such as masked language modeling, are in tmft/pretraining/.
"""

from tmft.loss import CosineBCE, CosineMSE, Objective
from tmft.losses.heads import (
    ConcatCosine01Head,
    ConcatCosineHead,
    ConcatHead,
    CosineHead,
    DotProductHead,
    SingleTextClassifier,
    SoftmaxLoss,
)
from tmft.losses.multiple_negatives import MultipleNegativesRanking
from tmft.losses.ranking import AnglE, CoSENT
from tmft.students.distillation import EmbeddingDistillation

OBJECTIVES: dict[str, type[Objective]] = {
    # losses on the cosine of a pair, without parameters
    "cosine_mse": CosineMSE,
    "cosine_bce": CosineBCE,
    # losses on the order of the scores in a batch, without parameters
    "cosent": CoSENT,
    "angle": AnglE,
    # losses without labels, which learn from in-batch negatives or from the embeddings of a teacher
    "multiple_negatives_ranking": MultipleNegativesRanking,
    "distillation": EmbeddingDistillation,
    # losses with a trained head: classes of a pair (softmax) or of one text, or the score of a pair
    "softmax": SoftmaxLoss,
    "single_text_head": SingleTextClassifier,
    "dot_product_head": DotProductHead,
    "cosine_head": CosineHead,
    "concat_head": ConcatHead,
    "concat_cosine_head": ConcatCosineHead,
    "concat_cosine01_head": ConcatCosine01Head,
}
