"""Which layers of an encoder to keep: score subsets of them, and judge the rules that choose one.

    python tests/bench/layer_subsets.py measure --text lines.txt --base all-mpnet-base-v2 --out runs/layers
    python tests/bench/layer_subsets.py show

measure: run the parts below, or those that --parts names, and write the results of each into --json. What is
in the folder already is not measured again, so that an interrupted command goes on. show: print the tables of
docs/which-layer.md and draw its figure from --json.

Recipe and rules of each part were written down before it was computed. "Healed" is after a short distillation
from the whole model: LINES lines of the text, drawn by seed 0, and HEALING. Training and scoring are in
bfloat16. Dev of STSB judges, test is scored once for what the page names, and chooses nothing. Seed 0.

layers: every subset of MiniLM's 6 layers, without training and healed; seed 1 for the first, the last and the
evenly spaced layers and for the three best of each size. For each number of layers, a rule chooses a subset;
its regret is the points of dev Spearman x 100 by which this is worse than the best subset of that size. The
interval is a bootstrap over the pairs of dev, in which the best subset is chosen anew in each sample.

blocks: every subset of MiniLM's 12 blocks, 6 of attention and 6 of feed-forward, without training, scored on
BLOCK_PAIRS pairs of dev: of 750, drawn by seed 0, the first in the order of the file, which are captions of
images and posts of forums. (All 750, with news, were planned, but the processor was too busy.) A block is
removed with its residual connection and its LayerNorm, so that both blocks of a layer together are the layer.
Healed: the best subset without training that has at most the parameters of 2, 3, 4 and 5 layers (a
feed-forward block has those of two attention blocks); the best that lacks 2 feed-forward blocks and nothing
else, and the best that lacks 4 attention blocks, which have as many parameters; and, to compare with the part
before, three evenly spaced layers.

twins: every subset of the 8 layers of four small models of one ancestor that differ in what they were trained
on last, with mean pooling, without training; and TWIN_SAMPLE subsets, drawn by seed 0, of those that were
trained on masked and on replaced tokens, fine-tuned on STSB by TWIN_RECIPE. The worth of a layer is what a
least-squares fit of the score on "layer n is kept" gives it. Its interval is a bootstrap over subsets and
pairs; both models have the same of both in each sample.

labels: MiniLM fine-tuned on STSB by LABEL_RECIPE in place of the distillation: the first, the last and the
evenly spaced layers and the best healed ones, of 2 to 5 layers, LABEL_SAMPLE others, drawn by seed 0, and the
whole model.

base: all-mpnet-base-v2 with 3 and 6 of its 12 layers: the first, the evenly spaced, and those that greedy
removal by dev without training leaves; each without training, those with 3 layers healed, too.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
from tmft import SentenceEncoder, linear_cka
from tmft.data import Examples
from tmft.datasets.task_lookup import get_task, read_split
from tmft.distillation import DEFAULT_RECIPE, space_layers_evenly
from tmft.formatting import markdown_table
from tmft.io.atomic import write_file
from tmft.losses.cosine import CosineMSE
from tmft.losses.distillation import EmbeddingDistillation
from tmft.metrics import cosines, spearman
from tmft.models.bert import Layer
from tmft.packing import PackedBatch
from tmft.pooling import mean_pooling
from tmft.reports.drawing import line_style, save_figure
from tmft.serving.quantization import set_encode_precision
from tmft.speed.prepacked_weights import prepacked_weights
from tmft.tasks import TASKS
from tmft.training.loop import Recipe, fit
from tmft.training.task import TrainingTask

ROOT = Path(__file__).resolve().parents[2]
LINES = 5_000
HEALING = replace(DEFAULT_RECIPE, epochs=1, batch_size=64, precision="bf16")
LABEL_RECIPE = Recipe(epochs=1, lr=1e-4, precision="bf16")
LABEL_SAMPLE = 6
TWIN_RECIPE = Recipe(epochs=1, lr=3e-4, precision="bf16")
TWIN_SAMPLE = 20
TWINS = ("mlm", "mlm-then-mlm", "mlm-then-rtd", "mlm-then-clm")
TUNED_TWINS = ("mlm-then-mlm", "mlm-then-rtd")
RULE_SENTENCES = 1000  # of the training split, without their scores, for the rules that look at hidden states
BOOTSTRAPS = 1000
BLOCK_PAIRS = 450
CHUNK = 50  # pairs whose embeddings by all subsets are in memory at a time
Subset = tuple[int, ...]  # indices of the layers or blocks that are kept, from 0, ascending

# ------------------------------------------------------------------------------------------------ measuring


@dataclass
class Bench:
    """What all parts share: the data of STSB, the text to heal with, and the folder of the records.

    minilm, base: hub ids or folders. lines: LINES lines of the text. report: the content of --json.
    """

    out: Path
    minilm: str
    base: str
    lines: list[str]
    splits: dict[str, Examples]
    report: dict[str, Any]

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

    def heal(self, name: str, model: SentenceEncoder, subset: Subset, seed: int = 0) -> dict[str, Any]:
        """Return the scores of these layers after the distillation from the whole model."""

        def make() -> dict[str, Any]:
            target = torch.from_numpy(self.array(f"{name}-targets", lambda: model.encode(self.lines)))
            num_dev = len(self.lines) // 100
            examples = {
                "train": Examples((self.lines[num_dev:],), target[num_dev:]),
                "dev": Examples((self.lines[:num_dev],), target[:num_dev]),
            }
            task = replace(TASKS["distillation"], metric="teacher_cosine", eval_files="")
            student = keep(model, subset)
            objective = EmbeddingDistillation(student.dimensions, task)
            cosine = train(student, TrainingTask(task, objective, examples), HEALING, seed)
            return self.score(student, teacher_cosine=cosine)

        return self.record(f"{name}-healed-{join(subset)}-{seed}", make)

    def array(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the array of this name, which is made only if the folder does not have it."""
        path = self.out / f"{name}.npy"
        if not path.exists():
            array = make()
            write_file(path, lambda new: np.save(new, array))
            print(name, array.shape, flush=True)
        return np.load(path)

    def fine_tune(self, name: str, model: SentenceEncoder, subset: Subset, recipe: Recipe) -> dict[str, Any]:
        """Return the scores of these layers after fine-tuning on the labelled pairs of STSB."""

        def make() -> dict[str, Any]:
            student, task = keep(model, subset), TASKS["stsb"]
            train(student, TrainingTask(task, CosineMSE(), self.splits), recipe, 0)
            return self.score(student)

        return self.record(f"{name}-tuned-{join(subset)}", make)

    def untrained(self, name: str, model: SentenceEncoder, subset: Subset) -> dict[str, Any]:
        """Return the scores of these layers without training."""
        return self.record(f"{name}-none-{join(subset)}", lambda: self.score(keep(model, subset)))

    def cosines_of_variants(
        self,
        name: str,
        model: SentenceEncoder,
        embed: Callable[[SentenceEncoder, PackedBatch], Tensor],
        pairs: list[int] | None = None,
    ) -> np.ndarray:
        """Return the cosines of N pairs of dev by each of the M variants of a model, (M, N).

        embed: gives the embeddings of a batch by all variants, (M, S, D). pairs: the indices of the N pairs;
            None: all.
        """
        set_encode_precision(model := deepcopy(model), "bf16")
        dev = self.splits["dev"]
        pairs = [*range(len(dev))] if pairs is None else pairs

        def cosines_of(chosen: list[int]) -> np.ndarray:  # (M, CHUNK)
            token_ids = model.tokenize([column[index] for column in dev.texts for index in chosen])
            with prepacked_weights(model.encoder):
                u, v = model.map_batches(token_ids, partial(embed, model)).chunk(2, dim=1)  # (M, CHUNK, D)
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
    """Return a copy of the model with these layers only."""
    smaller = deepcopy(model)
    smaller.encoder.keep_layers(subset)
    return smaller


