"""Compare pre-training objectives by layer: checkpoints of one ancestor, several seeds, and their sweeps.

    python docs/research/objectives.py --checkpoints CHECKPOINTS --runs RUNS --json docs/objectives.json
    python docs/research/objectives.py --json docs/objectives.json --plot docs/objectives.svg
    python docs/research/objectives.py --pairs PAIRS --json docs/pairs.json

CHECKPOINTS has a folder for each objective and seed of pre-training: mlm-0, mlm-1, rtd-0, ... RUNS has the
runs of `train.py --ckpt CHECKPOINTS/mlm-0 --layer all --num-seeds 3 --task stsb`, and so on. The first
command measures (half an hour), the second one only prints and draws what --json holds. If only one of
--checkpoints and --runs is given, --json keeps the other part, and also the tasks of which RUNS has no runs.
The quantities are, at each layer: Spearman's correlation x 100 of each task, fine-tuned (from the runs), and
on the STS benchmark without fine-tuning; IsoScore of the test sentences; linear CKA with the ancestor on the
dev sentences; and the scores of linear probes on the train sentences.

PAIRS has runs at one layer with --init pretrained and random and several --train-fraction: from how many
labelled pairs on are random weights as good?

The drop of a model is what it loses on its last layers: its test score at the layer that is best on dev,
minus its test score at the last layer. The intervals are those of a bootstrap over test pairs, seeds of
pre-training and seeds of fine-tuning: a resample draws as many pairs as there are, as many seeds of
pre-training, and for each of these as many seeds of fine-tuning, all with replacement. All models are scored
on the same pairs.
"""

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from linear_probes import load_generator, probe_layers  # noqa: E402

from tmft.cka import linear_cka  # noqa: E402
from tmft.data import Examples, read_examples  # noqa: E402
from tmft.datasets.task_lookup import get_task  # noqa: E402
from tmft.evaluation.bootstrap import (  # noqa: E402
    CONFIDENCE_INTERVAL,
    NUM_RESAMPLES,
    count_rows,
    resample_spearman,
)
from tmft.evaluation.isotropy import iso_score  # noqa: E402
from tmft.io.formatting import markdown_table  # noqa: E402
from tmft.metrics import cosines, spearman  # noqa: E402
from tmft.reports.drawing import Line, draw_line, layer_ticks, save_figure  # noqa: E402
from tmft.reports.plots import STD_NOTE  # noqa: E402
from tmft.runs.predictions import read_predictions  # noqa: E402
from tmft.runs.sweeps import group_into_sweeps, read_results  # noqa: E402
from tmft.sentence_encoder import SentenceEncoder  # noqa: E402

NAMES = {  # in the names of folders -> in tables and figures
    "mlm": "masked tokens",
    "rtd": "replaced tokens",
    "clm": "next token",
    "both": "next token, read both ways",
}
FROZEN = "Without fine-tuning: Spearman × 100"


@dataclass
class Tuned:
    """What the fine-tuning runs of an objective on one task gave at each layer; L layers, N test pairs.

    dev, test: {(seed of pre-training, seed of fine-tuning): scores x 100 at layers 0 .. L - 1}.
    predictions: the same keys -> (L, N). labels: (N,).
    """

    dev: dict[tuple[int, int], list[float]]
    test: dict[tuple[int, int], list[float]]
    predictions: dict[tuple[int, int], np.ndarray]
    labels: np.ndarray

    @property
    def best_layer(self) -> int:
        """The layer with the best mean score on dev."""
        return int(np.argmax(np.mean(list(self.dev.values()), axis=0)))


def split_name(name: str) -> tuple[str, int]:
    """Return the objective and the seed of a folder: "mlm-0" gives ("mlm", 0)."""
    objective, _, seed = name.rpartition("-")
    return objective, int(seed)


# ------------------------------------------------------------------------------------- without fine-tuning


