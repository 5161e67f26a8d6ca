"""Which layers of an encoder to keep: measure every subset of them, and judge the rules that choose one.

    python tests/bench/layer_subsets.py measure --ckpt MINILM --text lines.txt --out runs/minilm
    python tests/bench/layer_subsets.py measure --ckpt data/twins/mlm --out runs/mlm
    python tests/bench/layer_subsets.py judge MiniLM=MINILM:runs/minilm mlm=data/twins/mlm:runs/mlm \\
        --json docs/which-layer.json
    python tests/bench/layer_subsets.py show --json docs/which-layer.json --out docs/which-layer.svg

measure: score every subset of the layers, their order kept, without training and, if a text is given, after a
short distillation from the whole model ("healed"). It writes a JSON line per subset and its cosines of the
pairs of STSB dev, and leaves out what is there already, so that an interrupted command goes on.

judge: what each rule chooses for each number of layers, and its regret: the points of dev Spearman x 100 by
which it is worse than the best subset of as many layers. The interval is a bootstrap over the pairs of dev,
in which the best subset is chosen anew in each sample.

The recipe was fixed before the table was computed: LINES lines of the text, drawn by seed 0; one epoch of
the task "distillation" in batches of 64, with its learning rate; seed 0 for all subsets, and seed 1 for the
first, the last and the evenly spaced layers and for the three best of each number of layers. Training and
scoring are in bfloat16. The test split is scored with every subset and chooses nothing.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
from tmft import SentenceEncoder, linear_cka
from tmft.data import Examples
from tmft.datasets.task_lookup import get_task, read_split
from tmft.distillation import DEFAULT_RECIPE, space_layers_evenly
from tmft.formatting import markdown_table
from tmft.losses.distillation import EmbeddingDistillation
from tmft.metrics import cosines, spearman
from tmft.pooling import mean_pooling
from tmft.reports.drawing import line_style, save_figure
from tmft.serving.quantization import set_encode_precision
from tmft.tasks import TASKS
from tmft.training.loop import fit
from tmft.training.task import TrainingTask

LINES = 5_000
RECIPE = replace(DEFAULT_RECIPE, epochs=1, batch_size=64, precision="bf16")
RULE_SENTENCES = 1000  # of the training split, without their scores, for the rules that look at hidden states
BOOTSTRAPS = 1000
Subset = tuple[int, ...]  # indices of the layers that are kept, from 0, ascending

# ------------------------------------------------------------------------------------------------ measuring


def all_subsets(num_layers: int) -> Iterator[Subset]:
    """Yield every subset of at least one layer, the small ones first."""
    for size in range(1, num_layers + 1):
        yield from combinations(range(num_layers), size)


def keep(model: SentenceEncoder, subset: Subset) -> SentenceEncoder:
    """Return a copy of the model with these layers only."""
    smaller = deepcopy(model)
    smaller.encoder.keep_layers(subset)
    return smaller


def keep_untrained(model: SentenceEncoder, subset: Subset) -> tuple[SentenceEncoder, float]:
    """Return `keep` in the form of `heal`; the cosine is not a number, because none is measured."""
    return keep(model, subset), math.nan


def pair_cosines(model: SentenceEncoder, examples: Examples) -> np.ndarray:
    """Return the cosine of each pair of a split, (N,)."""
    set_encode_precision(model, "bf16")
    u, v = (torch.from_numpy(model.encode(texts)) for texts in examples.texts)
    return cosines(u, v)


def draw_lines(path: Path) -> list[str]:
    """Return LINES different lines of 20 to 200 characters, drawn by seed 0."""
    lines = dict.fromkeys(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return random.Random(0).sample([line for line in lines if 20 <= len(line) <= 200], LINES)


def heal(model: SentenceEncoder, subset: Subset, lines: list[str], target: torch.Tensor, seed: int):
    """Return the student with these layers after the distillation of RECIPE, and its cosine to the model."""
    student = keep(model, subset)
    torch.manual_seed(seed)
    task = replace(TASKS["distillation"], metric="teacher_cosine", eval_files="")
    num_dev = len(lines) // 100
    examples = {
        "train": Examples((lines[num_dev:],), target[num_dev:]),
        "dev": Examples((lines[:num_dev],), target[:num_dev]),
    }
    training_task = TrainingTask(task, EmbeddingDistillation(student.dimensions, task), examples)
    cosine = math.nan
    for epoch in fit(student, training_task, RECIPE, seed):
        cosine = epoch.dev["teacher_cosine"]
    return student.eval(), cosine


def measure(args: argparse.Namespace) -> None:
    """Score the subsets of a model, each without training and, if there is a text, healed."""
    model = SentenceEncoder.from_pretrained(args.ckpt).eval()
    num_layers, task = len(model.encoder.layers), get_task("stsb", data_root=args.data_root)
    dev, test = read_split(task, "dev"), read_split(task, "test")
    args.out.mkdir(parents=True, exist_ok=True)
    records = args.out / "subsets.jsonl"
    done = {(r["training"], tuple(r["layers"]), r["seed"]): r for r in read_records(args.out)}

    def score(
        kind: str, subset: Subset, seed: int, make: Callable[[], tuple[SentenceEncoder, float]]
    ) -> None:
        if (kind, subset, seed) in done:
            return
        start = time.perf_counter()
        student, cosine = make()
        of_dev, of_test = pair_cosines(student, dev), pair_cosines(student, test)
        np.save(args.out / f"{kind}-{'.'.join(map(str, subset))}-{seed}.npy", of_dev.astype(np.float32))
        record = {
            "training": kind,
            "layers": subset,
            "seed": seed,
            "dev": 100 * spearman(of_dev, np.asarray(dev.labels)),
            "test": 100 * spearman(of_test, np.asarray(test.labels)),
            "teacher_cosine": None if math.isnan(cosine) else cosine,
            "seconds": time.perf_counter() - start,
        }
        with records.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        done[kind, subset, seed] = record
        print(record, flush=True)

    for subset in all_subsets(num_layers):
        score("none", subset, 0, partial(keep_untrained, model, subset))
    if not args.text:
        return
    lines = draw_lines(args.text)
    target = torch.as_tensor(model.encode(lines, convert_to_tensor=True))
    for subset in all_subsets(num_layers):
        score("healed", subset, 0, partial(heal, model, subset, lines, target, 0))
    for size in range(1, num_layers):
        of_size = [s for s in combinations(range(num_layers), size)]
        best = sorted(of_size, key=lambda s: -done["healed", s, 0]["dev"])[:3]
        simple = [tuple(range(size)), tuple(range(num_layers - size, num_layers))]
        for subset in dict.fromkeys([*best, *simple, tuple(space_layers_evenly(size, num_layers))]):
            score("healed", subset, 1, partial(heal, model, subset, lines, target, 1))


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of subsets.jsonl, [] if there is none."""
    path = folder / "subsets.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


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


