"""The interface explains its parameters and what it raises; everything else says in a sentence what it does.

Examples in docstrings run, wherever they are. The parts of the commands (tmft/cli/) need no docstring: what
they take is explained by --help.
"""

import ast
import doctest
import importlib
import re
from collections.abc import Iterator

import pytest
from conftest import ROOT
from test_rooms import TREES, name_of

MODULES = {name: tree for name, tree in TREES.items() if not name.startswith("tmft.cli")}
CLASSES = {
    node.name: node for tree in MODULES.values() for node in tree.body if isinstance(node, ast.ClassDef)
}
# Parameters of these types need no word: the docstring of the type, or of torch or numpy, explains them.
EXPLAINED_TYPES = CLASSES.keys() | {"Generator", "Random"}
COLLECTIONS = {"Callable", "dict", "Iterable", "Iterator", "list", "Mapping", "Sequence", "tuple"}
# The file or folder that the first sentence of the docstring is about.
PATH_NAMES, PATH_TYPES = {"path", "folder"}, {"Path", "Path | None", "str | os.PathLike"}
# Methods that torch calls, and whose parameters it explains.
TORCH_METHODS = {"state_dict", "load_state_dict"}
TORCH_FUNCTIONS = {"RMSNormFunction"}  # a torch.autograd.Function: its class says what it computes
# Configurations of models: their fields are keys of config.json, which the models' authors explain.
CONFIG_CLASSES = {"EncoderConfig", "RopeParameters"}
REFERENCE = re.compile(r"[Pp]arameters(?: are|:) those of ")  # what another docstring explains


def docstring(node: ast.AST) -> str:
    return ast.get_docstring(node) or ""


