"""Measures of isotropy against their definitions, written out, and against cases worked out by hand."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from tmft.evaluation.isotropy import alignment, iso_score, mean_cosine, uniformity

X = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 9) + 2


def test_mean_cosine_is_the_mean_over_all_pairs_of_different_embeddings():
    u = normalize(X.double(), dim=1)
    pairs = [(u[i] @ u[j]).item() for i in range(50) for j in range(50) if i != j]
    assert mean_cosine(X) == pytest.approx(np.mean(pairs), rel=1e-10)
    assert mean_cosine(torch.tensor([[1.0, 0], [0, 2], [-3, 0], [0, -1]])) == pytest.approx(-1 / 3)


def test_iso_score_step_by_step_as_in_the_paper():
    """Algorithm 1 of Rudman et al. 2022: principal axes, normalized variances, defect, rescaling."""
    D = X.shape[1]
    variances = np.linalg.eigvalsh(np.cov(X.T.double().numpy()))
    normalized = math.sqrt(D) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalized - 1) / math.sqrt(2 * (D - math.sqrt(D)))
    share = (D - defect**2 * (D - math.sqrt(D))) ** 2 / D**2
    assert iso_score(X) == pytest.approx((D * share - 1) / (D - 1), rel=1e-10)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_iso_score_of_k_equal_dimensions_of_five(k):
    x = torch.zeros(2 * k, 5)
    for axis in range(k):
        x[2 * axis : 2 * axis + 2, axis] = torch.tensor([1.0, -1.0])
    assert iso_score(x) == pytest.approx((k - 1) / 4)
    assert iso_score(100 * x + 7) == pytest.approx((k - 1) / 4)


def test_uniformity_is_the_mean_over_all_pairs_also_in_blocks(monkeypatch):
    expected = torch.pdist(normalize(X.double(), dim=1)).square().mul(-2).exp().mean().log().item()
    assert uniformity(X) == pytest.approx(expected, rel=1e-10)
    monkeypatch.setattr("tmft.evaluation.isotropy.BLOCK_SIZE", 7)
    assert uniformity(X) == pytest.approx(expected, rel=1e-10)


def test_vectors_that_are_not_scaled_keep_their_distances():
    """Also where each exp(-2 d²) is 0 in float64."""
    distances = torch.pdist(X.double())
    expected = distances.square().mul(-2).logsumexp(0).item() - math.log(len(distances))
    assert uniformity(X, scale=False) == pytest.approx(expected, rel=1e-10)
    far = 20 * torch.arange(3.0)[:, None]
    assert uniformity(far, scale=False) == pytest.approx(-800 + math.log(2 / 3))
    assert alignment(far[:2], far[1:], scale=False) == 400


def test_alignment_of_equal_orthogonal_and_opposite_vectors():
    u = torch.eye(3)
    assert alignment(u, 5 * u) == 0 and alignment(u, -u) == 4
    assert alignment(u, u.roll(1, 0)) == pytest.approx(2)


def test_measures_of_unsquared_distances_by_hand():
    """Two unit vectors at a right angle are sqrt(2) apart, opposite ones 2."""
    u = torch.eye(2)
    assert alignment(u, torch.stack([u[1], -u[1]]), power=1) == pytest.approx((math.sqrt(2) + 2) / 2)
    three = torch.tensor([[1.0, 0], [0, 3], [-2, 0]])  # two pairs at a right angle, one opposite
    mean = (2 * math.exp(-2 * math.sqrt(2)) + math.exp(-4)) / 3
    assert uniformity(three, power=1) == pytest.approx(math.log(mean), rel=1e-10)


def test_undefined_measures_are_nan_and_no_error():
    assert math.isnan(alignment(X[:0], X[:0])) and math.isnan(iso_score(torch.ones(4, 3)))
