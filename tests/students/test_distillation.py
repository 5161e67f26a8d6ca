"""Distillation: the loss against its formula, the data of the student, and runs of the command."""

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import torch
import torch.nn.functional as F
from conftest import ROOT, tiny_model

import evaluate
import tmft.students.distillation as distillation
import train
from tmft.errors import InputError
from tmft.metrics import teacher_cosine
from tmft.sentence_encoder import SentenceEncoder
from tmft.students.distillation import (
    EmbeddingDistillation,
    combine_embeddings,
    distillation_loss,
    teacher_examples,
)
from tmft.tasks import TASKS, Task


def test_the_loss_is_one_minus_the_mean_cosine_and_needs_equally_many_dimensions():
    generator = torch.Generator().manual_seed(0)
    u, t = torch.randn(6, 8, generator=generator), torch.randn(6, 8, generator=generator)
    expected = 1 - F.cosine_similarity(u, t).mean().item()
    assert distillation_loss(u, t).item() == pytest.approx(expected, abs=1e-6)
    objective = EmbeddingDistillation(8, Task("", objective_args={"teacher": "x", "text": ("y",)}))
    with pytest.raises(InputError, match="have 7 dimensions, the student's 8: add projection 7") as error:
        objective(u, t[:, :7])
    assert "--projection 7" in error.value.as_cli_message()


# ------------------------------------------------------------------------------------ text and its embeddings


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A teacher, a text, and an empty data folder."""
    monkeypatch.setattr(distillation, "DATA_FOLDER", tmp_path / "data")
    monkeypatch.setattr(distillation, "choose_precision", lambda *_: "fp32")  # on every CPU the same
    tiny_model().save_pretrained(tmp_path / "teacher")
    lines = ["A man plays.", "a  man PLAYS", "", "the cat eats", "a dog", "two dogs", "the park!"]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def make_task(place, **more) -> Task:
    args = {"teacher": str(place / "teacher"), "text": (str(place / "text.txt"),)}
    return replace(TASKS["distillation"], objective_args=args | more)


def test_labels_are_the_teachers_embeddings_of_the_distinct_lines_that_are_not_excluded(place):
    examples = teacher_examples(make_task(place), "train", ["The cat eats."])
    assert set(examples.texts[0]) == {"A man plays.", "a dog", "two dogs", "the park!"}
    assert len(examples) == 4
    expected = SentenceEncoder.from_pretrained(place / "teacher").encode(examples.texts[0])
    np.testing.assert_allclose(np.asarray(examples.labels), expected, atol=1e-6)
    assert len(teacher_examples(make_task(place, max_lines=2), "train", [])) == 2


def test_lines_of_the_text_can_be_dev_and_test(place):
    (place / "text.txt").write_text("\n".join(f"a dog plays {n}" for n in range(300)))
    task = replace(make_task(place), metric="teacher_cosine")
    splits = {split: teacher_examples(task, split, []) for split in ("train", "dev", "test")}
    assert {split: len(examples) for split, examples in splits.items()} == {"train": 294, "dev": 3, "test": 3}
    assert len({text for examples in splits.values() for text in examples.sentences}) == 300
    teacher = SentenceEncoder.from_pretrained(place / "teacher")
    for examples in splits.values():
        np.testing.assert_allclose(np.asarray(examples.labels), teacher.encode(examples.texts[0]), atol=1e-5)
        u = EmbeddingDistillation(24, task).predict(torch.from_numpy(teacher.encode(examples.sentences)))
        assert teacher_cosine(u, examples.labels)["teacher_cosine"] == pytest.approx(1, abs=1e-6)
        assert teacher_cosine(-u, examples.labels)["teacher_cosine"] == pytest.approx(-1, abs=1e-6)


def test_embeddings_are_computed_again_only_if_teacher_or_text_change(place, monkeypatch):
    teacher_examples(make_task(place), "train", [])
    runs = []
    encode = distillation.encode_file
    monkeypatch.setattr(distillation, "encode_file", lambda *args: runs.append(1) or encode(*args))
    teacher_examples(make_task(place), "train", [])
    assert runs == []
    with open(place / "text.txt", "a") as file:
        file.write("not in the park\n")
    assert len(teacher_examples(make_task(place), "train", [])) == 6
    assert runs == [1]
    (place / "teacher/config.json").write_text((place / "teacher/config.json").read_text() + "\n")
    teacher_examples(make_task(place), "train", [])
    assert runs == [1, 1]


@pytest.fixture
def two_teachers() -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings of 400 texts about 6 topics by a model of 16 dimensions and one of 40, of any length."""
    generator = torch.Generator().manual_seed(0)
    topics = torch.randn(400, 6, generator=generator)
    first, second = (topics @ torch.randn(6, width, generator=generator) for width in (16, 40))
    return first, second


