"""Benchmark of contrastive learning: one batch of many pairs in bounded memory, each peer in its own process.

A step computes the gradient, clips it and updates the weights with AdamW. --data: a folder with pairs or
triplets in train.tsv, such as data/nli-triplets; examples are drawn from it at random, and repeated if there
are too few.
"""

import os
import subprocess
import sys
from pathlib import Path

from bench import measure

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import resource, sys, time, torch
sys.path.insert(0, {root!r})
from pathlib import Path
from tmft.data import read_examples
from tmft.datasets.task_lookup import get_task
task = get_task({task!r}, data={data!r}, objective_args={{"symmetric": False, "temperature": 0.01}})
examples = read_examples(task, "train")
order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).tolist() * {pairs}
texts = [[column[i] for i in order[:{pairs}]] for column in examples.texts]
{work}
step()
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
for _ in range({steps}):
    step()
print((time.perf_counter() - start) / {steps}, loaded / 1024, before / 1024)
"""
LOADED = "loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"
THEIRS = f"""
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import {{name}} as Loss
model = SentenceTransformer({{ckpt!r}}, device="cpu").train()
objective = Loss(model, scale=100{{chunk}})
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
{LOADED}
def step():
    with torch.autocast("cpu", torch.bfloat16, enabled={{bf16}}):
        loss = objective([model.tokenize(column) for column in texts], None)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""
OURS = f"""
from tmft.optimizers import MixedPrecision
from tmft.losses.multiple_negatives import MultipleNegativesRanking
from tmft.sentence_encoder import SentenceEncoder
from tmft.training_task import PackedEmbedder
from tmft.training.gradient_cache import GradientCache
from tmft.training_task import Batch
model = SentenceEncoder.from_pretrained({{ckpt!r}}).train()
objective, target = MultipleNegativesRanking(0, task), torch.arange({{pairs}})
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
embed = GradientCache(PackedEmbedder(model), {{size}})
amp = MixedPrecision(model.device, {{precision!r}})
{LOADED}
def step():
    optimizer.zero_grad()
    batch = Batch(model.tokenize(sum(texts, [])), len(texts), target, objective)
    with amp:
        loss = objective(*embed(batch).chunk(batch.texts_per_example), target)
    amp.backward(loss)
    amp.clip_grad_norm_(optimizer, model.parameters(), 1.0)
    amp.step(optimizer)
"""


def bench_contrastive(args) -> None:
    """Compare with CachedMultipleNegativesRankingLoss of sentence-transformers."""
    pairs, ckpt = args.pairs, str(args.ckpt)
    header = (args.data / "train.tsv").read_text(encoding="utf-8").splitlines()[0].split("\t")
    task = "nli" if "negative" in header else "quora-pairs"
    memory: dict[str, tuple[float, float]] = {}

    def timed(name, work):
        program = PROGRAM.format(
            root=str(ROOT), data=str(args.data), task=task, pairs=pairs, work=work, steps=1
        )
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

        def run():
            line = [sys.executable, "-c", program]
            answer = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            seconds, *memory[name] = map(float, answer.stdout.splitlines()[-1].split())
            return pairs / seconds

        return run

    def theirs(name, chunk, bf16):
        return THEIRS.format(ckpt=ckpt, name=name, chunk=chunk, bf16=bf16)

    name = "CachedMultipleNegativesRankingLoss"
    works = {
        name: theirs(name, "", False),
        f"{name}, bf16": theirs(name, "", True),
        "tmft fp32": OURS.format(ckpt=ckpt, pairs=pairs, size=64, precision="fp32"),
        "tmft bf16": OURS.format(ckpt=ckpt, pairs=pairs, size=64, precision="bf16"),
    }
    print(
        f"a step of {pairs} examples of {task}, all layers; "
        "mini-batches of 32 texts (their default) and of 64 examples (tmft)"
    )
    peers = {name: timed(name, work) for name, work in works.items()}
    measure(peers, max(1, min(args.rounds, 3)), "examples/s", "tmft fp32", "tmft bf16")
    for name in peers:
        print("peak memory {1:5.0f} MiB, {2:+5.0f} over the loaded model".format(
            *memory[name], memory[name][1] - memory[name][0]), name)  # fmt: skip
