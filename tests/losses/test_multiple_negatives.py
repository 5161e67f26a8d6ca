"""Contrastive learning: the loss is that of sentence-transformers, a batch in chunks is the batch."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import SENTENCES
from torch import nn

import evaluate
import train
from tmft.data import Examples, labels_to_targets, read_examples
from tmft.datasets.task_lookup import get_task, read_split
from tmft.errors import InputError
from tmft.losses.multiple_negatives import MultipleNegativesRanking, multiple_negatives_ranking
from tmft.sentence_encoder import SentenceEncoder

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
    assert multiple_negatives_ranking(u, v, negatives, 0.5, symmetric=False).item() == pytest.approx(left)
    assert multiple_negatives_ranking(u, v, negatives, 0.5).item() == pytest.approx(left + right)
    assert multiple_negatives_ranking(u, v, None, 0.5, symmetric=False).item() == pytest.approx(right)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("symmetric", [False, True])
def test_value_and_gradient_equal_those_of_sentence_transformers(count, symmetric):
    """Its symmetric loss is the mean of the two directions; ours is their sum, twice as much."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    theirs = MultipleNegativesRankingLoss(
        SentenceTransformer(modules=[nn.Identity()], device="cpu"), scale=100, **(both if symmetric else {})
    )
    parts = embeddings(6, count=count)
    expected = theirs.compute_loss_from_embeddings(parts, None) * (2 if symmetric else 1)
    gradients = torch.autograd.grad(expected, parts)
    found = multiple_negatives_ranking(*parts, *[None] * (3 - count), 0.01, symmetric)
    torch.testing.assert_close(found, expected)
    for a, b in zip(torch.autograd.grad(found, parts), gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("text_ids", "negatives_of"),
    [
        ([[0, 1, 2], [3, 4, 5], [0, 6, 7]], [([1], [0, 1, 2]), ([0, 2], [0, 1, 2]), ([1], [0, 1, 2])]),
        ([[0, 1, 2], [3, 4, 5], [6, 1, 7]], [([1], [0, 1, 2]), ([0, 2], [0, 1, 2]), ([1], [0, 1, 2])]),
        ([[0, 1, 2], [3, 4, 1], [6, 8, 7]], [([1, 2], [0, 2]), ([0, 2], [0, 1, 2]), ([0, 1], [0, 1, 2])]),
    ],
    ids=["equal anchors", "equal positives", "a positive is a hard negative"],
)
def test_mask_duplicate_anchors_removes_equal_texts_from_the_negatives(text_ids, negatives_of):
    u, v, negatives = embeddings(3)
    text_ids = torch.tensor(text_ids)
    scores = torch.cosine_similarity(u[:, None], v, dim=-1) / 0.1
    hard = torch.cosine_similarity(u[:, None], negatives, dim=-1) / 0.1
    expected = 0
    for i, (others, hard_negatives) in enumerate(negatives_of):
        left = torch.cat([scores[i, [i, *others]], hard[i, hard_negatives]])
        right = scores[[i, *others], i]
        expected += (left.logsumexp(0) + right.logsumexp(0) - 2 * scores[i, i]) / 3
    torch.testing.assert_close(multiple_negatives_ranking(u, v, negatives, 0.1, text_ids=text_ids), expected)
    task = get_task("nli", objective_args={"temperature": 0.1, "mask_duplicate_anchors": True})
    torch.testing.assert_close(MultipleNegativesRanking(7, task)(u, v, negatives, text_ids), expected)
    other = MultipleNegativesRanking(7, get_task("nli", objective_args={"temperature": 0.1}))(
        u, v, negatives, text_ids
    )
    assert other > expected


# ------------------------------------------------------------------------------------------- data, and a run


@pytest.fixture
def triplets(tmp_path):
    """A data root with triplets, pairs of duplicates, and pairs with scores to evaluate on."""
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


def test_examples_without_labels_have_the_numbers_of_their_texts(triplets):
    task = get_task("nli", data_root=str(triplets))
    examples = read_split(task, "train")
    assert [len(column) for column in examples.texts] == [6, 6, 6]
    texts = [*zip(*examples.texts, strict=True)]
    number = dict(zip(sum(texts, ()), sum(examples.labels, []), strict=True))
    assert [[number[text] for text in row] for row in texts] == examples.labels
    assert sorted(number.values()) == [*range(len(number))]
    assert labels_to_targets(examples.labels, task).dtype == torch.int64
    dev = read_split(task, "dev")
    assert isinstance(dev, Examples) and dev.labels == [4.5, 2.0, 3.0] and len(dev.texts) == 2


def test_pairs_may_have_the_usual_names(tmp_path):
    (tmp_path / "train.tsv").write_text("sentence1\tsentence2\na\tb\n")
    assert read_examples(get_task("quora-pairs", data=str(tmp_path)), "train").texts == (["a"], ["b"])


@pytest.mark.parametrize("task", ["nli", "quora-pairs"])
def test_a_run_lowers_its_loss_is_evaluated_on_pairs_with_scores_and_saves_its_projection(
    task, triplets, tiny_folder, capsys
):
    runs = triplets / "runs"
    where = f"--data-root {triplets} --output-dir {runs} --device cpu --precision fp32".split()
    recipe = "--epochs 4 --batch-size 4 --mini-batch-size 2 --temperature 0.1 --lr 3e-3".split()
    train.main(["--ckpt", str(tiny_folder), "--task", task, *where, *recipe, "--projection", "10"])
    (folder,) = runs.iterdir()
    result = json.loads((folder / "result.json").read_text())
    losses = [epoch["loss"] for epoch in result["epochs"]]
    assert losses[-1] < losses[0]
    assert result["test"]["pairs"] == 3 and "spearman" in result["test"]
    assert result["settings"]["task"]["objective_args"] == {"temperature": 0.1}
    model = SentenceEncoder.from_pretrained(folder)
    assert [type(module).__name__ for module in model.head_modules] == ["Dense", "Normalize"]
    assert np.linalg.norm(model.encode(SENTENCES), axis=1) == pytest.approx(1, abs=1e-5)
    capsys.readouterr()
    evaluate.main([str(folder), "--data-root", str(triplets), "--device", "cpu"])
    assert "spearman" in capsys.readouterr().out

    again = ["--ckpt", str(tiny_folder), "--task", "nli", *where, *recipe, "--run-name", "second"]
    train.main([*again, "--init-from", str(folder), "--projection", "10"])
    with pytest.raises(
        InputError, match="projection 12: .* has Dense and Normalize to 10 dimensions already"
    ):
        train.main([*again[:-1], "third", "--init-from", str(folder), "--projection", "12"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "0"], "temperature 0.0: choose 1e-06 to 10"),
        (["--batch-size", "1"], "batch_size 1: multiple_negatives_ranking compares the examples of a"),
        (["--objective", "cosine_mse"], "objective cosine_mse takes 2 texts, but the task has 3"),
        (["--mini-batch-size", "0"], "mini_batch_size 0: choose 1 or more"),
        (["--data-root", "{pairs}"], "no column 'negative' .*, line 1.: the columns are anchor, positive"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message, triplets, tiny_folder):
    pairs = triplets / "pairs/nli-triplets/train.tsv"
    pairs.parent.mkdir(parents=True)
    pairs.write_text("anchor\tpositive\na\tb\n")
    words = [word.format(pairs=triplets / "pairs") for word in arguments]
    with pytest.raises(InputError, match=message):
        train.main(["--ckpt", str(tiny_folder), "--task", "nli", "--data-root", str(triplets), *words])
