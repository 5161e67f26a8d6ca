"""k-means equals that of scikit-learn from the same initial centers; clustering accuracy; the evaluator."""

import math
import statistics

import numpy as np
import pytest
import torch

from tmft.data import Examples
from tmft.errors import InputError
from tmft.evaluation import clustering as module
from tmft.evaluation.clustering import (
    clustering_accuracy,
    evaluate_clustering,
    k_means,
    kmeans_plus_plus,
    lloyd,
)
from tmft.tasks import Task


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def groups(k: int, each: int, D: int = 5, apart: float = 3.0) -> tuple[torch.Tensor, list[int]]:
    """k groups of normal points, in a random order, mean 0; and the group of each."""
    generator = seeded()
    gold = torch.arange(k).repeat(each)[torch.randperm(k * each, generator=generator)]
    middles = apart * torch.randn(k, D, generator=generator)
    x = middles[gold] + torch.randn(k * each, D, generator=generator)
    return x - x.mean(0), gold.tolist()


def sklearn_k_means(x: torch.Tensor, centers: torch.Tensor):
    from sklearn.cluster import KMeans

    return KMeans(len(centers), init=centers.numpy(), n_init=1).fit(x.numpy())


def inertia(x: torch.Tensor, labels: torch.Tensor) -> float:
    """Of labels alone: around the means of their points."""
    parts = [x[labels == number].double() for number in labels.unique()]
    return sum((part - part.mean(0)).square().sum().item() for part in parts)


# -------------------------------------------------------------------------------------- from the same centers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("k", "apart"), [(1, 1), (2, 0), (4, 3), (20, 1), (20, 0), (50, 0.5)])
def test_lloyd_takes_the_steps_of_scikit_learn(k, apart, dtype):
    x = groups(20, 60, apart=apart)[0].to(dtype)
    centers = x[torch.randperm(len(x), generator=seeded(1))[:k]]
    labels, means, total, n_iter = lloyd(x, centers)
    expected = sklearn_k_means(x, centers)
    assert labels.tolist() == expected.labels_.tolist()
    assert total == pytest.approx(expected.inertia_, rel=1e-5)
    torch.testing.assert_close(means, torch.from_numpy(expected.cluster_centers_), rtol=0, atol=1e-5)
    assert expected.n_iter_ - n_iter in (0, 1)  # it counts the last iteration, in which nothing moves


def test_lloyd_stops_where_scikit_learn_does(monkeypatch):
    x = groups(20, 60, apart=0)[0]
    centers = x[:20]
    monkeypatch.setattr(module, "MAX_ITERATIONS", 3)
    from sklearn.cluster import KMeans

    expected = KMeans(20, init=centers.numpy(), n_init=1, max_iter=3).fit(x.numpy())
    labels, _, total, n_iter = lloyd(x, centers)
    assert n_iter == 3 and labels.tolist() == expected.labels_.tolist()
    assert total == pytest.approx(expected.inertia_, rel=1e-5)


def test_every_text_has_the_nearest_center_though_most_are_not_compared_again(monkeypatch):
    compared, nearest_centers = [], module.nearest_centers

    def counting(x, *others):
        compared.append(len(x))
        return nearest_centers(x, *others)

    monkeypatch.setattr(module, "nearest_centers", counting)
    x = groups(10, 200, apart=0.8)[0]
    labels, centers, total, n_iter = lloyd(x, x[:10])
    assert labels.tolist() == torch.cdist(x, centers).argmin(1).tolist()
    assert total == pytest.approx((x - centers[labels]).square().sum().item(), rel=1e-5)
    assert compared[0] == 2000 and len(compared) == n_iter + 1 > 10
    assert sum(compared) < 0.6 * len(compared) * 2000


# ------------------------------------------------------------------------------------- centers without texts


@pytest.mark.parametrize("empty", [1, 3, 8])
def test_centers_without_texts_end_as_those_of_scikit_learn(empty):
    x = groups(6, 50, apart=1)[0].double()
    far = 50 + torch.arange(5.0 * empty).view(empty, 5)
    centers = torch.cat([x[:4], far.double(), x[4:8]])
    labels, _, total, _ = lloyd(x, centers)
    expected = sklearn_k_means(x, centers)
    assert len(labels.unique()) == 8 + empty
    assert clustering_accuracy(labels, expected.labels_) == 1.0
    assert total == pytest.approx(expected.inertia_, rel=1e-9)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_with_more_clusters_than_distinct_points_some_stay_empty():
    points = torch.tensor([[0.0, 0], [1, 0], [0, 1]])
    x = points.repeat(4, 1)
    labels = k_means(x, 7, seeded())
    assert clustering_accuracy(labels, [0, 1, 2] * 4) == 1.0 and inertia(x, labels) == 0
    centers = x[:7] - x.mean(0)
    labels, _, total, _ = lloyd(x - x.mean(0), centers)
    assert clustering_accuracy(labels, sklearn_k_means(x - x.mean(0), centers).labels_) == 1.0
    assert total == pytest.approx(0, abs=1e-5)


