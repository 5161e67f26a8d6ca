"""Attention in long rows, for which scores or a mask of T x T numbers would take too much memory.

The queries of a long row are taken in blocks, each with only the keys that its queries may attend to. So
memory is proportional to T, not to T * T, and in a layer in which a token attends to W neighbors, time is
proportional to T * W. A row that needs no mask is one block. F.scaled_dot_product_attention computes a block
without storing its scores; where attention has dropout on a CPU, scores are stored for one block at a time.
The result is that of the additive mask of block_diagonal_mask, up to rounding.

Letters in this file: B rows of a batch, T tokens in a row, H heads, K key/value heads, A dimensions of a
head, Q queries of a block, M keys that at least one of them may attend to.
Source: Dao et al. 2022, arXiv:2205.14135, and Rabe and Staats 2021, arXiv:2112.05682, for attention without
stored scores; Chen et al. 2016, arXiv:1604.06174, for computing them again in the backward pass; Beltagy et
al. 2020, arXiv:2004.05150, for neighbors in blocks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tmft.speed.operators import Dropout, no_autocast

# A row of more tokens than this is a long row. Without gradients, on one thread of a CPU with AVX512,
# scaled_dot_product_attention was faster than attention written out from about 300 tokens on in float32; in
# bfloat16, computed in float32, from about 600 on.
LONG_ROW = 512
# In bfloat16 it was also faster for a row that is a single sentence of at most this many tokens.
SHORT_ROW = 32
LARGE_BLOCK = 1024  # queries in a block that attends to whole sentences; torch is slower below 768
SMALL_BLOCK = 256  # queries in a block that attends to neighbors, or that is written out because of dropout


@dataclass(frozen=True)
class LongRowMask:
    """Says which tokens attend to which in long rows; `block` makes a part of the mask.

    attention_mask: (B, T), the number of the sentence of each token, 0 on padding; None if each row holds one
    sentence and no padding. before, after: how many tokens before itself and after itself a token may attend
    to; None means all of its sentence.
    """

    attention_mask: Tensor | None
    before: int | None = None
    after: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether no mask is needed: every token attends to all tokens, or to all that are not after it."""
        return self.attention_mask is None and self.before is None and self.after in (None, 0)

    def keys(self, queries: range, T: int) -> range:
        """Return the columns of the keys to which at least one of these queries may attend.

        queries: the columns of Q consecutive tokens, of 0 .. T - 1.
        """
        first = 0 if self.before is None else max(0, queries.start - self.before)
        stop = T if self.after is None else min(T, queries.stop + self.after)
        return range(first, stop)

    def block(self, queries: range, keys: range, device: torch.device) -> Tensor:
        """Return whether each query may attend to each key: (B or 1, 1, Q, M) bool, the same for all heads.

        queries, keys: the columns of Q and of M consecutive tokens. device: of the result.
        """
        i, j = (torch.arange(part.start, part.stop, device=device) for part in (queries, keys))  # columns
        allowed = torch.ones(1, 1, len(queries), len(keys), dtype=torch.bool, device=device)
        if self.before is not None:
            allowed = allowed & (j >= i[:, None] - self.before)
        if self.after is not None:
            allowed = allowed & (j <= i[:, None] + self.after)
        if self.attention_mask is not None:
            sentence = self.attention_mask[:, queries.start : queries.stop, None]  # (B, Q, 1)
            allowed = allowed & (sentence == self.attention_mask[:, None, keys.start : keys.stop])[:, None]
        return allowed


def make_long_row_mask(
    attention_mask: Tensor, dtype: torch.dtype, before: int | None, after: int | None
) -> LongRowMask | None:
    """Return the mask of long rows and, in 16 bits, of one short sentence by itself; None for other rows.

    The parameters are those of block_diagonal_mask in encoder.py.
    """
    if torch.compiler.is_compiling():  # a graph is used with other values of T than it is exported with
        return None
    B, T = attention_mask.shape
    is_short = B == 1 and T <= SHORT_ROW and dtype.itemsize == 2
    if not (is_short or T > LONG_ROW):
        return None
    one_sentence = bool((attention_mask == attention_mask[:, :1]).all())
    if is_short and not one_sentence:
        return None
    before, after = (None if span is None or span >= T - 1 else span for span in (before, after))
    return LongRowMask(None if one_sentence else attention_mask, before, after)


