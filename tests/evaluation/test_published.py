"""Published figures that need no weights: random vectors for the words of the uncased BERT vocabulary.

Stankevičius and Lukoševičius 2024, tables A13 and A14, column RE. They are of another random table.
"""

from functools import partial
from statistics import mean

import pytest

from tmft import SentenceEncoder
from tmft.datasets.task_lookup import get_task, read_split
from tmft.evaluation.evaluators import EVALUATORS
from tmft.evaluation.training_free import TrainingFreeEncoders, TrainingFreeConfig, random_static_model

PUBLISHED = {  # tokens, after: Spearman x 100 on the test pairs of STSB and of 2013; idf is of these pairs
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
@pytest.mark.parametrize("task", ["stsb", "sts13"])
def test_random_embeddings_score_what_the_paper_prints(task, minilm, real_data):
    words = SentenceEncoder.from_pretrained(minilm, layer=0)  # for its tokenizer, that of bert-base-uncased
    row = get_task(task, data_root=str(real_data))
    read = partial(read_split, row)
    tables = [random_static_model(words, seed=seed) for seed in range(3)]
    for (tokens, after), figures in PUBLISHED.items():
        encoders = [
            TrainingFreeEncoders(table, [0], TrainingFreeConfig(tokens, after)).encoders(read("test").sentences)[0]
            for table in tables
        ]
        score = mean(EVALUATORS["similarity"](encode, row, read)["spearman"] for encode in encoders)
        assert 100 * score == pytest.approx(figures[task == "sts13"], abs=1.0), (tokens, after)
