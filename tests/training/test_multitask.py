"""Several tasks at once: a step's gradient is the sum of theirs, orders by hand, one score, one folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import tiny_model

import evaluate
import train
from tmft.data import TASKS, Examples
from tmft.datasets.cs224n_tasks import COURSE
from tmft.datasets.task_lookup import get_task, read_all
from tmft.errors import InputError
from tmft.packing import pack
from tmft.runs.sweeps import read_results, sweeps_of
from tmft.training.loop import Recipe, fit
from tmft.training.multitask import (
    ENDS,
    GRADIENTS,
    ORDERS,
    Compare,
    Order,
    Project,
    Sum,
    lessons_of,
    of_task,
    overall,
    together,
)

ONE = ["a man plays", "the cat eats", "music", "two dogs in the park", "a woman", "not a cat"]
OTHER = ["the man plays guitar", "a dog eats", "guitar music", "a cat", "a man", "two cats eat"]
DATA = {
    "sst5": Examples((ONE,), [0, 1, 2, 3, 4, 0]),
    "quora": Examples((ONE[:4], OTHER[:4]), [0, 1, 0, 1]),
    "cs224n-sts": Examples((ONE[:5], OTHER[:5]), [4.5, 2.0, 3.0, 0.5, 1.0]),
}
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def lessons(names=tuple(DATA), weights=None, width=24):
    task = get_task(" ".join(names)) if len(names) > 1 else COURSE[names[0]]
    parts = task.parts or {names[0]: task}
    data = {name: dict.fromkeys(("train", "dev", "test"), DATA[name]) for name in parts}
    return lessons_of(replace(COURSE["sst5"], parts=parts), width, data, weights)


# ------------------------------------------------------------------------------------------------------ steps


def orders(order, ends="shortest"):
    """Three tasks of 3, 1 and 2 batches."""
    batches = [["a", "b", "c"], ["x"], ["1", "2"]]
    steps = ORDERS[order](batches, ENDS[ends], torch.Generator().manual_seed(0))
    return ["".join(batch for _, batch in step) for step in steps]


def test_orders_by_hand():
    assert orders("round-robin") == ["ax1"]
    assert orders("round-robin", "longest") == ["ax1", "bx2", "cx1"]
    assert orders("in-turn") == ["a", "x", "1"]
    assert orders("in-turn", "longest") == ["a", "x", "1", "b", "x", "2", "c", "x", "1"]
    assert orders("one-by-one") == ["a", "b", "c", "x", "1", "2"]
    assert sorted(orders("by-size")) == sorted("abcx12") and orders("by-size") != orders("one-by-one")


@pytest.mark.parametrize("order", ORDERS)
def test_an_epoch_has_as_many_steps_as_were_planned_and_the_next_one_others(order):
    plan = Order(lessons(), order, "longest", 2, seed=0)
    first, second = list(plan.epoch()), list(plan.epoch())
    assert len(first) == len(second) == plan.steps and first != second
    assert sum(len(batch) for parts in first for _, batch in parts) == plan.examples
    again = Order(lessons(), order, "longest", 2, seed=0)
    numbers = [[batch for _, batch in parts] for parts in again.epoch()]
    assert numbers == [[batch for _, batch in parts] for parts in first]


# -------------------------------------------------------------------------------------------------- gradients


def first_gradient(model, its_lessons, monkeypatch, **recipe):
    """Of the shared weights and the heads, before the clip of the first step."""
    found = {}

    def clip(self, optimizer, weights, most):
        if not found:
            found["model"] = {n: w.grad.clone() for n, w in model.named_parameters() if w.grad is not None}
            heads = {name: lesson.objective for name, lesson in its_lessons.items()}
            found["heads"] = {n: [w.grad for w in head.parameters()] for n, head in heads.items()}

    monkeypatch.setattr("tmft.device.Amp.clip", clip)
    how = {"epochs": 1, "batch_size": 4, "precision": "fp32", "optimizer": "adafactor", "lr": 1e-3}
    list(fit(model, its_lessons, Recipe(**how | recipe), seed=0))
    return found


@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 2.0]])
@pytest.mark.parametrize("gradients", ["sum", "compare"])
def test_the_gradient_of_a_step_is_the_sum_of_the_single_ones(weights, gradients, monkeypatch):
    """On the batches that the summed step had."""
    model = tiny_model(**WITHOUT_DROPOUT)
    torch.manual_seed(0)
    every = lessons(weights=weights)
    monkeypatch.setattr("torch.optim.Adafactor.step", lambda self, closure=None: None)
    found = first_gradient(model, every, monkeypatch, gradients=gradients)
    plan = Order(every, "round-robin", "shortest", 4, seed=0)
    total = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    for name, batch in next(iter(plan.epoch())):
        lesson = every[name]
        texts = [text[i] for text in lesson.examples["train"].texts for i in batch]
        model.zero_grad()
        lesson.objective.zero_grad()
        embeddings = model.train()(pack(model.tokenize(texts))).chunk(lesson.texts)
        lesson.loss(*embeddings, lesson.target[batch]).backward()
        for key, weight in model.named_parameters():
            if weight.grad is not None:
                total[key] += weight.grad
        for theirs, ours in zip(found["heads"][name], lesson.objective.parameters(), strict=True):
            torch.testing.assert_close(theirs, ours.grad, rtol=1e-4, atol=1e-6)
    for name, gradient in found["model"].items():
        torch.testing.assert_close(gradient, total[name], rtol=1e-4, atol=1e-6)


def weights_of(*gradients):
    """A weight of two numbers, and a function that gives it the next task's gradient."""
    weight = torch.nn.Parameter(torch.zeros(2))
    unused = torch.nn.Parameter(torch.zeros(3))

    def run(kind):
        made = kind([weight, unused])
        weight.grad = None
        for name, gradient in zip("abc"[: len(gradients)], gradients, strict=True):
            part = torch.tensor(gradient)
            weight.grad = part if weight.grad is None else weight.grad + part
            made.take(name)
        made.give()
        return weight.grad.tolist(), unused.grad, made.noted()

    return run


