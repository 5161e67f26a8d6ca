"""The page of `tmft grid`: the scores of all variants of a model without training.

A variant is a source of token vectors (a layer, a mean of layers, a prompt, ...) with token weights and a
post-processing, see tmft/training_free/variants.py. The functions that make tables return lines, each
a list of cells; the first line is the heading. Their argument task_type is a key of MEASURES.
"""

import math
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from tmft.io.formatting import percent
from tmft.reports.page import Page
from tmft.reports.plots import draw_score_curves
from tmft.reports.run_tables import MISSING
from tmft.training_free.grid import LAYER_CURVES, GridResults
from tmft.training_free.variants import Variant

MEASURES = {  # type of the tasks -> description of the scores in its tables
    "similarity": "mean Spearman x 100",
    "clustering": "mean accuracy x 100 of one run of k-means",
    "classification": "mean accuracy (correlation for scores) x 100 of SentEval's prototyping setting",
}
ABOUT = (
    "The columns are the sources of token vectors: word are the word embeddings, a number is a hidden state, "
    "1+6 is the mean of two, T0 and T4 are the last hidden state with a prompt, average are the mean word "
    "vectors in the reference text, and random are 768 random numbers for each word. The rows are token "
    "weights and post-processing. Both are estimated from the sentences of each task, without labels "
    "(transductive); “idf of text” is estimated from the reference text, and “interpolate w” is (1 - w) "
    "times the embedding plus w times the mean of its words' vectors in this text. Taking the best of a "
    "column means choosing on the test set; the choice of dev is marked *."
)


def write_grid_page(results: GridResults, model: str, folder: Path) -> Page:
    """Write grid.md, grid.json, the tables and a figure into a folder, and return the Page.

    model: name of the checkpoint, for the title.
    """
    page = Page(folder, f"{model} without training")
    page.add_text(ABOUT)
    seconds = [f"{results.seconds[name]:.0f} s" for name in ("all", "encoder")]
    page.add_text(f"{len(results.scores)} variants in {seconds[0]}, {seconds[1]} of them in the encoder.")
    for task_type, tasks in results.tasks.items():
        title = f"{task_type}: {MEASURES[task_type]}, over {len(tasks)} tasks"
        page.add_table(title, variants_table(results, task_type))
        page.add_table(f"{task_type}, task by task", tasks_table(results, task_type))
    curves = partial(draw_score_curves, layer_curves(results), xlabel="layer", ylabel="score × 100")
    page.add_figure("score by layer", {"grid-layers": curves})
    page.write("grid", to_dict(results, model))
    return page


def variants_table(results: GridResults, task_type: str) -> list[list[str]]:
    """Return a table with a line per pair of token weights and post-processing, and a column per source.

    A cell is the mean score over the tasks of type task_type, x 100; * marks the variant that is best on dev.
    """
    chosen = results.best_on_dev(task_type)
    pairs = dict.fromkeys(
        (variant.token_weights, variant.postprocess)
        for variant in results.scores
        if variant.source in results.sources and results.task_scores(variant, task_type)
    )
    weights_order = list(dict.fromkeys(token_weights for token_weights, _ in pairs))
    lines = [["token weights", "post-processing", *results.sources, ""]]
    for token_weights, postprocess in sorted(pairs, key=lambda pair: weights_order.index(pair[0])):
        variants = [Variant(source, token_weights, postprocess) for source in results.sources]
        scores = [
            format_score(results.mean_score(variant, task_type)) + "*" * (variant == chosen)
            for variant in variants
        ]
        lines.append([token_weights, postprocess or MISSING, *scores, ""])
    return lines


def format_score(score: float) -> str:
    """Return a score x 100 with two decimals, or a dash if it is NaN."""
    return MISSING if math.isnan(score) else percent(score)


def tasks_table(results: GridResults, task_type: str) -> list[list[str]]:
    """Return a table with a line per selected variant, a column per task of task_type, and their mean, x 100.

    The selected variants are: the last layer without changes; the variant that is best on dev; the one that
    is best on test; random embeddings without changes; and the variant of random embeddings that is best on
    test.
    """
    test_scores = {variant: results.mean_score(variant, task_type) for variant in results.scores}
    ranking = sorted(
        (variant for variant, score in test_scores.items() if not math.isnan(score)),
        key=lambda variant: -test_scores[variant],
    )
    selected = {
        "unchanged": results.baseline,
        "chosen on dev": results.best_on_dev(task_type),
        "best on test (not a choice)": next(v for v in ranking if v.source != "random"),
        "random, unchanged": Variant("random", "uniform", ""),
        "random, best on test": next(v for v in ranking if v.source == "random"),
    }
    tasks = results.tasks[task_type]
    lines = [["", "variant", *tasks, "mean", ""]]
    for title, variant in selected.items():
        if variant:
            scores = [results.scores[variant].get((task, "test"), math.nan) for task in tasks]
            cells = map(format_score, [*scores, test_scores[variant]])
            lines.append([title, variant.name, *cells, ""])
    return lines


def layer_curves(results: GridResults) -> dict[str, list[tuple[str, float, float]]]:
    """Return {title: [(layer, mean over the tasks, their sample std)]}, for plots.draw_score_curves.

    Each curve has one pair of token weights and post-processing, from LAYER_CURVES. Random embeddings have a
    single point.
    """
    lines = {}
    for task_type in results.tasks:
        for token_weights, postprocess in LAYER_CURVES[task_type]:
            changes = [token_weights if token_weights != "uniform" else "", postprocess]
            name = " + ".join(filter(None, changes)) or "unchanged"
            points = []
            for layer in results.layers:
                scores = results.task_scores(Variant(layer, token_weights, postprocess), task_type)
                if scores:
                    points.append((layer, mean(scores), stdev(scores) if len(scores) > 1 else 0.0))
            lines[f"{task_type}, {name}"] = points
        if LAYER_CURVES[task_type]:
            random = results.task_scores(Variant("random", *LAYER_CURVES[task_type][-1]), task_type)
            if random:
                lines[f"{task_type}, random"] = [("word", mean(random), 0.0)]
    return lines


def to_dict(results: GridResults, model: str) -> dict[str, Any]:
    """Return the content of grid.json: the scores of all variants on all tasks, not x 100.

    model: the name.
    """
    variants = [
        {
            "source": variant.source,
            "token_weights": variant.token_weights,
            "postprocess": variant.postprocess,
            "iso_score": results.iso_scores.get(variant),
            "scores": [
                {"task": task, "split": split, "score": score} for (task, split), score in scores.items()
            ],
        }
        for variant, scores in results.scores.items()
    ]
    return {"model": model, "seconds": results.seconds, "tasks": results.tasks, "variants": variants}
