"""Published scores that need no model: random vectors for the words of the uncased BERT vocabulary.

Stankevičius and Lukoševičius 2024, tables A13 and A14, column RE. Theirs are other random vectors.
"""

import os
from functools import partial
from statistics import mean

import pytest

from tmft import SentenceEncoder
from tmft.datasets.task_lookup import get_task, read_split
from tmft.evaluation.evaluators import EVALUATORS
from tmft.training_free.static_models import random_static_model
from tmft.training_free.training_free import TrainingFreeConfig, TrainingFreeEncoders

# Token weights, post-processing: Spearman x 100 on the test pairs of STSB and STS13, the source of idf.
PUBLISHED = {
    ("uniform", ""): (46.5, 48.8),
    ("uniform", "zscore"): (54.6, 55.9),
    ("uniform", "quantile"): (52.4, 54.8),
    ("uniform", "whiten"): (68.1, 75.1),
    ("idf", ""): (69.8, 72.5),
    ("idf", "zscore"): (70.0, 73.0),
    ("idf", "quantile"): (64.4, 73.4),
    ("idf", "whiten"): (66.5, 74.6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stsb", "sts13"] if "TMFT_LONG" in os.environ else ["sts13"])
def test_random_embeddings_have_the_scores_of_the_paper(name, minilm, real_data):
    model = SentenceEncoder.from_pretrained(minilm, layer=0)  # for its tokenizer, that of bert-base-uncased
    task = get_task(name, data_root=str(real_data))
    read_task = partial(read_split, task)
    sentences = read_task("test").sentences
    random_models = [random_static_model(model, seed=seed) for seed in range(3)]
    for (token_weights, postprocess), published in PUBLISHED.items():
        config, scores = TrainingFreeConfig(token_weights, postprocess), []
        for random_model in random_models:
            encode = TrainingFreeEncoders(random_model, {0: config}).encoders(sentences)[0]
            scores.append(EVALUATORS["similarity"](encode, task, read_task)["spearman"])
        assert 100 * mean(scores) == pytest.approx(published[name == "sts13"], abs=1.0), config