def judge(args: argparse.Namespace) -> None:
    """Write the JSON of the page: the scores of all subsets, and the judgement of the rules."""
    task = get_task("stsb", data_root=args.data_root)
    dev = read_split(task, "dev")
    sentences = read_split(task, "train").sentences[:RULE_SENTENCES]
    models = {}
    for text in args.models:
        name, _, where = text.partition("=")
        ckpt, _, folder = where.partition(":")
        records = read_records(Path(folder))
        model = SentenceEncoder.from_pretrained(ckpt).eval()
        untrained = {tuple(r["layers"]): r["dev"] for r in records if r["training"] == "none"}
        evidence = collect_evidence(model, sentences, untrained)
        judged = {}
        for training in dict.fromkeys(record["training"] for record in records):
            of_training = [r for r in records if r["training"] == training and r["seed"] == 0]
            subsets = [tuple(record["layers"]) for record in of_training]
            files = [f"{training}-{'.'.join(map(str, subset))}-0.npy" for subset in subsets]
            predicted = np.stack([np.load(Path(folder) / file) for file in files])
            judged[training] = judge_rules(evidence, subsets, predicted, np.asarray(dev.labels))
        keys = ("training", "layers", "seed", "dev", "test", "teacher_cosine", "seconds")
        rounded = [
            {key: round(r[key], 4) if isinstance(r[key], float) else r[key] for key in keys} for r in records
        ]
        models[name] = {"subsets": rounded, "rules": judged}
    content = json.loads(json.dumps(models), parse_float=lambda text: round(float(text), 4))
    args.json.write_text(json.dumps(content) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------------------------ the page


def rule_table(models: dict[str, Any]) -> str:
    """Return the table of the rules as Markdown: the layers that each keeps, and its regret."""
    healed, untrained = (models["MiniLM"]["rules"][training] for training in ("healed", "none"))
    twins = [name for name in models if name != "MiniLM"]
    rows = [["rule", "three layers", "regret", "95 %", "p", "without training", *twins]]
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
            *(f"{models[twin]['rules']['none'][name]['mean']:.2f}" for twin in twins),
        ])  # fmt: skip
    chance = [f"{models[name]['rules']['none']['random choice']['mean']:.2f}" for name in ("MiniLM", *twins)]
    rows.append(["random choice", "", f"{healed['random choice']['mean']:.2f}", "", "", *chance])
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
    parts = p.add_subparsers(dest="command", required=True)
    one = parts.add_parser("measure")
    one.add_argument("--ckpt", required=True)
    one.add_argument("--text", type=Path, help="lines to heal with; without it, nothing is trained")
    one.add_argument("--data-root")
    one.add_argument("--out", type=Path, required=True)
    other = parts.add_parser("judge")
    other.add_argument("models", nargs="+", metavar="NAME=CKPT:FOLDER")
    other.add_argument("--data-root")
    other.add_argument("--json", type=Path, required=True)
    last = parts.add_parser("show", help="print the tables of the page and draw its figure, from the JSON")
    last.add_argument("--json", type=Path, required=True)
    last.add_argument("--out", type=Path, required=True)
    args = p.parse_args()
    if args.command == "show":
        models = json.loads(args.json.read_text(encoding="utf-8"))
        print(size_table(models), rule_table(models), sep="\n\n")
        draw(models, args.out)
    else:
        {"measure": measure, "judge": judge}[args.command](args)


if __name__ == "__main__":
    main()