def test_gradients_that_agree_add_up():
    run = weights_of([1.0, 0.0], [1.0, 1.0])
    for kind in (Sum, Compare, Project):
        gradient, unused, noted = run(kind)
        assert gradient == [2.0, 1.0] and unused is None
        assert noted == ({} if kind is Sum else {"a, b": [pytest.approx(0.7071, abs=1e-4)]})


def test_gradients_that_point_against_each_other_lose_that_part():
    """(1, 0) and (-1, 1): each without its part along the other is (1/2, 1/2) and (0, 1)."""
    run = weights_of([1.0, 0.0], [-1.0, 1.0])
    assert run(Compare)[0] == [0.0, 1.0]
    assert run(Project)[0] == [0.5, 1.5]


def test_a_projected_gradient_points_against_neither_of_two():
    torch.manual_seed(0)
    for _ in range(20):
        one, other = torch.randn(2, 2)
        gradient = torch.tensor(weights_of(one.tolist(), other.tolist())(Project)[0])
        assert min(gradient @ one, gradient @ other) > -1e-5


# ------------------------------------------------------------------------------------------------- one score


@pytest.mark.parametrize(
    ("sst", "quora", "sts", "published"),
    [  # the report's figures
        (0.316, 0.657, 0.125, 0.512),
        (0.452, 0.717, 0.293, 0.605),
        (0.504, 0.740, 0.276, 0.627),
        (0.521, 0.737, 0.357, 0.646),
        (0.512, 0.729, 0.466, 0.657),
        (0.510, 0.733, 0.397, 0.647),
        (0.518, 0.738, 0.417, 0.655),
        (0.510, 0.739, 0.372, 0.645),
    ],
)
def test_overall_is_that_of_the_report(sst, quora, sts, published):
    assert overall([("accuracy", sst), ("accuracy", quora), ("pearson", sts)]) == pytest.approx(
        published, abs=1.1e-3
    )


def test_scores_together_and_apart():
    both = {"sst5": {"accuracy": 0.5}, "cs224n-sts": {"spearman": 0.1, "pearson": 0.2}}
    found = together(both, {name: lesson for name, lesson in lessons().items() if name in both})
    assert found == {
        "overall": pytest.approx(0.55),
        "sst5 accuracy": 0.5,
        "cs224n-sts spearman": 0.1,
        "cs224n-sts pearson": 0.2,
    }
    assert of_task(found, "cs224n-sts") == both["cs224n-sts"]
    assert together({"sst5": both["sst5"]}, lessons()) == both["sst5"]


# ------------------------------------------------------------------------------------------------------ a run


@pytest.fixture
def course(tmp_path):
    """The three data sets in files; of sst5 and cs224n-sts there is no test."""
    for name, examples in DATA.items():
        (tmp_path / name).mkdir()
        task = COURSE[name]
        header = "\t".join([*task.columns, task.label])
        rows = ["\t".join(map(str, row)) for row in zip(*examples.texts, examples.labels, strict=True)]
        for split in ("train", "dev", "test") if name == "quora" else ("train", "dev"):
            (tmp_path / name / f"{split}.tsv").write_text("\n".join([header, *rows]) + "\n")
    return tmp_path