# ---------------------------------------------------------------------------------- initial centers, restarts


def test_initial_centers_are_as_good_as_those_of_scikit_learn():
    """Sum of the squared distances to the nearest center: means over 400 initializations each."""
    from sklearn.cluster import kmeans_plusplus

    x = groups(30, 20, D=3, apart=2.0)[0]
    left = lambda centers: torch.cdist(x, centers).amin(1).square().sum().item()  # noqa: E731
    ours = [left(centers) for centers in kmeans_plus_plus(x, 30, seeded(), 400)]
    them = [
        left(torch.from_numpy(kmeans_plusplus(x.numpy(), 30, random_state=seed)[0])) for seed in range(400)
    ]
    error = math.hypot(statistics.stdev(ours), statistics.stdev(them)) / math.sqrt(400)
    assert abs(statistics.mean(ours) - statistics.mean(them)) < 4 * error < 0.03 * statistics.mean(them)


def test_the_same_seed_gives_the_same_clusters_and_another_seed_others():
    x = groups(20, 30, apart=0)[0]
    first, again, other = (k_means(x, 20, seeded(seed), 2) for seed in (0, 0, 1))
    assert torch.equal(first, again) and clustering_accuracy(first, other) < 0.9


@pytest.mark.parametrize(
    ("k", "restarts", "message"),
    [(5, 1, "k 5: choose 1 to 4"), (0, 1, "k 0: choose 1 to 4"), (2, 0, "restarts 0: choose 1 or more")],
)
def test_a_number_out_of_range_is_an_error_of_one_line(k, restarts, message):
    with pytest.raises(InputError, match=message):
        k_means(torch.eye(4), k, seeded(), restarts)


# ------------------------------------------------------------------------------------------------- accuracy


def test_the_best_map_from_clusters_to_classes():
    """Texts by cluster (row) and class: 3 2 0 / 4 0 1 / 0 1 1. The best mapping takes 2 + 4 + 1 of 12; the
    largest class of each cluster would be the first class twice, 3 + 4."""
    table = [[3, 2, 0], [4, 0, 1], [0, 1, 1]]
    cells = [(row, column) for row in range(3) for column in range(3) for _ in range(table[row][column])]
    predicted, gold = zip(*cells, strict=True)
    assert clustering_accuracy(predicted, gold) == 7 / 12


@pytest.mark.parametrize(
    ("predicted", "accuracy"), [([0, 0, 0, 0], 0.5), ([0, 1, 2, 3], 0.5), ([1, 1, 2, 0], 0.75)]
)
def test_fewer_and_more_clusters_than_classes(predicted, accuracy):
    assert clustering_accuracy(predicted, [0, 0, 1, 1]) == accuracy


# ------------------------------------------------------------------------------------------------ evaluator

TASK = Task("x", columns=("text",), label="label", classes={"any": 0}, objective="", task_type="clustering")


def evaluate(x: torch.Tensor, gold: list[int], **settings) -> dict:
    """The result of the evaluator for texts "0", "1", ... with these embeddings."""
    encode = lambda texts: x[[int(text) for text in texts]]  # noqa: E731
    read_split = {"test": Examples(([str(n) for n in range(len(gold))],), gold)}.__getitem__
    return evaluate_clustering(encode, TASK, read_split, **settings)


def test_the_evaluator_returns_mean_and_sample_standard_deviation_over_the_seeds():
    x, gold = groups(20, 30, apart=1)
    each = [clustering_accuracy(k_means(x, 20, seeded(seed), 3), gold) for seed in range(5)]
    result = evaluate(x, gold, runs=5, restarts=3)
    assert result == {
        "pairs": 600,
        "accuracy": pytest.approx(statistics.mean(each)),
        "std": pytest.approx(np.std(each, ddof=1)),
    }
    assert result["std"] > 0


def test_there_are_as_many_clusters_as_classes_occur():
    """Classes 3, 7 and 9: three clusters, not ten."""
    x, gold = groups(3, 30, apart=20.0)
    assert evaluate(x, [[3, 7, 9][label] for label in gold], runs=2)["accuracy"] == 1.0


def test_embeddings_are_neither_centered_nor_normalized():
    """Two groups in one direction, which differ only in length."""
    x = torch.tensor([[1.0, 0], [1.1, 0], [1.2, 0], [9, 0], [9.1, 0], [9.2, 0]])
    result = evaluate(x, [0, 0, 0, 1, 1, 1], runs=1)
    assert result["accuracy"] == 1.0 and math.isnan(result["std"])  # a single run has none


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_accuracy_of_embeddings_that_are_not_finite_is_nan(value):
    x, gold = groups(3, 30)
    x[4, 2] = value
    result = evaluate(x, gold)
    assert result["pairs"] == 90 and math.isnan(result["accuracy"]) and math.isnan(result["std"])
