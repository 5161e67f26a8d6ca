"""One table of all scores of all runs, with a line per run, split and metric, for pandas, R or a spreadsheet.

With pandas, the mean and the standard deviation over the seeds on test, for each run and layer:

    scores = pandas.read_csv("report/runs.csv")
    test = scores[(scores.split == "test") & scores.selects_epoch]
    test.groupby(["run", "layer"]).score.agg(["mean", "std"])
"""

import math
import statistics
from typing import Any

from tmft.runs.sweeps import Sweep, find_score, score_names

HEADING = [
    "task",
    "run",
    "checkpoint",  # the one that this run was told to start from
    "init",  # "random" if only the architecture of the checkpoint was used
    "pretrained_on",  # data of the earlier runs that trained its weights, joined by "+"
    "layer",
    "num_hidden_layers",
    "seed",
    "split",
    "metric",
    "score",  # not x 100; empty if it is undefined
    "selects_epoch",  # whether this metric selected the epoch
    "best_on_dev",  # whether the layer has the best mean score on dev of its sweep
    "parameters",
    "chosen_epoch",
    "seconds",
    "pairs_per_second",
    "precision",
    "folder",
]


def tidy_scores(sweeps: list[Sweep]) -> list[list[Any]]:
    """Return the lines of the table of sweeps, the first one the heading.

    Scores are neither rounded nor x 100.
    """
    lines: list[list[Any]] = [list(HEADING)]
    for sweep in sweeps:
        best_layer = sweep.best_layer
        for layer, runs in sweep.layers.items():
            for run in runs:
                for split in ("dev", "test"):
                    for metric in score_names(run[split]):
                        score = find_score(run[split], metric)
                        lines.append(
                            [
                                sweep.data,
                                sweep.name,
                                run["settings"].get("ckpt") or sweep.checkpoint,
                                run["settings"].get("init", ""),
                                "+".join(sweep.pretrained_on),
                                layer,
                                sweep.num_hidden_layers,
                                run["settings"].get("seed", ""),
                                split,
                                metric,
                                "" if score is None or not math.isfinite(score) else score,
                                metric == sweep.metric,
                                layer == best_layer,
                                run["parameters"].get("stored", ""),
                                run.get("chosen_epoch", ""),
                                run.get("seconds", ""),
                                pairs_per_second(run) or "",
                                run.get("precision", ""),
                                run["folder"].name,
                            ]
                        )
    return lines


def pairs_per_second(run: dict[str, Any]) -> float | None:
    """Return the training examples per second of a run, the median over its epochs; None if not recorded."""
    speeds = [epoch.get("pairs_per_second") for epoch in run.get("epochs", [])]
    speeds = [speed for speed in speeds if isinstance(speed, (int, float)) and 0 < speed < math.inf]
    return statistics.median(speeds) if speeds else None
