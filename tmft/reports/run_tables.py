"""The tables of a report, made from sweeps and results: lists of lines, each a list of cells, heading first.

Scores are x 100 in tables for readers, and neither x 100 nor rounded in those for programs. A published score
that does not exist is shown as –, an undefined score as nan.
"""

import math
import statistics
from typing import Any

from tmft.io.formatting import mean_and_std, percent
from tmft.reports.comparisons import LayerComparison
from tmft.reports.page import MISSING
from tmft.runs.result_json import find_score, list_score_names
from tmft.runs.sweeps import Sweep, describe_differences


def best_layers_table(sweeps: list[Sweep]) -> list[list[str]]:
    """Return a table of each sweep at the layer that is best on dev, and whole, with all metrics.

    Rep et al. 2024 have these columns in tables 1 and 2: layer, parameters, and Spearman and Pearson on both
    splits, for a checkpoint as it is, trained on word similarity before, and pre-trained further before.
    """
    metrics = [name for name in sweeps[0].metrics if all(name in sweep.metrics for sweep in sweeps)]
    columns = [(split, metric) for split in ("dev", "test") for metric in metrics]
    remarks = describe_differences(sweeps)
    has_remarks = any(remarks)
    heading = ["run", "layer", "of", "million parameters"]
    heading += [f"{split} {metric_name(metric)}" for split, metric in columns]
    lines = [[*heading, "seeds", *["settings that differ"] * has_remarks]]
    for sweep, remark in zip(sweeps, remarks, strict=True):
        whole = sweep.num_hidden_layers
        for layer in dict.fromkeys([sweep.best_layer, *[whole] * (whole in sweep.layers)]):
            scores = [mean_and_std(sweep.scores(layer, split, metric)) for split, metric in columns]
            cells = [sweep.name, str(layer), str(whole), million_parameters(sweep, layer), *scores]
            lines.append([*cells, str(len(sweep.layers[layer])), *[remark] * has_remarks])
    return lines


def score_by_layer_table(sweep: Sweep) -> list[list[str]]:
    """Return a table with a line per layer of a sweep: mean and std over the seeds, x 100, size and speed.

    If the authors of TMFT have published scores, the table has those of each version of their paper, and our
    mean minus theirs.
    """
    metric, published = metric_name(sweep.metric), sweep.published_scores
    versions = [f"{kind} ({version})" for version in published for kind in ("published", "difference")]
    heading = ["layer", "seeds", f"dev {metric}", f"test {metric}", *versions]
    lines = [[*heading, "million parameters", "examples per second"]]
    for layer, runs in sweep.layers.items():
        scores = [mean_and_std(sweep.scores(layer, split)) for split in ("dev", "test")]
        for theirs in published.values():
            cells = [MISSING, MISSING]
            if layer < len(theirs) and is_defined(theirs[layer]):
                difference = sweep.mean(layer, "test") - theirs[layer] / 100
                cells = [f"{theirs[layer]:.2f}", signed_percent(difference)]
            scores += cells
        speed = run_speed(runs)
        size_and_speed = [million_parameters(sweep, layer), f"{speed:.0f}" if speed else MISSING]
        lines.append([str(layer), str(len(runs)), *scores, *size_and_speed])
    return lines


def million_parameters(sweep: Sweep, layer: int) -> str:
    """Return the number of parameters of a layer in millions, as the paper counts: "84.93"."""
    return f"{sweep.layers[layer][0]['parameters']['paper'] / 1e6:.2f}"


def signed_percent(difference: float) -> str:
    """Return a difference of scores x 100 with its sign: "+0.41"."""
    return "nan" if math.isnan(difference) else f"{100 * difference:+.2f}"


def comparison_table(comparisons: list[LayerComparison]) -> list[list[str]]:
    """Return a table with a line per comparison: the difference and its interval, x 100, and a verdict."""
    lines = [["compared", "compared with", "difference", "95 % from", "to", "significant"]]
    for one in comparisons:
        points = [signed_percent(value) for value in (one.difference, one.low, one.high)]
        lines.append([one.first, one.second, *points, "yes" if one.is_significant else "no"])
    return lines


