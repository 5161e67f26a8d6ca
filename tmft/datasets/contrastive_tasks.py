"""Tasks without labels: an anchor, what it means as well, and perhaps a hard negative, for multiple_negatives_ranking.

Rows like those of TASKS, with the recipe of Sentence-T5 (Ni et al. 2021, section 4.1), whose rate is one of
Adafactor, and one epoch. The epoch is chosen, and the run judged, on STS benchmark.
"""

from functools import partial

from tmft.data import Task

TRIPLET = ("anchor", "positive", "negative")
RECIPE = {"epochs": 1, "batch_size": 512, "chunk": 64, "optimizer": "adafactor", "lr": 1e-3}
RECIPE |= {"weight_decay": 0.0}

contrastive = partial(
    Task,
    label="",
    objective="multiple_negatives_ranking",
    judge="stsb/{split}.tsv",
    settings={"temperature": 0.01},
)
UNLABELLED = {
    # SNLI and MultiNLI as Gao et al. 2021 chose from them: entailed, contradicted
    "nli": contrastive("nli-triplets/{split}.tsv", columns=TRIPLET, recipe=RECIPE),
    # duplicate questions of Quora, in place of two billion pairs of community questions that are private
    "quora-pairs": contrastive(
        "quora-pairs/{split}.tsv", columns=TRIPLET[:2], recipe=RECIPE | {"batch_size": 2048}
    ),
}
