"""Several tasks at once: a step's gradient is the sum of theirs, orders by hand, one score, one folder."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from conftest import tiny_model

import evaluate
import train
from tmft.data import Examples
from tmft.datasets.task_lookup import get_task
from tmft.errors import InputError
from tmft.runs.predictor import Predictor
from tmft.runs.sweeps import group_into_sweeps, read_results
from tmft.tasks import TASKS
from tmft.training.multitask import TASK_SAMPLING, MultiTask, average_scores, make_training_tasks
from tmft.training_task import EpochSteps, PackedEmbedder

ONE = ["a man plays", "the cat eats", "music", "two dogs in the park", "a woman", "not a cat"]
OTHER = ["the man plays guitar", "a dog eats", "guitar music", "a cat", "a man", "two cats eat"]
DATA = {
    "sst5": Examples((ONE,), [0, 1, 2, 3, 4, 0]),
    "quora": Examples((ONE[:4], OTHER[:4]), [0, 1, 0, 1]),
    "cs224n-sts": Examples((ONE[:5], OTHER[:5]), [4.5, 2.0, 3.0, 0.5, 1.0]),
}


def training_tasks(names=tuple(DATA), loss_weights=None, width=24):
    """The three tasks by name, or some of them."""
    subtasks = get_task(" ".join(names)).subtasks
    data = {name: dict.fromkeys(("train", "dev", "test"), DATA[name]) for name in subtasks}
    return make_training_tasks(replace(TASKS["sst5"], subtasks=subtasks), width, data, loss_weights)


# ------------------------------------------------------------------------------------------------------ steps


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [("joint", ["ax1 by2"] * 3), ("sequential", ["a b a b a b", "x y x y x y", "1 2 1 2 1 2"])],
)
def test_task_sampling_by_hand(sampling, expected):
    """The steps of three epochs of tasks with 3, 2 and 2 batches."""
    batches = [["a", "b", "c"], ["x", "y"], ["1", "2"]]
    epochs = [TASK_SAMPLING[sampling](batches, (epoch, 3)) for epoch in range(3)]
    assert [" ".join("".join(batch for _, batch in step) for step in epoch) for epoch in epochs] == expected


def test_sequential_tasks_follow_each_other_over_the_epochs_also_of_a_resumed_run():
    """Two epochs of three tasks: the second task begins in the first epoch, and ends in the second."""
    model = tiny_model()

    def run(state=None):
        tasks = MultiTask(training_tasks(), "sequential", epochs=2)
        tasks.tokenize(model)
        steps = EpochSteps(tasks, 2, seed=0)
        if state:
            steps.load_state_dict(state)
        return steps

    steps = run()
    first = [batch.task for [batch] in steps]
    state = steps.state_dict()
    second = [(batch.task, batch.token_ids) for [batch] in steps]
    assert first == ["sst5"] * 4 + ["quora"] * 2
    assert [name for name, _ in second] == ["quora"] * 2 + ["cs224n-sts"] * 4
    assert [(batch.task, batch.token_ids) for [batch] in run(state)] == second
    assert len(first) == len(second) == len(steps) and steps.num_examples == 2 * len(steps)


# ------------------------------------------------------------------------------------------------- one score


@pytest.mark.parametrize(
    ("sst", "quora", "sts", "published"),
    [  # the report's figures
        (0.316, 0.657, 0.125, 0.512),
        (0.510, 0.739, 0.372, 0.645),
    ],
)
def test_overall_is_that_of_the_report(sst, quora, sts, published):
    assert average_scores([("accuracy", sst), ("accuracy", quora), ("pearson", sts)]) == pytest.approx(
        published, abs=1.1e-3
    )


def test_scores_of_several_tasks_are_nested_under_one_overall_score():
    model, tasks = tiny_model(), training_tasks(("sst5", "cs224n-sts"))
    both = MultiTask(tasks)
    both.tokenize(model)
    output = both.evaluate(PackedEmbedder(model), "dev")
    alone = {name: task.evaluate(PackedEmbedder(model), "dev") for name, task in tasks.items()}
    assert output.metrics["tasks"] == {name: one.metrics for name, one in alone.items()}
    accuracy, r = alone["sst5"].metrics["accuracy"], alone["cs224n-sts"].metrics["pearson"]
    assert output.metrics["overall"] == pytest.approx((accuracy + (1 + r) / 2) / 2)
    assert list(output.metrics) == ["pairs", "overall", "tasks"] and output.metrics["pairs"] == 11
    assert list(output.predictions) == ["sst5", "cs224n-sts"]


# ------------------------------------------------------------------------------------------------------ a run


@pytest.fixture
def course(tmp_path):
    """The three data sets in files; of sst5 and cs224n-sts there is no test."""
    for name, examples in DATA.items():
        (tmp_path / name).mkdir()
        task = TASKS[name]
        header = "\t".join([*task.columns, task.label])
        rows = ["\t".join(map(str, row)) for row in zip(*examples.texts, examples.labels, strict=True)]
        for split in ("train", "dev", "test") if name == "quora" else ("train", "dev"):
            (tmp_path / name / f"{split}.tsv").write_text("\n".join([header, *rows]) + "\n")
    return tmp_path


@pytest.fixture
def command(course, tiny_folder):
    where = ["--data-root", str(course), "--output-dir", str(course / "runs"), "--device", "cpu"]
    recipe = ["--epochs", "3", "--batch-size", "2", "--lr", "1e-3", "--precision", "fp32"]
    return ["--ckpt", str(tiny_folder), *where, *recipe, "--task", "sst5", "quora", "cs224n-sts"]


@pytest.mark.parametrize(
    "more",
    [
        "",
        "--gradient-surgery pcgrad --loss-weights 1 2 0.5",
        "--task-sampling sequential",
        "--task sst5 quora cs224n-sts:concat_head --freeze-layers --dropout 0.3 --layer 2",
        "--task sst5 quora:concat_head cs224n-sts:dot_product_head --rescale-to-labels",
        "--mini-batch-size 1 --freeze-layers 1 --pooling cls",
    ],
)
def test_a_run_over_three_tasks(more, command, course, capsys):
    train.main([*command, *more.split()])
    (folder,) = (course / "runs").iterdir()
    assert re.match(r"tiny-sst5\+quora(-\w+)?\+cs224n-sts-", folder.name)
    result = json.loads((folder / "result.json").read_text())
    subtasks = result["settings"]["task"]["subtasks"]
    for name, objective in (words.split(":") for words in more.split() if ":" in words):
        assert subtasks[name]["objective"] == objective
    assert ("--rescale-to-labels" in more) == subtasks["cs224n-sts"]["objective_args"].get(
        "rescale_to_labels", False
    )
    for split in ("dev", "test"):
        assert {"overall", "tasks"} <= result[split].keys()
        for name, metric in (("sst5", "accuracy"), ("quora", "accuracy"), ("cs224n-sts", "pearson")):
            assert metric in result[split]["tasks"][name]
    assert result["test"]["pairs"] == 15
    if "--gradient-surgery" in more:
        noted = {"sst5, quora", "sst5, cs224n-sts", "quora, cs224n-sts"}
        assert [epoch["gradient_cosines"].keys() for epoch in result["epochs"]] == [noted] * 3
    printed = capsys.readouterr().out
    assert "6 sst5 + 4 quora + 5 cs224n-sts training examples" in printed
    assert "cs224n-sts/test.tsv: the labels of test are not public, dev is " in printed
    evaluate.main([str(folder), "--device", "cpu"])
    again = capsys.readouterr().out
    assert f"overall {100 * result['test']['overall']:.2f}" in again
    [sweep] = group_into_sweeps(read_results(course / "runs"))
    assert (
        sweep.metric == "overall" and "sst5 pairs" not in sweep.metrics and "sst5 accuracy" in sweep.metrics
    )
    train.main([*command, *more.split()])
    assert "already finished, kept" in capsys.readouterr().out


def test_each_head_of_a_run_predicts(command, course):
    train.main([*command, "--task", "sst5", "quora:concat_head", "cs224n-sts"])
    (folder,) = (course / "runs").iterdir()
    with pytest.raises(InputError, match="was trained on sst5, quora, cs224n-sts: name one of them as task"):
        Predictor.from_pretrained(folder)
    assert Predictor.from_pretrained(folder, "sst5").predict(["a dog"]).probabilities.shape == (1, 5)
    predictor = Predictor.from_pretrained(folder, "quora")
    expected = predictor.predict(pairs := list(zip(ONE, OTHER, strict=True)))
    predictor.save_pretrained(course / "saved")
    again = Predictor.from_pretrained(course / "saved", "quora").predict(pairs)
    assert np.array_equal(again.probabilities, expected.probabilities) and set(again.labels) <= {"0", "1"}
    with pytest.raises(InputError, match="cosine_mse has no head"):
        Predictor.from_pretrained(folder, "cs224n-sts").predict(pairs)


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
    where = ["--data-root", str(course), "--output-dir", str(course / "runs"), "--device", "cpu"]
    train.main(
        ["--ckpt", str(tiny_folder), "--task", "stsb", "mrpc", *where, "--epochs", "1", "--layer", "1"]
    )
    result = json.loads((course / "runs/tiny-stsb+mrpc-layer1-seed0/result.json").read_text())
    assert result["test"]["tasks"]["mrpc"]["threshold"] == result["dev"]["tasks"]["mrpc"]["threshold"]
    assert result["test"]["overall"] == pytest.approx(result["dev"]["overall"])  # the same pairs


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--task", "sst5", "sst5"], "task sst5 is named twice: name each task once"),
        (["--task", "sst5", "quora:dot_product_hed"], "objective 'dot_product_hed': .* did you mean"),
        (["--loss-weights", "1", "2"], "loss_weights 1.0 2.0: there are 3 tasks, give one weight for each"),
        (["--loss-weights", "1", "2", "-3"], "loss_weights -3.0: choose 0 or more"),
        (["--objective", "dot_product_head"], "objective needs a single task, but there are sst5 quora"),
        (["--temperature", "0.1"], "temperature has no effect with the objectives of these tasks: remove it"),
        (["--task", "cs224n-sts", "stsb", "--freeze-layers"], "freeze_layers: nothing is left to train"),
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
    with pytest.raises(InputError, match="class 4 .*: dev has examples of it and train has none: add some"):
        train.main(command)


# ------------------------------------------------------------------------------------ what is handed in


def test_predictions_are_handed_in_as_the_course_takes_them(command, course, capsys):
    for name, examples in DATA.items():
        task = TASKS[name]
        for split in ("train", "dev", "unlabelled"):
            header = [*task.columns, "id", *([task.label] if split != "unlabelled" else [])]
            ids = [f"{name}{n}" for n in range(len(examples))]
            columns = [*examples.texts, ids, *([examples.labels] if split != "unlabelled" else [])]
            rows = ["\t".join(map(str, row)) for row in zip(*columns, strict=True)]
            (course / name / f"{split}.tsv").write_text("\n".join(["\t".join(header), *rows]) + "\n")
    train.main([*command, "--run-name", "x"])
    folder = course / "runs/x-layer4-seed0"
    evaluate.main([str(folder), "--cs224n-predictions", str(course / "out"), "--device", "cpu"])
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
    assert result["dev"]["tasks"]["sst5"]["accuracy"] == pytest.approx(right)
    (course / "quora/dev.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\t1\nc\td\t0\n")
    with pytest.raises(InputError, match="no column 'id' .*dev.tsv"):
        evaluate.main([str(folder), "--cs224n-predictions", str(course / "out"), "--device", "cpu"])
