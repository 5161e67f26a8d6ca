"""Advice: which treatment for these unlabelled sentences, judged on graded pairs of other text.

Weights and post-processing are learnt on the user's sentences, as they would be in use, and scored on pairs
that somebody graded. Beside it stand two figures of the user's own sentences: how many of the dimensions
their embeddings use, and how alike two of them are. Advice is as good as the pairs are like the sentences.
"""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from tmft.data import Examples
from tmft.device import progress_bar
from tmft.embedding.postprocessing import fit_postprocessing
from tmft.embedding.prompts import PROMPTS
from tmft.embedding.token_weights import NEEDS_TEXT
from tmft.errors import InputError
from tmft.evaluation.evaluators import EVALUATORS
from tmft.evaluation.grid import Variant, embed_sources, embed_static_model, vector_sources
from tmft.evaluation.isotropy import iso_score, mean_cosine
from tmft.evaluation.training_free import chain_modules, random_static_model
from tmft.formatting import percent
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import Task

SAVEABLE_POSTPROCESSING = ["", "center", "zscore", "abtt", "whiten"]  # those that are saved with a model
MIN_GAIN = 0.01  # of Spearman: a smaller gain is within what another set of pairs would give
MAX_SHOWN = 6


@dataclass
class VariantScore:
    """One treatment: its score on the graded pairs; IsoScore and mean cosine of the user's sentences."""

    cell: Variant
    score: float
    iso: float
    cosine: float


def score_variants(model: SentenceEncoder, sentences: list[str], task: Task, graded: Examples) -> list[VariantScore]:
    """All treatments that can be saved with the model, and random embeddings under the same; best first."""
    known = list(dict.fromkeys([*sentences, *graded.sentences]))
    row = {sentence: n for n, sentence in enumerate(known)}
    own = [row[sentence] for sentence in sentences]
    table, _ = vector_sources(model)
    vectors = embed_sources(model, table, [], [], known, sentences, None)
    vectors |= embed_static_model("random", random_static_model(model), known, sentences, None)
    found = []
    with progress_bar(len(vectors) * len(SAVEABLE_POSTPROCESSING), "treatment", True, desc="advise") as bar:
        for (source, tokens), x in vectors.items():
            for after in SAVEABLE_POSTPROCESSING:
                bar.update()
                try:
                    modules = fit_postprocessing(after, x[own]) if after else []
                except InputError:  # too few sentences for it
                    continue
                encode = chain_modules(lambda s, x=x: x[[row[sentence] for sentence in s]], modules)
                mine = encode(sentences)
                score = EVALUATORS["similarity"](encode, task, lambda split: graded)[task.metric]
                found.append(VariantScore(Variant(source, tokens, after), score, iso_score(mine), mean_cosine(mine)))
    return best_first(found)


def best_first(found: list[VariantScore]) -> list[VariantScore]:
    """By score; an undefined one, of embeddings that are all equal, is none."""
    return sorted((e for e in found if not math.isnan(e.score)), key=lambda e: -e.score)


def advice(
    found: list[VariantScore], model: list[str], last: int, sentences: Path
) -> tuple[list[list[str]], str]:
    """The evidence as lines of a table, and what to do in words.

    model: the words of a command line that name it, and the graded pairs; last: its last layer.
    """
    found = best_first(found)
    plain = next((e for e in found if e.cell == Variant(str(last), "uniform", "")), None)
    if plain is None:
        raise InputError(f"{model[0]} has no score as it is: its embeddings are all equal; check weights")
    ours = [e for e in found if e.cell.source != "random"]
    best, random = ours[0], next(e for e in found if e.cell.source == "random")
    lines = [["treatment", "graded pairs", "IsoScore", "mean cosine", ""]]
    for evidence in [*ours[:MAX_SHOWN], *([plain] if plain not in ours[:MAX_SHOWN] else []), random]:
        mark = {id(plain): "as it is", id(best): "best", id(random): "random embeddings, their best"}
        figures = [percent(evidence.score), f"{evidence.iso:.3f}", f"{evidence.cosine:.3f}"]
        lines.append([evidence.cell.name, *figures, mark.get(id(evidence), "")])
    gain = f"{percent(best.score)} against {percent(plain.score)} as it is"
    if best.score < plain.score + MIN_GAIN:
        words = f"Leave it as it is: the best treatment has {gain}, which is no gain to rely on."
    else:
        kept = command(best.cell, model, last, sentences)
        words = f"Take {best.cell.name}: {gain}. To keep it as a model:\n    {kept}"
    if random.score >= max(best.score, plain.score):
        words += (
            "\nRandom embeddings do no worse here: this checkpoint adds nothing to counting common words."
        )
    return lines, words


def command(cell: Variant, model: list[str], last: int, sentences: Path) -> str:
    """The command that makes the treated model."""
    prompt, tokens = cell.source in PROMPTS, cell.tokens
    words = ["python", "evaluate.py", *model, "--layer", str(last) if prompt else cell.source]
    words += ["--prompt", cell.source if prompt else "[X]"]  # and not a prompt of the folder
    if tokens != "uniform":
        words += ["--tokens", f"{tokens}={sentences}" if tokens in NEEDS_TEXT else tokens]
    if cell.after:
        words += ["--after", f"{cell.after}={sentences}"]
    return shlex.join([*words, "--save", "treated"])
