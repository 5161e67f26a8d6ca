"""Narrow models from wide ones: an untrained student of a teacher, and a BERT with narrow token embeddings.

Most weights of a small model are word embeddings, and narrow ones take less space. What these begin with are
the principal components of the wide ones; each token counts by its frequency in a text. The model loses
quality by it, and regains most of it when it is trained.

Letters in this file: V tokens, P positions, D dimensions of the wide embeddings, H hidden_size of a narrow
student, E embedding_size.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy

import torch
from torch import Tensor

from tmft.checkpoints.model_card import ModelCardData
from tmft.embedding.layer_mix import WORD_EMBEDDINGS
from tmft.embedding.modules import Dense, Normalize
from tmft.errors import MAX_COUNT, InputError, check_count
from tmft.models.bert_families import ElectraConfig
from tmft.models.families import FAMILIES, config_from_dict, convert_to_bert, empty_encoder, random_encoder
from tmft.sentence_encoder import SentenceEncoder
from tmft.students.vocabulary_pruning import prune_tokenizer, token_counts, tokens_to_keep

HEAD_SIZE = 32  # dimensions of an attention head of a narrow student, as in all-MiniLM-L6-v2
# The components of the teacher's token embeddings are scaled to this standard deviation. Layer normalization
# follows, so that it matters only relative to the position embeddings (0.02).
TOKEN_STD = 0.1
TYPICAL_POSITIONS = slice(1, 16)  # narrow word embeddings are fitted for the mean of these
FREQUENT_TOKENS = 1000  # narrow embeddings of positions are fitted for these


def narrow_student(
    teacher: SentenceEncoder,
    lines: Sequence[str],
    num_layers: int = 4,
    hidden_size: int = 128,
    vocab_size: int | None = None,
    max_length: int = 128,
) -> SentenceEncoder:
    """Return an untrained BERT that is narrower than a teacher and begins with what its tokens mean to it.

    teacher: its tokenizer is used, and the embedding that it gives to each token alone. lines: sentences; how
    often each token occurs in them decides which tokens are kept and how much each counts.
    num_layers, hidden_size: the shape; hidden_size is a multiple of HEAD_SIZE and at most D. The layers are
        random, drawn from torch's global generator.
    vocab_size: keep only so many tokens, the most frequent ones; None keeps all. max_length: longer sentences
        are truncated to this number of tokens.

    The word embeddings are the teacher's embeddings of single tokens, projected onto their H principal
    components, and the Dense after the pooling projects back to D dimensions. So the student begins as a good
    static model: its random layers change their input little. The mean, which all embeddings share, is the
    bias of the Dense. Tokens are weighted by the square root of their frequency.
    Source: the embeddings of single tokens are the idea of Model2Vec (van Dongen and Tulkens 2024).

    Raises InputError for num_layers, a hidden_size or a vocab_size out of range, and for a vocab_size with a
    tokenizer from which no tokens can be removed.
    """
    check_count("num_layers", num_layers, 0, MAX_COUNT)
    check_count("hidden_size", hidden_size, HEAD_SIZE, teacher.dimensions)
    if hidden_size % HEAD_SIZE:
        raise InputError(f"hidden_size {hidden_size}: choose a multiple of {HEAD_SIZE}", "hidden_size")
    counts = token_counts(teacher, lines)  # (number of the teacher's tokens,)
    tokenizer, kept = teacher.tokenizer, list(range(len(teacher.tokenizer.vocabulary)))
    if vocab_size is not None:
        kept = tokens_to_keep(teacher, counts, vocab_size)
        tokenizer = prune_tokenizer(tokenizer, kept)
    basis, mean, components = principal_components(
        embed_single_tokens(teacher, kept), counts[kept].sqrt(), hidden_size
    )
    config = config_from_dict(
        {
            "model_type": "bert",
            "vocab_size": len(kept),
            "hidden_size": hidden_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": hidden_size // HEAD_SIZE,
            "intermediate_size": 4 * hidden_size,
            "max_position_embeddings": max_length,
            "pad_token_id": tokenizer.pad_id,
            "hidden_dropout_prob": 0.0,  # plain text is plentiful, and no line is seen often
            "attention_probs_dropout_prob": 0.0,
        }
    )
    encoder, dense = random_encoder(config), Dense(hidden_size, teacher.dimensions)
    with torch.no_grad():
        encoder.embeddings.word.weight.copy_(components * (TOKEN_STD / components.std()))
        dense.weight.copy_(basis)
        dense.bias.copy_(mean * len(mean) ** 0.5)
    student = SentenceEncoder(
        encoder, tokenizer, "mean", max_length, [dense, Normalize()], source=teacher.source
    )
    note = "\nIt is not trained yet.\n"
    student.card_data = ModelCardData(note, teachers=(teacher.source or "a teacher",), kept_layers=())
    return student.eval()


def embed_single_tokens(teacher: SentenceEncoder, ids: Sequence[int]) -> Tensor:
    """Return the embeddings that a teacher gives to single tokens between its special tokens, (V, D).

    ids: V token ids. Progress is shown on stderr: a large teacher takes minutes.
    """
    tokenizer = teacher.tokenizer
    special = tokenizer.encode_batch([""], add_special_tokens=tokenizer.add_special_tokens)[0]
    before, _ = tokenizer.num_special_tokens
    prefix, suffix = special[:before], special[before:]
    return teacher.embed_token_ids([[*prefix, id, *suffix] for id in ids], show_progress_bar=True)


@torch.no_grad()
def factorize_embeddings(
    model: SentenceEncoder, lines: Iterable[str], embedding_size: int
) -> SentenceEncoder:
    """Return a copy of a BERT as an ELECTRA whose token embeddings have E dimensions, and a linear map after.

    lines: a text; each token counts by its frequency in it. embedding_size: E, 2 to D - 1.
    Source: Lan et al. 2020, arXiv:1909.11942 (ALBERT), which trains such embeddings from the beginning.

    Raises InputError for an E out of range, for an empty text, and for a model that cannot be stored as a
    BERT, has narrow embeddings already or pools them.
    """
    encoder, old_config = model.encoder, model.encoder.config
    is_bert = not FAMILIES[old_config.model_type].bert_incompatible
    if not is_bert or old_config.embedding_size != old_config.hidden_size:
        problem = f"embedding_size: {old_config.model_type} with embeddings of {old_config.embedding_size}"
        remedy = "choose a BERT, or an ELECTRA whose embeddings are as wide as its layers"
        raise InputError(f"{problem} dimensions: {remedy}", "embedding_size")
    if WORD_EMBEDDINGS in (model.layers or ()):
        problem = "embedding_size: the model pools its token embeddings, which would get other dimensions"
        raise InputError(f"{problem}: choose another `layer`", "embedding_size", "layer")
    check_count("embedding_size", embedding_size, 2, old_config.hidden_size - 1)
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


def principal_components(vectors: Tensor, weights: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first principal components of weighted vectors, in float64.

    vectors: (V, D). weights: (V,), how much each vector counts. count: H.
    Returns the basis, (D, H), with orthonormal columns; the weighted mean, (D,); and the coordinates of the
    vectors in this basis, (V, H), so that vectors is about mean + coordinates @ basis.T.
    """
    vectors, weights = vectors.double(), (weights / weights.sum()).double()
    mean = weights @ vectors
    centered = vectors - mean
    covariance = (centered * weights[:, None]).T @ centered  # (D, D)
    _, eigenvectors = torch.linalg.eigh(covariance)  # by ascending eigenvalue
    basis = eigenvectors[:, -count:].flip(1)
    return basis, mean, centered @ basis
