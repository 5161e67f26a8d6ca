"""Hidden states of several models side by side, on the same sentences: linear CKA by layer."""

import torch
from torch import Tensor

from tmft.cka import CKAError, StreamingCKA, cka_matrix, linear_cka
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder

IN_MEMORY = 20_000  # sentences; more of them are read in parts, of which only sums are kept


def line_up(layers_of_a: int, layers_of_b: int) -> list[int]:
    """For each hidden state of A the one of B: of equal number, or of equal relative depth, rounded."""
    return [int(layer * layers_of_b / max(layers_of_a, 1) + 0.5) for layer in range(layers_of_a + 1)]


def compare(
    models: dict[str, SentenceEncoder],
    pairs: list[tuple[str, str]],
    sentences: list[str],
    matrix: bool,
    debiased: bool,
) -> list[Tensor]:
    """CKA of each pair of models, (L1,) or as a matrix (L1, L2), in one pass over the sentences."""
    streams = [StreamingCKA() for _ in pairs]
    try:
        for start in range(0, len(sentences), IN_MEMORY):
            part = sentences[start : start + IN_MEMORY]
            states = {
                name: model.embed_token_ids(model.tokenize(part), all_layers=True, show_progress_bar=True)
                for name, model in models.items()
            }  # (L, N, D) each
            sides = [(states[a], states[b]) for a, b in pairs]
            if not matrix:
                sides = [(x, y[line_up(len(x) - 1, len(y) - 1)]) for x, y in sides]
            if len(part) == len(sentences):
                return [
                    cka_matrix(x, y, debiased) if matrix else equal_layers(x, y, debiased) for x, y in sides
                ]
            for stream, (x, y) in zip(streams, sides, strict=True):
                stream.update(x[:, None] if matrix else x, y)
        return [stream.value() for stream in streams]
    except CKAError as error:
        raise InputError(f"no CKA of {', '.join(models)} ({error}): check weights and sentences") from None


def equal_layers(x: Tensor, y: Tensor, debiased: bool) -> Tensor:
    """(L, N, D1), (L, N, D2) -> (L,) float64, CKA of layer l of both."""
    values = [linear_cka(u, v, debiased) for u, v in zip(x, y, strict=True)]
    return torch.tensor(values, dtype=torch.float64)
