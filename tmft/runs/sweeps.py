"""Sweeps: finished runs that differ only in layer and seed, read from their result.json files.

A score of a sweep at a layer is the mean over its seeds, with the sample standard deviation (n - 1). An
undefined score is NaN.
"""

import json
import math
import os
import statistics
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import Any

from tmft.errors import sanitize, short_repr
from tmft.io.files import PACKAGE_DATA, is_file
from tmft.io.formatting import MAX_NAME_LENGTH, mean_and_std, text_bar, text_table
from tmft.runs.result_json import RESULT_FILE, find_score, list_score_names, read_result

# The settings that tables compare, or that a line of a table is for.
COMPARED_SETTINGS = ("ckpt", "init", "layer", "keep_layers", "seed", "init_from")


@dataclass
class Sweep:
    """The finished runs of one checkpoint on one task; they differ only in layer and seed."""

    name: str  # with which the names of the run folders begin
    checkpoint: str  # hub id or path with which the chain of runs began
    data: str
    metric: str  # metric that selected the epochs
    pretrained_on: list[str]  # data that the initial weights were trained on by earlier runs, in order
    num_hidden_layers: int  # of the whole checkpoint
    # layer -> results, one per seed; sorted
    layers: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    copies: list[Path] = field(default_factory=list)  # folders of runs that are not counted

    def scores(self, layer: int, split: str, metric: str | None = None) -> list[float]:
        """Return the score of each seed at a layer, not x 100; NaN where it is undefined.

        metric: one of `metrics`; None: the metric that selected the epochs.
        """
        scores = [find_score(run[split], metric or self.metric) for run in self.layers[layer]]
        return [math.nan if score is None else score for score in scores]

    def mean(self, layer: int, split: str) -> float:
        """Return the mean over the seeds of the metric that selected the epochs, not x 100."""
        return statistics.mean(self.scores(layer, split))

    @property
    def best_layers(self) -> list[int]:
        """All layers, sorted by their mean score on dev, best first. Undefined scores come last.

        Of several undefined scores that of the most layers comes first: nothing speaks for removing any.
        """
        means = {layer: self.mean(layer, "dev") for layer in self.layers}
        undefined = [layer for layer in reversed([*means]) if math.isnan(means[layer])]
        defined = [layer for layer in means if layer not in undefined]
        return sorted(defined, key=lambda layer: -means[layer]) + undefined

    @property
    def best_layer(self) -> int:
        """The layer with the best mean score on dev."""
        return self.best_layers[0]

    def is_best(self, layer: int) -> bool:
        """Return whether a layer is the best on dev, which none is if the score of each is undefined."""
        return layer == self.best_layer and not math.isnan(self.mean(layer, "dev"))

    @property
    def metrics(self) -> list[str]:
        """The names of the scores on test. The metric that selected the epochs comes first."""
        test = next(iter(self.layers.values()))[0]["test"]
        return sorted(list_score_names(test), key=lambda name: name != self.metric)

    @property
    def published_scores(self) -> dict[str, list[float]]:
        """The test scores x 100 of the authors of TMFT: {version: scores at layers 0, 1, ...}."""
        key = checkpoint_name(self.checkpoint), self.data, "+".join(self.pretrained_on)
        return load_published_scores().get(key, {})


