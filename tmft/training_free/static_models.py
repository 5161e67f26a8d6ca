"""Static models: the embedding of a sentence is the mean of one fixed vector per word.

The vectors are random (the baseline that every model has to beat), or the mean of the contextual embeddings
of a word over a text. "Words" are the tokens of a vocabulary.
Source: Stankevičius and Lukoševičius 2024, arXiv:2408.08073, sections 3.2.3 and 3.2.5.

Letters in this file: V words, D dimensions, M hidden states, B rows of a batch, T tokens in a row, n tokens
of a batch without padding.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tmft.device import progress_bar
from tmft.encoder import BaseEncoder
from tmft.errors import InputError
from tmft.models.families import config_from_dict, empty_encoder
from tmft.packing import PackedBatch
from tmft.sentence_encoder import SentenceEncoder
from tmft.tokenizer import Tokenizer

LINES_PER_BATCH = 20_000  # number of lines of a text that are tokenized at a time
INIT_STD = 0.1  # standard deviation of random vectors; it cancels in a cosine


def random_static_model(model: SentenceEncoder, dimensions: int = 768, seed: int = 0) -> SentenceEncoder:
    """Make a static model with a random vector for each token of the model's vocabulary.

    It is a baseline: its scores show how much can be achieved by counting common words alone.
    seed: for the random numbers.
    """
    vectors = random_word_vectors(model.encoder.config.vocab_size, dimensions, seed)
    return static_model(vectors, model, "random embeddings")


def static_model_from_text(model: SentenceEncoder, lines: Sequence[str]) -> SentenceEncoder:
    """Make a static model, in which the vector of a token is the mean of its hidden states in a text."""
    [vectors] = mean_vectors_in_text(model, lines, lambda batch: [model.hidden_states_of(batch)])
    return static_model(vectors.clone(), model, f"mean vectors of {model.source}")


def static_models_of_layers(
    model: SentenceEncoder, lines: Sequence[str], layers: Sequence[int]
) -> dict[int | None, SentenceEncoder]:
    """Return {layer: static model}; the vector of a token is the mean of this hidden state in a text.

    Their mean over several layers is that of the mean of these hidden states.
    """
    if layers[0] < 0:
        raise InputError("interpolate: word embeddings are static already: choose layers from 0")

    def hidden_states(batch: PackedBatch) -> list[Tensor]:
        states = model.encoder.hidden_states(*batch.inputs)
        return [states[layer] for layer in layers]

    vectors = mean_vectors_in_text(model, lines, hidden_states)  # (M, V, D)
    return {
        layer: static_model(of_layer, model, f"mean vectors of layer {layer}")
        for layer, of_layer in zip(layers, vectors, strict=True)
    }


def mean_vectors_in_text(
    model: SentenceEncoder, lines: Sequence[str], hidden_states: Callable[[PackedBatch], list[Tensor]]
) -> Tensor:
    """Return the mean of the contextual embeddings of each word in each hidden state: (M, V, D) float32.

    lines: the text. hidden_states: a function that maps a packed batch to M hidden states, (B, T, D) each. A
    word that does not occur has a vector of zeros. Sums are in float64, because a frequent word may have a
    million vectors.
    """
    V, sums = model.encoder.config.vocab_size, None
    bar = progress_bar(len(lines), "lines", True, desc="word vectors")
    with bar, model.evaluation_mode(), torch.inference_mode():
        for start in range(0, len(lines), LINES_PER_BATCH):
            corpus = model.tokenize_to_corpus(lines[start : start + LINES_PER_BATCH])
            for indices, batch in model.packed_batches(corpus):
                is_token = batch.sentence_ids.flatten() > 0  # (B * T,): no padding
                ids = batch.input_ids.flatten()[is_token]  # (n,)
                states = [state.flatten(0, 1)[is_token] for state in hidden_states(batch)]  # M of (n, D)
                hidden = torch.stack(states).double()  # (M, n, D)
                if sums is None:
                    M, _, D = hidden.shape
                    sums, counts = hidden.new_zeros(M, V, D), hidden.new_zeros(V)
                sums.index_add_(1, ids, hidden)
                counts.index_add_(0, ids, torch.ones_like(ids, dtype=torch.float64))
                bar.update(len(indices))
        if sums is None:
            raise InputError(
                "the text for static embeddings is empty: give a file with a sentence per line", "static_from"
            )
        return (sums / counts.clamp(min=1)[:, None]).float()


def random_word_vectors(vocab_size: int, dimensions: int = 768, seed: int = 0) -> Tensor:
    """Return a random vector for each word: (V, D), independent values from a normal
    distribution.

    The similarity of two sentences then depends only on which words they have in common.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(vocab_size, dimensions, generator=generator) * INIT_STD


def static_model(word_vectors: Tensor, model: SentenceEncoder, source: str) -> SentenceEncoder:
    """Make a static model, which embeds a sentence as the mean of the vectors of its tokens.

    word_vectors: (V, D), one for each token of the vocabulary of `model`, whose tokenizer it gets; special
        tokens are omitted.
    """
    tokenizer = without_special_tokens(model.tokenizer)
    encoder = static_encoder(word_vectors)
    return SentenceEncoder(encoder, tokenizer, source=source).eval()


def static_encoder(word_vectors: Tensor) -> BaseEncoder:
    """Return an encoder without layers whose word embeddings are word_vectors, (V, D), in float32."""
    V, D = word_vectors.shape
    encoder = empty_encoder(config_from_dict({"model_type": "static", "vocab_size": V, "hidden_size": D}))
    encoder.embeddings.word.weight = nn.Parameter(word_vectors.detach().float().clone())
    return encoder.eval()


def without_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with the same vocabulary that adds no [CLS] and [SEP]."""
    return Tokenizer(
        tokenizer.backend, tokenizer.special_tokens, tokenizer.max_length, add_special_tokens=False
    )
