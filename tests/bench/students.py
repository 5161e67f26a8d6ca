"""Compare distilled students with their teacher and with a student of sentence-transformers.

    python tests/bench/students.py peer --ckpt FOLDER --text lines.txt --keep-layers 1 3 5 --out FOLDER
    python tests/bench/students.py steps --ckpt FOLDER --text lines.txt --layer 3
    python tests/bench/students.py table --out students.svg distilled=runs/a distilled=runs/b teacher=FOLDER
    python tests/bench/students.py scaling --json scaling.json narrow=runs/a narrow=runs/b

peer: train a student with the recipe of sentence-transformers for fewer layers: evenly spaced layers learn
the embeddings of the whole model by MSELoss, with SentenceTransformerTrainer (needs datasets and accelerate).
Source: its example model_distillation.py, whose batch size of 64, learning rate of 1e-4 and warm-up are the
defaults here.

steps: time a step of distillation, and one of that trainer.

table: KIND=MODEL or KIND=MODEL@LAYER, in any order; the models of a kind are connected in the figure. For
each model the table has the mean Spearman x 100 of STS12-16, STSB and SICK-R, the sentences per second, and
the size of its files. With --peer, the whole model in sentence-transformers is timed as well.

scaling: KIND=RUN, runs of distillation: what more text, more epochs and more parameters are worth. --json
keeps what was measured; without runs, the table is made of it again.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from bench import measure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
from tmft import SentenceEncoder
from tmft.data import Examples
from tmft.datasets.task_lookup import get_task, read_split
from tmft.evaluation.evaluators import EVALUATORS
from tmft.export.export import folder_size
from tmft.export.quantization import ENCODE_PRECISIONS, set_encode_precision
from tmft.io.formatting import markdown_table
from tmft.loop import Recipe, fit
from tmft.pretraining.corpus import read_nonempty_lines
from tmft.reports.drawing import line_style, log_ticks, save_figure
from tmft.students.distillation_loss import EmbeddingDistillation
from tmft.tasks import TASKS
from tmft.training_task import TrainingTask

STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")


def peer(args) -> None:
    """Train and save the student of sentence-transformers."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.losses import MSELoss

    lines = args.text.read_text(encoding="utf-8").splitlines()[: args.lines]
    # the same embeddings as those of sentence-transformers, computed faster
    vectors = SentenceEncoder.from_pretrained(args.ckpt).encode(lines, show_progress_bar=True)
    student = SentenceTransformer(str(args.ckpt), device="cpu")
    encoder = student[0].auto_model.encoder
    encoder.layer = torch.nn.ModuleList(encoder.layer[index] for index in args.keep_layers)
    student[0].auto_model.config.num_hidden_layers = len(args.keep_layers)
    data = Dataset.from_dict({"sentence": lines, "label": vectors.tolist()})
    arguments = Arguments(
        tempfile.mkdtemp(), num_train_epochs=args.epochs, per_device_train_batch_size=args.batch_size,
        learning_rate=args.lr, warmup_ratio=0.1, weight_decay=0.01, bf16=args.bf16, use_cpu=True,
        report_to="none", save_strategy="no", logging_steps=100,
    )  # fmt: skip
    start = time.perf_counter()
    trainer = SentenceTransformerTrainer(student, arguments, train_dataset=data, loss=MSELoss(student))
    trainer.train()
    print(f"{time.perf_counter() - start:.0f} s")
    student.save_pretrained(str(args.out))


def steps(args) -> None:
    """Time a step of distillation with tmft and with SentenceTransformerTrainer."""
    from bench_train import trainer_round, truncated_sentence_transformer
    from sentence_transformers.losses import MSELoss

    lines = args.text.read_text(encoding="utf-8").splitlines()[: args.batch_size * args.steps]
    teacher = SentenceEncoder.from_pretrained(args.ckpt)
    target = torch.from_numpy(teacher.encode(lines))
    dev = Examples((lines[:4], lines[4:8]), [0.0, 1.0, 2.0, 3.0])
    objective_args = {"teacher": str(args.ckpt), "text": (str(args.text),)}
    task = replace(TASKS["distillation"], objective_args=objective_args)

    def ours(precision):
        model = SentenceEncoder.from_pretrained(args.ckpt, args.layer)
        recipe = Recipe(epochs=2, batch_size=args.batch_size, precision=precision)

        def run():
            examples = {"train": Examples((lines,), target), "dev": dev}
            training_task = TrainingTask(task, EmbeddingDistillation(model.dimensions, task), examples)
            _, epoch = fit(model, training_task, recipe, seed=0)
            return 1000 * args.batch_size / epoch.pairs_per_second

        return run

    def theirs(bf16):
        model = truncated_sentence_transformer(args.ckpt, args.layer)
        columns = {"sentence": lines, "label": target.tolist()}
        return trainer_round(model, columns, MSELoss(model), args.batch_size, bf16)

    peers = {
        "SentenceTransformerTrainer, MSELoss": theirs(False),
        "SentenceTransformerTrainer, MSELoss, bf16": theirs(True),
        "tmft fp32": ours("fp32"),
        "tmft bf16": ours("bf16"),
    }
    print(f"a step of {args.batch_size} lines, first {args.layer} layers, embeddings computed before")
    measure(peers, args.rounds, "ms", "tmft fp32", "tmft bf16")


