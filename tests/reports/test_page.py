"""What is written of a page: Markdown, LaTeX that compiles, CSV of numbers; a name is never code."""

import csv
import io
import json
import math
import shutil
import subprocess
from datetime import date

import numpy as np
import pytest
from test_report import write_run

from tmft import InputError
from tmft.cli import report_command as report
from tmft.reports.page import Page, csv_table, escape_latex, latex_table
from tmft.reports.report import make_report
from tmft.runs.run_result import PREDICTIONS_FILE

ODD = r'\input{/etc/passwd} $x_1^2$ 50 % & <b> #1 ~ "a" [b] é -- `` {} ± …'
LINES = [["layer", ODD], ["[0]", "1.00 ± 0.10"], ["*", "+0.41"], ["", "-2.14"]]


@pytest.fixture
def runs(tmp_path):
    """Two sweeps with predictions and two epochs; one layer has an undefined score."""
    epochs = [{"loss": 0.2 / n, "dev": {"spearman": 0.1 * n}, "pairs_per_second": 9.0} for n in (1, 2)]
    for sweep in ("one", ODD.replace("/", "∕")):
        for layer, seed, test in [(0, 0, 0.6), (0, 1, 0.62), (1, 0, 0.7), (3, 0, 0.75), (3, 1, None)]:
            path = write_run(tmp_path / "runs", layer, seed, 0.5, test, sweep, more={"epochs": epochs})
            predicted = np.random.default_rng(layer).normal(size=9)
            np.savez(path.with_name(PREDICTIONS_FILE), predicted=predicted, labels=np.arange(9.0))
    return tmp_path / "runs"


def test_a_page_has_its_blocks_in_order_and_names_its_files(tmp_path):
    def draw(paths):
        for path in paths:
            path.write_text("<svg><title>x</title><defs></defs></svg>")

    def fail(paths):
        raise InputError("nothing to draw")

    page = Page(tmp_path / "new", "A title")
    page.add_text("Some <words>.")
    page.add_table("scores", [["layer", "score"], ["0", "50.00"]])
    page.add_figure("the curve", draw)
    page.add_figure("none", fail)
    page.add_warning("a | b")
    page.write("study", {"score": math.nan})
    files = {path.name: path.read_text() for path in page.files}
    table = "| layer | score |\n| --- | ---: |\n| 0 | 50.00 |\n"
    names = ["the-curve.svg", "the-curve.pdf", "study.md", "study.json", "scores.tex", "scores.csv"]
    assert list(files) == names and files["scores.csv"] == "layer,score\n0,50.00\n"
    assert files["study.md"] == (
        f"# A title\n\nSome \\<words\\>.\n\n### scores\n\n{table}\n![the curve](the-curve.svg)\n\na \\| b\n"
    )
    assert json.loads(files["study.json"]) == {"score": None}
    assert page.tables == {"scores": [["layer", "score"], ["0", "50.00"]]}
    assert page.notes == ["nothing to draw", "a | b"]
    assert {path.name for path in (tmp_path / "new").rglob("*.*")} == set(files)


