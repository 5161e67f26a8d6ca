"""Contrastive learning: the loss is that of sentence-transformers, a batch in chunks is the batch."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import SENTENCES, tiny_model, torchrun
from torch import nn

import evaluate
import train
from tmft.data import Examples, read_examples, targets
from tmft.datasets.contrastive_tasks import UNLABELLED
from tmft.datasets.task_lookup import get_task, read_split
from tmft.device import MixedPrecision
from tmft.distributed import single_process
from tmft.errors import InputError
from tmft.losses.multiple_negatives import (
    MultipleNegativesRanking,
    Settings,
    backward_in_chunks,
    multiple_negatives_ranking,
)
from tmft.packing import pack
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.freezing import Embedder

ALONE = single_process(torch.device("cpu"))
LINES = [
    "a man plays\tthe man plays guitar\ta dog eats",
    "the cat eats\ta cat\tmusic",
    "music\tguitar\ta cat",
]
LINES += ["a man plays\ta man\tthe dog", "two dogs in the park\tdogs\ta cat eats", "is it\tit is\tnot it"]


def embeddings(P: int, D: int = 7, count: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(P, D, requires_grad=True) for _ in range(count)]


# --------------------------------------------------------------------------------------------------- the loss


def test_the_loss_by_hand():
    """Cosines 1 and 0 with the positives, 0 and 1 with the negatives; at temperature 1/2 scores 2 and 0."""
    u = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    v, negatives = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 5.0], [1.0, 0.0]])
    left = math.log(2 * math.exp(2) + 2) - 2
    right = math.log(math.exp(2) + 1) - 2
    assert multiple_negatives_ranking(u, v, negatives, 0.5, both=False).item() == pytest.approx(left)
    assert multiple_negatives_ranking(u, v, negatives, 0.5).item() == pytest.approx(left + right)
    assert multiple_negatives_ranking(u, v, None, 0.5, both=False).item() == pytest.approx(right)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("both", [False, True])
def test_value_and_gradient_are_those_of_sentence_transformers(count, both):
    """Of its loss in both directions, which is the mean of the two, ours is twice as much."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    settings = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    theirs = MultipleNegativesRankingLoss(
        SentenceTransformer(modules=[nn.Identity()], device="cpu"), scale=100, **(settings if both else {})
    )
    parts = embeddings(6, count=count)
    expected = theirs.compute_loss_from_embeddings(parts, None) * (2 if both else 1)
    gradients = torch.autograd.grad(expected, parts)
    found = multiple_negatives_ranking(*parts, *[None] * (3 - count), 0.01, both)
    torch.testing.assert_close(found, expected)
    for a, b in zip(torch.autograd.grad(found, parts), gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_examples_of_one_anchor_are_no_negatives_of_each_other_where_that_is_asked_for():
    u, v, negatives = embeddings(3)
    anchors = torch.tensor([0, 1, 0])
    scores = torch.cosine_similarity(u[:, None], v, dim=-1) / 0.1
    hard = torch.cosine_similarity(u[:, None], negatives, dim=-1) / 0.1
    expected = 0
    for i, others in enumerate(([1], [0, 2], [1])):
        left = torch.cat([scores[i, [i, *others]], hard[i]])
        right = scores[[i, *others], i]
        expected += (left.logsumexp(0) + right.logsumexp(0) - 2 * scores[i, i]) / 3
    torch.testing.assert_close(multiple_negatives_ranking(u, v, negatives, 0.1, anchors=anchors), expected)
    task = get_task("nli", settings={"temperature": 0.1, "distinct": True})
    torch.testing.assert_close(MultipleNegativesRanking(7, task)(u, v, negatives, anchors), expected)
    other = MultipleNegativesRanking(7, get_task("nli", settings={"temperature": 0.1}))(
        u, v, negatives, anchors
    )
    assert other > expected


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf, 11.0])
def test_a_temperature_that_cannot_be_is_one_line(temperature):
    with pytest.raises(InputError, match=f"temperature {temperature:g}: choose above 0, up to 10"):
        Settings(temperature)


# ----------------------------------------------------------------------------------------------------- chunks


