"""The tables of a report, made from sweeps and results: lists of lines, each a list of cells, heading first.

Scores are x 100 in tables for readers, and neither x 100 nor rounded in those for programs. A published score
that does not exist is shown as –, an undefined score as nan.
"""

import math
import statistics
from typing import Any

from tmft.io.formatting import mean_and_std, percent
from tmft.reports.comparisons import LayerComparison
from tmft.runs.run_result import find_score, list_score_names
from tmft.runs.sweeps import Sweep, describe_differences

MISSING = "–"


def best_and_last_layer(sweep: Sweep) -> list[int]:
    """Return the layer of a sweep that is best on dev, and the last one of the model if it is another one."""
    layers = [sweep.best_layer]
    whole = sweep.num_hidden_layers
    return layers if whole in layers or whole not in sweep.layers else [*layers, whole]


def best_layers_table(sweeps: list[Sweep]) -> list[list[str]]:
    """Return a table of each sweep at its layers of `best_and_last_layer`, with all metrics on dev and test.

    Rep et al. 2024 have these columns in tables 1 and 2: layer, parameters, and Spearman and Pearson on both
    splits, for a checkpoint as it is, trained on word similarity before, and pre-trained further before.
    """
    metrics = [name for name in sweeps[0].metrics if all(name in sweep.metrics for sweep in sweeps)]
    columns = [(split, metric) for split in ("dev", "test") for metric in metrics]
    remarks = describe_differences(sweeps)
    has_remarks = any(remarks)
    heading = ["run", "layer", "parameters", *(f"{split} {metric_name(metric)}" for split, metric in columns)]
    lines = [[*heading, "seeds", *["settings that differ"] * has_remarks]]
    for sweep, remark in zip(sweeps, remarks, strict=True):
        for layer in best_and_last_layer(sweep):
            lines.append(
                [
                    sweep.name,
                    f"{layer} of {sweep.num_hidden_layers}",
                    f"{sweep.layers[layer][0]['parameters']['paper'] / 1e6:.2f} M",
                    *(mean_and_std(sweep.scores(layer, split, metric)) for split, metric in columns),
                    str(len(sweep.layers[layer])),
                    *[remark] * has_remarks,
                ]
            )
    return lines


def score_by_layer_table(sweep: Sweep) -> list[list[str]]:
    """Return a table with a line per layer of a sweep: mean and std over the seeds, x 100, on dev and test.

    If the authors of TMFT have published scores, the table has those of each version of their paper, and our
    mean minus theirs.
    """
    published = sweep.published_scores
    num_seeds = max(len(runs) for runs in sweep.layers.values())
    metric = metric_name(sweep.metric)
    published_columns = [
        f"{kind} ({version})" for version in published for kind in ("published", "difference")
    ]
    lines = [["layer", "seeds", f"dev {metric}", f"test {metric}", *published_columns, "parameters"]]
    for layer, runs in sweep.layers.items():
        published_cells = []
        for theirs in published.values():
            cells = [MISSING, MISSING]
            if layer < len(theirs) and is_defined(theirs[layer]):
                difference = 100 * sweep.mean(layer, "test") - theirs[layer]
                cells = [f"{theirs[layer]:.2f}", f"{difference:+.2f}"]
            published_cells += cells
        lines.append(
            [
                str(layer),
                str(num_seeds) if len(runs) == num_seeds else f"{len(runs)} of {num_seeds}",
                *(mean_and_std(sweep.scores(layer, split)) for split in ("dev", "test")),
                *published_cells,
                f"{runs[0]['parameters']['paper'] / 1e6:.2f} M",
            ]
        )
    return lines


def size_and_speed_table(sweeps: list[Sweep]) -> list[list[str]]:
    """Return a table with a line per layer of each sweep: parameters as the paper counts, speed, score."""
    metric = metric_name(sweeps[0].metric)
    lines = [["run", "layer", "million parameters", "threads", "examples per second", f"test {metric}"]]
    for sweep in sweeps:
        for layer, runs in sweep.layers.items():
            speed = run_speed(runs)
            threads = {str(run.get("environment", {}).get("threads", "")) for run in runs}
            lines.append(
                [
                    sweep.name,
                    str(layer),
                    f"{runs[0]['parameters']['paper'] / 1e6:.2f}",
                    ", ".join(sorted(threads)),
                    f"{speed:,.0f}" if speed else "",
                    percent(sweep.mean(layer, "test")),
                ]
            )
    return lines


def epochs_table(sweep: Sweep) -> list[list[str]]:
    """Return a table with a line per epoch of each run of a sweep."""
    lines = [
        ["layer", "seed", "epoch", "loss", f"dev {metric_name(sweep.metric)}", "examples per second", ""]
    ]
    for layer, runs in sweep.layers.items():
        for run in runs:
            for number, epoch in enumerate(run.get("epochs", []), start=1):
                loss, dev = epoch.get("loss"), epoch.get("dev", {}).get(sweep.metric)
                speed = epoch.get("pairs_per_second")
                lines.append(
                    [
                        str(layer),
                        str(run["settings"].get("seed", 0)),
                        str(number),
                        f"{loss:.4f}" if loss is not None else "",
                        percent(dev) if dev is not None else "",
                        f"{speed:,.0f}" if speed is not None else "",
                        "chosen" if number == run.get("chosen_epoch") else "",
                    ]
                )
    return lines


def comparison_table(comparisons: list[LayerComparison]) -> list[list[str]]:
    """Return a table with a line per comparison: the difference and its interval, x 100, and a verdict."""
    has_notes = any(one.note for one in comparisons)
    heading = ["compared", "compared with", "difference", "95 % from", "to", "significant"]
    lines = [[*heading, *["remark"] * has_notes]]
    for one in comparisons:
        points = [f"{100 * value:+.2f}" for value in (one.difference, one.low, one.high)]
        verdict = "yes" if one.is_significant else "no"
        lines.append([one.first, one.second, *points, verdict, *[one.note] * has_notes])
    return lines


