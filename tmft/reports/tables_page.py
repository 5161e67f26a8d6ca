"""The page of `tmft tables`: tables of scores without training beside published ones, and their figures.

A cell is our score and, in brackets, that of Stankevičius and Lukoševičius 2024 for BERT; both are x 100 but
for alignment and uniformity. Functions that make tables return lines; the first one is the heading.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tmft.io.files import PACKAGE_DATA
from tmft.metrics import pearson
from tmft.reports.drawing import draw_line, figure, heat_map, name_ticks
from tmft.reports.page import MISSING, Page
from tmft.training_free.training_free_tables import FIGURES, ScoreTable, TableScores

ABOUT = (
    "A score in brackets is the one that Stankevičius and Lukoševičius (2024) print for bert-base-uncased. "
    "Token weights and post-processing are estimated from the sentences that are scored, for classification "
    "from all texts of a task, without labels (transductive), and those with =text from another text. RE are "
    "random vectors for the same vocabulary. The best of a column is chosen on the data that is scored."
)
# Table, tasks, token weights, post-processing -> {model: printed score x 100, or ""}
Published = dict[tuple[str, ...], dict[str, str]]
Grid = dict[str, dict[tuple[str, ...], float]]  # column -> {line: score, not x 100}


def read_published() -> Published:
    """Return the printed scores of data/extraction.tsv."""
    rows = (PACKAGE_DATA / "extraction.tsv").read_text(encoding="utf-8").splitlines()
    heading, *lines = (row.split("\t") for row in rows)
    return {tuple(cells[:4]): dict(zip(heading[4:], cells[4:], strict=True)) for cells in lines}


def write_tables_page(
    results: TableScores, tables: Sequence[ScoreTable], known: Mapping[str, Any], model: str, folder: Path
) -> Page:
    """Write tables.md, tables.json, the tables and their figures into a folder, and return the Page.

    known: the tasks that were scored, by name. model: name of the checkpoint, for the title.
    """
    page, published = Page(folder, f"{model} without training"), read_published()
    page.add_text(ABOUT)
    for note in results.notes:
        page.add_warning(note)
    page.add_heading("Scores")
    for table in tables:
        scored = {group: [name for name in names if name in known] for group, names in table.groups.items()}
        for group, tasks in scored.items():
            if not tasks:
                continue
            missing = [name for name in table.groups[group] if name not in known]
            over = f", mean of {len(tasks)} tasks" if len(tasks) > 1 else ""
            without = f" (without {', '.join(missing)})" if missing else ""
            title = f"{table.name} {group}{over}{without}"
            if title in page.tables:  # another block has the same group
                title += f", {', '.join(dict.fromkeys(row.model for row in table.rows))}"
            grid = score_grid(results, table, tasks)
            page.add_table(title, score_lines(table, group, grid, published))
            if draw := {"curves": draw_curves, "heat map": draw_heat_map}.get(table.figure):
                page.add_figure(f"figure of {title}", partial(draw, table, group, grid))
        if table.figure == "points" and len(scored) == 2 and all(scored.values()):
            title = f"{table.name} {' and '.join(scored)}, Pearson correlation over the rows"
            page.add_table(title, correlation_lines(results, table, scored))
    rows = [asdict(row) | {"scores": scores} for row, scores in results.scores.items()]  # not x 100
    page.write("tables", {"model": model, "tables": [table.name for table in tables], "rows": rows})
    return page


def score_grid(results: TableScores, table: ScoreTable, tasks: Sequence[str]) -> Grid:
    """Return the mean score over tasks of each row of a table: {column: {line: score}}.

    FIGURES has the fields that name a line, and those that name a column if they differ within the table.
    """
    line_fields, column_fields = FIGURES[table.figure]
    differing = [name for name in column_fields if len({getattr(row, name) for row in table.rows}) > 1]
    grid: Grid = {}
    for row in table.rows:
        values = [str(getattr(row, name)) for name in differing or column_fields[:1]]
        column = " + ".join(value for value in values if value not in ("", "uniform")) or row.model
        line = tuple(str(getattr(row, name)) for name in line_fields)
        grid.setdefault(column, {})[line] = results.mean(row, tasks)
    return grid


def score_lines(table: ScoreTable, group: str, grid: Grid, published: Published) -> list[list[str]]:
    """Return a table of the scores of a group, with the printed ones in brackets; a dash is no score."""
    factor = 1 if group in ("alignment", "uniformity") else 100
    lines = [[*(name.replace("_", " ") for name in FIGURES[table.figure][0]), *grid]]
    for line in dict.fromkeys(line for scores in grid.values() for line in scores):
        cells = [cell or MISSING for cell in line]
        for column, scores in grid.items():
            score = scores.get(line, math.nan)
            printed = published.get((table.name, group, *line), {}).get(column, "")
            cell = MISSING if math.isnan(score) else f"{factor * score:.2f}"
            cells.append(f"{cell} ({printed})" if printed else cell)
        lines.append(cells)
    return lines


def draw_curves(table: ScoreTable, group: str, grid: Grid, paths: list[Path]) -> None:
    """Draw the mean score x 100 by layer, with a line per column; that of a static model is horizontal.

    The x axis has the layers in the order in which they first occur.
    """
    layers = list(dict.fromkeys(row.layer for row in table.rows if row.layer)) or [""]
    title, labels = f"{table.name} {group}, by layer", ("layer", f"score × 100, {group}")
    with figure(paths, title, "mean over the tasks", *labels) as axes:
        for number, (name, scores) in enumerate(grid.items()):
            everywhere = scores.get(("",), math.nan)
            values = [100 * scores.get((layer,), everywhere) for layer in layers]
            draw_line(axes, number, name, range(len(layers)), values)
        name_ticks(axes, layers)


def draw_heat_map(table: ScoreTable, group: str, grid: Grid, paths: list[Path]) -> None:
    """Draw the mean score by layer and weight of the interpolation."""
    lines = list(dict.fromkeys(line for scores in grid.values() for line in scores))
    values = [[100 * scores.get(line, math.nan) for scores in grid.values()] for line in lines]
    note = "(1 − w) u + w v by layer and w: a hidden state u with the means v of its tokens over a text"
    with figure(paths, f"{table.name} {group}", note) as axes:
        heat_map(axes, values, "{:.1f}", "score × 100")
        name_ticks(axes, [*grid])
        axes.set_yticks(range(len(lines)), [" ".join(line) for line in lines])


def correlation_lines(
    results: TableScores, table: ScoreTable, groups: Mapping[str, Sequence[str]]
) -> list[list[str]]:
    """Return a table with the correlation, over the rows of each model, of the mean scores in two groups."""
    lines = [["model", "rows", "Pearson"]]
    for model in dict.fromkeys(row.model for row in table.rows):
        rows = [row for row in table.rows if row.model == model]
        scores = np.array([[results.mean(row, tasks) for tasks in groups.values()] for row in rows])
        x, y = scores[np.isfinite(scores).all(1)].T
        lines.append([model, str(len(x)), f"{pearson(x, y):.2f}" if len(x) > 1 else MISSING])
    return lines
