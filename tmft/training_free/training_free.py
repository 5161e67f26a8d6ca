"""Functions that embed sentences with a model and change the embeddings without training.

The changes are token weights, post-processing and interpolation with another model. Their parameters, such as
word frequencies and means, are estimated from texts without labels: from the texts that are scored, or from
others. The former is called transductive: the score of a pair then depends on the other pairs, and a sentence
cannot be embedded alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from tmft.device import progress_bar
from tmft.embedding.layer_mix import WORD_EMBEDDINGS, check_layer_mix
from tmft.embedding.token_weights import NEEDS_TEXT, TokenWeights
from tmft.errors import InputError
from tmft.evaluation.classification import EncodeFunction
from tmft.evaluation.evaluators import Evaluation
from tmft.packing import PackedBatch
from tmft.sentence_encoder import SentenceEncoder, check_finite_embeddings
from tmft.training_free.postprocessing import fit_postprocessing
from tmft.training_free.static_models import random_static_model

NUM_RANDOM_MODELS = 3  # whose mean score is that of random embeddings
# The name of token weights, and the id of the texts that they are estimated from.
Scheme = tuple[str | None, int | None]
State = tuple[int | None, Scheme]  # a layer, None for what the model itself embeds, and its token weights


@dataclass(frozen=True)
class TrainingFreeConfig:
    """Settings of training-free changes: everything between a pre-trained model and an embedding.

    token_weights: an entry of TOKEN_WEIGHTS; None keeps those of the model.
    postprocess: names in POSTPROCESSING joined by +, such as abtt+normalize; "" for none.
    token_weights_texts: sentences from which token weights are estimated; None: those that are scored.
    postprocess_texts: sentences from which post-processing is estimated; None: those that are scored.
    layers: the hidden states whose mean is embedded, with WORD_EMBEDDINGS for the word embeddings; None: what
        the model itself embeds. prompt: the template around a sentence; None keeps the one of the model.
    interpolate: weight w of the vectors v of static models in (1 - w) u + w v, where u is the embedding by
        the model. It may be negative; 0 is u alone.

    Source of the interpolation: Stankevičius and Lukoševičius 2024, equation 10.
    """

    token_weights: str | None = None
    postprocess: str = ""
    token_weights_texts: Sequence[str] | None = None
    postprocess_texts: Sequence[str] | None = None
    layers: tuple[int, ...] | None = None
    prompt: str | None = None
    interpolate: float = 0.0

    @property
    def fits_token_weights_on_task(self) -> bool:
        """Whether the token weights are estimated from the texts of each task."""
        return self.token_weights in NEEDS_TEXT and self.token_weights_texts is None

    @property
    def transductive(self) -> list[str]:
        """Names of the token weights and post-processing that are estimated from the texts of each task."""
        fits_postprocess = self.postprocess not in ("", "normalize") and self.postprocess_texts is None
        names = [self.token_weights] if self.token_weights and self.fits_token_weights_on_task else []
        return [*names, self.postprocess] if fits_postprocess else names

    @property
    def scheme(self) -> Scheme:
        """What two configurations with the same token weights have in common."""
        texts = self.token_weights_texts
        return self.token_weights, None if texts is None else id(texts)


class TrainingFreeEncoders:
    """Makes an encoding function for each of several configurations of one model.

    An encoding function takes N sentences and returns their embeddings, (N, D) float32. A sentence is encoded
    once for all configurations with the same prompt.
    configs: name, such as the number of a layer -> configuration.
    static: layer -> static model, whose embeddings are interpolated with this layer of the model, or their
        mean with that of several layers. The layer is None if the layers of the configurations are.
    """

    def __init__(
        self,
        model: SentenceEncoder,
        configs: Mapping[Any, TrainingFreeConfig],
        static: Mapping[int | None, SentenceEncoder] = {},
    ):
        self.model, self.configs = model, configs
        for other in static.values():
            if other.dimensions != model.dimensions:
                raise InputError(
                    f"interpolate: {other.source} has {other.dimensions} dimensions, the model "
                    f"{model.dimensions}: choose a static model with as many dimensions",
                    "interpolate",
                )
        self.states = {config.prompt: PooledStates(model, config.prompt) for config in configs.values()}
        self.static_states = {layer: PooledStates(other) for layer, other in static.items()}
        self.all_states = [*self.states.values(), *self.static_states.values()]
        self.postprocessing: dict[Any, list[nn.Module]] = {}  # the modules of each encoding function
        for config in configs.values():
            check_layer_mix(config.layers, model.encoder)
            for layer in config.layers or (None,):
                if config.interpolate != 1:
                    self.states[config.prompt].add(layer, config)
                if config.interpolate != 0:
                    self.static_states[layer].add(None, config)
        for one in self.all_states:
            one.set_token_weights(None)

    def encoders(self, texts: Sequence[str]) -> dict[Any, EncodeFunction]:
        """Return {name of a configuration: encoding function} for one task, which has these texts.

        Token weights and post-processing are estimated from them unless the configuration has other texts.
        """
        self.start_task(texts)
        return {name: self.encoder(name, texts) for name in self.configs}

    def start_task(self, texts: Sequence[str]) -> None:
        """Estimate token weights from the texts of a task, for configurations without texts of their own."""
        for one in self.all_states:
            one.set_token_weights(texts)

    def encoder(self, name: Any, texts: Sequence[str]) -> EncodeFunction:
        """Return the encoding function of one configuration, after start_task(texts)."""
        config, encode = self.configs[name], self.unprocessed(self.configs[name])
        depends_on_task = config.postprocess_texts is None or config.fits_token_weights_on_task
        if config.postprocess and (depends_on_task or name not in self.postprocessing):
            fit_texts = list(texts if config.postprocess_texts is None else config.postprocess_texts)
            self.postprocessing[name] = fit_postprocessing(config.postprocess, encode(fit_texts))
        modules = self.postprocessing.setdefault(name, [])

        @torch.inference_mode()
        def encode_and_apply(sentences: list[str]) -> Tensor:
            return nn.Sequential(*modules)(encode(sentences))

        return encode_and_apply if modules else encode

    def clear(self) -> None:
        """Forget all embeddings, which would otherwise be kept for the next task."""
        for one in self.all_states:
            one.clear()

    def unprocessed(self, config: TrainingFreeConfig) -> EncodeFunction:
        """Return the function that embeds sentences with a configuration but for its post-processing."""
        layers, w = config.layers or (None,), config.interpolate

        def encode_u(sentences: list[str]) -> Tensor:
            states = self.states[config.prompt]
            return mean_state([states.embed(sentences, layer, config.scheme) for layer in layers])

        def encode_v(sentences: list[str]) -> Tensor:
            states = [self.static_states[layer] for layer in layers]
            return mean_state([one.embed(sentences, None, config.scheme) for one in states])

        return encode_u if w == 0 else encode_v if w == 1 else interpolate(encode_u, encode_v, w)


def mean_state(states: list[Tensor]) -> Tensor:
    """Return the mean of several hidden states, (N, D) each."""
    return torch.stack(states).mean(0) if len(states) > 1 else states[0]


class PooledStates:
    """Embeds sentences by several hidden states of a model with several token weights, each sentence once.

    prompt: the template around a sentence; None keeps the one of the model.
    needed: what is computed for each sentence. Letters: N sentences, S of a batch, D dimensions.
    """

    def __init__(self, model: SentenceEncoder, prompt: str | None = None):
        self.model, self.prompt = model, model.prompt if prompt is None else prompt
        self.configs: dict[Scheme, TrainingFreeConfig] = {}  # one with these token weights
        self.weights: dict[Scheme, TokenWeights | None] = {}
        self.needed: list[State] = []
        self.own_weights = model.token_weights
        self.clear()

    def clear(self) -> None:
        """Forget all embeddings."""
        self.index: dict[str, int] = {}  # sentence -> its index in embeddings
        self.embeddings: dict[State, Tensor] = {}  # (N, D) each

    def add(self, layer: int | None, config: TrainingFreeConfig) -> None:
        """Add what a configuration needs of a layer."""
        self.configs.setdefault(config.scheme, config)
        if (layer, config.scheme) not in self.needed:
            self.needed.append((layer, config.scheme))

    def set_token_weights(self, texts: Sequence[str] | None) -> None:
        """Estimate the token weights: those of the task from its texts, or the others if texts is None."""
        for scheme, config in self.configs.items():
            if config.fits_token_weights_on_task == (texts is not None):
                self.model.token_weights = self.own_weights
                if config.token_weights is not None:
                    self.model.prompt = self.prompt
                    given = config.token_weights_texts if texts is None else texts
                    self.model.set_token_weights(config.token_weights, given)
                self.weights[scheme] = self.model.token_weights
                self.clear()  # the embeddings have other token weights

    def embed(self, sentences: list[str], layer: int | None, scheme: Scheme) -> Tensor:
        """Embed sentences by the mean of one hidden state: (N, D) float32."""
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self.index]
        if new or not self.embeddings:
            self.model.prompt = self.prompt
            token_ids = self.model.tokenize(new)
            # apart, because word embeddings may have another width
            for group in (None,), (WORD_EMBEDDINGS,), range(len(self.model.encoder.layers) + 1):
                if needed := [state for state in self.needed if state[0] in group]:
                    pool = partial(self.pool, needed)
                    stacked = self.model.embed_token_ids(token_ids, pool, show_progress_bar=True)
                    check_finite_embeddings(stacked, new, self.model.source)
                    for state, x in zip(needed, stacked, strict=True):
                        known = [self.embeddings[state]] if state in self.embeddings else []
                        self.embeddings[state] = torch.cat([*known, x])
            self.index |= {sentence: len(self.index) + n for n, sentence in enumerate(new)}
        return self.embeddings[layer, scheme][[self.index[sentence] for sentence in sentences]]

    def pool(self, needed: list[State], batch: PackedBatch) -> Tensor:
        """Return the embeddings of the S sentences of a packed batch by each state, (len(needed), S, D)."""
        model, pooled = self.model, dict.fromkeys(needed, torch.empty(0))
        layers = [layer for layer, _ in needed if layer is not None]
        states: Iterable[tuple[int | None, Tensor | None]] = [(None, None)]  # the model computes its own
        if WORD_EMBEDDINGS in layers:
            states = [(WORD_EMBEDDINGS, model.encoder.embeddings.word(batch.input_ids))]
        elif layers:
            states = zip(
                range(max(layers) + 1), model.encoder.iter_hidden_states(*batch.inputs), strict=False
            )
        for layer, hidden in states:
            for scheme in [scheme for other, scheme in needed if other == layer]:
                model.token_weights = self.weights[scheme]
                pooled[layer, scheme] = model(batch) if hidden is None else model.pool(hidden, batch)
        return torch.stack(list(pooled.values()))


def interpolate(encode_u: EncodeFunction, encode_v: EncodeFunction, weight: float) -> EncodeFunction:
    """Return a function that embeds N sentences as (1 - weight) u + weight v, of (N, D) each.

    Source: Stankevičius and Lukoševičius 2024, equation 10.
    """
    return lambda sentences: (1 - weight) * encode_u(sentences) + weight * encode_v(sentences)


def score_random_embeddings(
    model: SentenceEncoder, evaluations: Mapping[str, Evaluation], config: TrainingFreeConfig
) -> dict[str, float]:
    """Return {task: score} of random embeddings with the token weights and the post-processing of a model.

    The score is the mean of several random models. A task is omitted if a trained head predicts for it, or if
    it has too few sentences to estimate the post-processing.
    """
    config = replace(config, interpolate=0.0)  # there is no static model to interpolate with
    if config.token_weights in ("mask-token", "no-mask", "no-prompt"):
        config = replace(config, token_weights="uniform")  # nor a prompt
    random_models = [random_static_model(model, seed=seed) for seed in range(NUM_RANDOM_MODELS)]
    baselines = [TrainingFreeEncoders(random, {0: config}) for random in random_models]
    scores = {}
    with progress_bar(len(evaluations), "tasks", desc="random embeddings") as progress:
        for name, evaluation in evaluations.items():
            if evaluation.objective is None or not evaluation.objective.has_head:
                with suppress(InputError):  # too few sentences for the many dimensions of random embeddings
                    texts, metric = evaluation.unlabeled_texts, evaluation.task.metric
                    scores[name] = mean(evaluation.score(one.encoders(texts)[0])[metric] for one in baselines)
            progress.update()
    return scores