def read_results(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return [(path, content)] of all result.json files below a folder, sorted by path."""
    return [(path, read_result(path.parent)) for path in sorted(folder.rglob(RESULT_FILE))]


def group_into_sweeps(results: list[tuple[Path, dict[str, Any]]]) -> list[Sweep]:
    """Group the fine-tuning runs among the results into sweeps, in the order of their first runs.

    results: (path of result.json, content) of each run; pre-training runs are skipped. Each run of a sweep is
    a copy of the content, with the run folder under the key "folder". Of several runs of a sweep with the
    same layer and seed, such as a copy, only the first one counts. Runs of one name that read different data
    or weights, or have different settings, are sweeps of their own, because their scores must not be
    averaged; so are those in different folders. A number after the name tells them apart.
    """
    sweeps: dict[str, Sweep] = {}
    for path, result in results:
        settings = result.get("settings", {})
        if "layer" not in settings or "test" not in result:
            continue  # a pre-training run
        key = sweep_key(path, result)
        if key not in sweeps:
            first_settings = (result["provenance"] or [result])[0]["settings"]
            sweeps[key] = Sweep(
                name=result["sweep"],
                checkpoint=first_settings["ckpt"] or first_settings["from_scratch"] or "",
                data=result["data"],
                metric=settings["task"]["metric"],
                pretrained_on=[earlier_run["data"] for earlier_run in result["provenance"]],
                num_hidden_layers=result["num_hidden_layers"],
            )
        sweep = sweeps[key]
        runs = sweep.layers.setdefault(settings["layer"], [])
        if any(run["settings"].get("seed") == settings.get("seed") for run in runs):
            sweep.copies.append(path.parent)
        else:
            run = copy(result)
            run["folder"] = path.parent
            runs.append(run)
    names: set[str] = set()
    for sweep in sweeps.values():
        numbered = (f"{sweep.name} ({number})" for number in count(2))
        sweep.name = next(name for name in chain([sweep.name], numbered) if name not in names)
        names.add(sweep.name)
        sweep.layers = {layer: sweep.layers[layer] for layer in sorted(sweep.layers)}
    return [*sweeps.values()]


def sweep_key(path: Path, result: dict[str, Any]) -> str:
    """Return what the runs of a sweep have in common, as a text: folder, name, settings and digests.

    Runs that start from the weights of earlier runs (init_from) have a checkpoint of their own for each layer
    and seed, so there only the data count. Two paths to the same folder are the same checkpoint.
    """
    own = ("layer", "seed", "init_from")
    settings = {k: v for k, v in result["settings"].items() if k not in own and v is not None}
    if os.path.isdir(ckpt := settings.get("ckpt", "")):
        settings["ckpt"] = os.path.realpath(ckpt)
    digests = dict(result.get("digests", {}))
    if result["settings"].get("init_from"):
        digests.pop("checkpoint", None)
    return json.dumps([str(path.parent.parent), result["sweep"], settings, digests], sort_keys=True)


def describe_differences(sweeps: list[Sweep]) -> list[str]:
    """Describe for each sweep the settings in which the sweeps differ, such as "epochs 1, lr 3e-05".

    The texts are empty if the sweeps differ at most in COMPARED_SETTINGS, such as the checkpoint. The content
    of the data and of a checkpoint from which all begin is compared by digests. Settings that not all runs
    have are not compared.
    """
    all_settings = []
    is_one_checkpoint = len({(sweep.checkpoint, *sweep.pretrained_on) for sweep in sweeps}) == 1
    groups = ["data", "checkpoint"] if is_one_checkpoint else ["data"]
    for sweep in sweeps:
        run = next(iter(sweep.layers.values()))[0]
        settings = dict(run["settings"])
        settings |= {f"task.{key}": value for key, value in settings.pop("task", {}).items()}
        for group in groups:
            digests = run.get("digests", {}).get(group, {})
            settings |= {f"{group} {name}": digest[:8] for name, digest in digests.items()}
        all_settings.append({key: value for key, value in settings.items() if key not in COMPARED_SETTINGS})
    shared = [key for key in all_settings[0] if all(key in settings for settings in all_settings)]
    different = [key for key in shared if any(s[key] != all_settings[0][key] for s in all_settings)]
    return [
        ", ".join(f"{key.removeprefix('task.')} {short_repr(settings[key])}" for key in different)
        for settings in all_settings
    ]


def group_by_task(sweeps: list[Sweep]) -> dict[str, list[Sweep]]:
    """Return {name of the data: sweeps on it}; only scores on the same data are shown in one table.

    If the epochs of the sweeps on some data were selected by several metrics, the keys are "DATA, METRIC".
    """
    metrics: dict[str, set[str]] = {}
    for sweep in sweeps:
        metrics.setdefault(sweep.data, set()).add(sweep.metric)
    tasks: dict[str, list[Sweep]] = {}
    for sweep in sweeps:
        name = f"{sweep.data}, {sweep.metric}" if len(metrics[sweep.data]) > 1 else sweep.data
        tasks.setdefault(name, []).append(sweep)
    return tasks


def layer_table(sweep: Sweep) -> str:
    """Return a text table of a sweep, with a line per layer and a bar for the mean score on dev.

    A score is the metric that selected the epochs, x 100, as mean and std over the seeds. The layer that is
    best on dev, which has the longest bar, is marked. The shortest bar is that of the lowest score, not of 0.
    """
    means = [sweep.mean(layer, "dev") for layer in sweep.layers]
    scores = [f"{split} {sweep.metric}" for split in ("dev", "test")]
    bar = f"bar: dev {sweep.metric}" if len(sweep.layers) > 1 else ""
    lines = [["layer", "seeds", *scores, "parameters", "s/run", bar]]
    for i, (layer, runs) in enumerate(sweep.layers.items()):
        mark = " * best on dev" if sweep.is_best(layer) and len(sweep.layers) > 1 else ""
        lines.append(
            [
                str(layer),
                str(len(runs)),
                *(mean_and_std(sweep.scores(layer, split)) for split in ("dev", "test")),
                f"{runs[0]['parameters']['stored'] / 1e6:.2f} M",
                f"{statistics.mean(run['seconds'] for run in runs):.0f}",
                text_bar(means, i) + mark,
            ]
        )
    return text_table(lines)


def sweep_summaries(folders: list[Path]) -> list[str]:
    """Return the name and the `layer_table` of each sweep among the finished runs in these folders."""
    paths = [path for folder in folders if is_file(path := folder / RESULT_FILE)]
    sweeps = group_into_sweeps([(path, read_result(path.parent)) for path in paths])
    return [f"\n{sanitize(sweep.name, MAX_NAME_LENGTH)}\n{layer_table(sweep)}" for sweep in sweeps]


@cache
def load_published_scores() -> dict[tuple[str, str, str], dict[str, list[float]]]:
    """Return {(checkpoint, data, earlier data): {version of the paper: [score at layers 0, 1, ...]}}.

    A score is the metric of the task on test x 100, the mean over five seeds; NaN where the version has none
    as a number. earlier data: what the checkpoint was trained on before, joined by "+"; "" if nothing.
    Versions of Rep et al. 2024: "arXiv", February 2024, whose curves are in the history of the authors'
    repository (ir2718/similarity-embedding-quality), and "EMNLP", whose curves are figures, so that only the
    numbers in its text and tables are here. The runs of the second one are others than those of the first.
    """
    lines = (PACKAGE_DATA / "authors.tsv").read_text(encoding="utf-8").splitlines()[1:]
    published: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for ckpt, data, pretrained_on, version, scores in (line.split("\t") for line in lines):
        by_version = published.setdefault((checkpoint_name(ckpt), data, pretrained_on), {})
        by_version[version] = [math.nan if score == "-" else float(score) for score in scores.split()]
    return published


def checkpoint_name(checkpoint: str) -> str:
    """Return the last part of a hub id or path, without revision; a copy in a folder then has the same name.

    Both "google/electra-base-discriminator@main" and "models/electra-base-discriminator" become
    "electra-base-discriminator".
    """
    return Path(checkpoint.partition("@")[0]).name
