"""Does the loss own the layer? One model's first k layers, trained on with the loss on layer k.

    python docs/law.py --objective rtd --seed 0 --text FILE ...     the runs that are missing, in runs/law
    python docs/law.py --measure                                    docs/law.npz and docs/law.json from them
    python docs/law.py                                              the tables, and docs/law.svg

A run that was interrupted goes on where it stopped; with one thread each, two can run side by side.
docs/law.npz has the ranks of all predictions on test, so that the intervals can be made without training.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import rankdata

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import train  # noqa: E402
from tmft.evaluation.bootstrap import NUM_RESAMPLES, count_rows, resample_spearman  # noqa: E402
from tmft.pretraining import token_heads  # noqa: E402
from tmft.pretraining.token_heads import ReplacedTokenDetection  # noqa: E402
from tmft.reports.drawing import COLORS, figure  # noqa: E402
from tmft.runs.run_result import read_predictions  # noqa: E402

RUNS, JSON = Path("runs/law"), ROOT / "docs/law.json"
OBJECTIVES = {"rtd": "replaced tokens", "mlm": "masked tokens"}
CONTROLS = {"random": "tokens replaced at random", "cut": "replaced tokens, cut at layer 6 and trained on"}
NAMES = OBJECTIVES | CONTROLS
DEPTHS = {"rtd": (2, 4, 6, 8), "mlm": (2, 4, 6, 8), "random": (4, 8), "cut": (6,)}
TASKS, SEEDS = ("stsb", "sickr"), (0, 1, 2)  # the seeds of pre-training, and those of fine-tuning
PRETRAIN = "--max-length 64 --batch-size 32 --gradient-accumulation-steps 1 --lr 5e-4 --save-fp16"
FINE_TUNE = "--layer all --num-seeds 3 --epochs 3 --lr 3e-4 --pooling mean"

# ---------------------------------------------------------------------------------------------- the runs


def do_runs(objective: str, seed: int, task: str, text_files: str) -> None:
    """Train the first k layers on for each k, and fine-tune the result at every number of layers."""
    for k in DEPTHS[objective]:
        checkpoint = pretrain(objective, k, seed, text_files)
        place = f"--run-name {objective}{k}-{seed} --output-dir {RUNS}/{task}"
        run(f"--ckpt {checkpoint} --task {task} {FINE_TUNE} {place}")


def pretrain(objective: str, k: int, seed: int, text_files: str) -> Path:
    """Train the first k layers on; return the checkpoint. All 8 layers and seed 0: the one of data/twins."""
    if (k, seed) == (8, 0) and objective in OBJECTIVES:
        return ROOT / f"data/twins/mlm-then-{objective}"
    folder = RUNS / f"checkpoints/{objective}{k}-{seed}"
    if folder.exists():
        return folder
    task = "mlm" if objective == "mlm" else "rtd"
    ancestor, steps = ("mlm-then-rtd", 800) if objective == "cut" else ("mlm", 8000)
    with without_generator() if objective == "random" else nullcontext():
        run(
            f"--task {task} --ckpt {first_layers(k, ancestor)} --run-name {objective}{k} --seed {seed} "
            f"--text {text_files} {PRETRAIN} --steps {steps} --output-dir {RUNS}/pretraining"
        )
    trained = RUNS / f"pretraining/{objective}{k}-seed{seed}"
    trained = trained if task == "mlm" else trained / "discriminator"
    # Without result.json it is a checkpoint, and not a run to go on with.
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("result.json"))
    return folder


def first_layers(k: int, twin: str) -> Path:
    """Return a checkpoint with the first k layers of a model of data/twins, and its head."""
    source, folder = ROOT / "data/twins" / twin, RUNS / f"{twin}-{k}"
    if not folder.exists():
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("result.json", "README.md"))
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": k}), encoding="utf-8")
        above = [f".layer.{layer}." for layer in range(k, config["num_hidden_layers"])]
        weights = load_file(source / "model.safetensors")
        kept = {name: weight for name, weight in weights.items() if not any(part in name for part in above)}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@contextmanager
def without_generator() -> Iterator[None]:
    """Let every word of the vocabulary replace a token with the same probability; train no generator."""

    def draw_words(logits: torch.Tensor) -> torch.Tensor:
        return torch.randint(5, logits.shape[1], logits.shape[:1])  # the first five ids are no words

    def loss(sums: dict[str, torch.Tensor], num_labels: int, num_tokens: int) -> torch.Tensor:
        return ReplacedTokenDetection.RTD_WEIGHT * sums["rtd"] / num_tokens

    with (
        patch.object(token_heads, "sample_tokens", draw_words),
        patch.object(ReplacedTokenDetection, "loss", staticmethod(loss)),
    ):
        yield


def run(command: str) -> None:
    train.main(f"{command} --precision bf16".split())


# ------------------------------------------------------------------------------------ scores and intervals


def collect(file: Path) -> dict[str, np.ndarray]:
    """Add the finished runs in runs/law to a file, and return what it has of each model on each task.

    "stsb/rtd4-0": the ranks of the predictions on test, (S, k + 1, N) for S seeds of fine-tuning, doubled, so
    that those of ties are whole numbers, too. "stsb/rtd4-0/dev": Spearman x 100 on dev, (S, k + 1).
    "stsb/labels": those of the N pairs.
    """
    known = dict(np.load(file)) if file.exists() else {}
    for task, objective in ((task, objective) for task in TASKS for objective in DEPTHS):
        for k, seed in ((k, seed) for k in DEPTHS[objective] for seed in SEEDS):
            model = f"{task}/{objective}{k}-{seed}"
            folders = [[RUNS / f"{model}-layer{i}-seed{s}" for i in range(k + 1)] for s in SEEDS]
            if all((folder / "result.json").exists() for row in folders for folder in row):
                predictions = np.array([[read_predictions(folder) for folder in row] for row in folders])
                known[model] = (2 * rankdata(predictions[:, :, 0], axis=-1)).astype(np.uint16)
                known[f"{model}/dev"] = np.array(
                    [[100 * dev_score(folder) for folder in row] for row in folders]
                )
                known[f"{task}/labels"] = predictions[0, 0, 1]
    np.savez_compressed(file, **known)
    return known


def dev_score(folder: Path) -> float:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))["dev"]["spearman"]


def measure(known: dict[str, np.ndarray]) -> dict:
    """Return, for each task, the scores of all models, and the answers to both questions with intervals."""
    content = {}
    for task in (task for task in TASKS if f"{task}/labels" in known):
        labels = known[f"{task}/labels"]
        rows = np.random.default_rng(0).integers(len(labels), size=(NUM_RESAMPLES, len(labels)))
        counts = count_rows(rows, len(labels))  # how often each pair is in each resample, for all models
        scores, drawn, rng = {}, {}, np.random.default_rng(1)
        for objective, k in ((objective, k) for objective, depths in DEPTHS.items() for k in depths):
            models = [name for seed in SEEDS if (name := f"{task}/{objective}{k}-{seed}") in known]
            if models:
                test = np.concatenate(
                    [spearman(known[name], labels, np.ones_like(counts[:1])) for name in models]
                )
                dev = np.concatenate([known[f"{name}/dev"] for name in models])
                scores.setdefault(objective, {})[str(k)] = {
                    "test": test[:, :, 0].tolist(),
                    "dev": dev.tolist(),
                }
                drawn[objective, k] = draw_seeds(
                    [spearman(known[name], labels, counts) for name in models], rng
                )
        content[task] = {"scores": scores, "answers": answers(drawn, scores)}
    return content


def spearman(ranks: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return Spearman x 100 of each run in each of R resamples, (S, k + 1, R). ranks: (S, k + 1, N)."""
    return 100 * np.array([[resample_spearman(run, labels, counts) for run in row] for row in ranks])


