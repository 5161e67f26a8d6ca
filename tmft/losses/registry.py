"""The registry of objectives. `Objective` describes what an entry must have; docs/extending.md adds one."""

from tmft.losses.cosine import CosineBCE, CosineMSE
from tmft.losses.distillation import EmbeddingDistillation
from tmft.losses.heads import (
    ConcatCosine01Head,
    ConcatCosineHead,
    ConcatHead,
    CosineHead,
    DotProductHead,
    SingleTextHead,
    SoftmaxLoss,
)
from tmft.losses.multiple_negatives import MultipleNegativesRanking

OBJECTIVES = {
    # the loss on the cosine itself: no parameters
    "cosine_mse": CosineMSE,
    "cosine_bce": CosineBCE,
    # no labels: in-batch negatives, or the embeddings of a teacher
    "multiple_negatives_ranking": MultipleNegativesRanking,
    "distillation": EmbeddingDistillation,
    # a trained head: classes of a pair (softmax) or of one text (single_text_head), or one score of a pair
    "softmax": SoftmaxLoss,
    "single_text_head": SingleTextHead,
    "dot_product_head": DotProductHead,
    "cosine_head": CosineHead,
    "concat_head": ConcatHead,
    "concat_cosine_head": ConcatCosineHead,
    "concat_cosine01_head": ConcatCosine01Head,
}
