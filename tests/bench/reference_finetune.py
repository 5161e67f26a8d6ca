"""The paper's recipe in transformers alone, without tmft, to compare the scores.

    python tests/bench/reference_finetune.py CHECKPOINT_FOLDER DATA_FOLDER --layer 3 --num-seeds 3

DATA_FOLDER holds train.tsv, dev.tsv and test.tsv of STS benchmark. Prints one line per epoch and, at the end,
the test Spearman x 100 of each seed with mean and standard deviation. The same with tmft:

    python train.py --ckpt CHECKPOINT_FOLDER --data DATA_FOLDER --layer 3 --num-seeds 3
"""

import argparse
import copy
import csv
import statistics
import time
from pathlib import Path

import torch
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer, get_linear_schedule_with_warmup


def read(path: Path) -> list[tuple[str, str, float]]:
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["sentence1"], row["sentence2"], float(row["score"])) for row in rows]


def embed(model, tokenizer, sentences):
    """Embed S sentences as the mean of their tokens: (S, D). Batches of similar length only save padding."""
    order = sorted(range(len(sentences)), key=lambda s: len(sentences[s]))
    pooled = []
    for start in range(0, len(order), 16):
        group = [sentences[s] for s in order[start : start + 16]]
        batch = tokenizer(group, padding=True, truncation=True, max_length=256, return_tensors="pt")
        hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][:, :, None].float()
        pooled.append((hidden * mask).sum(1) / mask.sum(1))
    return torch.cat(pooled)[torch.tensor(order).argsort()]


def evaluate(model, tokenizer, pairs) -> float:
    model.eval()
    cosines = []
    with torch.inference_mode():
        for start in range(0, len(pairs), 64):
            first, second, _ = zip(*pairs[start : start + 64], strict=True)
            u, v = embed(model, tokenizer, list(first)), embed(model, tokenizer, list(second))
            cosines += torch.cosine_similarity(u, v).tolist()
    return spearmanr(cosines, [score for *_, score in pairs]).statistic


def finetune(folder, layer, splits, seed, epochs=10, batch_size=32) -> float:
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(
        folder, num_hidden_layers=layer, dtype=torch.float32, add_pooling_layer=False
    )
    decayed, others = [], []
    for name, weight in model.named_parameters():
        (others if name.endswith("bias") or "LayerNorm" in name else decayed).append(weight)
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-5, fused=True)
    steps = epochs * -(-len(splits["train"]) // batch_size)
    schedule = get_linear_schedule_with_warmup(optimizer, int(0.1 * steps), steps)
    best, best_weights = -1.0, None
    for epoch in range(1, epochs + 1):
        model.train()
        start = time.perf_counter()
        for batch in torch.randperm(len(splits["train"])).split(batch_size):
            first, second, scores = zip(*(splits["train"][i] for i in batch), strict=True)
            u, v = embed(model, tokenizer, list(first + second)).chunk(2)
            loss = torch.nn.functional.mse_loss(torch.cosine_similarity(u, v), torch.tensor(scores) / 5)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        dev = evaluate(model, tokenizer, splits["dev"])
        print(
            f"seed {seed} epoch {epoch}: dev {100 * dev:.2f}, {time.perf_counter() - start:.0f} s", flush=True
        )
        if dev > best:
            best, best_weights = dev, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_weights)
    return evaluate(model, tokenizer, splits["test"])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("checkpoint")
    p.add_argument("data", type=Path)
    p.add_argument("--layer", type=int, default=3)
    p.add_argument("--num-seeds", type=int, default=3)
    args = p.parse_args()
    splits = {split: read(args.data / f"{split}.tsv") for split in ("train", "dev", "test")}
    tests = []
    for seed in range(args.num_seeds):
        tests.append(100 * finetune(args.checkpoint, args.layer, splits, seed))
        print(f"seed {seed}: test {tests[-1]:.2f}", flush=True)
    print(f"mean {statistics.mean(tests):.2f}, std {statistics.stdev(tests):.2f}, n = {len(tests)}")


if __name__ == "__main__":
    main()
