"""The harnesses in a short form, so that they cannot rot; docs/reliability.md tells of the long ones."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

sys.path.insert(0, str(Path(__file__).resolve().parent))

import kill  # noqa: E402
import mutants  # noqa: E402
import soak  # noqa: E402


@pytest.mark.slow
def test_a_few_kills_lose_nothing():
    line = [sys.executable, ROOT / "tests/harness/kill.py", "--kills", "6", "--only", "fine-tuning", "encode"]
    found = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0 and found.stdout.count(" 0 lost") == 2, found.stdout + found.stderr


def test_what_is_compared_has_no_times(tmp_path):
    (tmp_path / "result.json").write_text('{"epochs": [{"loss": 1, "seconds": 2}], "environment": {}}')
    (tmp_path / "a").write_text("x")
    before = kill.essence(tmp_path)
    (tmp_path / "result.json").write_text('{"epochs": [{"loss": 1, "seconds": 3}], "environment": {"a": 1}}')
    assert kill.essence(tmp_path) == before
    (tmp_path / "result.json").write_text('{"epochs": [{"loss": 2, "seconds": 3}]}')
    assert kill.essence(tmp_path) != before


def test_a_leak_is_seen_and_noise_is_none():
    flat = [(n, 500.0 + n % 3, 9) for n in range(50)]
    assert abs(soak.growth(flat)[0]) <= 1 and soak.growth(flat)[1] == 0
    leak = [(n, 500.0 + n, 9 + n // 10) for n in range(50)]
    assert soak.growth(leak)[0] > soak.GROWTH and soak.growth(leak)[1] >= 1


def test_a_short_run_is_measured():
    points = soak.steps(8, points=2)
    assert [step for step, *_ in points] == [4, 8] and all(mb > 10 and files > 2 for _, mb, files in points)


def test_every_kind_of_change_is_made():
    source = """
def f(a: int = 1) -> int:
    \"\"\"Add 1.\"\"\"
    g(a)
    if a < 2 and not a:
        raise ValueError(f"{a + 1}")
    return [a + 1, a * 0.5, True][a @ a]
"""
    said = [what for _, what, _ in mutants.mutants(source)]
    assert said == [
        "call left out",
        "condition turned round",
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
    changed = {what: text for _, what, text in mutants.mutants(source)}
    assert "if a <= 2 and" in changed["Lt to LtE"] and "None\n" in changed["call left out"]
    assert all("Add 1." in text and "a: int=1" in text for text in changed.values())
