"""Score every variant of a checkpoint without training on every task: the tables of `tmft grid`.

The variants are those of variants.py. The results are tables 4 and 5 of Stankevičius and Lukoševičius 2024
(arXiv:2408.08073) for any model, with random embeddings for comparison. Token weights and post-processing are
estimated from the sentences of the task (transductive); idf weights also from a reference text, which the
name of the variant then says.

Letters in this file: N sentences, D dimensions, L layers, V vocab_size.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import mean

from torch import Tensor

from tmft.device import progress_bar
from tmft.embedding.layer_mix import format_layer_mix
from tmft.errors import InputError
from tmft.evaluation.classification import PROTOTYPING_CONFIG, ReadSplit, evaluate_classification
from tmft.evaluation.clustering import evaluate_clustering
from tmft.evaluation.evaluators import EVALUATORS, is_trained_on_train, unlabeled_texts
from tmft.evaluation.isotropy import iso_score
from tmft.sentence_encoder import SentenceEncoder, check_finite_embeddings
from tmft.tasks import Task
from tmft.training_free.static_models import mean_vectors_in_text, random_static_model, static_model
from tmft.training_free.variants import (
    IDF_FROM_TEXT,
    ReferenceText,
    Variant,
    VectorSource,
    embed_sources,
    embed_static_model,
    encode_by_lookup,
    list_vector_sources,
    postprocess_embeddings,
)

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
# Weights w of the mean word vectors v in the interpolation (1 - w) u + w v with a hidden state u.
INTERPOLATION_WEIGHTS = [-0.25, 0.25, 0.5, 0.75, 1.0]
# Evaluators with faster protocols than those of evaluate.py, with which a grid would take days.
FAST_EVALUATORS = {
    "clustering": partial(evaluate_clustering, runs=1, restarts=1),
    "classification": partial(evaluate_classification, config=PROTOTYPING_CONFIG),
}


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
    own_sentences: Sequence[str] = (),
) -> GridResults:
    """Score every variant of a model on every task.

    model: a model with mean pooling, without a prompt and without modules after the pooling.
    tasks: name -> Task.
    readers: name of a task -> a function that takes the name of a split and returns its Examples.
    text: sentences of a reference text. If there are any, they add variants, in which idf weights or mean
        word vectors are estimated from this text.
    own_sentences: unlabeled sentences to choose a variant for. If there are any, only dev is scored, and
        token weights and post-processing are estimated from these sentences, as they would be in use.

    Otherwise token weights and post-processing are estimated from the test sentences for test scores, and
    from the dev sentences for dev scores.
    """
    start = time.perf_counter()
    embedder = VariantEmbedder(model, text)
    tasks_by_type: dict[str, list[str]] = {}
    for name, task in tasks.items():
        tasks_by_type.setdefault(grid_task_type(task), []).append(name)
    results = GridResults(tasks_by_type, embedder.table_sources, embedder.curve_sources)
    units = [
        (name, split)
        for name, task in tasks.items()
        for split in (["dev"] if own_sentences else splits_to_score(task, readers[name]))
    ]
    with progress_bar(len(units), "task", True, desc="grid") as bar:
        for name, split in units:
            bar.set_postfix_str(f"{name} {split}", refresh=True)
            task, read_split = tasks[name], readers[name]
            evaluate = FAST_EVALUATORS.get(task.task_type, EVALUATORS[task.task_type])
            fit_texts = own_sentences or unlabeled_texts(task, read_split, split)
            sentences = list(dict.fromkeys([*sentences_to_encode(task, read_split, split), *fit_texts]))
            index = {sentence: i for i, sentence in enumerate(sentences)}
            fit_indices = [index[sentence] for sentence in fit_texts]

            encoder_start = time.perf_counter()
            embeddings = embedder.embed(sentences, fit_texts, grid_task_type(task))
            results.seconds["encoder"] += time.perf_counter() - encoder_start

            for variant, x in embeddings.items():
                postprocess = "" if variant.is_interpolated else variant.postprocess
                processed = postprocess_embeddings(x, fit_indices, postprocess)
                if processed is None:
                    continue
                scores = evaluate(encode_by_lookup(processed, index), task, read_split, split)
                by_task = results.scores.setdefault(variant, {})
                by_task[name, split] = scores[task.metric]
                if "dev_accuracy" in scores:
                    by_task[name, "dev"] = scores["dev_accuracy"]
                if (name, split) == units[0] and not variant.is_interpolated:
                    results.iso_scores[variant] = iso_score(processed)
            bar.update()
    results.seconds["all"] = time.perf_counter() - start
    return results


# ------------------------------------------------------------------------------------------- what is embedded


class VariantEmbedder:
    """Embeds sentences with every variant of a model that a grid scores.

    table_sources: names of the sources in the tables, in order. curve_sources: of those in the curves over
    layers. Besides the sources of variants.py these are "random", a static model with random word vectors,
    and with a reference text "average", a static model with mean word vectors of layer 1 and the last one.
    """

    def __init__(self, model: SentenceEncoder, text: Sequence[str]):
        self.model = model
        self.reference_text = ReferenceText(text) if text else None
        self.sources, self.layers = list_vector_sources(model)
        self.average_models = make_mean_vector_models(model, self.layers, text) if text else {}
        averaged_layers = [source.name for source in self.sources if len(source.layers) > 1]
        self.static_models = {"random": random_static_model(model)}
        if averaged_layers and averaged_layers[0] in self.average_models:
            self.static_models = {"average": self.average_models[averaged_layers[0]]} | self.static_models
        self.table_sources = [*(source.name for source in self.sources), *self.static_models]
        self.curve_sources = ["word", *(source.name for source in self.layers), *averaged_layers]

    def embed(self, sentences: list[str], fit_texts: Sequence[str], task_type: str) -> dict[Variant, Tensor]:
        """Return {variant: embeddings, (N, D)} for a type of task; post-processing is not yet applied.

        fit_texts: those of the sentences from which token weights are estimated.
        """
        has_prompts, curves = task_type in TASK_TYPES_WITH_PROMPTS, LAYER_CURVES[task_type]
        sources = [source for source in self.sources if has_prompts or not source.prompt]
        embeddings = embed_sources(
            self.model, sources, sentences, fit_texts, self.reference_text, self.layers, curves
        )
        for source, static in self.static_models.items():
            embeddings |= embed_static_model(source, static, sentences, fit_texts, self.reference_text)

        variants: dict[Variant, Tensor] = {}
        for (source, token_weights), x in embeddings.items():
            check_finite_embeddings(x, sentences, f"{source}, token weights {token_weights}")
            in_table = GRID[task_type][token_weights] if source in self.table_sources else []
            in_curve = [postprocess for weights, postprocess in curves if weights == token_weights]
            if source in self.static_models:
                in_curve = []
            for postprocess in dict.fromkeys([*in_table, *in_curve]):
                variants[Variant(source, token_weights, postprocess)] = x
        for layer, static in self.average_models.items() if task_type != "classification" else ():
            u = embeddings[layer, "uniform"]
            v = static.embed_token_ids(static.tokenize(sentences))
            for w in INTERPOLATION_WEIGHTS:
                variants[Variant(layer, "uniform", interpolation_name(w))] = (1 - w) * u + w * v
        return variants


def make_mean_vector_models(
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
