"""The report of finished runs: tables and figures from result.json files, for readers, papers and programs.

It is written as Markdown and JSON, each table as LaTeX and CSV, each figure as SVG and PDF, and all scores as
one CSV.
"""

from datetime import date
from functools import partial
from pathlib import Path

from tmft.errors import InputError, sanitize
from tmft.io.formatting import MAX_NAME_LENGTH
from tmft.reports import model_scores, plots
from tmft.reports.comparisons import compare_layers_with_whole, compare_sweeps
from tmft.reports.model_scores import ModelScores
from tmft.reports.page import Page, write_csv
from tmft.reports.run_tables import (
    best_layers_table,
    comparison_table,
    pretraining_table,
    score_by_layer_table,
    tidy_scores,
)
from tmft.runs.sweeps import Sweep, group_by_task, group_into_sweeps, read_results

ABOUT = (
    "Layer l means that the first l layers of the checkpoint were kept and fine-tuned; 0 keeps only the "
    "embeddings. The epoch and the layer are chosen on dev; test is scored once, with the chosen epoch. "
    "Scores are × 100; after ± stands the sample standard deviation over the seeds (n − 1). Examples per "
    "second are those of the training, the median over epochs and seeds. To repeat a run, name its folder: "
    "python train.py --config FOLDER."
)
ABOUT_SETTINGS = (
    "the runs were not made with the same settings (last column), so a difference of their scores need not "
    "come from the models."
)
ABOUT_INTERVALS = (
    "A paired bootstrap draws the test examples and the seeds again and again; 95 % of the differences lie "
    "in the interval. A difference whose interval contains 0 may be chance. The layer of a run was chosen on "
    "dev, and test had no part in it. By chance alone, about 1 of 20 comparisons looks significant."
)


def make_report(runs: Path, out: Path, program: str = "tmft") -> Page:
    """Make the report of all finished runs below the folder `runs`, write it to `out`, and return its page.

    program: name and version of this program, which stand below the title with the date. Raises InputError
    if there is no finished run, or if nothing can be written.
    """
    results = read_results(runs)
    sweeps = group_into_sweeps(results)
    pretrained = [result for _, result in results if "curve" in result]
    models = model_scores.read_model_scores(runs)
    if not sweeps and not pretrained and not models:
        raise InputError(f"no finished run below {runs}: name a folder with run folders (result.json)")
    page = Page(out, f"Runs in {runs.resolve().name}")
    page.add_text(f"{date.today().isoformat()}, {program}")
    page.add_text(ABOUT)
    for task, group in group_by_task(sweeps).items():
        add_task(page, task, group)
    if pretrained:
        page.add_heading("Pre-training")
        page.add_table("pre-training, on held-out text", pretraining_table(pretrained))
    if models:
        add_models(page, models)
    scores = tidy_scores(sweeps)
    page.write("report", scores)
    if scores:
        page.add_file("runs.csv", write_csv([[*scores[0]], *(one.values() for one in scores)]))
    return page


def add_task(page: Page, task: str, sweeps: list[Sweep]) -> None:
    """Add the section of a task to the page."""
    page.add_heading(task)
    lines = best_layers_table(sweeps)
    are_curves = max(len(sweep.layers) for sweep in sweeps) > 1
    each = "each run at the layer that is best on dev, and whole" if are_curves else "each run"
    page.add_table(f"{task}: {each}", lines)
    if lines[0][-1] == "settings that differ":
        page.add_warning(f"{task}: {ABOUT_SETTINGS}")
    if are_curves:  # else each would be the point of the table
        for split in ("dev", "test"):
            draw = partial(plots.draw_score_by_layer, sweeps, split=split)
            page.add_figure(f"{task}: score by layer, {split}", draw)
    for sweep in sweeps:
        page.add_table(f"{sweep.name}: by layer", score_by_layer_table(sweep))
        for folder in sweep.copies:
            page.add_warning(
                f"{folder} has the layer and the seed of another run of "
                f"{sanitize(sweep.name, MAX_NAME_LENGTH)}: it is not counted as one more seed."
            )
    if sum(len(sweep.layers) for sweep in sweeps) > 1:
        page.add_figure(f"{task}: score by parameters", partial(plots.draw_score_by_size, sweeps))
    comparisons = {f"{task}: are the differences on test significant?": compare_sweeps(sweeps)}
    for sweep in sweeps:
        title = f"{sweep.name}: each layer against the whole model, on test"
        comparisons[title] = compare_layers_with_whole(sweep)
    for title, compared in comparisons.items():
        if compared:
            page.add_table(title, comparison_table(compared))
    if any(comparisons.values()):
        page.add_text(ABOUT_INTERVALS)
    for sweep in sweeps:
        epochs = [run.get("epochs", []) for runs in sweep.layers.values() for run in runs]
        for quantity in ("loss", "dev") if max(map(len, epochs)) > 1 else ():
            draw = partial(plots.draw_epoch_curves, sweep, quantity=quantity)
            page.add_figure(f"{sweep.name}: {quantity} by epoch", draw)


def add_models(page: Page, models: list[ModelScores]) -> None:
    """Add a table and figures of the models that evaluate.py has scored, but no figure of a single point."""
    page.add_heading("Models scored by evaluate.py")
    page.add_table("models scored by evaluate.py", model_scores.scores_table(models))
    for group in model_scores.SIZE_GROUPS:
        if sum(group in model.means for model in models) > 1:
            draw = partial(model_scores.draw_mean_score_by_size, models, group=group)
            page.add_figure(f"models: mean score of {group} by size", draw)
    if sum(len(model.isotropy) for model in models) > 1:
        draw = partial(model_scores.draw_alignment_and_uniformity, models)
        page.add_figure("models: alignment and uniformity", draw)
    if any(model.speed for model in models):
        page.add_figure("models: speed", partial(model_scores.draw_speed, models))