@pytest.fixture
def command(course, tiny_folder):
    where = ["--data-root", str(course), "--runs", str(course / "runs"), "--device", "cpu"]
    recipe = ["--epochs", "3", "--batch-size", "2", "--lr", "1e-3", "--precision", "fp32"]
    return ["--ckpt", str(tiny_folder), *where, *recipe, "--task", "sst5", "quora", "cs224n-sts"]


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--order", "by-size", "--gradients", "project", "--weights", "1", "2", "0.5"],
        ["--task", "sst5", "quora", "cs224n-sts:difference", "--freeze", "--dropout", "0.3", "--layer", "2"],
        ["--chunk", "1", "--freeze", "1", "--pooling", "cls"],
    ],
)
def test_a_run_over_three_tasks(more, command, course, capsys):
    train.main([*command, *more])
    (folder,) = (course / "runs").iterdir()
    assert folder.name.startswith("tiny-sst5+quora+cs224n-sts-")
    result = json.loads((folder / "result.json").read_text())
    parts = [f"{name} {kind}" for name, kind in [("sst5", "accuracy"), ("cs224n-sts", "pearson")]]
    assert {"overall", "quora accuracy", *parts} <= result["test"].keys() & result["dev"].keys()
    assert result["test"]["pairs"] == 15
    printed = capsys.readouterr().out
    assert "6 sst5 + 4 quora + 5 cs224n-sts training examples" in printed
    assert "cs224n-sts/test.tsv: labels of test are not public, dev is scored in its place" in printed
    evaluate.main([str(folder), "--device", "cpu"])
    again = capsys.readouterr().out
    assert f"overall {100 * result['test']['overall']:.2f}" in again
    [sweep] = sweeps_of(read_results(course / "runs"))
    assert (
        sweep.metric == "overall" and "sst5 pairs" not in sweep.metrics and "sst5 accuracy" in sweep.metrics
    )
    train.main([*command, *more])
    assert "finished before, kept" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_files(command, course):
    for name in "ab":
        train.main([*command, "--name", name, "--gradients", "project"])
    for file in ("model.safetensors", "head.safetensors"):
        one, two = ((course / "runs" / f"{name}-layer4-seed0" / file).read_bytes() for name in "ab")
        assert one == two


def test_each_task_may_have_its_own_objective(command, course):
    *rest, _, _, _ = command
    tasks = ["sst5", "quora:difference", "cs224n-sts:dot"]
    train.main([*rest, *tasks, "--name", "x", "--dropout", "0.2", "--scaled"])
    result = json.loads((course / "runs/x-layer4-seed0/result.json").read_text())
    parts = result["settings"]["task"]["parts"]
    assert [parts[name]["objective"] for name in parts] == ["linear", "difference", "dot"]
    assert parts["cs224n-sts"]["settings"] == {"dropout": 0.2, "scaled": True}
    evaluate.main([str(course / "runs/x-layer4-seed0"), "--json", str(course / "x.json"), "--device", "cpu"])
    scores = next(iter(json.loads((course / "x.json").read_text())["layers"].values()))
    for name, kind in (("sst5", "accuracy"), ("quora", "accuracy"), ("cs224n-sts", "pearson")):
        assert scores[name][kind] == pytest.approx(result["test"][f"{name} {kind}"], abs=1e-6)


def test_tasks_of_tmft_go_together_too(course, tiny_folder):
    """A threshold of one task is found again for its test."""
    for split in ("train", "dev", "test"):
        for name, label in (("mrpc", "1"), ("stsb", "3.5")):
            (course / name).mkdir(exist_ok=True)
            kind = "label" if name == "mrpc" else "score"
            rows = [
                f"{a}\t{b}\t{label if n % 2 else 0}" for n, (a, b) in enumerate(zip(ONE, OTHER, strict=True))
            ]
            text = "\n".join([f"sentence1\tsentence2\t{kind}", *rows]) + "\n"
            (course / name / f"{split}.tsv").write_text(text)
    where = ["--data-root", str(course), "--runs", str(course / "runs"), "--device", "cpu"]
    train.main(
        ["--ckpt", str(tiny_folder), "--task", "stsb", "mrpc", *where, "--epochs", "1", "--layer", "1"]
    )
    result = json.loads((course / "runs/tiny-stsb+mrpc-layer1-seed0/result.json").read_text())
    assert result["test"]["mrpc threshold"] == result["dev"]["mrpc threshold"]
    assert result["test"]["overall"] == pytest.approx(result["dev"]["overall"])  # the same pairs


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--task", "sst5", "sst5"], "task sst5 twice: name each once"),
        (["--task", "sst5", "quora:dott"], "no objective 'dott': .* did you mean dot?"),
        (["--weights", "1", "2"], "weights 1.0 2.0: there are 3 tasks, give each of them one"),
        (["--weights", "1", "2", "-3"], "weights -3.0: choose 0 or more"),
        (
            ["--objective", "dot"],
            "objective: it is of one task, here are sst5 quora cs224n-sts: leave it out",
        ),
        (["--temperature", "0.1"], "temperature: none of these objectives has one, leave it out"),
        (
            ["--task", "cs224n-sts", "stsb", "--freeze"],
            "freeze: nothing is left to learn for cs224n-sts, choose",
        ),
    ],
)
def test_what_cannot_be_is_one_line(more, message, command, course):
    (course / "stsb").mkdir()
    for split in ("train", "dev", "test"):
        (course / "stsb" / f"{split}.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\n")
    with pytest.raises(InputError, match=message):
        train.main([*command, *more])
    assert not list((course / "runs").glob("*/result.json"))


