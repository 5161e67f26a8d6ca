"""The report of finished runs: tables and figures from result.json files, for readers, papers and programs.

It is written as a page for browsers (index.html), as Markdown and JSON, each table as LaTeX and CSV, and all
scores as one CSV. A published score that does not exist is shown as –, an undefined score as nan.
"""

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tmft.errors import InputError, sanitize
from tmft.formatting import MAX_NAME_LENGTH, escape_markdown, markdown_table, mean_and_std, percent, to_json
from tmft.io.atomic import write_file
from tmft.pretraining.heads import objective_name
from tmft.reports import plots
from tmft.reports.baselines import baseline_scores
from tmft.reports.cka_files import read_cka_files
from tmft.reports.comparisons import compare_layers_with_whole, compare_sweeps, comparison_table
from tmft.reports.paper_tables import csv_table, file_stem, latex_table
from tmft.reports.tidy_scores import tidy_scores
from tmft.reports.web_page import TaskResults, web_page
from tmft.runs.run_folder import make_folder
from tmft.runs.sweeps import (
    Sweep,
    different_settings,
    group_by_task,
    group_into_sweeps,
    read_results,
    separate_copies,
)

MISSING = "–"


class Page:
    """A page of text, tables and figures, which is written as Markdown into a folder, next to its figures.

    Each table is also written as LaTeX and as CSV, into the folder `tables`.

    folder: the folder to write into; it is created. title: heading of the page. Raises InputError if nothing
    can be written there.

    Attributes: tables: {title: lines of the table}, a line being a list of cells, and the first line the
    heading. printed: those of them that a command prints. notes: sentences about the tables. files: paths of
    all files that were written. skipped_figures: a message for each figure that could not be drawn.
    """

    blocks: list[str]

    def __init__(self, folder: Path, title: str):
        make_folder(folder)
        self.folder = folder
        self.title = title
        self.blocks = [f"# {escape_markdown(title)}\n"]  # pieces of Markdown, separated by blank lines
        self.tables: dict[str, list[list[str]]] = {}
        self.printed: dict[str, list[list[str]]] = {}
        self.notes: list[str] = []
        self.files: list[Path] = []
        self.skipped_figures: list[str] = []

    def text(self, paragraph: str) -> None:
        """Add a paragraph of Markdown."""
        self.blocks.append(f"{paragraph}\n")

    def note(self, sentence: str) -> None:
        """Add a sentence as a paragraph that is also printed, in plain words."""
        self.notes.append(sanitize(sentence))
        self.text(escape_markdown(sentence, max_length=1500))

    def table(self, title: str, lines: list[list[str]], is_printed: bool = True) -> None:
        """Add a table with a title. lines: the cells of each line; the first line is the heading.

        is_printed: whether a command prints it, or it is only in the files.
        """
        title = sanitize(title, MAX_NAME_LENGTH)
        self.tables[title] = lines
        if is_printed:
            self.printed[title] = lines
        self.blocks.append(f"## {escape_markdown(title)}\n\n{markdown_table(lines)}")

    def figure(self, title: str, draw: Callable[..., Any], data: object, name: str, *labels: str) -> None:
        """Draw a figure, write it to the file `name` in the folder, and as PDF, and add it to the page.

        title: the heading. draw: a function of plots.py that takes data, path and labels. labels: of the x
        and y axis, only for functions that take them. If the figure cannot be drawn, the reason is added to
        skipped_figures.
        """
        path = self.folder / name
        try:
            for file in (path, path.with_suffix(".pdf")):
                draw(data, file, *labels)
                self.files.append(file)
        except InputError as error:  # matplotlib is missing, or there is nothing to draw
            self.skipped_figures.append(sanitize(f"no figure of {title}: {error}"))
        else:
            self.blocks.append(f"![{escape_markdown(title)}]({quote(name)})\n")

    def write(self, name: str, data: object) -> None:
        """Write the page to <folder>/name.md, and data, the numbers in its tables, to <folder>/name.json.

        The tables go to <folder>/tables, each as .tex and as .csv.
        """
        self.add_file(f"{name}.md", "\n".join(self.blocks))
        self.add_file(f"{name}.json", to_json(data))
        used: set[str] = set()
        for title, lines in self.tables.items():
            stem = file_stem(title, used)
            self.add_file(f"tables/{stem}.tex", latex_table(title, lines, label=stem))
            self.add_file(f"tables/{stem}.csv", csv_table(lines))

    def add_file(self, name: str, content: str) -> None:
        """Write content, a text, to the file `name` in the folder."""
        write_file(self.folder / name, content)
        self.files.append(self.folder / name)


