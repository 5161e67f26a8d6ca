"""Prepacked weights: the embeddings are the same, and the model is unchanged afterwards."""

import copy
import pickle
import random
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SENTENCES, tiny_model
from torch import nn

sys.path.append(str(Path(__file__).parent.parent / "models"))
from random_configs import RANDOM_CONFIGS

from tmft.bert import SelfAttention
from tmft.models.families import config_from_dict, random_encoder
from tmft.speed import prepacked_weights as prepacking
from tmft.speed.prepacked_weights import fast_encoding, prepacked_weights, uses_onednn


@pytest.fixture
def products(monkeypatch):
    """Prepack for any number of tokens; return the list of the shapes of the inputs of all products."""
    shapes = []
    monkeypatch.setattr(prepacking, "MIN_TOKENS", 0)

    def count(product, *arguments):
        shapes.append(tuple(arguments[-1].shape))
        return product(*arguments)

    for name in ("prepacked_linear", "prepacked_projections"):
        monkeypatch.setattr(prepacking, name, partial(count, getattr(prepacking, name)))
    return shapes


def count_products(model):
    """The number of linear layers of an encoder, where queries, keys and values count as one."""
    parts = [*model.encoder.modules()]
    return sum(isinstance(part, nn.Linear) for part in parts) - 2 * sum(
        isinstance(part, SelfAttention) for part in parts
    )


needs_onednn = pytest.mark.skipif(
    not uses_onednn(torch.zeros(1, 1)),
    reason="products of oneDNN are not float32 on this CPU, or there are none",
)


@needs_onednn
def test_embeddings_are_the_same_and_weights_can_change_between_calls(products):
    model = tiny_model()
    plain = model.encode(SENTENCES)
    assert len(products) == count_products(model)  # one batch
    with torch.inference_mode():
        for part in model.encoder.modules():
            if isinstance(part, nn.Linear):
                assert "forward" not in vars(part)
                part.weight.mul_(1.5)
    changed = model.encode(SENTENCES)
    assert np.abs(changed - plain).max() > 0.01
    prepacking.MIN_TOKENS = 10**9
    np.testing.assert_allclose(model.encode(SENTENCES), changed, rtol=0, atol=1e-6)
    assert len(products) == 2 * count_products(model)


@needs_onednn
def test_weights_are_not_prepacked_for_few_tokens(monkeypatch):
    monkeypatch.setattr(prepacking, "prepacked_weights", lambda model: pytest.fail("prepacked"))
    model = tiny_model()
    model.encode(SENTENCES)
    with pytest.raises(pytest.fail.Exception), fast_encoding(model, [[1] * 64] * 64, 32):
        pass


@needs_onednn
def test_constant_weights_are_prepacked_once_for_several_calls(products, monkeypatch):
    model, reorder, weights = tiny_model(), torch.ops.mkldnn._reorder_linear_weight, []
    plain = model.encode(SENTENCES)
    products.clear()
    monkeypatch.setattr(
        torch.ops.mkldnn, "_reorder_linear_weight", lambda weight: weights.append(weight) or reorder(weight)
    )
    with model.constant_weights():
        embeddings = [model.encode(SENTENCES) for _ in range(2)]
    assert len(products) == 2 * len(weights)
    for vectors in embeddings:
        np.testing.assert_array_equal(vectors, plain)
    assert not any({"forward", "project"} & {*vars(part)} for part in model.modules())


@needs_onednn
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_inside_constant_weights_has_weights_of_its_own(copied, products):
    """A copy is an ordinary model, which can be changed, and prepacked in its turn."""
    model = tiny_model()
    plain = model.encode(SENTENCES)
    with model.constant_weights():
        other, layer = copied(model), copied(model.encoder.layers[0])
        assert type(layer) is type(model.encoder.layers[0])
        with torch.inference_mode():
            for part in other.encoder.modules():
                if isinstance(part, nn.Linear):
                    part.weight.mul_(1.5)
        np.testing.assert_allclose(model.encode(SENTENCES), plain, atol=1e-6)
        assert np.abs(other.encode(SENTENCES) - plain).max() > 0.01
    products.clear()
    prepacking.MIN_TOKENS = 10**9
    changed = other.encode(SENTENCES)
    assert not products
    with other.constant_weights():
        np.testing.assert_allclose(other.encode(SENTENCES), changed, rtol=0, atol=1e-6)
    assert len(products) == count_products(other)
    assert not any({"forward", "project"} & {*vars(part)} for part in other.modules())


