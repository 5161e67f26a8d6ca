"""index.html, the report for browsers: what is in it, in the file and in a real browser."""

import csv
import html.parser
import json
import math
import re
import shlex
import sys
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, find_browser
from test_report import result_of

import tmft
from tmft.cli import report_command as report
from tmft.data import read_examples
from tmft.reports.run_commands import repeat_command
from tmft.runs.predictions import PREDICTIONS_FILE
from tmft.runs.run_result import write_result
from tmft.runs.sweeps import group_into_sweeps, read_results
from tmft.tasks import TASKS

EVIL = """<script>document.title = "broken"</script>"><img src=x onerror="document.title = 'broken'">'&amp;"""
LONG = "x" * 200
SAMPLE = read_examples(TASKS["sample"], "test")


def write_run(folder, sweep, layer, seed, dev, test, **changes) -> None:
    """A finished run on the sample with three epochs, as train.py writes it."""
    task = {"metric": "spearman", "objective": "cosine_mse", "files": "sample/{split}.tsv", "eval_files": ""}
    task |= {"columns": ["sentence1", "sentence2"], "label": "score"}
    options = {"epochs": 3, "batch_size": 32, "lr": 3e-4}
    result = result_of(layer, seed, dev, test, sweep, ckpt="data/twins/mlm", task=task, **options)
    arguments = {"ckpt": ["data/twins/mlm"], "task": "sample", "lr": 3e-4, "layer": "all", "num_seeds": 2}
    result |= {
        "data": "sample",
        "arguments": arguments,
        "digests": {"data": {"test": SAMPLE.digest}},
        "epochs": [
            {"epoch": n, "loss": 0.1 / n, "dev": {"spearman": dev}, "pairs_per_second": 100.0 / (1 + layer)}
            for n in (1, 2, 3)
        ],
        "chosen_epoch": 3,
        "dev": {"spearman": dev},
        "test": {"pairs": len(SAMPLE), "spearman": test},
        "seconds": 9.0,
        "precision": "fp32",
        "pooling": "mean",
        "environment": {"device": "x86_64", "threads": 1, "versions": {"torch": "2"}, "commit": "abcdef"},
    } | changes
    where = folder / f"{len(list(folder.glob('*')))}"
    where.mkdir(parents=True)
    write_result(where, result)
    noise = np.random.default_rng(seed).normal(size=len(SAMPLE))
    predicted = np.asarray(SAMPLE.labels) + (4 - 3 * test) * noise
    np.savez(where / PREDICTIONS_FILE, predicted=predicted, labels=np.asarray(SAMPLE.labels))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two sweeps: layers 0 to 3 with two seeds; layers 1 and 3 with one and two threads."""
    folder = tmp_path_factory.mktemp("page") / "runs"
    for layer, dev in enumerate((0.5, 0.6, 0.7, 0.55)):
        for seed in (0, 1):
            write_run(folder, "one", layer, seed, dev + 0.01 * seed, dev - 0.02 * seed)
    for layer, dev in ((1, 0.4), (3, 0.45)):
        write_run(folder, "two", layer, 0, dev, dev, environment={"device": "x86_64", "threads": 2})
    return folder


@pytest.fixture(scope="module")
def page(runs) -> str:
    return page_of(runs)


def page_of(folder: Path, name: str = "report") -> str:
    report.main([str(folder), "--out", str(folder.parent / name)])
    return (folder.parent / name / "index.html").read_text()


class Outline(html.parser.HTMLParser):
    """The tags, attributes and text of a page, and what is not closed."""

    VOID = {"meta", "link", "br", "img", "input", "hr"}

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.texts.append(data)


# --------------------------------------------------------------------------------------------- the file


def test_the_page_is_one_file_that_loads_nothing(runs, page):
    outline = Outline(page)
    assert outline.open == []
    assert not [tag for tag, _ in outline.tags if tag in ("link", "iframe", "object", "base", "form")]
    attributes = [pair for _, attributes in outline.tags for pair in attributes.items()]
    assert not [name for name, _ in attributes if name in ("srcset", "action", "style")]
    assert not re.search(r"@import|url\((?!#)", page)
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {link.partition(",")[0] for name, link in attributes if name == "src"} == {
        "data:image/svg+xml;base64"
    }
    for link in [value for name, value in attributes if name == "href"]:
        assert link[1:] in ids if link[0] == "#" else (runs.parent / "report" / link).is_file()
    policy = next(a["content"] for tag, a in outline.tags if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy


def test_the_same_runs_give_the_same_files_twice(runs, page):
    page_of(runs, "second")
    first, second = (
        {f.name: f.read_bytes() for f in (runs.parent / n).rglob("*.*")} for n in ("report", "second")
    )
    assert first == second and page.encode() == first["index.html"]


def test_all_scores_of_all_runs_are_in_one_file(runs, page):
    with open(runs.parent / "report/runs.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 10 * 2  # runs, splits
    assert {(line["layer"], line["pairs_per_second"]) for line in lines} == {
        (str(layer), str(100.0 / (1 + layer))) for layer in range(4)
    }


def test_the_page_says_what_was_found_in_words(page):
    text = " ".join(Outline(page).texts).replace("  ", " ")
    assert f"{date.today().isoformat()}, tmft {tmft.__version__}" in text
    assert "10 fine-tuning runs in 2 sweeps on sample" in text
    assert "sample is a task for first runs" in text
    assert "one: dev chooses 2 of 3 layers, with Spearman 69.00 ± 1.41 on test (2 seeds)" in text
    assert "the whole model has 54.00 ± 1.41" in text
    assert text.count("may be chance") == 1
    assert "sample: are the differences on test significant?" in text and "What was run" in text
    recipe = "recipe: cosine_mse; 3 epochs; batches of 32; learning rate 0.0003; pooling mean"
    about = "checkpoint: data/twins/mlm", f"data: sample; {len(SAMPLE)} test examples", recipe
    about += "layers and seeds: layers 1, 3 of 3; 1 seed", "measured on: x86_64; 2 threads; fp32"
    assert " ".join(about) in text and "made with: commit abcdef; torch 2" in text


def test_every_figure_has_words_and_most_have_a_table(page):
    figures = [a for tag, a in Outline(page).tags if tag == "img"]
    assert len(figures) == 2 + 1 + 1 + 2 * 2  # by layer; size; differences; epochs
    assert all(len(figure["alt"]) > 10 for figure in figures)
    assert page.count("<summary>Table: ") == 2
    assert len(re.findall(r'<code class="copyable"[^>]*>(.*?)</code>', page)) == 2  # each sweep


def test_without_matplotlib_one_line_says_what_to_install_and_the_tables_stand(runs, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = page_of(runs, "plain")
    line = "figures need matplotlib, which is not installed: pip install matplotlib"
    assert capsys.readouterr().out.count(line) == 1 and page.count(line) == 1
    assert "<img" not in page and "one: by layer" in page
    assert not list((runs.parent / "plain").glob("*.svg"))


@pytest.mark.filterwarnings("error::UserWarning")  # of matplotlib, that a name left no room for the axes
def test_names_of_strangers_are_shown_and_obeyed_by_nobody(strange_runs):
    page = (strange_runs.parent / "report/index.html").read_text()
    outline = Outline(page)
    assert outline.open == [] and [tag for tag, _ in outline.tags].count("script") == 1
    assert all(attributes["src"][:5] == "data:" for tag, attributes in outline.tags if tag == "img")
    assert not [name for _, attributes in outline.tags for name in attributes if name.startswith("on")]
    assert "\x1b" not in page and """<script>document.title = "broken"</script>""" in "".join(outline.texts)
    commands = re.findall(r'<code class="copyable"[^>]*>(.*?)</code>', page, re.DOTALL)
    for line in [line for command in commands for line in command.split("\n")]:
        words = shlex.split(html.unescape(re.sub("<[^>]*>", "", line)))
        assert words[:2] == ["python", "train.py"]
        assert EVIL not in [word.lstrip("-") for word in words[::2]][1:]


@pytest.fixture(scope="module")
def strange_runs(tmp_path_factory):
    """Runs with HTML, shell commands and 200 characters as their names, and their report."""
    folder = tmp_path_factory.mktemp("strange") / "runs"
    odd = {"data": EVIL.replace("/", "∕"), "pooling": EVIL, "precision": EVIL, "num_hidden_layers": 1}
    odd["environment"] = {"device": EVIL, "threads": 1, "versions": {"torch": EVIL}, "commit": EVIL}
    odd["arguments"] = {"task": EVIL, EVIL: "x", "run_name": "a'; rm -rf /\n\x1b[31m"}
    for sweep in (EVIL, LONG):
        for layer in (0, 1):
            write_run(folder, sweep, layer, 0, 0.5 + layer / 10, 0.5, **odd)
    content = {"model": EVIL, "pooling": EVIL, "layers": {"1": {"sts12": {"spearman": 0.5}}}, "parameters": 9}
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text(json.dumps(content))
    page_of(folder)
    return folder


def test_a_single_run_and_undefined_scores_have_a_page(tmp_path):
    """Of one layer, one seed and one epoch there are sentences, where a curve would have one point."""
    epoch = {"epoch": 1, "loss": 0.1533, "dev": {"spearman": 0.5}, "pairs_per_second": 843.0}
    write_run(tmp_path / "single", "one", 2, 0, 0.5, 0.6, epochs=[epoch], chosen_epoch=1)
    page = page_of(tmp_path / "single", "first")
    text = " ".join(Outline(page).texts)
    assert "one, with 2 of 3 layers: Spearman 60.00 on test (1 seed)." in text and "significant" not in text
    assert "one was trained for one epoch. layer 2: loss 0.1533, dev 50.00." in text
    assert "3.00 843" in " ".join(text.split()) and "<img" not in page
    for layer in (1, 2):
        write_run(tmp_path / "nan", "one", layer, 0, math.nan, math.nan)
    assert "no figure of sample: score by layer: no score is defined" in page_of(tmp_path / "nan", "second")


# --------------------------------------------------------------------------------------- parts of the page


def test_the_command_of_several_seeds_and_layers_and_none_of_runs_with_examples_of_python(runs):
    one, two = group_into_sweeps(read_results(runs))
    assert repeat_command([run for runs in one.layers.values() for run in runs]) == (
        "python train.py --ckpt data/twins/mlm --layer 0,1,2,3 --task sample --lr 0.0003 --num-seeds 2"
    )
    assert " --layer 1,3 " in repeat_command([run for runs in two.layers.values() for run in runs])
    one.layers[2][1]["settings"]["seed"] = 7
    assert [line[-1] for line in repeat_command(one.layers[2]).split("\n")] == ["0", "7"]
    two.layers[1][0]["settings"]["keep_layers"] = [0]  # an option of its own
    assert "--layer" not in repeat_command(two.layers[1])
    del one.layers[2][0]["arguments"]["task"]
    assert repeat_command(one.layers[2]) == ""


# ------------------------------------------------------------------------------------------ in a browser

SORTED = """
(() => {
  const table = [...document.querySelectorAll("table")].find((t) => t.ariaLabel.includes(NAME));
  const heading = [...table.querySelectorAll("thead th")].find((th) => th.textContent.includes(COLUMN));
  const button = heading.querySelector("button");
  const column = () => [...table.tBodies[0].rows].map((row) => row.cells[heading.cellIndex].textContent);
  const states = [];
  for (let click = 0; click < 2; click++) {
    button.focus(); button.click();
    states.push([heading.getAttribute("aria-sort"), column()]);
  }
  return states;
})()
"""


@pytest.fixture(scope="module")
def browser():
    find_browser()
    with Browser() as running:
        yield running


def test_the_page_works_in_a_browser(browser, runs, page, tmp_path):
    """Opened from disk without network: it sorts and prints."""
    path = runs.parent / "report/index.html"
    browser.messages.clear()
    browser.requests.clear()
    browser.open(path)
    assert browser.messages == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [path.as_uri()]

    ask = SORTED.replace("NAME", '"one: by layer"').replace("COLUMN", '"dev"')
    (first, down), (second, up) = browser.evaluate(ask)
    assert (first, second) == ("descending", "ascending")
    assert [cell[:2] for cell in down] == ["70", "60", "55", "50"] and up == down[::-1]

    browser.open(path)
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.className") == "skip"
    browser.print_pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF") and browser.messages == []


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window_even_with_names_of_200_characters(
    browser, strange_runs, width, script
):
    path = strange_runs.parent / "report/index.html"
    browser.messages.clear()
    browser.open(path, width=width, script=script)
    assert browser.messages == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.title") == "Runs in runs"
    browser.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.open(path)  # scripts run again for the next test
