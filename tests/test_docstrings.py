"""The interface of the library, tmft.__all__: docstrings explain every parameter, and their examples run."""

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import ROOT
from test_rings import TREES

import tmft

# Parameters of these types need no word: the docstring of the type explains them.
EXPLAINED_TYPES = set(
    "SentenceEncoder Task Examples Recipe Objective TrainingTask PackedBatch Embedder".split()
)
INHERITED = {"state_dict", "load_state_dict", "train", "eval"}  # torch explains them


def public_callables() -> Iterator[tuple[str, Any, str]]:
    """Triples (name, function or class, the text that has to explain its parameters)."""
    for name in tmft.__all__:
        value = getattr(tmft, name)
        if inspect.isclass(value):
            yield name, value.__init__, f"{value.__doc__}\n{inspect.getsource(value)}"
            for method_name, method in vars(value).items():
                method = getattr(method, "__func__", method)
                if (
                    inspect.isfunction(method)
                    and not method_name.startswith("_")
                    and method_name not in INHERITED
                ):
                    yield f"{name}.{method_name}", method, method.__doc__ or ""
        elif callable(value):
            yield name, value, value.__doc__ or ""


PUBLIC = {name: (value, text) for name, value, text in public_callables()}


def unexplained(function: Any, text: str) -> list[str]:
    """Return the parameters of a function that a text does not name."""
    parameters = inspect.signature(function).parameters.values()
    if re.search(r"[Pp]arameters(?: are|:) those of ", text):
        return []
    return [
        one.name
        for one in parameters
        if one.name not in ("self", "cls")
        and not re.search(rf"\b{one.name}\b", text)
        and not set(re.findall(r"\w+", str(one.annotation))) & EXPLAINED_TYPES
        and not one.name.startswith("_")
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_explains_every_parameter(name):
    value, text = PUBLIC[name]
    assert text.strip() and unexplained(value, text) == []


def test_every_module_class_and_function_says_what_it_is():
    nodes = [(name, node) for name, tree in TREES.items() for node in [tree, *tree.body]]
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [(name, node) for name, node in nodes if isinstance(node, kinds) and name != "tmft.cli"]
    names = [f"{name}.{getattr(node, 'name', '')}" for name, node in nodes if not ast.get_docstring(node)]
    # the parts of commands are explained by --help
    assert [name for name in names if not name.startswith(("tmft.cli.", "tmft.__"))] == []


def test_import_tmft_imports_neither_torch_nor_numpy():
    program = "import sys, tmft; print(*{'torch', 'numpy', 'tokenizers'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True).strip() == ""


def test_every_name_of_the_interface_is_where_it_is_said_to_be():
    for name, module in tmft.MODULES.items():
        assert getattr(tmft, name) is getattr(importlib.import_module(f"tmft.{module}"), name)
    with pytest.raises(AttributeError, match="module 'tmft' has no attribute 'encode'"):
        _ = tmft.encode


# ----------------------------------------------------------------------------------------------- examples


def examples() -> Iterator[doctest.DocTest]:
    """Return the examples in all docstrings."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in TREES:
        if not name.endswith("__main__"):
            module = importlib.import_module(name)
            yield from (test for test in finder.find(module, name) if test.examples)


EXAMPLES = {test.name: test for test in examples()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_shows(name, monkeypatch):
    """From the folder of the repository, as in README.md, and without the network."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    report: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(EXAMPLES[name], out=report.append)
    assert result.attempted > 0 and not result.failed, "".join(report)
