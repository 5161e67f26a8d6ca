"""The size of the project, which only falls: a number here is lowered by whoever makes it smaller.

A commit that has to raise a number says in its message what left for it. CONTRIBUTING.md has the three
questions that decide whether something comes in at all.
"""

import argparse
import ast
import importlib
from pathlib import Path

import pytest
from conftest import ROOT

from tmft.cli.entry_points import COMMANDS, module_name

# fmt: off
# package of tmft ("." are the files of the method) -> number of files, of lines
PACKAGES = {
    ".":              (20, 4454),
    "checkpoints":    (14, 2671),
    "cli":            (13, 1593),
    "datasets":       (7, 1477),
    "embedding":      (6, 626),
    "evaluation":     (9, 1328),
    "export":         (5, 940),
    "io":             (8, 1153),
    "losses":         (6, 619),
    "models":         (14, 2772),
    "pretraining":    (5, 841),
    "reports":        (10, 1358),
    "runs":           (12, 2411),
    "serving":        (3, 330),
    "speed":          (8, 1098),
    "students":       (6, 908),
    "training":       (6, 692),
    "training_free":  (5, 1026),
}
STATEMENTS = 12_736  # of tmft, without docstrings
TEST_LINES = 27_839  # with benches and harnesses
PAGES, WORDS = 18, 24_568  # of docs/, without papers.md, which grows with what the papers have
# command -> number of options
OPTIONS = {
    "train": 60,
    "evaluate": 27,
    "cka": 13,
    "encode": 15,
    "predict": 4,
    "serve": 15,
    "export": 16,
    "student": 6,
    "report": 2,
    "tables": 14,
    "data": 3,
}
# fmt: on


def count_lines(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def count_statements(path: Path) -> int:
    """The statements of a file; a docstring is none."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [node for node in nodes if isinstance(node, documented) and ast.get_docstring(node)]
    return sum(isinstance(node, ast.stmt) for node in nodes) - len(docstrings)


def test_no_package_has_more_files_or_lines():
    sizes = {}
    for path in sorted((ROOT / "tmft").rglob("*.py")):
        package = path.parent.relative_to(ROOT / "tmft").as_posix()
        files, lines = sizes.get(package, (0, 0))
        sizes[package] = files + 1, lines + len(path.read_text(encoding="utf-8").splitlines())
    larger = {
        name: size
        for name, size in sizes.items()
        if any(now > before for now, before in zip(size, PACKAGES.get(name, (0, 0)), strict=True))
    }
    assert not larger, "a package has grown: what leaves for it?"
    assert sum(map(count_statements, (ROOT / "tmft").rglob("*.py"))) <= STATEMENTS


def test_tests_have_no_more_lines_and_docs_no_more_pages_and_words():
    assert count_lines(ROOT / "tests") <= TEST_LINES
    pages = [*ROOT.glob("docs/*.md"), ROOT / "docs/lecture/README.md"]
    pages.remove(ROOT / "docs/papers.md")
    assert len(pages) <= PAGES
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= WORDS


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_has_more_options(command, monkeypatch):
    parsers = []

    def stop(parser, *_):
        parsers.append(parser)
        raise SystemExit

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
    with pytest.raises(SystemExit):
        importlib.import_module(module_name(command)).main([])
    options = [action for action in parsers[0]._actions if action.option_strings]
    assert len(options) <= OPTIONS[command], "a command has one more option: which one leaves?"
