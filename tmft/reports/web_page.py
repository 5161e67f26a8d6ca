"""The report for browsers, index.html: one file with tables and figures of finished runs."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tmft.formatting import format_duration, mean_and_std, percent
from tmft.pretraining.heads import objective_name
from tmft.reports.charts import (
    Line,
    Panel,
    Point,
    Series,
    heat_map_svg,
    interval_svg,
    legend_html,
    panel_svg,
)
from tmft.reports.comparisons import LayerComparison
from tmft.reports.html import (
    facts_html,
    figure_html,
    html_page,
    plain,
    table_html,
    warning_html,
    whole_command_html,
)
from tmft.reports.paper_tables import file_stem
from tmft.reports.plots import metric_name, short_names
from tmft.reports.run_commands import repeat_command, sweep_command, train_command
from tmft.reports.tidy_scores import pairs_per_second
from tmft.runs.sweeps import Sweep, different_settings

MAX_CURVES = 60  # runs of a sweep whose epochs are drawn
BAND = "Bands and bars reach one sample standard deviation over the seeds to both sides."


@dataclass
class TaskResults:
    """The finished sweeps on one task, and what the report says about them.

    name: the name of the task. best_layers, by_layer: tables of score_tables.py, as lists of lines; by_layer
    has one for each sweep. baselines: {method without a model: test score, not x 100}. comparisons: those of
    every two sweeps. with_whole: for each sweep, the comparisons of its layers with the whole model.
    """

    name: str
    sweeps: list[Sweep]
    best_layers: list[list[str]]
    by_layer: list[list[list[str]]]
    baselines: dict[str, float] = field(default_factory=dict)
    comparisons: list[LayerComparison] = field(default_factory=list)
    with_whole: list[list[LayerComparison]] = field(default_factory=list)

    @property
    def metric(self) -> str:
        """The metric that selected the epochs, as it is shown."""
        return metric_name(self.sweeps[0].metric)

    @property
    def remarks(self) -> list[str]:
        """For each sweep, the settings in which the sweeps differ; "" everywhere if they do not."""
        return different_settings(self.sweeps)


def web_page(
    title: str,
    tasks: Sequence[TaskResults],
    pretrained: list[dict[str, Any]],
    pretraining_table: list[list[str]],
    cka_pairs: list[dict[str, Any]],
    notes: Sequence[str],
    files: Sequence[str],
) -> str:
    """Return the content of index.html.

    title: the heading. tasks: the results of fine-tuning by task. pretrained: results of pre-training runs;
    pretraining_table: their table. cka_pairs: see cka_files.py.
    notes: sentences about single runs. files: names of the other files of the report, in its folder.
    """
    used: set[str] = {"content", "tip", "pre-training", "cka", "runs", "about"}
    sections = []
    for task in tasks:
        sections.append((file_stem(f"task {task.name}", used), task.name, task_section(task)))
    if pretrained:
        sections.append(("pre-training", "Pre-training", pretraining_section(pretrained, pretraining_table)))
    if cka_pairs:
        sections.append(("cka", "How similar are the layers?", cka_section(cka_pairs)))
    if tasks:
        sections.append(("runs", "What was run", runs_section(tasks)))
    sections.append(("about", "How to read this page", about_section(tasks, files)))
    lead = plain(summary(tasks, pretrained))
    header = f'<h1>{plain(title)}</h1>\n<p class="lead">{lead}</p>{warning_html(notes)}'
    footer = "<p>Made by <code>python -m tmft report</code>. The page is one file and loads nothing.</p>"
    return html_page(title, header, sections, footer)


def summary(tasks: Sequence[TaskResults], pretrained: list[dict[str, Any]]) -> str:
    """Return the sentence below the title: how many runs of each kind there are.

    tasks: the results of fine-tuning by task. pretrained: results of pre-training runs.
    """
    sweeps = [sweep for task in tasks for sweep in task.sweeps]
    runs = [run for sweep in sweeps for runs in sweep.layers.values() for run in runs]
    parts = []
    if runs:
        names = ", ".join(task.name for task in tasks)
        parts.append(
            f"{count(len(runs), 'fine-tuning run')} in {count(len(sweeps), 'sweep')} on {names}, "
            f"{format_duration(sum(run.get('seconds', 0) for run in runs))} hours of training"
        )
    if pretrained:
        parts.append(count(len(pretrained), "pre-training run"))
    return "; ".join(parts) + "."


def count(number: int, noun: str) -> str:
    """Return number and noun, such as "1 run" or "3 runs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# -------------------------------------------------------------------------------------------- what was run


