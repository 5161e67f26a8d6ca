"""The harnesses, which are started by hand for long, run briefly."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

sys.path.insert(0, str(Path(__file__).resolve().parent))

import kill  # noqa: E402
import mutants  # noqa: E402


@pytest.mark.slow
def test_a_few_kills_lose_nothing():
    line = [sys.executable, ROOT / "tests/harness/kill.py", "--kills", "3", "--only", "fine-tuning", "encode"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count(" 0 lost") == 2, done.stdout + done.stderr


def test_times_are_not_compared(tmp_path):
    (tmp_path / "result.json").write_text('{"epochs": [{"loss": 1, "seconds": 2}], "environment": {}}')
    (tmp_path / "a").write_text("x")
    before = kill.digests(tmp_path)
    (tmp_path / "result.json").write_text('{"epochs": [{"loss": 1, "seconds": 3}], "environment": {"a": 1}}')
    assert kill.digests(tmp_path) == before
    (tmp_path / "result.json").write_text('{"epochs": [{"loss": 2, "seconds": 3}]}')
    assert kill.digests(tmp_path) != before


def test_every_kind_of_change_is_made():
    source = """
def f(a: int = 1) -> int:
    \"\"\"Add 1.\"\"\"
    g(a)
    if a < 2 and not a:
        raise ValueError(f"{a + 1}")
    return [a + 1, a * 0.5, True][a @ a]
"""
    descriptions = [description for _, description, _ in mutants.mutants(source)]
    assert descriptions == [
        "call removed",
        "condition negated",
        "And to Or",
        "Lt to LtE",
        "2 to 3",
        "Add to Sub",
        "1 to 2",
        "Mult to Div",
        "0.5 to 1.0",
        "True to False",
        "MatMult to Mult",
    ]
    changed = {description: text for _, description, text in mutants.mutants(source)}
    assert "if a <= 2 and" in changed["Lt to LtE"] and "None\n" in changed["call removed"]
    assert all("Add 1." in text and "a: int=1" in text for text in changed.values())
