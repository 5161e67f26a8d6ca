"""The variants of a model that need no training, embedded by as few forward passes as possible.

A variant is a combination of a source of token vectors (hidden states, hidden states with a prompt, or a
static model), an entry of TOKEN_WEIGHTS and a chain of entries of POSTPROCESSING. Sentences are encoded once
for all sources and token weights, and once more for each prompt; post-processing is applied to the
embeddings. Token weights and post-processing are estimated from sentences without labels.

Letters in this file: N sentences, S of them in a packed batch, B packed rows of T tokens, D dimensions,
L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from tmft.embedding.layer_mix import WORD_EMBEDDINGS, format_layer_mix
from tmft.embedding.prompts import PROMPTS, Prompt
from tmft.embedding.token_weights import NEEDS_TEXT, TokenWeights
from tmft.errors import InputError
from tmft.evaluation.classification import EncodeFunction
from tmft.packing import PackedBatch
from tmft.pooling import mean_pooling
from tmft.sentence_encoder import SentenceEncoder
from tmft.training_free.postprocessing import fit_postprocessing

IDF_FROM_TEXT = "idf of text"  # name of idf weights that are estimated from a reference text
TOKEN_WEIGHTS_WITHOUT_PROMPT = ["uniform", "content-words", "idf"]
TOKEN_WEIGHTS_WITH_PROMPT = ["uniform", "no-prompt", "mask-token", "idf"]
MLM_HEAD_NAMES = ["cls.predictions", "generator_predictions", "mask_predictions", "lm_predictions"]


@dataclass(frozen=True)
class VectorSource:
    """A source of token vectors: hidden states of the model, with or without a prompt.

    name: its name in the tables.
    layers: indices of the hidden states that are averaged; WORD_EMBEDDINGS stands for the word embeddings.
    prompt: the template into which each sentence is put, or "".
    """

    name: str
    layers: tuple[int, ...]
    prompt: str = ""


@dataclass(frozen=True)
class Variant:
    """A way to embed sentences without training.

    source: the name of a VectorSource, "random" (a static model with random word vectors) or "average" (a
        static model; the vector of a word is the mean of its hidden states in the reference text).
    token_weights: an entry of TOKEN_WEIGHTS, or IDF_FROM_TEXT.
    postprocess: names in POSTPROCESSING joined by +, "" for none, or the name of an interpolation.
    """

    source: str
    token_weights: str
    postprocess: str

    @property
    def name(self) -> str:
        """The name in tables, such as "12 + idf + zscore"."""
        token_weights = self.token_weights if self.token_weights != "uniform" else ""
        return " + ".join(filter(None, [self.source, token_weights, self.postprocess]))

    @property
    def is_interpolated(self) -> bool:
        """Whether the embeddings are interpolated with mean word vectors, see `interpolation_name`."""
        return self.postprocess.startswith("interpolate")


def list_vector_sources(model: SentenceEncoder) -> tuple[list[VectorSource], list[VectorSource]]:
    """Return two lists of sources: those of the tables, and each hidden state from 0 on, for the curves."""
    L = len(model.encoder.layers)
    layers = [VectorSource(str(layer), (layer,)) for layer in range(L + 1)]
    sources = [VectorSource("word", (WORD_EMBEDDINGS,))]
    if L > 1:
        sources.append(VectorSource(format_layer_mix((1, L)), (1, L)))
    sources.append(layers[L])
    has_mlm_head = any(head in model.load_report for head in MLM_HEAD_NAMES)
    if has_mlm_head and "mask_token" in model.tokenizer.special_tokens and L:
        for name in ("T0", "T4"):
            prompt = Prompt(PROMPTS[name], model.tokenizer)
            if prompt.prefix_length + prompt.suffix_length < model.max_length:  # there is room for a sentence
                sources.append(VectorSource(name, (L,), PROMPTS[name]))
    return sources, layers


# ------------------------------------------------------------------------- one forward pass for many variants


class ReferenceText:
    """A reference text, and a cache of the idf weights that are estimated from it, for use with all tasks."""

    def __init__(self, lines: Sequence[str]):
        self.lines = lines
        self.cache: dict[tuple[int, str], TokenWeights | None] = {}  # by model and prompt

    def idf(self, model: SentenceEncoder) -> TokenWeights | None:
        """Return the idf weights for the tokens of a model, with its present prompt.

        It also sets the token weights of the model, the first time.
        """
        key = id(model), model.prompt
        if key not in self.cache:
            model.set_token_weights("idf", self.lines)
            self.cache[key] = model.token_weights
        return self.cache[key]


def embed_sources(
    model: SentenceEncoder,
    sources: list[VectorSource],
    sentences: list[str],
    fit_texts: Sequence[str],
    reference_text: ReferenceText | None = None,
    layers: Sequence[VectorSource] = (),
    curves: Sequence[tuple[str, str]] = (),
) -> dict[tuple[str, str], Tensor]:
    """Embed sentences from many sources with many token weights.

    reference_text: adds idf weights that are estimated from it; None adds none.
    Returns {(name of a source, token weights): embeddings, (N, D)}. The model is left without a prompt and
    without token weights.
    """
    embeddings: dict[tuple[str, str], Tensor] = {}
    for prompt in dict.fromkeys(source.prompt for source in sources):
        model.prompt = prompt
        names = TOKEN_WEIGHTS_WITH_PROMPT if prompt else TOKEN_WEIGHTS_WITHOUT_PROMPT
        weights = estimate_token_weights(model, names, fit_texts, reference_text)
        pairs = [(source, name) for source in sources if source.prompt == prompt for name in weights]
        if not prompt:
            pairs += [(source, name) for source in layers for name, _ in curves if source not in sources]
        token_ids = model.tokenize(sentences)
        for word_embeddings in (True, False):  # apart, because they may have another width
            batch_pairs = [
                (source, name)
                for source, name in pairs
                if (source.layers == (WORD_EMBEDDINGS,)) == word_embeddings
            ]
            if batch_pairs:
                forward = partial(pool_sources, model, batch_pairs, weights)
                stacked = model.embed_token_ids(token_ids, forward)  # (len(batch_pairs), N, D)
                embeddings |= {
                    (source.name, name): x for (source, name), x in zip(batch_pairs, stacked, strict=True)
                }
    model.prompt, model.token_weights = "", None
    return embeddings


def embed_static_model(
    source: str,
    model: SentenceEncoder,
    sentences: list[str],
    fit_texts: Sequence[str],
    reference_text: ReferenceText | None = None,
) -> dict[tuple[str, str], Tensor]:
    """Embed sentences by a static model with all token weights.

    Returns {(source, token weights): embeddings, (N, D)}.
    """
    embeddings, token_ids = {}, model.tokenize(sentences)
    weights = estimate_token_weights(model, TOKEN_WEIGHTS_WITHOUT_PROMPT, fit_texts, reference_text)
    for name, token_weights in weights.items():
        model.token_weights = token_weights
        embeddings[source, name] = model.embed_token_ids(token_ids)
    model.token_weights = None
    return embeddings


def estimate_token_weights(
    model: SentenceEncoder, schemes: list[str], fit_texts: Sequence[str], reference_text: ReferenceText | None
) -> dict[str, TokenWeights | None]:
    """Return {name: token weights for the model}, estimated from fit_texts where the weights need a text.

    reference_text: adds IDF_FROM_TEXT, estimated from it; None adds none.
    None as token weights stands for uniform ones.
    """
    weights = {}
    for name in schemes:
        model.set_token_weights(name, fit_texts if name in NEEDS_TEXT else None)
        weights[name] = model.token_weights
    if reference_text:
        weights[IDF_FROM_TEXT] = reference_text.idf(model)
    return weights


def pool_sources(
    model: SentenceEncoder,
    pairs: list[tuple[VectorSource, str]],
    weights: dict[str, TokenWeights | None],
    batch: PackedBatch,
) -> Tensor:
    """Embed the S sentences of a packed batch for each pair of a source and token weights.

    pairs: (source, name of token weights). weights: name -> token weights; None stands for uniform ones.
    The encoder runs once, and each hidden state is pooled once with each of its token weights.
    Returns (len(pairs), S, D) float32.
    """
    needed = {(layer, name) for source, name in pairs for layer in source.layers}
    names_by_layer = {layer: [name for n, name in needed if n == layer] for layer, _ in needed}
    token_weights = {name: None if w is None else w(batch) for name, w in weights.items()}  # (B, T) each
    means = {}

    def pool(layer: int, hidden: Tensor) -> None:
        for name in names_by_layer.get(layer, ()):
            means[layer, name] = mean_pooling(hidden.float(), batch, token_weights[name])

    if WORD_EMBEDDINGS in names_by_layer:
        pool(WORD_EMBEDDINGS, model.encoder.embeddings.word(batch.input_ids))
    if set(names_by_layer) != {WORD_EMBEDDINGS}:
        for layer, hidden in enumerate(model.encoder.iter_hidden_states(*batch.inputs)):
            pool(layer, hidden)
    return torch.stack(
        [
            torch.as_tensor(sum(means[layer, name] for layer in source.layers)) / len(source.layers)
            for source, name in pairs
        ]
    )


# ------------------------------------------------------------------------------------------- post-processing


def postprocess_embeddings(x: Tensor, fit_indices: list[int], postprocess: str) -> Tensor | None:
    """Return embeddings after post-processing; None if there are too few sentences to estimate it.

    x: (N, D). fit_indices: the sentences from which it is estimated. postprocess: see Variant.
    """
    if not postprocess:
        return x
    try:
        modules = fit_postprocessing(postprocess, x[fit_indices])
    except InputError:
        return None
    with torch.inference_mode():
        return nn.Sequential(*modules)(x.clone(memory_format=torch.contiguous_format))


def encode_by_lookup(x: Tensor, index: dict[str, int]) -> EncodeFunction:
    """Return a function that encodes sentences by their rows in x, (N, D). index: sentence -> its row."""
    return lambda sentences: x[[index[sentence] for sentence in sentences]]