def runs_section(tasks: Sequence[TaskResults]) -> str:
    """Return a list of all sweeps: checkpoint, data, recipe, machine, and the command that repeats them.

    tasks: the results of fine-tuning by task.
    """
    parts = []
    for task in tasks:
        for sweep, name in named_sweeps(task):
            run = next(iter(sweep.layers.values()))[0]
            command = whole_command_html(sweep_command(sweep), name)
            parts.append(f"<h3>{plain(name)}</h3>\n{facts_html(sweep_facts(sweep, run))}\n{command}")
    return "\n".join(parts)


def sweep_facts(sweep: Sweep, run: dict[str, Any]) -> dict[str, str]:
    """Return what a reader must know about a sweep, as {name: text}. run: one of its runs."""
    settings, environment = run["settings"], run.get("environment", {})
    seeds = [len(runs) for runs in sweep.layers.values()]
    layers = ", ".join(map(str, sweep.layers))
    checkpoint = [settings.get("ckpt") or sweep.checkpoint]
    if settings.get("init") == "random":
        checkpoint.append("its architecture, with random weights")
    if sweep.pretrained_on:
        checkpoint.append(f"{sweep.checkpoint} trained on {', then '.join(sweep.pretrained_on)}")
    fraction = settings.get("train_fraction", 1.0)
    recipe = [
        settings["task"].get("objective", ""),
        f"{settings['epochs']} epochs" if "epochs" in settings else "",
        f"batches of {settings['batch_size']}" if "batch_size" in settings else "",
        f"learning rate {settings['lr']:g}" if "lr" in settings else "",
        f"pooling {run['pooling']}" if "pooling" in run else "",
    ]
    versions = environment.get("versions", {})
    commit = environment.get("commit")
    return {
        "checkpoint": "; ".join(checkpoint),
        "data": sweep.data
        + (f", {100 * fraction:g} % of the training examples" if fraction != 1 else "")
        + (f", {run['test']['pairs']} test examples" if "pairs" in run["test"] else ""),
        "recipe": ", ".join(filter(None, recipe)),
        "layers and seeds": f"layers {layers} of {sweep.num_hidden_layers}; "
        + (count(seeds[0], "seed") if len(set(seeds)) == 1 else f"{min(seeds)} to {max(seeds)} seeds"),
        "measured on": machine_name(run),
        "made with": ", ".join(
            filter(
                None,
                [
                    f"commit {str(commit)[:10]}" if commit else "",
                    f"torch {versions['torch']}" if "torch" in versions else "",
                ],
            )
        ),
    }


# ------------------------------------------------------------------------------------------------- one task


def task_section(task: TaskResults) -> str:
    """Return all tables and figures of a task."""
    warnings = []
    if any(task.remarks):
        warnings.append(
            "These runs were not made with the same settings (last column of the first table), so a "
            "difference of their scores need not come from the models."
        )
    commands = [repeat_command(sweep.layers[sweep.best_layer]) for sweep in task.sweeps]
    parts = [
        answer_html(task),
        warning_html(warnings),
        table_html(f"{task.name}: each run at the layer that is best on dev", task.best_layers, commands),
    ]
    if any(defined(sweep.mean(layer, "test")) for sweep in task.sweeps for layer in sweep.layers):
        parts.append(layer_figure(task))
        parts.append(size_and_speed_figure(task))
    parts.append(comparison_section(task))
    parts += [epoch_figure(task, sweep, name) for sweep, name in named_sweeps(task)]
    return "\n".join(filter(None, parts))


def named_sweeps(task: TaskResults) -> list[tuple[Sweep, str]]:
    """Return the sweeps of a task, each with its name."""
    return [(sweep, sweep.name) for sweep in task.sweeps]


def answer_html(task: TaskResults) -> str:
    """Return the main result of a task in words: a sentence per sweep."""
    sentences = []
    for sweep, name in named_sweeps(task):
        best, whole = sweep.best_layer, sweep.num_hidden_layers
        score = f"{task.metric} {mean_and_std(sweep.scores(best, 'test'))} on test"
        seeds = count(len(sweep.layers[best]), "seed")
        if len(sweep.layers) == 1:
            sentences.append(f"{name}, with {best} of {whole} layers: {score} ({seeds}).")
            continue
        sentence = f"{name}: dev chooses {best} of {whole} layers, with {score} ({seeds})"
        if whole in sweep.layers and best != whole:
            sentence += f"; the whole model has {mean_and_std(sweep.scores(whole, 'test'))}"
        sentences.append(f"{sentence}.")
    return f'<div class="answer">{"".join(f"<p>{plain(text, 600)}</p>" for text in sentences)}</div>'


