"""Tables of finished runs, from their result.json files only: python evaluate.py --report runs/

A sweep is all runs that differ in layer and seed only. Scores are means over its seeds with the sample
deviation (n - 1), x 100. What has not been run, by us or by the authors, is shown as –; an undefined score
as nan.
"""

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from tmft.data import DATA_FOLDER
from tmft.errors import InputError
from tmft.runs.folder import mean_and_deviation, percent, read_result, scores_of

MISSING = "–"
NAMES = {
    "spearman": "Spearman",
    "pearson": "Pearson",
    "f1": "F1",
    "f1_macro": "macro F1",
    "accuracy": "accuracy",
}


@dataclass
class Sweep:
    """The runs of one checkpoint on one task: layer -> results, one per seed."""

    name: str
    checkpoint: str
    data: str
    metric: str  # which chose the epochs
    before: list[str]  # what the weights were trained on first
    num_hidden_layers: int
    layers: dict[int, list[dict]] = field(default_factory=dict)

    @property
    def best_layer(self) -> int:
        """The layer with the best mean on dev; one whose score is undefined only if all are."""
        means = {
            layer: statistics.mean(scores_of(runs, "dev", self.metric)) for layer, runs in self.layers.items()
        }
        return max(means, key=lambda layer: -math.inf if math.isnan(means[layer]) else means[layer])

    @property
    def authors(self) -> list[float]:
        """The authors' test score x 100 of each layer; empty where their repository has none."""
        return authors_scores().get((short(self.checkpoint), self.data, "+".join(self.before)), [])

    @property
    def metrics(self) -> list[str]:
        """What is reported on test, the task's own metric first."""
        known = [name for name in NAMES if name in next(iter(self.layers.values()))[0]["test"]]
        return sorted(known, key=lambda name: name != self.metric)


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
        if absent := {"sweep", "data", "history", "num_hidden_layers", "parameters"} - result.keys():
            raise InputError(
                f"{path} has no {min(absent)}: it is of another version of this code; run it again"
            )
        begin = (result["history"] or [result])[0]["settings"]
        key = (str(path.parent.parent), result["sweep"])
        sweep = sweeps.setdefault(
            key,
            Sweep(
                name=result["sweep"],
                checkpoint=begin["ckpt"] or begin["from_scratch"],
                data=result["data"],
                metric=settings["task"]["metric"],
                before=[step["data"] for step in result["history"]],
                num_hidden_layers=result["num_hidden_layers"],
            ),
        )
        sweep.layers.setdefault(settings["layer"], []).append(result)
        first = next(iter(sweep.layers.values()))[0]["settings"]
        for name in settings.keys() - {"layer", "seed", "init_from"}:
            if settings[name] != first.get(name):
                raise InputError(
                    f"{path.parent} was run with {name} {settings[name]}, another run of {sweep.name} with "
                    f"{first.get(name)}: move one of them elsewhere, they cannot be averaged"
                )
    for sweep in sweeps.values():
        sweep.layers = {layer: sweep.layers[layer] for layer in sorted(sweep.layers)}
    return list(sweeps.values())


def pretraining_of(results: list[tuple[Path, dict]]) -> list[dict]:
    """All pre-training runs among the results."""
    return [result for _, result in results if "curve" in result]


def by_task(sweeps: list[Sweep]) -> dict[str, list[Sweep]]:
    """Task -> its sweeps: only scores on the same data stand in one table."""
    tasks: dict[str, list[Sweep]] = {}
    for sweep in sweeps:
        tasks.setdefault(sweep.data, []).append(sweep)
    return tasks


def best_layers(sweeps: list[Sweep]) -> list[list[str]]:
    """Table 1 of the paper for sweeps on one task: each at the layer that is best on dev."""
    metrics = sweeps[0].metrics
    lines = [
        ["run", "layer", "parameters", f"dev {NAMES[sweeps[0].metric]}"]
        + [f"test {NAMES[metric]}" for metric in metrics]
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
                mean_and_deviation(scores_of(runs, "dev", sweep.metric)),
                *(mean_and_deviation(scores_of(runs, "test", metric)) for metric in metrics),
                str(len(runs)),
            ]
        )
    return lines


