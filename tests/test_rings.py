"""Which file may import which, read from the syntax trees: the method in the middle, rings around it.

The files of tmft/ are the method. They import each other, io/, speed/ and embedding/, and nothing else. Every
other package stands in a ring around them, and imports only from packages before its own.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from conftest import ROOT

from tmft.losses.objectives import OBJECTIVES

METHOD = {path.stem for path in ROOT.glob("tmft/*.py")} - {"__init__", "__main__"}
TAKEN_ON_TRUST = ("io", "speed", "embedding")  # as torch is: nobody has to read them to understand the method
# The packages around the method, from the inside to the outside; a line is a ring.
RINGS = (
    "models checkpoints",  # open and write the files of the world
    "losses training pretraining",  # plug into the loop
    "serving datasets evaluation training_free students export",  # what one does with a model
    "runs reports",  # experiments
    "cli",  # the command line
)
ORDER = [package for ring in RINGS for package in ring.split()]

# Imports that go outwards: (file, imported file) -> reason.
OUTWARD = {
    ("sentence_encoder", "checkpoints.sentence_folder"): "the door: from_pretrained and save_pretrained",
    ("losses.objectives", "students.distillation"): "the registry names every loss",
}
COMMANDS = {"train", "cka", "evaluate"}
REFERENCES = {"transformers", "sentence_transformers", "sklearn"}
ON_DEMAND = {"matplotlib", "httpx", "huggingface_hub"}  # slow to import, and most runs need none of them


def name_of(path: Path) -> str:
    """tmft/io/text.py -> tmft.io.text; tmft/files/__init__.py -> tmft.files"""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


TREES = {name_of(path): ast.parse(path.read_text("utf-8")) for path in sorted(ROOT.glob("tmft/**/*.py"))}
OPTION, COMMAND = re.compile(r"(?<![\w-])--[a-z]"), re.compile(r"(\S+\.py|python -m tmft)\b.*")


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that the imports anywhere in a tree name, also those that they name as part of a folder.

    What is imported for annotations alone, in `if TYPE_CHECKING`, is left out.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import, line {node.lineno}"
            for alias in node.names:
                part = f"{node.module}.{alias.name}"
                yield part if part in TREES else node.module
        yield from imported(node)


def on_import(tree: ast.Module) -> ast.Module:
    """What runs when a module is imported: without its functions and classes."""
    definitions = ast.FunctionDef | ast.ClassDef
    return ast.Module([node for node in tree.body if not isinstance(node, definitions)], [])


def place(module: str) -> int:
    """The number of the package of a module, 0 for the method and what it takes on trust."""
    package = module.removeprefix("tmft.").partition(".")[0]
    return 0 if package in METHOD or package in TAKEN_ON_TRUST else 1 + ORDER.index(package)


USES = {
    module: sorted({name for name in imported(tree) if name in TREES}) for module, tree in TREES.items()
}  # of each module those of tmft that it imports


@pytest.mark.parametrize("module", [module for module in TREES if module not in ("tmft", "tmft.__main__")])
def test_imports_go_inwards(module):
    """A file of the method imports the method and what it takes on trust; a ring imports rings inside it."""
    if module.startswith("tmft.cli"):  # the outermost ring, which alone may import tmft itself
        return
    outward = {used.removeprefix("tmft.") for used in USES[module] if place(used) > place(module)}
    allowed = {used for importer, used in OUTWARD if importer == module.removeprefix("tmft.")}
    assert outward == allowed


def test_no_module_imports_itself_round_a_circle():
    """Not within a package either, and not by an import inside a function."""
    try:
        TopologicalSorter(USES).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_a_file_name_occurs_once():
    """But for cka.py: the command and the file that it explains."""
    names = Counter(path.stem for path in [*ROOT.glob("tmft/**/*.py"), *ROOT.glob("*.py")])
    repeated = {name for name, count in names.items() if count > 1}
    assert repeated == {"__init__", "cka"}


@pytest.mark.parametrize("module", TREES)
def test_the_library_imports_no_command_and_no_other_library_of_models_and_slow_ones_where_they_are_used(
    module,
):
    anywhere, at_once = (
        {name.partition(".")[0] for name in imported(tree)}
        for tree in (TREES[module], on_import(TREES[module]))
    )
    assert not anywhere & (COMMANDS | REFERENCES) and not at_once & ON_DEMAND


LIBRARY = [module for module in TREES if not module.startswith(("tmft.cli", "tmft.__main__"))]


@pytest.mark.parametrize("module", LIBRARY)
def test_the_library_knows_no_command_line(module):
    assert "argparse" not in imported(TREES[module])


@pytest.mark.parametrize("module", LIBRARY)
def test_messages_of_the_library_speak_of_parameters_not_of_options(module):
    """InputError.as_cli_message makes --lr of lr. A whole command, to be run next, may have options."""
    calls = [node for node in ast.walk(TREES[module]) if isinstance(node, ast.Call)]
    messages = [ast.unparse(node) for node in calls if getattr(node.func, "id", "") == "InputError"]
    assert not [message for message in messages if OPTION.search(COMMAND.sub("", message))]


@pytest.mark.parametrize("module", TREES)
def test_no_code_compares_the_name_of_an_objective(module):
    """An objective says what it needs, in class attributes and methods of Objective, and others ask it."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Compare | ast.MatchValue):
            constants = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
            assert not constants & OBJECTIVES.keys(), f"line {node.lineno}: {ast.unparse(node)}"


def test_the_training_loop_has_one_subject():
    """`fit` has no branch on a feature: its one `if` is the step that fp16 may skip."""
    [tree] = [node for node in TREES["tmft.loop"].body if getattr(node, "name", "") == "fit"]
    branches = [node for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp | ast.Match)]
    assert [ast.unparse(node.test) for node in branches] == ["amp.step(optimizer)"]
