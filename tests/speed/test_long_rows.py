"""Long rows: their memory grows as T, and their attention has the values and gradients of the whole matrix.

tests/models/test_every_family.py compares the hidden states of every family with those of transformers.
"""

import math
import random

import pytest
import torch
from random_configs import RANDOM_CONFIGS
from torch.utils._python_dispatch import TorchDispatchMode

from tmft.encoder import block_diagonal_mask, make_attention_bias
from tmft.models.families import config_from_dict, random_encoder
from tmft.speed import long_rows as attention
from tmft.speed.long_rows import LONG_ROW, LongRowMask, long_row_attention

T = 2048
ROWS = {  # attention_mask of a row of T tokens
    "one sentence": torch.ones(1, T, dtype=torch.long),
    "two sentences and padding": torch.tensor([1] * 900 + [2] * 1100 + [0] * 48)[None],
}
WITH_BIASES = {"mpnet", "deberta-v2", "t5", "mt5", "umt5"}  # of scores, for each head and distance
LONG = sorted(RANDOM_CONFIGS.keys() - WITH_BIASES)


def encoder_of(model_type: str, seed: int = 0) -> torch.nn.Module:
    """An encoder of a random shape with random weights that takes T tokens."""
    content = RANDOM_CONFIGS[model_type](random.Random(seed))
    return random_encoder(config_from_dict(content | {"max_position_embeddings": T + 2})).eval()


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
@pytest.mark.parametrize("seed", [0, 1, 2, 4])  # layers of both types occur
@pytest.mark.parametrize("model_type", LONG)
def test_no_tensor_of_a_long_row_has_T_x_T_numbers(model_type, seed, row, monkeypatch):
    monkeypatch.setattr(attention, "LARGE_BLOCK", 64)
    monkeypatch.setattr(attention, "SMALL_BLOCK", 64)
    encoder, ids = encoder_of(model_type, seed), torch.full((1, T), 5)
    with torch.no_grad(), LargestTensor() as largest:
        encoder(ids, ROWS[row])
    assert T <= largest.size < T * T / 16


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_tokens", "span"), [(600, (None, 0)), (20, (None, 0)), (20, (3, 3))])
def test_16_bits_give_16_bits_and_nearly_the_values_of_float32(dtype, num_tokens, span):
    """A long row, and a short sentence alone."""
    ids, inputs = torch.ones(1, num_tokens, dtype=torch.int64), random_qkv(1, num_tokens, dtype=dtype)
    mask = make_attention_bias(ids, dtype, *span)
    assert isinstance(mask, LongRowMask)
    out = long_row_attention(*inputs, mask, scale=0.7)
    assert out.dtype == dtype
    exact = explicit(*(x.float() for x in inputs), ids, *span, scale=0.7)
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=0.02)


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
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


PACKED = torch.tensor([[1] * 300 + [2] * 212])
ALONE = torch.tensor([[7], [3]]).expand(2, 600)  # a sentence in each row
SHORT = torch.tensor([[5] * 9])


@pytest.mark.parametrize(
    ("ids", "dtype", "span", "expected"),
    [
        (ALONE, torch.float32, (), LongRowMask(None)),
        (ALONE, torch.float32, (599, 0), LongRowMask(None, None, 0)),  # all tokens
        (ALONE, torch.float32, (598, 0), LongRowMask(None, 598, 0)),
        (SHORT, torch.bfloat16, (), LongRowMask(None)),
        (SHORT, torch.bfloat16, (3, 3), LongRowMask(None, 3, 3)),
        (SHORT.expand(2, 9), torch.bfloat16, (), None),  # the additive mask
        (PACKED, torch.float32, (), None),
        (SHORT, torch.float32, (), None),
        (SHORT, torch.float32, (3, 3), None),
    ],
)
def test_a_row_is_long_from_513_tokens_on_and_a_sentence_alone_in_16_bits(ids, dtype, span, expected):
    mask = make_attention_bias(ids, dtype, *span)
    if expected is not None:
        assert mask == expected
    else:
        additive = block_diagonal_mask(ids, dtype, *((None, *span) if span else ()))
        assert torch.equal(mask[:, 0], additive)
    longer = make_attention_bias(torch.cat([PACKED, PACKED[:, -1:]], 1), torch.float32)
    assert longer.attention_mask.shape == (1, 513) and not longer.is_plain


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