def layer_by_layer(sweep: Sweep) -> list[list[str]]:
    """A line per layer of one sweep, beside what the authors' repository says, where it says anything."""
    theirs = sweep.authors
    seeds = max(len(runs) for runs in sweep.layers.values())
    metric = NAMES[sweep.metric]
    lines = [["layer", "seeds", f"dev {metric}", f"test {metric}", "authors", "difference", "parameters"]]
    every = range(sweep.num_hidden_layers + 1) if len(sweep.layers) > 1 else sweep.layers
    for layer in every:
        line = [str(layer), *[MISSING] * 6]
        if layer < len(theirs):
            line[4] = f"{theirs[layer]:.2f}"
        if runs := sweep.layers.get(layer):
            test = scores_of(runs, "test", sweep.metric)
            line[1] = str(seeds) if len(runs) == seeds else f"{len(runs)} of {seeds}"
            line[2] = mean_and_deviation(scores_of(runs, "dev", sweep.metric))
            line[3] = mean_and_deviation(test)
            line[6] = f"{runs[0]['parameters']['paper'] / 1e6:.2f} M"
            if layer < len(theirs):
                line[5] = f"{100 * statistics.mean(test) - theirs[layer]:+.2f}"
        lines.append(line)
    return lines


def pretraining(results: list[dict]) -> list[list[str]]:
    """A line per pre-training run: what it saw, how fast, and its figures on the held-out lines."""
    heading = ["run", "parameters", "tokens seen", "masked: loss", "right", "all: right", "always original"]
    lines = [[*heading, "tokens/s", "hours"]]
    for result in results:
        before, after = result["held_out"]["before"], result["held_out"]["after"]
        lines.append(
            [
                f"{result['sweep']}, seed {result['settings']['seed']}",
                f"{result['parameters']['stored'] / 1e6:.2f} M",
                f"{result['tokens_seen'] / 1e6:.1f} M",
                f"{before['mlm_loss']:.3f} to {after['mlm_loss']:.3f}",
                percent(after["mlm_accuracy"]),
                percent(after["rtd_accuracy"]) if "rtd_accuracy" in after else MISSING,
                percent(after["rtd_baseline"]) if "rtd_baseline" in after else MISSING,
                f"{result['tokens_seen'] / result['seconds']:,.0f}",
                f"{result['seconds'] / 3600:.2f}",
            ]
        )
    return lines


def authors_scores() -> dict[tuple[str, str, str], list[float]]:
    """(checkpoint, data, trained on before) -> test Spearman x 100 by layer, mean over five seeds.

    From the history of ir2718/similarity-embedding-quality (February 2024): close to the published tables of
    Rep et al. 2024, not equal to them.
    """
    lines = (DATA_FOLDER / "authors.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    return {
        (short(ckpt), data, before): [float(x) for x in values.split()] for ckpt, data, before, values in rows
    }


def short(checkpoint: str) -> str:
    """A checkpoint without owner, revision and path, so that a copy in a folder is known by its name."""
    return Path(checkpoint.partition("@")[0]).name


def as_json(sweeps: list[Sweep]) -> list[dict]:
    """Everything that the tables show, unrounded and not x 100; what is missing is null."""
    contents = []
    for sweep in sweeps:
        layers = []
        for layer, runs in sweep.layers.items():
            statistic = {
                split: {metric: describe(scores_of(runs, split, metric)) for metric in sweep.metrics}
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


def markdown(lines: list[list[str]]) -> str:
    """Lines of cells -> a Markdown table, the first column flush left, the others right."""
    heading, *rows = lines
    rule = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heading, rule, *rows]) + "\n"