def sts_scores(model: SentenceEncoder, data_root: str | None) -> dict[str, float]:
    """Return {name of a task of STS: test Spearman x 100}."""
    scores = {}
    for name in STS:
        task = get_task(name, data_root=data_root)
        evaluate, encode = EVALUATORS[task.task_type], partial(model.encode, convert_to_tensor=True)
        of_task = evaluate(encode, task=task, read_split=partial(read_split, task), split="test")
        scores[name] = 100 * of_task[task.metric]
    return scores


def table(args) -> None:
    """Print the table of all models and draw the figure."""
    named = [text.partition("=")[::2] for text in args.models]
    models = [(kind, *model.partition("@")[::2]) for kind, model in named]
    sentences = read_split(get_task("stsb", data_root=args.data_root), "train").texts[0][: args.sentences]
    scores, sizes, runs = {}, {}, {}

    def timed(model):
        def run():
            start = time.perf_counter()
            model.encode(sentences)
            return len(sentences) / (time.perf_counter() - start)

        return run

    for kind, folder, layer in models:
        model = SentenceEncoder.from_pretrained(folder, layer or None)
        by_task = sts_scores(model, args.data_root)
        name = f"{kind} {len(model.encoder.layers)}"
        scores[name], sizes[name] = mean(by_task.values()), folder_size(Path(folder)) / 1e6
        for precision in ENCODE_PRECISIONS:
            fast = SentenceEncoder.from_pretrained(folder, layer or None)
            set_encode_precision(fast, precision)
            runs[f"{name}, {precision}"] = timed(fast)
        print(f"{name}: {scores[name]:.2f}", *(f"{task} {score:.2f}" for task, score in by_task.items()))
    if args.peer:
        from sentence_transformers import SentenceTransformer

        runs["sentence-transformers, default settings"] = timed(
            SentenceTransformer(str(args.peer), device="cpu")
        )
    speeds = measure(runs, args.rounds, "sentences/s", *list(runs)[-1:])
    rows = [["model", "mean", "MB", *(f"{precision}, sentences/s" for precision in ENCODE_PRECISIONS)]]
    lines: dict[str, list] = {}
    for name, score in scores.items():
        fast = [speeds[f"{name}, {precision}"] for precision in ENCODE_PRECISIONS]
        rows.append([name, f"{score:.2f}", f"{sizes[name]:.1f}", *(f"{speed:,.0f}" for speed in fast)])
        kind, _, layers = name.rpartition(" ")
        label = f"{sizes[name]:.0f} MB"
        # int8 is not drawn: it has a score of its own
        lines.setdefault(kind, []).append((label, max(fast[:2]), score, sizes[name]))
    if args.peer:
        score, size = next((score, sizes[name]) for name, score in scores.items() if "teacher" in name)
        lines["sentence-transformers"] = [("float32", [*speeds.values()][-1], score, size)]
    print(markdown_table([[*row, ""] for row in rows]))
    draw(lines, args.out)
    print(f"wrote {args.out}")