def long_row_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: LongRowMask, dropout_p: float = 0.0, scale: float | None = None
) -> Tensor:
    """Return softmax(q k^T * scale) v for each head, where each query attends to the tokens that mask allows.

    q: (B, H, T, A). k, v: (B, K, T, A); query head h uses key head and value head h // (H / K).
    dropout_p: probability of dropout of the attention weights. scale: None means 1 / sqrt(A).
    Returns (B, H, T, A).
    """
    if k.shape[1] < q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))  # (B, H, T, A) each
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    # On a CPU, F.scaled_dot_product_attention with dropout stores all scores, and draws more random numbers
    # than Dropout of tmft/speed/operators.py.
    is_written_out = dropout_p > 0 and v.device.type == "cpu"
    if mask.is_plain and not is_written_out:
        return library_attention(q, k, v, None, scale, dropout_p, is_causal=mask.after == 0)
    if is_written_out:
        k, v = k.contiguous(), v.contiguous()
    is_local = mask.before is not None and mask.before < LARGE_BLOCK
    size, T = SMALL_BLOCK if is_local or is_written_out else LARGE_BLOCK, q.shape[2]
    context = []
    for start in range(0, T, size):
        queries = range(start, min(start + size, T))
        keys = mask.keys(queries, T)
        q_block, k_block, v_block = (
            x[:, :, part.start : part.stop] for x, part in ((q, queries), (k, keys), (v, keys))
        )
        make_allowed = partial(mask.block, queries, keys, q.device)
        if is_written_out:  # the backward pass computes the scores of this block once more
            arguments = (q_block, k_block, v_block, make_allowed, scale, Dropout(dropout_p))
            block = checkpoint(written_out_attention, *arguments, use_reentrant=False)
        else:
            block = library_attention(q_block, k_block, v_block, make_allowed(), scale, dropout_p)
        context.append(block)  # (B, H, Q, A)
    return torch.cat(context, dim=2)


def library_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    scale: float,
    dropout_p: float,
    is_causal: bool = False,
) -> Tensor:
    """Return the attention of Q queries, (B, H, Q, A), computed by F.scaled_dot_product_attention.

    q: (B, H, Q, A). k, v: (B, H, M, A). allowed: see LongRowMask.block; None means that all keys are allowed.
    is_causal: whether the keys after a query are not allowed. scale, dropout_p: see long_row_attention.
    """
    dtype = torch.float32 if computes_in_float32(v) else v.dtype
    options: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    with no_autocast(v.device.type):  # it would choose another dtype
        return F.scaled_dot_product_attention(
            q.to(dtype), k.to(dtype), v.to(dtype), attn_mask=allowed, **options
        ).to(v.dtype)


def written_out_attention(
    q: Tensor, k: Tensor, v: Tensor, make_allowed: Callable[[], Tensor], scale: float, dropout: Dropout
) -> Tensor:
    """Return the attention of Q queries, (B, H, Q, A), computed as in SelfAttention of tmft/bert.py.

    q: (B, H, Q, A). k, v: (B, H, M, A). make_allowed: returns LongRowMask.block. scale: see
    long_row_attention. dropout: is applied to the attention weights.
    """
    allowed = make_allowed()
    mask = torch.zeros_like(allowed, dtype=q.dtype).masked_fill(~allowed, torch.finfo(q.dtype).min)
    scores = (q * scale) @ k.transpose(-1, -2) + mask  # (B, H, Q, M)
    return dropout(scores.softmax(-1)) @ v


def computes_in_float32(v: Tensor) -> bool:
    """Return whether attention is computed in float32, although the values v, (B, K, T, A), have 16 bits.

    On CPUs without AMX, torch's kernel for long rows takes twice as long in bfloat16 as in float32.
    """
    has_amx = torch.cpu.get_capabilities().get("amx_bf16", False)
    is_short = v.shape[-2] <= SHORT_ROW
    return v.device.type == "cpu" and v.dtype.itemsize == 2 and not (has_amx or is_short)
