"""Tables and figures of finished runs: python evaluate.py --report runs/

What the authors did not run is shown as –; an undefined score as nan.
"""

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from tmft.checkpoints.model_card import SHOWN, plain
from tmft.errors import InputError, sanitize
from tmft.formatting import as_json, markdown, mean_and_std, percent
from tmft.io.atomic import write_file
from tmft.pretraining.heads import guessed
from tmft.reports import plots
from tmft.runs.bootstrap import differences, in_words
from tmft.runs.run_folder import make_folder
from tmft.runs.sweeps import Sweep, by_task, read_results, sweeps_of

MISSING = "–"


class Page:
    """A page of tables and figures: Markdown and JSON in a folder, with the figures as files beside them.

    tables: title -> lines of cells; files: what was written; absent: figures that were not, and why.
    Raises InputError if nothing can be written into the folder.
    """

    def __init__(self, folder: Path, title: str):
        make_folder(folder)
        self.folder = folder
        self.parts = [f"# {plain(title)}\n"]  # Markdown, each part with a blank line behind it
        self.tables: dict[str, list[list[str]]] = {}
        self.files: list[Path] = []
        self.absent: list[str] = []

    def text(self, paragraph: str) -> None:
        """Markdown, as it is."""
        self.parts.append(f"{paragraph}\n")

    def table(self, title: str, lines: list[list[str]]) -> None:
        self.tables[sanitize(title, SHOWN)] = lines
        self.parts.append(f"## {plain(title)}\n\n{markdown(lines)}")

    def figure(self, title: str, draw: Callable, what: object, name: str, *labels: str) -> None:
        """A drawing of plots.py, written to the file `name`; labels: of the axes, where `draw` takes them."""
        try:
            draw(what, self.folder / name, *labels)
        except InputError as error:  # no matplotlib, or nothing to draw
            self.absent.append(sanitize(f"no figure of {title}: {error}"))
        else:
            self.files.append(self.folder / name)
            self.parts.append(f"![{plain(title)}]({quote(name)})\n")

    def write(self, name: str, data: object) -> None:
        """The page as name.md, and what its tables show as name.json."""
        for file, content in {f"{name}.md": "\n".join(self.parts), f"{name}.json": as_json(data)}.items():
            write_file(self.folder / file, content)
            self.files.append(self.folder / file)


def make_report(runs: Path, out: Path) -> Page:
    """Of all finished runs below a folder; the tables and figures are written to `out`, too.

    Raises InputError if there is none, or if nothing can be written.
    """
    finished = read_results(runs)
    sweeps, pretrained = sweeps_of(finished), [result for _, result in finished if "curve" in result]
    if not sweeps and not pretrained:
        raise InputError(f"no finished run below {runs}: expected folders with a result.json")
    page = Page(out, f"Runs in {runs.resolve().name}")
    for data, group in by_task(sweeps).items():
        page.table(f"{data}: each run at the layer that is best on dev", best_layers(group))
        if found := differences(group):
            page.table(f"{data}: do they differ on test?", differing(found))
        for sweep in group:
            page.table(f"{sweep.name}: by layer", layer_by_layer(sweep))
        page.figure(f"{data}: score by layers", plots.score_by_layer, group, f"{data}-layers.svg")
        page.figure(
            f"{data}: score by parameters", plots.score_by_parameters, group, f"{data}-parameters.svg"
        )
    compared = [run for _, run in finished if any(epoch.get("cosines") for epoch in run.get("epochs", []))]
    if compared:
        title = "several tasks: do their gradients agree?"
        page.figure(title, plots.gradient_cosines, compared, "gradients.svg")
    if pretrained:
        page.table("pre-training, on held-out lines", pretraining_table(pretrained))
        title = "pre-training: masked tokens"
        page.figure(title, plots.masked_loss_by_tokens, pretrained, "pretraining-masked.svg")
    if electras := [result for result in pretrained if result["settings"]["task"] == "rtd"]:
        title = "pre-training: replaced tokens"
        page.figure(title, plots.replaced_by_tokens, electras, "pretraining-replaced.svg")
    page.write("report", unrounded(sweeps))
    return page