def test_two_teachers_are_combined_into_the_mean_of_their_cosines(two_teachers, monkeypatch):
    monkeypatch.setattr(distillation, "BLOCK_ROWS", 150)  # the last block has fewer
    combined = combine_embeddings(*two_teachers)
    assert combined.shape == two_teachers[0].shape and combined.dtype == torch.float32
    mean = sum(one @ one.T for one in (F.normalize(one, dim=-1) for one in two_teachers)) / 2
    torch.testing.assert_close(combined @ combined.T, mean, atol=1e-5, rtol=0)  # 12 directions fit into 16


def test_combined_embeddings_are_rotated_to_lie_nearest_to_those_of_the_first_teacher(two_teachers):
    first = F.normalize(two_teachers[0], dim=-1)
    combined = combine_embeddings(*two_teachers)
    rotation = scipy.linalg.orthogonal_procrustes(combined.numpy(), first.numpy())[0]
    nearest = combined @ torch.from_numpy(rotation)
    assert (combined * first).sum().item() == pytest.approx((nearest * first).sum().item())
    torch.testing.assert_close(combine_embeddings(5 * first, first), first, atol=1e-5, rtol=0)


def test_a_second_teacher_changes_the_labels_and_has_embeddings_of_its_own(place):
    """Both are kept apart, so that a run with one of them alone finds its embeddings."""
    tiny_model(num_hidden_layers=2).save_pretrained(place / "other")
    both = teacher_examples(make_task(place, second_teacher=str(place / "other")), "train", [])
    assert len(list((place / "data/taught").iterdir())) == 2
    first = teacher_examples(make_task(place), "train", [])
    other = teacher_examples(make_task(place, teacher=str(place / "other")), "train", [])
    assert len(list((place / "data/taught").iterdir())) == 2
    assert both.texts == first.texts == other.texts
    expected = combine_embeddings(first.labels, other.labels)
    torch.testing.assert_close(both.labels, expected)


def test_damaged_embeddings_are_not_used(place):
    teacher_examples(make_task(place), "train", [])
    [file] = (place / "data/taught").glob("*/vectors.npy")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(InputError, match="vectors.npy cannot be read .*: remove the folder") as error:
        teacher_examples(make_task(place), "train", [])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no text"),
        ("music\n", "1 lines are left, too few: give a longer text"),
        (None, "cannot be read"),
    ],
)
def test_too_little_text_is_one_line(text, words, place):
    if text is None:
        (place / "text.txt").unlink()
    else:
        (place / "text.txt").write_text(text)
    with pytest.raises(InputError, match=words):
        teacher_examples(make_task(place), "train", [])


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def line(place, tiny_data) -> list[str]:
    stsb = place / "root/stsb"
    stsb.mkdir(parents=True)
    for split in ("dev", "test"):
        (stsb / f"{split}.tsv").write_text((tiny_data / f"{split}.tsv").read_text())
    where = ["--output-dir", str(place / "runs"), "--run-name", "s", "--data-root", str(place / "root")]
    return ["--ckpt", str(place / "teacher"), "--layer", "2", *where, "--epochs", "2", "--batch-size", "2"]


@pytest.fixture
def teacher(place) -> list[str]:
    return ["--teacher", str(place / "teacher"), "--text", str(place / "text.txt")]


