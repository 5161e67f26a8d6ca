"""Give a BERT token embeddings that are narrower than its layers, and a linear map after them: an ELECTRA.

Most weights of a small model are word embeddings. With a size of E in place of D, their table takes E / D of
the space. The linear map comes from a principal component analysis of what enters the first layer. The model
loses quality by it, and regains most of it when it is trained further.
Source: Lan et al. 2020, arXiv:1909.11942 (ALBERT), which trains such embeddings from the beginning.

Letters in this file: V tokens, P positions, D hidden_size, E embedding_size.
"""

from collections.abc import Iterable
from copy import deepcopy

import torch
from torch import nn

from tmft.embedding.postprocessing import principal_components
from tmft.errors import InputError, check_range
from tmft.models.bert import Embeddings
from tmft.models.bert_families import ElectraConfig
from tmft.models.registry import random_encoder
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.vocabulary_pruning import token_counts

TYPICAL_POSITIONS = slice(1, 16)  # the word embeddings are fitted for the mean of these
FREQUENT_TOKENS = 1000  # the embeddings of positions are fitted for these


@torch.no_grad()
def factorize_embeddings(
    model: SentenceEncoder, lines: Iterable[str], embedding_size: int
) -> SentenceEncoder:
    """Return a copy of a BERT whose embeddings of tokens have E dimensions, as an ELECTRA.

    lines: a text; each token counts by its frequency in it. embedding_size: E, 2 to D - 1.
    Raises InputError for an E out of range, for an empty text, and for a model that is neither a BERT nor an
    ELECTRA with embeddings as wide as its layers.
    """
    old, config = model.encoder.embeddings, model.encoder.config
    if config.model_type not in ("bert", "electra") or config.embedding_size != config.hidden_size:
        problem = f"embedding_size: {config.model_type} with embeddings of {config.embedding_size}"
        remedy = "choose a BERT, or an ELECTRA whose embeddings are as wide as its layers"
        raise InputError(f"{problem} dimensions: {remedy}", "embedding_size")
    assert isinstance(old, Embeddings)
    check_range("embedding_size", embedding_size, 2, config.hidden_size - 1)
    counts = token_counts(model, lines)[: config.vocab_size]  # (V,)
    words, positions = old.word.weight.double(), old.position.weight.double()  # (V, D), (P, D)
    norm, token_type = deepcopy(old.norm).double(), old.token_type.weight[0] if old.token_type else 0
    typical = norm(words + positions[TYPICAL_POSITIONS].mean(0) + token_type)  # (V, D)
    basis, mean, components = principal_components(typical, counts, embedding_size - 1)
    # LayerNorm subtracts the mean of the E coordinates: it is 0 if they have no part along (1, ..., 1).
    rotation = torch.linalg.svd(torch.ones(1, embedding_size, dtype=torch.float64)).Vh[1:]
    basis, narrow = basis @ rotation, components @ rotation  # (D, E), (V, E)
    frequent = counts.argsort(descending=True, stable=True)[:FREQUENT_TOKENS]
    base = words[frequent] + token_type
    shifts = torch.stack([(norm(base + position) - typical[frequent]).mean(0) for position in positions])

    values = vars(config) | {"model_type": "electra", "embedding_size": embedding_size}
    encoder = random_encoder(ElectraConfig(**values), len(model.encoder.layers))
    new = encoder.embeddings
    assert isinstance(new, Embeddings) and isinstance(new.project, nn.Linear)
    new.word.weight.copy_(narrow)
    new.position.weight.copy_(shifts @ basis)  # (P, E)
    if new.token_type:
        new.token_type.weight.zero_()
    new.norm.weight.fill_((counts @ narrow.std(1, correction=0) / counts.sum()).item())
    new.project.weight.copy_(basis)
    new.project.bias.copy_(mean)
    encoder.layers.load_state_dict(model.encoder.layers.state_dict())
    return deepcopy(model, {id(model.encoder): encoder}).eval()  # a copy that has the new encoder
