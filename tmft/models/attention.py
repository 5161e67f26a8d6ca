"""Attention in long rows, for which scores or a mask of T x T numbers would take too much memory.

The queries of a long row are taken in blocks. F.scaled_dot_product_attention gets one block at a time, with
only the keys that its queries may attend to, and never stores the scores, so that memory grows as T. In a
layer in which a token attends to W neighbours, time grows as T * W. The result is that of the additive mask
of block_diagonal_mask, up to rounding.

Letters in this file: B rows of a batch, T tokens in a row, H heads, K key/value heads, A dimensions of a
head, N queries of a block, M keys that at least one of them may attend to.
Source: Dao et al. 2022, arXiv:2205.14135, and Rabe and Staats 2021, arXiv:2112.05682, for attention without
stored scores; Beltagy et al. 2020, arXiv:2004.05150, for neighbours in blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Rows of more tokens are long rows. On two cores with AVX512, attention without gradients by
# scaled_dot_product_attention is faster from about 300 tokens on in float32, and from 600 on in bfloat16.
LONG_ROW = 512
LARGE_BLOCK = 1024  # queries in a block that attends to whole sentences; torch is slower below 768
SMALL_BLOCK = 256  # queries in a block that attends to neighbours, or whose scores are stored for dropout


@dataclass(frozen=True)
class LongRowMask:
    """Says which tokens attend to which in long rows; `block` makes a part of the mask.

    sentence_ids: (B, T), the number of the sentence of each token, 0 on padding; None if each row holds one
    sentence and no padding. before, after: how many tokens before itself and after itself a token may attend
    to; None means all of its sentence.
    """

    sentence_ids: Tensor | None
    before: int | None = None
    after: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether no mask is needed: every token attends to all tokens, or to all that are not after it."""
        return self.sentence_ids is None and self.before is None and self.after in (None, 0)

    def keys(self, queries: range, T: int) -> range:
        """Return the columns of the keys to which at least one of these queries may attend.

        queries: the columns of N consecutive tokens, of 0 .. T - 1.
        """
        first = 0 if self.before is None else max(0, queries.start - self.before)
        stop = T if self.after is None else min(T, queries.stop + self.after)
        return range(first, stop)

    def block(self, queries: range, keys: range, device: torch.device) -> Tensor:
        """Return whether each query may attend to each key: (B or 1, 1, N, M) bool, the same for all heads.

        queries, keys: the columns of N and of M consecutive tokens. device: of the result.
        """
        i, j = (torch.arange(part.start, part.stop, device=device) for part in (queries, keys))  # columns
        allowed = torch.ones(1, 1, len(queries), len(keys), dtype=torch.bool, device=device)
        if self.before is not None:
            allowed = allowed & (j >= i[:, None] - self.before)
        if self.after is not None:
            allowed = allowed & (j <= i[:, None] + self.after)
        if self.sentence_ids is not None:
            sentence = self.sentence_ids[:, queries.start : queries.stop, None]  # (B, N, 1)
            allowed = allowed & (sentence == self.sentence_ids[:, None, keys.start : keys.stop])[:, None]
        return allowed


def long_row_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: LongRowMask, dropout_p: float = 0.0, scale: float | None = None
) -> Tensor:
    """Return softmax(q k^T * scale) v for each head, where each query attends to the tokens that mask allows.

    q: (B, H, T, A). k, v: (B, K, T, A); query head h uses key head and value head h // (H / K).
    dropout_p: probability of dropout of the attention weights. scale: None means 1 / sqrt(A).
    Returns (B, H, T, A) in the dtype of v.
    """
    T, dtype = q.shape[2], v.dtype
    q, k, v = (x.to(torch.float32 if computes_in_float32(v) else dtype) for x in (q, k, v))
    if k.shape[1] < q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))  # (B, H, T, A) each
    attend: Callable[..., Tensor] = partial(F.scaled_dot_product_attention, dropout_p=dropout_p, scale=scale)
    # With dropout, torch stores scores on a CPU. Then the backward pass computes those of each block again.
    stores_scores = dropout_p > 0 and v.device.type == "cpu"
    if stores_scores:
        attend = partial(checkpoint, attend, use_reentrant=False)
    with torch.autocast(v.device.type, enabled=False):  # the dtype is chosen above
        if mask.is_plain and not stores_scores:
            return attend(q, k, v, is_causal=mask.after == 0).to(dtype)
        is_local = mask.before is not None and mask.before < LARGE_BLOCK
        size = SMALL_BLOCK if is_local or stores_scores else LARGE_BLOCK
        context = []
        for start in range(0, T, size):
            queries = range(start, min(start + size, T))
            keys = mask.keys(queries, T)
            context.append(
                attend(
                    q[:, :, queries.start : queries.stop],
                    k[:, :, keys.start : keys.stop],
                    v[:, :, keys.start : keys.stop],
                    attn_mask=mask.block(queries, keys, v.device),
                )
            )
    return torch.cat(context, dim=2).to(dtype)


def computes_in_float32(v: Tensor) -> bool:
    """Return whether attention is computed in float32, although the values v, (B, K, T, A), have 16 bits.

    On CPUs without AMX, torch's kernel for long rows takes twice as long in bfloat16 as in float32.
    """
    has_amx = torch.cpu.get_capabilities().get("amx_bf16", False)
    return v.device.type == "cpu" and v.dtype in (torch.bfloat16, torch.float16) and not has_amx
