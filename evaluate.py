"""Score a checkpoint or a saved model on sentence similarity, at its last layer, at one layer or at all.

    python evaluate.py runs/<name>                                     a run, on the task it learnt
    python evaluate.py google/electra-base-discriminator --layer all   every layer in one forward pass
    python evaluate.py google/electra-base-discriminator --layer all --isotropy   and how each fills space
    python evaluate.py sentence-transformers/all-MiniLM-L6-v2 --task stsb sts12 sts13 sts14 sts15 sts16 sickr
    python evaluate.py --report runs/                                  tables and figures of finished runs

Scores are x 100: correlations of the cosine with the human score, or what else the row of TASKS names.
A task with classes takes its threshold from dev, or its head from the run that learnt it. STS12-16 have
several subsets a year: Spearman is over all pairs of the year at once ("all", as in most papers), and the
mean over its subsets stands beside it. STSB and others are fetched where they are absent.
"""

from functools import cache, partial
from pathlib import Path

from tmft.data import SPLITS, TASKS, Task
from tmft.datasets.find import find_task, read_split
from tmft.device import choose_device
from tmft.errors import CommandLine, InputError, run_command
from tmft.evaluation.suites import ISOTROPY, SUITES, EveryLayer, isotropy
from tmft.files.folder import check_writable, write_file
from tmft.pooling import POOLINGS
from tmft.runs.folder import load_objective, read_result
from tmft.runs.report import make_report
from tmft.runs.tables import NOT_SCORES, as_json, bar, percent, table
from tmft.sentence import SentenceEncoder


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if args.report:
        return report(args.report, args.out or args.report / "report")
    check_writable(args.json)
    learnt = what_it_learnt(args.model)
    tasks = find_tasks(args, learnt.get("settings", {}), learnt.get("arguments", {}))
    reads = {name: cache(partial(read_split, task)) for name, task in tasks.items()}
    if args.isotropy and (classes := [name for name, task in tasks.items() if task.classes]):
        raise InputError(f"--isotropy with {classes[0]}: choose a task of graded similarity, such as stsb")
    for read in reads.values():
        read(args.split)  # now, as something may be wrong with it
    model = SentenceEncoder.load(args.model, last_layer(args.layer), args.pooling, args.max_length)
    model = model.to(choose_device(args.device))
    print(f"{args.model}: {model.report}\npooling {model.pooling}, at most {model.max_length} tokens")

    last = len(model.encoder.layers)
    layers = list(range(last + 1)) if args.layer == "all" else [last]
    every_layer = EveryLayer(model, layers)
    results: dict[int, dict[str, dict]] = {layer: {} for layer in layers}  # layer -> task -> scores
    for name, task in tasks.items():
        same = learnt.get("arguments", {}).get("task") == name and args.layer is None
        threshold = learnt.get("dev", {}).get("threshold") if same else None
        objective = load_objective(task, model.dimensions, Path(args.model))
        if args.layer is not None and list(objective.parameters()):
            raise InputError(
                f"--layer {args.layer}: the head of {task.objective} fits the layer it learnt: leave it out"
            )
        for layer in layers:
            encode = every_layer.encode(layer)
            results[layer][name] = SUITES[task.suite](
                encode, task, reads[name], args.split, objective, threshold
            )
            if args.isotropy:
                results[layer][name] |= isotropy(encode, task, reads[name](args.split))

    print(f"\n{layer_table(results, tasks) if len(layers) > 1 else task_table(results[last])}")
    if args.isotropy:
        for name in tasks:
            print(f"\n{name}\n{isotropy_table({layer: results[layer][name] for layer in layers})}")
    if args.json:
        content = {"model": args.model, "split": args.split, "pooling": model.pooling, "layers": results}
        write_file(args.json, as_json(content))
        print(f"\nwrote {args.json}")


def report(runs: Path, out: Path) -> None:
    """Print the tables of all finished runs below a folder, and what was written."""
    made = make_report(runs, out)
    for title, lines in made.tables.items():
        print(f"{title}\n{table(lines)}\n")
    print(*made.absent, f"wrote {', '.join(map(str, made.files))}", sep="\n")


def what_it_learnt(model: str) -> dict:
    """The result of the run that made this model, {} if train.py did not."""
    result = read_result(Path(model)) if (Path(model) / "result.json").is_file() else {}
    return result if "test" in result else {}  # a pre-training run has learnt no task