def draw_lines(path: Path) -> list[str]:
    """Return LINES different lines of 20 to 200 characters, drawn by seed 0."""
    lines = dict.fromkeys(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return random.Random(0).sample([line for line in lines if 20 <= len(line) <= 200], LINES)


def train(student: SentenceEncoder, task: TrainingTask, recipe: Recipe, seed: int) -> float:
    """Train a student in place, and return the best value of the metric on dev."""
    torch.manual_seed(seed)
    dev = [epoch.dev[task.task.metric] for epoch in fit(student, task, recipe, seed)]
    student.eval()
    return max(dev)


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


# ---------------------------------------------------------------------------------------------- the parts


def measure_layers(bench: Bench) -> dict[str, Any]:
    """Return the scores of all subsets of MiniLM's layers, and the judgement of the rules."""
    model = SentenceEncoder.from_pretrained(bench.minilm)
    num_layers = len(model.encoder.layers)
    subsets = [*all_subsets(num_layers)]
    records = {("none", s, 0): bench.untrained("minilm", model, s) for s in subsets}
    records |= {("healed", s, 0): bench.heal("minilm", model, s) for s in subsets}
    for size in range(1, num_layers):
        of_size = [s for s in subsets if len(s) == size]
        best = sorted(of_size, key=lambda s: -records["healed", s, 0]["dev"])[:3]
        named = [tuple(range(size)), tuple(range(num_layers - size, num_layers))]
        for subset in dict.fromkeys([*best, *named, tuple(evenly_spaced(size, num_layers))]):
            records["healed", subset, 1] = bench.heal("minilm", model, subset, 1)
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


def healed_layers(models: dict[str, Any]) -> dict[Subset, dict[str, Any]]:
    """Return {subset of MiniLM's layers: its scores after the distillation}, of seed 0."""
    return {
        tuple(one["layers"]): one
        for one in models["MiniLM"]["subsets"]
        if one["training"] == "healed" and one["seed"] == 0
    }


def without_cosines(record: dict[str, Any]) -> dict[str, Any]:
    """Return what --json holds of a record."""
    return {key: value for key, value in record.items() if key != "cosines"}


def parameters(blocks: Iterable[int]) -> int:
    """Return the size of blocks, in attention blocks: a feed-forward block, an odd number, counts as two."""
    return sum(1 + block % 2 for block in blocks)


def measure_blocks(bench: Bench) -> dict[str, Any]:
    """Return the scores of all subsets of MiniLM's attention and feed-forward blocks, and of healed ones."""
    model = SentenceEncoder.from_pretrained(bench.minilm)
    blocks = split_into_blocks(model)
    pairs = sorted(random.Random(0).sample(range(len(bench.splits["dev"])), 750))[:BLOCK_PAIRS]
    predicted = bench.cosines_of_variants("blocks-none", blocks, embed_by_all_subsets, pairs)
    untrained = spearman_rows(predicted, bench.dev_scores[pairs])
    scores = dict(zip(binary_order(12), untrained, strict=True))
    healed = [
        {"blocks": subset} | without_cosines(bench.heal("blocks", blocks, subset))
        for subset in dict.fromkeys([*choose_blocks(scores), whole_layers(evenly_spaced(3, 6))])
    ]
    return {"dev": untrained.tolist(), "healed": healed}


def whole_layers(layers: Iterable[int]) -> Subset:
    """Return the blocks of whole layers."""
    return tuple(block for layer in layers for block in (2 * layer, 2 * layer + 1))


def choose_blocks(scores: dict[Subset, float]) -> list[Subset]:
    """Return the subsets of blocks that are healed: see `blocks` at the top of the file."""
    within = [[s for s in scores if parameters(s) <= 3 * layers] for layers in (2, 3, 4, 5)]
    attention, feed_forward = set(range(0, 12, 2)), set(range(1, 12, 2))
    one_kind = [
        [s for s in scores if attention <= set(s) and len(s) == 10],
        [s for s in scores if feed_forward <= set(s) and len(s) == 8],
    ]
    return [max(candidates, key=scores.__getitem__) for candidates in [*within, *one_kind]]


def measure_twins(bench: Bench) -> dict[str, Any]:
    """Return the scores of the subsets of the twins' layers, without training and fine-tuned."""
    models = {
        name: SentenceEncoder.from_pretrained(ROOT / "data/twins" / name, pooling="mean") for name in TWINS
    }
    gold = bench.dev_scores
    untrained = {
        name: bench.cosines_of_variants(f"{name}-none", model, embed_by_all_subsets)
        for name, model in models.items()
    }
    twins: dict[str, dict[str, Any]] = {
        name: {"dev": spearman_rows(predicted, gold).tolist(), "tuned": []}
        for name, predicted in untrained.items()
    }
    sample = random.Random(0).sample([*all_subsets(8)], TWIN_SAMPLE)
    predicted: dict[str, list[list[float]]] = {name: [] for name in TUNED_TWINS}
    for subset in sample:
        for name in TUNED_TWINS:
            record = bench.fine_tune(name, models[name], subset, TWIN_RECIPE)
            predicted[name].append(record["cosines"])
            twins[name]["tuned"].append({"layers": subset} | without_cosines(record))
    some = {name: untrained[name] for name in TUNED_TWINS}
    tuned = {name: np.array(cosines) for name, cosines in predicted.items()}
    worth = {
        "untrained": compare_worth(binary_order(8), some, gold, False),
        "tuned": compare_worth(sample, tuned, gold, True),
    }
    return {"models": twins, "worth": worth}


def worth_of_layers(subsets: Sequence[Subset], scores: np.ndarray, num_layers: int) -> np.ndarray:
    """Return what keeping each layer adds to the score, by least squares, (L,). scores: (M,) of M subsets."""
    kept = np.array([[1.0, *(n in subset for n in range(num_layers))] for subset in subsets])
    return np.linalg.lstsq(kept, scores)[0][1:]


def compare_worth(
    subsets: list[Subset], predicted: dict[str, np.ndarray], gold: np.ndarray, is_sample: bool
) -> dict[str, list[list[float]]]:
    """Return {model: worth of each of the 8 layers, with its 95 % interval}, and that of the difference.

    predicted: {model: (M, N), the cosines of the N pairs of dev by each of M subsets}, for two models. The
    difference is that of the second model minus that of the first one. is_sample: whether the subsets are a
    sample, which is resampled, too, and not all that there are.
    """
    M, N = len(subsets), len(gold)

    def estimate(chosen: np.ndarray, pairs: np.ndarray) -> np.ndarray:  # (3, 8)
        some = [subsets[index] for index in chosen]
        first, second = (
            worth_of_layers(some, spearman_rows(cosine[chosen][:, pairs], gold[pairs]), 8)
            for cosine in predicted.values()
        )
        return np.stack([first, second, second - first])

    generator = np.random.default_rng(0)
    samples = []
    for _ in range(BOOTSTRAPS):
        chosen = generator.integers(0, M, M) if is_sample else np.arange(M)
        samples.append(estimate(chosen, generator.integers(0, N, N)))
    low, high = np.quantile(samples, [0.025, 0.975], axis=0)
    values = np.stack([estimate(np.arange(M), np.arange(N)), low, high], -1)  # (3, 8, 3)
    return dict(zip([*predicted, "difference"], values.tolist(), strict=True))


def measure_labels(bench: Bench) -> dict[str, Any]:
    """Return the scores of subsets of MiniLM's layers after fine-tuning on labelled pairs."""
    model = SentenceEncoder.from_pretrained(bench.minilm)
    healed = healed_layers(bench.report)
    named: list[Subset] = []
    for size in (2, 3, 4, 5):
        best = max(combinations(range(6), size), key=lambda subset: healed[subset]["dev"])
        named += [tuple(range(size)), tuple(range(6 - size, 6)), tuple(evenly_spaced(size, 6)), best]
    others = [s for s in all_subsets(6) if 2 <= len(s) <= 5 and s not in named]
    subsets = [*dict.fromkeys(named), *random.Random(0).sample(others, LABEL_SAMPLE), tuple(range(6))]
    records = [bench.fine_tune("minilm", model, subset, LABEL_RECIPE) for subset in subsets]
    return {
        "tuned": [
            {"layers": subset} | without_cosines(record)
            for subset, record in zip(subsets, records, strict=True)
        ]
    }


def measure_base(bench: Bench) -> dict[str, Any]:
    """Return the scores of what three rules keep of a base-size model, without training and healed."""
    model = SentenceEncoder.from_pretrained(bench.base)
    num_layers = len(model.encoder.layers)
    kept = tuple(range(num_layers))
    path = [kept]
    while len(kept) > 3:
        smaller = keep(model, kept)
        predicted = bench.cosines_of_variants(f"base-without-{join(kept)}", smaller, embed_by_single_removals)
        removed = int(spearman_rows(predicted, bench.dev_scores).argmax())
        kept = (*kept[:removed], *kept[removed + 1 :])
        path.append(kept)
    listed = []
    for size in (3, 6):
        greedy = next(s for s in path if len(s) == size)
        rules = {
            "evenly spaced, with the last": tuple(evenly_spaced(size, num_layers)),
            "greedy removal": greedy,
            "first layers": tuple(range(size)),
        }
        for rule, subset in rules.items():
            scores = {"untrained": bench.untrained("base", model, subset)}
            if size == 3:
                scores["healed"] = bench.heal("base", model, subset)
            shown = {training: without_cosines(record) for training, record in scores.items()}
            listed.append({"rule": rule, "layers": subset} | shown)
    whole = without_cosines(bench.untrained("base", model, path[0]))
    return {"whole": whole, "greedy": path, "rules": listed}


PARTS: dict[str, tuple[str, Callable[[Bench], dict[str, Any]]]] = {
    "layers": ("MiniLM", measure_layers),
    "blocks": ("blocks", measure_blocks),
    "twins": ("twins", measure_twins),
    "labels": ("labels", measure_labels),
    "base": ("base", measure_base),
}


def measure(args: argparse.Namespace) -> None:
    """Run the parts, and write the results of each into the JSON of the page."""
    task = get_task("stsb", data_root=args.data_root)
    args.out.mkdir(parents=True, exist_ok=True)
    report = json.loads(args.json.read_text("utf-8")) if args.json.exists() else {}
    splits = {split: read_split(task, split) for split in ("train", "dev", "test")}
    bench = Bench(args.out, args.minilm, args.base, draw_lines(args.text), splits, report)
    for part in args.parts:
        name, measure_part = PARTS[part]
        result = json.loads(json.dumps(measure_part(bench)), parse_float=lambda text: round(float(text), 4))
        bench.report[name] = result
        write_file(args.json, json.dumps(bench.report) + "\n")


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
        pairs = zip(states, states[1:], strict=False)
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
    pairs = zip(evidence.states, evidence.states[1:], strict=False)
    return keep_highest(torch.tensor([1 - linear_cka(a, b) for a, b in pairs]), size)


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
    rows = [["rule", "three layers", "regret", "95 %", "p", "without training"]]
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
        ])  # fmt: skip
    chance = [f"{judged['random choice']['mean']:.2f}" for judged in (healed, untrained)]
    rows.append(["random choice", "", chance[0], "", "", chance[1]])
    return markdown_table(rows)