def layer_figure(task: TaskResults) -> str:
    """Return the figure of the score by layer, on dev and on test, with a table for each sweep."""
    panels = []
    for split, title in (("dev", "dev, which chooses the layer"), ("test", "test")):
        series, lines = [], []
        for number, (sweep, name) in enumerate(named_sweeps(task)):
            points = score_points(sweep, split, name)
            series.append(Series(name, points, number))
            whole = sweep.num_hidden_layers
            if split == "test" and whole in sweep.layers and defined(sweep.mean(whole, "test")):
                label = f"the whole model of {name}, all {whole} layers"
                lines.append(Line(label, 100 * sweep.mean(whole, "test"), number))
            if split == "test" and sweep.published_scores:
                published = [
                    Point(layer, score, f"published for {name}\nlayer {layer}: {score:.2f}")
                    for layer, score in enumerate(sweep.published_scores)
                ]
                style = "quiet published"
                series.append(
                    Series(f"{name}, as published by the authors", published, number + 4, style=style)
                )
        if split == "test":
            lines += [
                Line(f"{label}, without any model: {percent(score)}", 100 * score, is_second=number > 0)
                for number, (label, score) in enumerate(task.baselines.items())
                if defined(score)
            ]
        if any(one.points for one in series):
            panels.append(Panel(title, "layers kept", f"{task.metric} × 100", series, lines))
    tables = []
    for (sweep, name), table in zip(named_sweeps(task), task.by_layer, strict=True):
        best = list(sweep.layers).index(sweep.best_layer)
        rows = [list(cells) for cells in table]
        rows[best + 1][0] += " ★ best on dev"
        commands = [repeat_command(runs) for runs in sweep.layers.values()]
        tables.append(table_html(f"{name}: by layer", rows, commands, [best], words=()))
    explanation = (
        f"Mean over the seeds. {BAND} Lines join neighboring layers only: where a layer in between was not "
        "run, there are points alone."
    )
    return figure_html(
        f"Score by layer on {task.name}",
        explanation,
        legend_html(panels),
        list(map(panel_svg, panels)),
        "".join(tables),
    )


def score_points(sweep: Sweep, split: str, name: str) -> list[Point]:
    """Return a point for each layer with a score: mean over the seeds x 100, and sample std.

    split: "dev" or "test". name: of the sweep in the figure.
    """
    points = []
    for layer in sweep.layers:
        values = [100 * score for score in sweep.scores(layer, split) if defined(score)]
        if not values:
            continue
        std = statistics.stdev(values) if len(values) > 1 else 0.0
        text = f"{name}\nlayer {layer}, {split}: {mean_text(values)}\n{count(len(values), 'seed')}"
        is_best = layer == sweep.best_layer and len(sweep.layers) > 1
        if is_best:
            text += ", best on dev"
        points.append(Point(layer, statistics.mean(values), text, std, is_best))
    return points


def mean_text(values: list[float]) -> str:
    """Return the mean and sample standard deviation of values that are x 100 already, as a text."""
    return mean_and_std([value / 100 for value in values])


