"""One task or several at once: the batches of a step, gradients that disagree, one score for all.

Letters in this file: T tasks, W weights that they share; N examples of k texts, P of them in a batch.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
import torch
from torch import Tensor, nn

from tmft.data import Examples, Task, batches, targets
from tmft.errors import InputError
from tmft.losses.nested import Nested
from tmft.losses.registry import OBJECTIVES
from tmft.metrics import METRICS, compute_metrics, correlation_metrics
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.freezing import Embedder

OVERALL = "overall"  # name of the score of several tasks
NOTED = 20  # steps whose mean is noted
BLOCK = 100_000  # sentences that are tokenised at a time, of a long text: lists of numbers take much memory


@dataclass
class Lesson:
    """A task that is learnt, with others or alone. objective: made by a row of OBJECTIVES; examples: of each
    split; weight: of its loss."""

    task: Task
    objective: nn.Module
    examples: dict[str, Examples]
    weight: float = 1.0
    nested: Nested | None = None  # what makes views of embeddings, if there are several of each text

    @property
    def texts(self) -> int:
        """k"""
        return len(self.examples["train"].texts)

    def tokenize(self, model: SentenceEncoder) -> list[list[int]]:
        """Token ids of the train sentences, which are kept, as those of dev are."""
        texts = self.examples["train"].sentences
        parts = (texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK))
        self.train_ids = [array("i", ids) for part in parts for ids in model.tokenize(part)]
        self.dev_ids = model.tokenize(self.examples["dev"].sentences)
        self.target, self.device = targets(self.examples["train"].labels, self.task), model.device
        return self.train_ids

    def batch(self, numbers: list[int]) -> tuple[list[list[int]], Tensor]:
        """P examples -> the ids of their k x P sentences, text after text, and their targets.

        Numbers that pick on a GPU would have to get there first, and the next step wait for the last one.
        """
        N = len(self.examples["train"])
        sentences = [self.train_ids[j * N + i] for j in range(self.texts) for i in numbers]
        return sentences, self.target[numbers].to(self.device, non_blocking=True)

    def loss(self, *embeddings_and_target: Tensor) -> Tensor:
        """k of (P, D) and (P, ...) -> scalar"""
        own = self.objective if self.nested is None else partial(self.nested.loss, self.objective)
        loss = own(*embeddings_and_target)
        return loss if self.weight == 1 else self.weight * loss

    def dev(self, embed: Embedder) -> dict:
        """Scores of the dev examples."""
        examples, metric = self.examples["dev"], METRICS[self.task.metric]
        predicted = self.predict(embed.read(self.dev_ids), examples)
        return metric(predicted.pop(""), examples.labels) | self.of_views(predicted, examples)

    def scores(self, model: SentenceEncoder, split: str, threshold: float | None) -> dict:
        """Scores of a split, with those of its subsets; what was scored is kept beside its labels."""
        examples, of_rows = self.examples[split], self.nested.of_rows if self.nested else model
        predicted = self.predict(model.read(model.tokenize(examples.sentences), of_rows, False), examples)
        self.scored = predicted.pop(""), examples.labels
        whole = compute_metrics(self.scored[0], examples, self.task, threshold)
        return whole | self.of_views(predicted, examples, threshold)

    def predict(self, embeddings: Tensor, examples: Examples) -> dict[str, np.ndarray]:
        """What the metric reads, from embeddings of all texts: of each view by name, "" is the whole."""
        views = {"": embeddings} if self.nested is None else self.nested.views(embeddings)
        self.objective.eval()
        return {name: self.objective.predict(*u.chunk(len(examples.texts))) for name, u in views.items()}

    def of_views(self, predicted: dict, examples: Examples, threshold: float | None = None) -> dict:
        """{"views": the score of each by its name}, {} where there are none."""
        own = self.task.metric
        scores = {name: METRICS[own](p, examples.labels, threshold)[own] for name, p in predicted.items()}
        return {"views": scores} if scores else {}


def lessons_of(
    task: Task, width: int, data: dict[str, dict[str, Examples]], weights: Sequence[float] | None = None
) -> dict[str, Lesson]:
    """One for each part of a task, with a new objective for embeddings of so many numbers."""
    weights, lessons = weights or [1.0] * len(task.each), {}
    for (name, part), weight in zip(task.each.items(), weights, strict=True):
        objective = OBJECTIVES[part.objective](width, part)
        lessons[name] = Lesson(part, objective, data[name], weight)
    return lessons


def embedder(
    model: SentenceEncoder,
    lessons: dict[str, Lesson],
    frozen: int | None,
    every_layer: str | None,
    matryoshka: Sequence[int] | None,
    seed: int,
) -> Embedder:
    """What embeds their sentences, which are tokenised: all views of each, if several are asked for."""
    token_ids = [ids for lesson in lessons.values() for ids in lesson.train_ids + lesson.dev_ids]
    if not (every_layer or matryoshka):
        return Embedder(model, frozen, token_ids)
    for name, lesson in lessons.items():
        if matryoshka and list(lesson.objective.parameters()):
            what = f"matryoshka: the head of {name or 'this task'} reads all dimensions"
            raise InputError(f"{what}, choose an objective without one", "matryoshka", "objective")
    nested = Nested(model, frozen, token_ids, every_layer, matryoshka or (), seed)
    for lesson in lessons.values():
        lesson.nested = nested
    return nested


def check_learns(model: SentenceEncoder, lessons: dict[str, Lesson]) -> None:
    """Raises InputError if all is frozen that a task could change."""
    for name, lesson in lessons.items():
        weights = [*model.parameters(), *lesson.objective.parameters()]
        if not any(weight.requires_grad for weight in weights):
            what = f"freeze: nothing is left to learn for {name or 'this task'}"
            raise InputError(f"{what}, choose an objective with a head, such as difference", "freeze")


# ----------------------------------------------------------------------------------------- steps of an epoch

Steps = list[list[tuple[int, list[int]]]]  # of each step: which task, and the numbers of its examples


def round_robin(batches: Sequence[list], ends: Callable, generator: torch.Generator) -> Steps:
    """A batch of each task in every step. ends: min, until one set has been seen, or max, until all have
    been; shorter ones then begin anew."""
    return [
        [(task, own[n % len(own)]) for task, own in enumerate(batches)]
        for n in range(ends(map(len, batches)))
    ]


def in_turn(batches: Sequence[list], ends: Callable, generator: torch.Generator) -> Steps:
    """The same batches, each a step of its own."""
    return [[part] for step in round_robin(batches, ends, generator) for part in step]


def one_by_one(batches: Sequence[list], ends: Callable, generator: torch.Generator) -> Steps:
    """All batches of the first task, then all of the next one."""
    return [[(task, batch)] for task, own in enumerate(batches) for batch in own]


def by_size(batches: Sequence[list], ends: Callable, generator: torch.Generator) -> Steps:
    """All batches of all tasks, mixed: a step is of a task as often as that has batches."""
    steps = one_by_one(batches, ends, generator)
    return [steps[n] for n in torch.randperm(len(steps), generator=generator).tolist()]


ORDERS = {"round-robin": round_robin, "in-turn": in_turn, "one-by-one": one_by_one, "by-size": by_size}
ENDS = {"shortest": min, "longest": max}


class Order:
    """Which examples of which tasks the steps of an epoch take; steps, examples: how many in an epoch."""

    def __init__(self, lessons: dict[str, Lesson], order: str, ends: str, batch_size: int, seed: int):
        self.lessons, self.order, self.ends = lessons, ORDERS[order], ENDS[ends]
        self.batch_size, self.generator = batch_size, torch.Generator()
        first = self.plan()
        self.steps = len(first)
        self.examples = sum(len(numbers) for parts in first for _, numbers in parts)
        self.generator.manual_seed(seed)
        self.step, self.began = 0, self.generator.get_state()  # of the epoch under way

    def plan(self) -> Steps:
        sizes = [len(lesson.examples["train"]) for lesson in self.lessons.values()]
        of_each = [list(batches(size, self.batch_size, self.generator)) for size in sizes]
        return self.order(of_each, self.ends, self.generator)

    def epoch(self) -> Iterator[list[tuple[str, list[int]]]]:
        """The next one, or what is left of it: of each step names of tasks and numbers of examples."""
        names, self.began = list(self.lessons), self.generator.get_state()
        for parts in self.plan()[self.step :]:
            self.step += 1
            yield [(names[task], numbers) for task, numbers in parts]
        self.step = 0

    def state_dict(self) -> dict:
        return {"step": self.step, "began": self.began if self.step else self.generator.get_state()}

    def load_state_dict(self, state: dict) -> None:
        self.step = state["step"]
        self.generator.set_state(state["began"])


# -------------------------------------------------------------------------------- gradients of several tasks


class Sum:
    """What becomes of the gradients of a step: they add up, as those of a sum of losses do.

    weights: those that the tasks share. take: called when a task's gradient has been added to what is there;
    give: before the step.
    """

    def __init__(self, weights: Iterable[nn.Parameter]):
        self.weights = list(weights)
        self.cosines: dict[str, list[float]] = defaultdict(list)  # names of two tasks -> step by step

    def take(self, task: str) -> None:
        pass

    def give(self) -> None:
        pass

    def noted(self) -> dict[str, list[float]]:
        """The cosines since the last call, means of so many steps each."""
        rows = {name: torch.tensor(values).split(NOTED) for name, values in self.cosines.items()}
        self.cosines.clear()
        return {name: [round(part.mean().item(), 4) for part in parts] for name, parts in rows.items()}

    def state_dict(self) -> dict:
        return dict(self.cosines)

    def load_state_dict(self, state: dict) -> None:
        self.cosines.update(state)


class Compare(Sum):
    """The same, and the cosine of the gradients of each two tasks is noted."""

    def __init__(self, weights: Iterable[nn.Parameter]):
        super().__init__(weights)
        self.of_task: dict[str, Tensor] = {}  # (W,)
        self.seen = [False] * len(self.weights)

    def take(self, task: str) -> None:
        parts = []
        for number, weight in enumerate(self.weights):
            self.seen[number] |= weight.grad is not None
            parts.append((torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten())
            weight.grad = None
        self.of_task[task] = torch.cat(parts)

    def give(self) -> None:
        for one, other in combinations(self.of_task, 2):
            cosine = torch.cosine_similarity(self.of_task[one], self.of_task[other], dim=0)
            self.cosines[f"{one}, {other}"].append(cosine.item())
        total = self.joined(list(self.of_task.values())).split([weight.numel() for weight in self.weights])
        for weight, part, seen in zip(self.weights, total, self.seen, strict=True):
            weight.grad = part.view_as(weight) if seen else None
        self.of_task = {}

    def joined(self, gradients: list[Tensor]) -> Tensor:
        """T of (W,) -> (W,)"""
        return torch.stack(gradients).sum(0)


class Project(Compare):
    """A gradient that points against another task's first loses its part along that one; then they add up.

    The others come in a random order, from torch's global generator, each as it was. Source: Yu et al. 2020,
    arXiv:2001.06782 (PCGrad), algorithm 1.
    """

    def joined(self, gradients: list[Tensor]) -> Tensor:
        changed = []
        for number, gradient in enumerate(gradients):
            for other in torch.randperm(len(gradients)).tolist():
                along = gradients[other]
                if other != number and (product := gradient @ along) < 0:
                    gradient = gradient - product / (along @ along) * along
            changed.append(gradient)
        return super().joined(changed)


GRADIENTS = {"sum": Sum, "compare": Compare, "project": Project}


# ------------------------------------------------------------------------------------------------ one score


def overall(scores: Iterable[tuple[str, float]]) -> float:
    """Mean over tasks, given as (name of its metric, value): a correlation r counts as (1 + r) / 2, others as
    they are. For one of each kind it is the score of the course CS 224N, as far as its reports tell."""
    values = [(1 + value) / 2 if METRICS[name] is correlation_metrics else value for name, value in scores]
    return sum(values) / len(values)


def together(scores: dict[str, dict], lessons: dict[str, Lesson]) -> dict:
    """Scores of several tasks in one dictionary, "overall" first, then each with the name of its task; those
    of a single task are its own."""
    if len(scores) == 1:
        return next(iter(scores.values()))
    metric = {name: lesson.task.metric for name, lesson in lessons.items()}
    flat = {f"{name} {key}": value for name, own in scores.items() for key, value in own.items()}
    return {OVERALL: overall((metric[name], own[metric[name]]) for name, own in scores.items())} | flat


def score_all(model: SentenceEncoder, lessons: dict[str, Lesson], split: str, dev: dict) -> dict:
    """Scores of a split, of all tasks; dev: those of the chosen epoch, for a threshold."""
    scores = {
        name: lesson.scores(model, split, of_task(dev, name).get("threshold"))
        for name, lesson in lessons.items()
    }
    result = together(scores, lessons)
    return result if len(lessons) == 1 else {"pairs": sum(own["pairs"] for own in scores.values())} | result


def chosen_by(lessons: dict[str, Lesson]) -> str:
    """The name of the score that chooses the epoch."""
    return OVERALL if len(lessons) > 1 else next(iter(lessons.values())).task.metric


def of_task(scores: dict, name: str) -> dict:
    """What together() made of one task's scores; all of them where it has no name."""
    prefix = f"{name} " if name else ""
    return {key.removeprefix(prefix): value for key, value in scores.items() if key.startswith(prefix)}


# ------------------------------------------------------------------------------------------- a command line


def multitask_options(option: Callable) -> None:
    """Those of a command line, added with option, argparse's add_argument."""
    option("--order", choices=ORDERS, help="of several tasks; default: round-robin, a batch of each a step")
    option(
        "--ends", choices=ENDS, help="which set ends an epoch of round-robin or in-turn; default: shortest"
    )
    option("--weights", type=float, nargs="+", metavar="W", help="of the losses of several tasks; default: 1")
    option(
        "--gradients", choices=GRADIENTS, help="compare: note their cosines; project: PCGrad; default: sum"
    )
    option(
        "--freeze",
        type=int,
        nargs="?",
        const=-1,
        metavar="L",
        help="keep the first L layers as they are, alone: all; default: none",
    )
    option("--dropout", type=float, metavar="P", help="of a head; default: the task's, else 0")
    option("--late", action="store_const", const=True, help="dropout behind the head's features; default: no")
    option(
        "--scaled",
        action="store_const",
        const=True,
        help="a head's number is brought into the range of the labels; default: no",
    )