def size_table(models: dict[str, Any]) -> str:
    """Return the table of MiniLM by number of layers: the best subset, the first, the evenly spaced ones."""
    records = models["MiniLM"]["subsets"]
    scores = {(r["training"], tuple(r["layers"])): r for r in records if r["seed"] == 0}
    rows = [["layers kept", "best by dev", "dev", "test", "evenly spaced", "first", "median", "worst"]]
    for size in range(1, 7):
        of_size = {
            s: r["dev"] for (training, s), r in scores.items() if training == "healed" and len(s) == size
        }
        best = max(of_size, key=of_size.__getitem__)
        named = [of_size[tuple(space_layers_evenly(size, 6))], of_size[tuple(range(size))]]
        rows.append([
            str(size),
            ", ".join(map(str, best)),
            *(f"{scores['healed', best][split]:.2f}" for split in ("dev", "test")),
            *(f"{score:.2f}" for score in [*named, np.median([*of_size.values()]), min(of_size.values())]),
        ])  # fmt: skip
    return markdown_table(rows)


def block_table(models: dict[str, Any]) -> str:
    """Return the table of the best blocks of as many parameters as 2 to 5 layers, beside whole layers."""
    scores = dict(zip(binary_order(12), models["blocks"]["dev"], strict=True))
    healed = {whole_layers(layers): one for layers, one in healed_layers(models).items()}
    healed |= {tuple(one["blocks"]): one for one in models["blocks"]["healed"]}
    even = [whole_layers(evenly_spaced(layers, 6)) for layers in (2, 3, 4, 5)]
    rows = [["", "attention of", "feed-forward of", "without training", "healed", "test"]]
    names = [f"{kind}, {layers} layers" for layers in (2, 3, 4, 5) for kind in ("best", "evenly spaced")]
    best = choose_blocks(scores)
    pairs = zip(best[:4], even, strict=True)
    names += ["best without 2 feed-forward blocks", "best without 4 attention blocks"]
    for name, blocks in zip(names, [*(blocks for pair in pairs for blocks in pair), *best[4:]], strict=True):
        rows.append([
            name,
            *kinds_of_blocks(blocks),
            f"{scores[blocks]:.2f}",
            *(f"{healed[blocks][split]:.2f}" for split in ("dev", "test")),
        ])  # fmt: skip
    return markdown_table(rows)