def size_and_speed_figure(task: TaskResults) -> str:
    """Return the figure of the test score against the number of stored parameters and the measured speed."""
    by_size, by_speed, machines = [], [], set()
    rows = [["run", "layer", "million parameters", "examples per second", f"test {task.metric}"]]
    for number, (sweep, name) in enumerate(named_sweeps(task)):
        sizes: list[Point] = []
        speeds: list[Point] = []
        for point in score_points(sweep, "test", name):
            runs = sweep.layers[int(point.x)]
            machines |= {machine_name(run) for run in runs}
            millions = runs[0]["parameters"].get("stored", 0) / 1e6
            measured = [value for run in runs if (value := pairs_per_second(run))]
            speed = statistics.median(measured) if measured else 0.0
            text = f"{point.text}\n{millions:.2f} million parameters"
            text += f"\n{speed:,.0f} training examples per second" if speed else ""
            for x, points in ((millions, sizes), (speed, speeds)):
                if x > 0:
                    points.append(Point(x, point.y, text, point.std, point.is_best))
            shown = f"{speed:,.0f}" if speed else ""
            rows.append([name, f"{point.x:g}", f"{millions:.2f}", shown, f"{point.y:.2f}"])
        by_size.append(Series(name, sizes, number, joined=""))
        by_speed.append(Series(name, speeds, number, joined=""))
    ylabel = f"test {task.metric} × 100"
    explanation = "A point for each layer; the axes of size and speed are logarithmic."
    panels = [("size", "millions of parameters", by_size)]
    if len(machines) == 1:
        panels.append(("speed", "training examples per second", by_speed))
        explanation += (
            f" Speed is the median over epochs and seeds, as each run has measured it while it was trained "
            f"({machines.pop()}); other work on the machine slows a run, so small differences mean nothing."
        )
    else:
        explanation += " Speed is not drawn, as the runs were measured on different devices."
    drawn = [
        Panel(title, f"{xlabel} (log)", ylabel, series, log_x=True, whole_x=False)
        for title, xlabel, series in panels
        if any(one.points for one in series)
    ]
    if not drawn:
        return ""
    table = table_html(f"{task.name}: score, size and speed", rows)
    title = f"Score against size and speed on {task.name}"
    return figure_html(title, explanation, legend_html(drawn), list(map(panel_svg, drawn)), table)


def machine_name(run: dict[str, Any]) -> str:
    """Return what a run was computed on: device, number of threads and precision."""
    environment = run.get("environment", {})
    threads = environment.get("threads")
    parts = [environment.get("device"), count(threads, "thread") if threads else "", run.get("precision")]
    return ", ".join(str(part) for part in parts if part)


# ----------------------------------------------------------------------------------------------- differences


def comparison_section(task: TaskResults) -> str:
    """Return tables of the differences and their intervals, with a sentence and a picture in each line."""
    parts = []
    if task.comparisons:
        parts.append(comparison_html(f"{task.name}: the runs, each at its layer", task.comparisons))
    for (_, name), comparisons in zip(named_sweeps(task), task.with_whole, strict=True):
        if comparisons:
            parts.append(comparison_html(f"{name}: each layer against the whole model", comparisons))
    if not parts:
        return ""
    number = len(task.comparisons) + sum(map(len, task.with_whole))
    explanation = (
        "A paired bootstrap draws the test examples and the seeds again and again; 95 % of the differences "
        "lie in the interval. The layer of a run was chosen on dev, and test had no part in it."
    )
    if number > 5:
        by_chance = max(1, round(number / 20))
        explanation += f" By chance alone, about {by_chance} of {number} comparisons would look significant."
    return f"<h3>Are the differences significant?</h3>\n<p>{explanation}</p>\n" + "\n".join(parts)


def comparison_html(caption: str, comparisons: list[LayerComparison]) -> str:
    """Return a table of comparisons. caption: its heading, as plain text."""
    limit = 100 * max(abs(value) for one in comparisons for value in (one.low, one.high, 1e-4))
    lines = [["in words", "difference", "from", "to"]]
    pictures = []
    for one in comparisons:
        difference, low, high = (100 * value for value in (one.difference, one.low, one.high))
        note = f" ({one.note})" if one.note else ""
        lines.append([f"{one.sentence}{note}", f"{difference:+.2f}", f"{low:+.2f}", f"{high:+.2f}"])
        pictures.append(interval_svg(difference, low, high, limit))
    return table_html(caption, lines, pictures=pictures)


# ------------------------------------------------------------------------------------------------- epochs


