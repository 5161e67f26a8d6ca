"""Functions that embed sentences with a model and change the embeddings without training.

The changes are token weights, post-processing and interpolation with another model. Their parameters, such as
word frequencies and means, are estimated from texts without labels: from the texts that are scored, or from
others. The former is called transductive: the score of a pair then depends on the other pairs, and a sentence
cannot be embedded alone.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import mean

import torch
from torch import Tensor, nn

from tmft.device import progress_bar
from tmft.embedding.token_weights import NEEDS_TEXT
from tmft.errors import InputError
from tmft.evaluation.classification import EncodeFunction
from tmft.evaluation.evaluators import Evaluation
from tmft.sentence_encoder import SentenceEncoder, check_finite_embeddings
from tmft.training_free.postprocessing import fit_postprocessing
from tmft.training_free.static_models import random_static_model

NUM_RANDOM_MODELS = 3  # whose mean score is that of random embeddings


@dataclass(frozen=True)
class TrainingFreeConfig:
    """Settings of training-free changes: token weights and post-processing of embeddings.

    token_weights: an entry of TOKEN_WEIGHTS; None keeps those of the model.
    postprocess: names in POSTPROCESSING joined by +, such as abtt+normalize; "" for none.
    token_weights_texts: sentences from which token weights are estimated; None: those that are scored.
    postprocess_texts: sentences from which post-processing is estimated; None: those that are scored.
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
        """This configuration for a model without a prompt: weights that concern a prompt become uniform."""
        if self.token_weights in ("mask-token", "no-mask", "no-prompt"):
            return replace(self, token_weights="uniform")
        return self

    @property
    def transductive(self) -> list[str]:
        """Names of the token weights and post-processing that are estimated from the texts of each task."""
        fits_postprocess = self.postprocess not in ("", "normalize") and self.postprocess_texts is None
        names = [self.token_weights] if self.token_weights and self.fits_token_weights_on_task else []
        return [*names, self.postprocess] if fits_postprocess else names


class TrainingFreeEncoders:
    """Makes encoding functions from one model, for several hidden states or several interpolations.

    An encoding function takes N sentences and returns their embeddings, (N, D) float32.
    layers: indices of the hidden states. If the last one is the only one, embeddings are those of the model
        itself, even if it averages several layers.
    static: another model with as many dimensions, with which the last hidden state is interpolated; None:
        no interpolation.
    weights: the weights w of the interpolations (1 - w) u + w v, where u is the embedding by the model and v
        that by the static one. They may be negative.

    Source of the interpolation: Stankevičius and Lukoševičius 2024, equation 10.
    """

    model: SentenceEncoder
    config: TrainingFreeConfig
    layers: Sequence[int]
    weights: Sequence[float]
    cache: "LayerCache"
    static_cache: "LayerCache | None"

    def __init__(
        self,
        model: SentenceEncoder,
        layers: Sequence[int],
        config: TrainingFreeConfig = TrainingFreeConfig(),
        static: SentenceEncoder | None = None,
        weights: Sequence[float] = (),
    ):
        self.model, self.config, self.layers, self.weights = model, config, layers, weights
        self.cache = LayerCache(model, layers)
        self.static_cache = None if static is None else LayerCache(static, [len(static.encoder.layers)])
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
        """The weights of the interpolations or, if there are none, the layers: one per encoding function."""
        return self.weights or self.layers

    def encoders(self, texts: Sequence[str]) -> dict[int | float, EncodeFunction]:
        """Return {layer or weight: encoding function} for one task.

        texts: the texts of the task, from which token weights and post-processing are estimated unless the
            configuration has other texts for that.
        The attribute `postprocessing` then has the post-processing modules of each function.
        """
        self.postprocessing: dict[int | float, list[nn.Module]] = {}
        if self.config.fits_token_weights_on_task:
            self._set_token_weights(texts)
        if self.static_cache is None:
            encoders: dict[int | float, EncodeFunction] = {
                layer: self.cache.encoder(layer) for layer in self.layers
            }
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
        """Set the token weights of the model and the static model, estimated from `texts` if need be."""
        assert self.config.token_weights is not None  # the callers check it
        for cache in [self.cache] if self.static_cache is None else [self.cache, self.static_cache]:
            cache.model.set_token_weights(self.config.token_weights, texts)
            cache.clear()  # the cached embeddings have other token weights


