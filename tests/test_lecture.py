"""docs/lecture: the exercises tell right from wrong, and the notebook runs from top to bottom."""

import json
import math
import re
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, command, load_script

from tmft.data import read_examples
from tmft.metrics import spearman
from tmft.tasks import TASKS

LECTURE = ROOT / "docs/lecture"
NOTEBOOK = json.loads((LECTURE / "lecture.ipynb").read_text("utf-8"))


@pytest.fixture(scope="module")
def check():
    before = list(sys.path)
    yield load_script("docs/lecture/check.py")
    sys.path[:] = before


def test_every_solution_is_right_and_every_unsolved_exercise_is_told_in_a_line(check, capsys):
    assert check.main(["--solutions"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["right"] * 6 and last == "6 of 6 right"
    assert check.main([]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "0 of 6 right" and len(lines) == 6
    assert all("not done yet: replace `raise NotImplementedError` in" in line for line in lines)


def pearson(x, y):
    return np.corrcoef(x, y)[0, 1]


def ranks_without_ties(x, y):
    return pearson(x.argsort().argsort(), y.argsort().argsort())


def unpaired(first, second, gold):
    generator = np.random.default_rng(0)
    draws = [generator.integers(len(gold), size=(2, len(gold))) for _ in range(500)]
    differences = [
        pearson(first[i], gold[i]) - pearson(second[j], gold[j]) for i, j in draws
    ]  # other pairs for each model
    return np.percentile(differences, [2.5, 97.5])


def slow_states(encoder, ids, mask):
    top, states = encoder.layer, []
    for encoder.layer in range(top + 1):
        states.append(encoder.hidden_state(ids, mask))
    return states


def uncentered(x, y):
    return ((x.T @ y).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())).item()


@pytest.mark.parametrize(
    ("number", "answer", "hint"),
    [
        (1, lambda hidden, mask: hidden.mean(1), "padding counts"),
        (1, lambda hidden, mask: (hidden * mask[:, :, None]).mean(1), "you divide by T"),
        (1, lambda hidden, mask: None, "is there a `return`?"),
        (1, lambda hidden, mask: hidden.mean(2), "the result has the shape (2, 4), expected (2, 3)"),
        (1, lambda hidden, mask: hidden @ mask, "it stops with RuntimeError"),
        (2, lambda u, v, s, m=5: (torch.cosine_similarity(u, v) - s).square().mean(), "not scaled"),
        (2, lambda u, v, s, m=5: (torch.cosine_similarity(u, v) - s / m).abs().mean(), "absolute"),
        (2, lambda u, v, s, m=5: (torch.cosine_similarity(u, v) - s / m).square().sum(), "the sum"),
        (2, lambda u, v, s, m=5: ((u * v).sum(1) - s / m).square().mean(), "the inner product"),
        (2, lambda u, v, s, m=5: (torch.cosine_similarity(u, v) - s / 5).square().mean(), "max_score"),
        (3, pearson, "replace them by their ranks"),
        (3, lambda x, y: pearson(x.argsort(), y.argsort()), "argsort it twice"),
        (3, ranks_without_ties, "the mean of their ranks"),
        (4, lambda encoder, ids, mask: [encoder.hidden_state(ids, mask)], "1 states for 3 layers"),
        (4, slow_states, "attention was computed 6 times"),
        (5, uncentered, "not centered"),
        (5, lambda x, y: 0.5, "it must be 1 if y is x rotated"),
        (6, unpaired, "score both models on the same ones"),
        (6, lambda first, second, gold: (0.2, 0.1), "the lower end comes first"),
        (6, lambda first, second, gold: (0.01, 0.0101), "too narrow"),
    ],
)
def test_a_usual_mistake_is_told_what_is_wrong(number, answer, hint, check, capsys):
    assert check.exercise(number, answer) is False
    printed = capsys.readouterr().out
    assert hint in printed and printed.count("\n") == 1


def test_the_command_checks_any_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def spearman(x, y):\n    import numpy\n    return numpy.corrcoef(x, y)[0, 1]\n"
    )
    done = command("docs/lecture/check.py", "mine.py")
    assert done.returncode == 1 and "3 spearman: this is Pearson's correlation" in done.stdout
    done = command("docs/lecture/check.py", "none.py")
    assert done.returncode == 2 and done.stdout == "no file none.py: name the file with your functions\n"


def test_the_notebook_is_committed_without_outputs():
    code = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 10 and not any(cell["outputs"] or cell["execution_count"] for cell in code)


def test_the_notebook_links_to_files_that_exist():
    text = "".join(line for cell in NOTEBOOK["cells"] for line in cell["source"])
    links = {part.partition(")")[0] for part in text.split("](")[1:]}
    assert len(links) >= 4 and all((LECTURE / link).is_file() for link in links)


def test_what_one_file_adds_to_the_loop_of_the_notebook_is_what_the_page_lists():
    cells = ["".join(cell["source"]) for cell in NOTEBOOK["cells"]]
    number = next(i for i, cell in enumerate(cells) if "def train_and_score(" in cell)
    loop = cells[number].partition("\n    return")[0]
    section = [title for cell in cells[:number] for title in re.findall(r"^## (\d)", cell, re.M)][-1]
    page = (LECTURE / "README.md").read_text("utf-8").split("## From ten lines to one page\n")[1]
    assert f"`train_and_score` in section {section} of the" in page.replace("\n", " ")
    added = re.findall(r"^\| `(\w+)` \|", page, re.M)
    main = (LECTURE / "one_file.py").read_text("utf-8").partition("def main(")[2]
    assert len(added) == 4 and all(name in main and name not in loop for name in added)


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom_and_draws(monkeypatch):
    """With two numbers of layers and one epoch; the kernel has no network to use."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (requirements-dev.txt)")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (requirements-dev.txt)")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (requirements-dev.txt)")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (requirements-dev.txt)")
    monkeypatch.setenv("LECTURE_QUICK", "1")
    notebook = nbformat.read(LECTURE / "lecture.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(LECTURE)}})
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    assert "True\n" in text  # the truncated model is the earlier hidden state
    assert "1 mean_pooling: padding counts" in text
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 6


def test_counting_common_words_has_the_score_that_readme_and_the_lecture_say():
    test = read_examples(TASKS["sample"], "test")
    first, second = ([set(re.findall(r"\w+", text.lower())) for text in column] for column in test.texts)
    shared = [len(a & b) / math.sqrt(len(a) * len(b)) for a, b in zip(first, second, strict=True)]
    assert 100 * spearman(np.array(shared), np.array(test.labels)) == pytest.approx(50.87, abs=0.01)
