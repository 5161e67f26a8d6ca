"""Weights laid out for oneDNN: the same embeddings, and no trace afterwards."""

import threading

import numpy as np
import pytest
import torch
from conftest import SENTENCES, tiny_model
from torch import nn

from tmft.speed import prepacked_weights as encoding
from tmft.speed.prepacked_weights import fast_encoding, gains, prepacked_weights


@pytest.fixture
def laid(monkeypatch):
    """Few tokens are enough; -> the shapes of all products that then used such a weight."""
    seen, product = [], encoding.linear
    monkeypatch.setattr(encoding, "ENOUGH", 0)

    def counted(weight, bias, x):
        seen.append(tuple(x.shape))
        return product(weight, bias, x)

    monkeypatch.setattr(encoding, "linear", counted)
    return seen


can_lay_out = pytest.mark.skipif(
    not gains(torch.zeros(1, 1)), reason="products of oneDNN are not float32 on this CPU, or there are none"
)


@can_lay_out
def test_embeddings_are_the_same_and_weights_can_change_in_between(laid):
    model = tiny_model()
    plain, linears = model.encode(SENTENCES), sum(isinstance(m, nn.Linear) for m in model.encoder.modules())
    assert len(laid) == linears  # one batch
    with torch.inference_mode():
        for part in model.encoder.modules():
            if isinstance(part, nn.Linear):
                assert "forward" not in vars(part)
                part.weight.mul_(1.5)
    changed = model.encode(SENTENCES)
    assert np.abs(changed - plain).max() > 0.01
    encoding.ENOUGH = 10**9
    np.testing.assert_allclose(model.encode(SENTENCES), changed, rtol=0, atol=1e-6)
    assert len(laid) == 2 * linears


@can_lay_out
def test_few_tokens_do_not_pay(monkeypatch):
    monkeypatch.setattr(encoding, "prepacked_weights", lambda model: pytest.fail("laid out"))
    model = tiny_model()
    model.encode(SENTENCES)
    with pytest.raises(pytest.fail.Exception), fast_encoding(model, [[1] * 64] * 64):
        pass


@can_lay_out
def test_weights_that_are_too_large_are_not_copied(laid, monkeypatch):
    model = tiny_model()
    size = sum(part.weight.nbytes for part in model.encoder.modules() if isinstance(part, nn.Linear))
    monkeypatch.setattr(encoding, "MOST", size - 1)
    model.encode(SENTENCES)
    assert not laid
    monkeypatch.setattr(encoding, "MOST", size)
    model.encode(SENTENCES)
    assert laid


@can_lay_out
def test_autocast_and_a_forward_of_the_callers_own_are_left_alone(laid):
    model = tiny_model()
    plain = model.encode(SENTENCES)
    laid.clear()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model.encode(SENTENCES)
    assert not laid and 0 < np.abs(rounded - plain).max() < 0.1
    first = next(part for part in model.encoder.modules() if isinstance(part, nn.Linear))
    first.forward = own = lambda x: torch.zeros(*x.shape[:-1], first.out_features)
    model.encode(SENTENCES)
    assert laid and first.forward is own


@can_lay_out
def test_what_goes_wrong_inside_leaves_no_trace():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    x = torch.randn(3, 4)
    plain = model(x)
    with pytest.raises(ZeroDivisionError), prepacked_weights(model):
        torch.testing.assert_close(model(x), plain)
        1 / 0  # noqa: B018
    assert not any("forward" in vars(part) for part in model)


@can_lay_out
def test_two_threads_encode_with_one_model(laid):
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


def test_no_gain_is_looked_for_where_none_was_measured(monkeypatch):
    assert not gains(torch.zeros(1, 1, dtype=torch.float16)) and not gains(torch.zeros(1, 1, device="meta"))
    monkeypatch.setattr(encoding, "onednn_is_exact", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert not gains(torch.zeros(1, 1)) and not gains(torch.zeros(1, 1, dtype=torch.bfloat16))
