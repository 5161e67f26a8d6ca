"""Compare the layers of pairs of models by linear CKA, on the same sentences."""

import torch
from torch import Tensor

from tmft.cka import CKAError, StreamingCKA, cka_matrix, linear_cka
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder, check_finite_embeddings

MAX_IN_MEMORY = 20_000  # more sentences than this are encoded in parts, of which only sums are kept


def match_layers(num_layers_a: int, num_layers_b: int) -> list[int]:
    """Return, for each hidden state of A from 0 to num_layers_a, the index of its counterpart in B.

    It has the same index if the models are equally deep, and otherwise the same relative depth, rounded.
    num_layers_a, num_layers_b: number of layers of A and of B.
    """
    return [int(layer * num_layers_b / max(num_layers_a, 1) + 0.5) for layer in range(num_layers_a + 1)]


def compare_layers(
    models: dict[str, SentenceEncoder],
    pairs: list[tuple[str, str]],
    sentences: list[str],
    all_pairs: bool = False,
    debiased: bool = False,
) -> list[Tensor]:
    """Compute linear CKA for each pair of models, in one pass over the sentences.

    Returns a float64 tensor for each pair: (L1,) or, with all_pairs, (L1, L2), where L1 and L2 are the
    numbers of hidden states of A and B.
    """
    streams = [StreamingCKA() for _ in pairs]
    try:
        for start in range(0, len(sentences), MAX_IN_MEMORY):
            batch = sentences[start : start + MAX_IN_MEMORY]
            hidden_states = {
                name: model.embed_token_ids(model.tokenize(batch), model.forward_all_layers, True)
                for name, model in models.items()
            }  # (L, N, D) each
            for name, states in hidden_states.items():
                check_finite_embeddings(states, batch, name)
            embeddings = [(hidden_states[a], hidden_states[b]) for a, b in pairs]
            if not all_pairs:
                embeddings = [(x, y[match_layers(len(x) - 1, len(y) - 1)]) for x, y in embeddings]
            if len(batch) == len(sentences):
                if all_pairs:
                    return [cka_matrix(x, y, debiased) for x, y in embeddings]
                values = [
                    [linear_cka(u, v, debiased) for u, v in zip(x, y, strict=True)] for x, y in embeddings
                ]
                return [torch.tensor(of_layers, dtype=torch.float64) for of_layers in values]
            for stream, (x, y) in zip(streams, embeddings, strict=True):
                stream.update(x[:, None] if all_pairs else x, y)
        return [torch.as_tensor(stream.value()) for stream in streams]
    except CKAError as error:
        raise InputError(
            f"CKA of {', '.join(models)} is undefined ({error}): check weights and sentences"
        ) from None
