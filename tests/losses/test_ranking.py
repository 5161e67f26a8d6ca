"""CoSENT and AnglE against their formulas, pair by pair in Python, and against sentence-transformers."""

import cmath
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tmft.losses.ranking import AnglE, CoSENT, angle_similarity
from tmft.tasks import TASKS

BATCHES = st.tuples(
    st.integers(2, 9),  # pairs
    st.integers(2, 7),  # dimensions
    st.integers(0, 2**31),
    st.sampled_from([0.05, 0.5, 2.0]),  # temperatures
)


def draw(num_pairs, dimensions, seed):
    """Embeddings with more than one cosine, and scores of which several are equal."""
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.randn(2, num_pairs, dimensions, generator=generator)
    return u, v, torch.randint(0, 4, (num_pairs,), generator=generator) / 3


def cosent(similarities, scores, temperature):
    """Su 2022, equation 6, term by term."""
    terms = [
        math.exp((similarities[j] - similarities[i]) / temperature)
        for i in range(len(scores))
        for j in range(len(scores))
        if scores[i] > scores[j]
    ]
    return math.log(1 + sum(terms))


def angle(u, v):
    """Li and Li 2024, equations 5 to 8: complex division z / w, divided by the quotient of the lengths.

    The lengths are those of the embeddings, as in their code. Multiplied by |w|² / |w|² each quotient is
    z times the conjugate of w, as polar coordinates say it.
    """
    u, v = (x / x.norm() for x in (u, v))
    u, v = (torch.cat([x, torch.zeros(len(x) % 2)]).tolist() for x in (u, v))
    half, total = len(u) // 2, 0j
    for k in range(half):
        z, w = complex(u[k], u[half + k]), complex(v[k], v[half + k])
        total += cmath.rect(abs(z) * abs(w), cmath.phase(z) - cmath.phase(w))
    return abs(total.real + total.imag)


@given(BATCHES)
def test_both_losses_are_their_formulas(batch):
    *sizes, temperature = batch
    u, v, scores = draw(*sizes)
    task = replace(TASKS["stsb"], objective_args={"temperature": temperature})
    cosines = [(a @ b / a.norm() / b.norm()).item() for a, b in zip(u, v, strict=True)]
    angles = [angle(a, b) for a, b in zip(u, v, strict=True)]
    for loss, similarities in ((CoSENT, cosines), (AnglE, angles)):
        expected = cosent(similarities, scores.tolist(), temperature)
        assert loss(u.shape[1], task)(u, v, scores).item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@given(BATCHES)
def test_both_losses_are_those_of_sentence_transformers(batch):
    from sentence_transformers.util import pairwise_angle_sim

    *sizes, _ = batch
    u, v, scores = draw(*sizes)
    torch.testing.assert_close(angle_similarity(u, v), pairwise_angle_sim(u, v), rtol=1e-4, atol=1e-5)
    try:
        from sentence_transformers.sentence_transformer.losses import AnglELoss, CoSENTLoss
    except ImportError:  # an older version
        from sentence_transformers.losses import AnglELoss, CoSENTLoss
    if not hasattr(CoSENTLoss, "compute_loss_from_embeddings"):
        pytest.skip("this version of sentence-transformers needs a model for a loss")
    for ours, theirs in ((CoSENT, CoSENTLoss), (AnglE, AnglELoss)):
        expected = theirs(model=torch.nn.Identity()).compute_loss_from_embeddings([u, v], scores)
        torch.testing.assert_close(ours(u.shape[1])(u, v, scores), expected, rtol=1e-4, atol=1e-5)


def test_pairs_with_equal_scores_are_not_compared():
    u, v, _ = draw(5, 4, 0)
    assert CoSENT(4)(u, v, torch.ones(5)).item() == 0