@pytest.mark.parametrize("chunk", [1, 2, 5, 6])
@pytest.mark.parametrize("texts", [2, 3])
def test_a_batch_in_chunks_has_the_gradient_of_the_batch(texts, chunk):
    model = tiny_model().eval()
    ids = model.tokenize([line.split("\t")[j] for j in range(texts) for line in LINES])
    objective, target = (
        MultipleNegativesRanking(24, get_task("nli", settings={"temperature": 0.2})),
        torch.arange(6),
    )
    loss = objective(*model(pack(ids)).chunk(texts), target)
    expected = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    amp = MixedPrecision(torch.device("cpu"), "fp32")
    found = backward_in_chunks(Embedder(model, None, []), objective, target, ids, chunk, amp, ALONE)
    torch.testing.assert_close(found, loss.detach())
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        if gradient is not None:
            largest = gradient.abs().max().item()
            torch.testing.assert_close(weight.grad, gradient, rtol=0, atol=1e-5 * max(largest, 1e-2))


def test_dropout_is_the_same_in_both_passes_and_goes_on_after_them():
    """The second pass gives the embeddings of the first."""
    model = tiny_model(hidden_dropout_prob=0.3).train()
    seen = []
    model.register_forward_hook(lambda module, rows, output: seen.append(output.detach()))
    ids = model.tokenize([line.split("\t")[j] for j in range(2) for line in LINES])
    objective = MultipleNegativesRanking(24, get_task("quora-pairs"))
    torch.manual_seed(0)
    backward_in_chunks(
        Embedder(model, None, []),
        objective,
        torch.arange(6),
        ids,
        2,
        MixedPrecision(torch.device("cpu"), "fp32"),
        ALONE,
    )
    first, again = seen[:3], seen[3:]
    assert all(a.equal(b) for a, b in zip(first, again, strict=True)) and not first[0].equal(first[1])
    after = torch.rand(1)
    torch.manual_seed(0)
    model(pack(ids[:4]))
    assert not torch.rand(1).equal(after)
    backward_in_chunks(
        Embedder(model, None, []),
        objective,
        torch.arange(6),
        ids,
        2,
        MixedPrecision(torch.device("cpu"), "fp32"),
        ALONE,
    )
    assert not seen[-3].equal(first[0])  # the next batch has other draws


# ------------------------------------------------------------------------------------------- data, and a run


@pytest.fixture
def triplets(tmp_path):
    """A data root with triplets, pairs of duplicates, and graded pairs to judge by."""
    for name, header, columns in [
        ("nli-triplets", "anchor\tpositive\tnegative", 3),
        ("quora-pairs", "anchor\tpositive", 2),
    ]:
        (tmp_path / name).mkdir()
        rows = ["\t".join(line.split("\t")[:columns]) for line in LINES]
        (tmp_path / name / "train.tsv").write_text("\n".join([header, *rows]) + "\n")
    (tmp_path / "stsb").mkdir()
    pairs = ["a man plays\tthe man plays guitar\t4.5", "the cat eats\ta dog eats\t2", "music\tguitar\t3"]
    for split in ("dev", "test"):
        text = "\n".join(["sentence1\tsentence2\tscore", *pairs]) + "\n"
        (tmp_path / "stsb" / f"{split}.tsv").write_text(text)
    return tmp_path


def test_examples_without_labels_have_the_number_of_their_anchor(triplets):
    task = get_task("nli", data_root=str(triplets))
    examples = read_split(task, "train")
    assert [len(column) for column in examples.texts] == [6, 6, 6]
    assert examples.labels == [0, 1, 2, 0, 3, 4]
    assert targets(examples.labels, task).dtype == torch.int64
    dev = read_split(task, "dev")
    assert isinstance(dev, Examples) and dev.labels == [4.5, 2.0, 3.0] and len(dev.texts) == 2


def test_pairs_may_have_the_usual_names(tmp_path):
    (tmp_path / "train.tsv").write_text("sentence1\tsentence2\na\tb\n")
    assert read_examples(get_task("quora-pairs", data=str(tmp_path)), "train").texts == (["a"], ["b"])


