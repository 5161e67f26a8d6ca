"""The report of finished runs: tables and figures from result.json files, for readers, papers and programs.

It is written as a page for browsers (index.html), as Markdown and JSON, each table as LaTeX and CSV, each
figure as SVG and PDF, and all scores as one CSV.
"""

from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from tmft.errors import InputError, sanitize
from tmft.io.formatting import MAX_NAME_LENGTH, format_duration, mean_and_std
from tmft.reports import model_scores, plots
from tmft.reports.comparisons import LayerComparison, compare_layers_with_whole, compare_sweeps
from tmft.reports.model_scores import ModelScores
from tmft.reports.page import Page
from tmft.reports.paper_tables import MISSING, file_stem, write_csv
from tmft.reports.run_commands import repeat_command
from tmft.reports.run_tables import (
    best_layers_table,
    comparison_table,
    epochs_table,
    metric_name,
    pretraining_table,
    raw_results,
    score_by_layer_table,
    tidy_scores,
)
from tmft.runs.sweeps import Sweep, group_by_task, group_into_sweeps, read_results

ABOUT = [
    "A layer number l means that the first l layers of the checkpoint were kept and fine-tuned; 0 keeps only "
    "the embeddings.",
    "The epoch and the layer are chosen on dev; test is scored once, with the chosen epoch.",
    "Scores are × 100. After ± stands the sample standard deviation over the seeds (n − 1); a single seed "
    "has none.",
    "Examples per second are those of the training, the median over epochs and seeds. Other work on the "
    "machine slows a run, so small differences mean nothing.",
]
ABOUT_SAMPLE = (
    "sample is a task for first runs: English sentence pairs that were written for tmft, with similarity "
    "scores from 0 to 5. It is small and easy, so scores on it are no results; for those, use a benchmark "
    "such as stsb."
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
    page = Page(out, f"Runs in {runs.resolve().name}", f"{date.today().isoformat()}, {program}")
    page.add_text(lead_sentence(sweeps, pretrained, models), "lead")
    used: set[str] = set()
    for task, group in group_by_task(sweeps).items():
        add_task(page, task, group, file_stem(task, used))
    logged = [r for _, r in results if any(epoch.get("gradient_cosines") for epoch in r.get("epochs", []))]
    if logged:
        page.add_section("Several tasks")
        title = "several tasks: cosine of their gradients"
        page.add_figure(title, {"gradients": partial(plots.draw_gradient_cosines, logged)})
    if pretrained:
        add_pretraining(page, pretrained)
    if models:
        add_models(page, models)
    if sweeps:
        page.add_section("What was run")
        for sweep in sweeps:
            page.add_heading(sweep.name)
            page.add_bullets(describe_sweep(sweep))
            add_command(page, [run for runs in sweep.layers.values() for run in runs], sweep.name)
    page.add_section("How to read this page")
    page.add_bullets(ABOUT)
    page.write("report", raw_results(sweeps))
    if sweeps:
        page.add_file("runs.csv", write_csv(tidy_scores(sweeps)))
    page.write_html(
        "index.html", "<p>Made by <code>python -m tmft report</code>. The page loads nothing.</p>"
    )
    return page


def lead_sentence(sweeps: list[Sweep], pretrained: list[dict[str, Any]], models: list[ModelScores]) -> str:
    """Return the sentence below the title: how many runs and scored models there are."""
    runs = [run for sweep in sweeps for runs in sweep.layers.values() for run in runs]
    parts = []
    if runs:
        duration = format_duration(sum(run.get("seconds", 0) for run in runs))
        parts.append(
            f"{format_count(len(runs), 'fine-tuning run')} in {format_count(len(sweeps), 'sweep')} on "
            f"{', '.join(group_by_task(sweeps))}, {duration} of training"
        )
    if pretrained:
        parts.append(format_count(len(pretrained), "pre-training run"))
    if models:
        parts.append(format_count(len(models), "file") + " of scores by evaluate.py")
    return "; ".join(parts) + "."


def format_count(number: int, noun: str) -> str:
    """Return number and noun, such as "1 run" or "3 runs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def add_command(page: Page, runs: list[dict[str, Any]], label: str) -> None:
    """Add the command that repeats runs, if there is one."""
    if command := repeat_command(runs):
        page.add_command(command, label)


# ------------------------------------------------------------------------------------------------- one task


def add_task(page: Page, task: str, sweeps: list[Sweep], stem: str) -> None:
    """Add the section of a task to the page. stem: begins the names of its files."""
    page.add_section(task)
    if sweeps[0].data == "sample":
        page.add_text(ABOUT_SAMPLE)
    for sweep in sweeps:
        page.add_text(describe_main_result(sweep), "answer")
    lines = best_layers_table(sweeps)
    are_curves = max(len(sweep.layers) for sweep in sweeps) > 1
    title = (
        f"{task}: each run at the layer that is best on dev, and whole" if are_curves else f"{task}: each run"
    )
    page.add_table(title, lines)
    if lines[0][-1] == "settings that differ":
        page.add_note(
            f"{task}: the runs were not made with the same settings (last column), so a difference of their "
            "scores need not come from the models."
        )
    if are_curves:  # else each would be the point of the table
        by_layer = {
            f"{stem}-layers-dev": partial(plots.draw_score_by_layer, sweeps, split="dev"),
            f"{stem}-layers": partial(plots.draw_score_by_layer, sweeps),
        }
        page.add_figure(f"{task}: score by layer", by_layer)
    for sweep in sweeps:
        best = list(sweep.layers).index(sweep.best_layer)
        page.add_table(f"{sweep.name}: by layer", score_by_layer_table(sweep), best=best)
        for folder in sweep.copies:
            page.add_note(
                f"{folder} has the layer and the seed of another run of "
                f"{sanitize(sweep.name, MAX_NAME_LENGTH)}: it is not counted as one more seed."
            )
    if sum(len(sweep.layers) for sweep in sweeps) > 1:
        by_size = {f"{stem}-parameters": partial(plots.draw_score_by_size, sweeps)}
        page.add_figure(f"{task}: score by number of parameters", by_size)
    add_comparisons(page, task, sweeps, stem)
    used: set[str] = set()
    for sweep in sweeps:
        add_epochs(page, sweep, f"{stem}-{file_stem(sweep.name, used)}")


def describe_main_result(sweep: Sweep) -> str:
    """Return the main result of a sweep as a sentence."""
    name = sanitize(sweep.name, MAX_NAME_LENGTH)
    best, whole = sweep.best_layer, sweep.num_hidden_layers
    score = f"{metric_name(sweep.metric)} {mean_and_std(sweep.scores(best, 'test'))} on test"
    seeds = format_count(len(sweep.layers[best]), "seed")
    if len(sweep.layers) == 1:
        return f"{name}, with {best} of {whole} layers: {score} ({seeds})."
    sentence = f"{name}: dev chooses {best} of {whole} layers, with {score} ({seeds})"
    if whole in sweep.layers and best != whole:
        sentence += f"; the whole model has {mean_and_std(sweep.scores(whole, 'test'))}"
    return f"{sentence}."


def add_comparisons(page: Page, task: str, sweeps: list[Sweep], stem: str) -> None:
    """Add tables and figures of the differences between sweeps, and between layers and the whole model."""
    between = compare_sweeps(sweeps)
    with_whole = {sweep.name: compare_layers_with_whole(sweep) for sweep in sweeps}
    if between or any(with_whole.values()):
        page.add_heading(f"{task}: are the differences significant?")
        page.add_text(ABOUT_INTERVALS)
    if between:
        page.add_table(f"{task}: are the differences on test significant?", comparison_table(between))
        add_intervals(page, task, between, f"{stem}-differences")
    used: set[str] = set()
    for name, comparisons in with_whole.items():
        if comparisons:
            title = f"{name}: each layer against the whole model, on test"
            page.add_table(title, comparison_table(comparisons))
            add_intervals(page, name, comparisons, f"{stem}-{file_stem(name, used)}-differences")


def add_intervals(page: Page, title: str, comparisons: list[LayerComparison], stem: str) -> None:
    """Add the figure of several comparisons; of a single one, the table says it all."""
    if len(comparisons) > 1:
        page.add_figure(f"{title}: differences", {stem: partial(plots.draw_intervals, title, comparisons)})


def add_epochs(page: Page, sweep: Sweep, stem: str) -> None:
    """Add curves and a table of all epochs of a sweep, and a sentence if there is one epoch."""
    heading, *lines = epochs_table(sweep)
    if any(line[2] != "1" for line in lines):
        curves = {
            f"{stem}-{quantity}": partial(plots.draw_epoch_curves, sweep, quantity=quantity)
            for quantity, column in (("loss", 3), ("dev", 4))
            if any(line[column] not in (MISSING, "nan") for line in lines)
        }
        page.add_figure(f"{sweep.name}: training", curves)
    elif lines:
        epochs = "; ".join(f"layer {line[0]}: loss {line[3]}, dev {line[4]}" for line in lines[:8])
        page.add_text(f"{sweep.name} was trained for one epoch. {epochs}.")
    if lines:
        page.add_table(f"{sweep.name}: all epochs", [heading, *lines], is_folded=True)


def describe_sweep(sweep: Sweep) -> list[str]:
    """Return what a reader must know about a sweep: checkpoint, data, recipe, machine, as "name: text"."""
    run = next(iter(sweep.layers.values()))[0]
    settings, environment = run["settings"], run.get("environment", {})
    seeds = [len(runs) for runs in sweep.layers.values()]
    fraction, threads = settings.get("train_fraction", 1.0), environment.get("threads")
    commit, torch = environment.get("commit"), environment.get("versions", {}).get("torch")
    each = format_count(seeds[0], "seed") if len(set(seeds)) == 1 else f"{min(seeds)} to {max(seeds)} seeds"
    facts = {
        "checkpoint": [
            settings.get("ckpt") or sweep.checkpoint,
            "its architecture, with random weights" if settings.get("init") == "random" else "",
            f"{sweep.checkpoint} trained on {', then '.join(sweep.pretrained_on)}"
            if sweep.pretrained_on
            else "",
        ],
        "data": [
            sweep.data,
            f"{100 * fraction:g} % of the training examples" if fraction != 1 else "",
            f"{run['test']['pairs']} test examples" if "pairs" in run["test"] else "",
        ],
        "recipe": [
            settings["task"].get("objective", ""),
            format_count(settings["epochs"], "epoch") if "epochs" in settings else "",
            f"batches of {settings['batch_size']}" if "batch_size" in settings else "",
            f"learning rate {settings['lr']:g}" if "lr" in settings else "",
            f"pooling {run['pooling']}" if "pooling" in run else "",
        ],
        "layers and seeds": [
            f"layers {', '.join(map(str, sweep.layers))} of {sweep.num_hidden_layers}",
            each,
        ],
        "measured on": [
            environment.get("device"),
            format_count(threads, "thread") if threads else "",
            run.get("precision"),
        ],
        "made with": [f"commit {str(commit)[:10]}" if commit else "", f"torch {torch}" if torch else ""],
    }
    return [
        f"{name}: {'; '.join(map(str, known))}" for name, v in facts.items() if (known := [*filter(None, v)])
    ]


# ------------------------------------------------------------------------------ pre-training, other models


def add_pretraining(page: Page, results: list[dict[str, Any]]) -> None:
    """Add the table of pre-training runs, and curves of loss and accuracy on held-out text."""
    page.add_section("Pre-training")
    page.add_table("pre-training, on held-out text", pretraining_table(results))
    for result in results:
        add_command(page, [result], result["sweep"])
    panels = {"pretraining-masked": partial(plots.draw_mlm_loss, results)}
    if replaced := [result for result in results if result["settings"]["task"] == "rtd"]:
        panels["pretraining-replaced"] = partial(plots.draw_rtd_accuracy, replaced)
    page.add_figure("pre-training, by tokens seen", panels)
    lines = [["run", "million tokens", "quantity", "value"]]
    for result in results:
        for entry in result["curve"]:
            tokens = f"{entry['tokens'] / 1e6:.2f}"
            lines += [[result["sweep"], tokens, key, f"{v:.4f}"] for key, v in entry["held_out"].items()]
    page.add_table("pre-training, by tokens seen", lines, is_folded=True)


def add_models(page: Page, models: list[ModelScores]) -> None:
    """Add figures and tables of the models that evaluate.py has scored; a figure of one point is left out."""
    page.add_section("Models scored by evaluate.py")
    panels = {
        f"models-{group}": partial(model_scores.draw_mean_score_by_size, models, group=group)
        for group in model_scores.SIZE_GROUPS
        if sum(model.mean_score(group) is not None for model in models) > 1
    }
    if sum(len(model.isotropy) for model in models) > 1:
        panels["models-alignment"] = partial(model_scores.draw_alignment_and_uniformity, models)
    if any(model.speed for model in models):
        panels["models-speed"] = partial(model_scores.draw_speed, models)
        page.add_table("speed of models", model_scores.speed_table(models), is_folded=True)
    page.add_figure("models scored by evaluate.py", panels)
    page.add_table("models scored by evaluate.py", model_scores.scores_table(models))
