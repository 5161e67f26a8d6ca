"""Post-processing against scikit-learn, by hand, and on embeddings of a real encoder."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from tmft import SentenceEncoder
from tmft.data import read_examples
from tmft.datasets.task_lookup import get_task
from tmft.embedding.modules import Normalize
from tmft.errors import InputError
from tmft.evaluation.isotropy import iso_score
from tmft.training_free.postprocessing import NO_VARIANCE, POSTPROCESSING, fit_postprocessing


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


def quantile_transformer(N: int, shape: str):
    from sklearn.preprocessing import QuantileTransformer

    return QuantileTransformer(n_quantiles=min(1000, N), output_distribution=shape, subsample=None)


def scaler(name: str):
    from sklearn import preprocessing

    return getattr(preprocessing, name)()


SCIKIT_LEARN = {  # name -> numbers of sentences, transformer for N of them, tolerance
    "zscore": ((50,), lambda N: scaler("StandardScaler"), 1e-5),
    "robust": ((3, 50, 1500), lambda N: scaler("RobustScaler"), 1e-5),
    "quantile": ((2, 3, 50, 999, 1000, 1001, 3000), lambda N: quantile_transformer(N, "uniform"), 1e-6),
    "quantile-normal": ((3, 50, 3000), lambda N: quantile_transformer(N, "normal"), 1e-3),
}


@pytest.mark.parametrize(("name", "N"), [(name, N) for name in SCIKIT_LEARN for N in SCIKIT_LEARN[name][0]])
def test_each_dimension_is_mapped_as_by_scikit_learn(name, N):
    """D = 40 is more than one block of quantiles; the others are from a wider cloud, and fall outside now and
    then. A dimension of one value has equal quartiles, and float64 cannot average it exactly."""
    _, make_transformer, tolerance = SCIKIT_LEARN[name]
    x, other = cloud(N, 40), 1.5 * cloud(200, 40, seed=1)
    if "quantile" not in name:
        x[:, 3] = other[:, 3] = 0.7
    transformer = make_transformer(N).fit(x.double().numpy())
    for y in (x, other):
        theirs = transformer.transform(y.double().numpy())
        np.testing.assert_allclose(mapped(name, x, y), theirs, atol=tolerance)


@pytest.mark.parametrize("N", [7, 50, 1000, 3000])
def test_quantile_is_the_quantile_transformer_where_values_are_tied(N):
    x = cloud(N, 40).round()
    x[: N // 2, :5], x[:, 7] = 1.0, -2.0  # half of a dimension, and a whole one
    other = torch.cat([x, x + 0.5, x - 100, x + 100])
    theirs = quantile_transformer(N, "uniform").fit(x.double().numpy()).transform(other.double().numpy())
    np.testing.assert_allclose(mapped("quantile", x, other), theirs, atol=1e-6)


@pytest.mark.parametrize("shape", [(50, 8), (9, 8), (500, 40)])
def test_whitening_is_that_of_pca_but_for_signs(shape):
    from sklearn.decomposition import PCA

    x, other = cloud(*shape), cloud(30, shape[1], seed=1)
    theirs = torch.from_numpy(PCA(whiten=True).fit(x.double()).transform(other.double()))
    ours = mapped("whiten", x, other).double()
    torch.testing.assert_close(ours.abs(), theirs.abs(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.cdist(ours, ours), torch.cdist(theirs, theirs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_axes", [1, 2, 5])
def test_abtt_removes_as_many_principal_axes_as_its_name_says(num_axes):
    from sklearn.decomposition import PCA

    x, other = cloud(60, 8), cloud(20, 8, seed=1)
    pca = PCA(num_axes).fit(x.double())
    theirs = (other.double() - pca.mean_) - (other.double() - pca.mean_) @ pca.components_.T @ pca.components_
    np.testing.assert_allclose(mapped(f"abtt-{num_axes}", x, other), theirs, atol=1e-4)
    assert torch.equal(mapped("abtt-2", x), mapped("abtt", x))


# ------------------------------------------------------------------------------------------------- by hand

SQUARE = torch.tensor([[1.0, 2], [3, 2], [1, 6], [3, 6]])  # mean 2 and 4, deviations 1 and 2


def test_a_dimension_of_one_value_is_0_after_zscore():
    """Of one value up to the last digit of float64, too, as a product of matrices leaves it."""
    x = torch.tensor([[0.1, 1.0]] * 3 + [[0.1, 5.0]] * 4).double()
    x[3, 0] = torch.nextafter(x[1, 0], torch.tensor(1.0).double())
    (dense,) = fit_postprocessing("zscore", x)
    assert dense.weight[0, 0] == 1 and dense(x.float())[:, 0].abs().max() < 1e-6


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


UNKNOWN = (
    f": 'normalise' is unknown: choose from {', '.join(POSTPROCESSING)}, abtt-10, or several as in "
    "abtt+normalize; did you mean normalize?"
)


FEW = "needs more sentences than dimensions (here"
REFUSED = [  # names, embeddings, what follows "postprocess" and the names in the message
    *(("abtt-" + number, cloud(60, 8), "") for number in ("8", "0", "x")),
    ("zscore-2", cloud(60, 8), ""),
    *((names, SQUARE, UNKNOWN) for names in ("normalise", "abtt+normalise", "center+normalise+zscore")),
    ("whiten", cloud(3, 8), f" {FEW} 3 for 8 dimensions): give "),
    ("whiten", cloud(8, 8), f" {FEW} 8 for 8 dimensions): give "),
    *((name, cloud(1, 8), " needs at least 2 sentences (here 1): give more text")
      for name in ("center", "zscore", "quantile")),
    ("abtt", cloud(3, 8), " needs at least 4 sentences (here 3): give more text"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "embeddings", "message"), REFUSED, ids=[names for names, *_ in REFUSED])
def test_what_cannot_be_fitted_is_one_line(names, embeddings, message):
    with pytest.raises(InputError) as error:
        fit_postprocessing(names, embeddings)
    assert str(error.value).startswith(f"postprocess {names}{message}") and "\n" not in str(error.value)
    assert error.value.parameters == ("postprocess",)


@pytest.mark.parametrize(("name", "least"), [("center", 2), ("zscore", 2), ("quantile", 2), ("abtt", 4)])
def test_one_sentence_more_is_enough(name, least):
    assert mapped(name, cloud(least, 8)).abs().max() > 0.1


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
