"""Score a checkpoint without training: every combination of token vectors, token weights and post-processing.

A variant is a combination of a source of token vectors (hidden states, hidden states with a prompt, or a
static model), an entry of TOKEN_WEIGHTS and a chain of entries of POSTPROCESSING. The texts of a task are
encoded once for all sources and token weights, and once more for each prompt; post-processing is applied to
the embeddings. The results are tables 4 and 5 of Stankevičius and Lukoševičius 2024 (arXiv:2408.08073) for
any model, with random embeddings for comparison. Token weights and post-processing are estimated from the
sentences of the task (transductive); idf weights also from a reference text, which the name of the variant
then says.

Letters in this file: N sentences, S of them in a packed batch, B packed rows of T tokens, D dimensions,
L layers.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from tmft.device import progress_bar
from tmft.embedding.layer_mix import WORD_EMBEDDINGS, format_layer_mix
from tmft.embedding.postprocessing import fit_postprocessing
from tmft.embedding.prompts import PROMPTS, Prompt
from tmft.embedding.token_weights import NEEDS_TEXT, TokenWeights
from tmft.errors import InputError
from tmft.evaluation.classification import PROTOTYPING_CONFIG, ReadSplit, evaluate_classification
from tmft.evaluation.clustering import evaluate_clustering
from tmft.evaluation.evaluators import EVALUATORS, is_trained_on_train, unlabeled_texts
from tmft.evaluation.isotropy import iso_score
from tmft.evaluation.training_free import (
    mean_vectors_in_text,
    random_static_model,
    static_model,
)
from tmft.packing import PackedBatch
from tmft.pooling import mean_pooling
from tmft.sentence_encoder import SentenceEncoder, check_finite_embeddings
from tmft.tasks import Task

IDF_FROM_TEXT = "idf of text"  # name of idf weights that are estimated from the reference text

# Type of a task -> token weights -> the post-processing to combine them with. Clustering and classification
# have fewer variants, because their accuracies take long to compute.
ALL_POSTPROCESSING = ["", "center", "zscore", "quantile", "abtt", "whiten"]
# fmt: off
GRID: dict[str, dict[str, list[str]]] = {
    "similarity": {
        "uniform": ALL_POSTPROCESSING, "content-words": ALL_POSTPROCESSING,
        "idf": ALL_POSTPROCESSING, IDF_FROM_TEXT: ALL_POSTPROCESSING,
        "no-prompt": ["", "zscore", "whiten"], "mask-token": ["", "zscore", "whiten"],  # with a prompt
    },
    "clustering": {
        "uniform": ["", "normalize", "zscore", "quantile", "whiten"], "content-words": ["", "normalize"],
        "idf": ["", "normalize"], IDF_FROM_TEXT: ["", "normalize"],
    },
    "classification": {"uniform": ["", "zscore"], "content-words": [""], "idf": [""], IDF_FROM_TEXT: [""]},
}
# The variants that are scored at every layer: pairs of token weights and post-processing.
LAYER_CURVES: dict[str, list[tuple[str, str]]] = {
    "similarity":     [("uniform", ""), ("idf", "zscore")],
    "clustering":     [("uniform", ""), ("idf", "normalize")],
    "classification": [],
}
# fmt: on
TASK_TYPES_WITH_PROMPTS = ["similarity"]  # not all, since a prompt makes texts three times as long
TOKEN_WEIGHTS_WITHOUT_PROMPT = ["uniform", "content-words", "idf"]
TOKEN_WEIGHTS_WITH_PROMPT = ["uniform", "no-prompt", "mask-token", "idf"]
MLM_HEAD_NAMES = ["cls.predictions", "generator_predictions", "mask_predictions", "lm_predictions"]
# Weights w of the mean word vectors v in the interpolation (1 - w) u + w v with a hidden state u.
INTERPOLATION_WEIGHTS = [-0.25, 0.25, 0.5, 0.75, 1.0]
# Evaluators with faster protocols than those of evaluate.py, with which a grid would take days.
FAST_EVALUATORS = {
    "clustering": partial(evaluate_clustering, runs=1, restarts=1),
    "classification": partial(evaluate_classification, config=PROTOTYPING_CONFIG),
}


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


@dataclass
class GridResults:
    """The scores of all variants of a checkpoint.

    tasks: type of a task -> names of the tasks of this type.
    sources: names of the sources in the tables, in order.
    layers: names of the sources in the curves over layers, in order.
    scores: variant -> {(name of a task, split): value of the task's metric, not x 100}.
    iso_scores: variant -> IsoScore of its embeddings of the sentences of the first task.
    seconds: the time spent in the encoder ("encoder") and in total ("all").
    """

    tasks: dict[str, list[str]]
    sources: list[str]
    layers: list[str]
    scores: dict[Variant, dict[tuple[str, str], float]] = field(default_factory=dict)
    iso_scores: dict[Variant, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"encoder": 0.0, "all": 0.0})

    @property
    def single_layers(self) -> list[str]:
        """The names in `layers` that stand for a hidden state, not for word embeddings or an average."""
        return [layer for layer in self.layers if layer.isdecimal()]

    @property
    def baseline(self) -> Variant:
        """The variant that changes nothing: the plain mean of the last hidden state."""
        return Variant(self.single_layers[-1], "uniform", "")

    def task_scores(self, variant: Variant, task_type: str, split: str = "test") -> list[float]:
        """Return the scores of a variant on the tasks of a type, those that have this split.

        task_type: a key of `tasks`.
        """
        scores = self.scores.get(variant, {})
        return [scores[task, split] for task in self.tasks.get(task_type, ()) if (task, split) in scores]

    def mean_score(self, variant: Variant, task_type: str, split: str = "test") -> float:
        """Return the mean score of a variant over the tasks of a type, or NaN if a score is missing.

        A score is missing if there were too few sentences to estimate the post-processing.
        task_type: a key of `tasks`. split: "test" or "dev".
        """
        scores = self.task_scores(variant, task_type, split)
        num_tasks = len(self.task_scores(self.baseline, task_type, split))
        return mean(scores) if scores and len(scores) >= num_tasks else math.nan

    def best_on_dev(self, task_type: str) -> Variant | None:
        """Return the variant with the best mean score on dev, without those of random embeddings.

        The mean is over the tasks of type task_type that have a dev split; None if no task has one.
        """
        dev_scores = {
            variant: score
            for variant in self.scores
            if variant.source != "random"
            and not math.isnan(score := self.mean_score(variant, task_type, "dev"))
        }
        return max(dev_scores, key=dev_scores.__getitem__, default=None)


def interpolation_name(weight: float) -> str:
    """Return a name such as "interpolate 0.25" for embeddings (1 - weight) u + weight v of a layer.

    u is the mean of the hidden states of a sentence at the layer. v is the mean of the static vectors of its
    words, which are means of hidden states of the same layer over a reference text. weight: one of
    INTERPOLATION_WEIGHTS, which may be negative; 0 is u alone. The name is used as Variant.postprocess.
    """
    return f"interpolate {weight:g}"


def grid_task_type(task: Task) -> str:
    """Return the type of task under which the grid lists a task; relatedness belongs to classification."""
    return "classification" if task.task_type == "relatedness" else task.task_type


def run_grid(
    model: SentenceEncoder,
    tasks: dict[str, Task],
    readers: Mapping[str, ReadSplit],
    text: Sequence[str] = (),
) -> GridResults:
    """Score every variant of a model on every task.

    model: a model with mean pooling, without a prompt and without modules after the pooling.
    tasks: name -> Task.
    readers: name of a task -> a function that takes the name of a split and returns its Examples.
    text: sentences of a reference text. If there are any, they add variants, in which idf weights or mean
        word vectors are estimated from this text.

    For test scores, token weights and post-processing are estimated from the test sentences; for dev scores,
    from the dev sentences.
    """
    start = time.perf_counter()
    sources, layers = vector_sources(model)
    average_models = mean_vector_models(model, layers, text) if text else {}
    reference_text = ReferenceText(text) if text else None
    tasks_by_type: dict[str, list[str]] = {}
    for name, task in tasks.items():
        tasks_by_type.setdefault(grid_task_type(task), []).append(name)
    averaged_layers = [source.name for source in sources if len(source.layers) > 1]
    static_models = {"random": random_static_model(model)}
    if averaged_layers and averaged_layers[0] in average_models:
        static_models = {"average": average_models[averaged_layers[0]]} | static_models
    results = GridResults(
        tasks_by_type,
        sources=[*(source.name for source in sources), *static_models],
        layers=["word", *(source.name for source in layers), *averaged_layers],
    )
    units = [(name, split) for name, task in tasks.items() for split in splits_to_score(task, readers[name])]
    with progress_bar(len(units), "task", True, desc="grid") as bar:
        for name, split in units:
            bar.set_postfix_str(f"{name} {split}", refresh=True)
            task, read_split, task_type = tasks[name], readers[name], grid_task_type(tasks[name])
            curves = LAYER_CURVES[task_type]
            fit_texts = unlabeled_texts(task, read_split, split)
            sentences = list(dict.fromkeys(sentences_to_encode(task, read_split, split)))
            index = {sentence: i for i, sentence in enumerate(sentences)}
            fit_indices = [index[sentence] for sentence in fit_texts]

            encoder_start = time.perf_counter()
            task_sources = [
                source for source in sources if task_type in TASK_TYPES_WITH_PROMPTS or not source.prompt
            ]
            embeddings = embed_sources(
                model, task_sources, sentences, fit_texts, reference_text, layers, curves
            )
            for source, static in static_models.items():
                embeddings |= embed_static_model(source, static, sentences, fit_texts, reference_text)
            interpolated: dict[tuple[str, float], Tensor] = {}  # (layer, weight) -> embeddings
            for layer, static in average_models.items() if task_type != "classification" else ():
                u = embeddings[layer, "uniform"]
                v = static.embed_token_ids(static.tokenize(sentences))
                interpolated |= {(layer, w): (1 - w) * u + w * v for w in INTERPOLATION_WEIGHTS}
            results.seconds["encoder"] += time.perf_counter() - encoder_start

            for (source, token_weights), x in embeddings.items():
                check_finite_embeddings(x, sentences, f"{source}, token weights {token_weights}")
                in_table = GRID[task_type][token_weights] if source in results.sources else []
                in_curve = [postprocess for weights, postprocess in curves if weights == token_weights]
                if source in static_models:
                    in_curve = []
                for postprocess in dict.fromkeys([*in_table, *in_curve]):
                    variant = Variant(source, token_weights, postprocess)
                    scores, processed = score_embeddings(
                        task, read_split, split, x, index, fit_indices, postprocess
                    )
                    if scores is None:
                        continue
                    results.scores.setdefault(variant, {})[name, split] = scores[task.metric]
                    if "dev_accuracy" in scores:
                        results.scores[variant][name, "dev"] = scores["dev_accuracy"]
                    if (name, split) == units[0]:
                        results.iso_scores[variant] = iso_score(processed)
            for (layer, weight), x in interpolated.items():
                scores, _ = score_embeddings(task, read_split, split, x, index, fit_indices, "")
                variant = Variant(layer, "uniform", interpolation_name(weight))
                if scores is not None:
                    results.scores.setdefault(variant, {})[name, split] = scores[task.metric]
            bar.update()
    results.seconds["all"] = time.perf_counter() - start
    return results


# ------------------------------------------------------------------------------ what is encoded, and for what


def vector_sources(model: SentenceEncoder) -> tuple[list[VectorSource], list[VectorSource]]:
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


def mean_vector_models(
    model: SentenceEncoder, layers: list[VectorSource], text: Sequence[str]
) -> dict[str, SentenceEncoder]:
    """Make a static model for each layer; return {name of the layer: static model}.

    The vector of a word is the mean of its hidden states of this layer in the text. If there are several
    layers, another model has the mean of layer 1 and the last layer.
    """
    L = len(layers) - 1
    vectors = mean_vectors_in_text(
        model, text, lambda batch: model.encoder.hidden_states(*batch.inputs)
    )  # (L + 1, V, D)
    models = {
        str(layer): static_model(of_layer, model, "average") for layer, of_layer in enumerate(vectors.clone())
    }
    if L > 1:
        first_and_last = (vectors[1] + vectors[L]).clone() / 2
        models[format_layer_mix((1, L))] = static_model(first_and_last, model, "average")
    return models


def splits_to_score(task: Task, read_split: ReadSplit) -> list[str]:
    """Return the splits to score: test and, to choose a variant by, dev.

    dev is omitted if the task has none, and for classification, whose evaluator returns a dev accuracy, too.
    """
    if task.task_type != "similarity" or "{split}" not in task.files:
        return ["test"]
    try:
        read_split("dev")
    except InputError:
        return ["test"]
    return ["test", "dev"]


def sentences_to_encode(task: Task, read_split: ReadSplit, split: str) -> Iterable[str]:
    """Yield all sentences that the evaluator of the task will encode to score this split."""
    needs_threshold = task.task_type == "similarity" and bool(task.classes)  # which is chosen on dev
    splits = (
        ("train", "dev", split)
        if is_trained_on_train(task)
        else ("dev", split)
        if needs_threshold
        else (split,)
    )
    for name in splits:
        try:
            yield from read_split(name).sentences
        except InputError:
            if name != "dev":
                raise


def score_embeddings(
    task: Task,
    read_split: ReadSplit,
    split: str,
    x: Tensor,
    index: dict[str, int],
    fit_indices: list[int],
    postprocess: str,
) -> tuple[dict[str, Any] | None, Tensor]:
    """Apply post-processing to embeddings, and score them on a task.

    x: (N, D), the embeddings of all sentences that the task needs.
    postprocess: names in POSTPROCESSING joined by +, or "" for none.
    Returns the scores of the evaluator, and the processed embeddings, (N, D). If there are too few sentences
    to estimate the post-processing, it returns None and x.
    """
    try:
        modules = fit_postprocessing(postprocess, x[fit_indices]) if postprocess else []
    except InputError:
        return None, x
    if modules:
        with torch.inference_mode():
            x = nn.Sequential(*modules)(x.clone(memory_format=torch.contiguous_format))
    encode = lambda sentences: x[[index[sentence] for sentence in sentences]]  # noqa: E731
    evaluate = FAST_EVALUATORS.get(task.task_type, EVALUATORS[task.task_type])
    return evaluate(encode, task, read_split, split), x


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
                stacked = model.map_batches(token_ids, forward)  # (len(batch_pairs), N, D)
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
    model: SentenceEncoder, names: list[str], fit_texts: Sequence[str], reference_text: ReferenceText | None
) -> dict[str, TokenWeights | None]:
    """Return {name: token weights for the model}, estimated from fit_texts where the weights need a text.

    reference_text: adds IDF_FROM_TEXT, estimated from it; None adds none.
    None as token weights stands for uniform ones.
    """
    weights = {}
    for name in names:
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