def base_classes(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """The classes of tmft/ that a class inherits from, direct and indirect ones."""
    for base in node.bases:
        module, _, name = ast.unparse(base).partition("[")[0].rpartition(".")
        if name in CLASSES and module not in ("nn", "torch.autograd"):
            yield CLASSES[name]
            yield from base_classes(CLASSES[name])


def methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (part for part in node.body if isinstance(part, ast.FunctionDef))


def is_setter_or_overload(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(line).endswith((".setter", "overload")) for line in node.decorator_list)


def public_names() -> Iterator[tuple[str, ast.AST, str]]:
    """Triples (name, function or class, its docstring with those that it shares with its classes)."""
    for module, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not is_setter_or_overload(node):
                yield f"{module}.{node.name}", node, docstring(node)
            elif isinstance(node, ast.ClassDef) and node.name not in TORCH_FUNCTIONS:
                bases = list(base_classes(node))
                text = "\n".join(map(docstring, [node, *bases]))
                yield f"{module}.{node.name}", node, text
                for method in methods(node):
                    inherited = [one for base in bases for one in methods(base) if one.name == method.name]
                    shared = [docstring(one) for one in [method, *inherited]]
                    if method.name in ("__init__", "__post_init__", "forward"):
                        shared.append(text)
                    if method.name not in TORCH_METHODS and not is_setter_or_overload(method):
                        yield f"{module}.{node.name}.{method.name}", method, "\n".join(shared)


NAMES = [
    (name, node, text)
    for name, node, text in public_names()
    if not node.name.startswith("_") or node.name in ("__init__", "__post_init__")
]
# What people import: these names, and the members of these classes.
INTERFACE = (
    "tmft.cka.linear_cka",
    "tmft.data.Examples",
    "tmft.distillation.distill",
    "tmft.errors.InputError",
    "tmft.runs.fine_tune.fine_tune",
    "tmft.sentence_encoder.SentenceEncoder",
    "tmft.tasks.Task",
    "tmft.training.loop.Recipe",
    "tmft.training.loop.fit",
)
PUBLIC = [
    (name, node, text)
    for name, node, text in NAMES
    if f"{name}.".startswith(tuple(f"{one}." for one in INTERFACE))
]


def is_explained_by_its_type(parameter: ast.arg) -> bool:
    if parameter.annotation is None:
        return False
    annotation = ast.unparse(parameter.annotation).strip("'\"")
    words = set(re.findall(r"\w+", annotation))
    if parameter.arg in PATH_NAMES and annotation in PATH_TYPES:
        return True
    return bool(words & EXPLAINED_TYPES) and not words & COLLECTIONS


def parameters(node: ast.FunctionDef) -> list[ast.arg]:
    spec = node.args
    starred = [argument for argument in (spec.vararg, spec.kwarg) if argument]
    return [
        parameter
        for parameter in spec.posonlyargs + spec.args + spec.kwonlyargs + starred
        if parameter.arg not in ("self", "cls") and not parameter.arg.startswith("_")
    ]


def unexplained_fields(node: ast.ClassDef, text: str, lines: list[str]) -> list[str]:
    """The fields of a dataclass that neither its docstring nor a comment at the field explains."""
    is_config = {node.name, *(base.name for base in base_classes(node))} & CONFIG_CLASSES
    if is_config or not any("dataclass" in ast.unparse(line) for line in node.decorator_list):
        return []
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
    names, after_comment = [], False
    for field in fields:
        before = lines[field.lineno - 2].strip()
        # a comment above a field also holds for the fields right below it
        after_comment = before.startswith("#") or (after_comment and bool(before))
        commented = after_comment or "#" in lines[field.lineno - 1]
        name = ast.unparse(field.target)
        if not (commented or re.search(rf"\b{name}\b", text) or name.startswith("_")):
            names.append(name)
    return names


def unexplained(node: ast.AST, text: str, lines: list[str]) -> list[str]:
    if isinstance(node, ast.ClassDef):
        return unexplained_fields(node, text, lines)
    if REFERENCE.search(text):
        return []
    names = [one.arg for one in parameters(node) if not is_explained_by_its_type(one)]
    return [name for name in names if not re.search(rf"\b{name}\b", text)]


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions and classes inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            yield child
            yield from own_nodes(child)


def raises_input_error(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(part, ast.Raise) and part.exc and ast.unparse(part.exc).startswith("InputError(")
        for part in own_nodes(node)
    )


SOURCE_LINES = {
    name_of(path): path.read_text(encoding="utf-8").split("\n") for path in ROOT.glob("tmft/**/*.py")
}


def source_lines(module_or_member: str) -> list[str]:
    module = max((name for name in MODULES if f"{module_or_member}.".startswith(f"{name}.")), key=len)
    return SOURCE_LINES[module]


def test_every_name_has_a_docstring():
    assert [name for name, node, text in NAMES if not (text or node.name.startswith("_"))] == []


def test_the_names_of_the_interface_are_there():
    assert set(INTERFACE) <= {name for name, _, _ in PUBLIC}


def test_a_docstring_explains_every_parameter_and_field():
    found = {name: unexplained(node, text, source_lines(name)) for name, node, text in PUBLIC}
    assert {name: names for name, names in found.items() if names} == {}


def test_a_docstring_says_if_input_error_is_raised():
    assert [name for name, node, text in PUBLIC if raises_input_error(node) and "Error" not in text] == []


@pytest.mark.parametrize(
    "code, missing",
    [
        ("def f(layer: int): 'Return layer.'", []),
        ("def f(layer: int): 'Return the layers.'", ["layer"]),
        ("def f(model: SentenceEncoder): 'Return it.'", []),
        ("def f(models: list[SentenceEncoder]): 'Return it.'", ["models"]),
        ("def f(path: Path, out: Path): 'Copy a file.'", ["out"]),
        ("def f(x, *rest, **options): 'Return x.'", ["rest", "options"]),
        ("def f(x, y): 'Return it. The parameters are those of g.'", []),
        ("@dataclass\nclass A:\n    a: int\n    b: int  # of a\n    c: int", ["a", "c"]),
    ],
)
def test_what_is_not_explained_would_be_found(code, missing):
    node = ast.parse(code).body[0]
    assert unexplained(node, docstring(node), code.split("\n")) == missing


# ----------------------------------------------------------------------------------------------- examples

EXAMPLES = {name: docstring(node) for name, node, text in NAMES if ">>>" in docstring(node)}


def test_the_names_that_people_use_most_have_an_example():
    methods = "from_pretrained tokenize encode encode_query similarity similarity_pairwise save_pretrained"
    used = {f"tmft.sentence_encoder.SentenceEncoder.{method}" for method in methods.split()}
    assert used | {"tmft.cka.linear_cka", "tmft.data.read_examples"} <= EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_shows(name, monkeypatch):
    """From the folder of the repository, as in README.md, and without the network."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    module = max((module for module in MODULES if name.startswith(f"{module}.")), key=len)
    names = dict(vars(importlib.import_module(module)))
    example = doctest.DocTestParser().get_doctest(EXAMPLES[name], names, name, None, None)
    report = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert result.attempted > 0 and not result.failed, "".join(report)
