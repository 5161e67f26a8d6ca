"""Advice: which treatment for these unlabelled sentences, judged on graded pairs of other text.

Weights and post-processing are learnt on the user's sentences, as they would be in use, and scored on pairs
that somebody graded. Beside it stand two figures of the user's own sentences: how many of the dimensions
their embeddings use, and how alike two of them are. Advice is as good as the pairs are like the sentences.
"""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from tmft.data import Examples, Task
from tmft.device import progress_bar
from tmft.embedding.postprocessing import learn
from tmft.embedding.prompts import PROMPTS
from tmft.embedding.token_weights import LEARNT
from tmft.errors import InputError
from tmft.evaluation.evaluators import SUITES
from tmft.evaluation.grid import Cell, sources_of, static_vectors, vectors_of
from tmft.evaluation.isotropy import iso_score, mean_cosine
from tmft.evaluation.training_free import followed, random_embeddings
from tmft.formatting import percent
from tmft.sentence_encoder import SentenceEncoder

AFTERS = ["", "center", "zscore", "abtt", "whiten"]  # those that are saved with a model
WORTH = 0.01  # of Spearman: a smaller gain is within what another set of pairs would give
SHOWN = 6


@dataclass
class Evidence:
    """One treatment: its score on the graded pairs; IsoScore and mean cosine of the user's sentences."""

    cell: Cell
    score: float
    iso: float
    cosine: float


def weigh_up(model: SentenceEncoder, sentences: list[str], task: Task, graded: Examples) -> list[Evidence]:
    """All treatments that can be saved with the model, and random embeddings under the same; best first."""
    known = list(dict.fromkeys([*sentences, *graded.sentences]))
    row = {sentence: n for n, sentence in enumerate(known)}
    own = [row[sentence] for sentence in sentences]
    table, _ = sources_of(model)
    vectors = vectors_of(model, table, [], [], known, sentences, None)
    vectors |= static_vectors("random", random_embeddings(model), known, sentences, None)
    found = []
    with progress_bar(len(vectors) * len(AFTERS), "treatment", True, desc="advise") as bar:
        for (source, tokens), x in vectors.items():
            for after in AFTERS:
                bar.update()
                try:
                    modules = learn(after, x[own]) if after else []
                except InputError:  # too few sentences for it
                    continue
                encode = followed(lambda s, x=x: x[[row[sentence] for sentence in s]], modules)
                mine = encode(sentences)
                score = SUITES["similarity"](encode, task, lambda split: graded)[task.metric]
                found.append(Evidence(Cell(source, tokens, after), score, iso_score(mine), mean_cosine(mine)))
    return best_first(found)


def best_first(found: list[Evidence]) -> list[Evidence]:
    """By score; an undefined one, of embeddings that are all equal, is none."""
    return sorted((e for e in found if not math.isnan(e.score)), key=lambda e: -e.score)


def advice(
    found: list[Evidence], model: list[str], last: int, sentences: Path
) -> tuple[list[list[str]], str]:
    """The evidence as lines of a table, and what to do in words.

    model: the words of a command line that name it, and the graded pairs; last: its last layer.
    """
    found = best_first(found)
    plain = next((e for e in found if e.cell == Cell(str(last), "all", "")), None)
    if plain is None:
        raise InputError(f"{model[0]} has no score as it is: its embeddings are all equal; check weights")
    ours = [e for e in found if e.cell.source != "random"]
    best, random = ours[0], next(e for e in found if e.cell.source == "random")
    lines = [["treatment", "graded pairs", "IsoScore", "mean cosine", ""]]
    for evidence in [*ours[:SHOWN], *([plain] if plain not in ours[:SHOWN] else []), random]:
        mark = {id(plain): "as it is", id(best): "best", id(random): "random embeddings, their best"}
        figures = [percent(evidence.score), f"{evidence.iso:.3f}", f"{evidence.cosine:.3f}"]
        lines.append([evidence.cell.name, *figures, mark.get(id(evidence), "")])
    gain = f"{percent(best.score)} against {percent(plain.score)} as it is"
    if best.score < plain.score + WORTH:
        words = f"Leave it as it is: the best treatment has {gain}, which is no gain to rely on."
    else:
        kept = command(best.cell, model, last, sentences)
        words = f"Take {best.cell.name}: {gain}. To keep it as a model:\n    {kept}"
    if random.score >= max(best.score, plain.score):
        words += (
            "\nRandom embeddings do no worse here: this checkpoint adds nothing to counting common words."
        )
    return lines, words


def command(cell: Cell, model: list[str], last: int, sentences: Path) -> str:
    """The command that makes the treated model."""
    prompt, tokens = cell.source in PROMPTS, cell.tokens
    words = ["python", "evaluate.py", *model, "--layer", str(last) if prompt else cell.source]
    words += ["--prompt", cell.source if prompt else "[X]"]  # and not a prompt of the folder
    if tokens != "all":
        words += ["--tokens", f"{tokens}={sentences}" if tokens in LEARNT else tokens]
    if cell.after:
        words += ["--after", f"{cell.after}={sentences}"]
    return shlex.join([*words, "--save", "treated"])