@needs_onednn
@pytest.mark.parametrize("model_type", sorted(RANDOM_CONFIGS))
def test_hidden_states_of_every_family_are_the_same(model_type):
    config = config_from_dict(RANDOM_CONFIGS[model_type](random.Random(0)))
    encoder = random_encoder(config).eval()
    ids, mask = torch.arange(5, 19)[None], torch.ones(1, 14, dtype=torch.int64)
    with torch.inference_mode():
        plain = encoder(ids, mask)
        with prepacked_weights(encoder):
            torch.testing.assert_close(encoder(ids, mask), plain, rtol=0, atol=1e-5)
        encoder.bfloat16()  # torch's kernel computes the attention of a sentence alone
        with prepacked_weights(encoder):
            assert (encoder(ids, mask) - plain).norm() < 0.05 * plain.norm()


@needs_onednn
def test_weights_that_are_too_large_are_not_copied(products, monkeypatch):
    model = tiny_model()
    size = sum(part.weight.nbytes for part in model.encoder.modules() if isinstance(part, nn.Linear))
    monkeypatch.setattr(prepacking, "MAX_PREPACKED_BYTES", size - 1)
    model.encode(SENTENCES)
    assert not products
    monkeypatch.setattr(prepacking, "MAX_PREPACKED_BYTES", size)
    model.encode(SENTENCES)
    assert products


@needs_onednn
def test_nothing_is_prepacked_under_autocast_nor_where_the_caller_set_a_forward(products):
    model = tiny_model()
    plain = model.encode(SENTENCES)
    products.clear()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model.encode(SENTENCES)
    assert not products and 0 < np.abs(rounded - plain).max() < 0.1
    with model.constant_weights(), torch.autocast("cpu", torch.bfloat16):
        np.testing.assert_array_equal(model.encode(SENTENCES), rounded)
    first = next(part for part in model.encoder.modules() if isinstance(part, nn.Linear))
    first.forward = forward = lambda x: torch.zeros(*x.shape[:-1], first.out_features)
    model.encode(SENTENCES)
    assert products and first.forward is forward


@needs_onednn
def test_the_model_is_restored_after_an_error():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    x = torch.randn(3, 4)
    plain = model(x)
    with pytest.raises(ZeroDivisionError), prepacked_weights(model):
        torch.testing.assert_close(model(x), plain)
        1 / 0  # noqa: B018
    assert not any("forward" in vars(part) for part in model)


@needs_onednn
def test_two_blocks_that_overlap_leave_the_model_as_it_was():
    """The first one ends while the second one is still active, as with two threads."""
    model = tiny_model()
    before = [{*vars(part)} for part in model.modules()]
    first, second = model.constant_weights(), model.constant_weights()
    for block in (first, second):
        block.__enter__()
    for block in (first, second):
        block.__exit__(None, None, None)
    assert [{*vars(part)} for part in model.modules()] == before


@needs_onednn
def test_two_threads_encode_with_one_model(products):
    model, found = tiny_model(), {}
    plain = model.encode(SENTENCES)

    def work(number):
        found[number] = [model.encode(SENTENCES) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    for vectors in [*found[0], *found[1]]:
        np.testing.assert_allclose(vectors, plain, rtol=0, atol=1e-6)


def test_onednn_is_used_only_where_it_was_measured_to_be_faster(monkeypatch):
    assert not uses_onednn(torch.zeros(1, 1, dtype=torch.float16)) and not uses_onednn(
        torch.zeros(1, 1, device="meta")
    )
    monkeypatch.setattr(prepacking, "onednn_is_exact", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert not uses_onednn(torch.zeros(1, 1)) and not uses_onednn(torch.zeros(1, 1, dtype=torch.bfloat16))