def make_report(runs: Path, out: Path) -> Page:
    """Make the report of all finished runs below the folder `runs`, write it, and return it as a Page.

    out: the folder to which index.html, report.md, report.json, runs.csv, the tables and the figures are
    written. Raises InputError if there is no finished run, or if nothing can be written.
    """
    results = read_results(runs)
    sweeps = group_into_sweeps(results)
    results, copies = separate_copies(results)
    pretrained = [result for _, result in results if "curve" in result]
    if not sweeps and not pretrained:
        raise InputError(f"no finished run below {runs}: name a folder with run folders (result.json)")
    page = Page(out, f"Runs in {runs.resolve().name}")
    used: set[str] = set()
    tasks, run_notes = [], []
    for data, group in group_by_task(sweeps).items():
        task = TaskResults(
            name=data,
            sweeps=group,
            best_layers=best_layers(group),
            by_layer=[score_by_layer(sweep) for sweep in group],
            baselines=baseline_scores(group[0]),
            comparisons=compare_sweeps(group),
            with_whole=[compare_layers_with_whole(sweep) for sweep in group],
        )
        tasks.append(task)
        page.table(f"{data}: each run at the layer that is best on dev", task.best_layers)
        if any(task.remarks):
            page.note(
                f"{data}: the runs were not made with the same settings (last column), so a difference of "
                "their scores need not come from the models."
            )
        if task.comparisons:
            page.table(
                f"{data}: are the differences on test significant?", comparison_table(task.comparisons)
            )
        for sweep, by_layer, with_whole in zip(group, task.by_layer, task.with_whole, strict=True):
            page.table(f"{sweep.name}: by layer", by_layer)
            if with_whole:
                title = f"{sweep.name}: each layer against the whole model, on test"
                page.table(title, comparison_table(with_whole), is_printed=False)
            if sweep.changed_file:
                note = (
                    f"{sweep.name}: its runs read another {sweep.changed_file} than other runs of the same "
                    "name, so they are shown apart and not averaged."
                )
                page.note(note)
                run_notes.append(note)
            for folder in [folder for folder in sweep.copies if folder not in copies]:
                note = (
                    f"{folder} has the layer and the seed of another run of {sweep.name}: it is not counted "
                    "as one more seed."
                )
                page.note(note)
                run_notes.append(note)
        file = file_stem(data, used)
        page.figure(f"{data}: score by layer", plots.score_by_layer, group, f"{file}-layers.svg")
        page.figure(
            f"{data}: score by parameters", plots.score_by_parameters, group, f"{file}-parameters.svg"
        )
    for folder, original in copies.items():
        note = f"{folder} is a copy of the run {original}: it is not counted."
        page.note(note)
        run_notes.append(note)
    with_cosines = [
        result
        for _, result in results
        if any(epoch.get("gradient_cosines") for epoch in result.get("epochs", []))
    ]
    if with_cosines:
        title = "several tasks: cosine of their gradients"
        page.figure(title, plots.gradient_cosines, with_cosines, "gradients.svg")
    pretraining_lines = pretraining_table(pretrained) if pretrained else []
    if pretrained:
        page.table("pre-training, on held-out text", pretraining_lines)
        title = "pre-training: loss on masked tokens"
        page.figure(title, plots.mlm_loss_by_tokens, pretrained, "pretraining-masked.svg")
    if rtd_results := [result for result in pretrained if result["settings"]["task"] == "rtd"]:
        title = "pre-training: replaced token detection"
        page.figure(title, plots.rtd_accuracy_by_tokens, rtd_results, "pretraining-replaced.svg")
    page.write("report", raw_results(sweeps))
    if sweeps:
        page.add_file("runs.csv", csv_table(tidy_scores(sweeps)))
    files = [path.relative_to(out).as_posix() for path in page.files]
    cka_pairs = read_cka_files(runs)
    html = web_page(page.title, tasks, pretrained, pretraining_lines, cka_pairs, run_notes, files)
    page.add_file("index.html", html)
    return page


def best_layers(sweeps: list[Sweep]) -> list[list[str]]:
    """Return a table with a line per sweep, at its layer that is best on dev, as in table 1 of the paper.

    sweeps: all on one task. The cells of a score are mean and std over the seeds, x 100. This and the
    following functions return a list of lines, each a list of cells; the first line is the heading.
    """
    metrics = [name for name in sweeps[0].metrics if all(name in sweep.metrics for sweep in sweeps)]
    metric_name = plots.metric_name
    lines = [
        ["run", "layer", "parameters", f"dev {metric_name(sweeps[0].metric)}"]
        + [f"test {metric_name(metric)}" for metric in metrics]
        + ["seeds"]
    ]
    remarks = different_settings(sweeps)
    if any(remarks):
        lines[0].append("settings that differ")
    for sweep, remark in zip(sweeps, remarks, strict=True):
        layer = sweep.best_layer
        runs = sweep.layers[layer]
        lines.append(
            [
                sweep.name,
                f"{layer} of {sweep.num_hidden_layers}",
                f"{runs[0]['parameters']['paper'] / 1e6:.2f} M",
                mean_and_std(sweep.scores(layer, "dev")),
                *(mean_and_std(sweep.scores(layer, "test", metric)) for metric in metrics),
                str(len(runs)),
                *([remark] if any(remarks) else []),
            ]
        )
    return lines


