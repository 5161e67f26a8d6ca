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

from tmft.errors import InputError, check_range
from tmft.models.bert_families import ElectraConfig
from tmft.models.families import FAMILIES, convert_to_bert, empty_encoder
from tmft.sentence_encoder import SentenceEncoder
from tmft.students.vocabulary_pruning import token_counts
from tmft.training_free.postprocessing import principal_components

TYPICAL_POSITIONS = slice(1, 16)  # the word embeddings are fitted for the mean of these
FREQUENT_TOKENS = 1000  # the embeddings of positions are fitted for these


@torch.no_grad()
def factorize_embeddings(
    model: SentenceEncoder, lines: Iterable[str], embedding_size: int
) -> SentenceEncoder:
    """Return a copy of a BERT as an ELECTRA whose token embeddings have E dimensions.

    lines: a text; each token counts by its frequency in it. embedding_size: E, 2 to D - 1.
    Raises InputError for an E out of range, for an empty text, and for a model that cannot be stored as a
    BERT or has narrow embeddings already.
    """
    encoder, old_config = model.encoder, model.encoder.config
    is_bert = not FAMILIES[old_config.model_type].bert_incompatible
    if not is_bert or old_config.embedding_size != old_config.hidden_size:
        problem = f"embedding_size: {old_config.model_type} with embeddings of {old_config.embedding_size}"
        remedy = "choose a BERT, or an ELECTRA whose embeddings are as wide as its layers"
        raise InputError(f"{problem} dimensions: {remedy}", "embedding_size")
    check_range("embedding_size", embedding_size, 2, old_config.hidden_size - 1)
    counts = token_counts(model, lines)[: old_config.vocab_size]  # (V,)
    config, weights = convert_to_bert(encoder)
    tables = ("word", "position", "token_type")
    words, positions, types = (weights[f"embeddings.{name}.weight"].double() for name in tables)
    norm = deepcopy(encoder.embeddings.get_submodule("norm")).double()
    typical = norm(words + positions[TYPICAL_POSITIONS].mean(0) + types[0])  # (V, D)
    basis, mean, components = principal_components(typical, counts, embedding_size - 1)
    # LayerNorm subtracts the mean of the E coordinates, which is 0 for vectors orthogonal to (1, ..., 1).
    rotation = torch.linalg.svd(torch.ones(1, embedding_size, dtype=torch.float64)).Vh[1:]
    basis, narrow = basis @ rotation, components @ rotation  # (D, E), (V, E)
    frequent = counts.argsort(descending=True, stable=True)[:FREQUENT_TOKENS]
    base = words[frequent] + types[0]
    shifts = torch.stack([(norm(base + position) - typical[frequent]).mean(0) for position in positions])

    values = vars(config) | {"model_type": "electra", "embedding_size": embedding_size}
    electra = empty_encoder(ElectraConfig(**values), len(encoder.layers))
    size = counts @ narrow.std(1, correction=0) / counts.sum()  # of a coordinate, which LayerNorm makes 1
    weights |= {
        "embeddings.word.weight": narrow,
        "embeddings.position.weight": shifts @ basis,  # (P, E)
        "embeddings.token_type.weight": torch.zeros(len(types), embedding_size),
        "embeddings.norm.weight": size.expand(embedding_size),
        "embeddings.norm.bias": torch.zeros(embedding_size),
        "embeddings.project.weight": basis,
        "embeddings.project.bias": mean,
    }
    electra.load_state_dict({name: weight.float().clone() for name, weight in weights.items()}, assign=True)
    return deepcopy(model, {id(encoder): electra}).eval()  # a copy that has the new encoder
