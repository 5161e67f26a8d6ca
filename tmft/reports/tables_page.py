"""The page of `tmft tables`: tables of scores without training beside published ones, and their figures.

A cell is our score and, in brackets, that of Stankevičius and Lukoševičius 2024 for BERT; both are x 100 but
for alignment and uniformity. Functions that make tables return lines; the first one is the heading.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np

from tmft.io.paths import PACKAGE_DATA
from tmft.metrics import pearson
from tmft.reports.drawing import draw_line, figure, heat_map, name_ticks
from tmft.reports.page import Page
from tmft.reports.paper_tables import MISSING
from tmft.training_free.training_free_tables import FIGURES, Row, ScoreTable, TableScores

ABOUT = (
    "A score in brackets is the one that Stankevičius and Lukoševičius (2024) print for bert-base-uncased. "
    "Token weights and post-processing are estimated from the sentences that are scored, for classification "
    "from all texts of a task, without labels (transductive), and those with =text from another text. RE are "
    "random vectors for the same vocabulary. The best of a column is chosen on the data that is scored."
)
# Table, tasks, token weights, post-processing -> {model: printed score x 100, or ""}
Published = dict[tuple[str, ...], dict[str, str]]


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
        page.add_note(note)
    for number, table in enumerate(tables):
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
            page.add_table(title, score_lines(results, table, group, tasks, published))
            if draw := {"curves": draw_curves, "heat map": draw_heat_map}.get(table.figure):
                panel = partial(draw, results, table, group, tasks)
                page.add_figure(title, {f"{table.name}-{number}-{group}": panel})
        if table.figure == "points" and len(scored) == 2 and all(scored.values()):
            title = f"{table.name} {' and '.join(scored)}, Pearson correlation over the rows"
            page.add_table(title, correlation_lines(results, table, scored))
    rows = [asdict(row) | {"scores": scores} for row, scores in results.scores.items()]  # not x 100
    page.write("tables", {"model": model, "tables": [table.name for table in tables], "rows": rows})
    return page


def line_and_column(table: ScoreTable, row: Row) -> tuple[tuple[str, ...], str]:
    """Return the cells that name the line of a row in its table, and the name of its column.

    The column has the fields that differ within the table; a static model has one column and every line.
    """
    line_fields, column_fields = FIGURES[table.figure]
    differing = [name for name in column_fields if len({getattr(row, name) for row in table.rows}) > 1]
    values = [str(getattr(row, name)) for name in differing or column_fields[:1]]
    column = " + ".join(value for value in values if value not in ("", "uniform")) or row.model
    return tuple(str(getattr(row, name)) or MISSING for name in line_fields), column


def score_lines(
    results: TableScores, table: ScoreTable, group: str, tasks: Sequence[str], published: Published
) -> list[list[str]]:
    """Return a table of mean scores over the tasks of a group: a line and a column as FIGURES says."""
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in table.rows:
        line, column = line_and_column(table, row)
        key = table.name, group, row.token_weights, row.postprocess
        printed = published.get(key, {}).get(row.model, "")
        cell = format_score(results.mean(row, tasks), group)
        cells.setdefault(line, {})[column] = f"{cell} ({printed})" if printed else cell
    columns = list(dict.fromkeys(column for scores in cells.values() for column in scores))
    heading = [name.replace("_", " ") for name in FIGURES[table.figure][0]]
    lines = [[*line, *(scores.get(column, MISSING) for column in columns)] for line, scores in cells.items()]
    return [[*heading, *columns], *lines]


def format_score(score: float, group: str) -> str:
    """Return a score x 100 with two decimals, alignment and uniformity as they are; a dash for NaN."""
    factor = 1 if group in ("alignment", "uniformity") else 100
    return MISSING if math.isnan(score) else f"{factor * score:.2f}"


def draw_curves(
    results: TableScores, table: ScoreTable, group: str, tasks: Sequence[str], paths: list[Path]
) -> None:
    """Draw the mean score x 100 by layer, with a line per column: the deviation over the tasks is shaded.

    The x axis has the layers in the order in which they first occur. The line of a static model, which has
    none, is horizontal.
    """
    columns: dict[str, dict[str, tuple[float, float]]] = {}  # column -> {layer: (mean, sample std)}
    for row in table.rows:
        scores = [100 * results.mean(row, [task]) for task in tasks]
        point = 100 * results.mean(row, tasks), stdev(scores) if len(scores) > 1 else 0.0
        if math.isfinite(point[0]):
            columns.setdefault(line_and_column(table, row)[1], {})[row.layer] = point
    layers = list(dict.fromkeys(row.layer for row in table.rows if row.layer)) or [""]
    title, note = f"Mean score × 100, {group} by layer", "bands: one sample standard deviation over the tasks"
    with figure(paths, title, f"{note} to both sides", "layer", f"score × 100, {group}") as axes:
        for number, (name, points) in enumerate(columns.items()):
            everywhere = points.get("", (math.nan, math.nan))
            means, stds = zip(*(points.get(layer, everywhere) for layer in layers), strict=True)
            opacity = min(0.18, 0.4 / len(columns))
            draw_line(axes, number, name, range(len(layers)), means, stds, opacity=opacity)
        axes.margins(x=0.03)
        name_ticks(axes, layers)


def draw_heat_map(
    results: TableScores, table: ScoreTable, group: str, tasks: Sequence[str], paths: list[Path]
) -> None:
    """Draw the mean score by layer and weight of the interpolation."""
    scores = {line_and_column(table, row): 100 * results.mean(row, tasks) for row in table.rows}
    lines, columns = ([*dict.fromkeys(names)] for names in zip(*scores, strict=True))
    values = [[scores.get((line, column), math.nan) for column in columns] for line in lines]
    note = "(1 − w) u + w v by layer and w: a hidden state u with the means v of its tokens over a text"
    with figure(paths, f"{table.name} {group}", note) as axes:
        heat_map(axes, values, "{:.1f}", "score × 100")
        name_ticks(axes, columns)
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