def test_a_report_of_runs_with_odd_names_has_figures_and_the_same_bytes_twice(runs, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    written = []
    for name in ("first", "second"):
        report.main([str(runs), "--out", str(tmp_path / name)])
        files = {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        printed = capsys.readouterr().out.splitlines()[-1]
        assert printed == f"wrote {tmp_path / name}/report.md and {len(files) - 1} other files beside it"
        written.append(files)
    first, second = written
    assert first == second
    figures = [name for name in first if name.endswith(".svg")]
    assert len(figures) == 2 + 1 + 2 * 2  # by layer on dev and test, by size, and the epochs of both sweeps
    page = first["report.md"].decode()
    assert all(f"]({name})" in page for name in figures) and "\\<b\\>" in page and " <b> " not in page
    assert "each layer against the whole model, on test" in page and "A paired bootstrap" in page
    assert not [name for name, content in first.items() if name.endswith(".tex") and rb"\input" in content]


@pytest.mark.parametrize(("num_layers", "num_epochs"), [(1, 1), (2, 1), (2, 2)])
def test_a_figure_is_drawn_of_what_has_more_than_one_point(num_layers, num_epochs, tmp_path, monkeypatch):
    """Of one layer and one epoch there are tables alone, also of models that evaluate.py has scored."""
    epochs = [{"loss": 0.2, "dev": {"spearman": 0.1}}] * num_epochs
    for layer in range(num_layers):
        write_run(tmp_path, layer, 0, 0.5, 0.6, "one", more={"epochs": epochs})
    measures = {"stsb": {"uniformity": -2.0, "alignment": 0.5, "spearman": 0.6}}
    content = {"model": "x", "pooling": "mean", "parameters": 9}
    layers = {str(layer): measures for layer in range(num_layers)}
    (tmp_path / "scores.json").write_text(json.dumps(content | {"layers": layers}))
    figures = []
    monkeypatch.setattr(Page, "add_figure", lambda page, title, draw: figures.append(title))
    page = make_report(tmp_path, tmp_path / "report", "tmft 1.2.3")
    each = "each run at the layer that is best on dev, and whole" if num_layers > 1 else "each run"
    assert list(page.tables) == [f"stsb: {each}", "one: by layer", "models scored by evaluate.py"]
    curves = ["stsb: score by layer, dev", "stsb: score by layer, test", "stsb: score by parameters"]
    training = ["one: loss by epoch", "one: dev by epoch"] if num_epochs > 1 else []
    models = ["models: alignment and uniformity"]
    assert figures == ([*curves, *training, *models] if num_layers > 1 else [])
    about = f"# Runs in {tmp_path.name}\n\n{date.today().isoformat()}, tmft 1.2.3\n\nLayer l means"
    assert (tmp_path / "report/report.md").read_text().startswith(about)


def test_the_tables_of_a_report_compile(runs, tmp_path):
    """With pdflatex of TeX Live, if it is installed, and odd names in a table of their own."""
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed (Debian: apt-get install texlive-latex-recommended)")
    report.main([str(runs), "--out", str(tmp_path / "out")])
    (tmp_path / "out/tables/odd.tex").write_text(latex_table(ODD, LINES, "odd"))
    tables = sorted((tmp_path / "out/tables").glob("*.tex"))
    assert len(tables) >= 4
    inputs = "\n".join(rf"\input{{{path}}}" for path in tables)
    (tmp_path / "paper.tex").write_text(
        rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{inputs}\end{{document}}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("50 % of a_b & c", r"50 \% of a\_b \& c"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("$x^2$~", r"\$x\textasciicircum{}2\$\textasciitilde{}"),
        ("+0.41", "$+0.41$"),
        ("[0] *", "{[}0] {*}"),
        ("two\nlines", "two?lines"),
    ],
)
def test_what_latex_would_obey_is_escaped_in_a_table_with_rules(text, escaped):
    assert escape_latex(text) == escaped
    table = latex_table("A title: 50 %", [["run", "test"], [text, "1"]], "name")
    assert r"\caption{A title: 50 \%}" in table and r"\label{tab:name}" in table
    assert table.count(r"rule") == 3 and r"\begin{tabular}{lr}" in table and rf"{escaped} & 1 \\" in table


def test_the_cells_of_a_csv_are_numbers_or_texts():
    lines = [
        ["run", "score", "other (2024)", "ours"],
        ["a, b", "61.00 ± 1.41", "-2.14", "66.1 (65.9)"],
        ['"quoted" (2)', "nan", "–", "– (1)"],
    ]
    assert list(csv.reader(io.StringIO(csv_table(lines)))) == [
        ["run", "score", "score, std", "other (2024)", "ours", "ours, published"],
        ["a, b", "61.00", "1.41", "-2.14", "66.1", "65.9"],
        ['"quoted" (2)', "nan", "", "", "", "1"],
    ]


@pytest.mark.parametrize("cell", ["=1+1", "@sum", "+cmd", "-cmd|x", "=HYPERLINK(1)"])
def test_no_spreadsheet_takes_a_name_for_a_formula(cell):
    assert csv_table([["run"], [cell]]).splitlines()[1].strip('"') == f"'{cell}"


def test_names_of_files_are_plain_and_differ(tmp_path):
    page = Page(tmp_path, "x")
    names = [page.file_stem(title) for title in ("STSB: by layer", "stsb, by layer", "한국어", "../" * 50)]
    assert names == ["stsb-by-layer", "stsb-by-layer-2", "table", "table-2"]
    assert len(page.file_stem("a" * 500)) == 60
