"""A study as a page: tables of means over the tasks of a suite, what dev chose, figures."""

import math
from pathlib import Path
from statistics import mean, stdev

from tmft.evaluation.grid import LAYER_CURVES, INTERPOLATION_WEIGHTS, Variant, GridResults, interpolation_name
from tmft.formatting import percent
from tmft.reports import plots
from tmft.reports.report import MISSING, Page

WHAT = {
    "similarity": "mean Spearman x 100",
    "clustering": "mean accuracy x 100 of one run of k-means",
    "classification": "mean accuracy (correlation for scores) x 100 of SentEval's prototyping setting",
}


def write_grid_page(study: GridResults, model: str, folder: Path) -> Page:
    """study.md, study.json and the figures; returns what was written and the tables, to be printed."""
    page = Page(folder, f"{model} without training")
    page.text(explanation(study))
    for suite, tasks in study.suites.items():
        page.table(f"{suite}: {WHAT[suite]}, over {len(tasks)} tasks", grid(study, suite))
        page.table(f"{suite}, task by task", group_by_task(study, suite))
    page.figure("score by layer", plots.curves, curves(study), "study-layers.svg", "layer", "score × 100")
    points = {
        source: [
            (study.iso[cell], 100 * study.mean(cell, "similarity"))
            for cell in study.iso
            if cell.source == source and not math.isnan(study.mean(cell, "similarity"))
        ]
        for source in study.sources
    }
    page.figure(
        "isotropy against score", plots.scatter, points, "study-isotropy.svg", "IsoScore", "score × 100"
    )
    if maps := heat_maps(study):
        page.figure("shares of mean vectors", plots.heat_maps, maps, "study-mix.svg", "share w", "layer")
    page.write("study", as_data(study, model))
    return page


def explanation(study: GridResults) -> str:
    seconds = study.seconds
    return (
        "Columns: where vectors come from (word: the table of words; a number: a hidden state; 1+6: the mean "
        "of two; T0, T4: the last one, in a prompt; average: mean vectors of words in the general text; "
        "random: 768 random numbers for each word). Rows: token weights, then post-processing, learnt on the "
        "sentences of each task without labels (transductive); `idf of text` is learnt on the general "
        "text. Who takes the best of a column chooses on the test set; dev's choice is marked *.\n\n"
        f"{len(study.scores)} cells in {seconds['all']:.0f} s, {seconds['encoder']:.0f} in the encoder."
    )


def grid(study: GridResults, suite: str) -> list[list[str]]:
    """A line for each row of weights and post-processing, a column per source."""
    chosen = study.chosen(suite)
    rows = dict.fromkeys(
        (cell.tokens, cell.after)
        for cell in study.scores
        if cell.source in study.sources and study.of(cell, suite) and not cell.after.startswith("mix")
    )
    lines = [["tokens", "after", *study.sources, ""]]
    for tokens, after in sorted(rows, key=lambda row: list(dict.fromkeys(t for t, _ in rows)).index(row[0])):
        cells = [Variant(source, tokens, after) for source in study.sources]
        scores = [number(study.mean(cell, suite)) + ("*" if cell == chosen else "") for cell in cells]
        lines.append([tokens, after or MISSING, *scores, ""])
    return lines


def number(score: float) -> str:
    return MISSING if math.isnan(score) else percent(score)


def group_by_task(study: GridResults, suite: str) -> list[list[str]]:
    """The last layer as it is, what dev chose, the best of all by test, and the best of random embeddings."""
    last = study.plain
    cells = [cell for cell in study.scores if not math.isnan(study.mean(cell, suite))]
    ours = [cell for cell in cells if cell.source != "random"]
    by_test = lambda cell: study.mean(cell, suite)  # noqa: E731
    lines = {"as it is": last}
    if chosen := study.chosen(suite):
        lines["chosen on dev"] = chosen
    lines["best on test (not a choice)"] = max(ours, key=by_test)
    lines["random, as it is"] = Variant("random", "all", "")
    lines["random, best on test"] = max((c for c in cells if c.source == "random"), key=by_test)
    tasks = study.suites[suite]
    rows = [["", "cell", *tasks, "mean", ""]]
    for title, cell in lines.items():
        scores = [study.scores[cell].get((task, "test"), math.nan) for task in tasks]
        rows.append([title, cell.name, *map(number, scores), number(study.mean(cell, suite)), ""])
    return rows


def curves(study: GridResults) -> dict[str, list[tuple[str, float, float]]]:
    """{what: [(layer, mean over tasks, deviation)]} for plots.curves."""
    found = {}
    for suite in study.suites:
        for tokens, after in LAYER_CURVES[suite]:
            name = " + ".join(filter(None, [tokens if tokens != "uniform" else "", after])) or "as it is"
            points = []
            for layer in study.layers:
                scores = study.of(Variant(layer, tokens, after), suite)
                if scores:
                    points.append((layer, mean(scores), stdev(scores) if len(scores) > 1 else 0.0))
            found[f"{suite}, {name}"] = points
        random = study.of(Variant("random", *LAYER_CURVES[suite][-1]), suite) if LAYER_CURVES[suite] else []
        if random:
            found[f"{suite}, random"] = [("word", mean(random), 0.0)]
    return found


def heat_maps(study: GridResults) -> dict[str, tuple[list[str], list[str], list[list[float]]]]:
    """{suite: (layers, shares, mean scores)}; share 0 is the model alone."""
    maps, shares = {}, sorted([0.0, *INTERPOLATION_WEIGHTS])
    for suite in study.suites:
        if suite == "classification":
            continue
        names = [interpolation_name(share) if share else "" for share in shares]
        values = [[study.mean(Variant(layer, "all", n), suite) for n in names] for layer in study.layers_alone]
        if not all(math.isnan(row[-1]) for row in values):
            maps[suite] = (study.layers_alone, [f"{share:g}" for share in shares], values)
    return maps


def as_data(study: GridResults, model: str) -> dict:
    cells = [
        {"source": cell.source, "tokens": cell.tokens, "after": cell.after, "iso_score": study.iso.get(cell)}
        | {"scores": [{"task": task, "split": split, "score": s} for (task, split), s in scores.items()]}
        for cell, scores in study.scores.items()
    ]
    return {"model": model, "seconds": study.seconds, "suites": study.suites, "cells": cells}