def pretraining_table(results: list[dict[str, Any]]) -> list[list[str]]:
    """Return a table with a line per pre-training run: tokens, loss and accuracies on held-out text, speed.

    results: contents of result.json. The loss is shown before and after training, the accuracies, x 100,
    after.
    """
    heading = ["run", "million parameters", "million tokens", "masked: loss before", "after", "accuracy"]
    lines = [[*heading, "RTD accuracy", "RTD baseline", "tokens per second", "hours"]]
    for result in results:
        before, after = result["held_out"]["before"], result["held_out"]["after"]
        loss = next(key for key in after if key.endswith("_loss") and key != "rtd_loss")  # often mlm_loss
        names = [loss.replace("loss", "accuracy"), "rtd_accuracy", "rtd_baseline"]
        speed = result["tokens_seen"] / result["seconds"] if result["seconds"] else math.nan
        lines.append(
            [
                f"{result['sweep']}, seed {result['settings']['seed']}",
                f"{result['parameters']['stored'] / 1e6:.2f}",
                f"{result['tokens_seen'] / 1e6:.1f}",
                f"{before[loss]:.3f}",
                f"{after[loss]:.3f}",
                *(percent(after[name]) if name in after else MISSING for name in names),
                f"{speed:.0f}",
                f"{result['seconds'] / 3600:.2f}",
            ]
        )
    return lines


def tidy_scores(sweeps: list[Sweep]) -> list[dict[str, Any]]:
    """Return a dict per run, split and metric, for pandas, R or a spreadsheet; an undefined score is None."""
    rows = []
    all_runs = [(s, layer, run) for s in sweeps for layer, runs in s.layers.items() for run in runs]
    for sweep, layer, run in all_runs:
        settings = run["settings"]
        scores = [(split, name) for split in ("dev", "test") for name in list_score_names(run[split])]
        for split, metric in scores:
            score = find_score(run[split], metric)
            rows.append(
                {
                    "task": sweep.data,
                    "run": sweep.name,
                    "checkpoint": settings.get("ckpt") or sweep.checkpoint,  # that the run started from
                    "init": settings.get("init"),  # "random": only its architecture was used
                    "pretrained_on": "+".join(sweep.pretrained_on),  # by the earlier runs of a chain
                    "layer": layer,
                    "num_hidden_layers": sweep.num_hidden_layers,
                    "seed": settings.get("seed"),
                    "split": split,
                    "metric": metric,
                    "score": score if is_defined(score) else None,  # neither x 100 nor rounded
                    "selects_epoch": metric == sweep.metric,
                    "best_on_dev": sweep.is_best(layer),
                    "parameters": run["parameters"].get("stored"),
                    "chosen_epoch": run.get("chosen_epoch"),
                    "seconds": run.get("seconds"),
                    "pairs_per_second": run_speed([run]),
                    "precision": run.get("precision"),
                    "folder": run["folder"].name,
                }
            )
    return rows


def run_speed(runs: list[dict[str, Any]]) -> float | None:
    """Return the training examples per second, the median over the epochs of runs; None if not recorded."""
    speeds = [epoch.get("pairs_per_second") for run in runs for epoch in run.get("epochs", [])]
    known = [speed for speed in speeds if is_defined(speed) and speed > 0]
    return statistics.median(known) if known else None


def metric_name(metric: str) -> str:
    """Return the name of a metric as a figure or table shows it: "f1_macro" becomes "macro F1"."""
    return {"f1": "F1", "f1_macro": "macro F1"}.get(metric, metric.replace("_", " ").capitalize())


def is_defined(value: float | None) -> bool:
    """Return whether a score is a finite number."""
    return value is not None and math.isfinite(value)