def chain_modules(encode: EncodeFunction, modules: list[nn.Module]) -> EncodeFunction:
    """Return a function that encodes sentences with `encode` and applies the modules to their embeddings."""

    @torch.inference_mode()
    def encode_and_apply(sentences: list[str]) -> Tensor:
        return nn.Sequential(*modules)(encode(sentences))

    return encode_and_apply if modules else encode


class LayerCache:
    """Embeds sentences with several hidden states of a model, and encodes each sentence only once for all."""

    model: SentenceEncoder
    layers: list[int]
    is_last_only: bool
    embeddings: Tensor

    def __init__(self, model: SentenceEncoder, layers: Sequence[int]):
        self.model, self.layers = model, list(layers)
        self.is_last_only = self.layers == [len(model.encoder.layers)]
        self.clear()

    def clear(self) -> None:
        """Forget all embeddings."""
        self.index: dict[str, int] = {}  # sentence -> its index in embeddings
        self.embeddings = torch.empty(len(self.layers), 0, self.model.dimensions)  # (layers, N, D)

    def encoder(self, layer: int) -> EncodeFunction:
        """Return a function that embeds N sentences with the hidden state `layer`, (N, D)."""

        def encode(sentences: list[str]) -> Tensor:
            if new := [sentence for sentence in dict.fromkeys(sentences) if sentence not in self.index]:
                forward = None if self.is_last_only else self.model.forward_all_layers
                token_ids = self.model.tokenize(new)
                embeddings = self.model.embed_token_ids(token_ids, forward, show_progress_bar=True)
                embeddings = embeddings[None] if self.is_last_only else embeddings[self.layers]
                check_finite_embeddings(embeddings, new, self.model.source)
                self.embeddings = torch.cat([self.embeddings, embeddings], dim=1)
                self.index |= {sentence: len(self.index) + n for n, sentence in enumerate(new)}
            return self.embeddings[self.layers.index(layer), [self.index[sentence] for sentence in sentences]]

        return encode


def interpolate(encode_u: EncodeFunction, encode_v: EncodeFunction, weight: float) -> EncodeFunction:
    """Return a function that embeds sentences as (1 - weight) u + weight v.

    encode_u, encode_v: return the embeddings u and v of N sentences, (N, D) each.
    weight: any number; it may be negative.
    Source: Stankevičius and Lukoševičius 2024, equation 10.
    """

    def encode(sentences: list[str]) -> Tensor:
        return (1 - weight) * encode_u(sentences) + weight * encode_v(sentences)

    return encode


def score_random_embeddings(
    model: SentenceEncoder, evaluations: Mapping[str, Evaluation], config: TrainingFreeConfig
) -> dict[str, float]:
    """Return {task: score} of random embeddings with the token weights and the post-processing of a model.

    The score is the mean of several static models with the vocabulary of `model` and random word vectors. A
    task is omitted if a trained head predicts for it, or if it has too few sentences to estimate the
    post-processing.
    """
    random_models = [random_static_model(model, seed=seed) for seed in range(NUM_RANDOM_MODELS)]
    baselines = [TrainingFreeEncoders(random, [0], config.without_prompt) for random in random_models]
    scores = {}
    with progress_bar(len(evaluations), "tasks", desc="random embeddings") as progress:
        for name, evaluation in evaluations.items():
            if evaluation.objective is None or not evaluation.objective.has_head:
                with suppress(InputError):  # too few sentences for the many dimensions of random embeddings
                    texts, metric = evaluation.unlabeled_texts, evaluation.task.metric
                    scores[name] = mean(evaluation.score(one.encoders(texts)[0])[metric] for one in baselines)
            progress.update()
    return scores
