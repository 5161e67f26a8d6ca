"""Mutation testing: change the code in one place, run the tests of that file, and see whether one fails.

    python tests/harness/mutants.py --each 15                   15 random mutants of each file
    python tests/harness/mutants.py --only tmft/pooling.py --each 1000        all mutants of one file

A mutant has one change: + becomes -, * becomes /, < becomes <=, == becomes !=, `and` becomes `or`, a
condition is negated, a number becomes another one, or a call that is a statement is removed. Error messages,
annotations and default arguments are not changed. A mutant that no test catches is printed with its line:
either a test is missing, or the change has no effect.
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
TIMEOUT = 240  # seconds; a mutant whose tests run longer is caught, too
# fmt: off
# File of tmft -> its tests, in tests/.
TESTS = {
    "tmft/bert.py": "test_bert.py checkpoints/test_load.py models/test_every_family.py",
    "tmft/sentence_encoder.py":
        "checkpoints/test_files_of_others.py test_sentence_encoder.py embedding "
        "checkpoints/test_any_model.py checkpoints/test_any_st_folder.py",
    "tmft/pooling.py": "test_pooling.py",
    "tmft/speed/cuda_graphs.py": "speed/test_cuda_graphs.py",
    "tmft/losses/multiple_negatives.py": "losses/test_multiple_negatives.py",
    "tmft/metrics.py": "test_metrics.py",
    "tmft/data.py": "test_data.py datasets/test_labels.py runs/test_run_folder.py",
    "tmft/loop.py": "test_loop.py training/test_checkpointing.py test_train.py",
    "tmft/training_free/postprocessing.py": "training_free/test_postprocessing.py",
    "tmft/models/families.py":
        "models/test_families.py models/test_refused_configs.py models/test_family_features.py "
        "test_bert.py export/test_export.py checkpoints/test_save.py checkpoints/test_load.py",
    "tmft/encoder.py":
        "test_bert.py speed/test_long_rows.py models/test_families.py models/test_refused_configs.py "
        "models/test_every_family.py",
    "tmft/models/rotary_families.py":
        "models/test_refused_configs.py models/test_rotary_families.py models/test_every_family.py "
        "models/test_families.py",
    "tmft/checkpoints/model_folder.py":
        "checkpoints/test_files_of_others.py checkpoints/test_model_folder.py checkpoints/test_load.py "
        "checkpoints/test_weights.py checkpoints/test_st_folder.py checkpoints/test_any_st_folder.py",
    "tmft/checkpoints/save.py":
        "checkpoints/test_save.py checkpoints/test_any_model.py checkpoints/test_load_dtype.py "
        "pretraining/test_token_heads.py models/test_every_family.py",
    "tmft/checkpoints/st_folder.py":
        "checkpoints/test_files_of_others.py checkpoints/test_model_card.py checkpoints/test_st_folder.py "
        "checkpoints/test_any_model.py checkpoints/test_any_st_folder.py",
    "tmft/reports/plots.py": "reports/test_plots.py",
    "tmft/reports/drawing.py": "reports/test_plots.py",
    "tmft/reports/run_tables.py": "reports/test_report.py",
    "tmft/reports/model_scores.py": "reports/test_model_scores.py",
    "tmft/reports/page.py": "reports/test_page.py",
    "tmft/reports/report.py": "reports/test_report.py reports/test_page.py",
    "tmft/checkpoints/tokenizers.py":
        "checkpoints/test_tokenizer_kinds.py checkpoints/test_sentencepiece.py "
        "checkpoints/test_model_folder.py checkpoints/test_any_st_folder.py",
    "tmft/training/checkpointing.py": "training/test_checkpointing.py",
    "tmft/runs/run_folder.py":
        "runs/test_run_folder.py runs/test_sweep_plan.py losses/test_losses.py "
        "training/test_checkpointing.py",
    "tmft/serving/encode_file.py": "serving/test_encode_file.py",
    "tmft/export/export.py": "export/test_export.py export/test_compact_export.py",
    "tmft/export/numpy_encoder.py": "export/test_compact_export.py",
    "tmft/students/distillation.py": "students/test_distillation.py datasets/test_own_data.py",
    "tmft/students/narrow_models.py": "students/test_narrow_models.py students/test_distill.py",
    "tmft/datasets/own_data.py": "datasets/test_own_data.py datasets/test_held_out.py",
    "tmft/datasets/task_lookup.py":
        "datasets/test_task_lookup.py datasets/test_held_out.py datasets/test_labels.py test_data.py "
        "training/test_multitask.py",
}
REPLACEMENTS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.MatMult: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And,
}
# fmt: on


def mutable_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module that can be changed."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, ast.AnnAssign):  # its annotation is not changed
            yield from mutable_nodes(ast.Tuple([node.value] if node.value else []))
            continue
        if isinstance(node, ast.arguments):
            continue
        if describe_change(node):
            yield node
        yield from mutable_nodes(node)


def describe_change(node: ast.AST) -> str:
    """Describe how a node would be changed; '' if it cannot be changed."""
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in REPLACEMENTS:
        return f"{type(node.op).__name__} to {REPLACEMENTS[type(node.op)].__name__}"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in REPLACEMENTS:
        return f"{type(node.ops[0]).__name__} to {REPLACEMENTS[type(node.ops[0])].__name__}"
    if isinstance(node, (ast.If, ast.IfExp)):
        return "condition negated"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return f"{node.value} to {other_number(node.value)}"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return f"{node.value} to {not node.value}"
    return "call removed" if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else ""


def other_number(value: float) -> float:
    """Return a number of the same type with another value."""
    return value + 1 if isinstance(value, int) else value * 2 or 1.0


def change(node: ast.AST) -> None:
    """Change a node in place."""
    if isinstance(node, (ast.BinOp, ast.BoolOp)):
        node.op = REPLACEMENTS[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops[0] = REPLACEMENTS[type(node.ops[0])]()
    elif isinstance(node, (ast.If, ast.IfExp)):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else other_number(node.value)
    else:
        node.value = ast.Constant(None)


def mutants(source: str) -> list[tuple[int, str, str]]:
    """Return (line, description of the change, source of the changed module) of every mutant."""
    tree, result = ast.parse(source), []
    for index, node in enumerate(mutable_nodes(tree)):
        other = copy.deepcopy(tree)
        target = list(mutable_nodes(other))[index]
        change(target)
        result.append((node.lineno, describe_change(node), ast.unparse(ast.fix_missing_locations(other))))
    return result


def survives(folder: Path, tests: list[str]) -> bool:
    """Return whether the tests pass in a copy of the repository; a child process runs them."""
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
    end = time.monotonic() + TIMEOUT
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
    p.add_argument("--each", type=int, default=15, help="mutants of each file")
    p.add_argument("--only", nargs="+", choices=TESTS, default=list(TESTS))
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    for library in ("torch", "scipy.stats", "transformers", "sklearn", "safetensors.torch", "pytest"):
        try:
            __import__(library)  # imported once, for all child processes
        except ImportError:
            pass
    rng, caught, tried = random.Random(args.seed), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        checkout = Path(scratch) / "tmft"
        checkout.mkdir()
        for part in ("tmft", "tests", "data", "docs", "README.md", "pyproject.toml"):
            copy_any = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy_any(ROOT / part, checkout / part)
        for command in ROOT.glob("*.py"):
            shutil.copy(command, checkout)
        for name in args.only:
            source = (ROOT / name).read_text(encoding="utf-8")
            all_mutants = mutants(source)
            tests = [f"tests/{test}" for test in TESTS[name].split()]
            if not survives(checkout, tests):
                raise SystemExit(f"the tests of {name} fail without any change")
            drawn = sorted(rng.sample(all_mutants, min(args.each, len(all_mutants))))
            num_survivors = 0
            for line, description, changed in drawn:
                (checkout / name).write_text(changed, encoding="utf-8")
                if survives(checkout, tests):
                    code = source.splitlines()[line - 1].strip()
                    print(f"{name}, line {line}: {description}: {code}", flush=True)
                    num_survivors += 1
            (checkout / name).write_text(source, encoding="utf-8")
            num_caught = len(drawn) - num_survivors
            print(f"{name}: {num_caught} of {len(drawn)} caught, of {len(all_mutants)} possible", flush=True)
            caught, tried = caught + num_caught, tried + len(drawn)
    print(f"{caught} of {tried} caught")