def best_layers(sweeps: list[Sweep]) -> list[list[str]]:
    """Table 1 of the paper for sweeps on one task: each at the layer that is best on dev."""
    metrics, name = sweeps[0].metrics, plots.metric_name
    lines = [
        ["run", "layer", "parameters", f"dev {name(sweeps[0].metric)}"]
        + [f"test {name(metric)}" for metric in metrics]
        + ["seeds"]
    ]
    for sweep in sweeps:
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
            ]
        )
    return lines


def differing(found: list[tuple[Sweep, Sweep, float, float, float]]) -> list[list[str]]:
    """A line per pair: the difference in points, and where 95 of 100 resamples of examples and seeds lie."""
    lines = [["run", "against", "difference", "from", "to", "in words"]]
    for best, other, mean, low, high in found:
        points = [f"{100 * value:+.2f}" for value in (mean, low, high)]
        lines.append([best.name, other.name, *points, in_words(best, other, low, high)])
    return lines


def layer_by_layer(sweep: Sweep) -> list[list[str]]:
    """A line per layer that was run, beside what the authors' repository says, where it says anything."""
    theirs = sweep.authors
    seeds = max(len(runs) for runs in sweep.layers.values())
    metric = plots.metric_name(sweep.metric)
    beside = ["authors", "difference"] if theirs else []
    lines = [["layer", "seeds", f"dev {metric}", f"test {metric}", *beside, "parameters"]]
    for layer, runs in sweep.layers.items():
        cells = [MISSING, MISSING]
        if layer < len(theirs):
            difference = 100 * sweep.mean(layer, "test") - theirs[layer]
            cells = [f"{theirs[layer]:.2f}", f"{difference:+.2f}"]
        lines.append(
            [
                str(layer),
                str(seeds) if len(runs) == seeds else f"{len(runs)} of {seeds}",
                *(mean_and_std(sweep.scores(layer, split)) for split in ("dev", "test")),
                *(cells if theirs else []),
                f"{runs[0]['parameters']['paper'] / 1e6:.2f} M",
            ]
        )
    return lines


def pretraining_table(results: list[dict]) -> list[list[str]]:
    """A line per pre-training run: what it saw, how fast, and its figures on the held-out lines."""
    heading = ["run", "parameters", "tokens seen", "masked: loss", "right", "all: right", "always original"]
    lines = [[*heading, "tokens/s", "hours"]]
    for result in results:
        before, after = result["held_out"]["before"], result["held_out"]["after"]
        of = guessed(after)
        lines.append(
            [
                f"{result['sweep']}, seed {result['settings']['seed']}",
                f"{result['parameters']['stored'] / 1e6:.2f} M",
                f"{result['tokens_seen'] / 1e6:.1f} M",
                f"{before[f'{of}_loss']:.3f} to {after[f'{of}_loss']:.3f}",
                percent(after[f"{of}_accuracy"]),
                percent(after["rtd_accuracy"]) if "rtd_accuracy" in after else MISSING,
                percent(after["rtd_baseline"]) if "rtd_baseline" in after else MISSING,
                f"{result['tokens_seen'] / result['seconds']:,.0f}",
                f"{result['seconds'] / 3600:.2f}",
            ]
        )
    return lines


def unrounded(sweeps: list[Sweep]) -> list[dict]:
    """Everything that the tables show, not x 100; what is missing is None."""
    contents = []
    for sweep in sweeps:
        layers = []
        for layer, runs in sweep.layers.items():
            statistic = {
                split: {metric: describe(sweep.scores(layer, split, metric)) for metric in sweep.metrics}
                for split in ("dev", "test")
            }
            layers.append(
                {
                    "layer": layer,
                    "seeds": [run["settings"]["seed"] for run in runs],
                    "parameters": runs[0]["parameters"],
                    **statistic,
                    "authors": sweep.authors[layer] / 100 if layer < len(sweep.authors) else None,
                }
            )
        head = {key: value for key, value in vars(sweep).items() if key != "layers"}
        contents.append(head | {"best_layer": sweep.best_layer, "layers": layers})
    return contents


def describe(values: list[float]) -> dict:
    defined = len(values) > 1 and not math.isnan(sum(values))
    return {
        "mean": statistics.mean(values),
        "deviation": statistics.stdev(values) if defined else None,
        "values": values,
    }