def epoch_figure(task: TaskResults, sweep: Sweep, name: str) -> str:
    """Return the figure of loss and dev score by epoch of each run of a sweep, with a table of all epochs.

    name: of the sweep in the figure.
    """
    best, whole = sweep.best_layer, sweep.num_hidden_layers
    runs = [(layer, run) for layer, runs in sweep.layers.items() for run in runs][:MAX_CURVES]
    rows = [["layer", "seed", "epoch", "loss", f"dev {task.metric}", "examples per second", "chosen"]]
    groups: dict[str, dict[str, list[Any]]] = {"loss": {}, "dev": {}}
    for layer, run in runs:
        seed = run["settings"].get("seed", 0)
        if layer == best:
            group = (
                f"layer {layer}, {'best on dev' if len(sweep.layers) > 1 else 'the only one that was run'}"
            )
        else:
            group = f"layer {layer}, the whole model" if layer == whole else "other layers"
        for key in groups:
            curve = []
            for number, epoch in enumerate(run.get("epochs", []), start=1):
                value = epoch.get("loss") if key == "loss" else find_dev(epoch, sweep.metric)
                if isinstance(value, (int, float)) and defined(value):
                    shown = value if key == "loss" else 100 * value
                    unit = "loss" if key == "loss" else f"dev {task.metric}"
                    text = f"layer {layer}, seed {seed}\nepoch {number}: {unit} {shown:.4g}"
                    curve.append(Point(number, shown, text))
            if curve:
                groups[key].setdefault(group, []).append(curve)
        for number, epoch in enumerate(run.get("epochs", []), start=1):
            loss, dev, speed = (
                epoch.get("loss"),
                find_dev(epoch, sweep.metric),
                epoch.get("pairs_per_second"),
            )
            rows.append(
                [
                    str(layer),
                    str(seed),
                    str(number),
                    f"{loss:.4f}" if isinstance(loss, (int, float)) else "",
                    percent(dev) if isinstance(dev, (int, float)) else "",
                    f"{speed:,.0f}" if isinstance(speed, (int, float)) else "",
                    "chosen" if number == run.get("chosen_epoch") else "",
                ]
            )
    styles = {"other": (4, "quiet"), "best": (0, "strong"), "whole": (1, "strong")}
    panels = []
    for key, title, ylabel in (
        ("loss", "loss in training", "mean loss of an epoch"),
        ("dev", "score on dev", f"{task.metric} × 100"),
    ):
        series = []
        for group in sorted(groups[key], key=lambda text: text != "other layers"):  # the gray ones below
            kind = "other" if group == "other layers" else "whole" if "whole" in group else "best"
            number, style = styles[kind]
            for curve in groups[key][group]:
                series.append(Series(group, curve, number, "all", style, has_markers=False))
        if series:
            panels.append(Panel(title, "epoch", ylabel, series))
    if not panels:
        return ""
    table = table_html(f"{name}: all epochs", rows, words=())
    explanation = "A line for each run, that is, for each layer and seed. Hover to see which."
    if sum(len(runs) for runs in sweep.layers.values()) > MAX_CURVES:
        explanation += f" Only the first {MAX_CURVES} runs are drawn."
    return figure_html(
        f"Training of {name}", explanation, legend_html(panels), list(map(panel_svg, panels)), table
    )


def find_dev(epoch: dict[str, Any], metric: str) -> float | None:
    """Return the score on dev of an epoch; None if it has none. metric: its name."""
    dev = epoch.get("dev")
    return dev.get(metric) if isinstance(dev, dict) else None


def defined(value: float | None) -> bool:
    """Return whether value, a score, is a finite number."""
    return value is not None and math.isfinite(value)


# ------------------------------------------------------------------------------------- pre-training and CKA


def pretraining_section(results: list[dict[str, Any]], lines: list[list[str]]) -> str:
    """Return the table of pre-training runs, and curves of loss and accuracy on held-out text.

    results: the content of each result.json. lines: the table, the heading first.
    """
    loss, accuracy = [], []
    for number, result in enumerate(results):
        name = f"{result['sweep']}, seed {result['settings'].get('seed', 0)}"
        key = f"{objective_name(result['held_out']['after'])}_loss"
        loss.append(Series(name, log_points(result, key, name, 1), number, "all"))
        if "rtd_accuracy" in result["held_out"]["after"]:
            accuracy.append(Series(name, log_points(result, "rtd_accuracy", name, 100), number, "all"))
            baseline = log_points(result, "rtd_baseline", "always original", 100)
            accuracy.append(Series(f"{name}: always “original”", baseline, number + 4, "all", "quiet"))
    panels = [
        Panel("loss on masked tokens", "millions of tokens seen", "nats per token", loss, whole_x=False)
    ]
    if accuracy:
        title = "replaced token detection"
        panels.append(Panel(title, "millions of tokens seen", "accuracy, %", accuracy, whole_x=False))
    panels = [panel for panel in panels if any(series.points for series in panel.series)]
    commands = [
        train_command(result, "", ["--seed", str(result["settings"].get("seed", 0))]) for result in results
    ]
    table = table_html("Pre-training, on held-out text", lines, commands)
    if not panels:
        return table
    points = [["run", "figure", "million tokens", "value"]]
    for panel in panels:
        for series in panel.series:
            points += [[series.name, panel.title, f"{p.x:.2f}", f"{p.y:.4f}"] for p in series.points]
    figure = figure_html(
        "Pre-training by tokens seen",
        "On held-out text, which was not trained on. For replaced token detection, the loss is that of the "
        "generator.",
        legend_html(panels),
        list(map(panel_svg, panels)),
        table_html("Pre-training by tokens seen", points),
    )
    return f"{table}\n{figure}"


