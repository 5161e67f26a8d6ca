"""Change the code in one place, run the tests of that file, and see whether one fails.

    python tests/harness/mutants.py --each 15                   so many changes of each file, drawn by a seed
    python tests/harness/mutants.py --only tmft/pooling.py --each 1000        all of one file

A change turns + into -, * into /, < into <=, == into !=, and into or, a condition round, a number into
another one, or leaves a call out that stands alone. Messages of errors, annotations and defaults of what is
printed are left as they are. A mutant that no test catches is printed with its line: either a test is
missing, or the change does not matter.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240  # seconds: what runs longer is caught, too
TESTS = {
    "tmft/models/bert.py": ["tests/models/test_bert.py", "tests/checkpoints/test_load.py"],
    "tmft/sentence_encoder.py": ["tests/test_sentence_encoder.py", "tests/extraction"],
    "tmft/pooling.py": ["tests/test_pooling.py"],
    "tmft/losses/registry.py": ["tests/losses/test_registry.py", "tests/training/test_loop.py"],
    "tmft/metrics.py": ["tests/test_metrics.py"],
    "tmft/data.py": ["tests/test_data.py"],
    "tmft/training/loop.py": [
        "tests/training/test_loop.py",
        "tests/training/test_checkpointing.py",
        "tests/test_train.py",
    ],
    "tmft/embedding/postprocessing.py": ["tests/embedding/test_postprocessing.py"],
}
OTHER = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.MatMult: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module that may be changed."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, ast.AnnAssign):  # its annotation stays
            yield from places(ast.Tuple([node.value] if node.value else []))
            continue
        if isinstance(node, ast.arguments):
            continue
        if change_of(node):
            yield node
        yield from places(node)


def change_of(node: ast.AST) -> str:
    """What would become of a node, in words; '' for nothing."""
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in OTHER:
        return f"{type(node.op).__name__} to {OTHER[type(node.op)].__name__}"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
        return f"{type(node.ops[0]).__name__} to {OTHER[type(node.ops[0])].__name__}"
    if isinstance(node, (ast.If, ast.IfExp)):
        return "condition turned round"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return f"{node.value} to {other_number(node.value)}"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return f"{node.value} to {not node.value}"
    return "call left out" if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else ""


def other_number(value: float) -> float:
    return value + 1 if isinstance(value, int) else value * 2 or 1.0


def change(node: ast.AST) -> None:
    """Change a node in place."""
    if isinstance(node, (ast.BinOp, ast.BoolOp)):
        node.op = OTHER[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops[0] = OTHER[type(node.ops[0])]()
    elif isinstance(node, (ast.If, ast.IfExp)):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else other_number(node.value)
    else:
        node.value = ast.Constant(None)


def mutants(source: str) -> list[tuple[int, str, str]]:
    """(line, what was changed, the changed module) of every place."""
    tree, found = ast.parse(source), []
    for number, node in enumerate(places(tree)):
        other = copy.deepcopy(tree)
        target = list(places(other))[number]
        change(target)
        found.append((node.lineno, change_of(node), ast.unparse(ast.fix_missing_locations(other))))
    return found


def survives(folder: Path, tests: list[str]) -> bool:
    """Whether the tests pass in a copy of the repository, in a process that has the libraries already."""
    child = os.fork()
    if child == 0:
        import pytest

        os.chdir(folder)
        sys.path[:] = [str(folder), str(folder / "tests"), *sys.path]
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1), os.dup2(silent, 2)
        code = 1
        try:
            code = pytest.main(["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests])
        finally:
            os._exit(int(code))
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--each", type=int, default=15, help="changes of each file")
    p.add_argument("--only", nargs="+", choices=TESTS, default=list(TESTS))
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    for library in ("torch", "scipy.stats", "transformers", "sklearn", "safetensors.torch", "pytest"):
        try:
            __import__(library)  # once for all children
        except ImportError:
            pass
    draw, caught, tried = random.Random(args.seed), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(scratch) / "tmft"
        copied.mkdir()
        for part in ("tmft", "tests", "data", "docs", "README.md", "pyproject.toml"):
            whole = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            whole(ROOT / part, copied / part)
        for command in ROOT.glob("*.py"):
            shutil.copy(command, copied)
        for name in args.only:
            source = (ROOT / name).read_text(encoding="utf-8")
            every = mutants(source)
            if not survives(copied, TESTS[name]):
                raise SystemExit(f"the tests of {name} fail without any change")
            drawn = sorted(draw.sample(every, min(args.each, len(every))))
            alive = []
            for line, what, changed in drawn:
                (copied / name).write_text(changed, encoding="utf-8")
                if survives(copied, TESTS[name]):
                    alive.append(f"    line {line}: {what}: {source.splitlines()[line - 1].strip()}")
            (copied / name).write_text(source, encoding="utf-8")
            caught, tried = caught + len(drawn) - len(alive), tried + len(drawn)
            print(f"{name}: {len(drawn) - len(alive)} of {len(drawn)} caught, of {len(every)} places")
            print(*alive, sep="\n", flush=True)
    print(f"{caught} of {tried} caught")
