"""Long rows: their memory grows as T, and their attention has the values and gradients of the whole matrix.

tests/models/test_every_family.py compares the hidden states of every family with those of transformers.
"""

import math

import pytest
import torch
from conftest import tiny_config
from torch.utils._python_dispatch import TorchDispatchMode

from tmft.encoder import block_diagonal_mask, make_attention_bias
from tmft.models.families import FAMILIES, config_from_dict, random_encoder
from tmft.speed import long_rows as attention
from tmft.speed.long_rows import LONG_ROW, LongRowMask, long_row_attention

T = 2048
ROWS = {  # attention_mask of a row of T tokens
    "one sentence": torch.ones(1, T, dtype=torch.long),
    "two sentences and padding": torch.tensor([1] * 900 + [2] * 1100 + [0] * 48)[None],
}
# Families whose scores get a bias for each head and distance, or have no attention.
WITH_BIASES, WITHOUT_ATTENTION = {"mpnet", "deberta-v2", "t5", "mt5", "umt5"}, {"static"}
LONG = sorted(FAMILIES.keys() - WITH_BIASES - WITHOUT_ATTENTION)
KEYS = {  # of config.json, so that layers of each type occur
    "modernbert": {"layer_types": ["full_attention", "sliding_attention"], "local_attention": 20},
    "gemma3_text": {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 20},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 20},
    "mistral": {"sliding_window": 20},
}
DECODERS = {"llama", "mistral", "qwen2", "qwen3", "gemma3_text", "eurobert"}


