"""Exercise 3: find the best layer. Write `best_layer`, then run

python docs/lecture/exercises/3_layer.py    # trains 0, 2, 4, 6 and 8 layers of an ELECTRA, two seeds each
python docs/lecture/check.py 3              # says whether it is right and, if not, what is wrong
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from one_file import DATA, Encoder, read_pairs, spearman


def best_layer(layers: list[int], seeds: list[int], fine_tune, score, dev, test) -> tuple[int, float]:
    """Return the best number of layers, and its score on test: two numbers, (layer, test score).

    layers: the numbers of layers to try, from few to many. seeds: train each of them once with every seed.
    `fine_tune(layer, seed)` returns a trained encoder. It is what takes time: call it once for each layer and
    seed, and keep the encoders. `score(encoder, pairs)` returns the Spearman correlation x 100 of an encoder
    on `dev` or `test`; it may be below 0.

    A number of layers is as good as the mean of its dev scores over the seeds. The best one is chosen, the
    smallest of several that are equally good. Only then is test scored, for the chosen number alone; its test
    score is the mean over the seeds, too.
    """
    raise NotImplementedError("write this function")


def fine_tune(layer: int, seed: int, epochs: int = 2) -> Encoder:
    """Return the first `layer` layers of a small ELECTRA, trained on data/sample."""
    encoder = Encoder(DATA / "twins/mlm-then-rtd", layer)
    train = read_pairs(DATA / "sample/train.tsv")
    optimizer = torch.optim.AdamW(encoder.weights.values(), lr=3e-4, weight_decay=0.01)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(train[2]), generator=order).split(32):
            first, second, scores = ([column[i] for i in batch] for column in train)
            u, v = encoder.embed(first + second).chunk(2)
            loss = (torch.cosine_similarity(u, v) - torch.tensor(scores) / 5).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"trained {layer} layers with seed {seed}", flush=True)
    return encoder


def main(function, layers=(0, 2, 4, 6, 8), seeds=(0, 1)) -> None:
    """Print which layer is best on dev, its test score, and that of the whole model."""
    dev, test = (read_pairs(DATA / f"sample/{split}.tsv") for split in ("dev", "test"))
    encoders = {}

    def fine_tune_and_keep(layer, seed):
        encoders[layer, seed] = fine_tune(layer, seed)
        return encoders[layer, seed]

    layer, result = function(list(layers), list(seeds), fine_tune_and_keep, spearman, dev, test)
    whole = sum(spearman(encoders[layers[-1], seed], test) for seed in seeds) / len(seeds)
    print(f"best on dev: {layer} layers, {result:.2f} on test; all {layers[-1]}: {whole:.2f}")


if __name__ == "__main__":
    main(best_layer)