def quantities(folder: Path, ancestor: Path, data: dict[str, Examples]) -> dict[str, list[float]]:
    """Return {title: values at each layer} of a checkpoint. data: {split: examples}."""
    model, other = (SentenceEncoder.from_pretrained(path, pooling="mean") for path in (folder, ancestor))

    def embeddings(encoder: SentenceEncoder, split: str) -> list:
        sentences = list(dict.fromkeys(data[split].sentences))
        return list(encoder.embed_token_ids(encoder.tokenize(sentences), encoder.forward_all_layers))

    token_ids = map(model.tokenize, data["test"].texts)
    u, v = (model.embed_token_ids(column, model.forward_all_layers) for column in token_ids)
    labels = data["test"].labels
    pairs = zip(embeddings(model, "dev"), embeddings(other, "dev"), strict=True)
    probes = probe_layers(model, sorted(set(data["train"].texts[0])), load_generator(str(ancestor), model))
    return {
        FROZEN: [100 * spearman(scores, labels) for (scores,) in zip(cosines(u, v), strict=True)],
        "IsoScore": [iso_score(x) for x in embeddings(model, "test")],
        "Linear CKA with the ancestor": [linear_cka(x, y) for x, y in pairs],
        "Own token: % right": [100 * probe.token_accuracy for probe in probes],
        "Next token: % right": [100 * probe.next_token_accuracy for probe in probes],
        "Replaced token: AUC × 100": [100 * probe.replaced_auc for probe in probes],
    }


# -------------------------------------------------------------------------------------------- fine-tuned


def read_tuned(runs: Path) -> dict[str, dict[str, Tuned]]:
    """Read the sweeps of all checkpoints: {task: {objective: Tuned}}."""
    tuned: dict[str, dict[str, Tuned]] = defaultdict(dict)
    for sweep in group_into_sweeps(read_results(runs)):
        objective, seed = split_name(sweep.name.removesuffix(f"-{sweep.data}"))
        # seed of fine-tuning -> the results of all layers
        columns: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for results in sweep.layers.values():
            for result in results:
                columns[result["settings"]["seed"]].append(result)
        entry = tuned[sweep.data].setdefault(objective, Tuned({}, {}, {}, np.zeros(0)))
        for tuning_seed, results in columns.items():
            key = seed, tuning_seed
            entry.dev[key], entry.test[key] = (
                [100 * result[split][sweep.metric] for result in results] for split in ("dev", "test")
            )
            predictions = [read_predictions(result["folder"]) for result in results]
            entry.predictions[key] = np.stack([predicted for predicted, _ in predictions])
            entry.labels = predictions[0][1]
    return tuned


def resample(model: Tuned, rng: np.random.Generator) -> np.ndarray:
    """Return the test scores x 100 of a model by layer in each of R resamples, (R, L).

    rng: draws the seeds. The test pairs are drawn by a generator of their own, the same for all models.
    """
    N = len(model.labels)
    pairs = np.random.default_rng(0).integers(N, size=(NUM_RESAMPLES, N))
    counts = count_rows(pairs, N)
    by_run = {
        key: np.stack([resample_spearman(layer, model.labels, counts) for layer in layers], axis=1)
        for key, layers in model.predictions.items()
    }
    return 100 * draw_seeds(by_run, rng)


