"""Score a checkpoint or a saved model on sentence similarity, at its last layer, at one layer or at all.

    python evaluate.py runs/<name>                                     a run, on the task it learnt
    python evaluate.py google/electra-base-discriminator --layer all   every layer in one forward pass
    python evaluate.py sentence-transformers/all-MiniLM-L6-v2 --task stsb sts12 sts13 sts14 sts15 sts16 sickr
    python evaluate.py --report runs/                                  tables and figures of finished runs

Scores are x 100: correlations of the cosine with the human score, or what else the row of TASKS names.
A task with classes takes its threshold from dev, or its head from the run that learnt it. STS12-16 have
several subsets a year: Spearman is over all pairs of the year at once ("all", as in most papers), and the
mean over its subsets stands beside it.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tmft.data import SPLITS, TASKS, Pairs, Task, find_task, read_pairs
from tmft.errors import InputError, run_command
from tmft.files.weights import read_json, write_file
from tmft.metrics import METRICS, at_threshold, scores
from tmft.objectives import load_objective
from tmft.rows import POOLINGS
from tmft.runs import plots
from tmft.runs.folder import bar, open_run, percent, table, without_nan
from tmft.runs.report import (
    as_json,
    best_layers,
    by_task,
    layer_by_layer,
    markdown,
    pretraining,
    pretraining_of,
    read_results,
    sweeps_of,
)
from tmft.sentence import SentenceEncoder
from tmft.training import choose_device


def parse_args(argv=None):
    show_defaults = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=show_defaults)
    p.add_argument(
        "model", nargs="?", help="hub id[@revision], or a folder that train.py or transformers saved"
    )
    p.add_argument(
        "--report",
        type=Path,
        metavar="RUNS",
        help="instead of scoring a model, make tables and figures of the finished runs below this folder",
    )
    p.add_argument("--out", type=Path, metavar="FOLDER", help="where the report goes; None: RUNS/report")
    p.add_argument("--task", nargs="+", metavar="TASK", help=f"of {', '.join(TASKS)}")
    p.add_argument("--layer", help="score hidden state L; all: every one; None: the last")
    p.add_argument("--split", choices=SPLITS, default="test", help="part of the task")
    p.add_argument("--pooling", choices=POOLINGS, help="None: mean, or what a saved model used")
    p.add_argument("--max-length", type=int, metavar="TOKENS", help="None: the limit of the checkpoint")
    p.add_argument("--data", metavar="FOLDER", help="folder of TSV files to use instead of the task's")
    p.add_argument("--data-root", metavar="FOLDER", help="folder of task folders; None: data/")
    p.add_argument(
        "--score-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="None: that of the task"
    )
    p.add_argument(
        "--device", default="auto", help="auto, cpu, cuda, cuda:1, ...; auto: a GPU if there is one"
    )
    p.add_argument("--json", type=Path, metavar="FILE", help="write the scores, not x 100, with all subsets")
    return p.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    if args.report:
        return report(args.report, args.out or args.report / "report")
    if args.model is None:
        raise InputError("no model: name a hub id or a folder, or use --report RUNS")
    learnt = what_it_learnt(args.model)
    tasks = find_tasks(args, learnt.get("arguments", {}))
    splits = {name: read_pairs(task, args.split) for name, task in tasks.items()}
    every_layer = args.layer == "all"
    if args.layer is not None and not every_layer and not args.layer.isdecimal():
        raise InputError(f"--layer {args.layer}: write a number, or all")
    layer = None if args.layer is None or every_layer else int(args.layer)
    model = SentenceEncoder.load(args.model, layer, args.pooling, args.max_length)
    model = model.to(choose_device(args.device))
    print(f"{args.model}: {model.report}\npooling {model.pooling}, at most {model.max_length} tokens")

    last = len(model.encoder.layers)
    layers = range(last + 1) if every_layer else [last]
    results: dict[int, dict[str, dict]] = {layer: {} for layer in layers}  # layer -> task -> scores
    for name, task in tasks.items():
        same = learnt.get("arguments", {}).get("task") == name and args.layer is None
        threshold = learnt.get("dev", {}).get("threshold") if same else None
        all_scores = score_task(args, model, task, splits[name], every_layer, threshold)
        for layer, score in zip(layers, all_scores, strict=True):
            results[layer][name] = score

    print(f"\n{layer_table(results, tasks) if every_layer else task_table(results[last])}")
    if args.json:
        content = {"model": args.model, "split": args.split, "pooling": model.pooling, "layers": results}
        write_file(args.json, json.dumps(without_nan(content), indent=2) + "\n")
        print(f"\nwrote {args.json}")


def report(runs: Path, out: Path) -> None:
    """Print the tables of all finished runs below a folder; write them and the figures of them to `out`."""
    finished = read_results(runs)
    sweeps, pretrained = sweeps_of(finished), pretraining_of(finished)
    if not sweeps and not pretrained:
        raise InputError(f"no finished run below {runs}: expected folders with a result.json")
    open_run(out)
    page = [f"# Runs in {runs.resolve().name}\n"]

    def show(title: str, lines: list[list[str]]) -> None:
        print(f"{title}\n{table(lines)}\n")
        page.append(f"## {title}\n\n{markdown(lines)}")

    for data, group in by_task(sweeps).items():
        show(f"{data}: each run at the layer that is best on dev", best_layers(group))
        for sweep in group:
            show(f"{sweep.name}: by layer", layer_by_layer(sweep))
        results = [run for sweep in group for runs in sweep.layers.values() for run in runs]
        figures = {"layers": plots.score_by_layer, "parameters": plots.score_by_parameters}
        for name, figure in figures.items():
            page.append(draw(f"{data}: score by {name}", figure, results, out / f"{data}-{name}.svg"))
    if pretrained:
        show("pre-training, on held-out lines", pretraining(pretrained))
        figure = out / "pretraining-masked.svg"
        page.append(draw("pre-training: masked tokens", plots.masked_loss_by_tokens, pretrained, figure))
    if electras := [result for result in pretrained if result["settings"]["task"] == "rtd"]:
        figure = out / "pretraining-replaced.svg"
        page.append(draw("pre-training: replaced tokens", plots.replaced_by_tokens, electras, figure))
    write_file(out / "report.md", "\n".join(page))
    write_file(out / "report.json", json.dumps(without_nan(as_json(sweeps)), indent=2) + "\n")
    print(f"wrote {out / 'report.md'}, {out / 'report.json'}")


def draw(title: str, figure: Callable, results: list[dict], path: Path) -> str:
    """Write a figure -> the Markdown that shows it; where there is none, say why."""
    try:
        figure(results, path)
    except InputError as error:  # no matplotlib, or nothing to draw
        print(f"no figure of {title}: {error}")
        return ""
    return f"![{title}]({path.name})\n"


def what_it_learnt(model: str) -> dict:
    """The result of the run that made this model, {} if train.py did not."""
    path = Path(model) / "result.json"
    result = read_json(path) if path.is_file() else {}
    return result if "test" in result else {}  # a pre-training run has learnt no task


def find_tasks(args, learnt: dict) -> dict[str, Task]:
    """{name: task} as asked for; a model of train.py is scored on what it learnt, unless told otherwise."""
    if learnt and args.task is None and args.data is None:
        args.task = [learnt.get("task") or "stsb"]
        for option in ("data", "data_root", "score_range"):
            setattr(args, option, getattr(args, option) or learnt.get(option))
    names = args.task or ["stsb"]
    if args.data is not None and len(names) > 1:
        raise InputError("--data replaces the files of one task: give one --task with it, or use --data-root")
    return {name: find_task(name, args.data, args.data_root, args.score_range) for name in names}


def score_task(
    args, model: SentenceEncoder, task: Task, pairs: Pairs, every_layer: bool, threshold: float | None
) -> list[dict]:
    """Scores of one split at the last layer, or at every one; threshold: the run's own, if it has one."""
    objective = load_objective(task, model.encoder.config.hidden_size, Path(args.model))
    if args.layer is not None and list(objective.parameters()):
        raise InputError(
            f"--layer {args.layer}: the head of {task.objective} fits the layer it learnt: leave it out"
        )

    def predict(pairs: Pairs) -> list[np.ndarray]:
        """What the objective predicts, of each layer."""
        u, v = model.embed_pairs(pairs.sentence1, pairs.sentence2, every_layer, sys.stderr.isatty())
        layers = zip(u, v, strict=True) if every_layer else [(u, v)]
        return [objective.predict(*layer) for layer in layers]

    predicted = predict(pairs)
    thresholds = [threshold] * len(predicted)
    if METRICS[task.metric] is at_threshold and threshold is None and args.split != "dev":
        dev = read_pairs(task, "dev")  # never the best threshold of the split that is reported
        thresholds = [at_threshold(layer, dev.scores)["threshold"] for layer in predict(dev)]
    return [scores(layer, pairs, task, cut) for layer, cut in zip(predicted, thresholds, strict=True)]


def task_table(results: dict[str, dict]) -> str:
    """A line per task, a column per metric that any of them has."""
    beside = ("pairs", "threshold", "subset_mean", "subsets")
    names = list(dict.fromkeys(name for result in results.values() for name in result if name not in beside))
    lines = [["task", "pairs", *names, "mean of subsets", ""]]
    for task, result in results.items():
        values = [percent(result[name]) if name in result else "" for name in names]
        subsets = (
            f"{percent(result['subset_mean'])} ({len(result['subsets'])})" if "subsets" in result else ""
        )
        lines.append([task, str(result["pairs"]), *values, subsets, ""])
    return table(lines)


def layer_table(results: dict[int, dict[str, dict]], tasks: dict[str, Task]) -> str:
    """A line per layer, a column per task with its own metric; and a bar of their mean, to see the curve."""
    curves = [[result[name][task.metric] for name, task in tasks.items()] for result in results.values()]
    means = [sum(curve) / len(curve) for curve in curves]
    lines = [["layer", *tasks, ""]]
    for i, layer in enumerate(results):
        lines.append([str(layer), *(percent(score) for score in curves[i]), bar(means, i)])
    return table(lines)


if __name__ == "__main__":
    run_command(main)
