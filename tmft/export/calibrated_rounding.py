"""Round the linear maps of a model to few bits, so that what they compute for given sentences changes little.

Source: Frantar et al. 2022, arXiv:2210.17323 (GPTQ).

Letters in this file: N tokens, R outputs, C inputs and G groups of inputs of a linear map.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.checkpoints.compact import GROUP_SIZE, quantize, search_scales, storage_dtype
from tmft.device import progress_bar
from tmft.sentence_encoder import SentenceEncoder

DAMPING = 0.01  # share of the mean variance of an input that is added to the variance of each


@torch.no_grad()
def round_with_calibration(
    model: SentenceEncoder, dtype: str, lines: Sequence[str]
) -> list[tuple[Tensor, Tensor]]:
    """Round the matrices of all linear maps of a model in place, for their inputs on these lines.

    A bias makes up for the mean error of its outputs. dtype: "int4" or "int8". Progress is shown on stderr.
    Returns each rounded matrix with its scales, which a search would not find again: the numbers of a group
    may end inside the bounds.
    """
    moments: dict[nn.Linear, Tensor] = {}  # sums over the tokens, (C + 1, C + 1) each

    def add_moments(module: nn.Linear, arguments: tuple[Tensor], _output: Tensor) -> None:
        x = F.pad(arguments[0].flatten(0, -2).double(), (0, 1), value=1.0)  # (N, C + 1), the last one is 1
        moments[module] = moments.get(module, 0) + x.T @ x

    handles = [
        module.register_forward_hook(add_moments)
        for module in model.modules()
        if isinstance(module, nn.Linear) and storage_dtype("", module.weight, dtype)
    ]
    model.encode(lines, show_progress_bar=True)
    for handle in handles:
        handle.remove()
    rounded_matrices = []
    bar = progress_bar(len(moments), "matrices", desc="round")
    for module, sums in moments.items():
        products, mean = (sums / sums[-1, -1])[:-1, :-1], (sums / sums[-1, -1])[-1, :-1]  # (C, C), (C,)
        weight, has_bias = module.weight.double(), module.bias is not None
        covariance = products - torch.outer(mean, mean) if has_bias else products
        rounded, scales = round_columns(weight, covariance, dtype)
        module.weight.copy_(rounded)
        rounded_matrices.append((module.weight.detach(), scales))
        if has_bias:
            module.bias.copy_(module.bias + (weight - module.weight) @ mean)
        bar.update()
    bar.close()
    return rounded_matrices


def round_columns(weight: Tensor, covariance: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """Round a matrix of (R, C) column by column; the columns that follow make up for the error of each.

    covariance: (C, C), of the inputs. Returns the rounded matrix, and its scales, (R, G) float16.
    Source: the paper's algorithm 1, without blocks.
    """
    C = len(covariance)
    damping = DAMPING * covariance.diagonal().mean() + 1e-12
    factor = torch.linalg.cholesky(torch.linalg.inv(covariance + damping * torch.eye(C)), upper=True)
    rounded, group_size = weight.clone(), GROUP_SIZE if dtype == "int4" else C
    scales = []
    for c in range(C):
        if c % group_size == 0:
            scales.append(search_scales(rounded[:, c : c + group_size], dtype))  # (R, 1)
            scale = scales[-1].double()
        column = quantize(rounded[:, c, None], scale, dtype) * scale  # (R, 1)
        error = (rounded[:, c, None] - column) / factor[c, c]
        rounded[:, c + 1 :] -= error * factor[c, c + 1 :]
        rounded[:, c, None] = column
    return rounded, torch.cat(scales, 1)