def kinds_of_blocks(blocks: Subset) -> tuple[str, str]:
    """Return the layers of the attention blocks and of the feed-forward blocks, as two texts."""
    kinds = [[str(block // 2) for block in blocks if block % 2 == kind] for kind in (0, 1)]
    return ", ".join(kinds[0]) or "none", ", ".join(kinds[1]) or "none"


def removal_table(models: dict[str, Any]) -> str:
    """Return the table of the best score without k blocks of one kind, and nothing else removed."""
    scores = dict(zip(binary_order(12), models["blocks"]["dev"], strict=True))
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
    """Return the table of what keeping each block adds, on average over all subsets of the others."""
    worth = worth_of_layers(binary_order(12), np.array(models["blocks"]["dev"]), 12)
    rows = [["worth of", *(f"layer {n}" for n in range(6))]]
    rows += [
        [name, *(f"{value:+.1f}" for value in worth[kind::2])]
        for kind, name in enumerate(("attention", "feed-forward"))
    ]
    return markdown_table(rows)


def twin_table(models: dict[str, Any]) -> str:
    """Return the table of what keeping each layer of the twins is worth, without training and fine-tuned."""
    twins = models["twins"]
    rows = [["worth of layer", *map(str, range(8))]]
    for name in TWINS:
        worth = worth_of_layers(binary_order(8), np.array(twins["models"][name]["dev"]), 8)
        rows.append([f"`{name}`", *(f"{value:+.1f}" for value in worth)])
    for training, words in (("untrained", "without training"), ("tuned", "fine-tuned")):
        worths = twins["worth"].get(training, {"difference": []})
        for name in [*(TUNED_TWINS if training == "tuned" else ()), "difference"]:
            cells = [f"{value:+.1f} ({low:+.1f} to {high:+.1f})" for value, low, high in worths[name]]
            rows.append([f"`{name}`, {words}" if name in TUNED_TWINS else f"{name}, {words}", *cells])
    return markdown_table(rows)


def label_table(models: dict[str, Any]) -> str:
    """Return the table of MiniLM's layers after fine-tuning on labelled pairs."""
    tuned = {tuple(one["layers"]): one["dev"] for one in models["labels"]["tuned"]}
    healed = healed_layers(models)
    rows = [["layers kept", "first", "last", "evenly spaced", "best healed", "best of all", "tried"]]
    for size in (2, 3, 4, 5):
        of_size = [subset for subset in tuned if len(subset) == size]
        named = [
            tuple(range(size)),
            tuple(range(6 - size, 6)),
            tuple(evenly_spaced(size, 6)),
            max(combinations(range(6), size), key=lambda subset: healed[subset]["dev"]),
        ]
        best = max(of_size, key=tuned.__getitem__)
        rows.append([
            str(size),
            *(f"{tuned[subset]:.2f}" for subset in named),
            f"{tuned[best]:.2f} ({', '.join(map(str, best))})",
            str(len(of_size)),
        ])  # fmt: skip
    return markdown_table(rows)


def base_table(models: dict[str, Any]) -> str:
    """Return the table of what three rules keep of the base-size model."""
    rows = [["layers kept", "rule", "layers", "without training", "healed", "test"]]
    for one in models["base"]["rules"]:
        scores = [one["untrained"]["dev"], *(one.get("healed", {}).get(split) for split in ("dev", "test"))]
        rows.append([
            str(len(one["layers"])),
            one["rule"],
            ", ".join(map(str, one["layers"])),
            *("" if score is None else f"{score:.2f}" for score in scores),
        ])  # fmt: skip
    return markdown_table(rows)


TABLES: tuple[Callable[[dict[str, Any]], str], ...] = (
    size_table,
    rule_table,
    block_table,
    removal_table,
    block_worth_table,
    twin_table,
    label_table,
    base_table,
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
    one.add_argument("--text", type=Path, required=True, help="lines to heal with")
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
