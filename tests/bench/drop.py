"""What the drop in the last layers is made of: six figures by layer, of checkpoints with a common ancestor.

    python train.py --ckpt data/twins/mlm-then-rtd data/twins/mlm-then-mlm --layer all --num-seeds 3 --epochs 3 \\
        --lr 3e-4 --precision bf16 --output-dir runs/pair
    python tests/bench/drop.py --runs runs/pair --plot runs/drop.svg

Test Spearman x 100 on STS benchmark, tuned (the runs) and as it is; IsoScore of the test sentences; linear
CKA to the ancestor on the sentences of dev; and what linear probes read off the sentences of train.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tmft.cka import linear_cka  # noqa: E402
from tmft.data import Examples, read_examples  # noqa: E402
from tmft.datasets.task_lookup import get_task  # noqa: E402
from tmft.evaluation.isotropy import iso_score  # noqa: E402
from tmft.evaluation.probes import probe_layers, load_generator  # noqa: E402
from tmft.formatting import markdown_table  # noqa: E402
from tmft.metrics import cosines, spearman  # noqa: E402
from tmft.reports.plots import panels_by_layer  # noqa: E402
from tmft.runs.bootstrap import HIGH, LOW, read_predictions, resample_scores  # noqa: E402
from tmft.runs.sweeps import read_results, group_into_sweeps  # noqa: E402
from tmft.sentence_encoder import SentenceEncoder  # noqa: E402

TWINS = ROOT / "data/twins"


def figures(
    where: Path, ancestor: Path, runs: Path | None, data: dict[str, Examples]
) -> dict[str, list[float]]:
    """Title of a figure -> its value at each layer."""
    model, other = (SentenceEncoder.from_pretrained(folder, pooling="mean") for folder in (where, ancestor))

    def embeddings(of: SentenceEncoder, split: str) -> list:
        sentences = list(dict.fromkeys(data[split].sentences))
        return list(of.embed_token_ids(of.tokenize(sentences), all_layers=True))

    found = {}
    for sweep in group_into_sweeps(read_results(runs)) if runs else []:
        if sweep.name == f"{where.name}-{sweep.data}":
            found["Tuned: Spearman × 100"] = [100 * sweep.mean(layer, "test") for layer in sweep.layers]
    texts = data["test"].texts
    u, v = (model.embed_token_ids(model.tokenize(column), all_layers=True) for column in texts)
    scores = zip(cosines(u, v), strict=True)
    found["As it is: Spearman × 100"] = [100 * spearman(layer, data["test"].labels) for (layer,) in scores]
    found["IsoScore"] = [iso_score(x) for x in embeddings(model, "test")]
    pairs = zip(embeddings(model, "dev"), embeddings(other, "dev"), strict=True)
    found["Linear CKA to the ancestor"] = [linear_cka(x, y) for x, y in pairs]
    lines = sorted(set(data["train"].texts[0]))
    probes = probe_layers(model, lines, load_generator(str(ancestor), model))
    found["Replaced or not: area × 100"] = [100 * one.replaced for one in probes]
    found["Which word: % right"] = [100 * one.word for one in probes]
    return found


def intervals(runs: Path, names: list[str]) -> list[list[str]]:
    """Differences of the first two models on test, x 100, with 95 % of a paired bootstrap over test pairs and
    seeds: at each layer, and of what is lost from the first one's best layer to the last."""
    sweeps = {sweep.name.removesuffix(f"-{sweep.data}"): sweep for sweep in group_into_sweeps(read_results(runs))}
    one, other = (sweeps[name] for name in names[:2])

    def scores(sweep, layer: int) -> np.ndarray:
        runs = [(*read_predictions(run["folder"]), None) for run in sweep.layers[layer]]
        return 100 * resample_scores(sweep, runs)

    best, last = one.best_layer, max(one.layers)
    gaps = {f"layer {layer}": scores(other, layer) - scores(one, layer) for layer in one.layers}
    gaps["lost more"] = gaps[f"layer {last}"] - gaps[f"layer {best}"]
    bounds = {name: [gap.mean(), *np.percentile(gap, [LOW, HIGH])] for name, gap in gaps.items()}
    return [[name, *(f"{value:+.2f}" for value in of), " "] for name, of in bounds.items()]


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("models", nargs="*", type=Path, default=[TWINS / "mlm-then-rtd", TWINS / "mlm-then-mlm"])
    p.add_argument("--ancestor", type=Path, default=TWINS / "mlm")
    p.add_argument("--task", default="stsb")
    p.add_argument("--data-root")
    p.add_argument("--runs", type=Path, help="sweeps of the models")
    p.add_argument("--plot", type=Path)
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    task = get_task(args.task, data_root=args.data_root)
    data = {split: read_examples(task, split) for split in ("train", "dev", "test")}
    of = {model.name: figures(model, args.ancestor, args.runs, data) for model in args.models}
    panels = {title: {name: found[title] for name, found in of.items()} for title in next(iter(of.values()))}
    for title, lines in panels.items():
        layers = range(len(next(iter(lines.values()))))
        rows = [[str(layer), *(f"{values[layer]:.3f}" for values in lines.values()), " "] for layer in layers]
        print(f"\n{title}\n\n{markdown_table([['layer', *lines, ' '], *rows])}")
    if args.runs:
        names = [model.name for model in args.models]
        head = [f"{names[1]} - {names[0]}", "mean", "from", "to", " "]
        print(f"\n{markdown_table([head, *intervals(args.runs, names)])}")
    if args.json:
        args.json.write_text(json.dumps(panels, indent=2) + "\n", encoding="utf-8")
    if args.plot:
        panels_by_layer(panels, args.plot)
