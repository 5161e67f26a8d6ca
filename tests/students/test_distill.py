"""`distill` and the narrow student: shapes, what the student begins with and learns, and refusals."""

import re
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, assert_same_embeddings

import tmft.students.distill as distillation
from tmft.checkpoints.model_card import sentence_model_card
from tmft.cli import student_command
from tmft.errors import InputError
from tmft.export.export import export
from tmft.io.text import read_lines
from tmft.loop import Recipe
from tmft.sentence_encoder import SentenceEncoder
from tmft.students.distill import distill, space_layers_evenly
from tmft.students.distillation import deduplicate
from tmft.students.narrow_models import narrow_student

TWIN = ROOT / "data/twins/mlm"


@pytest.fixture(scope="module")
def teacher() -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(TWIN, 3)


@pytest.fixture(scope="module")
def lines() -> list[str]:
    rows = [line.split("\t") for line in read_lines(ROOT / "data/sample/train.tsv")][1:]
    return list(dict.fromkeys(text for row in rows for text in row[:2]))[:300]


def teacher_cosine(student: SentenceEncoder, teacher: SentenceEncoder, texts: list[str]) -> float:
    vectors = [model.encode(texts, convert_to_tensor=True) for model in (student, teacher)]
    return F.cosine_similarity(*vectors).mean().item()


def test_the_layers_of_a_student_are_evenly_spaced_and_end_with_the_last():
    assert space_layers_evenly(3, 6) == [0, 2, 5] and space_layers_evenly(4, 12) == [0, 3, 7, 11]
    assert space_layers_evenly(1, 6) == [5] and space_layers_evenly(2, 2) == [0, 1]
    with pytest.raises(InputError, match="layers"):
        space_layers_evenly(7, 6)


