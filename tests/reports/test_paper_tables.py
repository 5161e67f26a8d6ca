"""Tables for papers and programs: LaTeX, CSV, and one line per run, seed, split and metric."""

import csv
import io
import math
import shutil
import subprocess

import pytest
from test_report import write_run

from tmft.cli import report_command as report
from tmft.reports.paper_tables import csv_table, escape_latex, file_stem, latex_table
from tmft.reports.run_tables import run_speed, tidy_scores
from tmft.runs.sweeps import group_into_sweeps, read_results

ODD = r'\input{/etc/passwd} $x_1^2$ 50 % & <b> #1 ~ "a" [b] é -- `` {} ± …'
LINES = [["layer", ODD], ["[0]", "1.00 ± 0.10"], ["*", "+0.41"], ["", "-2.14"]]


@pytest.fixture
def runs(tmp_path):
    for layer, seed, dev, test in [
        (0, 0, 0.5, 0.6),
        (0, 1, 0.52, 0.62),
        (3, 0, 0.9, 0.75),
        (3, 1, 0.7, None),
    ]:
        write_run(tmp_path / "runs", layer, seed, dev, test)
    return tmp_path / "runs"


def test_a_table_in_latex_has_rules_and_escaped_cells():
    text = latex_table("A title: 50 %", [["run", "test"], ["a_b", "-1.50"]], "name")
    assert r"\caption{A title: 50 \%}" in text and r"\label{tab:name}" in text
    assert text.count(r"rule") == 3 and r"\begin{tabular}{lr}" in text and r"a\_b & $-1.50$ \\" in text


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
def test_what_latex_would_obey_is_escaped(text, escaped):
    assert escape_latex(text) == escaped


def test_the_tables_of_a_report_compile(runs, tmp_path):
    """With pdflatex of TeX Live, if it is installed, and odd names in a table of their own."""
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed (Debian: apt-get install texlive-latex-recommended)")
    report.main([str(runs), "--out", str(tmp_path / "out")])
    (tmp_path / "out/tables/odd.tex").write_text(latex_table(ODD, LINES, "odd"))
    tables = sorted((tmp_path / "out/tables").glob("*.tex"))
    assert len(tables) == 3
    inputs = "\n".join(rf"\input{{{path}}}" for path in tables)
    (tmp_path / "paper.tex").write_text(
        rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{inputs}\end{{document}}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


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


def test_names_of_files_are_plain_and_differ():
    used = set()
    names = [file_stem(title, used) for title in ("STSB: by layer", "stsb, by layer", "한국어", "../" * 50)]
    assert names == ["stsb-by-layer", "stsb-by-layer-2", "table", "table-2"]
    assert len(file_stem("a" * 500, used)) == 60


def test_the_speed_of_runs_is_the_median_over_their_epochs():
    runs = [{"epochs": [{"pairs_per_second": value} for value in (100.0, 500.0, 120.0)]}, {}]
    assert run_speed(runs) == 120 and run_speed([{}]) is None
    assert run_speed([{"epochs": [{"pairs_per_second": math.nan}, {"pairs_per_second": 0}]}]) is None


def test_runs_that_several_tasks_trained_have_a_line_per_task_and_metric(runs):
    [sweep] = group_into_sweeps(read_results(runs))
    run = sweep.layers[0][0]
    run["test"] = {
        "overall": 0.5,
        "pairs": 3,
        "tasks": {"stsb": {"spearman": 0.4}, "sst5": {"accuracy": 0.6}},
    }
    heading, *lines = tidy_scores([sweep])
    lines = [dict(zip(heading, line, strict=True)) for line in lines]
    found = {line["metric"]: line["score"] for line in lines[2:5]}
    assert found == {"overall": 0.5, "stsb spearman": 0.4, "sst5 accuracy": 0.6}


def test_two_models_are_two_in_the_csv_also_if_their_pre_training_began_with_one(tmp_path):
    scratch = {"data": "mlm", "settings": {"ckpt": None, "from_scratch": "shapes/small", "seed": 0}}
    chains = {
        "runs/mlm": [scratch],
        "runs/rtd": [scratch, scratch | {"data": "rtd"}],
        "runs/other": [scratch],
    }
    for name, chain in chains.items():
        write_run(tmp_path, 1, 0, 0.5, 0.6, sweep=name[5:], provenance=chain, ckpt=name, init="pretrained")
    write_run(tmp_path, 1, 0, 0.5, 0.6, sweep="random", ckpt="runs/mlm", init="random")
    heading, *lines = tidy_scores(group_into_sweeps(read_results(tmp_path)))
    columns = [heading.index(name) for name in ("run", "checkpoint", "init", "pretrained_on")]
    assert sorted({tuple(line[i] for i in columns) for line in lines}) == [
        ("mlm", "runs/mlm", "pretrained", "mlm"),
        ("other", "runs/other", "pretrained", "mlm"),
        ("random", "runs/mlm", "random", ""),
        ("rtd", "runs/rtd", "pretrained", "mlm+rtd"),
    ]