def test_a_teacher_and_a_text_are_all_that_a_run_needs(line, teacher, place, capsys):
    train.main([*line, *teacher])
    output = capsys.readouterr().out
    assert f"teacher {place}/teacher: " in output and "test spearman" in output
    result = json.loads((place / "runs/s-layer2-seed0/result.json").read_text())
    assert result["data"] == "distillation"
    assert result["settings"]["task"]["objective_args"]["text"] == [str(place / "text.txt")]
    train.main([*line, *teacher])
    assert "already finished, kept" in capsys.readouterr().out
    evaluate.main([str(place / "runs/s-layer2-seed0")])  # on the same pairs
    assert "spearman" in capsys.readouterr().out


def test_without_pairs_with_scores_the_model_is_judged_by_its_teacher(line, teacher, place, capsys):
    (place / "text.txt").write_text("\n".join(f"a dog plays {n}" for n in range(30)))
    (place / "root/stsb").rename(place / "root/removed")
    with pytest.raises(InputError, match="no such file .*stsb.* give selection_metric teacher_cosine"):
        train.main([*line, *teacher])
    train.main([*line, *teacher, "--selection-metric", "teacher_cosine"])
    assert "test teacher_cosine" in capsys.readouterr().out


def test_damaged_pairs_with_scores_are_an_error(line, teacher, place):
    (place / "root/stsb/dev.tsv").write_text("sentence1\tsentence2\tscore\na man\tthe man\tmuch\n")
    with pytest.raises(InputError, match="score 'much' is not a number"):
        train.main([*line, *teacher])


KEEP = ["--teacher", "{t}", "--text", "{x}", "--keep-layers"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--teacher", "{t}"], "objective distillation: name a --teacher and a --text with sentences"),
        (["--second-teacher", "{t}"], "--second-teacher has no effect with --objective cosine_mse: remove"),
        (["--text", "{x}"], "--text has no effect with --objective cosine_mse: remove it"),
        (["--teacher", "{t}", "--text", "{x}", "--max-lines", "-1"], "--max-lines -1: choose 0 or more"),
        (["--teacher", "{t}", "--text", "{x}", "--batch-size", "1"], "--batch-size 1: distillation compares"),
        (["--teacher", "{x}", "--text", "{x}"], "is a file: name the folder"),
        ([*KEEP, "0,4"], "--keep-layers 4: this checkpoint has 4 layers, choose from 0 to 3"),
        ([*KEEP, "first"], "--keep-layers first: write increasing layer indices, counted from 0"),
        ([*KEEP, "0,1", "--layer", "2"], "--keep-layers and --layer: give only one"),
        ([*KEEP, "1", "--ckpt", str(ROOT / "data/twins/t5")], "--keep-layers must include layer 0"),
    ],
)
def test_a_wrong_command_is_one_line(more, words, line, place):
    if "--keep-layers" in more:
        at = line.index("--layer")
        del line[at : at + 2]
    places = {"t": place / "teacher", "x": place / "text.txt"}
    with pytest.raises(InputError) as error:
        train.main([*line, *(word.format(**places) for word in more)])
    assert words in error.value.as_cli_message() and "\n" not in str(error.value)


# ----------------------------------------------------------------------------------------------- which layers


def test_layers_that_are_named_are_kept(line, teacher, place):
    at = line.index("--layer")
    del line[at : at + 2]
    train.main([*line, *teacher, "--lr", "0", "--keep-layers", "0,3"])
    before, after = (
        SentenceEncoder.from_pretrained(place / name) for name in ("teacher", "runs/s-layer2-seed0")
    )
    assert len(after.encoder.layers) == 2
    for here, there in zip(after.encoder.layers, (before.encoder.layers[n] for n in (0, 3)), strict=True):
        for one, other in zip(here.parameters(), there.parameters(), strict=True):
            assert torch.equal(one, other)
    result = json.loads((place / "runs/s-layer2-seed0/result.json").read_text())
    assert result["settings"]["keep_layers"] == [0, 3]
    assert result["parameters"]["stored"] == sum(w.numel() for w in after.encoder.parameters())