def encoder_of(model_type: str) -> torch.nn.Module:
    """An encoder of two layers with random weights that takes T tokens."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 4}
    if model_type == "distilbert":
        sizes = {"n_layers": 2, "dim": 24, "hidden_dim": 40, "n_heads": 4}
    heads = {"num_key_value_heads": 2, "head_dim": 6} if model_type in DECODERS else {}
    keys = sizes | heads | KEYS.get(model_type, {})
    config = tiny_config(model_type=model_type, max_position_embeddings=T + 2, **keys)
    return random_encoder(config_from_dict(config)).eval()


class LargestTensor(TorchDispatchMode):
    """Inside a with block, `size` is the number of elements of the largest tensor that is made."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for output in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(output, torch.Tensor):
                self.size = max(self.size, output.untyped_storage().nbytes() // output.element_size())
        return result


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("model_type", LONG)
def test_no_tensor_of_a_long_row_has_T_x_T_numbers(model_type, row, monkeypatch):
    monkeypatch.setattr(attention, "LARGE_BLOCK", 64)
    monkeypatch.setattr(attention, "SMALL_BLOCK", 64)
    encoder, ids = encoder_of(model_type), torch.full((1, T), 5)
    with torch.no_grad(), LargestTensor() as largest:
        encoder(ids, ROWS[row])
    assert 24 * T <= largest.size < T * T / 16


@pytest.mark.parametrize("is_trained", [False, True])
def test_dropout_in_a_long_row_keeps_no_scores_for_the_backward_pass(is_trained):
    encoder = encoder_of("bert").train()
    encoder.embeddings.requires_grad_(is_trained)
    kept = []

    def pack(tensor):
        kept.append(tensor.untyped_storage().nbytes() // tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = encoder(torch.full((1, LONG_ROW + 88), 5), torch.ones(1, LONG_ROW + 88).long())
    assert max(kept) < LONG_ROW**2 / 2
    hidden.sum().backward()
    assert encoder.layers[0].attention.query.weight.grad.abs().max() > 0


# ------------------------------------------------------------------------------------ values and gradients


def explicit(q, k, v, attention_mask, before, after, scale=None, dropout=lambda weights: weights):
    """softmax(q k^T * scale + mask) v, with the whole matrix."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    mask = block_diagonal_mask(attention_mask, q.dtype, before=before, after=after)[:, None]
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return dropout((q @ k.transpose(-1, -2) * scale + mask).softmax(-1)) @ v


def random_qkv(rows: int, columns: int, heads: int = 4, groups: int = 2, dtype=torch.float32):
    shapes = [(rows, count, columns, 6) for count in (heads, groups, groups)]
    generator = torch.Generator().manual_seed(columns)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("sentences", ["one each", "several and padding"])
@pytest.mark.parametrize("span", [(None, None), (None, 0), (3, 3), (0, 0), (11, 0), (40, 2), (200, 200)])
def test_values_and_gradients_are_those_of_the_whole_matrix(span, sentences, monkeypatch):
    monkeypatch.setattr("tmft.speed.long_rows.LONG_ROW", 20)
    monkeypatch.setattr(attention, "LARGE_BLOCK", 30)
    monkeypatch.setattr(attention, "SMALL_BLOCK", 13)
    ids = torch.tensor([[1] * 50, [2] * 50])
    if sentences != "one each":
        ids = torch.tensor([[3] * 20 + [1] * 29 + [0], [2] * 50])
    mask = make_attention_bias(ids, torch.float32, *span)
    assert isinstance(mask, LongRowMask)
    inputs = random_qkv(*ids.shape)
    ours, theirs = (long_row_attention(*inputs, mask, scale=0.7), explicit(*inputs, ids, *span, scale=0.7))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    gradients = [torch.autograd.grad((out**3).sum(), inputs) for out in (ours, theirs)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def call(function, *args, use_reentrant, **keys):
    """torch.utils.checkpoint.checkpoint without its effect."""
    return function(*args, **keys)


def test_the_backward_pass_draws_the_dropout_of_the_forward_pass_again(monkeypatch):
    monkeypatch.setattr(attention, "SMALL_BLOCK", 13)
    inputs, gradients = random_qkv(1, 50), []
    for _ in range(2):
        torch.manual_seed(1)
        out = long_row_attention(*inputs, LongRowMask(None), dropout_p=0.5)
        torch.manual_seed(2)  # the backward pass must not depend on it
        gradients.append(torch.autograd.grad(out.square().sum(), inputs))
        monkeypatch.setattr(attention, "checkpoint", call)
    for once, twice in zip(*gradients, strict=True):
        assert once.abs().max() > 0
        torch.testing.assert_close(once, twice, rtol=0, atol=0)


def test_dropout_sets_weights_to_0_and_divides_the_others_by_1_minus_p():
    torch.manual_seed(0)
    q, k = torch.zeros(1, 1, 600, 4), torch.zeros(1, 1, 600, 4)  # all weights are 1 / 600
    v = torch.ones(1, 1, 600, 4)
    out = long_row_attention(q, k, v, LongRowMask(None), dropout_p=0.25)[0, 0, :, 0]
    kept = out * 0.75 * 600
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-2)  # whole numbers of weights are kept
    assert abs(kept.mean().item() / 600 - 0.75) < 0.01 and kept.std() > 5


@pytest.mark.parametrize(
    ("dtype", "num_tokens", "span"),
    [
        (torch.bfloat16, 600, (None, 0)),
        (torch.float16, 600, (None, 0)),
        *((torch.bfloat16, 20, span) for span in ((None, None), (None, 0), (3, 3), (0, 0))),
    ],
)
def test_16_bits_give_16_bits_and_nearly_the_values_of_float32(dtype, num_tokens, span):
    """A long row, and a short sentence alone."""
    ids, inputs = torch.ones(1, num_tokens, dtype=torch.int64), random_qkv(1, num_tokens, dtype=dtype)
    mask = make_attention_bias(ids, dtype, *span)
    assert isinstance(mask, LongRowMask)
    out = long_row_attention(*inputs, mask, scale=0.7)
    assert out.dtype == dtype
    exact = explicit(*(x.float() for x in inputs), ids, *span, scale=0.7)
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=0.02)


@pytest.mark.parametrize("model_type", ["bert", "modernbert", "qwen3", "gemma3_text"])
def test_a_long_row_under_autocast_gives_nearly_the_gradients_of_float32(model_type, monkeypatch):
    monkeypatch.setattr("tmft.speed.long_rows.LONG_ROW", 8)
    encoder, ids, gradients = encoder_of(model_type), torch.arange(5, 45)[None], []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            hidden = encoder(ids, torch.ones_like(ids)).float()
        loss = (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum()
        weights = list(encoder.layers.parameters())
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)]))
    exact, rounded = gradients
    assert 0 < (exact - rounded).norm() < 0.05 * exact.norm()


# ----------------------------------------------------------------------------------- when a row is long


def test_rows_of_512_tokens_have_the_additive_mask_and_longer_ones_have_not():
    ids = torch.tensor([[1] * 300 + [2] * 212])
    assert torch.equal(make_attention_bias(ids, torch.float32)[:, 0], block_diagonal_mask(ids, torch.float32))
    longer = make_attention_bias(torch.cat([ids, ids[:, -1:]], 1), torch.float32)
    assert longer.attention_mask.shape == (1, 513) and not longer.is_plain


def test_one_sentence_in_each_row_needs_no_mask():
    ids = torch.tensor([[7], [3]]).expand(2, 600)
    assert make_attention_bias(ids, torch.float32) == LongRowMask(None) and LongRowMask(None).is_plain
    assert make_attention_bias(ids, torch.float32, 599, 0) == LongRowMask(None, None, 0)  # all tokens
    assert make_attention_bias(ids, torch.float32, 598, 0) == LongRowMask(None, 598, 0)


def test_a_short_sentence_alone_needs_no_mask_in_16_bits():
    ids = torch.tensor([[5] * 9])
    assert make_attention_bias(ids, torch.bfloat16) == LongRowMask(None)
    assert make_attention_bias(ids, torch.bfloat16, 3, 3) == LongRowMask(None, 3, 3)
    for several in (ids.expand(2, 9), torch.tensor([[1] * 4 + [2] * 5])):
        expected = block_diagonal_mask(several, torch.bfloat16)
        assert torch.equal(make_attention_bias(several, torch.bfloat16)[:, 0], expected)
    for changed, *span in ((ids,), (ids, 3, 3), (ids.expand(2, 9),), (torch.tensor([[5] * 9 + [0]]),)):
        expected = block_diagonal_mask(changed, torch.float32, *(None, *span) if span else ())
        assert torch.equal(make_attention_bias(changed, torch.float32, *span)[:, 0], expected)


def test_no_value_of_a_short_mask_in_float32_is_looked_at_on_another_device():
    """A CUDA graph cannot. A tensor on the device meta has none, and raises an error when asked for one."""
    assert make_attention_bias(torch.ones(1, 9, device="meta"), torch.float32).shape == (1, 1, 9, 9)


def test_a_graph_that_is_exported_has_one_form_of_the_mask_for_all_lengths():
    class Mask(torch.nn.Module):
        def forward(self, ids):
            return make_attention_bias(ids, torch.float32, 2, 0)

    ids = torch.tensor([[1] * (LONG_ROW + 100)])
    graph = torch.export.export(Mask(), (ids,), dynamic_shapes=({1: torch.export.Dim("T", min=2, max=4096)},))
    few = torch.tensor([[1, 1, 1, 1, 2, 2]])
    assert torch.equal(graph.module()(few)[:, 0], block_diagonal_mask(few, torch.float32, before=2, after=0))