def draw_seeds(by_run: dict[tuple[int, int], np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Return the mean over drawn seeds of pre-training, and over drawn seeds of fine-tuning within each.

    by_run: {(seed of pre-training, seed of fine-tuning): values of each resample, (R, ...)}. Returns
    (R, ...).
    """
    tuning_seeds: dict[int, list[int]] = defaultdict(list)
    for seed, tuning_seed in by_run:
        tuning_seeds[seed].append(tuning_seed)
    seeds, total = list(tuning_seeds), np.zeros_like(next(iter(by_run.values())))
    for r in range(len(total)):
        for seed in rng.choice(seeds, size=len(seeds)):
            drawn = rng.choice(tuning_seeds[seed], size=len(tuning_seeds[seed]))
            total[r] += np.mean([by_run[seed, tuning_seed][r] for tuning_seed in drawn], axis=0)
    return total / len(seeds)


def interval(values: np.ndarray) -> list[float]:
    """Return the mean of resampled values and the ends of their 95 % confidence interval."""
    return [float(values.mean()), *np.percentile(values, CONFIDENCE_INTERVAL).tolist()]


def comparisons(models: dict[str, Tuned]) -> list[dict[str, Any]]:
    """Compare models with each other: {"what", "mean", "low", "high"} for each comparison, x 100.

    models: {name: results}, all on the same test pairs.
    """
    models = {NAMES.get(name, name): model for name, model in models.items()}
    scores = {
        name: resample(model, np.random.default_rng(i + 1)) for i, (name, model) in enumerate(models.items())
    }
    best = {name: model.best_layer for name, model in models.items()}
    drops = {name: s[:, best[name]] - s[:, -1] for name, s in scores.items()}
    found = {f"drop of {name}, layer {best[name]} to the last": drop for name, drop in drops.items()}
    for one, other in combinations(models, 2):
        found[f"drop of {one} - drop of {other}"] = drops[one] - drops[other]
        found[f"last layer of {one} - that of {other}"] = scores[one][:, -1] - scores[other][:, -1]
        at_best = scores[one][:, best[one]] - scores[other][:, best[other]]
        found[f"best layer on dev: {one} - {other}"] = at_best
        layers = [scores[name].argmax(1) for name in (one, other)]
        found[f"number of the best layer on test: {one} - {other}"] = (layers[0] - layers[1]).astype(float)
    keys = "mean", "low", "high"
    return [{"what": what} | dict(zip(keys, interval(values), strict=True)) for what, values in found.items()]


# ------------------------------------------------------------------------------- measure, print and draw


def measure_checkpoints(checkpoints: Path, ancestor: Path, data_root: str | None) -> dict[str, Any]:
    """Return {"quantities": {title: {objective: values of all seeds at each layer}}}."""
    task = get_task("stsb", data_root=data_root)
    data = {split: read_examples(task, split) for split in ("train", "dev", "test")}
    values: dict[str, dict[str, list[list[float]]]] = defaultdict(dict)
    for objective in NAMES:
        folders = sorted(checkpoints.glob(f"{objective}-*"))
        seeds = [quantities(folder, ancestor, data) for folder in folders]
        for title in seeds[0] if seeds else ():
            values[title][objective] = [
                list(layer) for layer in zip(*(seed[title] for seed in seeds), strict=True)
            ]
    return {"quantities": values}


def measure_runs(runs: Path) -> dict[str, Any]:
    """Return {"fine_tuned": {task: {objective: scores of all runs}}, "comparisons": {task: [comparison]}}."""
    tuned = {
        task: {name: models[name] for name in NAMES if name in models}
        for task, models in read_tuned(runs).items()
    }
    return {
        "fine_tuned": {
            task: {
                name: {
                    split: {f"{seed}, {tuning_seed}": scores for (seed, tuning_seed), scores in runs.items()}
                    for split, runs in (("dev", model.dev), ("test", model.test))
                }
                for name, model in models.items()
            }
            for task, models in tuned.items()
        },
        "comparisons": {task: comparisons(models) for task, models in tuned.items()},
    }


Pairs = dict[str, dict[str, dict[str, list[float]]]]


def measure_pairs(runs: Path, total: int) -> Pairs:
    """Return {"pretrained" or "random": {"dev" or "test": {number of labelled pairs: scores of all seeds}}}.

    runs: their folder. total: how many training pairs --train-fraction is a part of. The scores are
    Spearman's correlations x 100.
    """
    scores: Pairs = {init: {"dev": {}, "test": {}} for init in ("pretrained", "random")}
    results = [result for _, result in read_results(runs)]
    for result in sorted(results, key=lambda result: result["settings"]["train_fraction"]):
        number = str(round(total * result["settings"]["train_fraction"]))
        for split, by_pairs in scores[result["settings"]["init"]].items():
            by_pairs.setdefault(number, []).append(100 * result[split]["spearman"])
    return scores


def pairs_table(scores: Pairs) -> str:
    """Return the table of measure_pairs as Markdown: test (dev), mean and standard deviation over seeds."""
    rows = [["labelled pairs", *(f"{init} weights" for init in scores)]]
    for number in scores["random"]["test"]:
        cells = []
        for by_split in scores.values():
            dev, test = by_split["dev"][number], by_split["test"][number]
            cells.append(
                f"{statistics.mean(test):.2f} ± {statistics.stdev(test):.2f} ({statistics.mean(dev):.2f})"
            )
        rows.append([f"{int(number):,}", *cells])
    return markdown_table(rows)


def score_table(models: dict[str, Any]) -> str:
    """Return the table of test (dev) scores by layer: mean and standard deviation over all runs.

    The best layer on dev is bold. models: an entry of "fine_tuned".
    """
    columns = []
    for name, scores in models.items():
        dev, test = (list(zip(*scores[split].values(), strict=True)) for split in ("dev", "test"))
        means = [statistics.mean(layer) for layer in dev]
        cells = [NAMES[name]]
        for mean_of_dev, of_test in zip(means, test, strict=True):
            cell = f"{statistics.mean(of_test):.2f} ± {statistics.stdev(of_test):.2f}"
            cell = f"**{cell}**" if mean_of_dev == max(means) else cell
            cells.append(f"{cell} ({mean_of_dev:.2f})")
        columns.append(cells)
    layers = ["layer", *map(str, range(len(columns[0]) - 1))]
    return markdown_table([list(row) for row in zip(layers, *columns, strict=True)])


def print_tables(content: dict[str, Any]) -> None:
    """Print all tables as Markdown. content: that of --json."""
    for task, models in content["fine_tuned"].items():
        print(f"\n{task}, fine-tuned: test (dev), Spearman x 100\n\n{score_table(models)}")
        head = ["", "mean", "from", "to", "can be told apart"]
        rows = [
            [entry["what"], *(f"{entry[key]:+.2f}" for key in ("mean", "low", "high"))]
            + ["yes" if entry["low"] > 0 or entry["high"] < 0 else "no"]
            for entry in content["comparisons"][task]
        ]
        print(f"\n{markdown_table([head, *rows])}")
    for title, models in content["quantities"].items():
        head = ["layer", *(NAMES[name] for name in models)]
        columns = [[f"{statistics.mean(seeds):.2f}" for seeds in layers] for layers in models.values()]
        rows = [[str(layer), *row] for layer, row in enumerate(zip(*columns, strict=True))]
        print(f"\n{title}\n\n{markdown_table([head, *rows])}")


def panels(content: dict[str, Any]) -> dict[str, dict[str, list[list[float]]]]:
    """Return {title: {name: values of all seeds at each layer}}, as panels_by_layer draws them."""
    drawn = {}
    for task, models in content["fine_tuned"].items():
        drawn[f"Fine-tuned on {task}: test Spearman × 100"] = {
            NAMES[name]: [list(layer) for layer in zip(*scores["test"].values(), strict=True)]
            for name, scores in models.items()
        }
    for title, models in content["quantities"].items():
        drawn[title] = {NAMES[name]: layers for name, layers in models.items()}
    return drawn


def panels_by_layer(panels: dict[str, dict[str, list[list[float]]]], path: Path, columns: int = 2) -> None:
    """Draw several quantities by layer, each in a panel of its own with a line per model.

    A line is the mean over seeds, with a band of one sample standard deviation (n - 1) to both sides.
    panels: {title: {name of a model: values of all seeds at layers 0, 1, ...}}; the first panel has all
    models. path: the figure to write. columns: number of panels side by side.
    """
    names = list(next(iter(panels.values())))

    def draw(*all_axes: Any) -> None:
        drawn, unused = all_axes[: len(panels)], all_axes[len(panels) :]
        for axes in unused:
            axes.set_visible(False)
        for axes, (title, lines) in zip(drawn, panels.items(), strict=True):
            axes.set_title(title, fontsize=9)
            for name, values in lines.items():
                means = [statistics.mean(seeds) for seeds in values]
                stds = [statistics.stdev(seeds) if len(seeds) > 1 else 0.0 for seeds in values]
                draw_line(axes, Line(name, range(len(values)), means, stds), names.index(name))
            layer_ticks(axes.xaxis)
            axes.set_xlabel("Layer")
        handles, labels = all_axes[0].get_legend_handles_labels()
        all_axes[0].figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))

    rows = math.ceil(len(panels) / columns)
    title = "Several quantities by layer: " + ", ".join(panels)
    save_figure(
        draw, path, lines=2, widths=[3.6] * columns, height=2.2, rows=rows, description=title, note=STD_NOTE
    )


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--checkpoints", type=Path, help="folder of the checkpoints")
    p.add_argument("--runs", type=Path, help="folder of the runs of fine-tuning")
    p.add_argument("--ancestor", type=Path, default=ROOT / "data/twins/mlm")
    p.add_argument("--pairs", type=Path, help="folder of the runs with parts of the labelled pairs")
    p.add_argument("--data-root")
    p.add_argument("--json", type=Path, required=True)
    p.add_argument("--plot", type=Path)
    args = p.parse_args()
    content: dict[str, Any] = json.loads(args.json.read_text(encoding="utf-8")) if args.json.exists() else {}
    if args.checkpoints:
        content |= measure_checkpoints(args.checkpoints, args.ancestor, args.data_root)
    if args.runs:
        for key, by_task in measure_runs(args.runs).items():
            content[key] = content.get(key, {}) | by_task
    if args.pairs:
        total = len(read_examples(get_task("stsb", data_root=args.data_root), "train").labels)
        content = measure_pairs(args.pairs, total)
    if args.checkpoints or args.runs or args.pairs:
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if "fine_tuned" in content:
        print_tables(content)
        if args.plot:
            panels_by_layer(panels(content), args.plot)
    else:
        print(pairs_table(content))
