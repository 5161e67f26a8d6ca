"""Recommend a training-free variant for unlabeled sentences, by its score on labeled pairs of other text.

Token weights and post-processing are estimated from the user's sentences, as they would be in use, and scored
on pairs with similarity scores, usually the dev split of a task. Two measures of the embeddings of the user's
sentences are shown, too: IsoScore (the share of the dimensions that they use) and the mean cosine of two of
them. The more the pairs are like the user's sentences, the more the recommendation can be trusted.
"""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from tmft.data import Examples
from tmft.device import progress_bar
from tmft.embedding.prompts import PROMPTS
from tmft.embedding.token_weights import NEEDS_TEXT
from tmft.errors import InputError
from tmft.evaluation.evaluators import EVALUATORS
from tmft.evaluation.isotropy import iso_score, mean_cosine
from tmft.io.formatting import percent
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import Task
from tmft.training_free.static_models import random_static_model
from tmft.training_free.variants import (
    Variant,
    embed_sources,
    embed_static_model,
    encode_by_lookup,
    list_vector_sources,
    postprocess_embeddings,
)

SAVEABLE_POSTPROCESSING = ["", "center", "zscore", "abtt", "whiten"]  # those that can be saved with a model
MIN_GAIN = 0.01  # smaller gains of the score may be chance: other pairs may change a score as much
MAX_SHOWN = 6  # number of best variants in the table


@dataclass
class VariantScore:
    """The scores of a variant: on labeled pairs, and how isotropic its embeddings of sentences are.

    score: on the pairs, not x 100. iso_score: the IsoScore of the user's sentences. mean_cosine: of random
    pairs of them.
    """

    variant: Variant
    score: float
    iso_score: float
    mean_cosine: float


@dataclass
class Recommendation:
    """The variant to use, with the scores that it is based on.

    table: a list of lines, each a list of cells; after the header, the lines are the best variants, the
        unchanged model and random embeddings.
    text: the recommendation in words, with the command that saves the model.
    """

    table: list[list[str]]
    text: str


def score_variants(
    model: SentenceEncoder, sentences: list[str], task: Task, labeled_pairs: Examples
) -> list[VariantScore]:
    """Score all variants that can be saved with the model, and random embeddings with equal changes.

    Returns the scores from best to worst, without variants that need more sentences.
    """
    all_sentences = list(dict.fromkeys([*sentences, *labeled_pairs.sentences]))
    index = {sentence: i for i, sentence in enumerate(all_sentences)}
    fit_indices = [index[sentence] for sentence in sentences]
    sources, _ = list_vector_sources(model)
    embeddings = embed_sources(model, sources, all_sentences, sentences)
    embeddings |= embed_static_model("random", random_static_model(model), all_sentences, sentences)
    scores = []
    num_variants = len(embeddings) * len(SAVEABLE_POSTPROCESSING)
    with progress_bar(num_variants, "variant", True, desc="recommend") as bar:
        for (source, token_weights), x in embeddings.items():
            for postprocess in SAVEABLE_POSTPROCESSING:
                bar.update()
                processed = postprocess_embeddings(x, fit_indices, postprocess)
                if processed is None:
                    continue
                encode = encode_by_lookup(processed, index)
                embedded = encode(sentences)
                result = EVALUATORS["similarity"](encode, task, lambda split: labeled_pairs)
                variant = Variant(source, token_weights, postprocess)
                scores.append(
                    VariantScore(variant, result[task.metric], iso_score(embedded), mean_cosine(embedded))
                )
    return sort_by_score(scores)


def sort_by_score(scores: list[VariantScore]) -> list[VariantScore]:
    """Return the scores from best to worst, without those that are NaN because all embeddings are equal."""
    defined = [score for score in scores if not math.isnan(score.score)]
    return sorted(defined, key=lambda score: -score.score)


def recommend(
    scores: list[VariantScore], evaluate_args: list[str], num_layers: int, sentences_file: Path
) -> Recommendation:
    """Recommend the best variant, or the unchanged model if the best one gains less than MIN_GAIN over it.

    scores: from `score_variants`.
    evaluate_args: the arguments of evaluate.py that name the model and the labeled pairs, for the command
    that saves the recommended model.
    num_layers: number of layers of the model. sentences_file: the file with the user's sentences.
    Raises InputError if the unchanged model has no score.
    """
    scores = sort_by_score(scores)
    unchanged = next((s for s in scores if s.variant == Variant(str(num_layers), "uniform", "")), None)
    if unchanged is None:
        raise InputError(
            f"{evaluate_args[0]} has no score without changes (all embeddings are equal): check its weights"
        )
    not_random = [score for score in scores if score.variant.source != "random"]
    best, best_random = not_random[0], next(s for s in scores if s.variant.source == "random")
    shown = not_random[:MAX_SHOWN]
    remarks = {
        id(unchanged): "unchanged",
        id(best): "best",
        id(best_random): "random embeddings, their best",
    }
    lines = [["variant", "labeled pairs", "IsoScore", "mean cosine", ""]]
    for score in [*shown, *([] if unchanged in shown else [unchanged]), best_random]:
        values = [percent(score.score), f"{score.iso_score:.3f}", f"{score.mean_cosine:.3f}"]
        lines.append([score.variant.name, *values, remarks.get(id(score), "")])
    comparison = f"{percent(best.score)} instead of {percent(unchanged.score)} unchanged"
    if best.score < unchanged.score + MIN_GAIN:
        text = f"Keep the model unchanged: the best variant has {comparison}, which is no reliable gain."
    else:
        command = save_command(best.variant, evaluate_args, num_layers, sentences_file)
        text = f"Use {best.variant.name}: {comparison}. To save it as a model:\n    {command}"
    if best_random.score >= max(best.score, unchanged.score):
        text += (
            "\nRandom embeddings are as good here: this checkpoint adds nothing to counting the words that "
            "two sentences share."
        )
    return Recommendation(lines, text)


def save_command(variant: Variant, evaluate_args: list[str], num_layers: int, sentences_file: Path) -> str:
    """Return the shell command that saves the model of a variant.

    num_layers: number of layers of the checkpoint.
    """
    has_prompt, token_weights = variant.source in PROMPTS, variant.token_weights
    words = ["python", "evaluate.py", *evaluate_args]
    words += ["--layer", str(num_layers) if has_prompt else variant.source]
    words += [
        "--prompt",
        variant.source if has_prompt else "[X]",
    ]  # [X] stands for no prompt, whatever was saved
    if token_weights != "uniform":
        needs_text = token_weights in NEEDS_TEXT
        words += ["--token-weights", f"{token_weights}={sentences_file}" if needs_text else token_weights]
    if variant.postprocess:
        words += ["--postprocess", f"{variant.postprocess}={sentences_file}"]
    return shlex.join([*words, "--save", "recommended"])