def test_a_distilled_student_is_closer_to_its_teacher_than_the_layers_it_began_with(teacher, lines, tmp_path):
    before = {name: weight.clone() for name, weight in teacher.state_dict().items()}
    recipe = Recipe(epochs=1, batch_size=16, lr=1e-3)
    student = distill(teacher, lines, layers=2, recipe=recipe)
    cut = SentenceEncoder.from_pretrained(TWIN, 3)
    cut.encoder.keep_layers([0, 2])
    held_out = ["A boy rides his bicycle to school.", "Prices rose again last month.", "Is it far?"]
    assert len(student.encoder.layers) == 2 and not student.training
    assert teacher_cosine(student, teacher, held_out) > teacher_cosine(cut, teacher, held_out)
    for name, weight in teacher.state_dict().items():
        assert torch.equal(weight, before[name]), f"the teacher's {name} has changed"
    shuffled = list(deduplicate(lines, [""]))
    Random(0).shuffle(shuffled)
    num_dev = max(2, len(shuffled) // 100)
    said = re.fullmatch(r"distilled from .*mlm: mean cosine (0\.\d+) on (\d+) lines .*", student.load_report)
    assert int(said[2]) == num_dev
    assert float(said[1]) == pytest.approx(teacher_cosine(student, teacher, shuffled[:num_dev]), abs=1e-4)
    teacher.save_pretrained(tmp_path / "teacher")
    again = distill(tmp_path / "teacher", lines, layers=2, recipe=recipe)  # by its name
    assert torch.equal(*(model.encode(held_out, convert_to_tensor=True) for model in (student, again)))


def test_a_student_with_layers_of_its_teacher_keeps_only_the_most_frequent_tokens(
    teacher, lines, tmp_path, capsys
):
    """Its word embeddings begin as those of the teacher: a step at learning rate 0 leaves them so."""
    student = distill(teacher, lines, layers=2, vocab_size=1000, recipe=Recipe(epochs=1, lr=0.0))
    vocabulary, former = student.tokenizer.vocabulary, teacher.tokenizer.vocabulary
    assert len(vocabulary) == student.encoder.config.vocab_size == 1000
    vectors = student.encoder.embeddings.word.weight, teacher.encoder.embeddings.word.weight
    for token in ("[CLS]", "the", "a"):
        assert torch.equal(vectors[0][vocabulary.index(token)], vectors[1][former.index(token)])
    student.save_pretrained(tmp_path / "student")
    card = (tmp_path / "student/README.md").read_text(encoding="utf-8")
    assert "# Sentence embeddings from layers 0, 2 (counted from 0) of mlm\n" in card
    cosine = student.load_report.partition(": ")[2]
    num_lines = len(set(deduplicate(lines, [""]))) - 3
    assert f"Trained to give {num_lines} lines the embeddings of its teacher: {cosine}.\n" in card
    assert "It has 1,000 of the 8,192 tokens of its teacher.\n" in card and "truncated" not in card
    shown = capsys.readouterr().err
    assert student.load_report in shown


@pytest.mark.parametrize("hidden_size", [None, 64])
def test_a_student_has_narrow_embeddings_and_few_bits_and_is_saved_so(hidden_size, teacher, lines, tmp_path):
    """As the commands make it: fewer tokens, narrower embeddings, 4 bits; saved in float16 or in 4 bits."""
    recipe = Recipe(epochs=1, batch_size=16, lr=1e-3)
    shape = {"layers": 2, "hidden_size": hidden_size, "vocab_size": 1000, "embedding_size": 32}
    student = distill(teacher, lines, **shape, recipe=recipe, quantization="int4")
    assert student.encoder.embeddings.word.weight.shape == (1000, 32)
    student.save_pretrained(tmp_path / "half", dtype="float16")
    export(student, tmp_path / "four-bits", "compact", "int4")
    sizes = [weights(tmp_path / name) for name in ("half", "four-bits")]
    assert sizes[1] < 0.35 * sizes[0] < 0.2 * sum(4 * weight.numel() for weight in student.parameters()), (
        sizes
    )
    for name in ("half", "four-bits"):
        opened = SentenceEncoder.from_pretrained(tmp_path / name)
        assert_same_embeddings(opened.encode(lines[:20]), student.encode(lines[:20]), 2e-3)


def weights(folder: Path) -> int:
    """The bytes of all weights in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


def test_a_narrow_student_begins_near_its_teacher_and_learns(teacher, lines):
    torch.manual_seed(0)
    start = narrow_student(teacher, lines, num_layers=2, hidden_size=64, vocab_size=1000, max_length=40)
    config = start.encoder.config
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (64, 2, 1000)
    assert start.dimensions == teacher.dimensions and start.max_length == 40
    student = distill(teacher, lines, 2, 64, 1000, Recipe(epochs=3, batch_size=16, lr=2e-3))
    cosines = [teacher_cosine(model, teacher, lines[:50]) for model in (start, student)]
    assert 0.3 < cosines[0] < cosines[1] - 0.1, cosines
    for model, said in ((start, "It is not trained yet."), (student, "the embeddings of its teacher: mean")):
        card = sentence_model_card(model)
        assert "# Sentence embeddings: a student of mlm\n" in card and said in card
        assert "the first 2 layers" not in card and "A student of mlm, made by tmft." in card


def test_a_student_of_two_teachers_is_close_to_the_mean_of_their_cosines(teacher, lines):
    second = SentenceEncoder.from_pretrained(ROOT / "data/tiny")
    recipe = Recipe(epochs=2, batch_size=16, lr=1e-3)
    students = [
        distill(teacher, lines, 3, recipe=recipe),
        distill(teacher, lines, 3, recipe=recipe, second_teacher=second),
    ]
    embeddings = [model.encode(lines, convert_to_tensor=True) for model in (teacher, second, *students)]
    cosines = [one @ one.T for one in (F.normalize(one, dim=-1) for one in embeddings)]
    mean = (cosines[0] + cosines[1]) / 2
    alone, together = (F.mse_loss(one, mean).item() for one in cosines[2:])
    assert together < 0.5 * alone, (together, alone)
    assert "A student of mlm and tiny, made by tmft" in sentence_model_card(students[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lines": ["a", "A.", "a!"]}, "1 different lines: give at least 4"),
        ({"hidden_size": 48}, "choose a multiple of 32"),
        ({"hidden_size": 32, "vocab_size": 3}, "vocab_size"),
        ({"hidden_size": 32, "vocab_size": 10_000}, "vocab_size"),
        ({"embedding_size": 128}, "embedding_size 128: choose 2 to 127"),
        ({"hidden_size": 64, "embedding_size": 64}, "embedding_size 64: choose 2 to 63"),
    ],
)
def test_a_student_that_cannot_be_made_is_refused(arguments, message, teacher, lines):
    with pytest.raises(InputError, match=message):
        distill(teacher, **{"lines": lines} | arguments)


def test_the_command_writes_a_student_that_train_accepts_at_once(lines, tmp_path, capsys, monkeypatch):
    text, folder = tmp_path / "lines.txt", tmp_path / "start"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    arguments = [str(TWIN), str(folder), "--text", str(text), "--num-layers", "1", "--hidden-size", "32"]
    save = SentenceEncoder.save_pretrained

    def stop_before_the_end(student, folder):
        save(student, folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SentenceEncoder, "save_pretrained", stop_before_the_end)
        student_command.main(arguments)
    assert not folder.exists()  # and the same command can be repeated
    student_command.main([*arguments, "--vocab-size", "900"])
    assert "1 layers of 32, 900 tokens" in capsys.readouterr().out
    assert SentenceEncoder.from_pretrained(folder).encode("A cat.").shape == (128,)
    with pytest.raises(InputError, match="exists already"):
        student_command.main(arguments)
    with pytest.raises(InputError, match="^num_layers -1: choose 0 or more$"):
        student_command.main([str(TWIN), str(tmp_path / "x"), "--text", str(text), "--num-layers", "-1"])


def test_without_text_the_lines_are_random_words_of_the_vocabulary(teacher, monkeypatch):
    monkeypatch.setattr(distillation, "NUM_RANDOM_LINES", 200)
    lines = distillation.draw_random_lines(teacher, seed=0)
    words = [word for line in lines for word in line.split()]
    assert len(lines) == 200 and {len(line.split()) for line in lines} == set(range(3, 13))
    assert set(words) <= set(teacher.tokenizer.vocabulary) and all(map(str.isalpha, words))
    assert words.count("the") > 10  # frequent tokens are drawn more often
    student = distill(teacher, layers=1, recipe=Recipe(epochs=1, batch_size=64, lr=1e-3))
    assert "lines that were held out; these are random words" in student.load_report