def test_a_class_that_dev_alone_has_is_one_line(command, course):
    path = course / "sst5/train.tsv"
    path.write_text(
        "\n".join(line for line in path.read_text().splitlines() if not line.endswith("4")) + "\n"
    )
    with pytest.raises(InputError, match="class 4 .*: dev has it and train has not, nobody learns it"):
        train.main(command)


def test_a_split_without_labels_is_one_line(command, course):
    (course / "quora/dev.tsv").write_text("sentence1\tsentence2\na\tb\n")
    with pytest.raises(InputError, match="no column 'label' .*dev.tsv"):
        train.main(command)


def test_rows_that_can_be_learnt_are_read_by_name(course):
    data = read_all(get_task("sst5 quora", data_root=str(course)))
    assert list(data) == ["sst5", "quora"] and len(data["sst5"]["train"]) == 6
    assert list(read_all(get_task("quora", data_root=str(course)))) == [""]
    assert set(GRADIENTS) == {"sum", "compare", "project"} and TASKS["stsb"].each == {"": TASKS["stsb"]}
    assert np.isfinite(overall([("f1", 0.5)]))


# -------------------------------------------------------------------------------- what is drawn and handed in


def test_the_cosines_of_a_run_are_noted_and_drawn(command, course, capsys):
    pytest.importorskip("matplotlib")
    train.main([*command, "--gradients", "compare", "--seeds", "2"])
    result = json.loads((course / "runs/tiny-sst5+quora+cs224n-sts-layer4-seed0/result.json").read_text())
    pairs = ["sst5, quora", "sst5, cs224n-sts", "quora, cs224n-sts"]
    for epoch in result["epochs"]:
        assert list(epoch["cosines"]) == pairs
        assert all(len(values) == 1 and -1 <= values[0] <= 1 for values in epoch["cosines"].values())
    evaluate.main(["--report", str(course / "runs")])
    drawn = (course / "runs/report/gradients.svg").read_text()
    assert "gradients.svg" in capsys.readouterr().out and drawn.count("<path") > 3


def test_predictions_are_handed_in_as_the_course_takes_them(command, course, capsys):
    for name, examples in DATA.items():
        task = COURSE[name]
        for split in ("train", "dev", "unlabelled"):
            header = [*task.columns, "id", *([task.label] if split != "unlabelled" else [])]
            ids = [f"{name}{n}" for n in range(len(examples))]
            columns = [*examples.texts, ids, *([examples.labels] if split != "unlabelled" else [])]
            rows = ["\t".join(map(str, row)) for row in zip(*columns, strict=True)]
            (course / name / f"{split}.tsv").write_text("\n".join(["\t".join(header), *rows]) + "\n")
    train.main([*command, "--name", "x"])
    folder = course / "runs/x-layer4-seed0"
    evaluate.main([str(folder), "--predictions", str(course / "out"), "--device", "cpu"])
    names = {f"{start}-{split}-output.csv" for start in ("sst", "para", "sts") for split in ("dev", "test")}
    assert {path.name for path in (course / "out").iterdir()} == names
    lines = (course / "out/para-dev-output.csv").read_text().split("\n")
    assert lines[0] == "id \t Predicted_Is_Paraphrase " and lines[1] in ("quora0 , 0.0 ", "quora0 , 1.0 ")
    assert len(lines) == 1 + 4 + 1
    gold = DATA["sst5"].labels
    predicted = [
        line.split(" , ") for line in (course / "out/sst-dev-output.csv").read_text().splitlines()[1:]
    ]
    right = np.mean([int(value) == label for (_, value), label in zip(predicted, gold, strict=True)])
    result = json.loads((folder / "result.json").read_text())
    assert result["dev"]["sst5 accuracy"] == pytest.approx(right)
    (course / "quora/dev.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\t1\nc\td\t0\n")
    with pytest.raises(InputError, match="no column 'id' .*dev.tsv"):
        evaluate.main([str(folder), "--predictions", str(course / "out"), "--device", "cpu"])
