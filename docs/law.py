"""Does the loss own the layer? One model's first k layers, trained on with the loss on layer k.

    python docs/law.py --objective rtd --seed 0 --text FILE ...     the runs that are missing, in runs/law
    python docs/law.py --measure                                    docs/law.json from all runs
    python docs/law.py                                              the tables and docs/law.svg from it

A run that was interrupted goes on where it stopped; with one thread each, two can run side by side.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from tmft.evaluation.bootstrap import NUM_RESAMPLES, count_rows, resample_spearman  # noqa: E402
from tmft.reports.drawing import figure  # noqa: E402
from tmft.runs.predictions import read_predictions  # noqa: E402

RUNS, JSON = Path("runs/law"), ROOT / "docs/law.json"
OBJECTIVES = {"rtd": "replaced tokens", "mlm": "masked tokens"}
DEPTHS, SEEDS = (2, 4, 6, 8), (0, 1, 2)
PRETRAIN = (
    "--max-length 64 --batch-size 32 --gradient-accumulation-steps 1 --lr 5e-4 --steps 8000 --save-fp16"
)
FINE_TUNE = "--layer all --num-seeds 3 --epochs 3 --lr 3e-4 --pooling mean"


def first_layers(k: int) -> Path:
    """Return a checkpoint with the first k layers of data/twins/mlm and its head."""
    source, folder = ROOT / "data/twins/mlm", RUNS / f"mlm-{k}"
    if not folder.exists():
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("result.json", "README.md"))
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": k}), encoding="utf-8")
        above = tuple(f"bert.encoder.layer.{layer}." for layer in range(k, config["num_hidden_layers"]))
        weights = load_file(source / "model.safetensors")
        kept = {name: weight for name, weight in weights.items() if not name.startswith(above)}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def pretrain(objective: str, k: int, seed: int, text_files: str) -> Path:
    """Train the first k layers on; return the checkpoint. All 8 layers and seed 0: the one of data/twins."""
    if (k, seed) == (8, 0):
        return ROOT / f"data/twins/mlm-then-{objective}"
    folder = RUNS / f"checkpoints/{objective}{k}-{seed}"
    if not folder.exists():
        train(
            f"--task {objective} --ckpt {first_layers(k)} --run-name {objective}{k} --seed {seed} "
            f"--text {text_files} {PRETRAIN} --precision bf16 --output-dir {RUNS}/pretraining"
        )
        trained = RUNS / f"pretraining/{objective}{k}-seed{seed}"
        trained = trained / "discriminator" if objective == "rtd" else trained
        # Without result.json it is a checkpoint, and not a run to go on with.
        shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("result.json"))
    return folder


def train(command: str) -> None:
    subprocess.run([sys.executable, str(ROOT / "train.py"), *command.split()], check=True)


def measure() -> dict:
    """Return the scores of all finished runs, and the answers to both questions with their intervals."""
    scores: dict = defaultdict(lambda: defaultdict(dict))
    resampled: dict = defaultdict(lambda: defaultdict(list))
    for objective, k, seed, tuning_seed in product(OBJECTIVES, DEPTHS, SEEDS, SEEDS):
        folders = [RUNS / f"stsb/{objective}{k}-{seed}-layer{i}-seed{tuning_seed}" for i in range(k + 1)]
        if not all((folder / "result.json").exists() for folder in folders):
            continue
        results = [json.loads((folder / "result.json").read_text(encoding="utf-8")) for folder in folders]
        scores[objective][k][f"{seed}, {tuning_seed}"] = {
            split: [100 * result[split]["spearman"] for result in results] for split in ("dev", "test")
        }
        predictions = [read_predictions(folder) for folder in folders]
        counts = drawn_pairs(len(predictions[0][1]))
        of_layers = [100 * resample_spearman(*pair, counts) for pair in predictions]
        resampled[objective, k][seed].append(np.stack(of_layers, axis=1))  # (R, k + 1)
    rng = np.random.default_rng(1)
    drawn = {model: draw_seeds(list(by_seed.values()), rng) for model, by_seed in resampled.items()}
    return {"scores": scores, "answers": answers(drawn, scores)}


@cache
def drawn_pairs(num_pairs: int) -> np.ndarray:
    """Return how often each test pair is in each resample, (R, N), the same for all models."""
    rows = np.random.default_rng(0).integers(num_pairs, size=(NUM_RESAMPLES, num_pairs))
    return count_rows(rows, num_pairs)


def draw_seeds(by_seed: list[list[np.ndarray]], rng: np.random.Generator) -> np.ndarray:
    """Return the mean over drawn seeds of pre-training, and of fine-tuning within each, (R, k + 1)."""
    total = np.zeros_like(by_seed[0][0])
    for r in range(len(total)):
        for tuned in (by_seed[i] for i in rng.integers(len(by_seed), size=len(by_seed))):
            total[r] += np.mean([tuned[i][r] for i in rng.integers(len(tuned), size=len(tuned))], axis=0)
    return total / len(by_seed)


def answers(drawn: dict, scores: dict) -> dict[str, list[float]]:
    """Return {what: [mean, low, high]}: the ends are those of the 95 % interval over the resamples."""
    values: dict[str, np.ndarray] = {}
    for objective, title in OBJECTIVES.items():
        at = {k: drawn[objective, k] for k in DEPTHS if (objective, k) in drawn}
        for k in list(at)[:-1]:
            above = np.mean([table[:, k] for deeper, table in at.items() if deeper > k], axis=0)
            values[f"{title}, layer {k}: loss on it - loss above"] = at[k][:, k] - above
        values[f"{title}, all these layers"] = np.mean(list(values.values())[1 - len(at) :], axis=0)
        for k, table in at.items():
            best = int(mean_over_runs(scores[objective][k], "dev").argmax())
            values[f"{title}, loss on layer {k}: it - layer {best}, best on dev"] = (
                table[:, k] - table[:, best]
            )
        best_layers = np.stack([table.argmax(1) for table in at.values()])  # best on the drawn pairs
        values[f"{title}: slope of the best layer"] = np.polyfit(list(at), best_layers, 1)[0]
    of_rtd, of_mlm = (values[f"{title}, all these layers"] for title in OBJECTIVES.values())
    values["all these layers: replaced - masked tokens"] = of_rtd - of_mlm
    return {what: [float(v.mean()), *np.percentile(v, (2.5, 97.5))] for what, v in values.items()}


def mean_over_runs(runs: dict, split: str) -> np.ndarray:
    return np.mean([run[split] for run in runs.values()], axis=0)


def show(content: dict) -> None:
    """Print scores and answers as Markdown, and draw docs/law.svg: score by layer, a line for each k."""
    note = (
        "Mean over seeds, STSB test. The dot marks the layer with the loss; dashed lines are masked tokens."
    )
    words = {"xlabel": "layer", "ylabel": "Spearman x 100"}
    with figure(JSON.with_suffix(".svg"), "Score by layer, with the loss on layer k", note, **words) as axes:
        for objective, by_depth in content["scores"].items():
            for i, (k, runs) in enumerate(by_depth.items()):
                test, dev = mean_over_runs(runs, "test"), mean_over_runs(runs, "dev")
                cells = [f"{a:.2f} ({b:.2f})" for a, b in zip(test, dev, strict=True)]
                print(" | ".join([f"| {OBJECTIVES[objective]}, {k}", *cells[:-1], f"**{cells[-1]}**"]), "|")
                style = {"color": f"C{i}", "linestyle": "-" if objective == "rtd" else "--"}
                axes.plot(test, label=f"{OBJECTIVES[objective]}, k = {k}", **style)
                axes.plot(len(test) - 1, test[-1], "o", color=f"C{i}")
    for what, (value, low, high) in content["answers"].items():
        print(f"| {what} | {value:+.1f} | {low:+.1f} to {high:+.1f} |")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--objective", choices=OBJECTIVES)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--task", default="stsb")
    p.add_argument("--text", nargs="+", default=[])
    p.add_argument("--measure", action="store_true")
    args = p.parse_args()
    for k in DEPTHS if args.objective else ():
        checkpoint = pretrain(args.objective, k, args.seed, " ".join(args.text))
        options = (
            f"--run-name {args.objective}{k}-{args.seed} --task {args.task} {FINE_TUNE} --precision bf16"
        )
        train(f"--ckpt {checkpoint} {options} --output-dir {RUNS}/{args.task}")
    if args.measure:
        JSON.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    if not args.objective:
        show(json.loads(JSON.read_text(encoding="utf-8")))