def measure_run(kind: str, folder: Path, data_root: str | None) -> dict[str, Any]:
    """Return what the figure of scaling needs of a run of distillation, as it is written to --json."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    lines = set(read_nonempty_lines([Path(text) for text in result["arguments"]["text"]]))
    return {
        "kind": kind,
        "run": folder.name,
        "lines": min(len(lines), result["arguments"]["max_lines"] or len(lines)),
        "epochs": len(result["epochs"]),
        "parameters": result["parameters"]["stored"],
        "minutes": result["seconds"] / 60,
        "dev": 100 * result["dev"]["spearman"],
        "test": sts_scores(SentenceEncoder.from_pretrained(folder), data_root),
    }


def scaling(args) -> None:
    """Measure runs of distillation, and print the table of what text and parameters are worth."""
    if args.runs:
        named = [text.partition("=")[::2] for text in args.runs]
        runs = [measure_run(kind, Path(folder), args.data_root) for kind, folder in named]
        args.json.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    runs = json.loads(args.json.read_text(encoding="utf-8"))
    print(scaling_table(runs))


def scaling_table(runs: list[dict[str, Any]]) -> str:
    """Return the table of runs as Markdown. runs: those of measure_run."""
    rows = [["student", "parameters", "lines", "epochs", "minutes", "STSB dev", "mean of seven"]]
    for run in runs:
        numbers = [f"{run['parameters'] / 1e6:.2f} M", f"{run['lines']:,}", str(run["epochs"])]
        scores = [f"{run['dev']:.2f}", f"{mean(run['test'].values()):.2f}"]
        rows.append([run["kind"], *numbers, f"{run['minutes']:.0f}", *scores])
    return markdown_table(rows)


def draw(kinds: dict[str, list[tuple[str, float, float, float]]], path: Path) -> None:
    """Draw scores against speeds, with a line per kind; the area of a mark is proportional to the size.

    kinds: kind -> (label, sentences per second, score, MB) of each model of the kind.
    """

    def on(axes):
        for number, (kind, points) in enumerate(kinds.items()):
            points = sorted(points, key=lambda point: point[1])
            speeds, scores = [point[1] for point in points], [point[2] for point in points]
            style = line_style(number)
            axes.plot(speeds, scores, **style | {"marker": None}, zorder=2)
            areas = [20 + 4 * megabytes for *_, megabytes in points]
            axes.scatter(speeds, scores, areas, color=style["color"], alpha=0.75, zorder=3)
            below = number % 2  # in turn, so that the texts of neighbors do not overlap
            for label, speed, score, _ in points:
                place = {"xytext": (0, -12 if below else 12), "textcoords": "offset points"}
                place |= {"ha": "center", "va": "top" if below else "bottom"}
                axes.annotate(f"{kind}, {label}", (speed, score), fontsize=7, **place)
        log_ticks(axes, [speed for points in kinds.values() for _, speed, *_ in points])
        axes.set_xlabel("sentences per second, the faster one of float32 and bf16 (log scale)")
        axes.set_ylabel("mean Spearman x 100, seven STS data sets")
        axes.margins(0.2, 0.25)

    save_figure(
        on,
        path,
        widths=(6.4,),
        height=3.6,
        title="Small sentence encoders: quality against speed",
        note="The area of a mark grows with the size of the model's files. Two threads of one CPU.",
        description="Mean Spearman of seven STS data sets against sentences per second, for each model.",
    )


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = p.add_subparsers(dest="command", required=True)
    one = parts.add_parser("peer")
    one.add_argument("--ckpt", type=Path, required=True)
    one.add_argument("--text", type=Path, required=True)
    one.add_argument(
        "--keep-layers", type=int, nargs="+", default=[1, 3, 5], help="indices of layers, from 0"
    )
    one.add_argument("--lines", type=int, help="use the first lines of the text only; default: all")
    one.add_argument("--epochs", type=float, default=1)
    one.add_argument("--batch-size", type=int, default=64)
    one.add_argument("--lr", type=float, default=1e-4)
    one.add_argument("--bf16", action="store_true")
    one.add_argument("--out", type=Path, required=True)
    step = parts.add_parser("steps")
    step.add_argument("--ckpt", type=Path, required=True)
    step.add_argument("--text", type=Path, required=True)
    step.add_argument("--layer", type=int, default=3)
    step.add_argument("--batch-size", type=int, default=128)
    step.add_argument("--steps", type=int, default=6)
    step.add_argument("--rounds", type=int, default=5)
    other = parts.add_parser("table")
    other.add_argument("models", nargs="+", metavar="KIND=MODEL[@LAYER]")
    other.add_argument("--data-root")
    other.add_argument("--peer", type=Path, help="also time sentence-transformers with this model")
    other.add_argument("--rounds", type=int, default=5)
    other.add_argument("--sentences", type=int, default=1000)
    other.add_argument("--out", type=Path, default=Path("students.svg"))
    last = parts.add_parser("scaling")
    last.add_argument("runs", nargs="*", metavar="KIND=RUN")
    last.add_argument("--data-root")
    last.add_argument("--json", type=Path, required=True, help="what was measured")
    args = p.parse_args()
    {"peer": peer, "steps": steps, "table": table, "scaling": scaling}[args.command](args)


if __name__ == "__main__":
    main()