def score_by_layer(sweep: Sweep) -> list[list[str]]:
    """Return a table with a line per layer of a sweep: mean and std over the seeds, x 100, on dev and test.

    If the authors of TMFT have published a score, the table also has that score and the difference to it: our
    mean minus theirs.
    """
    published = sweep.published_scores
    num_seeds = max(len(runs) for runs in sweep.layers.values())
    metric = plots.metric_name(sweep.metric)
    published_columns = ["published", "difference"] if published else []
    lines = [["layer", "seeds", f"dev {metric}", f"test {metric}", *published_columns, "parameters"]]
    for layer, runs in sweep.layers.items():
        published_cells = [MISSING, MISSING]
        if layer < len(published):
            difference = 100 * sweep.mean(layer, "test") - published[layer]
            published_cells = [f"{published[layer]:.2f}", f"{difference:+.2f}"]
        lines.append(
            [
                str(layer),
                str(num_seeds) if len(runs) == num_seeds else f"{len(runs)} of {num_seeds}",
                *(mean_and_std(sweep.scores(layer, split)) for split in ("dev", "test")),
                *(published_cells if published else []),
                f"{runs[0]['parameters']['paper'] / 1e6:.2f} M",
            ]
        )
    return lines


def pretraining_table(results: list[dict[str, Any]]) -> list[list[str]]:
    """Return a table with a line per pre-training run: tokens, loss and accuracies on held-out text, speed.

    results: contents of result.json. The loss is shown before and after training, the accuracies, x 100,
    after.
    """
    heading = ["run", "parameters", "tokens seen", "masked: loss", "accuracy", "RTD accuracy", "RTD baseline"]
    lines = [[*heading, "tokens/s", "hours"]]
    for result in results:
        before, after = result["held_out"]["before"], result["held_out"]["after"]
        objective = objective_name(after)
        lines.append(
            [
                f"{result['sweep']}, seed {result['settings']['seed']}",
                f"{result['parameters']['stored'] / 1e6:.2f} M",
                f"{result['tokens_seen'] / 1e6:.1f} M",
                f"{before[f'{objective}_loss']:.3f} to {after[f'{objective}_loss']:.3f}",
                percent(after[f"{objective}_accuracy"]),
                percent(after["rtd_accuracy"]) if "rtd_accuracy" in after else MISSING,
                percent(after["rtd_baseline"]) if "rtd_baseline" in after else MISSING,
                f"{result['tokens_seen'] / result['seconds']:,.0f}",
                f"{result['seconds'] / 3600:.2f}",
            ]
        )
    return lines


def raw_results(sweeps: list[Sweep]) -> list[dict[str, Any]]:
    """Return the content of report.json: all scores of each sweep, not rounded and not x 100.

    sweeps: those of the report. The published score is None if there is none.
    """
    contents = []
    for sweep in sweeps:
        published = sweep.published_scores
        layers = []
        for layer, runs in sweep.layers.items():
            splits = {
                split: {metric: describe(sweep.scores(layer, split, metric)) for metric in sweep.metrics}
                for split in ("dev", "test")
            }
            layers.append(
                {
                    "layer": layer,
                    "seeds": [run["settings"]["seed"] for run in runs],
                    "parameters": runs[0]["parameters"],
                    **splits,
                    "published": published[layer] / 100 if layer < len(published) else None,
                }
            )
        fields = {key: value for key, value in vars(sweep).items() if key not in ("layers", "copies")}
        fields["copies"] = list(map(str, sweep.copies))
        contents.append(fields | {"best_layer": sweep.best_layer, "layers": layers})
    return contents


def describe(values: list[float]) -> dict[str, Any]:
    """Return {"mean", "std", "values"} of some scores; std is None for a single score or if one is NaN.

    The standard deviation is that of a sample (n - 1).
    """
    has_std = len(values) > 1 and not math.isnan(sum(values))
    return {
        "mean": statistics.mean(values),
        "std": statistics.stdev(values) if has_std else None,
        "values": values,
    }
