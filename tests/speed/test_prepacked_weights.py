"""Prepacked weights: embeddings are the same, and nothing is left of them after a call."""

import copy
import pickle
import random
import sys
from linecache import getline

import numpy as np
import pytest
import torch
from conftest import SENTENCES, tiny_model
from random_configs import RANDOM_CONFIGS
from torch import nn

from tmft.bert import SelfAttention
from tmft.models.families import config_from_dict, random_encoder
from tmft.packing import pack
from tmft.speed import matmul
from tmft.speed.matmul import ACTIVE, BACKEND, BLOCKS, fast_encoding, prepacked_weights, uses_onednn


@pytest.fixture
def products(monkeypatch):
    """Prepack for any number of tokens; return the list of the names of the methods that were called."""
    names, call = [], matmul.PrepackedMethod.__call__
    monkeypatch.setattr(matmul, "MIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr(matmul, "MIN_TOKENS", 0)
    monkeypatch.setattr(
        matmul.PrepackedMethod, "__call__", lambda method, x: names.append(method.name) or call(method, x)
    )
    return names


def count_products(model):
    """The number of linear layers of an encoder, where queries, keys and values count as one."""
    parts = [*model.encoder.modules()]
    return sum(isinstance(part, nn.Linear) for part in parts) - 2 * sum(
        isinstance(part, SelfAttention) for part in parts
    )


def state(model):
    """Return what a call of encode may change: the attributes of all modules, and settings of torch."""
    return [{*vars(part)} for part in model.modules()], [part.training for part in model.modules()]


def encode_without(model):
    """Encode with the methods of torch alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "MIN_MULTIPLICATIONS", 10**12)
        return model.encode(SENTENCES)


needs_onednn = pytest.mark.skipif(
    not uses_onednn(torch.zeros(1, 1)),
    reason="products of oneDNN are not float32 on this CPU, or there are none",
)


@needs_onednn
def test_embeddings_are_the_same_and_the_model_is_as_it_was_after_each_call(products):
    model = tiny_model()
    before = state(model)
    embeddings = [model.encode(SENTENCES) for _ in range(2)]
    assert len(products) == 2 * count_products(model)  # one batch
    np.testing.assert_allclose(embeddings[0], encode_without(model), rtol=0, atol=1e-6)
    assert np.array_equal(embeddings[0], embeddings[1])
    assert state(model) == before and not BLOCKS


@needs_onednn
def test_weights_are_copied_for_many_sentences_and_once_in_a_block_of_the_owner(products, monkeypatch):
    model = tiny_model()
    monkeypatch.setattr(matmul, "MIN_TOKENS", 200)
    model.encode(SENTENCES)
    assert not products
    model.encode(["music " * n for n in range(1, 40)])
    assert products
    products.clear()
    with prepacked_weights(model.encoder):
        monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", None)  # nothing is copied again
        model.encode(SENTENCES)
    assert products


@needs_onednn
def test_after_an_interrupt_at_any_line_until_the_first_layer_the_model_is_as_it_was(products):
    """One training step then gives a gradient to each parameter of each layer."""
    model = tiny_model()
    before, precision = state(model.train()), BACKEND.fp32_precision

    def interrupt(frame, event, _):
        if frame.f_code.co_filename != matmul.__file__:
            return None
        # Python frees a lock before it answers an interrupt
        is_lock = "with LOCK" in getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not is_lock and next(lines, None) is None:
            raise KeyboardInterrupt
        return interrupt

    def interrupt_in_layer(*_):
        sys.settrace(None)
        raise KeyboardInterrupt

    model.encoder.layers[0].register_forward_pre_hook(interrupt_in_layer)
    for number in range(10_000):
        lines = iter(range(number))
        try:
            sys.settrace(interrupt)
            model.encode(SENTENCES)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert state(model) == before and not BLOCKS and not ACTIVE, number
        assert BACKEND.fp32_precision == precision
        if next(lines, None) is not None:  # it got to the layer
            break
    assert number > 100
    model.encoder.layers[0]._forward_pre_hooks.clear()
    model(pack(model.tokenize(SENTENCES))).sum().backward()
    assert all(parameter.grad is not None for parameter in model.encoder.layers.parameters())


def zero_a_head(model):
    model.encoder.layers[0].attention.output.weight.data[:, :12] = 0


def replace_forward(model):
    key = model.encoder.layers[0].attention.key
    key.forward = lambda x: -nn.functional.linear(x, key.weight, key.bias)


def remove_a_bias(model):
    model.encoder.layers[0].attention.query.bias = None


@pytest.mark.parametrize("change", [zero_a_head, replace_forward, remove_a_bias])
def test_the_weights_of_a_call_are_those_that_the_model_has_when_it_begins(change, products):
    model = tiny_model()
    for _ in range(2):
        before = model.encode(SENTENCES)
    change(model)
    changed = model.encode(SENTENCES)
    assert np.abs(changed - before).max() > 1e-4
    np.testing.assert_allclose(changed, encode_without(model), rtol=0, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_that_is_made_inside_a_block_has_weights_of_its_own(copied, products):
    model = tiny_model()
    with prepacked_weights(model.encoder):
        assert "project" in vars(model.encoder.layers[0].attention)
        plain, other = model.encode(SENTENCES), copied(model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(1.5)
        assert np.array_equal(model.encode(SENTENCES), plain)
        assert np.abs(other.encode(SENTENCES) - plain).max() > 0.01
        np.testing.assert_allclose(other.encode(SENTENCES), encode_without(other), rtol=0, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("model_type", sorted(RANDOM_CONFIGS))
def test_hidden_states_of_every_family_are_the_same(model_type, products):
    config = config_from_dict(RANDOM_CONFIGS[model_type](random.Random(0)))
    encoder = random_encoder(config).eval()
    ids, mask = torch.arange(5, 19)[None], torch.ones(1, 14, dtype=torch.int64)
    with torch.inference_mode():
        plain = encoder(ids, mask)
        with fast_encoding(encoder, ids.numel(), 24):
            torch.testing.assert_close(encoder(ids, mask), plain, rtol=0, atol=1e-5)
        encoder.bfloat16()  # torch's kernel computes the attention of a sentence alone
        with fast_encoding(encoder, ids.numel(), 24):
            assert (encoder(ids, mask) - plain).norm() < 0.05 * plain.norm()


@needs_onednn
def test_weights_that_are_too_large_are_not_copied(products, monkeypatch):
    model = tiny_model()
    size = sum(part.weight.nbytes for part in model.encoder.modules() if isinstance(part, nn.Linear))
    monkeypatch.setattr(matmul, "MAX_PREPACKED_BYTES", size - 1)
    model.encode(SENTENCES)
    assert not products
    monkeypatch.setattr(matmul, "MAX_PREPACKED_BYTES", size)
    model.encode(SENTENCES)
    assert products


@needs_onednn
def test_nothing_is_prepacked_under_autocast_nor_where_the_caller_set_a_forward_or_a_hook(products):
    model = tiny_model()
    plain = model.encode(SENTENCES)
    products.clear()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model.encode(SENTENCES)
    assert not products and 0 < np.abs(rounded - plain).max() < 0.1
    attention, seen = model.encoder.layers[0].attention, []
    attention.output.forward = forward = lambda x: torch.zeros(*x.shape[:-1], attention.output.out_features)
    attention.key.register_forward_pre_hook(lambda module, inputs: seen.append(module))
    model.encode(SENTENCES)
    assert attention.output.forward is forward and seen == [attention.key]
    assert len(products) == count_products(model)  # queries and values, but neither keys nor outputs


@needs_onednn
def test_two_blocks_that_overlap_leave_the_model_and_the_precision_as_they_were(products, monkeypatch):
    """The first one ends while the second one is still active, as with two threads."""
    monkeypatch.setattr(matmul, "onednn_is_exact", lambda: True)
    model = tiny_model()
    before, precision = state(model), BACKEND.fp32_precision
    first, second = (fast_encoding(model.encoder, 10**6, 24) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert "forward" in vars(model.encoder.layers[0].feed_forward.up) and BACKEND.fp32_precision == "bf16"
    second.__exit__(None, None, None)
    assert state(model) == before and not ACTIVE and BACKEND.fp32_precision == precision


def test_onednn_is_used_only_where_it_was_measured_to_be_faster(monkeypatch):
    never = torch.zeros(1, 1, dtype=torch.float16), torch.zeros(1, 1, device="meta")
    assert not any(map(uses_onednn, never))
    monkeypatch.setattr(matmul, "onednn_is_exact", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert not any(map(uses_onednn, (torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bfloat16))))
