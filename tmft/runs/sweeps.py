"""Finished runs, grouped: a sweep is all that differ in layer and seed only. From result.json files alone.

Scores are means over a sweep's seeds with the sample deviation (n - 1). An undefined score is nan.
"""

import math
import statistics
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tmft.checkpoints.model_card import SHOWN
from tmft.errors import InputError, sanitize
from tmft.formatting import NOT_SCORES, bar, mean_and_std, table
from tmft.io.paths import SHIPPED
from tmft.runs.result_schema import read_result
from tmft.runs.run_folder import different


@dataclass
class Sweep:
    """The runs of one checkpoint on one task: layer -> results, one per seed; layers in order."""

    name: str
    checkpoint: str
    data: str
    metric: str  # which chose the epochs
    before: list[str]  # what the weights were trained on first
    num_hidden_layers: int
    layers: dict[int, list[dict]] = field(default_factory=dict)

    def scores(self, layer: int, split: str, metric: str | None = None) -> list[float]:
        """One value per seed, of the sweep's own metric unless another is named."""
        values = [run[split][metric or self.metric] for run in self.layers[layer]]
        return [math.nan if value is None else value for value in values]

    def mean(self, layer: int, split: str) -> float:
        return statistics.mean(self.scores(layer, split))

    @property
    def best_layers(self) -> list[int]:
        """The layers by their mean on dev, highest first; those whose score is undefined are the last."""
        means = {layer: self.mean(layer, "dev") for layer in self.layers}
        return sorted(means, key=lambda layer: math.inf if math.isnan(means[layer]) else -means[layer])

    @property
    def best_layer(self) -> int:
        return self.best_layers[0]

    @property
    def metrics(self) -> list[str]:
        """What is reported on test, the sweep's own metric first."""
        test = next(iter(self.layers.values()))[0]["test"]
        names = [name for name in test if name.rpartition(" ")[2] not in NOT_SCORES]
        return sorted(names, key=lambda name: name != self.metric)

    @property
    def authors(self) -> list[float]:
        """The authors' test score x 100 of each layer; empty where their repository has none."""
        return authors_scores().get((short(self.checkpoint), self.data, "+".join(self.before)), [])


def read_results(folder: Path) -> list[tuple[Path, dict]]:
    """The result.json files below a folder and what they hold."""
    return [(path, read_result(path.parent)) for path in sorted(folder.glob("**/result.json"))]


def sweeps_of(results: list[tuple[Path, dict]]) -> list[Sweep]:
    """All fine-tuning runs among the results. Raises InputError if runs of one sweep were made with different
    settings, which must not be averaged."""
    sweeps: dict[tuple[str, str], Sweep] = {}
    for path, result in results:
        settings = result.get("settings", {})
        if "layer" not in settings or "test" not in result:
            continue  # of another kind, such as pre-training
        begin = (result["history"] or [result])[0]["settings"]
        sweep = sweeps.setdefault(
            (str(path.parent.parent), result["sweep"]),
            Sweep(
                name=result["sweep"],
                checkpoint=begin["ckpt"] or begin["from_scratch"] or "",
                data=result["data"],
                metric=settings["task"]["metric"],
                before=[step["data"] for step in result["history"]],
                num_hidden_layers=result["num_hidden_layers"],
            ),
        )
        run = copy(result)
        run["folder"] = path.parent
        sweep.layers.setdefault(settings["layer"], []).append(run)
        first = next(iter(sweep.layers.values()))[0]["settings"]
        same = {key: value for key, value in settings.items() if key not in ("layer", "seed", "init_from")}
        if key := different(first, same):
            raise InputError(
                f"{path.parent} was run with {key} {settings[key]}, another run of {sweep.name} with "
                f"{first.get(key)}: move one of them elsewhere, they cannot be averaged"
            )
    for sweep in sweeps.values():
        sweep.layers = {layer: sweep.layers[layer] for layer in sorted(sweep.layers)}
    return list(sweeps.values())


def by_task(sweeps: list[Sweep]) -> dict[str, list[Sweep]]:
    """Task -> its sweeps: only scores on the same data stand in one table."""
    tasks: dict[str, list[Sweep]] = {}
    for sweep in sweeps:
        tasks.setdefault(sweep.data, []).append(sweep)
    return tasks


def summary(sweep: Sweep) -> str:
    """A table with a line per layer, mean and deviation over the seeds, and a bar of the mean on test.

    The scores are those of the task's own metric, x 100. The best layer by dev is marked.
    """
    means = [sweep.mean(layer, "test") for layer in sweep.layers]
    best_layer = sweep.best_layer
    lines = [["layer", "seeds", f"dev {sweep.metric}", f"test {sweep.metric}", "parameters", "s/run", ""]]
    for i, (layer, runs) in enumerate(sweep.layers.items()):
        best = " * best on dev" if layer == best_layer and len(sweep.layers) > 1 else ""
        lines.append(
            [
                str(layer),
                str(len(runs)),
                *(mean_and_std(sweep.scores(layer, split)) for split in ("dev", "test")),
                f"{runs[0]['parameters']['stored'] / 1e6:.2f} M",
                f"{statistics.mean(run['seconds'] for run in runs):.0f}",
                bar(means, i) + best,
            ]
        )
    return table(lines)


def summaries(folders: list[Path]) -> list[str]:
    """A titled table for each sweep among the run folders that are finished."""
    paths = [folder / "result.json" for folder in folders if (folder / "result.json").is_file()]
    sweeps = sweeps_of([(path, read_result(path.parent)) for path in paths])
    return [f"\n{sanitize(sweep.name, SHOWN)}\n{summary(sweep)}" for sweep in sweeps]


@cache
def authors_scores() -> dict[tuple[str, str, str], list[float]]:
    """(checkpoint, data, trained on before) -> test Spearman x 100 by layer, mean over five seeds.

    From the history of ir2718/similarity-embedding-quality (February 2024): close to the published tables of
    Rep et al. 2024, not equal to them.
    """
    lines = (SHIPPED / "authors.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    return {
        (short(ckpt), data, before): [float(x) for x in values.split()] for ckpt, data, before, values in rows
    }


def short(checkpoint: str) -> str:
    """A checkpoint without owner, revision and path, so that a copy in a folder is known by its name."""
    return Path(checkpoint.partition("@")[0]).name
