"""The plan of the house, read from its syntax trees: who may import whom, and what stays in the commands.

Open files are the method, folders carry or use it; a module imports from rooms that stand before its own.
"""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from conftest import ROOT

# A room is a folder of tmft/, or one of its open files. What stands later knows more.
ORDER = (
    "errors speed device rows pooling encoder families files checkpoint extraction data metrics asked "
    "sentence frozen heads contrastive distillation nested objectives multitask optimizers state "
    "training pretraining cka serving datasets runs evaluation"
).split()
READING_PATH = (
    "train.py tmft/data.py tmft/sentence_encoder.py tmft/packing.py tmft/pooling.py tmft/models/bert.py tmft/checkpoints/load.py "
    "tmft/losses/registry.py tmft/training/loop.py tmft/metrics.py"
).split()
COMMANDS = {"train", "cka", "evaluate"}
REFERENCES = {"transformers", "sentence_transformers", "sklearn"}
ON_DEMAND = {"matplotlib", "httpx", "huggingface_hub"}  # slow to import, and most runs need none of them


def name_of(path: Path) -> str:
    """tmft/io/tsv.py -> tmft.io.tsv; tmft/files/__init__.py -> tmft.files"""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


TREES = {name_of(path): ast.parse(path.read_text("utf-8")) for path in sorted(ROOT.glob("tmft/**/*.py"))}
OPTION, COMMAND = re.compile(r"(?<![\w-])--[a-z]"), re.compile(r"\S+\.py\b.*")


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that the imports anywhere in a tree name, also those that they name as part of a folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import, line {node.lineno}"
            for alias in node.names:
                part = f"{node.module}.{alias.name}"
                yield part if part in TREES else node.module


def on_import(tree: ast.Module) -> ast.Module:
    """What runs when a module is imported: without the bodies of its functions."""
    inside = {
        id(below)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for below in ast.walk(node)
    }
    body = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and id(node) not in inside]
    return ast.Module([node for node in body if isinstance(node, ast.Import | ast.ImportFrom)], [])


def room(module: str) -> str:
    """tmft.io.tsv -> files; the package itself -> its name"""
    return module.removeprefix("tmft.").partition(".")[0]


USES = {
    module: sorted({name for name in imported(tree) if name in TREES}) for module, tree in TREES.items()
}  # of each module those of tmft that it imports


def messages(tree: ast.AST) -> Iterator[str]:
    """The text of every InputError that is made, with {...} where a value is put in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "InputError":
            yield "".join(map(text_of, node.args))


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    inside = "".join(map(text_of, ast.iter_child_nodes(node)))
    return f"{{{inside}}}" if isinstance(node, ast.FormattedValue) else inside


def lines_of(*paths: str) -> int:
    return sum((ROOT / path).read_bytes().count(b"\n") for path in paths)


@pytest.mark.parametrize("module", [module for module in TREES if module != "tmft"])
def test_a_module_imports_only_from_rooms_before_its_own(module):
    here = ORDER.index(room(module))
    upward = [used for used in USES[module] if used == "tmft" or ORDER.index(room(used)) > here]
    assert not upward, f"{module} imports {', '.join(upward)}, which stands later"


def test_no_module_imports_itself_round_a_circle():
    """Not within a room either, and not by an import inside a function."""
    try:
        TopologicalSorter(USES).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("module", TREES)
def test_the_library_imports_no_command_and_no_other_library_of_models(module):
    tops = {name.partition(".")[0] for name in imported(TREES[module])}
    assert not tops & (COMMANDS | REFERENCES)


@pytest.mark.parametrize("module", TREES)
def test_what_most_runs_do_not_need_is_imported_where_it_is_used(module):
    tops = {name.partition(".")[0] for name in imported(on_import(TREES[module]))}
    assert not tops & ON_DEMAND


@pytest.mark.parametrize("module", TREES)
def test_arguments_of_a_command_line_stay_in_the_commands(module):
    """A method such as __torch_function__ has the parameters that its caller gives it."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.FunctionDef | ast.Lambda) and not getattr(node, "name", "").startswith("__"):
            parameters = [part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)]
            assert "args" not in parameters, f"a parameter args, line {node.lineno}"
        names = [getattr(node, key, None) for key in ("id", "attr", "name", "value")]
        assert not any(isinstance(name, str) and "Namespace" in name for name in names), node.lineno


@pytest.mark.parametrize("module", [module for module in TREES if module != "tmft.errors"])
def test_messages_of_the_library_speak_of_parameters_not_of_options(module):
    """InputError.of_command makes --lr of lr. A whole command, to be run next, may have options."""
    found = [message for message in messages(TREES[module]) if OPTION.search(COMMAND.sub("", message))]
    assert not found


def test_the_reading_path_is_short():
    assert lines_of(*READING_PATH) < 1300, {path: lines_of(path) for path in READING_PATH}


def test_cka_is_one_idea():
    assert lines_of("cka.py") < 200
