"""Encoders of a model whose embeddings are changed without training.

The changes are token weights, post-processing and interpolation with another model. What they need to know is
estimated from texts without labels: from the texts that are scored, or from others. The former is called
transductive: the score of a pair then depends on the other pairs, and a single sentence cannot be embedded.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tmft.device import progress_bar
from tmft.embedding.postprocessing import fit_postprocessing
from tmft.embedding.static_embeddings import (
    mean_word_vectors,
    random_word_vectors,
    static_encoder,
    without_special_tokens,
)
from tmft.embedding.token_weights import NEEDS_TEXT
from tmft.errors import InputError
from tmft.packing import PackedBatch
from tmft.sentence_encoder import SentenceEncoder

Encode = Callable[[list[str]], Tensor]  # N sentences -> (N, D) float32
LINES_PER_BATCH = 20_000  # lines of a text that are tokenized at a time


@dataclass(frozen=True)
class TrainingFreeConfig:
    """Token weights and post-processing of embeddings.

    token_weights: an entry of TOKEN_WEIGHTS; None keeps those of the model.
    postprocess: entries of POSTPROCESSING, chained as in abtt+normalize; "" for none.
    token_weights_texts, postprocess_texts: sentences from which each is estimated; None takes those that are
    scored.
    """

    token_weights: str | None = None
    postprocess: str = ""
    token_weights_texts: Sequence[str] | None = None
    postprocess_texts: Sequence[str] | None = None

    @property
    def fits_token_weights_on_task(self) -> bool:
        """Whether the token weights are estimated from the texts of each task."""
        return self.token_weights in NEEDS_TEXT and self.token_weights_texts is None

    @property
    def without_prompt(self) -> "TrainingFreeConfig":
        """The same configuration for a model without a prompt, where tokens of the prompt have no weights."""
        if self.token_weights in ("mask-token", "no-prompt"):
            return replace(self, token_weights="uniform")
        return self

    @property
    def transductive(self) -> list[str]:
        """Names of the token weights and post-processing that are estimated from the texts of each task."""
        fits_postprocess = self.postprocess not in ("", "normalize") and self.postprocess_texts is None
        names = [self.token_weights] if self.fits_token_weights_on_task else []
        return [*names, self.postprocess] if fits_postprocess else names


class TrainingFreeEncoders:
    """Encoders of one model: one for each of several hidden states, or for each weight of an interpolation.

    layers: indices of hidden states. If it is the last one alone, embeddings are those that the model makes
        itself, also from a mix of layers.
    static: another model with as many dimensions, to interpolate the last hidden state with.
    weights: the weights w of that model, for embeddings (1 - w) u + w v. They may be negative.
    config: token weights and post-processing of all these encoders.

    Raises InputError if the numbers of dimensions of the two models differ.
    Source of the interpolation: Stankevičius and Lukoševičius 2024, equation 10.
    """

    def __init__(
        self,
        model: SentenceEncoder,
        layers: Sequence[int],
        config: TrainingFreeConfig = TrainingFreeConfig(),
        static: SentenceEncoder | None = None,
        weights: Sequence[float] = (),
    ):
        self.config, self.layers, self.weights = config, layers, weights
        self.cache = LayerCache(model, layers)
        self.static_cache = static and LayerCache(static, [len(static.encoder.layers)])
        if static and static.dimensions != model.dimensions:
            raise InputError(
                f"interpolate: {static.source} has {static.dimensions} dimensions, the model "
                f"{model.dimensions}: choose a static model with as many dimensions",
                "interpolate",
            )
        if config.token_weights is not None and not config.fits_token_weights_on_task:
            self._set_token_weights(config.token_weights_texts)

    @property
    def variants(self) -> Sequence[float]:
        """What there is an encoder for: the weights of the interpolation, or else the layers."""
        return self.weights or self.layers

    def encoders(self, texts: Sequence[str]) -> dict[int | float, Encode]:
        """Return {layer or weight: encode}; what depends on the texts of a task is estimated from `texts`.

        The attribute `postprocessing` then has the post-processing modules of each encoder.
        """
        self.postprocessing: dict[int | float, list[nn.Module]] = {}
        if self.config.fits_token_weights_on_task:
            self._set_token_weights(texts)
        if self.static_cache is None:
            encoders = {layer: self.cache.encoder(layer) for layer in self.layers}
        else:
            u = self.cache.encoder(self.layers[-1])
            v = self.static_cache.encoder(self.static_cache.layers[0])
            encoders = {weight: interpolate(u, v, weight) for weight in self.weights}
        if self.config.postprocess:
            texts = list(texts if self.config.postprocess_texts is None else self.config.postprocess_texts)
            self.postprocessing = {
                name: fit_postprocessing(self.config.postprocess, encode(texts))
                for name, encode in encoders.items()
            }
        return {
            name: chain_modules(encode, self.postprocessing.get(name, []))
            for name, encode in encoders.items()
        }

    def _set_token_weights(self, texts: Sequence[str] | None) -> None:
        for cache in filter(None, (self.cache, self.static_cache)):
            cache.model.set_token_weights(self.config.token_weights, texts)
            cache.clear()  # the cached embeddings have other token weights


def chain_modules(encode: Encode, modules: list[nn.Module]) -> Encode:
    """Return a function that encodes sentences and applies the modules to their embeddings."""

    @torch.inference_mode()
    def encode_and_apply(sentences: list[str]) -> Tensor:
        return nn.Sequential(*modules)(encode(sentences))

    return encode_and_apply if modules else encode


class LayerCache:
    """Embeddings from several hidden states of a model; each sentence is encoded once for all of them."""

    def __init__(self, model: SentenceEncoder, layers: Sequence[int]):
        self.model, self.layers = model, list(layers)
        self.is_last_only = self.layers == [len(model.encoder.layers)]
        self.clear()

    def clear(self) -> None:
        self.index: dict[str, int] = {}  # sentence -> its index in embeddings
        self.embeddings = torch.empty(len(self.layers), 0, self.model.dimensions)  # (layers, N, D)

    def encoder(self, layer: int) -> Encode:
        """Return the function that embeds sentences with this hidden state."""

        def encode(sentences: list[str]) -> Tensor:
            if new := [sentence for sentence in dict.fromkeys(sentences) if sentence not in self.index]:
                all_layers = not self.is_last_only
                embeddings = self.model.embed_token_ids(
                    self.model.tokenize(new), all_layers, show_progress_bar=True
                )
                embeddings = embeddings[self.layers] if all_layers else embeddings[None]
                self.embeddings = torch.cat([self.embeddings, embeddings], dim=1)
                self.index |= {sentence: len(self.index) + n for n, sentence in enumerate(new)}
            return self.embeddings[self.layers.index(layer), [self.index[sentence] for sentence in sentences]]

        return encode


def interpolate(encode_u: Encode, encode_v: Encode, weight: float) -> Encode:
    """Return a function that embeds sentences as (1 - weight) u + weight v, with two models of equal width.

    weight: any number; it may be negative.
    Source: Stankevičius and Lukoševičius 2024, equation 10.
    """

    def encode(sentences: list[str]) -> Tensor:
        return (1 - weight) * encode_u(sentences) + weight * encode_v(sentences)

    return encode


# -------------------------------------------------------------------------------------------- static models


def random_static_model(model: SentenceEncoder, dimensions: int = 768, seed: int = 0) -> SentenceEncoder:
    """Make a static model with a random vector for each word of the model's vocabulary.

    It is the baseline: its scores show what can be had by comparing words alone.
    """
    vectors = random_word_vectors(model.encoder.config.vocab_size, dimensions, seed)
    return static_model(vectors, model, "random embeddings")


def static_model_from_text(model: SentenceEncoder, lines: Sequence[str]) -> SentenceEncoder:
    """Make a static model: the vector of a word is the mean of the model's vectors of it in all the lines."""
    with torch.inference_mode():
        hidden_states = lambda batch: [model.hidden_states_of(batch)]  # noqa: E731
        [vectors] = mean_word_vectors(
            iter_packed_batches(model, lines), hidden_states, model.encoder.config.vocab_size
        )
    return static_model(vectors.clone(), model, f"mean vectors of {model.source}")


def iter_packed_batches(model: SentenceEncoder, lines: Sequence[str]) -> Iterator[PackedBatch]:
    """Iterate over the lines of a text in packed batches; LINES_PER_BATCH of them are tokenized at a time."""
    was_training = model.training
    model.eval()
    with progress_bar(len(lines), "lines", True, desc="word vectors") as bar:
        for start in range(0, len(lines), LINES_PER_BATCH):
            token_ids = model.tokenize(lines[start : start + LINES_PER_BATCH])
            for indices, batch in model.packed_batches(token_ids):
                yield batch
                bar.update(len(indices))
    model.train(was_training)


def static_model(word_vectors: Tensor, model: SentenceEncoder, source: str) -> SentenceEncoder:
    """Make a static model of vectors (V, D) with the tokenizer of `model`, without its special tokens."""
    tokenizer = without_special_tokens(model.tokenizer)
    return SentenceEncoder(static_encoder(word_vectors), tokenizer, source=source).eval()
