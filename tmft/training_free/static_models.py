"""Static models: the embedding of a sentence is the mean of one fixed vector per word.

The vectors are random (the baseline that every model has to beat), the mean of the contextual embeddings of a
word over a text, or those of a file in the text format of word2vec. "Words" are the tokens of a vocabulary.
Source: Stankevičius and Lukoševičius 2024, arXiv:2408.08073, sections 3.2.3 and 3.2.5.

Letters in this file: V words, D dimensions, M hidden states, B rows of a batch, T tokens in a row, n tokens
of a batch without padding.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tokenizers
import torch
from torch import Tensor, nn

from tmft.device import progress_bar
from tmft.encoder import BaseEncoder
from tmft.errors import InputError, check_range
from tmft.io.files import reading
from tmft.io.text import read_lines
from tmft.models.families import config_from_dict, empty_encoder
from tmft.packing import PackedBatch
from tmft.sentence_encoder import SentenceEncoder
from tmft.tokenizer import Tokenizer

LINES_PER_BATCH = 20_000  # number of lines of a text that are tokenized at a time
INIT_STD = 0.1  # standard deviation of random vectors; it cancels in a cosine


def random_static_model(model: SentenceEncoder, dimensions: int = 768, seed: int = 0) -> SentenceEncoder:
    """Make a static model with a random vector for each token of the model's vocabulary.

    It is a baseline: its scores show how much can be achieved by counting common words alone.
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

    hidden_states: maps a packed batch to M hidden states, (B, T, D) each. A word that does not occur has a
    vector of zeros. Sums are in float64, because a frequent word may have a million vectors.
    """
    V, sums = model.encoder.config.vocab_size, None
    bar = progress_bar(len(lines), "lines", True, desc="word vectors")
    with bar, model.evaluation_mode(), torch.inference_mode():
        for start in range(0, len(lines), LINES_PER_BATCH):
            corpus = model.tokenize_to_corpus(lines[start : start + LINES_PER_BATCH])
            for indices, batch in model.packed_batches(corpus):
                is_token = batch.attention_mask.flatten() > 0  # (B * T,): no padding
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
    """Return a random vector for each word: (V, D), independent values from a normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(vocab_size, dimensions, generator=generator) * INIT_STD


def static_model(word_vectors: Tensor, model: SentenceEncoder, source: str) -> SentenceEncoder:
    """Make a model that embeds a sentence as the mean of the vectors of its tokens without special tokens.

    word_vectors: (V, D), one for each token of the vocabulary of `model`, whose tokenizer it gets.
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


# ------------------------------------------------------------------------------------------ vectors of others

WORD_START = "▁"  # stands before each word in the vocabulary, so that no part of a word is one of its words


def read_word_vectors(path: Path, drop_frequent: int = 0) -> SentenceEncoder:
    """Make a static model of a file in the text format of word2vec, such as those of X2Static.

    The first line has the number of words and the number of dimensions, each other line a word and its
    vector; frequent words come first. drop_frequent: leave out this number of words, the first ones.
    Texts are split at spaces and punctuation, and words that the file does not have are left out of the mean.
    Texts are lower-cased unless a word of the file has a capital letter.
    """
    check_range("drop_frequent", drop_frequent, 0)
    lines, vectors = read_lines(path), dict[str, np.ndarray]()
    with reading(path, "name a file whose first line has the numbers of words and of dimensions"):
        num_words, D = map(int, next(lines, "").split())
        for number, line in enumerate(lines, start=2):
            word, *cells = line.rstrip().rsplit(" ", D)
            vectors[word] = np.array(cells, dtype=np.float32)
            if not word or len(cells) != D or not np.isfinite(vectors[word]).all():
                raise ValueError(f"line {number} has no word with {D} numbers")
        if len(vectors) != num_words:
            raise ValueError(f"{len(vectors)} different words, its first line says {num_words}")
    kept = list(vectors)[drop_frequent:]
    if not kept:
        problem = f"{path}: drop_frequent {drop_frequent} leaves none of {num_words} words"
        raise InputError(problem, "drop_frequent")
    padding = np.zeros(D, dtype=np.float32)
    table = torch.from_numpy(np.stack([padding, *(vectors[word] for word in kept)]))
    tokenizer = Tokenizer(word_level_backend(kept), {"pad_token": "[PAD]"}, add_special_tokens=False)
    return SentenceEncoder(static_encoder(table), tokenizer, source=str(path)).eval()


def word_level_backend(words: Sequence[str]) -> tokenizers.Tokenizer:
    """Return a tokenizer of whole words, with ids from 1, which gives no token for other words.

    It is a BPE without merges and without an unknown token: a word that is not in the vocabulary falls apart
    into characters, which are not in the vocabulary either.
    """
    vocabulary = {"[PAD]": 0} | {WORD_START + word: id for id, word in enumerate(words, start=1)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    lowercase = not any(word != word.lower() for word in words)
    backend.normalizer = tokenizers.normalizers.BertNormalizer(strip_accents=False, lowercase=lowercase)
    split = tokenizers.pre_tokenizers.BertPreTokenizer()
    mark = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, mark])
    return backend
