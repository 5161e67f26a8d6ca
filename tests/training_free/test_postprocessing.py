"""Post-processing against scikit-learn, by hand, and on embeddings of a real encoder."""

import numpy as np
import pytest
import torch
from conftest import tiny_model
from torch.nn.functional import normalize

from tmft import SentenceEncoder
from tmft.data import read_examples
from tmft.datasets.task_lookup import get_task
from tmft.embedding.modules import Normalize
from tmft.errors import InputError
from tmft.evaluation.isotropy import iso_score
from tmft.training_free.postprocessing import (
    NO_VARIANCE,
    POSTPROCESSING,
    fit_postprocessing,
)

FITTED = [name for name in POSTPROCESSING if name != "normalize"]


def cloud(N: int, D: int, seed: int = 0) -> torch.Tensor:
    """Far from the origin, correlated and longer in some directions, as embeddings are; float32."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(D, D, generator=generator) * torch.linspace(0.2, 2, D)
    return torch.randn(N, D, generator=generator) @ mix + torch.linspace(-3, 5, D)


def mapped(names: str, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
    """Post-processing fitted to x, applied to x or to other embeddings."""
    with torch.no_grad():
        return torch.nn.Sequential(*fit_postprocessing(names, x))(x if other is None else other)


def covariance(x: torch.Tensor) -> torch.Tensor:
    return x.double().T.cov()


# ----------------------------------------------------------------------------------- against scikit-learn


def test_zscore_is_the_standard_scaler():
    from sklearn.preprocessing import StandardScaler

    x, other = cloud(50, 8), cloud(20, 8, seed=1)
    x[:, 3] = other[:, 3] = 0.7  # a dimension of one value, which float64 cannot average exactly
    theirs = StandardScaler().fit(x.double()).transform(other.double())
    np.testing.assert_allclose(mapped("zscore", x, other), theirs, atol=1e-5)


@pytest.mark.parametrize("shape", [(50, 8), (9, 8), (500, 40)])
def test_whitening_is_that_of_pca_but_for_signs(shape):
    from sklearn.decomposition import PCA

    x, other = cloud(*shape), cloud(30, shape[1], seed=1)
    theirs = torch.from_numpy(PCA(whiten=True).fit(x.double()).transform(other.double()))
    ours = mapped("whiten", x, other).double()
    torch.testing.assert_close(ours.abs(), theirs.abs(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.cdist(ours, ours), torch.cdist(theirs, theirs), rtol=1e-4, atol=1e-4)


def uniform(x: torch.Tensor, other: torch.Tensor) -> np.ndarray:
    from sklearn.preprocessing import QuantileTransformer

    transformer = QuantileTransformer(
        n_quantiles=min(1000, len(x)), output_distribution="uniform", subsample=None
    )
    return transformer.fit(x.double().numpy()).transform(other.double().numpy())


@pytest.mark.parametrize("N", [3, 50, 1500])
def test_robust_is_the_robust_scaler(N):
    from sklearn.preprocessing import RobustScaler

    x, other = cloud(N, 8), cloud(20, 8, seed=1)
    x[:, 3] = other[:, 3] = 0.7  # its quartiles are equal
    theirs = RobustScaler().fit(x.double()).transform(other.double())
    np.testing.assert_allclose(mapped("robust", x, other), theirs, atol=1e-5)


@pytest.mark.parametrize("N", [3, 50, 3000])
def test_quantile_normal_is_the_quantile_transformer(N):
    from sklearn.preprocessing import QuantileTransformer

    x, other = cloud(N, 40), 1.5 * cloud(200, 40, seed=1)
    transformer = QuantileTransformer(
        n_quantiles=min(1000, N), output_distribution="normal", subsample=None
    ).fit(x.double().numpy())
    for y in (x, other):
        theirs = transformer.transform(y.double().numpy())
        np.testing.assert_allclose(mapped("quantile-normal", x, y), theirs, atol=1e-3)


@pytest.mark.parametrize("num_axes", [1, 2, 5])
def test_abtt_removes_as_many_principal_axes_as_its_name_says(num_axes):
    from sklearn.decomposition import PCA

    x, other = cloud(60, 8), cloud(20, 8, seed=1)
    pca = PCA(num_axes).fit(x.double())
    theirs = (other.double() - pca.mean_) - (other.double() - pca.mean_) @ pca.components_.T @ pca.components_
    np.testing.assert_allclose(mapped(f"abtt-{num_axes}", x, other), theirs, atol=1e-4)
    assert torch.equal(mapped("abtt-2", x), mapped("abtt", x))


@pytest.mark.parametrize("name", ["abtt-8", "abtt-0", "abtt-x", "zscore-2"])
def test_a_number_of_axes_that_makes_no_sense_is_one_line(name):
    with pytest.raises(InputError, match=f"^postprocess {name}") as error:
        fit_postprocessing(name, cloud(60, 8))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("N", [2, 3, 50, 999, 1000, 1001, 3000])
def test_quantile_is_the_quantile_transformer(N):
    """D = 40 is more than one block; the others are from a wider cloud, and fall outside now and then."""
    x, other = cloud(N, 40), 1.5 * cloud(200, 40, seed=1)
    np.testing.assert_allclose(mapped("quantile", x, other), uniform(x, other), atol=1e-6)
    np.testing.assert_allclose(mapped("quantile", x), uniform(x, x), atol=1e-6)


@pytest.mark.parametrize("N", [7, 50, 1000, 3000])
def test_quantile_is_the_quantile_transformer_where_values_are_tied(N):
    x = cloud(N, 40).round()
    x[: N // 2, :5], x[:, 7] = 1.0, -2.0  # half of a dimension, and a whole one
    other = torch.cat([x, x + 0.5, x - 100, x + 100])
    np.testing.assert_allclose(mapped("quantile", x, other), uniform(x, other), atol=1e-6)


# ------------------------------------------------------------------------------------------------- by hand

SQUARE = torch.tensor([[1.0, 2], [3, 2], [1, 6], [3, 6]])  # mean 2 and 4, deviations 1 and 2


def test_a_dimension_of_one_value_is_0_after_zscore():
    """Of one value up to the last digit of float64, too, as a product of matrices leaves it."""
    x = torch.tensor([[0.1, 1.0]] * 3 + [[0.1, 5.0]] * 4).double()
    x[3, 0] = torch.nextafter(x[1, 0], torch.tensor(1.0).double())
    (dense,) = fit_postprocessing("zscore", x)
    assert dense.weight[0, 0] == 1 and dense(x.float())[:, 0].abs().max() < 1e-6


def test_abtt_flattens_the_two_longest_axes_and_leaves_the_rest():
    """Points on three axes at right angles: 9 and 5 are cut off, 2 stays, and so does the smallest."""
    axes = torch.linalg.qr(cloud(4, 4).double()).Q.float()  # rows
    lengths = torch.tensor([5.0, 1.0, 9.0, 2.0])
    around = torch.cat([lengths.diag(), -lengths.diag()])
    x = around @ axes + torch.tensor([10.0, 0, -3, 1])
    expected = around * torch.tensor([0.0, 1, 0, 1]) @ axes
    torch.testing.assert_close(mapped("abtt", x), expected, rtol=0, atol=1e-5)


def test_quantiles_of_five_values():
    """Four gaps of 1/4; the two 2s share the middle of 1/4 and 2/4; 6 lies halfway from 4 to 8."""
    x = torch.tensor([[2.0], [0.0], [4.0], [2.0], [8.0]])
    other = torch.tensor([[-1.0], [0], [1], [2], [3], [4], [6], [8], [9]])
    found = mapped("quantile", x, other).flatten()
    assert found.tolist() == [0, 0, 0.125, 0.375, 0.625, 0.75, 0.875, 1, 1]


def test_quantile_of_nan_is_nan():
    found = mapped("quantile", cloud(50, 3), torch.tensor([[0.0, float("nan"), 0.0]]))
    assert found.isnan().tolist() == [[False, True, False]]


def test_normalize_fits_nothing():
    (module,) = fit_postprocessing("normalize", SQUARE[:1])
    assert type(module) is Normalize
    torch.testing.assert_close(module(SQUARE), normalize(SQUARE))


# ------------------------------------------------------------------------------------------------ whitening


def test_an_axis_without_variance_is_removed():
    """Rows that sum to 0, as LayerNorm leaves them, up to float32: the K = D - 1 other axes are a ball."""
    x = torch.nn.functional.layer_norm(cloud(200, 12), (12,))
    (dense,) = fit_postprocessing("whiten", x)
    assert dense.weight.shape == (11, 12) and dense.config["out_features"] == 11
    torch.testing.assert_close(covariance(mapped("whiten", x)), torch.eye(11).double(), rtol=0, atol=1e-4)


def test_axes_are_kept_down_to_the_variance_that_is_rounding():
    x = cloud(400, 3) * torch.tensor([1.0, 1e-3, 1e-3 * NO_VARIANCE**0.5])
    assert fit_postprocessing("whiten", x)[0].out_features == 2


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_axes_without_variance_are_removed_at_any_scale(scale):
    x = cloud(300, 6)
    x[:, 5] = x[:, 0] - x[:, 1]  # five axes have all the variance
    assert fit_postprocessing("whiten", scale * x)[0].out_features == 5
    assert fit_postprocessing("whiten", scale * cloud(300, 6))[0].out_features == 6


# ---------------------------------------------------------------------------------------- modules and chains


def test_quantile_is_not_saved(tmp_path):
    model = tiny_model()
    model.head_modules.extend(fit_postprocessing("quantile", SQUARE))
    with pytest.raises(InputError, match="^a Quantile after the pooling cannot be saved: use one of Dense"):
        model.save_pretrained(tmp_path)


@pytest.mark.parametrize("name", POSTPROCESSING)
def test_float32_and_float64_give_the_same_map_and_float32_embeddings(name):
    x = cloud(60, 6)
    single, double = mapped(name, x), mapped(name, x.double(), x)
    assert single.dtype == torch.float32 and torch.equal(single, double)


@pytest.mark.parametrize("name", POSTPROCESSING)
def test_fitting_changes_neither_the_embeddings_nor_the_random_state_of_the_caller(name):
    x = cloud(60, 6)
    before, state = x.clone(), torch.get_rng_state()
    mapped(name, x)
    assert torch.equal(x, before) and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        ("center+abtt+zscore", "Dense"),
        ("abtt+normalize", "Dense Normalize"),
        ("normalize+center+whiten", "Normalize Dense"),
        ("zscore+quantile+center+abtt+normalize", "Dense Quantile Dense Normalize"),
        ("center+normalize+center", "Dense Normalize Dense"),
    ],
)
def test_each_entry_is_fitted_to_the_output_before_it_and_consecutive_affine_maps_are_one(names, kinds):
    x = cloud(200, 6)
    modules = fit_postprocessing(names, x)
    assert [type(module).__name__ for module in modules] == kinds.split()
    y = x
    for name in names.split("+"):
        y = mapped(name, y)
    torch.testing.assert_close(mapped(names, x), y, rtol=0, atol=1e-4)


# -------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("names", ["normalise", "abtt+normalise", "center+normalise+zscore"])
def test_an_unknown_name_is_an_error_that_suggests_the_nearest(names):
    with pytest.raises(InputError) as error:
        fit_postprocessing(names, SQUARE)
    assert str(error.value) == (
        f"postprocess {names}: 'normalise' is unknown: choose from {', '.join(POSTPROCESSING)}, "
        "abtt-10, or several as in abtt+normalize; did you mean normalize?"
    )
    assert error.value.parameters == ("postprocess",)


@pytest.mark.parametrize("N", [3, 8])
def test_whitening_needs_more_sentences_than_dimensions(N):
    message = rf"postprocess whiten needs more sentences than dimensions \(here {N} for 8 dimensions\): give "
    with pytest.raises(InputError, match=message):
        fit_postprocessing("center+whiten", cloud(N, 8))


@pytest.mark.parametrize(
    ("name", "N", "least"), [("center", 1, 2), ("zscore", 1, 2), ("quantile", 1, 2), ("abtt", 3, 4)]
)
def test_too_few_sentences_are_an_error(name, N, least):
    message = rf"postprocess {name} needs at least {least} sentences \(here {N}\): give more text"
    with pytest.raises(InputError, match=message):
        fit_postprocessing(name, cloud(N, 8))
    assert mapped(name, cloud(least, 8)).abs().max() > 0.1  # one sentence more is enough


@pytest.mark.parametrize("name", FITTED)
def test_equal_embeddings_are_an_error(name):
    with pytest.raises(
        InputError, match=f"postprocess {name}: all 9 embeddings are equal: give different sentences"
    ):
        fit_postprocessing(name, torch.full((9, 3), 0.1))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", FITTED)
def test_an_embedding_that_is_not_finite_is_an_error(name, value):
    x = cloud(9, 3)
    x[4, 1] = value
    with pytest.raises(
        InputError, match=f"postprocess {name}: the embedding of sentence 5 of 9 is not finite"
    ):
        fit_postprocessing(name, x)


# ------------------------------------------------------------------------------------------------ real ones


@pytest.mark.slow
def test_whitened_embeddings_of_minilm_have_unit_covariance_in_float32(minilm, real_data):
    """At every hidden state; K is 383 below the last: LayerNorm leaves out one axis of 384."""
    model = SentenceEncoder.from_pretrained(minilm)
    examples = read_examples(get_task("stsb", data_root=str(real_data)), "test")
    model.head_modules = torch.nn.Sequential()
    token_ids = model.tokenize(list(dict.fromkeys(examples.sentences)))
    states = model.embed_token_ids(token_ids, model.forward_all_layers)
    kept = []
    for x in states:
        y = mapped("whiten", x)
        kept.append(y.shape[1])
        torch.testing.assert_close(covariance(y), torch.eye(kept[-1]).double(), rtol=0, atol=1e-5)
        assert iso_score(y) == pytest.approx(1, abs=1e-8)
    assert kept == [383, 383, 383, 383, 383, 383, 381]
