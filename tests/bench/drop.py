"""Analyze the drop of scores in the last layers: six figures by layer, for checkpoints with one ancestor.

    python train.py --ckpt data/twins/mlm-then-rtd data/twins/mlm-then-mlm --layer all --num-seeds 3 --epochs
    3 \\
        --lr 3e-4 --precision bf16 --output-dir runs/pair
    python tests/bench/drop.py --runs runs/pair --plot runs/drop.svg

The figures are: test Spearman x 100 on STS benchmark, fine-tuned (from the runs) and without fine-tuning;
IsoScore of the test sentences; linear CKA with the ancestor on the dev sentences; and the accuracy of linear
probes on the train sentences.
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
from tmft.evaluation.probes import load_generator, probe_layers  # noqa: E402
from tmft.formatting import markdown_table  # noqa: E402
from tmft.metrics import cosines, spearman  # noqa: E402
from tmft.reports.plots import panels_by_layer  # noqa: E402
from tmft.runs.bootstrap import CONFIDENCE_INTERVAL, read_predictions, resample_scores  # noqa: E402
from tmft.runs.sweeps import group_into_sweeps, read_results  # noqa: E402
from tmft.sentence_encoder import SentenceEncoder  # noqa: E402

TWINS = ROOT / "data/twins"


def figures(
    folder: Path, ancestor: Path, runs: Path | None, data: dict[str, Examples]
) -> dict[str, list[float]]:
    """Return the figures of a model: title -> values at each layer. data: split -> examples."""
    model, other = (SentenceEncoder.from_pretrained(path, pooling="mean") for path in (folder, ancestor))

    def embeddings(encoder: SentenceEncoder, split: str) -> list:
        sentences = list(dict.fromkeys(data[split].sentences))
        return list(encoder.embed_token_ids(encoder.tokenize(sentences), all_layers=True))

    values = {}
    for sweep in group_into_sweeps(read_results(runs)) if runs else []:
        if sweep.name == f"{folder.name}-{sweep.data}":
            title = "Fine-tuned: Spearman × 100"
            values[title] = [100 * sweep.mean(layer, "test") for layer in sweep.layers]
    texts = data["test"].texts
    u, v = (model.embed_token_ids(model.tokenize(column), all_layers=True) for column in texts)
    scores = zip(cosines(u, v), strict=True)
    labels = data["test"].labels
    values["Without fine-tuning: Spearman × 100"] = [100 * spearman(layer, labels) for (layer,) in scores]
    values["IsoScore"] = [iso_score(x) for x in embeddings(model, "test")]
    pairs = zip(embeddings(model, "dev"), embeddings(other, "dev"), strict=True)
    values["Linear CKA with the ancestor"] = [linear_cka(x, y) for x, y in pairs]
    lines = sorted(set(data["train"].texts[0]))
    probes = probe_layers(model, lines, load_generator(str(ancestor), model))
    values["Replaced token: AUC × 100"] = [100 * probe.replaced_auc for probe in probes]
    values["Token identity: % correct"] = [100 * probe.token_accuracy for probe in probes]
    return values


def intervals(runs: Path, names: list[str]) -> list[list[str]]:
    """Compare the first two models on test, x 100: name, mean difference and bounds of each comparison.

    The comparisons are the scores at each layer, and the loss from the best layer of the first model to the
    last layer. The bounds are those of a 95 % confidence interval, from a paired bootstrap over test pairs
    and seeds.
    """
    sweeps = {
        sweep.name.removesuffix(f"-{sweep.data}"): sweep for sweep in group_into_sweeps(read_results(runs))
    }
    one, other = (sweeps[name] for name in names[:2])

    def scores(sweep, layer: int) -> np.ndarray:
        runs = [(*read_predictions(run["folder"]), None) for run in sweep.layers[layer]]
        return 100 * resample_scores(sweep, runs)

    best, last = one.best_layer, max(one.layers)
    gaps = {f"layer {layer}": scores(other, layer) - scores(one, layer) for layer in one.layers}
    gaps["greater loss"] = gaps[f"layer {last}"] - gaps[f"layer {best}"]
    bounds = {name: [gap.mean(), *np.percentile(gap, CONFIDENCE_INTERVAL)] for name, gap in gaps.items()}
    return [[name, *(f"{value:+.2f}" for value in values), " "] for name, values in bounds.items()]


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("models", nargs="*", type=Path, default=[TWINS / "mlm-then-rtd", TWINS / "mlm-then-mlm"])
    p.add_argument("--ancestor", type=Path, default=TWINS / "mlm")
    p.add_argument("--task", default="stsb")
    p.add_argument("--data-root")
    p.add_argument("--runs", type=Path, help="folder with the sweeps of the models")
    p.add_argument("--plot", type=Path)
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    task = get_task(args.task, data_root=args.data_root)
    data = {split: read_examples(task, split) for split in ("train", "dev", "test")}
    values = {model.name: figures(model, args.ancestor, args.runs, data) for model in args.models}
    titles = next(iter(values.values()))
    panels = {title: {name: values[name][title] for name in values} for title in titles}
    for title, lines in panels.items():
        layers = range(len(next(iter(lines.values()))))
        rows = [[str(layer), *(f"{line[layer]:.3f}" for line in lines.values()), " "] for layer in layers]
        print(f"\n{title}\n\n{markdown_table([['layer', *lines, ' '], *rows])}")
    if args.runs:
        names = [model.name for model in args.models]
        head = [f"{names[1]} - {names[0]}", "mean", "from", "to", " "]
        print(f"\n{markdown_table([head, *intervals(args.runs, names)])}")
    if args.json:
        args.json.write_text(json.dumps(panels, indent=2) + "\n", encoding="utf-8")
    if args.plot:
        panels_by_layer(panels, args.plot)
