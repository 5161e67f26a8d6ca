"""Which layers of an encoder to keep: score subsets of them, and judge the rules that choose one.

    python docs/research/layer_subsets.py measure --text lines.txt --base all-mpnet-base-v2 --out runs/layers
    python docs/research/layer_subsets.py show

measure: run the parts below, or those that --parts names, and write the results of each into --json. What is
in the folder already is not measured again, so that an interrupted command goes on. show: print the tables of
docs/research/which-layer.md and draw the figure of docs/which-layer.md from --json.

Recipe and rules of each part were written down before it was computed. "Healed" is after a short distillation
from the whole model: LINES lines of the text, drawn by seed 0, and HEALING. Training and scoring are in
bfloat16. Dev of STSB judges, test chooses nothing.

layers: every subset of MiniLM's 6 layers, without training and healed, with seed 0. With seed 1, and on seven
STS data sets, the first, the last and the evenly spaced layers and the three best of each size. For each
number of layers, a rule chooses a subset; its regret is the points of dev Spearman x 100 by which this is
worse than the best subset of that size. Its interval is a bootstrap over the pairs of dev, in which the best
subset is chosen anew each time.

labels: the same subsets, fine-tuned on the labeled pairs of STSB by LABEL_RECIPE in place of the
distillation, with seed 0, and the same judgement of the rules.

blocks: every subset of MiniLM's 12 blocks, 6 of attention and 6 of feed-forward, without training. A block is
removed with its residual connection and its LayerNorm, so that both blocks of a layer together are the layer.
They are scored on BLOCK_PAIRS pairs of dev: of 750, drawn by seed 0, the first in the order of the file,
which are captions of images and posts of forums. (All 750, with news, were planned, but the processor was
too busy.) Healed: the best subset with at most the parameters of 2 and of 3 layers.

twins: every subset of the 8 layers of four small models of one ancestor that differ in what they were trained
on last, with mean pooling, without training; and TWIN_SAMPLE of them, drawn by seed 0, of the two that went
on with masked and with replaced tokens, fine-tuned on STSB by TWIN_RECIPE. The worth of a layer, or of a
block, is what a least-squares fit of the scores of these subsets on "layer n is kept" gives it. The interval
is a bootstrap over pairs, which are the same for both models of a difference, and over the sample of subsets.

base: all-mpnet-base-v2 with 3 and with 6 of its 12 layers, without training and healed: the first, the last,
the evenly spaced ones, and those that greedy removal leaves, which sees BLOCK_PAIRS pairs of dev.

mixes: the embeddings of MiniLM, of all-mpnet-base-v2 and of two twins, made of several layers,
without training the model: the best layer by dev, the mean of the first and the last, and of all; a weight
for each layer (a softmax, as in ELMo, Peters et al. 2018), learned from the labeled pairs of STSB train by
MIX_STEPS steps on all of them at once, from equal weights; and the value vectors of the attention in place of
hidden states (arXiv:2602.01572), of the best layer by dev and the mean of all.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tmft import SentenceEncoder, linear_cka
from tmft.bert import Layer
from tmft.data import Examples
from tmft.datasets.task_lookup import get_task, read_split
from tmft.export.quantization import set_encode_precision
from tmft.io.atomic import write_file
from tmft.io.formatting import markdown_table
from tmft.loop import Recipe, fit
from tmft.loss import CosineMSE
from tmft.metrics import cosines, spearman
from tmft.packing import PackedBatch
from tmft.pooling import mean_pooling
from tmft.reports.drawing import line_style, save_figure
from tmft.students.distill import DEFAULT_RECIPE, space_layers_evenly
from tmft.students.distillation_loss import EmbeddingDistillation
from tmft.tasks import TASKS
from tmft.training_task import TrainingTask

ROOT = Path(__file__).resolve().parents[2]
LINES = 5_000
HEALING = replace(DEFAULT_RECIPE, epochs=1, batch_size=64, precision="bf16")
LABEL_RECIPE = Recipe(epochs=1, lr=1e-4, precision="bf16")
TWIN_RECIPE = Recipe(epochs=1, lr=3e-4, precision="bf16")
TWIN_SAMPLE = 60
TWINS = ("mlm", "mlm-then-mlm", "mlm-then-rtd", "mlm-then-clm")
COMPARED_TWINS = ("mlm-then-mlm", "mlm-then-rtd")
RULE_SENTENCES = 1000  # of the training split, without their scores, for the rules that look at hidden states
MIX_STEPS = 300
BOOTSTRAPS = 1000
TWIN_BOOTSTRAPS = 200  # each scores all 256 subsets of two models
BLOCK_PAIRS = 450
CHUNK = 50  # pairs whose embeddings by all subsets are in memory at a time
Subset = tuple[int, ...]  # indices of the layers or blocks that are kept, from 0, ascending

# ------------------------------------------------------------------------------------------------ measuring


@dataclass
class Bench:
    """What all parts share: the data of STSB, the text to heal with, and the folder of the records.

    minilm, base: hub ids or folders of the models. lines: LINES lines of the text to heal with.
    report: the results of the other parts, the content of --json. data_root: the folder of the STS data sets.
    """

    out: Path
    minilm: str
    base: str
    lines: list[str]
    splits: dict[str, Examples]
    report: dict[str, Any]
    data_root: str | None

    @property
    def dev_scores(self) -> np.ndarray:
        """The labels of the pairs of dev, (N,)."""
        return np.asarray(self.splits["dev"].labels)

    def record(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the record of this name, which is made only if the folder does not have it."""
        path = self.out / f"{name}.json"
        if not path.exists():
            record = make()
            write_file(path, json.dumps(record) + "\n")
            print(name, {key: value for key, value in record.items() if key != "cosines"}, flush=True)
        return json.loads(path.read_text(encoding="utf-8"))

    def score(self, model: SentenceEncoder, **also: float) -> dict[str, Any]:
        """Return the Spearman x 100 of a model on dev and test, and its cosines of the pairs of dev."""
        set_encode_precision(model, "bf16")
        scores: dict[str, Any] = {}
        for split in ("dev", "test"):
            examples = self.splits[split]
            u, v = (torch.from_numpy(model.encode(texts)) for texts in examples.texts)
            predicted = cosines(u, v)
            scores[split] = 100 * spearman(predicted, np.asarray(examples.labels))
            scores.setdefault("cosines", np.round(predicted, 6).tolist())
        return also | scores

    def heal(
        self, name: str, model: SentenceEncoder, subset: Subset, seed: int = 0, with_sts: bool = False
    ) -> dict[str, Any]:
        """Return the scores of these layers after the distillation from the whole model.

        with_sts: also those on the test splits of the seven STS data sets.
        """

        def make() -> dict[str, Any]:
            target = torch.from_numpy(self.array(f"{name}-targets", lambda: model.encode(self.lines)))
            num_dev = len(self.lines) // 100
            examples = {
                "train": Examples((self.lines[num_dev:],), target[num_dev:]),
                "dev": Examples((self.lines[:num_dev],), target[:num_dev]),
            }
            task = replace(TASKS["distillation"], metric="teacher_cosine", eval_files="")
            student = keep(model, subset)
            torch.manual_seed(seed)
            training_task = TrainingTask(task, EmbeddingDistillation(student.dimensions, task), examples)
            [epoch] = fit(student, training_task, HEALING, seed)
            scores = self.score(student.eval(), teacher_cosine=epoch.dev["teacher_cosine"])
            if with_sts:
                sys.path.insert(0, str(ROOT / "tests/bench"))
                from students import sts_scores

                scores["sts"] = sts_scores(student, self.data_root)
            return scores

        return self.record(f"{name}-healed-{join(subset)}-{seed}" + ("-sts" if with_sts else ""), make)

    def train_subset(
        self, name: str, model: SentenceEncoder, subset: Subset, recipe: Recipe
    ) -> dict[str, Any]:
        """Return the scores of these layers after fine-tuning on the labeled pairs of STSB."""

        def make() -> dict[str, Any]:
            student = keep(model, subset)
            torch.manual_seed(0)
            list(fit(student, TrainingTask(TASKS["stsb"], CosineMSE(), self.splits), recipe))
            return self.score(student.eval())

        return self.record(f"{name}-tuned-{join(subset)}", make)

    def array(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the array of this name, which is made only if the folder does not have it."""
        path = self.out / f"{name}.npy"
        if not path.exists():
            array = make()
            write_file(path, lambda new: np.save(new, array))
            print(name, array.shape, flush=True)
        return np.load(path)

    def untrained(self, name: str, model: SentenceEncoder, subset: Subset) -> dict[str, Any]:
        """Return the scores of these layers without training."""
        return self.record(f"{name}-none-{join(subset)}", lambda: self.score(keep(model, subset)))

    def cosines_of_all_subsets(
        self, name: str, model: SentenceEncoder, pairs: Sequence[int] | None = None
    ) -> np.ndarray:
        """Return the cosines of N pairs of dev by each subset of L layers, (2^L, N), in `binary_order`.

        pairs: the indices of the N pairs; None: all.
        """
        set_encode_precision(model := deepcopy(model), "bf16")
        texts = self.splits["dev"].texts
        pairs = range(len(texts[0])) if pairs is None else pairs

        def cosines_of(chunk: Sequence[int]) -> np.ndarray:  # (2^L, CHUNK)
            token_ids = model.tokenize([column[index] for column in texts for index in chunk])
            embeddings = model.embed_token_ids(token_ids, partial(embed_by_all_subsets, model))
            u, v = embeddings.chunk(2, dim=1)  # (2^L, CHUNK, D) each
            return torch.cosine_similarity(u, v, dim=-1).numpy()

        chunks = [pairs[start : start + CHUNK] for start in range(0, len(pairs), CHUNK)]
        parts = [self.array(f"{name}-{chunk[0]}", partial(cosines_of, chunk)) for chunk in chunks]
        return np.concatenate(parts, axis=1)


def join(subset: Subset) -> str:
    """Return the text for a subset in the name of a record."""
    return ".".join(map(str, subset))


def all_subsets(num_layers: int) -> Iterator[Subset]:
    """Yield every subset of at least one layer, the small ones first."""
    for size in range(1, num_layers + 1):
        yield from combinations(range(num_layers), size)


def keep(model: SentenceEncoder, subset: Subset) -> SentenceEncoder:
    """Return a copy of the model that keeps only these layers."""
    smaller = deepcopy(model)
    smaller.encoder.keep_layers(subset)
    return smaller


def draw_lines(path: Path) -> list[str]:
    """Return LINES different lines of 20 to 200 characters, drawn by seed 0."""
    lines = dict.fromkeys(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return random.Random(0).sample([line for line in lines if 20 <= len(line) <= 200], LINES)


class AttentionBlock(nn.Module):
    """The attention of a layer, with its residual connection and LayerNorm."""

    def __init__(self, layer: Layer):
        super().__init__()
        self.attention, self.dropout = layer.attention, layer.attention_dropout
        self.norm = layer.attention_norm

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the output of the block, (B, T, D). hidden: (B, T, D); mask: that of the layer."""
        return self.norm(hidden + self.dropout(self.attention(hidden, mask)))


class FeedForwardBlock(nn.Module):
    """The feed-forward of a layer, with its residual connection and LayerNorm."""

    def __init__(self, layer: Layer):
        super().__init__()
        self.feed_forward, self.dropout = layer.feed_forward, layer.feed_forward_dropout
        self.norm = layer.feed_forward_norm

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the output of the block, (B, T, D). hidden: (B, T, D); mask: not used."""
        return self.norm(hidden + self.dropout(self.feed_forward(hidden)))


def split_into_blocks(model: SentenceEncoder) -> SentenceEncoder:
    """Return a copy in which each layer is two: its attention block, then its feed-forward block."""
    blocks = deepcopy(model)
    halves = [
        half for layer in blocks.encoder.layers for half in (AttentionBlock(layer), FeedForwardBlock(layer))
    ]
    blocks.encoder.layers = nn.ModuleList(halves)
    return blocks


def embed_by_all_subsets(model: SentenceEncoder, batch: PackedBatch) -> Tensor:
    """Return the embeddings of a batch by every subset of the L layers, (2^L, S, D).

    They are in the order of `binary_order`. Subsets that begin alike share what their first layers compute.
    """
    hidden, *_ = model.encoder.iter_hidden_states(*batch.inputs)
    mask = model.encoder.score_bias(batch.sentence_ids, hidden.dtype)

    def visit(hidden: Tensor, layers: Sequence[nn.Module]) -> Iterator[Tensor]:
        if not layers:
            yield model.pool(hidden, batch)
            return
        yield from visit(hidden, layers[1:])
        yield from visit(layers[0](hidden, mask), layers[1:])

    return torch.stack([*visit(hidden, list(model.encoder.layers))])


def binary_order(num_layers: int) -> list[Subset]:
    """Return all subsets, the empty one too, in the order of `embed_by_all_subsets`."""
    return [
        tuple(n for n, is_kept in enumerate(bits) if is_kept)
        for bits in product((False, True), repeat=num_layers)
    ]


# ---------------------------------------------------------------------------------------------- the parts


def measure_layers(bench: Bench) -> dict[str, Any]:
    """Return the scores of all subsets of MiniLM's layers, and the judgement of the rules."""
    model = SentenceEncoder.from_pretrained(bench.minilm)
    num_layers = len(model.encoder.layers)
    subsets = [*all_subsets(num_layers)]
    records = {("none", s, 0): bench.untrained("minilm", model, s) for s in subsets}
    records |= {("healed", s, 0): bench.heal("minilm", model, s) for s in subsets}
    for size in range(1, num_layers + 1):
        of_size = [s for s in subsets if len(s) == size]
        best = sorted(of_size, key=lambda s: -records["healed", s, 0]["dev"])[:3]
        named = [tuple(range(size)), tuple(range(num_layers - size, num_layers))]
        for subset in dict.fromkeys([*best, *named, tuple(space_layers_evenly(size, num_layers))]):
            records["healed", subset, 1] = bench.heal("minilm", model, subset, 1, with_sts=True)
    untrained = {s: records["none", s, 0]["dev"] for s in subsets}
    sentences = bench.splits["train"].sentences[:RULE_SENTENCES]
    evidence = collect_evidence(model, sentences, untrained)
    rules = {
        training: judge_rules(
            evidence,
            subsets,
            np.array([records[training, s, 0]["cosines"] for s in subsets]),
            bench.dev_scores,
        )
        for training in ("none", "healed")
    }
    listed = [
        {"training": training, "layers": subset, "seed": seed} | without_cosines(record)
        for (training, subset, seed), record in records.items()
    ]
    return {"subsets": listed, "rules": rules}


def without_cosines(record: dict[str, Any]) -> dict[str, Any]:
    """Return what --json holds of a record."""
    return {key: value for key, value in record.items() if key != "cosines"}


def measure_labels(bench: Bench) -> dict[str, Any]:
    """Return the scores of all subsets of MiniLM's layers, fine-tuned on labels, and judge the rules."""
    model = SentenceEncoder.from_pretrained(bench.minilm)
    untrained = {
        tuple(one["layers"]): one["dev"]
        for one in bench.report["MiniLM"]["subsets"]
        if one["training"] == "none"
    }
    evidence = collect_evidence(model, bench.splits["train"].sentences[:RULE_SENTENCES], untrained)
    subsets = [*untrained]
    records = [bench.train_subset("minilm", model, subset, LABEL_RECIPE) for subset in subsets]
    predicted = np.array([one["cosines"] for one in records])
    listed = [{"layers": s} | without_cosines(one) for s, one in zip(subsets, records, strict=True)]
    return {"subsets": listed, "rules": judge_rules(evidence, subsets, predicted, bench.dev_scores)}


def measure_blocks(bench: Bench) -> dict[str, Any]:
    """Return the scores of all subsets of MiniLM's attention and feed-forward blocks."""
    blocks = split_into_blocks(SentenceEncoder.from_pretrained(bench.minilm))
    pairs = sorted(random.Random(0).sample(range(len(bench.dev_scores)), 750))[:BLOCK_PAIRS]
    predicted = bench.cosines_of_all_subsets("blocks-none", blocks, pairs)
    scores = spearman_rows(predicted, bench.dev_scores[pairs])
    by_subset = dict(zip(binary_order(12), scores, strict=True))
    healed = []
    for size in (2, 3):
        best = best_blocks(by_subset, size)
        healed.append({"blocks": best} | without_cosines(bench.heal("blocks", blocks, best)))
    return {"dev": scores.tolist(), "healed": healed}


def best_blocks(scores: dict[Subset, float], size: int) -> Subset:
    """Return the best subset of blocks that has at most the parameters of so many layers.

    A feed-forward block, which has an odd number, has those of two attention blocks.
    """
    allowed = [blocks for blocks in scores if sum(1 + block % 2 for block in blocks) <= 3 * size]
    return max(allowed, key=scores.__getitem__)


def measure_twins(bench: Bench) -> dict[str, Any]:
    """Return the scores of all subsets of the twins' layers, and how the worth of layers differs."""
    predicted = {}
    for name in TWINS:
        model = SentenceEncoder.from_pretrained(ROOT / "data/twins" / name, pooling="mean")
        predicted[name] = bench.cosines_of_all_subsets(f"{name}-none", model)
    scores = {name: spearman_rows(cosine, bench.dev_scores).tolist() for name, cosine in predicted.items()}
    compared = {name: predicted[name] for name in COMPARED_TWINS}
    worth = compare_worth(compared, bench.dev_scores, binary_order(8), TWIN_BOOTSTRAPS)

    sample = random.Random(0).sample([*all_subsets(8)], TWIN_SAMPLE)
    records = {}
    for name in COMPARED_TWINS:
        model = SentenceEncoder.from_pretrained(ROOT / "data/twins" / name, pooling="mean")
        records[name] = [bench.train_subset(name, model, subset, TWIN_RECIPE) for subset in sample]
    tuned = {name: np.array([one["cosines"] for one in of_twin]) for name, of_twin in records.items()}
    return {
        "dev": scores,
        "worth": worth,
        "sample": sample,
        "tuned": {name: [without_cosines(one) for one in of_twin] for name, of_twin in records.items()},
        "worth tuned": compare_worth(tuned, bench.dev_scores, sample, BOOTSTRAPS, draw_subsets=True),
    }


def worth_of_layers(subsets: Sequence[Subset], scores: np.ndarray, num_layers: int) -> np.ndarray:
    """Return what keeping each layer adds to the score, by least squares, (L,). scores: (M,) of M subsets."""
    kept = np.array([[1.0, *(n in subset for n in range(num_layers))] for subset in subsets])
    return np.linalg.lstsq(kept, scores)[0][1:]


def compare_worth(
    predicted: dict[str, np.ndarray],
    gold: np.ndarray,
    subsets: list[Subset],
    bootstraps: int,
    draw_subsets: bool = False,
) -> dict[str, list[list[float]]]:
    """Return {model: worth of each of the 8 layers, with its 95 % interval}, and that of the difference.

    predicted: {model: (M, N), the cosines of the N pairs of dev by the M subsets}, for two models. The
    difference is that of the second model minus that of the first one. draw_subsets: the bootstrap draws
    subsets, too, because they are a sample.
    """

    def estimate(chosen: np.ndarray, pairs: np.ndarray) -> np.ndarray:  # (3, 8)
        some = [subsets[index] for index in chosen]
        first, second = (
            worth_of_layers(some, spearman_rows(cosine[chosen][:, pairs], gold[pairs]), 8)
            for cosine in predicted.values()
        )
        return np.stack([first, second, second - first])

    generator = np.random.default_rng(0)
    everything, N = np.arange(len(subsets)), len(gold)
    samples = []
    for _ in range(bootstraps):
        chosen = generator.choice(everything, len(everything)) if draw_subsets else everything
        samples.append(estimate(chosen, generator.integers(0, N, N)))
    low, high = np.quantile(samples, [0.025, 0.975], axis=0)
    values = np.stack([estimate(everything, np.arange(N)), low, high], -1)  # (3, 8, 3)
    return dict(zip([*predicted, "difference"], values.tolist(), strict=True))


def measure_base(bench: Bench) -> dict[str, Any]:
    """Return the scores of what four rules keep of a base-size model, without training and healed."""
    model = SentenceEncoder.from_pretrained(bench.base)
    num_layers, listed = len(model.encoder.layers), []
    order = bench.array("base-greedy", lambda: np.array(remove_greedily(bench, model))).tolist()
    for size in (3, 6):
        for name, subset in {
            "first layers": range(size),
            "last layers": range(num_layers - size, num_layers),
            "evenly spaced, with the last": space_layers_evenly(size, num_layers),
            "greedy removal": sorted(set(range(num_layers)) - set(order[: num_layers - size])),
        }.items():
            records = {
                "none": bench.untrained("base", model, tuple(subset)),
                "healed": bench.heal("base", model, tuple(subset)),
            }
            for training, record in records.items():
                one = {"rule": name, "layers": [*subset], "training": training}
                listed.append(one | without_cosines(record))
    return {"subsets": listed}


def remove_greedily(bench: Bench, model: SentenceEncoder) -> list[int]:
    """Drop the layer whose removal costs least on dev until 3 are left; return the dropped ones in order."""
    set_encode_precision(model := deepcopy(model), "bf16")
    pairs = sorted(random.Random(0).sample(range(len(bench.dev_scores)), BLOCK_PAIRS))
    texts = [column[index] for column in bench.splits["dev"].texts for index in pairs]
    token_ids, removed = model.tokenize(texts), []
    kept = dict(enumerate(model.encoder.layers))  # number of the layer in the whole model -> layer
    while len(kept) > 3:
        model.encoder.layers = nn.ModuleList(kept.values())
        embeddings = model.embed_token_ids(token_ids, partial(embed_by_single_removals, model))
        u, v = embeddings.chunk(2, dim=1)  # (L, N, D) each
        scores = spearman_rows(torch.cosine_similarity(u, v, dim=-1).numpy(), bench.dev_scores[pairs])
        removed.append([*kept][int(scores.argmax())])
        del kept[removed[-1]]
    return removed


def embed_by_single_removals(model: SentenceEncoder, batch: PackedBatch) -> Tensor:
    """Return the embeddings of a batch by the model without one of its L layers, (L, S, D)."""
    states = model.encoder.hidden_states(*batch.inputs)
    mask = model.encoder.score_bias(batch.sentence_ids, states[0].dtype)
    embeddings = []
    for removed in range(len(model.encoder.layers)):
        hidden = states[removed]
        for layer in model.encoder.layers[removed + 1 :]:
            hidden = layer(hidden, mask)
        embeddings.append(model.pool(hidden, batch))
    return torch.stack(embeddings)


def measure_mixes(bench: Bench) -> dict[str, Any]:
    """Return the scores of embeddings that are made of several layers, without training the model."""
    models = {"MiniLM": bench.minilm, "all-mpnet-base-v2": bench.base}
    models |= {name: str(ROOT / "data/twins" / name) for name in COMPARED_TWINS}
    return {
        name: bench.record(f"mixes-{name}", partial(mix_layers, bench, path)) for name, path in models.items()
    }


def mix_layers(bench: Bench, path: str) -> dict[str, Any]:
    """Return {way to mix: its scores}, and the weights that were learned."""
    model = SentenceEncoder.from_pretrained(path, pooling="mean")
    set_encode_precision(model, "bf16")

    def means(batch: PackedBatch) -> Tensor:  # (L + 1 + L, S, D): hidden states, then value vectors
        states = model.encoder.hidden_states(*batch.inputs)
        pairs = zip(states[:-1], model.encoder.layers, strict=True)  # the input of each layer
        values = [layer.attention.value(hidden) for hidden, layer in pairs]
        return torch.stack([mean_pooling(one, batch) for one in [*states, *values]])

    num_states = len(model.encoder.layers) + 1
    gold = {split: np.asarray(examples.labels) for split, examples in bench.splits.items()}
    products = {}  # of u and v, u and u, v and v, between all layers: 3 of (N, 2 L + 1, 2 L + 1)
    for split, examples in bench.splits.items():
        u, v = model.embed_token_ids(model.tokenize(examples.sentences), means).chunk(2, dim=1)
        products[split] = [torch.einsum("lnd,mnd->nlm", a, b).clone() for a, b in ((u, v), (u, u), (v, v))]

    def mixed_cosines(weights: Tensor, split: str) -> Tensor:  # (2 L + 1,) -> (N,)
        uv, uu, vv = (torch.einsum("l,nlm,m->n", weights, one, weights) for one in products[split])
        return uv / (uu * vv).sqrt()

    def score(weights: Tensor) -> dict[str, float]:
        return {
            split: 100 * spearman(mixed_cosines(weights, split).numpy(), gold[split])
            for split in ("dev", "test")
        }

    singles = torch.eye(2 * num_states - 1)
    scored = [score(weights) for weights in singles]
    best = max(range(num_states), key=lambda n: scored[n]["dev"])
    best_value = max(range(num_states, len(singles)), key=lambda n: scored[n]["dev"])
    logits = torch.zeros(num_states, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    target = torch.from_numpy(gold["train"]).float() / 5
    for _ in range(MIX_STEPS):
        weights = torch.cat([logits.softmax(0), torch.zeros(num_states - 1)])
        loss = (mixed_cosines(weights, "train") - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    learned = weights.detach()
    return {
        "the last layer": scored[num_states - 1],
        "the best layer": {"layer": best} | scored[best],
        "first and last": score(singles[0] + singles[num_states - 1]),
        "all layers": score(singles[:num_states].sum(0)),
        "learned weights": {"weights": learned[:num_states].tolist()} | score(learned),
        "values, the best layer": {"layer": best_value - num_states} | scored[best_value],
        "values, all layers": score(singles[num_states:].sum(0)),
    }


PARTS: dict[str, tuple[str, Callable[[Bench], dict[str, Any]]]] = {
    "layers": ("MiniLM", measure_layers),
    "labels": ("MiniLM, labels", measure_labels),
    "blocks": ("blocks", measure_blocks),
    "twins": ("twins", measure_twins),
    "base": ("all-mpnet-base-v2", measure_base),
    "mixes": ("mixes", measure_mixes),
}


def measure(args: argparse.Namespace) -> None:
    """Run the parts, and write the results of each into the JSON of the page."""
    task = get_task("stsb", data_root=args.data_root)
    args.out.mkdir(parents=True, exist_ok=True)
    report = json.loads(args.json.read_text("utf-8")) if args.json.exists() else {}
    splits = {split: read_split(task, split) for split in ("train", "dev", "test")}
    bench = Bench(args.out, args.minilm, args.base, draw_lines(args.text), splits, report, args.data_root)
    for part in args.parts:
        name, measure_part = PARTS[part]
        result = json.loads(json.dumps(measure_part(bench)), parse_float=lambda text: round(float(text), 4))
        report[name] = result
        write_file(args.json, json.dumps(report) + "\n")


# ------------------------------------------------------------------------------------------------ the rules


@dataclass
class Evidence:
    """What the rules may look at, for a model of L layers.

    untrained: subset -> its dev Spearman x 100 without training. states: (L + 1, N, D), the mean hidden
    states of N sentences after each layer. influence: (L,), how much each layer changes the tokens of the
    sentences: 1 - the mean cosine of a token before and after it.
    """

    untrained: dict[Subset, float]
    states: torch.Tensor
    influence: torch.Tensor

    @property
    def num_layers(self) -> int:
        """The number of layers of the model."""
        return len(self.influence)


def collect_evidence(
    model: SentenceEncoder, sentences: list[str], untrained: dict[Subset, float]
) -> Evidence:
    """Return what the rules need of a model."""

    def changes(batch):  # (L, S, 1)
        states = model.encoder.hidden_states(*batch.inputs)
        pairs = pairwise(states)
        return torch.stack(
            [mean_pooling(1 - torch.cosine_similarity(a, b, dim=-1)[..., None], batch) for a, b in pairs]
        )

    def means(batch):  # (L + 1, S, D)
        states = model.encoder.hidden_states(*batch.inputs)
        return torch.stack([mean_pooling(hidden, batch) for hidden in states])

    token_ids = model.tokenize(sentences)
    influence = model.embed_token_ids(token_ids, changes).mean((1, 2))
    return Evidence(untrained, model.embed_token_ids(token_ids, means), influence)


def keep_highest(values: torch.Tensor, size: int) -> Subset:
    """Return the layers with the highest values, in order."""
    return tuple(sorted(values.topk(size).indices.tolist()))


def choose_by_angle(evidence: Evidence, size: int) -> Subset:
    """Drop successive layers, where the angle from input to output is smallest (Gromov et al. 2024)."""
    dropped = evidence.num_layers - size
    states = evidence.states.double()
    angles = [
        torch.cosine_similarity(states[start], states[start + dropped], dim=-1).clamp(-1, 1).arccos().mean()
        for start in range(size + 1)
    ]
    start = int(torch.stack(angles).argmin())
    return tuple(n for n in range(evidence.num_layers) if not start <= n < start + dropped)


def choose_by_cka(evidence: Evidence, size: int) -> Subset:
    """Keep the layers whose output is least like their input, by linear CKA."""
    return keep_highest(torch.tensor([1 - linear_cka(a, b) for a, b in pairwise(evidence.states)]), size)


def choose_by_single_removals(evidence: Evidence, size: int) -> Subset:
    """Keep the layers whose removal alone, without training, costs most on dev."""
    everything = tuple(range(evidence.num_layers))
    without = [evidence.untrained[tuple(n for n in everything if n != one)] for one in everything]
    return keep_highest(-torch.tensor(without), size)


def choose_greedily(evidence: Evidence, size: int) -> Subset:
    """Drop one layer after the other, the one whose removal costs least on dev, without training."""
    kept = tuple(range(evidence.num_layers))
    while len(kept) > size:
        kept = max(combinations(kept, len(kept) - 1), key=evidence.untrained.__getitem__)
    return kept


def choose_best_untrained(evidence: Evidence, size: int) -> Subset:
    """Take the subset that is best on dev without training."""
    return max(combinations(range(evidence.num_layers), size), key=evidence.untrained.__getitem__)


RULES: dict[str, Callable[[Evidence, int], Subset]] = {
    "first layers": lambda evidence, size: tuple(range(size)),
    "last layers": lambda evidence, size: tuple(range(evidence.num_layers - size, evidence.num_layers)),
    "evenly spaced, with the last": lambda evidence, size: tuple(
        space_layers_evenly(size, evidence.num_layers)
    ),
    "block influence": lambda evidence, size: keep_highest(evidence.influence, size),
    "angular distance": choose_by_angle,
    "CKA of input and output": choose_by_cka,
    "scores of single removals": choose_by_single_removals,
    "greedy removal": choose_greedily,
    "best without training": choose_best_untrained,
}


# --------------------------------------------------------------------------------------------------- judging


def spearman_rows(predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Return Spearman x 100 of each row of predicted, (M, N), with gold, (N,)."""
    ranks = stats.rankdata(np.vstack([predicted, gold]), axis=1)
    ranks -= ranks.mean(1, keepdims=True)
    ranks /= np.linalg.norm(ranks, axis=1, keepdims=True)
    return 100 * ranks[:-1] @ ranks[-1]


def regrets(scores: np.ndarray, subsets: list[Subset], chosen: list[Subset]) -> np.ndarray:
    """Return by how much each chosen subset is worse than the best of its size. scores: (..., M)."""
    columns = []
    for subset in chosen:
        of_size = [index for index, other in enumerate(subsets) if len(other) == len(subset)]
        columns.append(scores[..., of_size].max(-1) - scores[..., subsets.index(subset)])
    return np.stack(columns, -1)


def judge_rules(evidence: Evidence, subsets: list[Subset], predicted: np.ndarray, gold: np.ndarray) -> dict:
    """Return {rule: its choices, their regrets, the mean regret with its interval, and a p-value}.

    predicted: (M, N), the cosines of the N pairs of dev by each subset. The p-value is the share of random
    choices, one subset of each size, whose mean regret is at most that of the rule.
    """
    sizes = range(1, evidence.num_layers)
    scores = spearman_rows(predicted, gold)
    generator = np.random.default_rng(0)
    samples = generator.integers(0, len(gold), (BOOTSTRAPS, len(gold)))
    resampled = np.stack([spearman_rows(predicted[:, pairs], gold[pairs]) for pairs in samples])  # (R, M)
    by_size = [regrets(scores, subsets, [s for s in subsets if len(s) == size]) for size in sizes]
    by_chance = np.stack([generator.choice(values, 20_000) for values in by_size]).mean(0)
    judged: dict[str, Any] = {"random choice": {"mean": float(by_chance.mean())}}
    for name, rule in RULES.items():
        chosen = [rule(evidence, size) for size in sizes]
        of_rule = regrets(scores, subsets, chosen)
        low, high = np.quantile(regrets(resampled, subsets, chosen).mean(-1), [0.025, 0.975])
        judged[name] = {
            "chosen": chosen,
            "regrets": of_rule.tolist(),
            "mean": float(of_rule.mean()),
            "interval": [float(low), float(high)],
            "p": float((by_chance <= of_rule.mean() + 1e-9).mean()),
        }
    return judged


# ------------------------------------------------------------------------------------------------ the page


def rule_table(models: dict[str, Any]) -> str:
    """Return the table of the rules as Markdown: the layers that each keeps, and its regret."""
    healed, untrained = (models["MiniLM"]["rules"][training] for training in ("healed", "none"))
    tuned = models["MiniLM, labels"]["rules"]
    rows = [["rule", "three layers", "regret", "95 %", "p", "without training", "fine-tuned on labels"]]
    for name in sorted(RULES, key=lambda name: healed[name]["mean"]):
        one = healed[name]
        low, high = one["interval"]
        rows.append([
            name,
            ", ".join(map(str, one["chosen"][2])),
            f"{one['mean']:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{one['p']:.3f}",
            f"{untrained[name]['mean']:.2f}",
            f"{tuned[name]['mean']:.2f}",
        ])  # fmt: skip
    chance = [f"{judged['random choice']['mean']:.2f}" for judged in (healed, untrained, tuned)]
    rows.append(["random choice", "", chance[0], "", "", *chance[1:]])
    return markdown_table(rows)


def size_table(models: dict[str, Any]) -> str:
    """Return the table of MiniLM's subsets after the distillation."""
    records = models["MiniLM"]["subsets"]
    return table_by_size([r for r in records if r["training"] == "healed" and r["seed"] == 0])


def seven_table(models: dict[str, Any]) -> str:
    """Return the table of the means of seven STS data sets, of some of MiniLM's subsets, distilled."""
    records = models["MiniLM"]["subsets"]
    dev = {tuple(r["layers"]): r["dev"] for r in records if r["training"] == "healed" and r["seed"] == 0}
    means = {tuple(r["layers"]): np.mean([*r["sts"].values()]) for r in records if "sts" in r}
    rows = [["layers kept", "best by dev", "evenly spaced", "last", "first"]]
    for size in range(1, 7):
        best = max((s for s in dev if len(s) == size), key=dev.__getitem__)
        named = [best, space_layers_evenly(size, 6), range(6 - size, 6), range(size)]
        rows.append([str(size), *(f"{means[tuple(subset)]:.2f}" for subset in named)])
    return markdown_table(rows)


def label_table(models: dict[str, Any]) -> str:
    """Return the table of MiniLM's subsets after fine-tuning on labels."""
    return table_by_size(models["MiniLM, labels"]["subsets"])


def table_by_size(records: list[dict[str, Any]]) -> str:
    """Return a table with a row for each number of layers, which compares the subsets of that size."""
    scores = {tuple(r["layers"]): r for r in records}
    rows = [["layers kept", "best by dev", "dev", "test", "evenly spaced", "first", "median", "worst"]]
    for size in range(1, 7):
        of_size = {s: r["dev"] for s, r in scores.items() if len(s) == size}
        best = max(of_size, key=of_size.__getitem__)
        named = [of_size[tuple(space_layers_evenly(size, 6))], of_size[tuple(range(size))]]
        rows.append([
            str(size),
            ", ".join(map(str, best)),
            *(f"{scores[best][split]:.2f}" for split in ("dev", "test")),
            *(f"{score:.2f}" for score in [*named, np.median([*of_size.values()]), min(of_size.values())]),
        ])  # fmt: skip
    return markdown_table(rows)


def block_scores(models: dict[str, Any]) -> dict[Subset, float]:
    """Return {subset of the blocks: its score}. Attention blocks are even, feed-forward blocks odd."""
    return dict(zip(binary_order(12), models["blocks"]["dev"], strict=True))


def removal_table(models: dict[str, Any]) -> str:
    """Return the table of the best score without k blocks of one kind, and nothing else removed."""
    scores = block_scores(models)
    rows = [["blocks removed", *map(str, range(7))]]
    for name, kept_kind in (("attention only", 1), ("feed-forward only", 0)):
        kept = set(range(kept_kind, 12, 2))
        best = [
            max(score for blocks, score in scores.items() if kept <= set(blocks) and len(blocks) == 12 - k)
            for k in range(7)
        ]
        rows.append([name, *(f"{score:.2f}" for score in best)])
    return markdown_table(rows)


def block_worth_table(models: dict[str, Any]) -> str:
    """Return the table of the points that a kept block adds, on average over all subsets of the others."""
    worth = worth_of_layers(binary_order(12), np.array(models["blocks"]["dev"]), 12)
    rows = [["worth of", *(f"layer {n}" for n in range(6))]]
    rows += [
        [name, *(f"{value:+.1f}" for value in worth[kind::2])]
        for kind, name in enumerate(("attention", "feed-forward"))
    ]
    return markdown_table(rows)


def twin_table(models: dict[str, Any]) -> str:
    """Return the table of what keeping each layer of the twins is worth."""
    rows = [["worth of layer", *map(str, range(8))]]
    for name in TWINS:
        worth = worth_of_layers(binary_order(8), np.array(models["twins"]["dev"][name]), 8)
        rows.append([name, *(f"{value:+.1f}" for value in worth)])
    differences = models["twins"]["worth"]["difference"]
    cells = [f"{value:+.1f} ({low:+.1f} to {high:+.1f})" for value, low, high in differences]
    rows.append([" minus ".join(reversed(COMPARED_TWINS)), *cells])
    return markdown_table(rows)


def tuned_twin_table(models: dict[str, Any]) -> str:
    """Return the table of what keeping each layer of two twins is worth after fine-tuning."""
    rows = [["worth of layer, fine-tuned", *map(str, range(8))]]
    for name, values in models["twins"]["worth tuned"].items():
        label = " minus ".join(reversed(COMPARED_TWINS)) if name == "difference" else name
        rows.append([label, *(f"{value:+.1f} ({low:+.1f} to {high:+.1f})" for value, low, high in values)])
    return markdown_table(rows)


def base_table(models: dict[str, Any]) -> str:
    """Return the table of what four rules keep of the base-size model."""
    rows = [["rule", "layers", "dev, without training", "dev, healed", "test, healed"]]
    records = models["all-mpnet-base-v2"]["subsets"]
    for untrained, healed in zip(records[::2], records[1::2], strict=True):
        scores = [untrained["dev"], healed["dev"], healed["test"]]
        kept = ", ".join(map(str, healed["layers"]))
        rows.append([healed["rule"], kept, *(f"{score:.2f}" for score in scores)])
    return markdown_table(rows)


def mix_table(models: dict[str, Any]) -> str:
    """Return the table of embeddings that are made of several layers: dev and test of each model."""
    mixes = models["mixes"]
    rows = [["embedding", *mixes]]
    for name in mixes["MiniLM"]:
        cells = []
        for model in mixes.values():
            layer = f" ({model[name]['layer']})" if "layer" in model[name] else ""
            cells.append(f"{model[name]['dev']:.2f}, {model[name]['test']:.2f}{layer}")
        rows.append([name, *cells])
    return markdown_table(rows)


TABLES: tuple[Callable[[dict[str, Any]], str], ...] = (
    size_table,
    seven_table,
    rule_table,
    label_table,
    removal_table,
    block_worth_table,
    twin_table,
    tuned_twin_table,
    base_table,
    mix_table,
)


def draw(models: dict[str, Any], path: Path) -> None:
    """Draw a point for each subset of MiniLM's layers, untrained and healed, with the rules as marks."""
    marks = {
        "first layers": "v",
        "last layers": "^",
        "evenly spaced, with the last": "s",
        "block influence": "D",
        "greedy removal": "*",
    }

    def on(*both):
        for axes, training in zip(both, ("none", "healed"), strict=True):
            records = [r for r in models["MiniLM"]["subsets"] if r["training"] == training and r["seed"] == 0]
            scores = {tuple(r["layers"]): r["dev"] for r in records}
            axes.plot(
                [len(subset) for subset in scores], [*scores.values()], "o", color="#999999", markersize=3.5
            )
            rules = models["MiniLM"]["rules"][training]
            for number, (name, marker) in enumerate(marks.items()):
                chosen = [tuple(subset) for subset in rules[name]["chosen"]]
                points = [(len(subset) + 0.07 * (number + 1), scores[subset]) for subset in chosen]
                style = line_style(number) | {"marker": marker, "linestyle": "none", "markersize": 5}
                axes.plot(*zip(*points, strict=True), **style, label=name)
            axes.set_title(
                "without training" if training == "none" else "after a short distillation", fontsize=9
            )
            axes.set_xlabel("number of layers that are kept")
            axes.set_ylim(48, 90)
        both[0].set_ylabel("STSB dev, Spearman x 100")
        both[1].legend(fontsize=7, loc="lower right")

    save_figure(
        on,
        path,
        widths=(3.4, 3.4),
        height=3.4,
        title="All 63 subsets of the layers of all-MiniLM-L6-v2",
        note="A gray point is a subset; marks, drawn to the right of it, are what a rule chooses. Seed 0.",
        description="Spearman on STSB dev of every subset of the layers, without training and healed.",
    )


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = p.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure")
    one.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    one.add_argument("--minilm", default="sentence-transformers/all-MiniLM-L6-v2")
    one.add_argument("--base", default="sentence-transformers/all-mpnet-base-v2")
    one.add_argument("--text", type=Path, required=True, help="sentences to distill with, one a line")
    one.add_argument("--data-root")
    one.add_argument("--out", type=Path, required=True, help="folder of the records")
    other = commands.add_parser("show", help="print the tables of the page and draw its figure")
    other.add_argument("--out", type=Path, default=ROOT / "docs/which-layer.svg")
    for command in (one, other):
        command.add_argument("--json", type=Path, default=ROOT / "docs/which-layer.json")
    args = p.parse_args()
    if args.command == "measure":
        measure(args)
    else:
        models = json.loads(args.json.read_text(encoding="utf-8"))
        print(*(table(models) for table in TABLES), sep="\n\n")
        draw(models, args.out)


if __name__ == "__main__":
    main()
