"""Tables of embeddings without training: many configurations of a model, scored on groups of tasks.

A table file (TOML) names groups of tasks, models and tables. data/extraction.toml has the tables and figures
of Stankevičius and Lukoševičius 2024 (arXiv:2408.08073) and explains the form. A row of a table becomes a
TrainingFreeConfig. Texts are encoded once for all rows with the same prompt. Token weights and
post-processing are estimated from the sentences of each task (transductive; all splits of a task for which
a classifier is trained) or, with =text, from another text.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from tmft.device import progress_bar
from tmft.embedding.layer_mix import parse_layer_mix
from tmft.embedding.prompts import Prompt, parse_prompt
from tmft.embedding.token_weights import check_token_weights
from tmft.errors import InputError, check_choice
from tmft.evaluation.classification import PROTOTYPING_CONFIG, EncodeFunction, evaluate_classification
from tmft.evaluation.clustering import evaluate_clustering
from tmft.evaluation.evaluators import EVALUATORS, Evaluation
from tmft.evaluation.isotropy import alignment, uniformity
from tmft.io.arguments import check_fields
from tmft.io.files import PACKAGE_DATA, reading
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import GROUPS, TASKS
from tmft.training_free.postprocessing import check_postprocessing
from tmft.training_free.static_models import random_static_model, static_models_of_layers
from tmft.training_free.training_free import TrainingFreeConfig, TrainingFreeEncoders

BUILT_IN = PACKAGE_DATA / "extraction.toml"
NEEDS_MASK = ("mask-token", "no-mask")  # token weights that only a prompt with [M] has
# Kind of figure -> fields of a row that name its line in the table, and those that name its column.
PLAIN = ("token_weights", "postprocess"), ("model",)
FIGURES = {
    "": PLAIN,
    "points": PLAIN,
    "curves": (("layer",), ("model", "token_weights", "postprocess")),
    "heat map": (("interpolate",), ("model", "layer")),
}
# Evaluators with faster protocols: one run of k-means with one start, and SentEval's prototyping setting.
FAST_EVALUATORS = {
    "clustering": partial(evaluate_clustering, runs=1, restarts=1),
    "classification": partial(evaluate_classification, config=PROTOTYPING_CONFIG),
}


@dataclass(frozen=True)
class Row:
    """A configuration in the words of a table file; see there.

    layer: "" for a static model. static: "" for the model itself and the means of its hidden states.
    """

    model: str
    layer: str = "last"
    prompt: str = ""
    static: str = ""
    interpolate: float = 0.0
    token_weights: str = "uniform"
    postprocess: str = ""

    def to_config(self, text: Sequence[str] = ()) -> TrainingFreeConfig:
        """Return the configuration. text: the sentences that =text stands for."""
        weights, *weights_text = self.token_weights.split("=")
        postprocess, *postprocess_text = self.postprocess.split("=")
        for source in (*weights_text, *postprocess_text):
            check_choice("text", source, ["text"])
        check_token_weights(weights)
        check_postprocessing(postprocess)
        return TrainingFreeConfig(
            weights,
            postprocess,
            token_weights_texts=text if weights_text else None,
            postprocess_texts=text if postprocess_text else None,
            layers=None if self.static else parse_layer_mix(self.layer),
            prompt=parse_prompt(self.prompt) if self.prompt else None,
            interpolate=self.interpolate,
        )

    def resolve(self, last: int) -> "list[Row]":
        """Return the rows for a model with this number of layers: one, or one for each layer."""
        if self.layer == "each":
            return [replace(self, layer=str(layer)) for layer in range(last + 1)]
        layers = dict.fromkeys(self.layer.replace("last", str(last)).split("+"))
        return [replace(self, layer="+".join(layers))]


@dataclass(frozen=True)
class ScoreTable:
    """A block of a table file: its rows, and for each group of tasks a table of their mean scores."""

    name: str
    groups: dict[str, list[str]]
    rows: list[Row]
    figure: str = ""

    @property
    def tasks(self) -> list[str]:
        """The names of all tasks."""
        return [task for tasks in self.groups.values() for task in tasks]

    def resolve(self, last: int) -> "ScoreTable":
        """Return the table for a model with this number of layers."""
        return replace(self, rows=[resolved for row in self.rows for resolved in row.resolve(last)])


# ------------------------------------------------------------------------------------------- the table file


def read_tables(names: Sequence[str], static: Mapping[str, str] = {}) -> list[ScoreTable]:
    """Return the tables with these names, or all tables of the .toml files among them.

    static: name of a column to add -> static model. Raises InputError if a file is not as described.
    """
    tables = []
    with reading(" ".join(names), "see data/extraction.toml"):
        content, chosen = tomllib.loads(BUILT_IN.read_text(encoding="utf-8")), []
        for name in names:
            own = tomllib.loads(Path(name).read_text(encoding="utf-8")) if name.endswith(".toml") else {}
            content = {key: entries | own.get(key, {}) for key, entries in content.items()}
            chosen += own.get("tables", [name])
        for name in chosen:
            check_choice("table", name, content["tables"])
            tables += [make_table(name, content, static, **block) for block in content["tables"][name]]
    return tables


def make_table(
    name: str,
    content: dict[str, Any],
    static: Mapping[str, str],
    groups: Sequence[str] = (),
    models: Sequence[str] = (),
    rows: Sequence[str] = ("uniform",),
    layers: Sequence[str | int] = (),
    interpolate: Sequence[float] = (),
    each_task: bool = False,
    figure: str = "",
) -> ScoreTable:
    """Return the table of a block of a table file. Raises InputError if a name is unknown.

    content: of the file, where models and groups are. The parameters after static are the keys of the block.
    """
    check_choice("figure", figure, FIGURES)
    known = content["models"] | {model: {"static": folder} for model, folder in static.items()}
    made: list[Row] = []
    for model in [*models, *static]:
        check_choice("model", model, known)
        base = Row(model, **known[model])
        axes = layers or [base.layer], interpolate or [base.interpolate]
        if base.static:  # it has neither
            axes = [""], [0.0]
        for layer, w, options in product(*axes, rows):
            weights, _, postprocess = options.partition(" ")
            row = replace(
                base, layer=str(layer), interpolate=w, token_weights=weights, postprocess=postprocess
            )
            check_fields(row)
            row.resolve(12)[0].to_config()  # so that a mistake is reported before a model is loaded
            if row.prompt or weights not in NEEDS_MASK:
                made.append(row)
    tasks_of: dict[str, list[str]] = {}
    for group in groups:
        check_choice("group", group, content["groups"])
        tasks = [task for one in content["groups"][group] for task in GROUPS.get(one, [one])]
        for task in tasks:
            check_choice("task", task, [*TASKS, *MEASURES])
        tasks_of |= {task: [task] for task in tasks} if each_task else {group: tasks}
    if not made or not tasks_of:
        raise InputError(f"table {name}: name models and groups, see data/extraction.toml")
    return ScoreTable(name, tasks_of, made, figure)


# ------------------------------------------------------------------------------------------------ the scores


@dataclass(frozen=True)
class Unit:
    """What is scored: texts, from which token weights and post-processing are estimated, and a function."""

    texts: Sequence[str]
    score: Callable[[EncodeFunction], float]


def measure_alignment(encode: EncodeFunction, pairs: Evaluation) -> float:
    """Return the alignment of the pairs with the highest score, of vectors that are not scaled."""
    examples = pairs.examples
    best = [n for n, score in enumerate(examples.labels) if score == pairs.task.max_score]
    u, v = (encode([column[n] for n in best]) for column in examples.texts)
    return alignment(u, v, scale=False)


def measure_uniformity(encode: EncodeFunction, pairs: Evaluation) -> float:
    """Return the uniformity of the sentences of all pairs, repeated ones included, of unscaled vectors."""
    return uniformity(encode(pairs.examples.sentences), scale=False)


# Measures of embeddings, named as tasks are; isoscore is that of the text, the pairs are those of STSB train.
# Source: Stankevičius and Lukoševičius 2024, sections 3.5.4 and 3.5.5.
PAIR_MEASURES = {"alignment": measure_alignment, "uniformity": measure_uniformity}
MEASURES = ("isoscore", *PAIR_MEASURES)


def make_unit(name: str, evaluation: Evaluation, fast: bool) -> Unit:
    """Return the unit of a task or of a measure; fast: by FAST_EVALUATORS, not by the papers' protocols."""
    task, evaluators = evaluation.task, EVALUATORS | (FAST_EVALUATORS if fast else {})

    def score(encode: EncodeFunction) -> float:
        if name in PAIR_MEASURES:
            return PAIR_MEASURES[name](encode, evaluation)
        scores = evaluators[task.task_type](encode, task, evaluation.read_split, evaluation.split)
        return float(scores[task.metric])

    return Unit([text for examples in evaluation.read() for text in examples.sentences], score)


