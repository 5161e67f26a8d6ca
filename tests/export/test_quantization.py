"""Encoding in less than float32: how near it stays, and where it is refused."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import DEBERTA, SENTENCES, tiny_model
from torch import nn

import evaluate
from tmft.bert import FeedForward
from tmft.errors import InputError
from tmft.export import quantization
from tmft.export.quantization import (
    VNNI,
    DynamicInt8Linear,
    Int8FeedForward,
    Int8SelfAttention,
    SmoothQuantizer,
    encoder_to_int8,
    warn_if_slow_in_bfloat16,
)
from tmft.serving.encode_file import model_digest

SHAPES = {name: {"model_type": name} for name in ("bert", "electra", "modernbert", "nomic_bert", "gte")}
SHAPES["deberta-v2"] = DEBERTA | {"position_buckets": 8}
SHAPES["qwen3"] = {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 10}
can_int8 = pytest.mark.skipif(
    not any(torch.cpu.get_capabilities().get(name, False) for name in VNNI), reason="this CPU has no VNNI"
)


def cosines(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return torch.cosine_similarity(torch.from_numpy(u), torch.from_numpy(v)).numpy()


@can_int8
def test_a_product_of_8_bits_is_that_of_rounded_numbers():
    torch.manual_seed(0)
    linear, x = nn.Linear(32, 16), torch.randn(7, 32)
    scales = linear.weight.detach().abs().amax(1, keepdim=True) / 127
    weight = (linear.weight.detach() / scales).round() * scales
    least, largest = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    step = (largest - least) / 255
    inputs = ((x - least) / step).round() * step + least
    expected = inputs @ weight.T + linear.bias.detach()
    torch.testing.assert_close(DynamicInt8Linear(linear)(x), expected, atol=1e-5, rtol=0)
    assert DynamicInt8Linear(nn.Linear(32, 16, bias=False))(x[None]).shape == (1, 7, 16)


@can_int8
def test_no_token_depends_on_its_neighbours_and_equal_numbers_are_no_trouble():
    torch.manual_seed(0)
    eight_bits, x = DynamicInt8Linear(nn.Linear(32, 16)), torch.randn(2, 7, 32)
    x[1] *= 1000
    x[0, 3] = 0.25
    together = eight_bits(x)
    torch.testing.assert_close(together[0], eight_bits(x[:1])[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(together[0, 3], eight_bits.bias + 0.25 * eight_bits.weight.sums)
    x[1, 2, 5] = float("nan")
    assert eight_bits(x).isnan().any(-1).nonzero().tolist() == [[1, 2]]


@can_int8
def test_fixed_scales_round_each_dimension_and_clip_what_is_larger_than_measured():
    torch.manual_seed(0)
    weight, x = torch.randn(16, 8), torch.randn(50, 8)
    x[:, 3] *= 40
    quantize = SmoothQuantizer(x.abs().amax(0), weight)

    def restored(x):
        return (quantize(x.clone()).float() - 128) * quantize.step * quantize.factors

    assert ((restored(x) - x).abs() <= quantize.step * quantize.factors * 0.501).all()
    assert quantize.factors[3] > 3 * quantize.factors[[0, 1, 2, 4, 5, 6, 7]].max()
    within = 127.5 * quantize.step * quantize.factors
    assert (restored(1000 * x).abs() <= 128.1 / 127.5 * within).all() and (restored(1000 * x) * x >= 0).all()


@can_int8
def test_a_neuron_with_a_large_output_does_not_make_the_others_coarse():
    torch.manual_seed(0)
    feed_forward = tiny_model().encoder.layers[0].feed_forward
    x = torch.randn(1, 40, feed_forward.up.in_features)
    with torch.no_grad():
        feed_forward.up.weight.normal_(0, 0.2)
        feed_forward.up.bias[5] = 60.0  # its output is the same for all inputs, nearly
        exact, outputs = feed_forward(x), torch.nn.functional.gelu(feed_forward.up(x))
    largest = x.abs().amax((0, 1)), outputs.amax((0, 1))
    errors = []
    for parts in (0, quantization.NUM_PARTS):
        with patch.object(quantization, "NUM_PARTS", parts):
            errors.append((Int8FeedForward(feed_forward, *largest)(x) - exact).std(1).mean())
    assert errors[1] < 0.3 * errors[0]


@can_int8
def test_a_model_is_rounded_to_the_same_numbers_each_time_and_a_sentence_is_alone_in_its_batch():
    models = [tiny_model(), tiny_model()]
    for model in models:
        encoder_to_int8(model)
    digests = [model_digest(model) for model in (*models, tiny_model())]
    assert digests[0] == digests[1] != digests[2]
    assert not any(part.training for part in models[0].encoder.modules())
    embeddings = models[0].encode(SENTENCES)
    np.testing.assert_array_equal(models[1].encode(SENTENCES), embeddings)
    for sentence, embedding in zip(SENTENCES, embeddings, strict=True):
        np.testing.assert_allclose(models[0].encode(sentence), embedding, atol=1e-5)
    changed = tiny_model()
    changed.encoder.layers[0].feed_forward.down.weight.data[0, 0] += 1e-3
    encoder_to_int8(changed)
    assert model_digest(changed) != digests[0]


@can_int8
def test_scales_are_fixed_where_the_activation_is_gelu_and_dynamic_elsewhere():
    for activation, kind in (("gelu", Int8FeedForward), ("relu", FeedForward)):
        model = tiny_model(hidden_act=activation)
        encoder_to_int8(model)
        assert all(type(layer.feed_forward) is kind for layer in model.encoder.layers)
        assert all(type(layer.attention) is Int8SelfAttention for layer in model.encoder.layers)
        assert not any(isinstance(module, nn.Linear) for module in model.encoder.layers.modules())


@can_int8
def test_a_model_of_short_texts_is_measured_on_short_sequences():
    model = tiny_model()
    model.max_length = 3
    encoder_to_int8(model)
    assert np.isfinite(model.encode(SENTENCES)).all()


@can_int8
@pytest.mark.parametrize("model_type", SHAPES)
def test_embeddings_in_8_bits_are_near_those_in_float32(model_type):
    model = tiny_model(**SHAPES[model_type])
    exact = model.encode(SENTENCES)
    encoder_to_int8(model)
    assert not any(isinstance(module, nn.Linear) for module in model.encoder.layers.modules())
    rounded = model.encode(SENTENCES)
    assert rounded.dtype == np.float32 and 0.98 < cosines(exact, rounded).min() < 1 - 1e-9


def test_a_cpu_without_the_instructions_says_so(monkeypatch, caplog):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    with pytest.raises(InputError, match="dtype int8: this CPU has no VNNI .*: choose float32"):
        encoder_to_int8(tiny_model())
    warn_if_slow_in_bfloat16(torch.device("cpu"))
    assert "bfloat16: this CPU has no instructions for it" in caplog.text


@can_int8
def test_a_cpu_on_which_bf16_is_faster_says_so(monkeypatch, caplog):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_vnni": True})
    encoder_to_int8(tiny_model())
    assert not caplog.text
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_int8": True, "amx_bf16": True})
    encoder_to_int8(tiny_model())
    assert "int8: this CPU has AMX, with which bfloat16 is faster" in caplog.text


def test_a_model_in_8_bits_is_not_saved_or_exported(tiny_folder, tmp_path):
    with pytest.raises(InputError, match="--dtype int8 and --save: weights of 8 bits cannot be saved"):
        evaluate.main([str(tiny_folder), "--dtype", "int8", "--save", str(tmp_path / "x")])