def find_tasks(args, settings: dict, arguments: dict) -> dict[str, Task]:
    """{name: task} as asked for; a model of train.py is scored on what it learnt, unless told otherwise."""
    names, data, data_root, score_range = args.task, args.data, args.data_root, args.score_range
    objective = metric = None
    if settings and names is None and data is None:
        names = [arguments.get("task") or "stsb"]
        data, data_root = arguments.get("data"), data_root or arguments.get("data_root")
        score_range = score_range or arguments.get("score_range")
        objective, metric = settings["task"]["objective"], settings["task"]["metric"]
    names = names or ["stsb"]
    if data is not None and len(names) > 1:
        raise InputError("--data replaces the files of one task: give one --task with it, or use --data-root")
    return {name: find_task(name, data, data_root, score_range, objective, metric) for name in names}


def last_layer(text: str | None) -> int | None:
    """--layer as a number; None keeps them all."""
    if text is None or text == "all":
        return None
    if not text.isdecimal():
        raise InputError(f"--layer {text}: write a number, or all")
    return int(text)


def task_table(results: dict[str, dict]) -> str:
    """A line per task, a column per metric that any of them has."""
    beside = (*NOT_SCORES, *ISOTROPY)
    names = list(dict.fromkeys(name for result in results.values() for name in result if name not in beside))
    parts = any("subsets" in result for result in results.values())
    lines = [["task", "pairs", *names, *["mean of subsets"] * parts, ""]]
    for task, result in results.items():
        values = [percent(result[name]) if name in result else "" for name in names]
        subsets = (
            f"{percent(result['subset_mean'])} ({len(result['subsets'])})" if "subsets" in result else ""
        )
        lines.append([task, str(result["pairs"]), *values, *[subsets] * parts, ""])
    return table(lines)


def layer_table(results: dict[int, dict[str, dict]], tasks: dict[str, Task]) -> str:
    """A line per layer, a column per task with its own metric; and a bar of their mean, to see the curve."""
    curves = [[result[name][task.metric] for name, task in tasks.items()] for result in results.values()]
    means = [sum(curve) / len(curve) for curve in curves]
    lines = [["layer", *tasks, ""]]
    for i, layer in enumerate(results):
        lines.append([str(layer), *(percent(score) for score in curves[i]), bar(means, i)])
    return table(lines)


def isotropy_table(layers: dict[int, dict]) -> str:
    """A line per layer of one task: its scores and its isotropy, raw."""
    first = next(iter(layers.values()))
    names = [name for name, value in first.items() if isinstance(value, float) and name != "subset_mean"]
    lines = [["layer", *(name.replace("_", " ") for name in names), ""]]
    curve = [scores[names[0]] for scores in layers.values()]
    for layer, scores in layers.items():
        lines.append([str(layer), *(f"{scores[name]:.4f}" for name in names), bar(curve, layer)])
    return table(lines)


# fmt: off
def parse_args(argv: list[str] | None = None):
    p = CommandLine(__doc__)
    p.add_argument("model", nargs="?", help="hub id[@revision], or folder of train.py or transformers")
    scoring, option = p.group("scoring")
    option("--task", nargs="+", help=f"of {', '.join(TASKS)}; default: what the run learnt, else stsb")
    option("--split", choices=SPLITS, default="test", help="part of the task")
    option("--layer", help="score hidden state L; all: every one; default: the last")
    option("--isotropy", action="store_true", help="also how the embeddings fill their space")
    option("--pooling", help=f"{', '.join(POOLINGS)}, or as max+mean; default: what was saved, else mean")
    option("--max-length", type=int, metavar="TOKENS", help="default: all that fits")
    option("--data", metavar="FOLDER", help="folder of TSV files to use instead of the task's")
    option("--data-root", metavar="FOLDER", help="folder of task folders; default: data/")
    option("--score-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="default: the task's")
    option("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...; auto: a GPU if there is one")
    option("--json", type=Path, metavar="FILE", help="write the scores, not x 100, with all subsets")
    reports, option = p.group("reports")
    option("--report", type=Path, metavar="RUNS", help="tables and figures of the finished runs below")
    option("--out", type=Path, metavar="FOLDER", help="where the report goes; default: RUNS/report")
    args = p.parse_args(argv)
    if args.report:
        p.refuse(args, scoring, "--report")
        if args.model:
            raise InputError(f"{args.model} and --report: score a model, or make a report")
    else:
        p.refuse(args, reports, "a model")
        p.one_of(args, "data", "data_root")
        if args.model is None:
            raise InputError("no model: name a hub id or a folder, or use --report RUNS")
    return args
# fmt: on


if __name__ == "__main__":
    run_command(main)
