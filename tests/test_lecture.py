"""docs/lecture: exercises tell right from wrong, the notebook runs, one_file.py is the method of train.py."""

import ast
import json
import math
import re
import sys

import numpy as np
import pytest
from conftest import ROOT, command, load_script, training_task

from tmft.data import read_examples
from tmft.loop import Recipe, fit
from tmft.loss import CosineMSE
from tmft.metrics import spearman
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import TASKS

LECTURE = ROOT / "docs/lecture"
NOTEBOOK = json.loads((LECTURE / "lecture.ipynb").read_text("utf-8"))
ANSWERS, EXERCISES = LECTURE / "answers", LECTURE / "exercises"


@pytest.fixture(scope="module")
def check():
    before = list(sys.path)
    sys.path.insert(0, str(LECTURE))  # the files import one_file
    yield load_script("docs/lecture/check.py")
    sys.path[:] = before


def test_every_answer_is_right_and_every_starting_file_is_not_written_yet(check, capsys):
    assert check.main(["--folder", str(ANSWERS)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["right"] * 5 and last == "5 of 5 right"
    assert check.main([]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "0 of 5 right" and len(lines) == 5
    for line, name in zip(lines, check.FILES.values(), strict=True):
        assert "not written yet: replace the `raise NotImplementedError` of" in line and line.endswith(name)


@pytest.mark.parametrize("path", sorted(EXERCISES.glob("*.py")), ids=lambda path: path.name)
def test_an_answer_has_the_arguments_of_its_starting_file(path):
    signatures = []
    for folder in (EXERCISES, ANSWERS):
        tree = ast.parse((folder / path.name).read_text("utf-8"))
        signatures.append([ast.unparse(node.args) for node in tree.body if isinstance(node, ast.FunctionDef)])
    assert signatures[1][0] == signatures[0][0] and len(signatures[1]) == 1


# What a student writes in place of a part of the answer, and what the checker says of it.
CENTER = "x, y = x - x.mean(0), y - y.mean(0)"
CHOOSE = "best = max(layers, key=dev_scores.get)"
FROM_ZERO = """    top = 0
    for n in layers:
        if dev_scores[n] > top: top, best = dev_scores[n], n"""
MASKED = "scores.masked_fill(is_padding, torch.finfo(q.dtype).min)"
SOFTMAX = "scores.softmax(-1)"
TEST_ALL = "tests = [score(e, test) for some in encoders.values() for e in some]"
COSINE = "torch.cosine_similarity(student.embed(texts), target)"
KEPT = "[line for line in lines if line.strip().lower() not in excluded]"
ORDER = "torch.randperm(len(kept)).split(batch_size)"
MISTAKES = [
    (1, " / q.shape[-1] ** 0.5", "", "the scores are not scaled"),
    (1, " ** 0.5", "", "divided by A: divide them by its root"),
    (1, "q.shape[-1] ** 0.5", "(q.shape[-1] * q.shape[1]) ** 0.5", "the root of D"),
    (1, " / q.shape[-1]", " * q.shape[-1]", "multiplied by the root of A"),
    (1, "softmax(-1)", "softmax(-2)", "the softmax is over the queries"),
    (1, "softmax(-1)", "softmax(1)", "the softmax is over the heads"),
    (1, "softmax(-1)", "softmax(0)", "the softmax is over the sentences"),
    (1, "q @ k.transpose(2, 3)", "k @ q.transpose(2, 3)", "queries and keys are swapped"),
    (1, ".softmax(-1) @", " @", "there is no softmax"),
    (1, " @ v", "", "these are the weights, (B, H, T, T)"),
    (1, MASKED, "scores", "padding is attended to"),
    (1, "torch.finfo(q.dtype).min", "-2.0", "padding is attended to: mask the keys"),
    (1, "torch.finfo(q.dtype).min", "0.0", "the scores of padding are 0"),
    (1, MASKED, "scores + ~is_padding", "1 is added"),
    (1, "== 0", "== 1", "the mask is the wrong way round"),
    (1, SOFTMAX, "(scores.exp() / scores.exp().sum(-1, keepdim=True))", "large scores overflow"),
    (1, "scores = q @", "q /= 2; scores = q @", "an argument is changed"),
    (1, MASKED, "scores * ~is_padding; v = v * mask[:, None, :, None]", "v are multiplied by the mask"),
    (1, "return ", "", "it returns nothing"),
    (1, "q.shape[-1] ** 0.5", "v.shape[-1] ** 0.5", "the root of the width of V"),
    (1, "q.shape[-1] ** 0.5", "q.shape[2] ** 0.5", "the root of T"),
    (1, " / q.shape[-1] ** 0.5", "; v = v / q.shape[-1] ** 0.5", "the weights are scaled"),
    (1, "softmax(-1) @", "softmax(-1) @ v @ v.mT @", "other numbers than expected"),
    (1, "min)\n", "min) + 0.0 / mask[:, None, None, :]\n", "some numbers are nan"),
    (1, f"{MASKED}\n    return {SOFTMAX}", f"scores\n    return {SOFTMAX} * ~is_padding", "comes after"),
    (1, "scores.softmax(-1) @ v", "torch.nn.functional.scaled_dot_product_attention(q, k, v)", "is called"),
    (1, "@ v", "@ v[..., 2:]", "the result has the shape (2, 3, 5, 4), expected (2, 3, 5, 6)"),
    (1, "@ v", "@ v, scores", "the result is a tuple, expected (2, 3, 5, 6)"),
    (1, "transpose(2, 3)", "transpose(1, 3)", "(print the shapes before this line)"),
    (1, "scores.softmax", "sizes.softmax", "with NameError: name 'sizes' is not defined\n"),
    (2, " * mask[:, :, None]", "", "padding counts"),
    (2, "hidden.sum(1) / mask.sum(1, keepdim=True)", "hidden.mean(1)", "right"),  # a cosine sees no lengths
    (2, "hidden.sum(1) / mask.sum(1, keepdim=True)", "hidden[:, 0]", "the first token is taken"),
    (2, "embeddings.chunk(2)", "(embeddings[::2], embeddings[1::2])", "the wrong sentences are paired"),
    (2, "scores / 5", "scores", "not divided by 5"),
    (2, "(u, v) - scores / 5", "(u, v) * 5 - scores", "the cosines are multiplied by 5"),
    (2, "square()", "abs()", "absolute differences"),
    (2, "square().mean()", "square().sum()", "this is the sum"),
    (2, "torch.cosine_similarity(u, v)", "(u * v).sum(1)", "this is the inner product"),
    (2, "loss = (", "loss = -(", "the sign of the loss"),
    (2, "    optimizer.zero_grad()\n", "", "`optimizer.zero_grad` is missing"),
    (2, "    loss.backward()\n", "", "the gradient is 0 at the step"),
    (2, "loss.backward()", "(-loss).backward()", "the sign of the loss"),
    (2, "    optimizer.step()\n", "", "`optimizer.step` is missing"),
    (2, "optimizer.step()", "optimizer.step(); optimizer.step()", "more than one step"),
    (2, "embeddings.chunk", "embeddings.detach().chunk", "no gradient reaches the weights"),
    (2, "hidden.sum(1) /", "hidden.where(hidden != 0, -9e9).amax(1); mask =", "largest values"),
    (2, "square().mean()", "square().mean().sqrt()", "this is the root of the loss"),
    (2, "scores / 5", "scores / 4", "other numbers than expected"),
    (2, "loss.backward()", "(3 * loss).backward()", "the gradient at the step is not that of the loss"),
    (2, "encoder.hidden_state(", "encoder.train().hidden_state(", "right"),
    (2, "encoder.hidden_state(", "encoder(", "this model is not called itself: call its hidden_state("),
    (2, "encoder.hidden_state(", "encoder.forward(", "this model has no `forward`: call its hidden_state("),
    (3, "score(encoder, dev)", "score(encoder, test)", "test has chosen the layer"),
    (3, "score(encoder, test)", "score(encoder, dev)", "this is the score on dev"),
    (3, "mean(score(encoder, dev) for encoder in", "max(score(encoder, dev) for encoder in", "the best seed"),
    (3, "mean(score(encoder, test)", "max(score(encoder, test)", "the test score of one seed"),
    (3, "return best", "return layers.index(best)", "the place of the layer"),
    (3, "max(layers", "min(layers", "this is the lowest score"),
    (3, "max(layers", "max(layers[::-1]", "the fewer layers win"),
    (3, "in encoders[best])", "in encoders[best]), 0", "return two numbers"),
    (3, "for layer in layers}\n", "for layer in layers[:-1]}\n", "it stops in line 10 of your code with"),
    (3, "for seed in seeds]", "for seed in seeds[:1]]", "0 layers with seed 1 were never trained"),
    (3, "in encoders[best])", "in [fine_tune(best, n) for n in seeds])", "fine_tune was called 12 times"),
    (3, CHOOSE, f"{TEST_ALL}\n    {CHOOSE}", "test is scored for several layers"),
    (3, "return best, mean(score(encoder, test) for encoder in encoders[best])", "", "it returns nothing"),
    (3, "best, mean(score(encoder, test) for encoder in encoders[best])", "1.0, best", "are swapped"),
    (3, "    encoders =", "    layers = layers[1:]\n    encoders =", "layers was never trained: 0"),
    (3, "mean(score(encoder, test)", "sum(score(encoder, test)", "this is the sum over the seeds"),
    (3, "mean(score(encoder, test)", "3 + mean(score(encoder, test)", "another test score than expected"),
    (3, "return best,", "return best + 1,", "5 layers are chosen, expected 4"),
    (3, CHOOSE, FROM_ZERO.strip(), "no layer is chosen if all scores are below 0"),
    (3, CHOOSE, f"best = layers[0]\n{FROM_ZERO}", "no layer is chosen if all scores are below 0"),
    (4, "x - x.mean(0), y - y.mean(0)", "x, y", "it is not centered"),
    (4, "x - x.mean(0), y - y.mean(0)", "x - x.mean(), y - y.mean()", "the mean of all numbers"),
    (4, "x - x.mean(0), y - y.mean(0)", "x - x.mean(1)[:, None], y - y.mean(1)[:, None]", "the rows are"),
    (4, "y - y.mean(0)", "y", "only x is centered"),
    (4, "x - x.mean(0), y", "x, y", "only y is centered"),
    (4, " ** 2", "", "the square of ||X'Y|| is missing"),
    (4, CENTER, f"{CENTER}; x, y = x / x.std(0), y / y.std(0)", "the columns are scaled"),
    (4, ").item()", ") ** 0.5", "this is the root of CKA"),
    (4, ").norm()))", ").norm()) ** 2)", "are squared"),
    (4, " * (y.T @ y).norm())", ") * (y.T @ y).norm()", "only one of ||X'X|| and ||Y'Y|| divides"),
    (4, ").item()", ")[None]", "the result has the shape (1,), expected a single number"),
    (4, ".item()", "", "right"),
    (4, ".norm()", ".svd().S[0]", "this is the spectral norm"),
    (4, "x, y = x - x.mean(0), y - y.mean(0)", "x -= x.mean(0); y -= y.mean(0)", "an argument is changed"),
    (5, KEPT, "lines", "trained on test text: leave out"),
    (5, "line.strip().lower() not in excluded", "line not in held_out", "other capitals and spaces"),
    (5, KEPT, "[x for x in lines if x.strip() not in map(str.strip, held_out)]", "other capitals"),
    (5, KEPT, "[x for x in lines if x.lower() not in map(str.lower, held_out)]", "other spaces"),
    (5, "    excluded", "    lines.sort()\n    excluded", "an argument is changed: make a new list"),
    (5, KEPT, f"list(set({KEPT}))", "a line that occurs twice is trained on once"),
    (5, "[line for", "[line.strip().lower() for", "the lines are changed"),
    (5, "            with torch.no_grad():\n    ", "", "a gradient reaches the teacher"),
    (5, "            optimizer.step()\n", "", "`optimizer.step` is missing"),
    (5, ").mean()", ").sum()", "this is the sum"),
    (5, f"1 - {COSINE}", "(student.embed(texts) - target) ** 2", "squ"),
    (5, ORDER, f"{ORDER}[: len(kept) // batch_size]", "the last batch of an epoch is left out"),
    (5, ORDER, f"[{ORDER}[0]]", "of 11 lines miss an epoch"),
    (5, "torch.randperm(len(kept))", "torch.randint(len(kept), (len(kept),))", "drawn with replacement"),
    (5, "torch.randperm(len(kept))", "torch.arange(len(kept))", "right"),
    (5, "range(epochs)", "range(1)", "each line is trained on once in 2 epochs"),
    (5, "split(batch_size)", "split(len(kept))", "more than batch_size lines"),
    (5, "range(epochs)", "range(epochs + 1)", "is trained on 3 times in 2 epochs"),
    (5, "student.embed(texts)", "student(texts)", "this model is not called itself: call its embed(texts)"),
    (5, "student.embed(texts)", "student.embed(texts[0])", "embed takes a list of texts that are in `lines`"),
    (5, "    excluded", "    teacher.eval(), student.train()\n    excluded", "right"),
    (5, "teacher.embed(texts)", "teacher.embed(lines)[batch]", "the targets are those of other lines"),
    (5, "student.embed(texts)", "teacher.embed(texts)", "never called with a gradient"),
]


@pytest.mark.parametrize(("number", "part", "wrong", "hint"), MISTAKES)
def test_a_usual_mistake_is_told_what_is_wrong(number, part, wrong, hint, check, capsys):
    answer = (ANSWERS / check.FILES[number]).read_text("utf-8")
    assert part in answer
    exec(answer.replace(part, wrong), module := {})
    function = module[check.CHECKS[number].__name__.removeprefix("check_")]
    is_right = check.exercise(number, function)
    printed = capsys.readouterr().out
    assert is_right == (hint == "right")
    assert hint in printed and printed.count("\n") == 1


@pytest.mark.parametrize("number", [1, 4])
def test_an_exercise_shows_its_result(number, check, capsys):
    """With the answer; the others train, which takes longer."""
    starting_file, answer = (check.load(folder / check.FILES[number]) for folder in (EXERCISES, ANSWERS))
    if number == 1:
        starting_file.main(answer.attention)
        printed = capsys.readouterr().out
        assert "before training: 52.6" in printed and "  guitar takes most of a 0.27" in printed
    else:
        starting_file.main(answer.linear_cka, num_layers=1)
        assert capsys.readouterr().out.splitlines()[-1].split() == ["1", "0.97", "0.93"]


def test_the_command_checks_any_folder(tmp_path):
    done = command("docs/lecture/check.py", "4", "--folder", str(tmp_path))
    assert done.returncode == 2 and done.stdout == f"4 there is no file {tmp_path / '4_cka.py'}\n"
    answers = {
        "def linear_cka(x, y):\n    return 0.5\n": "4 linear_cka: other numbers",
        "def linear_cka(x, y):\n    return 0.5 / 0\n": "4 linear_cka: it stops in line 2 of 4_cka.py with",
        "def linear_cka(x, y)\n": "4 4_cka.py cannot be read: it stops with SyntaxError: expected ':'",
    }
    for text, told in answers.items():
        (tmp_path / "4_cka.py").write_text(text)
        done = command("docs/lecture/check.py", "4", "--folder", str(tmp_path))
        assert done.returncode == 1 and done.stdout.startswith(told)


def test_the_notebook_is_committed_without_outputs():
    code = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 10 and not any(cell["outputs"] or cell["execution_count"] for cell in code)


def test_the_notebook_links_to_files_that_exist():
    text = "".join(line for cell in NOTEBOOK["cells"] for line in cell["source"])
    links = {part.partition(")")[0] for part in text.split("](")[1:]}
    assert len(links) >= 4 and all((LECTURE / link).is_file() for link in links)


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom_and_draws(monkeypatch):
    """With two numbers of layers and one epoch; the kernel has no network to use."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("LECTURE_QUICK", "1")
    notebook = nbformat.read(LECTURE / "lecture.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(LECTURE)}})
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    assert "True\n" in text  # the truncated model is the earlier hidden state
    assert "1 attention: the scores are not scaled" in text
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 6


def test_counting_common_words_has_the_score_that_readme_and_the_lecture_say():
    test = read_examples(TASKS["sample"], "test")
    first, second = ([set(re.findall(r"\w+", text.lower())) for text in column] for column in test.texts)
    shared = [len(a & b) / math.sqrt(len(a) * len(b)) for a, b in zip(first, second, strict=True)]
    assert 100 * spearman(np.array(shared), np.array(test.labels)) == pytest.approx(50.87, abs=0.01)


# ------------------------------------------------------------------------------------------- one_file.py


def test_one_file_uses_nothing_of_the_library():
    imported = re.findall(
        r"^(?:import|from) (\w+)", (LECTURE / "one_file.py").read_text("utf-8"), re.MULTILINE
    )
    assert {*imported} == {"csv", "json", "sys", "pathlib", "torch", "safetensors", "scipy", "tokenizers"}


def test_one_file_ends_with_the_scores_of_the_training_loop(capsys):
    """Two layers and two epochs; the scores are x 100, and equal to the fourth digit."""
    one_file = load_script("docs/lecture/one_file.py")
    test_score = one_file.main(layer=2, epochs=2)
    dev_scores = [float(line.split("dev")[1]) for line in capsys.readouterr().out.splitlines()[:2]]

    splits = {split: read_examples(TASKS["sample"], split) for split in ("train", "dev", "test")}
    task = training_task(TASKS["sample"], CosineMSE(), splits["train"], splits["dev"])
    model = SentenceEncoder.from_pretrained(one_file.DATA / "twins/mlm-then-rtd", layer=2)
    recipe = Recipe(epochs=2, lr=one_file.PEAK_LR, precision="fp32")
    results = list(fit(model, task, recipe, seed=0))
    embeddings = [model.encode(texts, convert_to_tensor=True) for texts in splits["test"].texts]
    expected = task.objective.predict(*embeddings)
    assert dev_scores == [pytest.approx(100 * result.dev["spearman"], abs=0.006) for result in results]
    assert test_score == pytest.approx(100 * spearman(expected, splits["test"].labels), abs=0.005)