@pytest.mark.parametrize("task", UNLABELLED)
def test_a_run_learns_is_judged_by_graded_pairs_and_saves_its_projection(task, triplets, tiny_folder, capsys):
    runs = triplets / "runs"
    where = ["--data-root", str(triplets), "--runs", str(runs), "--device", "cpu", "--precision", "fp32"]
    recipe = ["--epochs", "4", "--batch-size", "4", "--chunk", "2", "--temperature", "0.1", "--lr", "3e-3"]
    train.main(["--ckpt", str(tiny_folder), "--task", task, *where, *recipe, "--projection", "10"])
    (folder,) = runs.iterdir()
    result = json.loads((folder / "result.json").read_text())
    losses = [epoch["loss"] for epoch in result["epochs"]]
    assert losses[-1] < losses[0]
    assert result["test"]["pairs"] == 3 and "spearman" in result["test"]
    assert result["settings"]["task"]["settings"] == {"temperature": 0.1}
    model = SentenceEncoder.from_pretrained(folder)
    assert [type(module).__name__ for module in model.head_modules] == ["Dense", "Normalize"]
    assert np.linalg.norm(model.encode(SENTENCES), axis=1) == pytest.approx(1, abs=1e-5)
    capsys.readouterr()
    evaluate.main([str(folder), "--data-root", str(triplets), "--device", "cpu"])
    assert "spearman" in capsys.readouterr().out

    again = ["--ckpt", str(tiny_folder), "--task", "nli", *where, *recipe, "--name", "second"]
    train.main([*again, "--init-from", str(folder), "--projection", "10"])
    with pytest.raises(
        InputError, match="projection 12: .* has Dense and Normalize to 10 dimensions already"
    ):
        train.main([*again[:-1], "third", "--init-from", str(folder), "--projection", "12"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "batch", [6, 4]
)  # of 6 examples; the last batch of 4 has fewer than there are processes
def test_processes_share_the_negatives_of_a_batch(batch, triplets, tiny_folder):
    """Three processes have the losses and scores of one, dropout included; the first one alone writes."""
    where = ["--data-root", triplets, "--device", "cpu", "--precision", "fp32", "--name", "x"]
    recipe = ["--epochs", "3", "--batch-size", str(batch), "--chunk", "1", "--lr", "1e-3", "--seeds", "2"]
    recipe += ["--temperature", "0.2"]
    common = ["--ckpt", tiny_folder, "--task", "nli", *where, *recipe, "--projection", "10"]
    common = [str(word) for word in common]
    train.main([*common, "--runs", str(triplets / "one")])
    done = torchrun(3, *common, "--runs", triplets / "three")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch  3/3") == 2
    assert sorted(path.name for path in (triplets / "three").iterdir()) == [
        "x-layer4-seed0",
        "x-layer4-seed1",
    ]
    for seed in (0, 1):
        one, three = (
            json.loads((triplets / runs / f"x-layer4-seed{seed}/result.json").read_text())
            for runs in ("one", "three")
        )
        for a, b in zip(one["epochs"], three["epochs"], strict=True):
            assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
        models = [
            SentenceEncoder.from_pretrained(triplets / runs / f"x-layer4-seed{seed}")
            for runs in ("one", "three")
        ]
        a, b = (model.encode(SENTENCES) for model in models)
        np.testing.assert_allclose(a, b, atol=1e-4)
    again = torchrun(3, *common, "--runs", triplets / "three")
    assert again.returncode == 0 and again.stdout.count("finished before, kept") == 2, again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "0"], "temperature 0: choose above 0, up to 10"),
        (
            ["--batch-size", "1"],
            "batch_size 1: multiple_negatives_ranking compares the examples of a batch, choose 2 or more",
        ),
        (["--objective", "cosine_mse"], "objective cosine_mse: it takes 2 texts, the task has 3"),
        (["--chunk", "0"], "chunk 0: choose 1 or more"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, message, triplets, tiny_folder):
    with pytest.raises(InputError, match=message):
        train.main(["--ckpt", str(tiny_folder), "--task", "nli", "--data-root", str(triplets), *arguments])


def test_a_file_without_negatives_is_one_line(triplets, tiny_folder):
    (triplets / "nli-triplets/train.tsv").write_text("anchor\tpositive\na\tb\n")
    with pytest.raises(
        InputError, match="no column 'negative' .*, line 1.: the columns are anchor, positive"
    ):
        train.main(["--ckpt", str(tiny_folder), "--task", "nli", "--data-root", str(triplets)])


def test_settings_of_in_batch_are_refused_elsewhere():
    with pytest.raises(InputError, match="temperature: objective cosine_mse has none, leave it out"):
        get_task("stsb", settings={"temperature": 0.1})


def test_pairs_without_labels_have_no_cosine_to_learn():
    with pytest.raises(
        InputError, match="objective cosine_mse: the task has no labels, choose multiple_negatives_ranking"
    ):
        get_task("quora-pairs", objective="cosine_mse")
