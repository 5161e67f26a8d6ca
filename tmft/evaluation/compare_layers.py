"""Compare the layers of pairs of models by linear CKA, on the same sentences."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tmft.cka import CKAError, StreamingCKA, cka_matrix, linear_cka
from tmft.errors import InputError
from tmft.io.files import is_folder
from tmft.sentence_encoder import SentenceEncoder, check_finite_embeddings

MAX_LAYERS = 200  # of the runs of a sweep
MAX_IN_MEMORY = 20_000  # more sentences than this are encoded in parts, of which only sums are kept


def match_layers(a: SentenceEncoder, b: SentenceEncoder) -> list[int]:
    """Return, for each hidden state of A, the index of the one of B with which it is compared.

    This is the same layer if both models are equally deep, else the one at the same relative depth, rounded.
    """
    num_a, num_b = len(a.encoder.layers), len(b.encoder.layers)
    return [int(layer * num_b / max(num_a, 1) + 0.5) for layer in range(num_a + 1)]


def compare_layers(
    models: dict[str, SentenceEncoder],
    pairs: list[tuple[str, str]],
    sentences: list[str],
    all_pairs: bool = False,
    debiased: bool = False,
) -> list[Tensor]:
    """Compute linear CKA for each pair of models, in one pass over the sentences.

    Returns a float64 tensor for each pair: (L,), a value for each pair of `match_layers`, or, with all_pairs,
    (L1, L2), one for all hidden states of A and B.
    """
    streams = [StreamingCKA() for _ in pairs]
    matched = [match_layers(models[a], models[b]) for a, b in pairs]
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
                embeddings = [(x, y[layers]) for (x, y), layers in zip(embeddings, matched, strict=True)]
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


def layers_of_runs(a: str, b: str) -> list[int]:
    """Return the numbers of layers for which both have a run folder; {layer} in the names stands for them.

    Raises InputError if a name has no {layer}, or if there is no such number.
    """
    for name in (a, b):
        if "{layer}" not in name:
            raise InputError(
                f"only one name of a pair has {{layer}}, not {name}: runs are compared with runs"
            )
    layers = [
        layer
        for layer in range(MAX_LAYERS)
        if all(is_folder(Path(name.replace("{layer}", str(layer)))) for name in (a, b))
    ]
    if not layers:
        raise InputError(f"no number of layers has a run folder {a} and a run folder {b}: check the names")
    return layers


def compare_runs(
    load: Callable[[str], SentenceEncoder],
    a: str,
    b: str,
    layers: list[int],
    sentences: list[str],
    debiased: bool = False,
) -> list[float]:
    """Compute, for each number of layers, linear CKA of the last hidden states of two runs that kept so many.

    load: returns the model in a folder. Only two models are in memory at a time. a, b, layers: see
    `layers_of_runs`. Raises InputError if a model does not have the number of layers that its folder names.
    Source: Rep et al. 2024 (EMNLP), figure 9, where each layer is that of a model fine-tuned up to it.
    """
    values = []
    for layer in layers:
        names = [name.replace("{layer}", str(layer)) for name in (a, b)]
        models = {name: load(name) for name in names}
        for name, model in models.items():
            if len(model.encoder.layers) != layer:
                raise InputError(f"{name} has {len(model.encoder.layers)} layers, not {layer}: rename it")
        [value] = compare_layers(models, [(names[0], names[1])], sentences, debiased=debiased)
        values.append(value[-1].item())
    return values
