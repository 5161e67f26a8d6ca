"""The study: what can be made of one checkpoint without training, every choice beside every other.

A cell is a source of vectors (hidden states, a prompt, a static table), a row of TOKENS and rows of POSTPROCESSING.
The texts of a task go through the model once for all sources and weights, and once more for each prompt; what
follows is done on the vectors. The tables are 4 and 5 of Stankevičius and Lukoševičius 2024, for any model,
with random embeddings beside it. What is learnt is learnt on the sentences of the task (transductive) or on a
general text, as the name of a row says.

Letters in this file: N sentences, S of them in a batch of rows, D dimensions, L layers.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import mean

import torch
from torch import Tensor

from tmft.data import Examples
from tmft.device import progress_bar
from tmft.embedding.layer_mix import WORD_EMBEDDINGS, format_layer_mix
from tmft.embedding.postprocessing import fit_postprocessing
from tmft.embedding.prompts import PROMPTS, Prompt
from tmft.embedding.static_embeddings import mean_word_vectors
from tmft.embedding.token_weights import NEEDS_TEXT, TokenWeights
from tmft.errors import InputError
from tmft.evaluation.classification import FAST, classification
from tmft.evaluation.clustering import clustering
from tmft.evaluation.evaluators import EVALUATORS, unlabeled_texts
from tmft.evaluation.isotropy import iso_score
from tmft.evaluation.training_free import (
    chain_modules,
    iter_packed_batches,
    random_static_model,
    static_model,
)
from tmft.packing import PackedBatch
from tmft.pooling import mean_pooling
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import Task

Read = Callable[[str], Examples]
IDF_FROM_TEXT = "idf of text"  # learnt on the general text, not on the task

# Suite -> token weights -> rows of POSTPROCESSING. An accuracy takes long, so that there are fewer of them.
ALL_AFTERS = ["", "center", "zscore", "quantile", "abtt", "whiten"]
# fmt: off
GRID: dict[str, dict[str, list[str]]] = {
    "similarity": {
        "all": ALL_AFTERS, "content": ALL_AFTERS, "idf": ALL_AFTERS, IDF_FROM_TEXT: ALL_AFTERS,
        "sentence": ["", "zscore", "whiten"], "mask": ["", "zscore", "whiten"],  # with a prompt
    },
    "clustering": {
        "all": ["", "normalize", "zscore", "quantile", "whiten"], "content": ["", "normalize"],
        "idf": ["", "normalize"], IDF_FROM_TEXT: ["", "normalize"],
    },
    "classification": {"all": ["", "zscore"], "content": [""], "idf": [""], IDF_FROM_TEXT: [""]},
}
# What the curve over layers is drawn with.
LAYER_CURVES: dict[str, list[tuple[str, str]]] = {
    "similarity":     [("all", ""), ("idf", "zscore")],
    "clustering":     [("all", ""), ("idf", "normalize")],
    "classification": [],
}
# fmt: on
TASK_TYPES_WITH_PROMPTS = ["similarity"]  # suites with the columns T0 and T4, whose texts are three times as long
TOKEN_WEIGHTS_WITHOUT_PROMPT, TOKEN_WEIGHTS_WITH_PROMPT = ["uniform", "content-words", "idf"], ["uniform", "no-prompt", "mask-token", "idf"]
MLM_HEAD_NAMES = ["cls.predictions", "generator_predictions", "mask_predictions", "lm_predictions"]
INTERPOLATION_WEIGHTS = [-0.25, 0.25, 0.5, 0.75, 1.0]  # of the mean vectors of words, in a mix
# An accuracy in a study: fewer starts and SentEval's setting for prototypes, or it would take days.
FAST_EVALUATORS = {
    "clustering": partial(clustering, runs=1, restarts=1),
    "classification": partial(classification, protocol=FAST),
}


@dataclass(frozen=True)
class Source:
    """Where the vectors of tokens come from. layers: hidden states whose mean is taken, WORD_EMBEDDINGS among them."""

    name: str
    layers: tuple[int, ...]
    prompt: str = ""


@dataclass(frozen=True)
class Variant:
    source: str
    tokens: str
    after: str

    @property
    def name(self) -> str:
        return " + ".join(
            filter(None, [self.source, self.tokens if self.tokens != "uniform" else "", self.after])
        )


@dataclass
class GridResults:
    """scores: cell -> {(task, split): raw score of the task's metric}; iso: cell -> IsoScore; seconds: of the
    encoder and of all."""

    suites: dict[str, list[str]]  # suite -> names of its tasks
    sources: list[str]  # those of the tables, in order
    layers: list[str]  # those of the curve, in order
    scores: dict[Variant, dict[tuple[str, str], float]] = field(default_factory=dict)
    iso: dict[Variant, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"encoder": 0.0, "all": 0.0})

    @property
    def layers_alone(self) -> list[str]:
        return [layer for layer in self.layers if layer.isdecimal()]

    def of(self, cell: Variant, suite: str, split: str = "test") -> list[float]:
        """The scores of a cell on the tasks of a suite that have this split."""
        known = self.scores.get(cell, {})
        return [known[task, split] for task in self.suites.get(suite, ()) if (task, split) in known]

    def mean(self, cell: Variant, suite: str, split: str = "test") -> float:
        """NaN for a cell that lacks a task, as too few sentences were there to learn from."""
        values = self.of(cell, suite, split)
        whole = len(self.of(self.plain, suite, split))
        return mean(values) if values and len(values) >= whole else math.nan

    @property
    def plain(self) -> Variant:
        """The last layer as it is."""
        return Variant(self.layers_alone[-1], "all", "")

    def chosen(self, suite: str) -> Variant | None:
        """The cell that is best on dev, over the tasks that have one; random embeddings are no choice."""
        scored = lambda cell: not math.isnan(self.mean(cell, suite, "dev"))  # noqa: E731
        cells = [cell for cell in self.scores if cell.source != "random" and scored(cell)]
        return max(cells, key=lambda cell: self.mean(cell, suite, "dev"), default=None)


def interpolation_name(share: float) -> str:
    return f"mix {share:g}"


def mean_vectors(
    model: SentenceEncoder, layers: list[Source], text: Sequence[str]
) -> dict[str, SentenceEncoder]:
    """Of each layer, and of the first and last together, the static model of its mean vectors in the text."""
    L = len(layers) - 1
    with torch.inference_mode():
        states = lambda rows: model.encoder.hidden_states(*rows.inputs)  # noqa: E731
        tables = mean_word_vectors(iter_packed_batches(model, text), states, model.encoder.config.vocab_size)
    models = {str(layer): static_model(table, model, "average") for layer, table in enumerate(tables.clone())}
    if L > 1:
        models[format_layer_mix((1, L))] = static_model((tables[1] + tables[L]).clone() / 2, model, "average")
    return models


def grid_task_type(task: Task) -> str:
    return "classification" if task.task_type == "relatedness" else task.task_type


def vector_sources(model: SentenceEncoder) -> tuple[list[Source], list[Source]]:
    """Those of the tables, and every hidden state, for the curve."""
    L = len(model.encoder.layers)
    layers = [Source(str(layer), (layer,)) for layer in range(L + 1)]
    mixes = [(1, L)] if L > 1 else []
    table = [Source("word", (WORD_EMBEDDINGS,)), *(Source(format_layer_mix(interpolate), interpolate) for interpolate in mixes), layers[L]]
    if has_mlm_head(model) and L:
        table += [Source(name, (L,), PROMPTS[name]) for name in ("T0", "T4") if fits(model, PROMPTS[name])]
    return table, layers


def has_mlm_head(model: SentenceEncoder) -> bool:
    """Whether a prompt with [MASK] makes sense: the checkpoint has the head of masked language modelling."""
    return "mask_token" in model.tokenizer.special_tokens and any(head in model.load_report for head in MLM_HEAD_NAMES)


def fits(model: SentenceEncoder, template: str) -> bool:
    """Whether a template leaves room for a sentence."""
    prompt = Prompt(template, model.tokenizer)
    return prompt.prefix_length + prompt.suffix_length < model.max_length


def study(
    model: SentenceEncoder,
    tasks: dict[str, Task],
    reads: dict[str, Read],
    text: Sequence[str] = (),
) -> GridResults:
    """Every cell on every task. text: general sentences, to learn idf from and the mean vectors of words.

    The model is one with the plain mean, nothing after it and no prompt. Scores on dev, where a task has one,
    are of what was learnt on dev.
    """
    start = time.perf_counter()
    table, layers = vector_sources(model)
    averages, text = mean_vectors(model, layers, text) if text else {}, ReferenceText(text) if text else None
    suites: dict[str, list[str]] = {}
    for name, task in tasks.items():
        suites.setdefault(grid_task_type(task), []).append(name)
    first_and_last = next((source.name for source in table if len(source.layers) > 1), "")
    others = {"random": random_static_model(model)}
    if first_and_last in averages:
        others = {"average": averages[first_and_last]} | others
    names = [*(source.name for source in table), *others]
    result = GridResults(
        suites,
        names,
        ["word", *(source.name for source in layers), *(s.name for s in table if len(s.layers) > 1)],
    )
    units = [(name, split) for name, task in tasks.items() for split in splits_to_score(task, reads[name])]
    with progress_bar(len(units), "task", True, desc="study") as bar:
        for name, split in units:
            bar.set_postfix_str(f"{name} {split}", refresh=True)
            task, read, suite = tasks[name], reads[name], grid_task_type(tasks[name])
            texts = unlabeled_texts(task, read, split)
            sentences = list(dict.fromkeys(sentences_to_encode(task, read, split)))
            row = {sentence: n for n, sentence in enumerate(sentences)}
            learn_on = [row[sentence] for sentence in texts]
            began = time.perf_counter()
            here = [source for source in table if suite in TASK_TYPES_WITH_PROMPTS or not source.prompt]
            vectors = embed_sources(model, here, layers, LAYER_CURVES[suite], sentences, texts, text)
            for other, static in others.items():
                vectors |= embed_static_model(other, static, sentences, texts, text)
            mixed = {}  # (layer, share) -> vectors
            for layer, static in averages.items() if suite != "classification" else ():
                u, v = vectors[layer, "uniform"], static.embed_token_ids(static.tokenize(sentences))
                mixed |= {(layer, share): (1 - share) * u + share * v for share in INTERPOLATION_WEIGHTS}
            result.seconds["encoder"] += time.perf_counter() - began
            for (source, tokens), x in vectors.items():
                curve = [after for weights, after in LAYER_CURVES[suite] if weights == tokens]
                afters = GRID[suite][tokens] if source in names else []
                for after in dict.fromkeys([*afters, *(curve if source not in others else [])]):
                    cell = Variant(source, tokens, after)
                    scores, treated = score(task, read, split, x, row, learn_on, after)
                    if scores is None:
                        continue
                    result.scores.setdefault(cell, {})[name, split] = scores[task.metric]
                    if "dev_accuracy" in scores:
                        result.scores[cell][name, "dev"] = scores["dev_accuracy"]
                    if (name, split) == units[0]:
                        result.iso[cell] = iso_score(treated)
            for (layer, share), x in mixed.items():
                scores, _ = score(task, read, split, x, row, learn_on, "")
                cell = Variant(layer, "uniform", interpolation_name(share))
                result.scores.setdefault(cell, {})[name, split] = scores[task.metric]
            bar.update()
    result.seconds["all"] = time.perf_counter() - start
    return result


def splits_to_score(task: Task, read: Read) -> list[str]:
    """test, and dev where it can choose: a classifier has chosen with it already."""
    if task.task_type != "similarity" or "{split}" not in task.files:
        return ["test"]
    try:
        read("dev")
    except InputError:
        return ["test"]
    return ["test", "dev"]


def sentences_to_encode(task: Task, read: Read, split: str) -> Iterable[str]:
    """All that the suite is going to encode."""
    trained = task.task_type in ("classification", "relatedness") and "{split}" in task.files
    threshold = task.task_type == "similarity" and bool(task.classes)  # it is looked for on dev
    for part in ("train", "dev", split) if trained else ("dev", split) if threshold else (split,):
        try:
            yield from read(part).sentences
        except InputError:
            if part != "dev":
                raise


def score(
    task: Task, read: Read, split: str, x: Tensor, row: dict[str, int], learn_on: list[int], after: str
) -> tuple[dict | None, Tensor]:
    """Scores of one cell, and its vectors; None if there is too little text to learn from."""
    try:
        modules = fit_postprocessing(after, x[learn_on]) if after else []
    except InputError:
        return None, x
    x = chain_modules(lambda rows: x[rows], modules)(list(range(len(x)))) if modules else x
    encode = lambda sentences: x[[row[sentence] for sentence in sentences]]  # noqa: E731
    return FAST_EVALUATORS.get(task.task_type, EVALUATORS[task.task_type])(encode, task, read, split), x


# ---------------------------------------------------------------------------------------- one pass for many


def embed_sources(
    model: SentenceEncoder,
    table: list[Source],
    layers: list[Source],
    curves: list[tuple[str, str]],
    sentences: list[str],
    texts: Sequence[str],
    text: "GeneralText | None",
) -> dict[tuple[str, str], Tensor]:
    """{(source, tokens): (N, D)} of the table's sources under all weights, of others under the curves'."""
    vectors = {}
    for prompt in dict.fromkeys(source.prompt for source in table):
        model.prompt = prompt
        names = TOKEN_WEIGHTS_WITH_PROMPT if prompt else TOKEN_WEIGHTS_WITHOUT_PROMPT
        weights = build_token_weights(model, names, texts, text)
        wanted = [(source, tokens) for source in table if source.prompt == prompt for tokens in weights]
        if not prompt:
            wanted += [(source, tokens) for source in layers for tokens, _ in curves if source not in table]
        ids = model.tokenize(sentences)
        for of_words in (True, False):  # which may be of another width
            here = [(source, tokens) for source, tokens in wanted if (source.layers == (WORD_EMBEDDINGS,)) == of_words]
            if here:
                stacked = model.map_batches(ids, partial(pooled, model, here, weights), False)  # (len(here), N, D)
                vectors |= {
                    (source.name, tokens): x for (source, tokens), x in zip(here, stacked, strict=True)
                }
    model.prompt, model.token_weights = "", None
    return vectors


def embed_static_model(
    name: str,
    model: SentenceEncoder,
    sentences: list[str],
    texts: Sequence[str],
    text: "GeneralText | None",
) -> dict[tuple[str, str], Tensor]:
    """The same of a static model."""
    vectors, ids = {}, model.tokenize(sentences)
    for tokens, weights in build_token_weights(model, TOKEN_WEIGHTS_WITHOUT_PROMPT, texts, text).items():
        model.token_weights = weights
        vectors[name, tokens] = model.embed_token_ids(ids)
    model.token_weights = None
    return vectors


def build_token_weights(
    model: SentenceEncoder, names: list[str], texts: Sequence[str], text: "GeneralText | None"
) -> dict[str, TokenWeights | None]:
    """Name -> weights of tokens, learnt on the texts of a task and, if there is one, on the general text."""
    weights = {}
    for name in names:
        model.set_token_weights(name, texts if name in NEEDS_TEXT else None)
        weights[name] = model.token_weights
    if text:
        weights[IDF_FROM_TEXT] = text.idf(model)
    return weights


class ReferenceText:
    """The lines of --text, and their idf for each model and prompt: it is the same in every task."""

    def __init__(self, lines: Sequence[str]):
        self.lines, self.known = lines, {}

    def idf(self, model: SentenceEncoder) -> TokenWeights | None:
        key = id(model), model.prompt
        if key not in self.known:
            model.set_token_weights("idf", self.lines)
            self.known[key] = model.token_weights
        return self.known[key]


def pooled(
    model: SentenceEncoder,
    wanted: list[tuple[Source, str]],
    weights: dict[str, TokenWeights | None],
    rows: PackedBatch,
) -> Tensor:
    """Rows of S sentences -> (len(wanted), S, D); each hidden state is pooled once under each weight."""
    needed = {(layer, tokens) for source, tokens in wanted for layer in source.layers}
    of_rows = {tokens: None if w is None else w(rows) for tokens, w in weights.items()}  # (B, T)
    states = {layer: [tokens for n, tokens in needed if n == layer] for layer, _ in needed}
    means = {}

    def pool(layer: int, hidden: Tensor) -> None:
        for tokens in states.get(layer, ()):
            means[layer, tokens] = mean_pooling(hidden.float(), rows, of_rows[tokens])

    if WORD_EMBEDDINGS in states:
        pool(WORD_EMBEDDINGS, model.encoder.embeddings.word(rows.input_ids))
    if set(states) != {WORD_EMBEDDINGS}:
        for layer, hidden in enumerate(model.encoder.iter_hidden_states(*rows.inputs)):
            pool(layer, hidden)
    return torch.stack(
        [sum(means[layer, tokens] for layer in s.layers) / len(s.layers) for s, tokens in wanted]
    )