@dataclass
class TableScores:
    """scores: row -> {task: score, not x 100}. notes: why some rows have no score."""

    scores: dict[Row, dict[str, float]] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def mean(self, row: Row, tasks: Iterable[str]) -> float:
        """Return the mean score of a row over tasks, or NaN if one is missing."""
        scores = [self.scores.get(row, {}).get(task, math.nan) for task in tasks]
        return mean(scores) if scores else math.nan


def score_tables(
    model: SentenceEncoder,
    tables: Sequence[ScoreTable],
    units: Mapping[str, Unit],
    text: Sequence[str] = (),
    average_text: Sequence[str] = (),
) -> TableScores:
    """Score each row of the tables on the tasks of its tables that are in `units`.

    model: with mean pooling, without a prompt. text: the sentences that =text stands for. average_text: those
    over which the static vectors of an interpolation are means; if there are none, those of `text`.
    """
    results, rows = TableScores(), list(dict.fromkeys(row for table in tables for row in table.rows))
    for prompt in {row.prompt for row in rows}:
        try:
            Prompt(parse_prompt(prompt) if prompt else "", model.tokenizer)
        except InputError as error:  # the vocabulary has no [MASK]
            results.notes[str(error)] = None
            rows = [row for row in rows if row.prompt != prompt]
    layers = {layer for row in rows if row.interpolate for layer in parse_layer_mix(row.layer) or ()}
    averages = static_models_of_layers(model, average_text or text, sorted(layers)) if layers else {}
    sources = []
    for source in dict.fromkeys(row.static for row in rows):
        configs = {row: row.to_config(text) for row in rows if row.static == source}
        other = SentenceEncoder.from_pretrained(source) if source not in ("", "random") else model
        other = random_static_model(model) if source == "random" else other
        sources.append(TrainingFreeEncoders(other, configs, {} if source else averages))
    with progress_bar(len(units), "tasks", True, desc="tables") as bar:
        for name, unit in units.items():
            wanted = {row for table in tables if name in table.tasks for row in table.rows}
            for encoders in sources:
                if chosen := [row for row in encoders.configs if row in wanted]:
                    encoders.start_task(unit.texts)
                for row in chosen:
                    try:
                        encode = encoders.encoder(row, unit.texts)
                    except InputError as error:  # too few sentences for this post-processing
                        results.notes[f"{name}: {error}"] = None
                        continue
                    results.scores.setdefault(row, {})[name] = unit.score(encode)
                encoders.clear()
            bar.update()
    return results