def prediction_objective(means: dict[str, float]) -> str:
    """Return the objective by which tokens were predicted: "mlm" or, as in data/twins/t5, another one.

    means: those of the held-out sentences, as result.json has them.
    """
    losses = [name for name in means if name.endswith("_loss") and name != "rtd_loss"]
    return losses[0].removesuffix("_loss") if losses else "mlm"


def pretraining_table(results: list[dict[str, Any]]) -> list[list[str]]:
    """Return a table with a line per pre-training run: tokens, loss and accuracies on held-out text, speed.

    results: contents of result.json. The loss is shown before and after training, the accuracies, x 100,
    after.
    """
    heading = ["run", "parameters", "tokens seen", "masked: loss", "accuracy", "RTD accuracy", "RTD baseline"]
    lines = [[*heading, "tokens/s", "hours"]]
    for result in results:
        before, after = result["held_out"]["before"], result["held_out"]["after"]
        objective = prediction_objective(after)
        speed = result["tokens_seen"] / result["seconds"] if result["seconds"] else math.nan
        lines.append(
            [
                f"{result['sweep']}, seed {result['settings']['seed']}",
                f"{result['parameters']['stored'] / 1e6:.2f} M",
                f"{result['tokens_seen'] / 1e6:.1f} M",
                f"{before[f'{objective}_loss']:.3f} to {after[f'{objective}_loss']:.3f}",
                percent(after[f"{objective}_accuracy"]),
                *(
                    percent(after[key]) if key in after else MISSING
                    for key in ("rtd_accuracy", "rtd_baseline")
                ),
                f"{speed:,.0f}",
                f"{result['seconds'] / 3600:.2f}",
            ]
        )
    return lines


# ------------------------------------------------------------------------------------------- for programs


def tidy_scores(sweeps: list[Sweep]) -> list[list[Any]]:
    """Return the lines of runs.csv, for pandas, R or a spreadsheet: one per run, split and metric."""
    rows = []
    all_runs = [(s, number, run) for s in sweeps for number, runs in s.layers.items() for run in runs]
    for sweep, layer, run in all_runs:
        scores = [(part, name) for part in ("dev", "test") for name in list_score_names(run[part])]
        for split, metric in scores:
            score = find_score(run[split], metric)
            rows.append(
                {
                    "task": sweep.data,
                    "run": sweep.name,
                    "checkpoint": run["settings"].get("ckpt")
                    or sweep.checkpoint,  # that the run started from
                    "init": run["settings"].get("init", ""),  # "random": only its architecture was used
                    "pretrained_on": "+".join(sweep.pretrained_on),  # by the earlier runs of a chain
                    "layer": layer,
                    "num_hidden_layers": sweep.num_hidden_layers,
                    "seed": run["settings"].get("seed", ""),
                    "split": split,
                    "metric": metric,
                    "score": score if is_defined(score) else "",  # neither x 100 nor rounded
                    "selects_epoch": metric == sweep.metric,
                    "best_on_dev": sweep.is_best(layer),
                    "parameters": run["parameters"].get("stored", ""),
                    "chosen_epoch": run.get("chosen_epoch", ""),
                    "seconds": run.get("seconds", ""),
                    "pairs_per_second": run_speed([run]) or "",
                    "precision": run.get("precision", ""),
                    "folder": run["folder"].name,
                }
            )
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def raw_results(sweeps: list[Sweep]) -> list[dict[str, Any]]:
    """Return the content of report.json: all scores of each sweep, not rounded and not x 100."""
    contents = []
    for sweep in sweeps:
        published = sweep.published_scores
        layers = []
        for layer, runs in sweep.layers.items():
            splits = {
                split: {metric: summarize(sweep.scores(layer, split, metric)) for metric in sweep.metrics}
                for split in ("dev", "test")
            }
            layers.append(
                {
                    "layer": layer,
                    "seeds": [run["settings"]["seed"] for run in runs],
                    "parameters": runs[0]["parameters"],
                    **splits,
                    "published": {
                        version: theirs[layer] / 100
                        for version, theirs in published.items()
                        if layer < len(theirs) and is_defined(theirs[layer])
                    },
                }
            )
        fields = {key: value for key, value in vars(sweep).items() if key not in ("layers", "copies")}
        fields["copies"] = list(map(str, sweep.copies))
        contents.append(fields | {"best_layer": sweep.best_layer, "layers": layers})
    return contents


def summarize(values: list[float]) -> dict[str, Any]:
    """Return {"mean", "std", "values"} of some scores; the sample std is None for one score or with NaN."""
    has_std = len(values) > 1 and not math.isnan(sum(values))
    std = statistics.stdev(values) if has_std else None
    return {"mean": statistics.mean(values), "std": std, "values": values}


def run_speed(runs: list[dict[str, Any]]) -> float | None:
    """Return the training examples per second, the median over epochs and then runs; None if not recorded."""
    medians = []
    for run in runs:
        speeds = [epoch.get("pairs_per_second") for epoch in run.get("epochs", [])]
        if speeds := [speed for speed in speeds if is_defined(speed) and speed > 0]:
            medians.append(statistics.median(speeds))
    return statistics.median(medians) if medians else None


def metric_name(metric: str) -> str:
    """Return the name of a metric as a figure or table shows it: "f1_macro" becomes "macro F1"."""
    return {"f1": "F1", "f1_macro": "macro F1"}.get(metric, metric.replace("_", " ").capitalize())


def is_defined(value: float | None) -> bool:
    """Return whether a score is a finite number."""
    return value is not None and math.isfinite(value)
