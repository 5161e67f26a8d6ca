"""Compare distilled students with their teacher and draw the figure of docs/students.md.

    python tests/bench/students.py --out students.svg distilled=runs/a distilled=runs/b teacher=FOLDER

KIND=MODEL or KIND=MODEL@LAYER, in any order; the models of a kind are connected in the figure. For each model
the table has the mean Spearman x 100 of STS12-16, STSB and SICK-R, the sentences per second, and the size of
its files. With --peer, the whole model in sentence-transformers is timed as well.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from statistics import mean

from bench import measure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
from tmft import SentenceEncoder
from tmft.datasets.task_lookup import get_task, read_split
from tmft.evaluation.evaluators import EVALUATORS
from tmft.export.export import folder_size
from tmft.export.quantization import ENCODE_PRECISIONS, set_encode_precision
from tmft.io.formatting import markdown_table
from tmft.reports.drawing import line_style, log_ticks, save_figure

STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")


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
    p.add_argument("models", nargs="+", metavar="KIND=MODEL[@LAYER]")
    p.add_argument("--data-root")
    p.add_argument("--peer", type=Path, help="also time sentence-transformers with this model")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--sentences", type=int, default=1000)
    p.add_argument("--out", type=Path, default=Path("students.svg"))
    table(p.parse_args())


if __name__ == "__main__":
    main()
