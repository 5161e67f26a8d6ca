"""Does the loss own the layer? One model's first k layers, trained on with the loss on layer k.

    python docs/law.py --text FILE ... --objective rtd --seed 0      the runs that are missing, in runs/law

A run that was interrupted goes on where it stopped; with one thread each, two can run side by side.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[1]
RUNS = Path("runs/law")
DEPTHS = (2, 4, 6, 8)
PRETRAIN = (
    "--max-length 64 --batch-size 32 --gradient-accumulation-steps 1 --lr 5e-4 --steps 8000 --save-steps 1000"
)
FINE_TUNE = "--layer all --num-seeds 3 --epochs 3 --lr 3e-4 --pooling mean"


def first_layers(k: int) -> Path:
    """Return a checkpoint with the first k layers of data/twins/mlm and its head."""
    folder = RUNS / f"mlm-{k}"
    if not folder.exists():
        source = ROOT / "data/twins/mlm"
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("result.json", "README.md"))
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": k}), encoding="utf-8")
        above = tuple(f"bert.encoder.layer.{layer}." for layer in range(k, config["num_hidden_layers"]))
        weights = load_file(source / "model.safetensors")
        kept = {name: weight for name, weight in weights.items() if not name.startswith(above)}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def run(command: str) -> None:
    subprocess.run([sys.executable, *command.split()], check=True)


def pretrain(objective: str, k: int, seed: int, text: str) -> Path:
    """Train the first k layers on; return the checkpoint. All 8 layers and seed 0: the one of data/twins."""
    if (k, seed) == (8, 0):
        return ROOT / f"data/twins/mlm-then-{objective}"
    folder = RUNS / "checkpoints" / f"{objective}{k}-{seed}"
    if not folder.exists():
        name = f"{objective}{k}"
        run(
            f"{ROOT}/train.py --task {objective} --ckpt {first_layers(k)} --run-name {name} --seed {seed} "
            f"--text {text} {PRETRAIN} --precision bf16 --save-fp16 --output-dir {RUNS}/pretraining"
        )
        trained = RUNS / f"pretraining/{name}-seed{seed}"
        trained = trained / "discriminator" if objective == "rtd" else trained
        # Without result.json it is a checkpoint, and not a run to go on with.
        shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("result.json"))
    return folder


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--text", nargs="+", default=[])
    p.add_argument("--objective", choices=("rtd", "mlm"))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    p.add_argument("--task", default="stsb")
    args = p.parse_args()
    for k in args.depths:
        checkpoint = pretrain(args.objective, k, args.seed, " ".join(args.text))
        run(
            f"{ROOT}/train.py --ckpt {checkpoint} --run-name {args.objective}{k}-{args.seed} --task {args.task} "
            f"{FINE_TUNE} --precision bf16 --output-dir {RUNS}/{args.task}"
        )