def draw_seeds(of_models: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Return the mean over drawn seeds of pre-training, and of fine-tuning within each, (R, k + 1)."""
    means = np.zeros(of_models[0].shape[:0:-1])
    for r in range(len(means)):
        for model in (of_models[i] for i in rng.integers(len(of_models), size=len(of_models))):
            means[r] += model[rng.integers(len(model), size=len(model)), :, r].mean(0) / len(of_models)
    return means


def answers(drawn: dict, scores: dict) -> dict[str, list[float]]:
    """Return {what: [mean, low, high]}: the ends are those of the 95 % interval over the resamples."""
    values: dict[str, np.ndarray] = {}
    for objective, title in NAMES.items():
        at = {k: drawn[objective, k] for k in DEPTHS[objective] if (objective, k) in drawn}
        differences = []
        for k in list(at)[:-1]:
            above = np.mean([means[:, k] for deeper, means in at.items() if deeper > k], axis=0)
            differences.append(at[k][:, k] - above)
            values[f"{title}, layer {k}: loss on it - loss above"] = differences[-1]
        if len(differences) > 1:
            values[f"{title}, all these layers: loss on it - loss above"] = np.mean(differences, axis=0)
            best_layers = np.stack([means.argmax(1) for means in at.values()])  # best on the drawn pairs
            values[f"{title}: slope of the best layer"] = np.polyfit(list(at), best_layers, 1)[0]
        for k, means in at.items():
            best = best_on_dev(scores[objective][str(k)])
            values[f"{title}, loss on layer {k}: it - layer {best}, best on dev"] = (
                means[:, k] - means[:, best]
            )
    over_layers = [
        values.get(f"{title}, all these layers: loss on it - loss above") for title in OBJECTIVES.values()
    ]
    if all(one is not None for one in over_layers):
        values["all these layers: replaced - masked tokens"] = over_layers[0] - over_layers[1]
    if {("cut", 6), ("rtd", 8)} <= drawn.keys():
        values[f"{CONTROLS['cut']}: layer 6 after - before"] = drawn["cut", 6][:, 6] - drawn["rtd", 8][:, 6]
    return {what: [float(v.mean()), *np.percentile(v, (2.5, 97.5))] for what, v in values.items()}


def best_on_dev(scores: dict) -> int:
    return int(np.mean(scores["dev"], axis=0).argmax())


# ----------------------------------------------------------------------------------------- tables and figure


def show(content: dict) -> None:
    """Print scores and answers as Markdown, and draw docs/law.svg: score by layer, a line for each k."""
    for task, measured in content.items():
        for objective, k, scores in models_of(measured):
            test, dev = np.mean(scores["test"], axis=0), np.mean(scores["dev"], axis=0)
            cells = [f"{a:.2f} ({b:.2f})" for a, b in zip(test, dev, strict=True)]
            cells[best_on_dev(scores)] += " *"
            print(f"| {task}, {NAMES[objective]}, {k} |", " | ".join([*cells[:-1], f"**{cells[-1]}**"]), "|")
        for what, (value, low, high) in measured["answers"].items():
            print(f"| {task}, {what} | {value:+.1f} | {low:+.1f} to {high:+.1f} |")
    note = "mean over seeds, STSB test, from layer 1 on; a dot marks the layer with the loss"
    words = {"xlabel": "layer", "ylabel": "Spearman x 100"}
    with figure(JSON.with_suffix(".svg"), "Score by layer, with the loss on layer k", note, **words) as axes:
        for objective, k, scores in models_of(content["stsb"]):
            if objective in OBJECTIVES:
                test, dash = np.mean(scores["test"], axis=0), "-" if objective == "rtd" else "--"
                style = {"color": COLORS[DEPTHS[objective].index(int(k))], "linestyle": dash}
                axes.plot(range(1, len(test)), test[1:], label=f"{NAMES[objective]}, k = {k}", **style)
                axes.plot(len(test) - 1, test[-1], "o", color=style["color"])


def models_of(measured: dict) -> list[tuple[str, str, dict]]:
    return [(objective, k, s) for objective, by_k in measured["scores"].items() for k, s in by_k.items()]


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--objective", choices=NAMES)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--task", default="stsb", choices=TASKS)
    p.add_argument("--text", nargs="+", default=[])
    p.add_argument("--measure", action="store_true")
    args = p.parse_args()
    if args.objective:
        do_runs(args.objective, args.seed, args.task, " ".join(args.text))
    if args.measure:
        measured = measure(collect(JSON.with_suffix(".npz")))
        JSON.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    if not args.objective:
        show(json.loads(JSON.read_text(encoding="utf-8")))