def log_points(result: dict[str, Any], key: str, name: str, factor: float) -> list[Point]:
    """Return a point for each entry of a training log that has a value on held-out text.

    result: the content of result.json. key: of the value. name: of the run in the figure. factor: multiplies
    it.
    """
    return [
        Point(
            entry["tokens"] / 1e6,
            factor * value,
            f"{name}\n{entry['tokens'] / 1e6:.2f} M tokens: {factor * value:.4g}",
        )
        for entry in result["curve"]
        if defined(value := entry["held_out"].get(key))
    ]


def cka_section(pairs: list[dict[str, Any]]) -> str:
    """Return a curve of CKA by layer with a line for each pair, and a map for each pair that has a matrix.

    pairs: see cka_files.py.
    """
    names = short_names([pair[side] for pair in pairs for side in ("a", "b")])
    series, rows = [], [["A", "B", "layer of A", "CKA"]]
    for number, pair in enumerate(pairs):
        a, b = names[pair["a"]], names[pair["b"]]
        points = [
            Point(i, value, f"{a} and {b}\nlayer {i}: {value:.4f}")
            for i, value in enumerate(pair["by_layer"])
        ]
        series.append(Series(f"{a} and {b}", points, number))
        rows += [[a, b, str(i), f"{value:.4f}"] for i, value in enumerate(pair["by_layer"])]
    debiased = any(pair.get("debiased") for pair in pairs)
    panel = Panel("the same depth", "layer of A", "debiased linear CKA" if debiased else "linear CKA", series)
    source = (
        f" of {pairs[0]['sentences']} sentences ({pairs[0]['source']})" if pairs[0].get("sentences") else ""
    )
    parts = [
        figure_html(
            "Linear CKA by layer",
            f"Of the embeddings{source}: 1 if two layers agree up to rotation, shift and scale, 0 if they "
            "have nothing in common.",
            legend_html([panel]),
            [panel_svg(panel)],
            table_html("CKA by layer", rows, words=(0, 1)),
        )
    ]
    for pair in pairs:
        if matrix := pair.get("matrix"):
            a, b = names[pair["a"]], names[pair["b"]]
            low, high = (pick(value for row in matrix for value in row) for pick in (min, max))
            text = f"CKA of every layer of {a} with every layer of {b}, from {low:.2f} to {high:.2f}"
            heading = [f"{a} \\ {b}", *map(str, range(len(matrix[0])))]
            table = [heading, *([str(i), *(f"{value:.4f}" for value in row)] for i, row in enumerate(matrix))]
            svg = heat_map_svg(matrix, f"layer of {b}", f"layer of {a}", text)
            explanation = (
                f"The colors range from the lowest value, {low:.2f}, to the highest, {high:.2f}. Layer 0 is "
                "at the top, as in the table."
            )
            parts.append(
                figure_html(
                    f"Every layer of {a} with every layer of {b}",
                    explanation,
                    "",
                    [svg],
                    table_html(text, table, words=()),
                )
            )
    return "\n".join(parts)


# ---------------------------------------------------------------------------------------------------- about


def about_section(tasks: Sequence[TaskResults], files: Sequence[str]) -> str:
    """Return what the numbers mean, and links to the other files of the report.

    tasks: the results of fine-tuning by task. files: names of the other files.
    """
    items = [
        "A layer number l means that the first l layers of the checkpoint were kept and fine-tuned; 0 keeps "
        "only the embeddings.",
        "The epoch and the layer are chosen on dev; test is scored once, with the chosen epoch.",
        "Scores are × 100. After ± stands the sample standard deviation over the seeds (n − 1); a single "
        "seed has none.",
    ]
    if any(task.baselines for task in tasks):
        items.append(
            "“Words in common” is the number of different words that both sentences have, divided by the "
            "geometric mean of their numbers in each; “random word vectors” is the cosine of mean vectors of "
            "300 random numbers per word. Neither has learnt anything: a model that is not above them has "
            "found nothing but common words."
        )
    listed = "".join(f"<li>{plain(item, 900)}</li>" for item in items)
    links = "".join(f'<li><a href="{plain(name)}">{plain(name)}</a></li>' for name in files)
    return (
        f"<ul>{listed}</ul>\n<h3>The same as files</h3>\n<ul>{links}</ul>" if files else f"<ul>{listed}</ul>"
    )
