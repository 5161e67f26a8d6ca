"""Score a checkpoint or a saved model on sentence similarity, at its last layer, at one layer or at all.

    python evaluate.py runs/<name>                                     a run, on the task it learnt
    python evaluate.py google/electra-base-discriminator --layer all   every layer in one forward pass
    python evaluate.py sentence-transformers/all-MiniLM-L6-v2 --task stsb sts12 sts13 sts14 sts15 sts16 sickr
    python evaluate.py --report runs/                                  tables and figures of finished runs

Scores are correlations x 100 of the cosine with the human score. STS12-16 have several subsets a year:
Spearman is over all pairs of the year at once ("all", as in most papers), and the mean over its subsets
stands beside it.
"""

import argparse
import json
import sys
from pathlib import Path

from tmft.data import SPLITS, TASKS, Task, find_task, read_pairs
from tmft.errors import InputError, run_command
from tmft.files import read_json, write_file
from tmft.metrics import scores
from tmft.report import as_json, best_layers, by_task, layer_by_layer, markdown, read_sweeps
from tmft.results import bar, open_run, percent, table, without_nan
from tmft.rows import POOLINGS
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
    tasks = find_tasks(args)
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
    for name, pairs in splits.items():
        progress = sys.stderr.isatty()
        cosines = model.similarities(pairs.sentence1, pairs.sentence2, every_layer, progress)
        for layer, predicted in zip(layers, cosines if every_layer else [cosines], strict=True):
            results[layer][name] = scores(predicted, pairs)

    print(f"\n{layer_table(results) if every_layer else task_table(results[last])}")
    if args.json:
        content = {"model": args.model, "split": args.split, "pooling": model.pooling, "layers": results}
        write_file(args.json, json.dumps(without_nan(content), indent=2) + "\n")
        print(f"\nwrote {args.json}")


def report(runs: Path, out: Path) -> None:
    """Print the tables of all finished runs below a folder; write them and the figures of them to `out`."""
    sweeps = read_sweeps(runs)
    page = [f"# Runs in {runs.name}\n"]
    for data, group in by_task(sweeps).items():
        tables = {f"{data}: each run at the layer that is best on dev": best_layers(group)}
        tables |= {f"{sweep.name}: by layer": layer_by_layer(sweep) for sweep in group}
        for title, lines in tables.items():
            print(f"{title}\n{table(lines)}\n")
            page.append(f"## {title}\n\n{markdown(lines)}")
    open_run(out)
    write_file(out / "report.md", "\n".join(page))
    write_file(out / "report.json", json.dumps(without_nan(as_json(sweeps)), indent=2) + "\n")
    print(f"wrote {out / 'report.md'}, {out / 'report.json'}")


def find_tasks(args) -> dict[str, Task]:
    """{name: task} as asked for; a model of train.py is scored on what it learnt, unless told otherwise."""
    trained = Path(args.model) / "result.json"
    if args.task is None and args.data is None and trained.is_file():
        arguments = read_json(trained).get("arguments", {})
        args.task = [arguments.get("task") or "stsb"]
        for option in ("data", "data_root", "score_range"):
            setattr(args, option, getattr(args, option) or arguments.get(option))
    names = args.task or ["stsb"]
    if args.data is not None and len(names) > 1:
        raise InputError("--data replaces the files of one task: give one --task with it, or use --data-root")
    return {name: find_task(name, args.data, args.data_root, args.score_range) for name in names}


def task_table(results: dict[str, dict]) -> str:
    """A line per task."""
    lines = [["task", "pairs", "Spearman", "Pearson", "mean of subsets", ""]]
    for name, result in results.items():
        subsets = (
            f"{percent(result['subset_mean'])} ({len(result['subsets'])})" if "subsets" in result else ""
        )
        correlations = [percent(result["spearman"]), percent(result["pearson"])]
        lines.append([name, str(result["pairs"]), *correlations, subsets, ""])
    return table(lines)


def layer_table(results: dict[int, dict[str, dict]]) -> str:
    """A line per layer, a column per task, Spearman; and a bar of their mean, to see the curve."""
    tasks = list(results[0])
    means = [sum(result[name]["spearman"] for name in tasks) / len(tasks) for result in results.values()]
    lines = [["layer", *tasks, ""]]
    for i, (layer, result) in enumerate(results.items()):
        lines.append([str(layer), *(percent(result[name]["spearman"]) for name in tasks), bar(means, i)])
    return table(lines)


if __name__ == "__main__":
    run_command(main)
